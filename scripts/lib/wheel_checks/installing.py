"""Installed where there is neither compiler nor network: import, generation, the quick tests."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from lib.assets import fetch
from lib.building import CHECKOUT
from lib.console import Failure, run
from lib.levels import LEVELS
from lib.models import given_models
from lib.wheel_checks import isolation
from lib.wheel_checks.drivers import make_bundle
from lib.wheel_checks.wheel import Wheel, fail_with

PROMPT = "The capital of France is"
# What SmolLM2 goes on with, whichever CPU level computes it.
ANSWER = " Paris."
# As in pyproject.toml. What remains needs the package, its library and models.
QUICK = "not build_tree and not litert and not neighbours and not portable and not slow"
TEST_SECONDS = 300


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and nothing else, and an empty folder to run it from."""

    environment: Path
    home: Path

    @property
    def programs(self) -> Path:
        return self.environment / "bin"

    @property
    def python(self) -> Path:
        return self.programs / "python"

    @property
    def packages(self) -> Path:
        (found,) = self.environment.glob("lib/python*/site-packages")
        return found

    def run(self, what: str, *arguments: object) -> str:
        env = isolation.settings(self.home, self.programs)
        return run(isolation.command(*arguments), what, env, self.home)


def install(wheel: Wheel, folder: Path) -> Installed:
    installed = Installed(folder / "environment", folder / "home")
    installed.home.mkdir(parents=True)
    run([sys.executable, "-m", "venv", installed.environment], "python -m venv")
    installed.run("pip install", installed.python, "-m", "pip", "install", "--quiet", wheel.path)
    return installed


def check_installed(wheel: Wheel, installed: Installed) -> None:
    problems = []
    where = "import eliza_ctypes; print(eliza_ctypes.__file__, eliza_ctypes.__version__)"
    found, version = installed.run("import", installed.python, "-c", where).split()
    if installed.environment not in Path(found).parents:
        problems.append(f"import eliza_ctypes finds {found}, not what was installed")
    if version != wheel.version:
        problems.append(f"eliza_ctypes.__version__ is {version}, the wheel's is {wheel.version}")
    command = installed.programs / "eliza-ctypes"
    facts = json.loads(installed.run("eliza-ctypes info", command, "info", "--json"))
    if facts["cpu"] not in [f"CPU level {level}" for level in LEVELS[wheel.machine]]:
        problems.append(f"`eliza-ctypes info` says that it computes with {facts['cpu']!r}")
    bundle = make_bundle(installed.home / "bundle", fetch("smollm2"))
    generate = [command, "generate", bundle, PROMPT, "--max-tokens", 8, "--temperature", 0]
    text = installed.run("eliza-ctypes generate", *generate)
    if not text.removeprefix(PROMPT).startswith(ANSWER):
        problems.append(f"{PROMPT!r} is continued with {text!r}, not {ANSWER!r}")
    fail_with(wheel, problems)


def add_test_tools(installed: Installed) -> None:
    """Those of the running environment, behind what is installed."""
    (tools,) = Path(sys.prefix).glob("lib/python*/site-packages")
    (installed.packages / "test-tools.pth").write_text(f"{tools}\n")


def pytest_command(installed: Installed, junit: Path) -> list[str]:
    """pytest on the installed package; the tests are the checkout's, the package is not."""
    add_test_tools(installed)
    where = "import eliza_ctypes; print(eliza_ctypes.__file__)"
    found = installed.run("import", installed.python, "-c", where).strip()
    if installed.packages not in Path(found).parents:
        raise Failure(f"the tests would import {found}, not what was installed")
    pytest = [installed.python, "-m", "pytest", "-q", "-m", QUICK, "-p", "no:cacheprovider"]
    pytest += ["-c", CHECKOUT / "pyproject.toml", "--rootdir", CHECKOUT]
    pytest += [f"--timeout={TEST_SECONDS}", f"--junitxml={junit}", CHECKOUT / "tests" / "py"]
    return isolation.command(*pytest)


def pytest_settings(wheel: Wheel, installed: Installed) -> dict[str, str]:
    library = installed.packages / wheel.inside(wheel.library)
    programs = (installed.programs, isolation.tools(installed.environment.parent / "tools"))
    return {
        **isolation.settings(installed.home, *programs),
        "ELIZA_INFERENCE_LIBRARY": str(library),
        **given_models(Path(sys.executable)),
    }
