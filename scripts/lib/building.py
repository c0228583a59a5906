"""Configuring and building the CMake tree, with ccache where it is to be had."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib import cache
from lib.console import Failure, run, say
from lib.environments import CCACHE, CMAKE, environment

CHECKOUT = Path(__file__).resolve().parents[2]
OLDEST_CMAKE = (3, 25)
TESTS_ON = ("-DELIZA_BUILD_TESTS=ON", "-DELIZA_BUILD_TOOLS=ON")
STRICT = ("-DELIZA_WERROR=ON",)


@dataclass(frozen=True)
class Build:
    directory: Path

    @property
    def library(self) -> Path:
        suffix = ".dylib" if sys.platform == "darwin" else ".so"
        return self.directory / "lib" / f"libelizainference{suffix}"

    @property
    def relay_library(self) -> Path:
        """With TESTS_ON: the library with the backend of tests/consumers/relay built in."""
        return self.library.parent / "relay" / self.library.name

    def program(self, name: str) -> Path:
        return self.directory / "bin" / name

    def settings(self) -> dict[str, str]:
        """CMake's cache variables."""
        path = self.directory / "CMakeCache.txt"
        if not path.exists():
            return {}
        return dict(re.findall(r"^([^#/:\n][^:\n]*):\w+=(.*)$", path.read_text(), re.MULTILINE))


def build(
    options: Sequence[str],
    directory: Path | None = None,
    source: Path = CHECKOUT,
    target: str = "all",
) -> Build:
    """Configure with CMake `options` (unless that has been done) and build."""
    made = configure(options, directory, source)
    _compile(made, tools(), target)
    return made


def configure(
    options: Sequence[str], directory: Path | None = None, source: Path = CHECKOUT
) -> Build:
    """Configure with CMake `options`, unless that has been done."""
    made = Build((directory or _default_directory(options)).resolve())
    if not _is_configured(made, options):
        env = tools()
        say(f"configuring {_shown(made.directory)}")
        launcher = env.get("CCACHE")
        launchers = [
            f"-DCMAKE_{language}_COMPILER_LAUNCHER={launcher}" for language in ("C", "CXX")
        ]
        run(
            ["cmake", "-S", source, "-B", made.directory, "-G", "Ninja"]
            + (launchers if launcher else [])
            + list(options),
            "CMake",
            env,
        )
    return made


def tools() -> dict[str, str]:
    """The process environment with cmake and ninja on PATH and ccache set up."""
    env = dict(os.environ)
    if not _has_cmake_and_ninja():
        env["PATH"] = f"{environment(CMAKE)}{os.pathsep}{env['PATH']}"
    ccache = _ccache()
    if ccache:
        env.update(
            CCACHE=ccache,
            CCACHE_DIR=str(cache.root() / "ccache"),
            CCACHE_BASEDIR=str(CHECKOUT),
            CCACHE_NOHASHDIR="1",
            CCACHE_MAXSIZE="2G",
        )
    return env


def _default_directory(options: Sequence[str]) -> Path:
    name = f"options-{cache.key(*sorted(options))}" if options else "release"
    return CHECKOUT / "build" / name


def _is_configured(made: Build, options: Sequence[str]) -> bool:
    """Whether the options are in effect and that configuration's llama.cpp tree still exists."""
    settings = made.settings()
    if not (made.directory / "build.ninja").exists():
        return False
    if not Path(settings.get("llama.cpp_SOURCE_DIR", "")).is_dir():
        return False
    for option in options:
        match = re.fullmatch(r"-D([^:=]+)(?::\w+)?=(.*)", option)
        if not match or settings.get(match[1]) != match[2]:
            return False
    return True


def _has_cmake_and_ninja() -> bool:
    if not shutil.which("cmake") or not shutil.which("ninja"):
        return False
    match = re.search(r"(\d+)\.(\d+)", run(["cmake", "--version"], "cmake --version"))
    return match is not None and (int(match[1]), int(match[2])) >= OLDEST_CMAKE


def _ccache() -> str | None:
    found = shutil.which("ccache")
    if found:
        return found
    try:
        return str(environment(CCACHE) / "ccache")
    except Failure:
        say("no ccache for this platform: every build starts from nothing")
        return None


def _compile(made: Build, env: dict[str, str], target: str) -> None:
    """Build with a progress line now and then; ninja's output is shown where it fails."""
    process = subprocess.Popen(
        ["cmake", "--build", str(made.directory), "--target", target],
        env=env,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    lines: list[str] = []
    shown = time.monotonic()
    for line in process.stdout:
        step = re.match(r"\[(\d+)/(\d+)\] ", line)
        if not step:
            lines.append(line)
        elif time.monotonic() - shown > 15:
            say(f"building {_shown(made.directory)}: {step[1]} of {step[2]}")
            shown = time.monotonic()
    if process.wait() != 0:
        raise Failure(f"the build in {_shown(made.directory)} failed\n" + _failures(lines))


def _failures(lines: Sequence[str]) -> str:
    """From the first failed command on; what came before are other files' warnings."""
    starts = [number for number, line in enumerate(lines) if line.startswith("FAILED: ")]
    return "".join(lines[starts[0] if starts else 0 :])


def _shown(path: Path) -> str:
    return str(path.relative_to(CHECKOUT) if path.is_relative_to(CHECKOUT) else path)


def directory_option(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Split `-B DIR` or `-BDIR` from CMake arguments."""
    directory: Path | None = None
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "-B":
            directory = Path(next(remaining, "."))
        elif argument.startswith("-B"):
            directory = Path(argument[2:])
        else:
            rest.append(argument)
    return directory, rest
