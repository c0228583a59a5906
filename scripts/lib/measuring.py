"""What every benchmark shares: the machine's description and the printed table."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Union

from rich.console import Console
from rich.table import Table

from lib.assets import ASSETS
from lib.building import Build

Report = dict[str, dict[str, Union[float, str]]]


def machine(made: Build) -> dict[str, float | str]:
    settings = made.settings()
    package = ASSETS["llama.cpp"].packages[0]
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
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
