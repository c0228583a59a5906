"""Wheels for every machine of an architecture, whatever machine builds them."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from lib import cache
from lib.building import CHECKOUT, build
from lib.console import Failure, run, say
from lib.environments import WHEEL, environment
from lib.zig import MACOS_ARM64, MACOS_X86_64, WINDOWS, Target, toolchain

TARGETS = {
    "x86_64": Target("x86_64-linux-gnu.2.28", "Linux", "x86_64"),
    "aarch64": Target("aarch64-linux-gnu.2.28", "Linux", "aarch64"),
    "windows-x86_64": WINDOWS,
    "macos-arm64": MACOS_ARM64,
    "macos-x86_64": MACOS_X86_64,
}
# Where gcc's kernels are the faster ones (docs/building.md).
GCC_KERNELS = ("x86_64",)
# The date of every file inside: the first that a zip archive can state.
EPOCH = "315532800"


def build_wheel(name: str, folder: Path) -> Path:
    """The wheel for that one of TARGETS, in `folder`, built from the source distribution.

    In a place of its own, the same every time, so that zig's cache knows what it has compiled.
    What else the caller has set for compilers and build tools, or leaves lying about, has no
    influence.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror}") from error
    work = _work(name)
    with cache.locked(work.with_suffix(".lock")), _usual_settings():
        shutil.rmtree(work, ignore_errors=True)
        source = _source(work)
        settings = {"CMAKE_TOOLCHAIN_FILE": toolchain(TARGETS[name]), "ELIZA_CPU_LEVELS": "ON"}
        if name in GCC_KERNELS:
            settings["ELIZA_CPU_LEVELS_DIR"] = _kernels(name, source)
        say(f"building the wheel for {name}")
        wheel = _build(TARGETS[name], source, settings, work)
        if TARGETS[name].system == "Linux":
            wheel = _repair(wheel, work / "repaired")
        return Path(shutil.copy2(wheel, folder))


def unpack_library(wheel: Path, folder: Path) -> Path:
    """The library of a wheel, as a file below `folder`."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if "libelizainference." in name]
        return Path(archive.extract(name, folder))


@contextlib.contextmanager
def _usual_settings() -> Iterator[None]:
    """Without what the caller has set for compilers and build tools, and for new files."""
    flags = {"CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"}
    before, mask = dict(os.environ), os.umask(0o022)
    try:
        for name in before:
            if name in flags or name.startswith(("CMAKE_", "SKBUILD_")):
                del os.environ[name]
        yield
    finally:
        os.umask(mask)
        os.environ.clear()
        os.environ.update(before)


def _source(work: Path) -> Path:
    """The source distribution, unpacked: what is built is what others would build."""
    folder = work / "sdist"
    tree = _tracked_files(work / "tree") if (CHECKOUT / ".git").exists() else CHECKOUT
    _python("-m", "build", "--sdist", "--no-isolation", "--outdir", folder, tree)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(folder)
    return folder / archive.name[: -len(".tar.gz")]


def _tracked_files(tree: Path) -> Path:
    """What git tracks of the checkout, as it is now, in the new folder `tree`."""
    listed = run(["git", "-C", CHECKOUT, "ls-files", "-z"], "git ls-files")
    for name in filter(None, listed.split("\0")):
        source, target = CHECKOUT / name, tree / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    return tree


def levels_of_wheel(name: str) -> list[str]:
    """Options of CMake, for a build with the very kernels of the wheel that was built last."""
    given = [f"-DELIZA_CPU_LEVELS_DIR={_kernel_folder(name)}"] if name in GCC_KERNELS else []
    return ["-DELIZA_CPU_LEVELS=ON", *given]


def _kernel_folder(name: str) -> Path:
    return _work(name) / "kernels" / "cpu-levels"


def _work(name: str) -> Path:
    return cache.root() / "wheels" / name


def _kernels(name: str, source: Path) -> Path:
    if platform.machine() != name:
        raise Failure(f"the wheel for {name} has kernels by gcc: build it on such a machine")
    say(f"building the kernels for {name}")
    compilers = ("-DCMAKE_C_COMPILER=gcc", "-DCMAKE_CXX_COMPILER=g++")
    options = [*compilers, "-DELIZA_CPU_LEVELS=ON"]
    folder = _kernel_folder(name)
    build(options, folder.parent, source, "eliza_cpu_level_objects")
    return folder


def _build(target: Target, source: Path, settings: Mapping[str, object], work: Path) -> Path:
    options = [f"-Ccmake.define.{name}={value}" for name, value in settings.items()]
    options.append(f"-Cbuild-dir={work / 'build'}")
    # Without the generator's name, scikit-build-core takes Visual Studio's for a target of Windows.
    variables = {"_PYTHON_HOST_PLATFORM": target.python_platform, "CMAKE_GENERATOR": "Ninja"}
    pip = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    _python(*pip, "--wheel-dir", work / "built", *options, source, **variables)
    (wheel,) = (work / "built").glob("*.whl")
    return wheel


def _repair(wheel: Path, folder: Path) -> Path:
    """With the tag of the oldest glibc that does; nothing is taken in from outside."""
    _python("-m", "auditwheel", "repair", "--wheel-dir", folder, wheel)
    (repaired,) = folder.glob("*.whl")
    with zipfile.ZipFile(repaired) as archive:
        grafted = [name for name in archive.namelist() if ".libs/" in name]
    if grafted:
        raise Failure(f"the library needs others, which auditwheel took in: {', '.join(grafted)}")
    return repaired


def _python(*command: object, **variables: str) -> None:
    python = environment(WHEEL) / "python"
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": EPOCH, **variables}
    run([python, *command], " ".join(map(str, command[1:2])), env)
