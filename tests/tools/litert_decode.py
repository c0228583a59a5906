"""The same work through the library or through LiteRT-LM itself. Prints one JSON object.

usage: litert_decode.py ours BUNDLE N_THREADS PROMPT TEXT
       litert_decode.py theirs FILE N_THREADS PROMPT TEXT LIBRARY

PROMPT is continued greedily by N_GEN tokens: through the library in as many steps, through
LiteRT-LM in one call. Of TEXT, at least N_PROMPT tokens of `ours`, that many are prefilled. Of
several runs the first one warms up. Times are in milliseconds, one for each of the other runs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Callable

N_PROMPT, N_GEN, RUNS = 256, 96, 4
OPENINGS, CANCELS = 41, 7


Returned = list[tuple[float, int]]
"""When a call of a stream returned, and with how many tokens."""


def ms(work: Callable[..., Any], *arguments: object) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work(*arguments)
    return (time.perf_counter() - start) * 1e3, result


class Ours:
    def __init__(self, path: str, n_threads: int) -> None:
        from eliza_ctypes import Context

        os.environ["ELIZA_LLM_THREADS"] = str(n_threads)
        self.context = Context(path)
        self.stream = self.context.open_stream(max_tokens=N_GEN)

    def tokens(self, text: str) -> list[int]:
        return self.context.tokenize(text, add_special=False)

    def measure(self, prompt: str, text: str) -> dict[str, Any]:
        opening, passage = self.tokens(prompt), self.tokens(text)
        assert len(passage) >= N_PROMPT + RUNS, f"{len(passage)} tokens"
        steps, prefills = [], []
        for run in range(RUNS):
            # Begun at another token each time: nothing is left to reuse.
            unseen = passage[run : run + N_PROMPT]
            self.stream.reset()
            prefills.append(ms(self.stream.prefill, unseen)[0])
            self.stream.reset()
            self.stream.prefill(opening)
            taken, generated = ms(self.generate)
            steps.append(taken / len(generated))
        openings = [self.open_and_close() for _ in range(OPENINGS)]
        step_ms = min(steps[1:])
        return {
            "step_ms": steps[1:],
            "prefill_ms": prefills[1:],
            "generated": generated,
            "prompt": opening,
            "passage": passage[:N_PROMPT],
            "passage_text": self.context.detokenize(passage[:N_PROMPT]),
            "open_ms": [opened for opened, _ in openings],
            "close_ms": [closed for _, closed in openings],
            **self.cancel_steps(opening, step_ms),
            "cancel_prefill_ms": self.cancel_prefills(passage, min(prefills[1:])),
        }

    def generate(self) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < N_GEN:
            step = self.stream.next()
            tokens += step.tokens
            assert not step.done or len(tokens) == N_GEN, f"it ended after {len(tokens)} tokens"
        return tokens

    def open_and_close(self) -> tuple[float, float]:
        opened, stream = ms(self.context.open_stream)
        return opened, ms(stream.close)[0]

    def cancel_steps(self, prompt: list[int], step_ms: float) -> dict[str, list[float]]:
        """From the call of cancel to the return of the step; the tokens that still came."""
        taken: list[float] = []
        tokens: list[float] = []
        for number in range(CANCELS):
            self.stream.reset()
            self.stream.prefill(prompt)
            self.stream.next()
            after = step_ms * (4 + number + number / CANCELS) / 1e3
            cancelled, returned = self.cancelled(after, self.follow)
            taken.append((returned[-1][0] - cancelled) * 1e3)
            tokens.append(sum(count for at, count in returned if at > cancelled))
        return {"cancel_ms": taken, "cancel_tokens": tokens}

    def cancel_prefills(self, passage: list[int], prefill_ms: float) -> list[float]:
        taken = []
        for number in range(CANCELS):
            self.stream.reset()
            # Reversed, and begun elsewhere: nothing is left to reuse.
            unseen = passage[number + N_PROMPT : number : -1] * 2
            after = prefill_ms * (number + 1) / CANCELS / 1e3
            cancelled, returned = self.cancelled(after, self.read, unseen)
            taken.append((returned[-1][0] - cancelled) * 1e3)
        return taken

    def follow(self) -> Returned:
        from eliza_ctypes import Cancelled

        returned: Returned = []
        while True:
            try:
                count = len(self.stream.next().tokens)
            except Cancelled:
                return [*returned, (time.perf_counter(), 0)]
            returned.append((time.perf_counter(), count))

    def read(self, tokens: list[int]) -> Returned:
        from eliza_ctypes import Cancelled

        try:
            self.stream.prefill(tokens)
        except Cancelled:
            return [(time.perf_counter(), 0)]
        raise AssertionError("the prefill had ended before it was cancelled")

    def cancelled(
        self, after: float, work: Callable[..., Returned], *arguments: object
    ) -> tuple[float, Returned]:
        """When it was cancelled, and the calls that `work` made on another thread."""
        returned: Returned = []
        thread = threading.Thread(target=lambda: returned.extend(work(*arguments)))
        thread.start()
        time.sleep(after)
        cancelled = time.perf_counter()
        self.stream.cancel()
        thread.join()
        return cancelled, returned


class Theirs:
    def __init__(self, path: str, n_threads: int, library: str) -> None:
        from eliza_ctypes.litert.runtime import GreedyModel, Runtime

        self.model = GreedyModel(Runtime(library), path, N_GEN, n_threads)

    def measure(self, prompt: str, text: str) -> dict[str, Any]:
        steps, prefills = [], []
        for _ in range(RUNS):
            with self.model.session() as session:
                prefills.append(ms(self.model.prefill, session, text)[0])
            with self.model.session() as session:
                self.model.prefill(session, prompt)
                taken, continuation = ms(self.model.decode, session)
                steps.append(taken / N_GEN)
        return {"step_ms": steps[1:], "prefill_ms": prefills[1:], "text": continuation}


def main() -> None:
    side, path, n_threads, prompt, text, *library = sys.argv[1:]
    made = {"ours": Ours, "theirs": Theirs}[side](path, int(n_threads), *library)
    print(json.dumps(made.measure(prompt, text)))


main()
