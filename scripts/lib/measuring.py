"""What every benchmark shares: running the tools, medians, the machine, the printed table."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Union

from rich.console import Console
from rich.table import Table

from lib.assets import ASSETS
from lib.building import CHECKOUT, Build, build
from lib.bundles import python_environment
from lib.console import run, say

Report = dict[str, dict[str, Union[float, str]]]
TOOLS = CHECKOUT / "tests" / "tools"


def build_for_measuring(*options: str, folder: str = "release") -> Build:
    """The release build with its tools; streams get every processor and a fixed seed.

    A build with further options has a folder of its own.
    """
    for name in [name for name in os.environ if name.startswith("ELIZA_LLM_")]:
        del os.environ[name]
    os.environ.update(ELIZA_LLM_THREADS=str(threads()), ELIZA_LLM_SEED="1")
    return build(["-DELIZA_BUILD_TOOLS=ON", *options], CHECKOUT / "build" / folder)


def llama_cpp_program(made: Build, name: str) -> Path:
    """A program of llama.cpp itself, of the same build; nothing but benchmarks compiles it."""
    return build([], made.directory, target=name).program(name)


def threads() -> int:
    return os.cpu_count() or 1


class Measurements:
    """The values of all rounds by name; a report has their medians."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.ratios: dict[str, list[float]] = {}
        self.figures: dict[str, list[float]] = {}

    def __iter__(self) -> Iterator[int]:
        for number in range(self.rounds):
            say(f"round {number + 1} of {self.rounds}")
            yield number

    def ratio(self, **values: float) -> None:
        for name, value in values.items():
            self.ratios.setdefault(name, []).append(value)

    def figure(self, **values: float | Sequence[float]) -> None:
        for name, value in values.items():
            several = value if isinstance(value, Sequence) else [value]
            self.figures.setdefault(name, []).extend(several)

    def report(self, made: Build) -> Report:
        return {
            "ratios": {name: round(statistics.median(v), 4) for name, v in self.ratios.items()},
            "figures": {name: round(statistics.median(v), 3) for name, v in self.figures.items()},
            "machine": machine(made),
        }


def abi_decode(
    made: Build, bundle: Path, *arguments: object, library: Path | None = None
) -> dict[str, Any]:
    """What tests/tools/abi_decode.c prints of the library of `made`, or of another one."""
    command = [made.program("abi_decode"), library or made.library, bundle, *arguments]
    result: dict[str, Any] = json.loads(run(command, "abi_decode"))
    return result


def python_tool(made: Build, name: str, *arguments: object, python: object = sys.executable) -> Any:
    """What the program `name` of tests/tools prints."""
    return json.loads(run([python, TOOLS / name, *arguments], name, python_environment(made)))


def import_ms(made: Build, module: str, python: object = sys.executable) -> float:
    """Importing `module` in a new interpreter, less the interpreter itself."""
    env = python_environment(made)

    def seconds(code: str) -> float:
        start = time.perf_counter()
        run([python, "-c", code], "python", env)
        return time.perf_counter() - start

    return (seconds(f"import {module}") - seconds("pass")) * 1e3


def machine(made: Build) -> dict[str, float | str]:
    settings = made.settings()
    package = ASSETS["llama.cpp"].packages[0]
    return {
        "date": date.today().isoformat(),
        "cpu": _cpu(),
        "cores": threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "compiler": settings.get("CMAKE_CXX_COMPILER", ""),
        "build_type": settings.get("CMAKE_BUILD_TYPE", ""),
        "llama_cpp": f"{package.name} {package.version}",
        "library_mb": round(made.library.stat().st_size / 1e6, 2),
    }


def print_report(title: str, report: Mapping[str, Mapping[str, float | str]]) -> None:
    table = Table("", "", title=title, show_header=False)
    table.columns[1].justify = "right"
    for section, values in report.items():
        table.add_section()
        table.add_row(f"[bold]{section}", "")
        for name, value in values.items():
            table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else str(value))
    Console().print(table)


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.*)", path.read_text()) if path.exists() else None
    return match[1] if match else platform.processor()
