"""Reading the metadata of a GGUF file: the header's keys and values, never the tensors.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from typing import Container, Iterator, NamedTuple, Union

from .errors import BundleInvalid

Value = Union[int, float, bool, str]

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_UINT32, _STRING, _ARRAY, _UINT64 = _SCALARS[4], 8, 9, _SCALARS[10]
# The smallest entry: an empty key, its type, one byte.
_SMALLEST_ENTRY = 13


class GgufMetadata(NamedTuple):
    """What the header says. Arrays, such as the vocabulary, are left out of ``values``."""

    version: int
    tensor_count: int
    values: dict[str, Value]


def read_metadata(
    path: str | os.PathLike[str], wanted: Container[str] | None = None
) -> GgufMetadata:
    """Reads the header of a GGUF file; with ``wanted``, only the values of those keys.

    Raises BundleInvalid for what is not a readable GGUF header, OSError.
    """
    with _reader(path) as reader:
        return reader.metadata(wanted)


def read_strings(path: str | os.PathLike[str], key: str) -> list[str] | None:
    """The array of strings under ``key``, such as the vocabulary; None: there is none.

    Raises like :func:`read_metadata`.
    """
    with _reader(path) as reader:
        return reader.strings(key)


@contextlib.contextmanager
def _reader(path: str | os.PathLike[str]) -> Iterator[_Reader]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise BundleInvalid.because(f"{os.fspath(path)}: is empty, not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield _Reader(os.fspath(path), content)


class _Reader:
    """A position in the file. Every read checks the file's end first."""

    def __init__(self, path: str, content: mmap.mmap) -> None:
        self._path = path
        self._content = content
        self._size = len(content)
        self._position = 0

    def metadata(self, wanted: Container[str] | None) -> GgufMetadata:
        version, tensor_count, entry_count = self._counts()
        values: dict[str, Value] = {}
        for _ in range(entry_count):
            key = self._string()
            value = self._value(self._number(_UINT32), wanted is None or key in wanted)
            if value is not None:
                values[key] = value
        return GgufMetadata(version, tensor_count, values)

    def strings(self, wanted: str) -> list[str] | None:
        for _ in range(self._counts()[2]):
            key = self._string()
            kind = self._number(_UINT32)
            start = self._position
            self._value(kind, keep=False)
            if key == wanted and kind == _ARRAY:
                # Skipping has checked the bounds.
                self._position = start
                if self._number(_UINT32) != _STRING:
                    return None
                return [self._string() for _ in range(self._number(_UINT64))]
        return None

    def _counts(self) -> tuple[int, int, int]:
        """The version, and the numbers of tensors and of metadata entries, which follow."""
        if self._content[:4] != b"GGUF":
            raise self._invalid("is not a GGUF file")
        self._position = 4
        version = self._number(_UINT32)
        if version not in (2, 3):
            kind = "a big-endian file" if version in (2 << 24, 3 << 24) else "not supported"
            raise self._invalid(f"GGUF version {version} is {kind}; versions 2 and 3 are read")
        tensor_count = self._number(_UINT64)
        entry_count = self._number(_UINT64)
        if entry_count > (self._size - self._position) // _SMALLEST_ENTRY:
            raise self._invalid(f"{entry_count} metadata entries cannot fit the file")
        return version, tensor_count, entry_count

    def _value(self, kind: int, keep: bool) -> Value | None:
        if kind == _ARRAY:
            self._skip_array()
            return None
        if kind == _STRING:
            start, size = self._string_bounds()
            return self._content[start : start + size].decode("utf-8", "replace") if keep else None
        if kind not in _SCALARS:
            raise self._invalid(f"unknown value type {kind} at byte {self._position}")
        number: Value = self._scalar(_SCALARS[kind])
        return number if keep else None

    def _skip_array(self) -> None:
        kind = self._number(_UINT32)
        count = self._number(_UINT64)
        if kind in _SCALARS:
            self._advance(count * _SCALARS[kind].size)
            return
        if kind != _STRING:
            raise self._invalid(f"an array of value type {kind} at byte {self._position}")
        if count > (self._size - self._position) // _UINT64.size:
            raise self._invalid(f"an array of {count} strings cannot fit the file")
        for _ in range(count):
            self._string_bounds()

    def _string(self) -> str:
        start, size = self._string_bounds()
        return self._content[start : start + size].decode("utf-8", "replace")

    def _string_bounds(self) -> tuple[int, int]:
        size = self._number(_UINT64)
        return self._advance(size), size

    def _number(self, layout: struct.Struct) -> int:
        return int(self._scalar(layout))

    def _scalar(self, layout: struct.Struct) -> Value:
        value: Value = layout.unpack_from(self._content, self._advance(layout.size))[0]
        return value

    def _advance(self, size: int) -> int:
        """Moves on by ``size`` bytes and returns where they start."""
        start = self._position
        if size > self._size - start:
            raise self._invalid(f"is cut off: {size} bytes are missing at byte {start}")
        self._position = start + size
        return start

    def _invalid(self, what: str) -> BundleInvalid:
        return BundleInvalid.because(f"{self._path}: {what}")
