"""Finding the shared library and binding the functions that it has.

Places, in this order: the path that the caller gives, the environment variable
``ELIZA_INFERENCE_LIBRARY``, the library inside this package. A place that is named but does not
work is an error; the next one is not tried silently. Nothing is ever left to the dynamic linker's
own search, and the working directory only matters to a relative path that somebody wrote down.

A library that was built for LiteRT-LM opens that runtime's own library when a model needs it:
where ``ELIZA_LITERT_LM_LIBRARY`` says, else beside itself. Loading a library therefore sets that
variable to the file in an installed ``litert-lm-api``, which ``eliza-ctypes[litert]`` brings,
unless the variable is set already, if only to nothing, or such a file lies beside the library.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Callable, NamedTuple, Union

from . import __path__ as _FOLDERS
from .abi import FUNCTIONS, PREFIX, TABLE
from .errors import LibraryLoadError, LibraryNotFound

PathArgument = Union[str, "os.PathLike[str]"]

ENVIRONMENT_VARIABLE = "ELIZA_INFERENCE_LIBRARY"
LITERT_VARIABLE = "ELIZA_LITERT_LM_LIBRARY"

_LIBRARY: str = TABLE["library"]
_FILE_NAME = {"win32": f"{_LIBRARY[3:]}.dll", "darwin": f"{_LIBRARY}.dylib"}.get(
    sys.platform, f"{_LIBRARY}.so"
)
_LITERT_FILE_NAME = {"win32": "litert-lm.dll", "darwin": "liblitert-lm.dylib"}.get(
    sys.platform, "liblitert-lm.so"
)
# An editable installation has a second folder, for what was built: the library.
_PACKAGED = [os.path.join(os.path.abspath(folder), "lib", _FILE_NAME) for folder in _FOLDERS]
PACKAGED_LIBRARY = next((file for file in _PACKAGED if os.path.exists(file)), _PACKAGED[0])

_ELF_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
# The last one is of a file for several machines.
_MACH_O = {b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe"}
_SAME_MACHINE = {"amd64": "x86_64", "arm64": "aarch64", "i686": "x86", "armv7l": "arm"}


class NativeLibrary(NamedTuple):
    """A loaded library: ``functions`` holds only what it exports."""

    path: str
    version: str
    """As the library reports it, such as ``"8"``."""
    abi: int
    """The version as a number; 0 where it is none."""
    functions: dict[str, Callable[..., Any]]


def locate(path: PathArgument | None = None) -> str:
    """The absolute path of the library file that :func:`load` would use.

    Raises LibraryNotFound, listing every place and why it failed.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if path is not None:
        place, candidate, skipped = "the path given", os.path.abspath(os.fspath(path)), ""
    elif named:
        place, candidate = ENVIRONMENT_VARIABLE, os.path.abspath(named)
        skipped = "no path was given; "
    else:
        place, candidate = "the packaged library", PACKAGED_LIBRARY
        skipped = f"no path was given; {ENVIRONMENT_VARIABLE} is not set; "
    if not os.path.exists(candidate):
        raise LibraryNotFound.because(
            f"{_LIBRARY} was not found: {skipped}{place}, {candidate}: no such file"
        )
    if os.path.isdir(candidate):
        raise LibraryLoadError.because(
            f"{_LIBRARY} cannot be loaded: {skipped}{place}, {candidate}: is a directory"
        )
    return candidate


def load(path: PathArgument | None = None) -> NativeLibrary:
    """Loads the library and binds every function of the table that it exports.

    May set ``ELIZA_LITERT_LM_LIBRARY``; see above. Raises LibraryNotFound, or LibraryLoadError for
    a file that is no usable library.
    """
    found = locate(path)
    _name_litert_runtime(found)
    try:
        native = ctypes.CDLL(found)
    except OSError as error:
        reason = _foreign(found) or " ".join(str(error).split())
        raise LibraryLoadError.because(f"{_LIBRARY} cannot be loaded: {found}: {reason}") from error
    functions: dict[str, Callable[..., Any]] = {}
    for name, declared in FUNCTIONS.items():
        try:
            function = native[name]
        except AttributeError:
            continue
        function.argtypes = declared.argtypes
        function.restype = declared.returns
        functions[name] = function
    if f"{PREFIX}abi_version" not in functions:
        raise LibraryLoadError.because(
            f"{found} is not {_LIBRARY}: it does not export {PREFIX}abi_version",
        )
    version = (functions[f"{PREFIX}abi_version"]() or b"").decode("utf-8", "replace")
    abi = int(version) if version.isascii() and version.isdigit() else 0
    return NativeLibrary(found, version or "unknown", abi, functions)


def litert_runtime(library: str) -> str | None:
    """The file of LiteRT-LM that ``library`` will open; None where there is none to be found."""
    named = os.environ.get(LITERT_VARIABLE)
    if named is not None:
        return named or _litert_beside(library)
    return _litert_beside(library) or _installed_litert_runtime()


def _name_litert_runtime(library: str) -> None:
    if LITERT_VARIABLE not in os.environ and not _litert_beside(library):
        installed = _installed_litert_runtime()
        if installed is not None:
            os.environ[LITERT_VARIABLE] = installed


def _litert_beside(library: str) -> str | None:
    file = os.path.join(os.path.dirname(library), _LITERT_FILE_NAME)
    return file if os.path.exists(file) else None


def _installed_litert_runtime() -> str | None:
    """What ``litert-lm-api`` brings. Its package is not imported: that would load the file."""
    from importlib.util import find_spec

    try:
        found = find_spec("litert_lm")
    except (ImportError, ValueError):
        return None
    for folder in (found and found.submodule_search_locations) or ():
        file = os.path.join(os.path.abspath(folder), _LITERT_FILE_NAME)
        if os.path.exists(file):
            return file
    return None


def _foreign(path: str) -> str | None:
    """Why this machine cannot load the file, where its first bytes tell; the dynamic linker
    answers "no such file" for another architecture."""
    import platform

    try:
        with open(path, "rb") as file:
            header = file.read(20)
    except OSError:
        return None
    if header[:4] == b"\x7fELF" and len(header) == 20:
        order = "big" if header[5] == 2 else "little"
        number = int.from_bytes(header[18:20], order)  # type: ignore[arg-type]
        machine = _ELF_MACHINES.get(number, f"machine {number}")
        here = platform.machine().lower()
        if sys.platform.startswith("linux") and machine != _SAME_MACHINE.get(here, here):
            return f"was built for {machine}, and this machine is {here}"
    kind = _kind(header)
    if kind != {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, "ELF"):
        what = f"a {kind} file" if kind else f"starts with {bytes(header[:8])!r}"
        return f"is not a shared library of this platform ({what})"
    return None


def _kind(header: bytes) -> str | None:
    """Whose format the file has that begins so."""
    if header[:4] == b"\x7fELF":
        return "ELF"
    if header[:2] == b"MZ":
        return "Windows"
    return "macOS" if header[:4] in _MACH_O else None
