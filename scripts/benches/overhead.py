"""What the library costs over llama.cpp: SmolLM2 through the C ABI and through Python against
llama-bench of the same build, with the same threads, batch size, KV types and context depth.

The rounds are interleaved and each ratio is the median of the rounds' ratios, so that a machine
that slows down for a while slows both sides of a ratio.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from lib.assets import fetch
from lib.building import CHECKOUT, Build, build
from lib.bundles import bundle, python_environment
from lib.console import run as run_command
from lib.console import say
from lib.measuring import Report, machine

N_PROMPT, N_GEN = 512, 128
RUNS = "2"  # the last one counts: llama-bench warms up before its one run too
GREEDY, SAMPLED = ("0", "0", "0"), ("0.8", "40", "0.95")
PYTHON_DECODE = Path(__file__).resolve().parents[2] / "tests" / "tools" / "python_decode.py"


class Overhead:
    def __init__(self, made: Build) -> None:
        self.made = made
        self.gguf = fetch("smollm2")
        self.bundle = bundle(self.gguf, made)
        self.threads = str(os.cpu_count() or 1)
        for name in [name for name in os.environ if name.startswith("ELIZA_LLM_")]:
            del os.environ[name]
        os.environ.update(ELIZA_LLM_THREADS=self.threads, ELIZA_LLM_SEED="1")

    def llama_bench(self) -> dict[str, float]:
        command = [self.made.program("llama-bench"), "-m", self.gguf, "-t", self.threads]
        command += ["-p", str(N_PROMPT), "-n", str(N_GEN), "-r", "1", "-o", "json"]
        command += ["-fa", "auto", "-b", "512", "-ctk", "f16", "-ctv", "f16", "-ngl", "0"]
        results = json.loads(run_command(command, "llama-bench"))
        return {"decode" if r["n_gen"] else "prefill": r["avg_ts"] for r in results}

    def abi(self, *arguments: str) -> dict[str, Any]:
        command = [self.made.program("abi_decode"), self.made.library, self.bundle, *arguments]
        result: dict[str, Any] = json.loads(run_command(command, "abi_decode"))
        return result

    def speed(self, sampling: tuple[str, str, str]) -> dict[str, Any]:
        return self.abi("speed", str(N_PROMPT), str(N_GEN), RUNS, *sampling)

    def python_decode(self) -> float:
        command = [sys.executable, PYTHON_DECODE, self.bundle, str(N_GEN), RUNS]
        env = python_environment(self.made)
        speeds: list[float] = json.loads(run_command(command, PYTHON_DECODE.name, env))
        return speeds[-1]


def run(rounds: int) -> Report:
    bench = Overhead(build(["-DELIZA_BUILD_TOOLS=ON"], CHECKOUT / "build" / "release"))
    ratios: dict[str, list[float]] = {}
    figures: dict[str, list[float]] = {}

    def note(table: dict[str, list[float]], **values: float) -> None:
        for name, value in values.items():
            table.setdefault(name, []).append(value)

    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        theirs = bench.llama_bench()
        greedy = bench.speed(GREEDY)
        python = bench.python_decode()
        sampled = bench.speed(SAMPLED)
        ours, drawn = greedy["decode"][-1], sampled["decode"][-1]
        prefill = greedy["prefill"][-1]
        note(
            ratios,
            decode_abi=ours / theirs["decode"],
            decode_python=python / theirs["decode"],
            decode_sampled=drawn / theirs["decode"],
            prefill=prefill / theirs["prefill"],
        )
        note(
            figures,
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
    figures["cancel_prefill_ms"] = bench.abi("cancel", "2000", "9")["cancel_ms"]
    figures["rss_growth_mb_1000"] = [bench.abi("cycles", "1000")["rss_growth_mb"]]
    figures["import_ms"] = import_times(bench, 15)
    return {
        "ratios": {name: round(statistics.median(values), 4) for name, values in ratios.items()},
        "figures": {name: round(statistics.median(values), 3) for name, values in figures.items()},
        "machine": machine(bench.made),
    }


def import_times(bench: Overhead, repetitions: int) -> list[float]:
    """`import eliza_ctypes` in a new interpreter, less the interpreter itself."""
    env = python_environment(bench.made)

    def seconds(code: str) -> float:
        start = time.perf_counter()
        run_command([sys.executable, "-c", code], "python", env)
        return time.perf_counter() - start

    return [(seconds("import eliza_ctypes") - seconds("pass")) * 1e3 for _ in range(repetitions)]
