"""Fixtures: the library under test, the models, and bundles made from them.

The paths come from the environment that `scripts/test` sets. A missing one fails the test: a skip
would hide it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Callable

import pytest

import eliza_ctypes

# Those that run a compiler or a program of the build.
BUILDING_FIXTURES = {"compile_library", "compile_stub", "compiled", "fake", "reference_decode"}

# What the commands in scripts/ are made of.
sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

MakeBundle = Callable[[Path], Path]


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with Ctrl-C ignored, and the programs under test inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not BUILDING_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("build_tree")


@pytest.fixture(autouse=True)
def _fixed_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No developer's ELIZA_LLM_* variable, chance or clock decides what a test sees."""
    for name in [name for name in os.environ if name.startswith("ELIZA_LLM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ELIZA_LLM_SEED", "7")
    monkeypatch.setenv("ELIZA_LLM_DRAFT", "always")


@pytest.fixture(scope="session")
def library_path() -> Path:
    return _path_from("ELIZA_INFERENCE_LIBRARY")


@pytest.fixture(scope="session")
def library(library_path: Path) -> eliza_ctypes.Library:
    return eliza_ctypes.Library(library_path)


@pytest.fixture(scope="session")
def reference_decode() -> Path:
    """The independent driver over the same llama.cpp."""
    return _path_from("ELIZA_TEST_REFERENCE_DECODE")


@pytest.fixture(scope="session")
def tiny_models() -> Path:
    """The folder that tests/models/make_tiny_models.py wrote."""
    return _path_from("ELIZA_TEST_MODELS")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return _path_from("ELIZA_TEST_SMOLLM2")


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    return _path_from("ELIZA_TEST_GEMMA3")


@pytest.fixture(scope="session")
def make_bundle(tmp_path_factory: pytest.TempPathFactory) -> MakeBundle:
    """Make a bundle directory whose text model is a link to the given GGUF file."""

    def make(gguf: Path) -> Path:
        bundle = tmp_path_factory.mktemp(gguf.stem)
        (bundle / "text").mkdir()
        (bundle / "text" / gguf.name).symlink_to(gguf)
        return bundle

    return make


@pytest.fixture(scope="session")
def smollm2_bundle(make_bundle: MakeBundle, smollm2_gguf: Path) -> Path:
    return make_bundle(smollm2_gguf)


@pytest.fixture(scope="session")
def gemma3_bundle(make_bundle: MakeBundle, gemma3_gguf: Path) -> Path:
    return make_bundle(gemma3_gguf)


@pytest.fixture(scope="session")
def tiny_bpe_bundle(make_bundle: MakeBundle, tiny_models: Path) -> Path:
    return make_bundle(tiny_models / "tiny-bpe.gguf")


@pytest.fixture(scope="session")
def tiny_spm_bundle(make_bundle: MakeBundle, tiny_models: Path) -> Path:
    return make_bundle(tiny_models / "tiny-spm.gguf")


@pytest.fixture(scope="session")
def tiny_swa_bundle(make_bundle: MakeBundle, tiny_models: Path) -> Path:
    return make_bundle(tiny_models / "tiny-swa.gguf")


@pytest.fixture(scope="session")
def chain_bundle(make_bundle: MakeBundle, tiny_models: Path) -> Path:
    return make_bundle(tiny_models / "chain-spm.gguf")


def _path_from(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value or not Path(value).exists():
        pytest.fail(f"{variable}={value or ''} names no file: run `scripts/test -- tests/py/...`")
    return Path(value)
