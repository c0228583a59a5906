"""The tiny models of the unit tests, generated once for each version of their script."""

from __future__ import annotations

from pathlib import Path

from lib import cache
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
