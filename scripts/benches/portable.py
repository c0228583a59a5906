"""The wheel's library against one compiled for this machine alone: the same source, SmolLM2 in four
types of weights, made from the demo model by llama.cpp's quantizer.

The rounds take turns at which library goes first; each ratio is the median of the rounds' ratios.
Loading is the time of dlopen and of the first context, which chooses the CPU level.
"""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path

from lib import cache
from lib.assets import fetch
from lib.building import Build
from lib.bundles import bundle
from lib.console import run as run_command
from lib.console import say
from lib.measuring import (
    Measurements,
    Report,
    abi_decode,
    build_for_measuring,
    llama_cpp_program,
)
from lib.pictures import Bars
from lib.wheels import build_wheel, unpack_library

N_PROMPT, N_GEN, RUNS = 512, 128, "2"  # of the runs the last one counts
GREEDY = ("0", "0", "0")
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
    for number in measured:
        sides = (native.library, portable) if number % 2 else (portable, native.library)
        for kind, model in bundles.items():
            speeds = {side: speed(native, side, model) for side in sides}
            ours, theirs = speeds[portable], speeds[native.library]
            for what in ("decode", "prefill"):
                name = f"{what}_{kind.lower()}"
                measured.ratio(**{name: ours[what] / theirs[what]})
                measured.figure(**{f"{name}_tps": ours[what]})
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


def speed(tools: Build, library: Path, model: Path) -> dict[str, float]:
    arguments = ("speed", N_PROMPT, N_GEN, RUNS, *GREEDY)
    values = abi_decode(tools, model, *arguments, library=library)
    return {what: values[what][-1] for what in ("decode", "prefill")}
