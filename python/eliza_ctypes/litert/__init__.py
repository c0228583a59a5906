"""``eliza-ctypes bundle add-litert``: a LiteRT-LM model as a bundle with exact token ids.

It reads and writes other projects' formats with packages that the extra ``eliza-ctypes[litert]``
brings; nothing else in ``eliza_ctypes`` imports this.
"""

from __future__ import annotations

import contextlib
from typing import Iterator


class LitertPackagesMissing(Exception):
    """A package that the tool reads or writes with is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"adding a LiteRT-LM model needs the package {package}: "
            "pip install 'eliza-ctypes[litert]' (Python 3.10 or newer)"
        )


@contextlib.contextmanager
def needed(package: str) -> Iterator[None]:
    """Around the import of ``package``: raises LitertPackagesMissing instead of ImportError."""
    try:
        yield
    except ImportError:
        raise LitertPackagesMissing(package) from None
