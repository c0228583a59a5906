"""Slot files: what ``Stream.save`` writes, as far as Python reads it.

Little endian: "ELIZSLOT", then the version of the format, the size of the header and, 44 bytes
into the file, the number of tokens, each as 32 bits. The tokens, of 32 bits too, follow the header.
The library checks the rest, checksum included.
"""

from __future__ import annotations

import os
import sys
from array import array

from .errors import BundleInvalid
from .loader import PathArgument

_MAGIC = b"ELIZSLOT"
_VERSION = 1
_SMALLEST_HEADER = 48


def slot_tokens(path: PathArgument) -> list[int]:
    """The tokens that a slot file holds.

    Raises BundleInvalid for what is no slot file of this version, OSError.
    """
    with open(path, "rb") as file:
        header = file.read(_SMALLEST_HEADER)
        if len(header) < _SMALLEST_HEADER or header[:8] != _MAGIC:
            raise BundleInvalid.because(f"{os.fspath(path)}: is not a slot file")
        version, size, count = (int.from_bytes(header[at : at + 4], "little") for at in (8, 12, 44))
        if version != _VERSION:
            raise BundleInvalid.because(
                f"{os.fspath(path)}: slot file version {version}; version {_VERSION} is read"
            )
        if size < _SMALLEST_HEADER or size + 4 * count > os.fstat(file.fileno()).st_size:
            raise BundleInvalid.because(f"{os.fspath(path)}: is cut off: {count} tokens do not fit")
        file.seek(size)
        tokens = array("i", file.read(4 * count))
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()
