"""A wheel file of this package, its name taken apart and its files unpacked."""

from __future__ import annotations

import re
import stat
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lib.console import Failure

LARGEST_UNPACKED = 50_000_000
_NAME = re.compile(
    r"(?P<package>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)"
    r"-(?P<platform>[^-]+)\.whl"
)
_LIBRARY = re.compile(r"\.(so|dylib|dll)(\.|$)")
# As the names of platforms end, and as Linux names the processor.
_MACHINES = {"x86_64": "x86_64", "aarch64": "aarch64", "amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Wheel:
    path: Path
    version: str
    python: str
    """Interpreter and its ABI, such as ``py3-none``."""
    platforms: tuple[str, ...]
    folder: Path
    """Where its files are unpacked."""

    @property
    def system(self) -> str:
        """``manylinux``, ``macosx`` or ``win``; other platforms are named as they are."""
        name = self.platforms[0]
        return next((s for s in ("manylinux", "macosx", "win") if name.startswith(s)), name)

    @property
    def machine(self) -> str:
        for ending, machine in _MACHINES.items():
            if self.platforms[0].endswith(ending):
                return machine
        raise Failure(f"{self.path.name} is for no processor that is known here")

    @property
    def metadata(self) -> str:
        return f"eliza_ctypes-{self.version}.dist-info"

    @property
    def library(self) -> Path:
        """The one native library in it."""
        found = [path for path in self.folder.rglob("*") if _LIBRARY.search(path.name)]
        if len(found) != 1 or found[0].parent != self.folder / "eliza_ctypes" / "lib":
            names = ", ".join(self.inside(path) for path in found) or "none"
            raise Failure(
                f"{self.path.name} has these native libraries: {names}; "
                "it must have one, in eliza_ctypes/lib"
            )
        return found[0]

    def inside(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def open_wheel(path: Path, folder: Path) -> Wheel:
    """Unpack the wheel into the empty `folder`."""
    name = _NAME.fullmatch(path.name)
    if name is None or name["package"] != "eliza_ctypes":
        raise Failure(
            f"{path.name} is not named as a wheel of this package is: "
            "eliza_ctypes-VERSION-py3-none-PLATFORM.whl"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _require_ordinary(path, member)
            if sum(member.file_size for member in archive.infolist()) > LARGEST_UNPACKED:
                raise Failure(f"{path.name} unpacks to more than {LARGEST_UNPACKED} bytes")
            # Reads everything: the sums of a damaged archive do not match.
            archive.extractall(folder)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise Failure(f"{path.name} is no whole zip archive ({error}): build it anew") from error
    return Wheel(
        path=path,
        version=name["version"],
        python=f"{name['python']}-{name['abi']}",
        platforms=tuple(name["platform"].split(".")),
        folder=folder,
    )


def _require_ordinary(path: Path, member: zipfile.ZipInfo) -> None:
    """A file or folder below where it is unpacked, with the permissions of such."""
    parts = PurePosixPath(member.filename).parts
    mode = member.external_attr >> 16
    kinds = (0, stat.S_IFREG, stat.S_IFDIR)
    if member.filename.startswith("/") or ".." in parts or "\\" in member.filename:
        raise Failure(f"{path.name} has {member.filename!r}, which is no place inside it")
    if stat.S_IFMT(mode) not in kinds or mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH):
        raise Failure(f"{path.name} has {member.filename!r} with the mode {mode:o}")


def fail_with(wheel: Wheel, problems: Iterable[str]) -> None:
    """One Failure of all problems, if there are any."""
    listed = list(problems)
    if listed:
        raise Failure("\n".join(f"{wheel.path.name}: {problem}" for problem in listed))
