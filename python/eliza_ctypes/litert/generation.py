"""Trying out a new bundle: the library generates from it what LiteRT-LM does from the original."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ..context import Context
from ..errors import BundleInvalid, ElizaError
from ..library import Library
from ..loader import litert_runtime
from ..report import backend_states, forced_backend
from . import runtime

_BACKEND = "litert-lm"
_PROMPTS = ("1 2 3 4 5", "The quick brown fox", "a b c d")
_TOKENS = 12
_SECONDS = 900
_ID = re.compile(r"<(\d+)>")


class Verification(NamedTuple):
    """What is known of a bundle from generating."""

    generated: bool
    """The library generated text with LiteRT-LM."""
    compared: bool
    """The text is what LiteRT-LM itself generates from the original file."""
    message: str
    """In words, with what was not done and why."""


def not_verified(reason: str) -> Verification:
    """Nothing was generated."""
    return Verification(False, False, f"not verified by generating: {reason}")


def verify(library: Library, bundle: Path, original: Path, ids: bool) -> Verification:
    """Generates from ``bundle``, greedily, and compares with the original file.

    ``ids``: the original's texts are token ids. Raises BundleInvalid where the bundle does not
    generate, or not the same.
    """
    states = {state.name: state for state in backend_states(library, bundle)}
    if _BACKEND not in states:
        return not_verified(f"{library.path} knows no {_BACKEND}")
    if not states[_BACKEND].able:
        return not_verified(f"{_BACKEND} is {states[_BACKEND]}")
    try:
        with forced_backend(_BACKEND), Context(bundle, library) as context:
            ours = [_generated(context, prompt) for prompt in _PROMPTS]
            asked = [_as_ids(context, prompt) if ids else prompt for prompt in _PROMPTS]
        # The model is there once at a time.
        theirs, reason = _by_the_runtime(library, original, asked)
        if ids:
            with Context(bundle, library) as context:
                theirs = [_from_ids(context, text) for text in theirs]
    except ElizaError as error:
        raise BundleInvalid.because(f"{original}: its bundle does not generate: {error}") from None
    shown = f"{_PROMPTS[0]!r} continues {ours[0]!r}"
    if reason:
        said = f"verified by generating ({shown}), but not against the original: {reason}"
        return Verification(True, False, said)
    for prompt, our, their in zip(_PROMPTS, ours, theirs):
        if not _agree(our, their):
            raise BundleInvalid.because(
                f"{original}: its bundle continues {prompt!r} with {our!r}, and LiteRT-LM {their!r}"
            )
    return Verification(True, True, f"verified against LiteRT-LM on the original ({shown})")


def _generated(context: Context, prompt: str) -> str:
    return "".join(context.generate(prompt, max_tokens=_TOKENS))


def _as_ids(context: Context, prompt: str) -> str:
    # LiteRT-LM puts a start token before by itself.
    return "".join(f"<{token}>" for token in context.tokenize(prompt, add_special=False))


def _from_ids(context: Context, text: str) -> str:
    return context.detokenize([int(number) for number in _ID.findall(text)], remove_special=True)


def _by_the_runtime(
    library: Library, original: Path, prompts: list[str]
) -> tuple[list[str], str | None]:
    """The continuations, or why there are none."""
    file = litert_runtime(library.path)
    if file is None:
        return [], "its library was not found"
    command = [sys.executable, runtime.__file__, file, str(original), str(_TOKENS), *prompts]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return [], f"LiteRT-LM did not answer within {_SECONDS} s"
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return [], f"LiteRT-LM ended with status {done.returncode}: {''.join(said)}"
    texts: list[str] = json.loads(done.stdout)
    return texts, None


def _agree(ours: str, theirs: str) -> bool:
    """One may have stopped before the other, or inside a character, or without a first space."""
    one, other = (text.rstrip("\ufffd").strip(" ") for text in (ours, theirs))
    return one.startswith(other) or other.startswith(one)
