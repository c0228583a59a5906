"""Exceptions: one class for each error code, each with the library's own message."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .abi import CONSTANTS

if TYPE_CHECKING:
    from typing_extensions import Self


class ElizaError(Exception):
    """Anything that goes wrong in this package.

    ``code`` is the library's error code, or ``None`` where the failure has none: functions that
    answer NULL report a message only.
    """

    code_name: ClassVar[str] = ""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message

    @classmethod
    def because(cls, message: str) -> Self:
        """The error for what this package refuses before the library sees it."""
        return cls(CONSTANTS.get(cls.code_name), message)


class NotImplementedByLibrary(ElizaError):
    """The library has the function, but no implementation in this build."""

    code_name = "ELIZA_ERR_NOT_IMPLEMENTED"


class InvalidArgument(ElizaError, ValueError):
    """A value that the library, or its C type, cannot take."""

    code_name = "ELIZA_ERR_INVALID_ARG"


class BundleInvalid(ElizaError):
    """A bundle directory or a model file that cannot be used."""

    code_name = "ELIZA_ERR_BUNDLE_INVALID"


class FfiFault(ElizaError):
    """The runtime behind the library failed."""

    code_name = "ELIZA_ERR_FFI_FAULT"


class OutOfMemory(ElizaError, MemoryError):
    """The library could not allocate."""

    code_name = "ELIZA_ERR_OOM"


class AbiMismatch(ElizaError):
    """The library and its caller disagree on the ABI."""

    code_name = "ELIZA_ERR_ABI_MISMATCH"


class Cancelled(ElizaError):
    """The stream was cancelled; a reset makes it usable again."""

    code_name = "ELIZA_ERR_CANCELLED"


class NotSupported(NotImplementedByLibrary):
    """The loaded library does not export this function at all."""


class LibraryLoadError(ElizaError):
    """The library file exists but cannot be used."""


class LibraryNotFound(LibraryLoadError):
    """No library file in any of the places where one may be."""


class ClosedHandle(ElizaError):
    """A context or stream was used after it was closed."""


_BY_CODE: dict[int, type[ElizaError]] = {
    CONSTANTS[error.code_name]: error for error in ElizaError.__subclasses__() if error.code_name
}
_NAMES = {code: name for name, code in CONSTANTS.items()}


def error_for(code: int, function: str, message: str | None) -> ElizaError:
    """The exception for a negative return value of ``function``."""
    if not message:
        message = f"{function} failed with {_NAMES.get(code, 'an unknown code')} ({code})"
    return _BY_CODE.get(code, ElizaError)(code, message)
