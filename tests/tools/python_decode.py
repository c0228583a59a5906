"""Decoding speed through the Python iterator: a JSON list of tokens per second, one for each run.

usage: python_decode.py BUNDLE N_GEN RUNS
"""

from __future__ import annotations

import json
import sys
import time

from eliza_ctypes import Context


def main() -> None:
    bundle, n_gen, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    speeds = []
    with Context(bundle) as context, context.open_stream(max_tokens=n_gen) as stream:
        first = context.tokenize("The", add_special=False)[:1]
        for _ in range(runs):
            stream.reset()
            stream.prefill(first)
            start = time.perf_counter()
            count = sum(len(step.tokens) for step in stream)
            speeds.append(count / (time.perf_counter() - start))
            assert count == n_gen, f"the model ended its text after {count} tokens"
    print(json.dumps(speeds))


main()
