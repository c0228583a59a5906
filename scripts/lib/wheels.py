"""Wheels for every machine of an architecture, whatever machine builds them."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from lib import cache
from lib.building import CHECKOUT, build
from lib.console import Failure, run, say
from lib.environments import WHEEL, environment
from lib.zig import Target, toolchain

TARGETS = {
    "x86_64": Target("x86_64-linux-gnu.2.28", "Linux", "x86_64"),
    "aarch64": Target("aarch64-linux-gnu.2.28", "Linux", "aarch64"),
}
# Where gcc's kernels are the faster ones (docs/building.md), for a machine of the same architecture.
GCC_KERNELS = ("x86_64",)
# The date of every file inside: the first that a zip archive can state.
EPOCH = "315532800"


def build_wheel(name: str, folder: Path) -> Path:
    """The wheel for that one of TARGETS, in `folder`, built from the source distribution.

    In a place of its own, the same every time, so that zig's cache knows what it has compiled.
    """
    work = cache.root() / "wheels" / name
    with cache.locked(work.with_suffix(".lock")):
        shutil.rmtree(work, ignore_errors=True)
        source = _source(work / "sdist")
        settings = {"CMAKE_TOOLCHAIN_FILE": toolchain(TARGETS[name]), "ELIZA_CPU_LEVELS": "ON"}
        if name in GCC_KERNELS:
            say("building its kernels")
            settings["ELIZA_CPU_LEVELS_DIR"] = _kernels(source, work / "kernels")
        say(f"building the wheel for {name}")
        built = _build(TARGETS[name], source, settings, work)
        wheel = _repair(built, work / "repaired")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(wheel, folder))


def unpack_library(wheel: Path, folder: Path) -> Path:
    """The library of a wheel, as a file below `folder`."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if "libelizainference." in name]
        return Path(archive.extract(name, folder))


def _source(folder: Path) -> Path:
    """The source distribution, unpacked: what is built is what others would build."""
    _python("-m", "build", "--sdist", "--no-isolation", "--outdir", folder, CHECKOUT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(folder)
    return folder / archive.name[: -len(".tar.gz")]


def _kernels(source: Path, folder: Path) -> Path:
    """The folder of the CPU levels' object files, compiled by gcc."""
    compilers = ("-DCMAKE_C_COMPILER=gcc", "-DCMAKE_CXX_COMPILER=g++")
    options = [*compilers, "-DELIZA_CPU_LEVELS=ON"]
    build(options, folder, source, "eliza_cpu_level_objects")
    return folder / "cpu-levels"


def _build(target: Target, source: Path, settings: Mapping[str, object], work: Path) -> Path:
    options = [f"-Ccmake.define.{name}={value}" for name, value in settings.items()]
    options.append(f"-Cbuild-dir={work / 'build'}")
    platform = {"_PYTHON_HOST_PLATFORM": target.python_platform}
    pip = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    _python(*pip, "--wheel-dir", work / "built", *options, source, **platform)
    (wheel,) = (work / "built").glob("*.whl")
    return wheel


def _repair(wheel: Path, folder: Path) -> Path:
    """With the tag of the oldest glibc that the library needs, and nothing taken in from outside."""
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
