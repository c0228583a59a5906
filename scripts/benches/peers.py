"""eliza_ctypes against llama-cpp-python, compiled from the same llama.cpp source with the same
flags: SmolLM2, the same threads, context and batch size, flash attention, f16 KV cache.

Each side works in a process of its own, one after the other, and the rounds take turns at who goes
first. Every ratio is above 1 where eliza_ctypes is better. llama-cpp-python keeps one context for
all its generations. So does an eliza_ctypes stream that is reset; `Context.generate` opens a stream
each time, which the ratio `ttft_generate` includes.
"""

from __future__ import annotations

import sys
from typing import Any

from lib.assets import fetch
from lib.bundles import bundle
from lib.console import Failure
from lib.measuring import (
    Measurements,
    Report,
    build_for_measuring,
    import_ms,
    python_tool,
    threads,
)
from lib.peers import llama_cpp_python
from lib.pictures import Bars

TITLE = "eliza_ctypes and llama-cpp-python 0.3.36: SmolLM2 135M Q4_1"
PICTURE = (
    Bars(
        "above 1: eliza_ctypes is better (logarithmic)",
        {
            "decode": "decode, against token ids",
            "decode_text": "decode, against text",
            "prefill": "prefill of 512 tokens",
            "ttft": "first token after 512",
            "ttft_generate": "the same, opening a stream",
            "memory": "peak memory",
            "load": "load, to the first token",
            "import": "import",
        },
    ),
)


def run(rounds: int) -> Report:
    made = build_for_measuring()
    gguf = fetch("smollm2")
    smollm2 = bundle(gguf, made)
    peer = llama_cpp_python(made)

    def ours() -> Any:
        return python_tool(made, "peer_decode.py", "eliza", smollm2, threads())

    def theirs() -> Any:
        command = ("peer_decode.py", "llama_cpp", gguf, threads())
        return python_tool(made, *command, python=peer)

    measured = Measurements(rounds)
    for number in measured:
        if number % 2:
            their, our = theirs(), ours()
        else:
            our, their = ours(), theirs()
        our_import = import_ms(made, "eliza_ctypes", sys.executable)
        their_import = import_ms(made, "llama_cpp", peer)
        if our["prompt"] != their["prompt"]:
            raise Failure("the two sides tokenize the prompt differently")
        measured.ratio(
            decode=our["generate"]["decode"] / their["generate"]["decode"],
            decode_text=our["generate"]["decode"] / their["completion"]["decode"],
            prefill=our["prefill"] / their["prefill"],
            ttft=their["generate"]["first_token_ms"] / our["stream"]["first_token_ms"],
            ttft_generate=their["generate"]["first_token_ms"] / our["generate"]["first_token_ms"],
            memory=their["peak_mb"] / our["peak_mb"],
            load=their["load_ms"] / our["load_ms"],
        )
        measured.ratio(**{"import": their_import / our_import})
        measured.figure(
            same_greedy_tokens=agreeing(our["generate"]["tokens"], their["generate"]["tokens"]),
            decode_tps=our["generate"]["decode"],
            their_decode_tps=their["generate"]["decode"],
            their_decode_text_tps=their["completion"]["decode"],
            prefill_tps=our["prefill"],
            their_prefill_tps=their["prefill"],
            first_token_ms=our["stream"]["first_token_ms"],
            first_token_generate_ms=our["generate"]["first_token_ms"],
            their_first_token_ms=their["generate"]["first_token_ms"],
            peak_mb=our["peak_mb"],
            their_peak_mb=their["peak_mb"],
            load_ms=our["load_ms"],
            their_load_ms=their["load_ms"],
            import_ms=our_import,
            their_import_ms=their_import,
        )
    return measured.report(made)


def agreeing(ours: list[int], theirs: list[int]) -> int:
    """How many tokens are the same before the first difference."""
    pairs = enumerate(zip(ours, theirs))
    different = (number for number, (one, other) in pairs if one != other)
    return next(different, min(len(ours), len(theirs)))
