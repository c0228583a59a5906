"""Checks headers, libraries, bindings and this package against the ABI table.

They parse C, executables and other languages with packages that the extra
``eliza-ctypes[abi-check]`` brings; nothing else in ``eliza_ctypes`` imports this.
"""

from __future__ import annotations

import contextlib
from typing import Iterator


class CheckPackagesMissing(Exception):
    """A package that the checks parse with is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the ABI check needs the package {package}: pip install 'eliza-ctypes[abi-check]'"
        )


@contextlib.contextmanager
def needed(package: str) -> Iterator[None]:
    """Around the import of ``package``: raises CheckPackagesMissing instead of ImportError."""
    try:
        yield
    except ImportError:
        raise CheckPackagesMissing(package) from None
