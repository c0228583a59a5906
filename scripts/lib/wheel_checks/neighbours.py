"""The library in one process with llama-cpp-python, numpy and PyTorch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lib import peers
from lib.assets import fetch
from lib.building import CHECKOUT, STRICT, TESTS_ON, configure
from lib.wheel_checks.wheel import Wheel

TESTS = CHECKOUT / "tests" / "py" / "test_shared_process.py"
TEST_SECONDS = 600


def neighbours() -> Path:
    """Compiled like this checkout's release build, so that `scripts/test --all` shares it."""
    made = configure([*TESTS_ON, *STRICT], CHECKOUT / "build" / "release")
    return peers.neighbours(made)


def pytest_command(junit: Path) -> list[str]:
    """Several load orders with RTLD_LOCAL and RTLD_GLOBAL, compared with separate processes."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "neighbours"]
    pytest += [f"--timeout={TEST_SECONDS}", f"--junitxml={junit}", str(TESTS)]
    return pytest


def pytest_settings(wheel: Wheel, python: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(wheel.folder),
        "ELIZA_INFERENCE_LIBRARY": str(wheel.library),
        "ELIZA_TEST_NEIGHBOURS_PYTHON": str(python),
        "ELIZA_TEST_SMOLLM2": str(fetch("smollm2")),
    }
