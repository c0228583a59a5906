"""zig's C and C++ compiler as a toolchain for CMake: for other machines than the one that builds,
and for an old glibc. The C++ runtime becomes part of what it links."""

from __future__ import annotations

import platform
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from lib import apt, cache
from lib.console import Failure
from lib.environments import ZIG, environment

# zig's own names of the tools, by CMake's variables.
TOOLS = {
    "C_COMPILER": "cc",
    "CXX_COMPILER": "c++",
    "RC_COMPILER": "rc",
    "AR": "ar",
    "RANLIB": "ranlib",
}
OLDEST_MACOS = "11.0"


@dataclass(frozen=True)
class Target:
    """What to compile for."""

    triple: str
    """zig's, with the oldest glibc or macOS that the result may need."""
    system: str
    processor: str

    @property
    def python_platform(self) -> str:
        """As in `sysconfig.get_platform()` there."""
        if self.system == "Windows":
            return "win-amd64"
        system = f"macosx-{OLDEST_MACOS}" if self.system == "Darwin" else self.system.lower()
        return f"{system}-{self.processor}"

    @property
    def binutils(self) -> str:
        """What GNU's tools for the target begin with."""
        return f"{self.processor}-linux-gnu-"


WINDOWS = Target("x86_64-windows-gnu", "Windows", "x86_64")
MACOS_ARM64 = Target(f"aarch64-macos.{OLDEST_MACOS}", "Darwin", "arm64")
MACOS_X86_64 = Target(f"x86_64-macos.{OLDEST_MACOS}", "Darwin", "x86_64")


def toolchain(target: Target) -> Path:
    """A toolchain file for CMake; it names compilers, binutils and licences of the C++ runtime."""
    zig = _zig()
    binutils = _binutils(target)
    parts = (target, zig, *binutils.values(), Path(__file__).read_text())
    entry = cache.root() / "toolchains" / f"{target.triple}-{cache.key(*parts)}"

    def make(entry: Path) -> None:
        for command in TOOLS.values():
            _write_wrapper(entry / command, zig, target, command)
        runtimes = [zig.parent / "lib" / name for name in ("libcxx", "libcxxabi", "libunwind")]
        licenses = [zig.parent / "LICENSE", *(folder / "LICENSE.TXT" for folder in runtimes)]
        if target.system == "Windows":
            licenses += _windows_licenses(zig.parent / "lib" / "libc" / "mingw", entry)
        settings = {
            "CMAKE_SYSTEM_NAME": target.system,
            "CMAKE_SYSTEM_PROCESSOR": target.processor,
            **{f"CMAKE_{variable}": entry / command for variable, command in TOOLS.items()},
            **binutils,
            "ELIZA_CXX_RUNTIME_LICENSES": ";".join(map(str, licenses)),
        }
        lines = [f'set({name} "{value}")\n' for name, value in settings.items()]
        (entry / "toolchain.cmake").write_text("".join(lines))

    return cache.make_once(entry, make) / "toolchain.cmake"


def compiler(target: Target) -> Path:
    """The C compiler of the toolchain."""
    return toolchain(target).parent / "cc"


def _zig() -> Path:
    (found,) = environment(ZIG).parent.glob("lib/python*/site-packages/ziglang/zig")
    return found


def _write_wrapper(path: Path, zig: Path, target: Target, command: str) -> None:
    options = f" -target {target.triple}" if command in ("cc", "c++") else ""
    folder = shlex.quote(str(cache.root() / "zig"))
    path.write_text(
        "#!/bin/sh\n"
        f"export ZIG_GLOBAL_CACHE_DIR={folder} ZIG_LOCAL_CACHE_DIR={folder}\n"
        f'exec {shlex.quote(str(zig))} {command}{options} "$@"\n'
    )
    path.chmod(0o755)


def _windows_licenses(mingw: Path, folder: Path) -> list[Path]:
    """That of mingw-w64's runtime, and that of the conversion of numbers in it, which stands at the
    head of its files."""
    head, found, _ = (mingw / "gdtoa" / "gdtoa.c").read_text().partition("*/")
    if not found or "Permission to use" not in head:
        raise Failure(f"no licence at the head of {mingw / 'gdtoa' / 'gdtoa.c'}")
    written = folder / "gdtoa" / "LICENSE"
    written.parent.mkdir()
    written.write_text(head + found + "\n")
    return [mingw / "COPYING", written]


def _binutils(target: Target) -> dict[str, str]:
    """CMake's variables for what zig has no tools for, or none that does."""
    if target.system != "Linux":
        # Run at installation, where nothing is left to change: a library is stripped, and has its
        # name, from linking.
        nothing = shutil.which("true") or "true"
        return {"CMAKE_INSTALL_NAME_TOOL": nothing, "CMAKE_STRIP": nothing}
    names = {"CMAKE_LINKER": "ld", "CMAKE_OBJCOPY": "objcopy", "CMAKE_STRIP": "strip"}
    return {variable: _binutil(target, name) for variable, name in names.items()}


def _binutil(target: Target, name: str) -> str:
    """GNU's: zig's linker does not merge object files as the CPU levels need it."""
    package = f"binutils-{target.processor.replace('_', '-')}-linux-gnu"
    own = (name,) if target.processor == platform.machine() else ()
    return apt.program((target.binutils + name, *own), package)
