"""Reading the files that a check is given: regular files only, and text as UTF-8."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from typing import BinaryIO

# The mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file to read. Raises OSError, also for what is no file: a pipe may never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    return open(path, "rb")


def reason(error: OSError) -> str:
    """Why a file cannot be read, without its name."""
    return error.strerror or str(error)


def wide_encoding(content: bytes) -> str | None:
    """UTF-16 or UTF-32, where the byte-order mark says so."""
    return next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)


def as_utf8(content: bytes) -> bytes:
    """Text without its byte-order mark, and in UTF-8 where the mark says UTF-16 or UTF-32.

    Raises UnicodeDecodeError where it is not what the mark says.
    """
    encoding = wide_encoding(content)
    if encoding is not None:
        return content.decode(encoding)[1:].encode("utf-8")
    return content[3:] if content.startswith(codecs.BOM_UTF8) else content
