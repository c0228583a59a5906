"""The library on emulated processors, from the oldest that it supports."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lib import apt
from lib.assets import fetch
from lib.console import Failure, say
from lib.levels import EMULATED, TOO_OLD
from lib.models import tiny_models
from lib.wheel_checks.drivers import compile_driver, drive, make_bundle
from lib.wheel_checks.wheel import Wheel, fail_with
from lib.wheels import TARGETS

# Where Debian's cross packages put the system libraries of another processor.
SYSTEM_LIBRARIES = {
    "aarch64": Path("/usr/aarch64-linux-gnu"),
    "x86_64": Path("/usr/x86_64-linux-gnu"),
}
PACKAGES = {"aarch64": "libc6-arm64-cross", "x86_64": "libc6-amd64-cross"}


@dataclass(frozen=True)
class Known:
    """Greedy tokens that every CPU level gives for the first `prompt` tokens of the driver's text.

    Levels sum in other orders, so that SmolLM2's answers part after a while; the tiny model's are
    exact.
    """

    prompt: int
    tokens: tuple[int, ...]


SMOLLM2 = Known(8, (284, 260, 1573, 1663, 314, 7270))
TINY = Known(
    40,
    (
        *(222, 11, 23, 53, 248, 186, 157, 189, 162, 213, 204, 265),
        *(182, 186, 218, 142, 182, 164, 37, 260, 237, 220, 142, 78),
    ),
)


class Emulator:
    """Runs tests/tools/abi_decode.c with the library of a wheel as on another processor."""

    def __init__(self, wheel: Wheel, folder: Path) -> None:
        self.wheel = wheel
        self.library = wheel.library
        self.emulator = _emulator(wheel.machine)
        self.driver = compile_driver("abi_decode", TARGETS[wheel.machine], "-lpthread", "-ldl")
        self.folder = folder

    def bundle(self, gguf: Path) -> Path:
        return make_bundle(self.folder / gguf.stem, gguf)

    def run(
        self, cpu: str, bundle: Path, *arguments: object, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        variables["ELIZA_LLM_THREADS"] = "2"
        if self.wheel.machine != platform.machine():
            variables["QEMU_LD_PREFIX"] = str(SYSTEM_LIBRARIES[self.wheel.machine])
        emulated = [self.driver, self.library, bundle, *arguments]
        return drive([self.emulator, "-cpu", cpu, *emulated], variables)


def check_processors(wheel: Wheel, folder: Path) -> None:
    emulator = Emulator(wheel, folder)
    tiny = emulator.bundle(tiny_models(Path(sys.executable)) / "tiny-bpe.gguf")
    smollm2 = emulator.bundle(fetch("smollm2"))
    problems: list[str] = []
    for cpu, level in EMULATED[wheel.machine].items():
        say(f"{cpu}: level {level}, {len(TINY.tokens)} and {len(SMOLLM2.tokens)} tokens")
        problems += _level(emulator, cpu, level, tiny)
        problems += _tokens(emulator, cpu, tiny, TINY)
        problems += _tokens(emulator, cpu, smollm2, SMOLLM2)
    for cpu in TOO_OLD[wheel.machine]:
        say(f"{cpu}: an error")
        done = emulator.run(cpu, tiny, "load")
        if done.returncode != 1 or "this build's lowest CPU level" not in done.stderr:
            problems.append(f"on {cpu}, which is too old: {_shown(done)}; expected is an error")
    fail_with(wheel, problems)


def _level(emulator: Emulator, cpu: str, level: str, bundle: Path) -> Iterator[str]:
    """Which level it chooses: it says so where it lists its backends."""
    done = emulator.run(cpu, bundle, "tokens", 1, 1, ELIZA_LLM_BACKEND="?")
    found = re.search(r"CPU level (\w+)", done.stderr)
    if done.returncode != 1 or found is None:
        yield f"on {cpu}: {_shown(done)}; expected is a list of backends with the CPU level"
    elif found[1] != level:
        yield f"on {cpu}: computes with level {found[1]}, expected is {level}"


def _tokens(emulator: Emulator, cpu: str, bundle: Path, known: Known) -> Iterator[str]:
    done = emulator.run(cpu, bundle, "tokens", known.prompt, len(known.tokens))
    if done.returncode != 0:
        yield f"on {cpu}, with {bundle.name}: {_shown(done)}"
        return
    tokens = tuple(json.loads(done.stdout)["tokens"])
    if tokens != known.tokens:
        yield f"on {cpu}, with {bundle.name}: the tokens are {tokens}, not {known.tokens}"


def _shown(done: subprocess.CompletedProcess[str]) -> str:
    # qemu ends as the program under it would: by signal 4 for an illegal instruction.
    signal = {-4: "illegal instruction", 132: "illegal instruction"}.get(done.returncode)
    said = (done.stderr or done.stdout).strip()[-500:]
    return f"{signal or f'exit status {done.returncode}'}: {said}"


def _emulator(machine: str) -> str:
    found = apt.program((f"qemu-{machine}",), "qemu-user")
    if machine != platform.machine():
        libraries, package = SYSTEM_LIBRARIES[machine], PACKAGES[machine]
        if not libraries.is_dir() and apt.is_usable():
            apt.provide(package)
        if not libraries.is_dir():
            raise Failure(f"{libraries} is missing (on Debian: {package})")
    return found
