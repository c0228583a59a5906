"""A consumer that opens a stream for each turn of a conversation, with a prompt-cache key: the
second turn, which has the first one's 1,000 tokens and a short question, against the first turn.
The times are those to the first token, opening included; each round has a process and a key of its
own.

Also the cost of opening a stream, of restoring a saved one, and what many turns leave in memory;
that last one on a tiny model, whose turns are short.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from lib.assets import fetch
from lib.building import Build
from lib.bundles import bundle
from lib.console import Failure, say
from lib.environments import MODELS, environment
from lib.measuring import Measurements, Report, abi_decode, build_for_measuring, python_tool
from lib.models import tiny_models
from lib.pictures import Bars

MANY_TURNS, WARM_UP = 10_000, 500

TITLE = "A stream for each turn: the second turn reuses the first one's prompt"
PICTURE = (
    Bars(
        "time to the first token, first turn / second turn",
        {
            "ttft_first_over_second": "SmolLM2 135M Q4_1",
            "ttft_first_over_second_gemma": "Gemma 3 270M Q4_K_M",
        },
    ),
    Bars(
        "milliseconds",
        {
            "first_ms": "first turn, SmolLM2",
            "second_ms": "second turn, SmolLM2",
            "first_gemma_ms": "first turn, Gemma 3",
            "second_gemma_ms": "second turn, Gemma 3",
            "reopen_ms": "opening and closing a stream",
        },
        "figures",
    ),
)


def run(rounds: int) -> Report:
    made = build_for_measuring()
    smollm2, gemma3 = (bundle(fetch(name), made) for name in ("smollm2", "gemma3-270m"))
    measured = Measurements(rounds)
    for number in measured:
        turns, gemma = (two_turns(made, model, number) for model in (smollm2, gemma3))
        with tempfile.TemporaryDirectory() as folder:
            slot = python_tool(made, "python_turns.py", "slot", smollm2, Path(folder, "slot"))
        measured.ratio(
            ttft_first_over_second=turns["first_ms"] / turns["second_ms"],
            ttft_first_over_second_gemma=gemma["first_ms"] / gemma["second_ms"],
        )
        measured.figure(
            first_ms=turns["first_ms"],
            second_ms=turns["second_ms"],
            first_gemma_ms=gemma["first_ms"],
            second_gemma_ms=gemma["second_ms"],
            reopen_ms=turns["reopen_ms"],
            save_slot_ms=slot["save_ms"],
            restore_slot_ms=slot["restore_ms"],
            restore_over_prefill=slot["restore_ms"] / slot["prefill_ms"],
        )
    say(f"{MANY_TURNS} turns")
    measured.figure(**{f"rss_growth_mb_{MANY_TURNS}": rss_growth_mb(made)})
    return measured.report(made)


def two_turns(made: Build, model: Path, number: int) -> dict[str, Any]:
    key = f"conversation-{number}"
    turns: dict[str, Any] = python_tool(made, "python_turns.py", "turns", model, key)
    fresh = python_tool(made, "python_turns.py", "fresh", model, "-")
    if turns["answer"] != fresh:
        raise Failure(f"{model.parent.name}: reuse gives {turns['answer']} instead of {fresh}")
    return turns


def rss_growth_mb(made: Build) -> float:
    model = tiny_models(environment(MODELS) / "python") / "tiny-bpe.gguf"
    small = {"ELIZA_LLM_N_CTX": "512", "ELIZA_LLM_THREADS": "1"}
    with mock.patch.dict(os.environ, small):
        result = abi_decode(made, bundle(model, made), "turns", MANY_TURNS, WARM_UP)
    return float(result["rss_growth_mb"])
