"""Generations one after the other on one context: a JSON list with what each gave and took.

usage: python_generate.py BUNDLE JOBS

JOBS is a JSON list of {"prompt": text, "config": fields of LlmStreamConfig}. The time is that of
the tokens after the first step, so that neither prefill nor loading counts.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from eliza_ctypes import Context


def generate(context: Context, prompt: str, config: dict[str, Any]) -> dict[str, Any]:
    with context.open_stream(**config) as stream:
        stream.prefill(context.tokenize(prompt))
        steps = [stream.next()]
        start = time.perf_counter()
        if not steps[0].done:
            steps.extend(stream)
        seconds = time.perf_counter() - start
    tokens = [token for step in steps for token in step.tokens]
    return {
        "tokens": tokens,
        "timed": len(tokens) - len(steps[0].tokens),
        "seconds": seconds,
        "drafted": sum(step.drafter_drafted for step in steps),
        "accepted": sum(step.drafter_accepted for step in steps),
    }


def main() -> None:
    bundle, jobs = sys.argv[1], json.loads(sys.argv[2])
    with Context(bundle) as context:
        generate(context, "The", {"max_tokens": 8})  # loads the model
        print(json.dumps([generate(context, job["prompt"], job["config"]) for job in jobs]))


main()
