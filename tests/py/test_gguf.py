"""The GGUF header reader: what it reads, and how it refuses what it cannot."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from eliza_ctypes import BundleInvalid
from eliza_ctypes.gguf import read_metadata, read_strings


def string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def header(*entries: bytes, count: int | None = None, version: int = 3, tensors: int = 2) -> bytes:
    number = len(entries) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", version, tensors, number) + b"".join(entries)


VOCABULARY = entry("tokens", 9, struct.pack("<IQ", 8, 3) + string("a") + string("") + string("cd"))
SCORES = entry("scores", 9, struct.pack("<IQ3f", 6, 3, 1, 2, 3))
NAME = entry("name", 8, string("tiny ü"))
SIZE = entry("size", 4, struct.pack("<I", 512))
SAMPLE = header(VOCABULARY, NAME, SCORES, SIZE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [
        (0, "B", 200),
        (1, "b", -3),
        (2, "H", 60000),
        (3, "h", -300),
        (4, "I", 2**32 - 1),
        (5, "i", -7),
        (6, "f", 0.5),
        (7, "?", True),
        (10, "Q", 2**63),
        (11, "q", -(2**40)),
        (12, "d", 0.1),
    ],
)
def test_every_scalar_type_is_read(path: Path, kind: int, layout: str, value: Any) -> None:
    path.write_bytes(header(entry("key", kind, struct.pack(f"<{layout}", value))))
    assert read_metadata(path).values == {"key": value}


def test_arrays_are_skipped_and_what_follows_is_read(path: Path) -> None:
    path.write_bytes(SAMPLE + b"tensors")
    metadata = read_metadata(path)
    assert metadata.values == {"name": "tiny ü", "size": 512}
    assert (metadata.version, metadata.tensor_count) == (3, 2)


def test_an_array_of_strings_is_read_by_name(path: Path) -> None:
    path.write_bytes(SAMPLE)
    assert read_strings(path, "tokens") == ["a", "", "cd"]
    assert [read_strings(path, key) for key in ("scores", "name", "absent")] == [None] * 3


def test_only_wanted_keys_are_kept(path: Path) -> None:
    path.write_bytes(SAMPLE)
    assert read_metadata(path, {"size", "tokens"}).values == {"size": 512}


def test_bytes_that_are_no_utf8_are_replaced(path: Path) -> None:
    path.write_bytes(header(entry("name", 8, string(b"\xffx"))))
    assert read_metadata(path).values == {"name": "\ufffdx"}


def test_every_truncation_is_refused(path: Path) -> None:
    for size in range(len(SAMPLE)):
        path.write_bytes(SAMPLE[:size])
        with pytest.raises(BundleInvalid, match=r"model\.gguf: "):
            read_metadata(path)


def test_random_bytes_are_refused_or_read_but_never_crash(path: Path) -> None:
    generator = random.Random(20240607)
    for _ in range(300):
        damaged = bytearray(SAMPLE)
        for _ in range(3):
            damaged[generator.randrange(4, len(damaged))] = generator.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(BundleInvalid):
            read_metadata(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"PK\3\4 something else", "not a GGUF file"),
        (header(version=1), "version 1"),
        (header(version=99), "version 99"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(count=2**63), "cannot fit"),
        (header(entry("k", 13, b"")), "unknown value type 13"),
        (header(entry("k", 9, struct.pack("<IQ", 9, 1) + bytes(64))), "array of value type 9"),
        (header(entry("k", 9, struct.pack("<IQ", 8, 2**61) + bytes(64))), "cannot fit"),
        (header(entry("k", 9, struct.pack("<IQ", 10, 2**62) + bytes(64))), "cut off"),
        (header(entry("k", 8, struct.pack("<Q", 2**64 - 1) + bytes(8))), "cut off"),
    ],
)
def test_bad_headers_are_refused_with_the_reason(path: Path, content: bytes, reason: str) -> None:
    path.write_bytes(content)
    with pytest.raises(BundleInvalid, match=reason):
        read_metadata(path)


def test_a_missing_file_is_an_os_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_metadata(path)
