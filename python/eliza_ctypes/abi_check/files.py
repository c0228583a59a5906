"""Which check a file is for: told by what it holds, and for sources by its name."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Iterator

from . import CheckPackagesMissing
from .binary import check_library
from .header import check_header
from .image import format_of
from .probe import check_layout_with_compiler
from .reading import as_utf8, open_regular, reason, wide_encoding
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

    With a compiler, headers are also compiled. A file that cannot be read is a problem, and does
    not keep the others from being checked. Raises CheckPackagesMissing.
    """
    if os.path.isdir(path):
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
    unread: list[OSError] = []
    for place, folders, names in os.walk(folder, onerror=unread.append):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED and not name.startswith(".")
        )
        for name in sorted(names):
            path = Path(place, name)
            report = _check(path, table, compiler, given=False) if _may_be_file(path) else None
            if report is not None and _says_something(report):
                found = True
                yield report
    for error in unread:
        report = Report(str(error.filename))
        report.problem(f"cannot be read: {reason(error)}")
        yield report
    if not found and not unread:
        report = Report(str(folder))
        report.cannot_judge("no source in it that can be read has to do with the ABI")
        yield report


def _may_be_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        # A link to nothing.
        return False
    except OSError:
        # Reading it will say why it cannot be read.
        return True


def _says_something(report: Report) -> bool:
    return bool(report.judged or report.problems or report.unjudged)


def _check(path: Path, table: Table, compiler: str | None, given: bool) -> Report | None:
    """None for a file that no check is for."""
    try:
        return _judge(path, table, compiler, given)
    except CheckPackagesMissing:
        raise
    except OSError as error:
        why = f"cannot be read: {reason(error)}"
    except Exception as error:
        # Whatever a stranger's file makes of the checks: the next one is not to blame.
        why = f"cannot be checked: {type(error).__name__}: {error}"
    report = Report(str(path))
    report.problem(why)
    return report


def _judge(path: Path, table: Table, compiler: str | None, given: bool) -> Report | None:
    """Libraries are checked where they are named only."""
    if given and format_of(_content(path, 8)) is not None:
        return check_library(path, table)
    if path.suffix == ".h":
        content = _content(path)
        if _is_header(content):
            return _header(path, content, table, compiler)
    return _consumer(path, table) if _can_read(path) else None


def _content(path: Path, size: int = -1) -> bytes:
    with open_regular(path) as file:
        return file.read(size)


def _is_header(content: bytes) -> bool:
    """Whether a ``.h`` file declares the ABI, and is not a binding in C."""
    try:
        return bool(_HEADER_SIGNS.search(as_utf8(content)))
    except UnicodeDecodeError:
        return False


def _header(path: Path, content: bytes, table: Table, compiler: str | None) -> Report:
    encoding = wide_encoding(content)
    if encoding is not None:
        report = Report(str(path))
        report.problem(f"is {encoding[:6].upper()}, which compilers of C do not read")
        return report
    report = check_header(path, table)
    if compiler is not None:
        compiled = check_layout_with_compiler(path, table, compiler)
        report.problems += compiled.problems
        report.judged += compiled.judged
        report.compiled = True
    return report


def _can_read(path: Path) -> bool:
    from .consumers import can_read

    return can_read(path)


def _consumer(path: Path, table: Table) -> Report:
    from .consumers import check_consumer

    try:
        return check_consumer(path, _content(path), table)
    except ImportError as error:
        raise CheckPackagesMissing(error.name or str(error)) from None
