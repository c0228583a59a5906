"""The library beside other native libraries, and beside itself, in one process."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eliza_ctypes import Context, Library

PROGRAM = Path(__file__).parents[1] / "tools" / "shared_process.py"
NEIGHBOURS = ("llama_cpp", "numpy", "torch")
# Ours before and after the others, next to the one with another llama.cpp and to the one with a
# runtime for threads.
ORDERS = (
    ("eliza", "llama_cpp", "numpy", "torch"),
    ("eliza", "torch", "numpy", "llama_cpp"),
    ("llama_cpp", "numpy", "torch", "eliza"),
    ("torch", "numpy", "llama_cpp", "eliza"),
)
PROMPT = "The capital of France is"


def run(
    python: str | Path, mode: str, library: Path, bundle: Path, gguf: Path, *names: str
) -> dict[str, Any]:
    arguments = [python, PROGRAM, mode, library, bundle, gguf, *names]
    done = subprocess.run([str(part) for part in arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


@pytest.fixture(scope="module")
def neighbours_python() -> str:
    """A Python that has llama-cpp-python, numpy and PyTorch."""
    return os.environ["ELIZA_TEST_NEIGHBOURS_PYTHON"]


@pytest.fixture(scope="module")
def alone(
    neighbours_python: str, library_path: Path, smollm2_bundle: Path, smollm2_gguf: Path
) -> dict[str, Any]:
    """What each of them computes in a process of its own."""
    given = (library_path, smollm2_bundle, smollm2_gguf)
    return {
        name: run(neighbours_python, "local", *given, name)[name] for name in ("eliza", *NEIGHBOURS)
    }


@pytest.mark.neighbours
def test_the_neighbours_compute_what_they_should(alone: dict[str, Any]) -> None:
    assert None not in alone["eliza"] and None not in alone["llama_cpp"]
    assert alone["numpy"] == alone["torch"] and alone["numpy"][0] > 0


@pytest.mark.neighbours
@pytest.mark.parametrize("mode", ("local", "global"))
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_shared_process_gives_the_results_of_separate_processes(
    order: tuple[str, ...],
    mode: str,
    alone: dict[str, Any],
    neighbours_python: str,
    library_path: Path,
    smollm2_bundle: Path,
    smollm2_gguf: Path,
) -> None:
    given = (library_path, smollm2_bundle, smollm2_gguf)
    assert run(neighbours_python, mode, *given, *order) == alone


@pytest.mark.parametrize("mode", ("local", "global"))
def test_numpy_beside_the_library(
    mode: str, library_path: Path, smollm2_bundle: Path, smollm2_gguf: Path
) -> None:
    given = (library_path, smollm2_bundle, smollm2_gguf)
    expected = run(sys.executable, "local", *given, "eliza")["eliza"]
    for order in (("eliza", "numpy"), ("numpy", "eliza")):
        assert run(sys.executable, mode, *given, *order)["eliza"] == expected


def test_the_library_loaded_twice_under_two_names_generates_in_turns(
    library_path: Path, smollm2_bundle: Path, tmp_path: Path
) -> None:
    """Two copies are two libraries: neither sees the other's state."""
    copy = tmp_path / "libother.so"
    shutil.copy(library_path, copy)
    first, second = Library(library_path), Library(copy)
    with Context(smollm2_bundle, first) as one, Context(smollm2_bundle, second) as other:
        streams = [context.open_stream(max_tokens=24) for context in (one, other)]
        for context, stream in zip((one, other), streams):
            stream.prefill(context.tokenize(PROMPT))
        steps = [(a.tokens, b.tokens) for a, b in zip(*streams)]
        assert len(steps) == 24
        assert all(a == b for a, b in steps)
        for stream in streams:
            stream.close()


def test_the_library_loaded_through_a_link_is_the_same_library(
    library_path: Path, tmp_path: Path
) -> None:
    link = tmp_path / "liblinked.so"
    link.symlink_to(library_path)
    version = "eliza_inference_abi_version"
    functions: list[Any] = [
        Library(path)._native.functions[version] for path in (library_path, link)
    ]
    first, second = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    assert first == second


def test_unloading_beneath_an_open_stream_does_no_harm(
    library_path: Path, smollm2_bundle: Path
) -> None:
    """koffi and Deno unload at exit, whatever is still open and running."""
    program = f"""
import _ctypes, ctypes, time
from eliza_ctypes import Context, Library
handle = ctypes.CDLL({str(library_path)!r})._handle
context = Context({str(smollm2_bundle)!r}, Library({str(library_path)!r}))
stream = context.open_stream(max_tokens=4)
stream.prefill(context.tokenize({PROMPT!r}))
stream.next()
_ctypes.dlclose(handle), _ctypes.dlclose(handle)
time.sleep(0.2)
print(stream.next().tokens)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[30]\n"), done.stderr
