"""The models that tests are given; the tiny ones are made once for each version of their script."""

from __future__ import annotations

from pathlib import Path

from lib import cache
from lib.assets import fetch
from lib.building import CHECKOUT
from lib.console import run, say
from lib.environments import MODELS

SCRIPT = CHECKOUT / "tests" / "models" / "make_tiny_models.py"


def tiny_models(python: Path) -> Path:
    """The folder with the models, written by `python`, which has gguf and numpy."""

    def make(entry: Path) -> None:
        say("writing the tiny models")
        run([python, SCRIPT, entry], SCRIPT.name)

    return cache.make_once(cache.root() / "models" / cache.key(SCRIPT.read_text(), *MODELS), make)


def given_models(python: Path) -> dict[str, str]:
    """The variables that tell tests where every model is; `python` as for tiny_models."""
    return {
        "ELIZA_TEST_MODELS": str(tiny_models(python)),
        "ELIZA_TEST_SMOLLM2": str(fetch("smollm2")),
        "ELIZA_TEST_GEMMA3": str(fetch("gemma3-270m")),
    }
