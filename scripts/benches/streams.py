"""Several streams at once on one context, each on its own thread of one process, through the C ABI:
tokens per second of all together, and how evenly they share.
"""

from __future__ import annotations

from lib.assets import fetch
from lib.bundles import bundle
from lib.measuring import Measurements, Report, abi_decode, build_for_measuring
from lib.pictures import Bars

COUNTS = (1, 2, 4, 8)
N_GEN = 128  # of each stream

TITLE = "Streams at once on one context: SmolLM2 135M Q4_1, greedy"
PICTURE = (
    Bars(
        "tokens per second, all streams together",
        {f"total_tps_{count}": f"{count} stream{'s' * (count > 1)}" for count in COUNTS},
        "figures",
    ),
    Bars("ratio", {"four_over_one": "4 streams / 1 stream"}),
)


def run(rounds: int) -> Report:
    made = build_for_measuring()
    smollm2 = bundle(fetch("smollm2"), made)
    measured = Measurements(rounds)
    for _ in measured:
        totals = {}
        for count in COUNTS:
            result = abi_decode(made, smollm2, "streams", count, N_GEN)
            totals[count] = result["total_tps"]
            measured.figure(
                **{
                    f"total_tps_{count}": result["total_tps"],
                    f"peak_mb_{count}": result["peak_mb"],
                }
            )
            if count == 4:
                # The slowest stream's tokens over the fastest one's, once that has all of its own.
                measured.figure(fairness_4=result["fairness"])
        measured.ratio(four_over_one=totals[4] / totals[1])
    return measured.report(made)
