"""Libraries that ours is compared with and shares processes with.

llama-cpp-python is compiled from the source distribution that our llama.cpp comes from.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path

from lib import cache
from lib.assets import ASSETS
from lib.building import Build, tools
from lib.console import run, say
from lib.environments import NEIGHBOURS, PEER, environment

# As in cmake/LlamaCpp.cmake. LLAVA_BUILD, for images, is llama-cpp-python's own.
OFF = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_SUBPROCESS", "LLAMA_ALL_WARNINGS", "LLAVA_BUILD")
COPIED = tuple(f"CMAKE_{name}" for name in ("BUILD_TYPE", "C_COMPILER", "CXX_COMPILER")) + tuple(
    f"CMAKE_{language}_FLAGS{kind}" for language in ("C", "CXX") for kind in ("", "_RELEASE")
)


def llama_cpp_python(made: Build) -> Path:
    """The Python of an environment with llama-cpp-python, compiled with the flags of `made`."""
    (package,) = ASSETS["llama.cpp"].packages
    flags = _flags(made)
    name = cache.key(package, *PEER, *flags, platform.python_version(), sys.base_prefix)

    def make(entry: Path) -> None:
        say(f"compiling {package.name} {package.version} to compare with: several minutes")
        run([sys.executable, "-m", "venv", entry], "python -m venv (on Debian: python3-venv)")
        pip = [entry / "bin" / "python", "-m", "pip", "install", "--quiet"]
        pip += ["--disable-pip-version-check"]
        run([*pip, *PEER], "pip install")
        requirements = entry / "requirements.txt"
        pin = f"{package.name}=={package.version} --hash=sha256:{package.sha256}"
        requirements.write_text(pin + "\n")
        pip += ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-binary", ":all:"]
        pip += ["-r", requirements]
        (entry / "tmp").mkdir()
        run(pip, f"pip install {package.name}", _build_environment(entry, flags))

    return cache.make_once(cache.root() / "venvs" / f"peer-{name}", make) / "bin" / "python"


def neighbours(made: Build) -> Path:
    """The Python of an environment with llama-cpp-python as above, numpy and PyTorch."""
    parts = [llama_cpp_python(made).parents[1], environment(NEIGHBOURS).parent]

    def make(entry: Path) -> None:
        run([sys.executable, "-m", "venv", "--without-pip", entry], "python -m venv")
        (own,) = entry.glob("lib/python*/site-packages")
        paths = [path for part in parts for path in part.glob("lib/python*/site-packages")]
        (own / "neighbours.pth").write_text("".join(f"{path}\n" for path in paths))

    name = f"neighbours-{cache.key(*parts)}"
    return cache.make_once(cache.root() / "venvs" / name, make) / "bin" / "python"


def _flags(made: Build) -> list[str]:
    settings = made.settings()
    flags = {name: settings.get(name, "") for name in COPIED}
    flags.update((name, "OFF") for name in OFF)
    flags.update(
        (name, value)
        for name, value in settings.items()
        if name.startswith("GGML_") and value in ("ON", "OFF")
    )
    return [f"-D{name}={value}" for name, value in sorted(flags.items())]


def _build_environment(entry: Path, flags: list[str]) -> dict[str, str]:
    """With paths below ccache's base folder that are the same in every build."""
    env = tools()
    scripts = str(entry / "bin")
    env.update(
        CMAKE_ARGS=shlex.join(flags),
        CMAKE_GENERATOR="Ninja",
        SKBUILD_BUILD_DIR="build",  # in the unpacked source; pip passes no settings on to it
        PATH=f"{scripts}{os.pathsep}{env['PATH']}",
        TMPDIR=str(entry / "tmp"),
        CCACHE_BASEDIR=str(entry / "tmp"),
    )
    launcher = env.get("CCACHE")
    if launcher:
        env.update(CMAKE_C_COMPILER_LAUNCHER=launcher, CMAKE_CXX_COMPILER_LAUNCHER=launcher)
    return env
