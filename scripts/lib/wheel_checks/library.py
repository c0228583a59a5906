"""The library file: exports, needs, build facts, and what auditwheel says of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lief

from eliza_ctypes.abi_check.binary import check_library as abi_check
from eliza_ctypes.abi_check.image import read_images
from eliza_ctypes.abi_check.table import read_table
from eliza_ctypes.report import build_facts
from lib.building import CHECKOUT
from lib.console import run
from lib.levels import LEVELS
from lib.wheel_checks.wheel import Wheel, fail_with
from lib.zig import OLDEST_MACOS

FORMATS = {"macosx": "Mach-O", "win": "PE"}
# What every system with that format has. libstdc++, libgcc_s and libgomp come in versions, and
# clash with those of others.
ALLOWED = {
    "ELF": r"lib(c|m|dl|pthread|rt)\.so\.\d|ld-linux-(x86-64|aarch64)\.so\.\d",
    "Mach-O": r"/usr/lib/lib(System\.B|c\+\+\.1|objc\.A)\.dylib"
    r"|/System/Library/Frameworks/(Accelerate|CoreFoundation|Foundation|Metal|MetalKit)\.framework/.*",
    "PE": r"(?i)(advapi32|kernel32|msvcrt|ntdll|shell32|api-ms-win-crt-\w+-l1-1-0)\.dll",
}


def check_library(wheel: Wheel) -> None:
    report = abi_check(wheel.library, read_table(CHECKOUT / "docs" / "abi" / "abi-v8.json"))
    problems = [f"the library: {finding.message}" for finding in report.problems]
    if report.judged:
        problems += _file(wheel)
    problems += _facts(wheel, build_facts(wheel.library))
    fail_with(wheel, problems)


def _file(wheel: Wheel) -> Iterator[str]:
    images = read_images(wheel.library)
    expected = (FORMATS.get(wheel.system, "ELF"), wheel.machine)
    found = [(image.format, image.machine) for image in images]
    if found != [expected]:
        yield f"the library is {_named(*found)}, not {_named(expected)}"
        return
    (image,) = images
    for name in image.libraries:
        if not re.fullmatch(ALLOWED[image.format], name):
            yield f"the library needs {name}: link it statically or build without it"
    if image.format == "ELF":
        yield from _elf(wheel.library)
        yield from _auditwheel(wheel)
    oldest = f"macOS {OLDEST_MACOS}"
    if image.format == "Mach-O" and image.oldest_system != oldest:
        yield f"the library is for {image.oldest_system} and later, not {oldest}"


def _named(*images: tuple[str, str]) -> str:
    return " and ".join(f"{format_} for {machine}" for format_, machine in images)


def _elf(library: Path) -> Iterator[str]:
    binary: Any = lief.ELF.parse(str(library))
    for tag in (lief.ELF.DynamicEntry.TAG.RPATH, lief.ELF.DynamicEntry.TAG.RUNPATH):
        if binary.has(tag):
            yield f"the library has a {tag.name}: it must look for nothing of its own"
    if any(section.name in (".symtab", ".debug_info") for section in binary.sections):
        yield "the library is not stripped"


def _facts(wheel: Wheel, facts: dict[str, Any] | None) -> Iterator[str]:
    if facts is None:
        yield "the library has no build facts that `eliza-ctypes info` could read"
        return
    expected = {
        "library": wheel.version,
        "litert": True,
        "mlx": False,
        "build_type": "Release",
        "cpu_native": "OFF",
        "cpu_levels": ", ".join(LEVELS[wheel.machine]),
        "sanitizers": "",
    }
    for name, value in expected.items():
        if facts.get(name) != value:
            yield f"the build fact {name} is {facts.get(name)!r}, not {value!r}"
    for name, pattern in {"llama_cpp": r"pinned, .*\d", "compiler": r"\w+ \d"}.items():
        if not re.match(pattern, str(facts.get(name))):
            yield f"the build fact {name} is {facts.get(name)!r}: it must tell which it was"


def _auditwheel(wheel: Wheel) -> Iterator[str]:
    said = run([sys.executable, "-m", "auditwheel", "show", wheel.path], "auditwheel show")
    found = re.search(r'platform\s+tag:\s+"(\w+)"', said)
    consistent = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", found[1]) if found else None
    if consistent is None:
        yield f"auditwheel finds no manylinux tag for it: {found[1] if found else said}"
        return
    for platform in wheel.platforms:
        named = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", platform)
        if named is None:
            continue
        if named[3] != consistent[3] or _glibc(named) < _glibc(consistent):
            yield f"has the tag {platform}, but auditwheel says {consistent[0]}"


def _glibc(tag: re.Match[str]) -> tuple[int, int]:
    return int(tag[1]), int(tag[2])
