"""What tests of the LiteRT-LM backend are given: the runtime's library and a bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

from lib.building import CHECKOUT, Build
from lib.bundles import python_environment
from lib.console import Failure, run

MODEL = CHECKOUT / "tests" / "fixtures" / "litert" / "tiny.litertlm"


def runtime_library(python: Path) -> Path:
    """The library of `litert-lm-api` in the environment of `python`."""
    code = "import importlib.util as i; print(*i.find_spec('litert_lm').submodule_search_locations)"
    folder = Path(run([python, "-c", code], "looking for litert-lm-api").strip())
    for file in folder.glob("*litert-lm.*"):
        return file
    raise Failure(f"{folder} has no LiteRT-LM library")


def exact_bundle(build: Build, python: Path) -> Path:
    """A bundle of the tiny model with exact token ids, made and verified with `build`."""
    directory = build.directory / "litert-bundle"
    shutil.rmtree(directory, ignore_errors=True)
    command = [python, "-m", "eliza_ctypes", "bundle", "add-litert", MODEL, directory]
    run(command, "bundle add-litert", python_environment(build))
    return directory
