"""How long a call that runs on another thread takes to return once it is cancelled: a prefill of
2,000 tokens, and the steps of a generation.
"""

from __future__ import annotations

import statistics

from lib.assets import fetch
from lib.bundles import bundle
from lib.measuring import Measurements, Report, abi_decode, build_for_measuring
from lib.pictures import Bars

N_PROMPT, REPETITIONS = 2000, 7

TITLE = "From cancel to the return of the call: SmolLM2 135M Q4_1"
PICTURE = (
    Bars(
        "milliseconds",
        {
            "prefill_median_ms": f"prefill of {N_PROMPT:,} tokens, median",
            "prefill_p95_ms": "95th percentile",
            "next_median_ms": "next, median",
            "next_p95_ms": "95th percentile",
            "step_ms": "for comparison: one step",
        },
        "figures",
    ),
)


def run(rounds: int) -> Report:
    made = build_for_measuring()
    smollm2 = bundle(fetch("smollm2"), made)
    prefill: list[float] = []
    following: list[float] = []
    measured = Measurements(rounds)
    for _ in measured:
        result = abi_decode(made, smollm2, "cancel", N_PROMPT, REPETITIONS)
        prefill += result["cancel_ms"]
        following += result["cancel_next_ms"]
        measured.ratio(
            step_over_cancel=result["step_ms"] / statistics.median(result["cancel_next_ms"])
        )
        measured.figure(step_ms=result["step_ms"])
    measured.figure(
        prefill_median_ms=statistics.median(prefill),
        prefill_p95_ms=statistics.quantiles(prefill, n=20, method="inclusive")[-1],
        next_median_ms=statistics.median(following),
        next_p95_ms=statistics.quantiles(following, n=20, method="inclusive")[-1],
    )
    return measured.report(made)
