"""A consumer that opens a stream for each turn of a conversation. Prints JSON.

usage: python_turns.py turns BUNDLE KEY    two turns with one prompt-cache key, then reopening
       python_turns.py fresh BUNDLE -      the answer of the second turn where there was no first
       python_turns.py slot BUNDLE FILE    restoring a saved stream against its prefill

Times are in milliseconds.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from eliza_ctypes import Context

PREFIX, QUESTION, ANSWER = 1000, 24, 16
STORY = "The river runs past the old mill, and the children count boats until the lamps are lit. "
ASK = "So tell me, in one sentence and without repeating yourself, how many boats did they count, "
ASK += "who lit the lamps, and where was the mill?"


def turn(context: Context, prompt: list[int], key: str | None = None) -> tuple[float, list[int]]:
    """Time to the first token, opening included, and the answer."""
    start = time.perf_counter()
    with context.open_stream(max_tokens=ANSWER, prompt_cache_key=key) as stream:
        stream.prefill(prompt)
        tokens = stream.next().tokens
        first = time.perf_counter() - start
        assert tokens, "the model ended its text at once"
        return first * 1e3, tokens + [token for step in stream for token in step.tokens]


def two_turns(context: Context, prefix: list[int], question: list[int], key: str) -> dict[str, Any]:
    turn(context, question)  # loads the model
    first, _ = turn(context, prefix, key)
    second, answer = turn(context, prefix + question, key)
    reopen = []
    for _ in range(20):
        start = time.perf_counter()
        context.open_stream().close()
        reopen.append((time.perf_counter() - start) * 1e3)
    return {"first_ms": first, "second_ms": second, "answer": answer, "reopen_ms": reopen}


def fresh_turn(context: Context, prefix: list[int], question: list[int], _: str) -> list[int]:
    return turn(context, prefix + question)[1]


def slot(context: Context, prefix: list[int], question: list[int], file: str) -> dict[str, float]:
    turn(context, question)  # loads the model
    with context.open_stream(max_tokens=ANSWER) as saved, context.open_stream() as restored:
        start = time.perf_counter()
        saved.prefill(prefix)
        prefilled = time.perf_counter()
        saved.save(file)
        written = time.perf_counter()
        restored.restore(file)
        end = time.perf_counter()
    return {
        "prefill_ms": (prefilled - start) * 1e3,
        "save_ms": (written - prefilled) * 1e3,
        "restore_ms": (end - written) * 1e3,
    }


def main() -> None:
    what, bundle, argument = sys.argv[1:]
    with Context(bundle) as context:
        prefix = context.tokenize(STORY * (PREFIX // 16))[:PREFIX]
        question = context.tokenize(ASK, add_special=False)[:QUESTION]
        assert (len(prefix), len(question)) == (PREFIX, QUESTION)
        measure = {"turns": two_turns, "fresh": fresh_turn, "slot": slot}[what]
        print(json.dumps(measure(context, prefix, question, argument)))


main()
