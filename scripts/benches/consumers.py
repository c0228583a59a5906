"""How long a blocked call takes to return once it is cancelled, in every runtime that drives the
library: the slowest of all rounds of the programs in tests/consumers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from lib.assets import fetch
from lib.bundles import bundle
from lib.console import say
from lib.consumers import Unavailable
from lib.consumers.playing import CONSUMERS, REFERENCE, build, play
from lib.measuring import Measurements, Report, build_for_measuring
from lib.pictures import Bars

# Swift is not among them: no registry carries its toolchain.
NAMES = ("python", "c-linked", "c-dlopen", "rust", "go", "jni", "java-ffm", "node", "bun", "deno")
CALLS = ("next", "prefill")

TITLE = "From cancel to the return of the call, the slowest round: SmolLM2 135M Q4_1"
PICTURE = tuple(
    Bars(f"{call}, milliseconds", {f"{name}_{call}_ms": name for name in NAMES}, "figures")
    for call in CALLS
)


def run(rounds: int) -> Report:
    made = build_for_measuring()
    smollm2 = bundle(fetch("smollm2"), made)
    measured = Measurements(rounds)
    slowest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        programs = {}
        for consumer in (REFERENCE, *CONSUMERS):
            try:
                programs[consumer.name] = build(consumer, made.library, Path(folder, consumer.name))
            except Unavailable as missing:
                say(f"{consumer.name} is not measured: {missing}")
        for number in measured:
            for name, program in programs.items():
                place = Path(folder, f"{name}-{number}")
                cancel_ms = play(program, made.library, smollm2, place)["cancel_ms"]
                for call in CALLS:
                    figure = f"{name}_{call}_ms"
                    slowest[figure] = max(slowest.get(figure, 0.0), cancel_ms[call])
    measured.figure(**slowest)
    return measured.report(made)
