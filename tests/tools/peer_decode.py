"""The same work through eliza_ctypes or through llama-cpp-python. Prints one JSON object.

usage: peer_decode.py eliza BUNDLE N_THREADS
       peer_decode.py llama_cpp MODEL.gguf N_THREADS

Both decode the same text greedily, and of two runs the second one counts. Times are in
milliseconds, speeds in tokens per second.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

N_PROMPT, N_GEN, N_CTX, N_BATCH, RUNS = 512, 128, 8192, 512, 2
SENTENCE = "The river runs past the old mill, and the children count boats. "
OPENING = "Once upon a time"


class Eliza:
    """A stream that stays open, and the loop of the README, which opens one."""

    module = "eliza_ctypes"
    loops = ("stream", "generate")

    def __init__(self, path: str, n_threads: int) -> None:
        from eliza_ctypes import Context

        os.environ.update(
            ELIZA_LLM_THREADS=str(n_threads),
            ELIZA_LLM_N_CTX=str(N_CTX),
            ELIZA_LLM_N_BATCH=str(N_BATCH),
        )
        self.context = Context(path)
        self.open_stream = self.context.open_stream(max_tokens=N_GEN)

    def tokenize(self, text: str) -> list[int]:
        return self.context.tokenize(text, add_special=False)

    def prefill(self, prompt: list[int]) -> None:
        self.open_stream.reset()
        self.open_stream.prefill(prompt)

    def stream(self, prompt: list[int]) -> Generator[list[int], None, None]:
        self.prefill(prompt)
        for step in self.open_stream:
            yield step.tokens

    def generate(self, prompt: list[int]) -> Generator[list[int], None, None]:
        self.open_stream.close()  # one KV cache at a time, as on the other side
        generation, given = self.context.generate(prompt, max_tokens=N_GEN), 0
        for _ in generation:
            steps = generation.steps[given:]
            given += len(steps)
            yield [token for step in steps for token in step.tokens]


class LlamaCpp:
    """The loop that gives token ids, and the one that gives text. Both reuse the one context."""

    module = "llama_cpp"
    loops = ("generate", "completion")

    def __init__(self, path: str, n_threads: int) -> None:
        import llama_cpp  # type: ignore[import-not-found]  # lives in the peer's environment

        # Flash attention is on or off here; ours is llama.cpp's "auto", which turns it on.
        self.llama = llama_cpp.Llama(
            path,
            n_ctx=N_CTX,
            n_batch=N_BATCH,
            n_ubatch=N_BATCH,
            n_threads=n_threads,
            n_threads_batch=n_threads,
            flash_attn=True,
            verbose=False,
        )

    def tokenize(self, text: str) -> list[int]:
        tokens: list[int] = self.llama.tokenize(text.encode(), add_bos=False)
        return tokens

    def prefill(self, prompt: list[int]) -> None:
        self.llama.reset()
        self.llama.eval(prompt)

    def generate(self, prompt: list[int]) -> Generator[list[int], None, None]:
        self.llama.reset()
        tokens = self.llama.generate(prompt, temp=0.0)
        for _ in range(N_GEN):
            yield [next(tokens)]

    def completion(self, prompt: list[int]) -> Generator[list[int], None, None]:
        """Its chunks carry no token ids: -1 stands for each, and one chunk more ends the text."""
        self.llama.reset()
        chunks = self.llama.create_completion(
            prompt, max_tokens=N_GEN, temperature=0.0, stream=True
        )
        for _ in chunks:
            yield [-1]


def prompts(tokens: list[int]) -> Iterator[list[int]]:
    """The text begun at another word each time: nobody has the prefix from the time before."""
    for start in itertools.count():
        yield tokens[start : start + N_PROMPT]


def first_token_ms(pieces: Generator[list[int], None, None]) -> float:
    start = time.perf_counter()
    next(pieces)
    taken = time.perf_counter() - start
    pieces.close()
    return taken * 1e3


def decode(pieces: Iterator[list[int]]) -> tuple[float, list[int]]:
    """The speed from the first piece to the last one, and the tokens."""
    tokens = list(next(pieces))
    assert len(tokens) == 1
    first = last = time.perf_counter()
    for piece in pieces:
        tokens += piece
        last = time.perf_counter()
    assert len(tokens) >= N_GEN, f"the model ended its text after {len(tokens)} tokens"
    return (N_GEN - 1) / (last - first), tokens


def peak_mb() -> float:
    """Of this process alone: getrusage would count what the process was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main() -> None:
    side, path, n_threads = sys.argv[1:]
    made: Any = {"eliza": Eliza, "llama_cpp": LlamaCpp}[side]
    importlib.import_module(made.module)  # is measured by itself
    start = time.perf_counter()
    peer = made(path, int(n_threads))
    opening = peer.tokenize(OPENING)
    next(getattr(peer, peer.loops[0])(opening[:1]))
    result: dict[str, Any] = {"load_ms": (time.perf_counter() - start) * 1e3}

    tokens = peer.tokenize(SENTENCE * (N_PROMPT // 8))
    assert len(tokens) > N_PROMPT + 16
    prompt = prompts(tokens)
    for _ in range(RUNS):
        unseen = next(prompt)
        start = time.perf_counter()
        peer.prefill(unseen)
        result["prefill"] = N_PROMPT / (time.perf_counter() - start)
    for loop in peer.loops:
        pieces = getattr(peer, loop)
        for _ in range(RUNS):
            first = first_token_ms(pieces(next(prompt)))
            speed, generated = decode(pieces(opening))
        result[loop] = {"first_token_ms": first, "decode": speed, "tokens": generated}
    print(json.dumps({**result, "prompt": tokens, "peak_mb": peak_mb()}))


main()
