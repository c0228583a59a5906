"""Which check a file is for: told by what it holds, and for sources by its name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Iterator

from . import CheckPackagesMissing
from .binary import check_library
from .header import check_header
from .image import format_of
from .probe import check_layout_with_compiler
from .report import Report
from .table import Table

# What is built, downloaded or generated, whatever the language.
_SKIPPED = frozenset({"build", "dist", "node_modules", "out", "Pods", "target", "__pycache__"})
# A C file of somebody's binding may include the ABI's header, but does not do these.
_HEADER_SIGNS = re.compile(
    rb"^\s*#\s*define\s+ELIZA_(INFERENCE_(ABI_VERSION|API)|OK)\b"
    rb"|\beliza_inference_abi_version\s*\(\s*(void)?\s*\)\s*;",
    re.MULTILINE,
)


def check_path(path: Path, table: Table, compiler: str | None = None) -> Iterator[Report]:
    """Checks a file, or what there is to check in a folder.

    With a compiler, headers are also compiled. Raises OSError, CheckPackagesMissing.
    """
    if path.is_dir():
        yield from _folder(path, table, compiler)
        return
    report = _check(path, table, compiler, given=True)
    if report is None:
        report = Report(str(path))
        report.cannot_judge("no header, library, or source in a language that can be read")
    elif not _says_something(report):
        report.cannot_judge("nothing in it has to do with the ABI")
    yield report


def _folder(folder: Path, table: Table, compiler: str | None) -> Iterator[Report]:
    """Headers and sources that have to do with the ABI; those that do not are passed over."""
    found = False
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED and not name.startswith(".")
        )
        for name in sorted(names):
            path = Path(place, name)
            report = _check(path, table, compiler, given=False) if path.is_file() else None
            if report is not None and _says_something(report):
                found = True
                yield report
    if not found:
        report = Report(str(folder))
        report.cannot_judge("no source in it that can be read has to do with the ABI")
        yield report


def _says_something(report: Report) -> bool:
    return bool(report.judged or report.problems or report.unjudged)


def _check(path: Path, table: Table, compiler: str | None, given: bool) -> Report | None:
    """None for a file that no check is for. Libraries are checked where they are named only."""
    if given and format_of(_head(path)) is not None:
        return check_library(path, table)
    if path.suffix == ".h" and _is_header(path, given):
        report = check_header(path, table)
        if compiler is not None:
            compiled = check_layout_with_compiler(path, table, compiler)
            report.problems += compiled.problems
            report.judged += compiled.judged
        return report
    return _consumer(path, table) if _can_read(path) else None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def _is_header(path: Path, given: bool) -> bool:
    """Whether a ``.h`` file declares the ABI, and is not a binding in C."""
    return bool(_HEADER_SIGNS.search(path.read_bytes())) or (given and not _can_read(path))


def _can_read(path: Path) -> bool:
    from .consumers import can_read

    return can_read(path)


def _consumer(path: Path, table: Table) -> Report:
    from .consumers import check_consumer

    try:
        return check_consumer(path, path.read_bytes(), table)
    except ImportError as error:
        raise CheckPackagesMissing(error.name or str(error)) from None
