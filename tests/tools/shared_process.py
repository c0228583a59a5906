"""Several native libraries in one process: load them in a given order, then use them in turns.

usage: shared_process.py {global|local} LIBRARY BUNDLE MODEL.gguf NAME...

NAME: eliza, llama_cpp, numpy or torch, in the order in which they are loaded. Prints one JSON
object with what each of them computed. llama-cpp-python always loads its libraries with
RTLD_GLOBAL; `global` and `local` say how ours is loaded.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Callable

PROMPT = "The capital of France is"
TOKENS = 24
SIZE = 300


def load_eliza(mode: str, path: str) -> None:
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL if mode == "global" else ctypes.RTLD_LOCAL)


def eliza(path: str, bundle: str) -> Iterator[Any]:
    from eliza_ctypes import Context, Library

    with (
        Context(bundle, Library(path)) as context,
        context.open_stream(max_tokens=TOKENS) as stream,
    ):
        stream.prefill(context.tokenize(PROMPT))
        for step in stream:
            yield from step.tokens


def llama_cpp(gguf: str) -> Iterator[Any]:
    from llama_cpp import Llama  # type: ignore[import-not-found]  # not the linter's

    llama = Llama(gguf, n_ctx=512, n_threads=2, verbose=False)
    prompt = llama.tokenize(PROMPT.encode(), add_bos=False)
    for _, token in zip(range(TOKENS), llama.generate(prompt, temp=0.0)):
        yield token


def numpy() -> Iterator[Any]:
    import numpy

    values = numpy.arange(SIZE * SIZE, dtype=numpy.float64).reshape(SIZE, SIZE) % 7
    while True:
        yield float((values @ values.T).sum())


def torch() -> Iterator[Any]:
    import torch  # type: ignore[import-not-found]

    values = torch.arange(SIZE * SIZE, dtype=torch.float64).reshape(SIZE, SIZE) % 7
    while True:
        yield float((values @ values.T).sum())


def main() -> None:
    mode, library, bundle, gguf, *names = sys.argv[1:]
    os.environ["ELIZA_LLM_THREADS"] = "2"
    uses: dict[str, Callable[[], Iterator[Any]]] = {
        "eliza": lambda: eliza(library, bundle),
        "llama_cpp": lambda: llama_cpp(gguf),
        "numpy": numpy,
        "torch": torch,
    }
    for name in names:
        if name == "eliza":
            load_eliza(mode, library)
        else:
            importlib.import_module(name)
    used = {name: uses[name]() for name in names}
    results: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(TOKENS):
        for name, values in used.items():
            results[name].append(next(values, None))
    print(json.dumps(results))
    sys.stdout.flush()


main()
