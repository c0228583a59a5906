"""The library of a wheel for Windows, driven in Wine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib import apt
from lib.assets import fetch
from lib.console import Failure, run, say
from lib.levels import EMULATED, TOO_OLD, VARIABLE, levels_offered
from lib.models import tiny_models
from lib.wheel_checks.drivers import compile_driver, drive, make_bundle
from lib.wheel_checks.wheel import Wheel
from lib.zig import WINDOWS

TOUR = "abi_tour"
# What the program must print of SmolLM2, whose tokens are those of Linux.
EXPECTED: dict[str, Any] = {
    "version": "8",
    "prompt": [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
    "tokens": [504, 3575, 282, 4649, 314, 7042, 30],
    "text": "The capital of France is Paris.",
    "restored": [504, 3575, 282, 4649, 314, 7042, 30],
    "pointer_bytes": 8,
}
# Of the tiny model, on any system.
TINY_TOKENS = [
    *(222, 36, 35, 68, 265, 242, 6, 31, 191, 80, 213, 84),
    *(195, 72, 277, 76, 265, 150, 86, 218, 196, 88, 291, 50),
]
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
_WINESERVERS = ("wineserver", "/usr/lib/wine/wineserver", "/usr/lib/wine/wineserver64")


def check_in_wine(wheel: Wheel, folder: Path) -> None:
    """Runs the DLL in Wine, with each CPU level that this machine offers: one greedy generation of
    SmolLM2, whose tokens must be those of Linux, once more from a saved state, things that must
    fail, and folders with names outside any code page. The same with a tiny model on older
    processors, which qemu emulates.

    Raises Failure for anything else than expected, and where Wine is neither installed nor to be
    had.
    """
    wine = Wine(wheel.library, folder)
    try:
        smollm2 = wine.bundle(BUNDLE_NAME, fetch("smollm2"))
        levels = levels_offered(wine.tour(smollm2, {VARIABLE: "?"}).stderr)
        for level in levels:
            say(f"{wine.version}: level {level}, SmolLM2")
            # The highest is what the library chooses by itself.
            forced = {} if level == levels[-1] else {VARIABLE: level}
            _compare(wine.tour(smollm2, forced), level, EXPECTED)
        tiny = wine.bundle("tiny", tiny_models(Path(sys.executable)) / "tiny-bpe.gguf")
        for cpu, level in EMULATED["x86_64"].items():
            say(f"{cpu}: level {level}, {len(TINY_TOKENS)} tokens")
            _compare(wine.tour(tiny, cpu=cpu), level, {"tokens": TINY_TOKENS})
        for cpu in TOO_OLD["x86_64"]:
            say(f"{cpu}: an error")
            _refused(wine.tour(tiny, cpu=cpu), cpu)
    finally:
        wine.stop()


class Wine:
    """Runs tests/tools/abi_tour.c with a DLL; everything it writes is in `folder`."""

    def __init__(self, dll: Path, folder: Path) -> None:
        self.wine, self.server = _wine()
        self.qemu = apt.program(("qemu-x86_64",), "qemu-user")
        self.version = run([self.wine, "--version"], "wine --version").split()[0]
        self.program = compile_driver(TOUR, WINDOWS, "-lshell32")
        self.folder = folder
        (folder / BUNDLE_NAME).mkdir(parents=True)
        self.library = Path(shutil.copy2(dll, folder / BUNDLE_NAME))
        self.env = {
            "WINEPREFIX": str(folder / "prefix"),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=",  # it would offer to download them
            "LC_ALL": "C.UTF-8",  # the encoding that it gives to file names
        }

    def bundle(self, name: str, model: Path) -> Path:
        return make_bundle(self.folder / name, model)

    def tour(
        self, bundle: Path, variables: Mapping[str, str] | None = None, cpu: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        arguments = [_windows_path(path) for path in (self.library, bundle, bundle)]
        command = [self.wine, self.program, *arguments]
        env = {**self.env, **(variables or {})}
        if cpu is not None:
            command = [self.qemu, "-cpu", cpu, *command]
            env["WINELOADERNOEXEC"] = "1"  # or it would start itself anew, outside the emulator
        return drive(command, env)

    def stop(self) -> None:
        if self.server is not None:
            drive([self.server, "-k"], self.env)


def _wine() -> tuple[str, str | None]:
    """Wine and its server, installed where that needs nobody's consent. Debian's `wine` is a
    script, which no emulator runs."""
    wine = apt.program(("/usr/lib/wine/wine64", "wine64", "wine"), "wine64", "wine")
    return wine, next(filter(None, map(shutil.which, _WINESERVERS)), None)


def _windows_path(path: Path) -> str:
    return f"Z:{path}".replace("/", "\\")


def _compare(
    done: subprocess.CompletedProcess[str], level: str, expected: Mapping[str, object]
) -> None:
    what = f"{TOUR} in Wine, CPU level {level}"
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise Failure(f"{what}: exit status {done.returncode}\n{output}")
    try:
        said = json.loads(done.stdout)
    except ValueError as error:
        raise Failure(f"{what}: did not print JSON\n{done.stdout}") from error
    for name, value in expected.items():
        if said.get(name) != value:
            raise Failure(f"{what}: {name}: {said.get(name)} instead of {value}")
    for name, part in REFUSALS.items():
        if part not in said.get(name, ""):
            raise Failure(f"{what}: {name}: {said.get(name)!r} lacks {part!r}")
    # Where it lists its backends, the library says what it computes with.
    if not re.search(rf"\bCPU level {level}\b", said["environment"]):
        raise Failure(f"{what}: computes otherwise: {said['environment']}")


def _refused(done: subprocess.CompletedProcess[str], cpu: str) -> None:
    if done.returncode != 1 or "this build's lowest CPU level" not in done.stderr:
        said = (done.stderr or done.stdout).strip()
        raise Failure(
            f"{TOUR} in Wine on {cpu}, which is too old: exit status {done.returncode} "
            f"instead of an error\n{said}"
        )
