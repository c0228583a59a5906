"""What the library costs over llama.cpp: SmolLM2 through the C ABI and through Python against
llama-bench of the same build, with the same threads, batch size, KV types and context depth.

The rounds are interleaved and each ratio is the median of the rounds' ratios, so that a machine
that slows down for a while slows both sides of a ratio.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    import_ms,
    llama_cpp_program,
    python_tool,
    threads,
)
from lib.pictures import Bars

N_PROMPT, N_GEN = 512, 128
RUNS = "2"  # the last one counts: llama-bench warms up before its one run too
GREEDY, SAMPLED = ("0", "0", "0"), ("0.8", "40", "0.95")

TITLE = "The library over llama.cpp: SmolLM2 135M Q4_1 against llama-bench"
PICTURE = (
    Bars(
        "speed, library / llama-bench",
        {
            "decode_abi": "decode, C ABI",
            "decode_python": "decode, Python",
            "decode_sampled": "decode, C ABI, sampled",
            "prefill": "prefill of 512 tokens, C ABI",
        },
    ),
)


def run(rounds: int) -> Report:
    made = build_for_measuring()
    gguf = fetch("smollm2")
    smollm2 = bundle(gguf, made)
    program = llama_cpp_program(made, "llama-bench")
    measured = Measurements(rounds)
    for _ in measured:
        theirs = llama_bench(program, gguf)
        greedy = speed(made, smollm2, GREEDY)
        python = python_tool(made, "python_decode.py", smollm2, N_GEN, RUNS)[-1]
        sampled = speed(made, smollm2, SAMPLED)
        ours, drawn = greedy["decode"][-1], sampled["decode"][-1]
        prefill = greedy["prefill"][-1]
        measured.ratio(
            decode_abi=ours / theirs["decode"],
            decode_python=python / theirs["decode"],
            decode_sampled=drawn / theirs["decode"],
            prefill=prefill / theirs["prefill"],
        )
        measured.figure(
            llama_bench_decode_tps=theirs["decode"],
            llama_bench_prefill_tps=theirs["prefill"],
            decode_abi_tps=ours,
            decode_python_tps=python,
            decode_sampled_tps=drawn,
            prefill_tps=prefill,
            first_token_ms=greedy["first_token_ms"][-1],
            cold_open_ms=greedy["cold_open_ms"],
            cold_first_token_ms=greedy["cold_first_token_ms"],
            open_close_ms=greedy["open_close_ms"],
            peak_mb=greedy["peak_mb"],
        )
    say("cancel, cycles, import")
    measured.figure(
        cancel_prefill_ms=abi_decode(made, smollm2, "cancel", 2000, 9)["cancel_ms"],
        rss_growth_mb_1000=abi_decode(made, smollm2, "cycles", 1000)["rss_growth_mb"],
        import_ms=[import_ms(made, "eliza_ctypes") for _ in range(15)],
    )
    return measured.report(made)


def llama_bench(program: Path, gguf: Path) -> dict[str, float]:
    command: list[object] = [program, "-m", gguf, "-t", threads()]
    command += ["-p", N_PROMPT, "-n", N_GEN, "-r", "1", "-o", "json"]
    command += ["-fa", "auto", "-b", "512", "-ctk", "f16", "-ctv", "f16", "-ngl", "0"]
    results = json.loads(run_command(command, program.name))
    return {"decode" if r["n_gen"] else "prefill": r["avg_ts"] for r in results}


def speed(made: Build, model: Path, sampling: tuple[str, str, str]) -> dict[str, Any]:
    return abi_decode(made, model, "speed", N_PROMPT, N_GEN, RUNS, *sampling)
