"""The wheel's library against one compiled for this machine alone: the same source, SmolLM2 in four
types of weights, made from the demo model by llama.cpp's quantizer.

Two processes, one with each library, take turns many times in a round, for a fraction of a second
each and first the one, then the other: so whatever else slows the machine slows both. Each ratio is
the median of all turns' ratios. Loading is the time of dlopen and of the first context, which
chooses the CPU level.
"""

from __future__ import annotations

import contextlib
import platform
import subprocess
import tempfile
from pathlib import Path

from lib import cache
from lib.assets import fetch
from lib.building import Build
from lib.bundles import bundle
from lib.console import Failure, say
from lib.console import run as run_command
from lib.measuring import (
    Measurements,
    Report,
    abi_decode,
    build_for_measuring,
    llama_cpp_program,
)
from lib.pictures import Bars
from lib.wheels import build_wheel, unpack_library

N_PROMPT, N_GEN = 256, 32
TURNS = 4  # in a round
TYPES = ("Q4_1", "Q8_0", "Q4_K_M", "BF16")

TITLE = "The wheel's library and a native one: SmolLM2 135M"
PICTURE = (
    Bars(
        "speed, wheel / native",
        {
            f"{what}_{kind}": f"{what}, {kind}"
            for what in ("decode", "prefill")
            for kind in (name.lower() for name in TYPES)
        },
    ),
)


def run(rounds: int) -> Report:
    native = build_for_measuring()
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(platform.machine(), Path(folder))
        return compare(native, wheel, unpack_library(wheel, Path(folder)), rounds)


def compare(native: Build, wheel: Path, portable: Path, rounds: int) -> Report:
    bundles = {kind: bundle(quantized(native, kind), native) for kind in TYPES}
    measured = Measurements(rounds)
    sides = (portable, native.library)
    with contextlib.ExitStack() as stack:
        pairs = {
            kind: [stack.enter_context(Paced(native, side, model)) for side in sides]
            for kind, model in bundles.items()
        }
        for _ in measured:
            for kind, (ours, theirs) in pairs.items():
                for turn in range(TURNS):
                    order = (ours, theirs) if turn % 2 else (theirs, ours)
                    for what, work in (("decode", Paced.decode), ("prefill", Paced.prefill)):
                        speeds = {side: work(side) for side in order}
                        name = f"{what}_{kind.lower()}"
                        measured.ratio(**{name: speeds[ours] / speeds[theirs]})
                        measured.figure(**{f"{name}_tps": speeds[ours]})
    say("loading")
    for _ in range(max(rounds, 9)):
        for name, library in (("", portable), ("native_", native.library)):
            times = abi_decode(native, bundles["Q4_1"], "load", library=library)
            measured.figure(**{f"{name}{what}": ms for what, ms in times.items()})
    for name, path in (("wheel_mb", wheel), ("portable_mb", portable)):
        measured.figure(**{name: path.stat().st_size / 1e6})
    return measured.report(native)


def quantized(made: Build, kind: str) -> Path:
    """SmolLM2 in weights of that type; the demo model's own are Q4_1."""
    gguf = fetch("smollm2")
    if kind == "Q4_1":
        return gguf

    def make(entry: Path) -> None:
        program = llama_cpp_program(made, "llama-quantize")
        say(f"making {kind} of {gguf.name}")
        command = [program, "--allow-requantize", gguf, entry / f"SmolLM2-135M-{kind}.gguf", kind]
        run_command(command, program.name)

    state = gguf.stat()
    name = f"{kind}-{cache.key(gguf, state.st_size, state.st_mtime_ns)}"
    return cache.make_once(cache.root() / "quantized" / name, make) / f"SmolLM2-135M-{kind}.gguf"


class Paced:
    """A process with that library and model, which computes when it is asked: tokens per second."""

    def __init__(self, tools: Build, library: Path, model: Path) -> None:
        words = (tools.program("abi_decode"), library, model, "paced", N_PROMPT)
        self.command = [str(word) for word in words]

    def __enter__(self) -> Paced:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.decode()  # the first ones allocate
        self.prefill()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def decode(self) -> float:
        return N_GEN * 1e3 / self._ms(N_GEN)

    def prefill(self) -> float:
        return N_PROMPT * 1e3 / self._ms(0)

    def _ms(self, n_gen: int) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(n_gen, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise Failure(f"{self.command[0]} ended")
        return float(answer)
