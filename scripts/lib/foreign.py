"""Libraries for systems that this machine does not run: tried under emulation, or read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from lib import apt, cache
from lib.assets import fetch
from lib.building import CHECKOUT
from lib.bundles import python_path
from lib.console import Failure, run
from lib.environments import TEST, environment
from lib.zig import WINDOWS, compiler

TOUR = CHECKOUT / "tests" / "tools" / "abi_tour.c"
# What the program must print of SmolLM2, whose tokens are those of Linux.
EXPECTED: dict[str, Any] = {
    "version": "8",
    "prompt": [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
    "tokens": [504, 3575, 282, 4649, 314, 7042, 30],
    "text": "The capital of France is Paris.",
    "restored": [504, 3575, 282, 4649, 314, 7042, 30],
    "pointer_bytes": 8,
}
# Parts of what the library must say to things that fail.
REFUSALS = {
    "missing_bundle": "no such bundle': does not exist",
    "not_utf8": "does not exist",
    "environment": "ELIZA_LLM_BACKEND is 'kein-\u00fc'",
    "bad_token": "token id 1073741824 at index 0 is outside the vocabulary",
    "missing_folder": "its folder does not exist",
    "cancelled": "was cancelled",
}
# Neither a code page nor the system's file names' usual characters hold both of these.
BUNDLE_NAME = "B\u00fcndel \u6a21\u578b"
SECONDS = 600
_WINESERVERS = ("wineserver", "/usr/lib/wine/wineserver", "/usr/lib/wine/wineserver64")
# The oldest macOS of both architectures, as CMakeLists.txt has it.
OLDEST_MACOS = "macOS 11.0"
SYSTEM_LIBRARY = "/usr/lib/libSystem.B.dylib"
_READ = """
import dataclasses, json, sys
from eliza_ctypes.abi_check.image import read_images
print(json.dumps([dataclasses.asdict(image) for image in read_images(sys.argv[1])], default=sorted))
"""


def check_windows(dll: Path) -> str:
    """Runs the DLL in Wine: one greedy generation of SmolLM2, whose tokens must be those of Linux,
    once more from a saved state, things that must fail, and folders with names outside any code
    page. Before that, the file is checked against the ABI's table.

    Returns a line that says so. Raises Failure for anything else than expected, and where Wine is
    neither installed nor to be had.
    """
    _check_file(dll)
    if [(image["format"], image["machine"]) for image in _read(dll)] != [("PE", "x86_64")]:
        raise Failure(f"{dll} is not a library for x86-64 Windows")
    wine, server = _wine()
    program = _windows_program()
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="eliza-wine-"))
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("ELIZA_")},
        "WINEPREFIX": str(folder / "prefix"),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree,mshtml=",  # it would offer to download them
        "LC_ALL": "C.UTF-8",  # the encoding that it gives to file names
    }
    try:
        bundle = folder / BUNDLE_NAME
        (bundle / "text").mkdir(parents=True)
        (bundle / "text" / "model.gguf").symlink_to(fetch("smollm2"))
        library = Path(shutil.copy2(dll, bundle))
        arguments = [_windows_path(path) for path in (library, bundle, bundle)]
        printed = _run_in_time([wine, program, *arguments], env)
    finally:
        if server is not None:
            subprocess.run([server, "-k"], env=env, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
    _compare(printed)
    seconds = time.monotonic() - started
    count = len(EXPECTED["tokens"])
    return (
        f"{dll.name}: {dll.stat().st_size / 1e6:.1f} MB, {count} tokens of SmolLM2 as on Linux and "
        f"{len(REFUSALS)} refusals in {_version(wine)}, {seconds:.0f} s"
    )


def check_macos(dylib: Path) -> str:
    """Reads a dylib, which nothing here can run: exports, install name, the oldest macOS, that it
    needs nothing but the system's own library, and that it imports no network and no processes.

    Returns a line that says so. Raises Failure for anything else than expected.
    """
    _check_file(dylib)
    images = _read(dylib)
    if len(images) != 1 or images[0]["format"] != "Mach-O":
        raise Failure(f"{dylib} is not a library for one architecture of macOS")
    (image,) = images
    for what, found, expected in (
        ("oldest system", image["oldest_system"], OLDEST_MACOS),
        ("install name", image["name"], "@rpath/libelizainference.dylib"),
        ("needed libraries", image["libraries"], [SYSTEM_LIBRARY]),
    ):
        if found != expected:
            raise Failure(f"{dylib}: {what}: {found} instead of {expected}")
    return (
        f"{dylib.name}: {dylib.stat().st_size / 1e6:.1f} MB, {image['machine']}, for "
        f"{OLDEST_MACOS} and later, {len(image['exports'])} exports, needs {SYSTEM_LIBRARY} alone; "
        f"never run"
    )


def _check_file(library: Path) -> None:
    command = [CHECKOUT / "scripts" / "abi-check", "--no-compiler", library]
    run(command, f"abi-check {library.name}")


def _read(library: Path) -> list[dict[str, Any]]:
    env = {**os.environ, "PYTHONPATH": python_path()}
    command = [environment(TEST) / "python", "-c", _READ, library]
    images: list[dict[str, Any]] = json.loads(run(command, f"reading {library}", env))
    return images


def _wine() -> tuple[str, str | None]:
    """Wine and its server, installed where that needs nobody's consent."""
    names = ("wine64", "wine", "/usr/lib/wine/wine64")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and apt.is_usable():
        apt.provide("wine64", "wine")
        found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise Failure("a DLL is tried with Wine, which is missing (on Debian: wine64 and wine)")
    return found, next(filter(None, map(shutil.which, _WINESERVERS)), None)


def _windows_program() -> Path:
    """The C program that drives the library, compiled once for each version of its source."""
    cc = compiler(WINDOWS)
    include = CHECKOUT / "cpp" / "include"
    header = include / "eliza-inference-ffi.h"

    def make(entry: Path) -> None:
        options = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{include}"]
        command = [cc, *options, TOUR, "-o", entry / "abi_tour.exe", "-lshell32"]
        run(command, f"compiling {TOUR.name}")

    key = cache.key(TOUR.read_text(), header.read_text(), cc)
    return cache.make_once(cache.root() / "programs" / f"windows-{key}", make) / "abi_tour.exe"


def _windows_path(path: Path) -> str:
    return f"Z:{path}".replace("/", "\\")


def _run_in_time(command: list[object], env: dict[str, str]) -> str:
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{TOUR.stem} in Wine takes more than {SECONDS} s") from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise Failure(f"{TOUR.stem} in Wine failed (exit status {done.returncode})\n{output}")
    return done.stdout


def _compare(printed: str) -> None:
    try:
        said = json.loads(printed)
    except ValueError as error:
        raise Failure(f"{TOUR.stem} in Wine did not print JSON\n{printed}") from error
    for name, expected in EXPECTED.items():
        if said.get(name) != expected:
            raise Failure(f"{TOUR.stem} in Wine: {name}: {said.get(name)} instead of {expected}")
    for name, part in REFUSALS.items():
        if part not in said.get(name, ""):
            raise Failure(f"{TOUR.stem} in Wine: {name}: {said.get(name)!r} lacks {part!r}")


def _version(wine: str) -> str:
    return run([wine, "--version"], "wine --version").split()[0]
