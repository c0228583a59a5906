"""The LiteRT-LM backend over LiteRT-LM itself, on SmolLM2 with 8-bit weights: greedy steps through
the library against one call of the runtime for as many tokens, from the stock file and from the
one with exact token ids; and a prefill against the runtime's one call. Times: lower is better.

Also what opening, closing and cancelling cost, what many cycles leave in memory, and the speed of
the in-tree path on the same model with its own 4-bit weights.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import Any

from lib.assets import fetch
from lib.bundles import bundle
from lib.console import Failure, say
from lib.conversion import FILE, smollm2_litert, smollm2_litert_bundle
from lib.environments import TEST, environment
from lib.litert import runtime_library
from lib.measuring import (
    Measurements,
    Report,
    abi_decode,
    build_for_measuring,
    python_tool,
    threads,
)
from lib.pictures import Bars

CYCLES = 500
PROMPT = (
    "The lighthouse keeper wrote in her diary every evening: the wind, the ships that passed, and "
    "what the sea had brought. On the last evening of the year she wrote"
)
SENTENCE = "The river runs past the old mill, and the children count boats. "
TEXT = SENTENCE * 40

TITLE = "LiteRT-LM through the library: SmolLM2 135M, 8-bit weights"
PICTURE = (
    Bars(
        "milliseconds for one token",
        {
            "step_ms": "the library, a step",
            "runtime_step_ms": "LiteRT-LM, one call for all",
            "runtime_ids_step_ms": "the same from the file with exact ids",
            "llama_step_ms": "in-tree, 4-bit weights, a step",
        },
        "figures",
    ),
    Bars(
        "milliseconds for 256 tokens of a prompt",
        {
            "prefill_ms": "the library",
            "runtime_prefill_ms": "LiteRT-LM",
            "llama_prefill_ms": "in-tree, 4-bit weights",
        },
        "figures",
    ),
    Bars(
        "milliseconds",
        {
            "open_ms": "opening a stream, warm",
            "close_ms": "closing it",
            "cancel_ms": "from cancel to the return of a step, at most",
            "cancel_prefill_ms": "of a prefill, at most",
        },
        "figures",
    ),
)


def run(rounds: int) -> Report:
    made = build_for_measuring("-DELIZA_ENABLE_LITERT=ON", folder="litert")
    python = environment(TEST) / "python"
    library = runtime_library(python)
    os.environ["ELIZA_LITERT_LM_LIBRARY"] = str(library)  # for what is not Python
    model, exact = smollm2_litert(), smollm2_litert_bundle(made)
    in_tree = bundle(fetch("smollm2"), made)
    say(f"the bundle of the test that names ELIZA_TEST_LITERT_SMOLLM2: {exact}")

    def ours(directory: Path) -> Any:
        return python_tool(
            made, "litert_decode.py", "ours", directory, threads(), PROMPT, TEXT, python=python
        )

    def theirs(file: Path, prompt: str, text: str) -> Any:
        arguments = ("theirs", file, threads(), prompt, text, library)
        return python_tool(made, "litert_decode.py", *arguments, python=python)

    measured = Measurements(rounds)
    cancels: dict[str, list[float]] = {}
    for _ in measured:
        our = ours(exact)
        stock = theirs(model, PROMPT, our["passage_text"])
        ids = theirs(exact / "text" / FILE, as_ids(our["prompt"]), as_ids(our["passage"]))
        llama = ours(in_tree)
        if ids["text"] != as_ids(our["generated"]):
            raise Failure(f"the library continues {our['generated']}, LiteRT-LM {ids['text']}")
        step, prefill = median(our["step_ms"]), median(our["prefill_ms"])
        measured.ratio(
            step=step / median(stock["step_ms"]),
            step_ids=step / median(ids["step_ms"]),
            prefill=prefill / median(stock["prefill_ms"]),
            prefill_ids=prefill / median(ids["prefill_ms"]),
            decode_vs_llama=median(llama["step_ms"]) / step,
            prefill_vs_llama=median(llama["prefill_ms"]) / prefill,
            cancel_steps=max(our["cancel_ms"]) / step,
        )
        measured.figure(
            step_ms=step,
            runtime_step_ms=median(stock["step_ms"]),
            runtime_ids_step_ms=median(ids["step_ms"]),
            llama_step_ms=median(llama["step_ms"]),
            prefill_ms=prefill,
            runtime_prefill_ms=median(stock["prefill_ms"]),
            runtime_ids_prefill_ms=median(ids["prefill_ms"]),
            llama_prefill_ms=median(llama["prefill_ms"]),
            open_ms=our["open_ms"],
            close_ms=our["close_ms"],
        )
        for name in ("cancel_ms", "cancel_tokens", "cancel_prefill_ms"):
            cancels.setdefault(name, []).extend(our[name])
    measured.figure(**{name: max(values) for name, values in cancels.items()})
    say(f"{CYCLES} cycles")
    growth = abi_decode(made, exact, "cycles", CYCLES)["rss_growth_mb"]
    measured.figure(**{f"rss_growth_kb_{CYCLES}": growth * 1024})
    return measured.report(made)


def as_ids(tokens: list[int]) -> str:
    """What the tokens are in a file with exact token ids."""
    return "".join(f"<{token}>" for token in tokens)
