"""``abi-check``: headers, libraries and bindings against the ABI table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

from .. import abi
from ..errors import ElizaError
from ..loader import locate
from .common import PROGRAM, fail, path_of, refuse

# `abi_check` is imported where it runs: the other commands start without it.
if TYPE_CHECKING:
    from ..abi_check.report import Finding, Report
    from ..abi_check.table import Table


def add_abi_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="a header, a library, the source of a binding, or a folder of sources; "
        "else the library that this package loads, and the package's own declarations",
    )
    parser.add_argument("--table", metavar="FILE", help="the ABI table, instead of the packaged")
    parser.add_argument(
        "--compiler", metavar="CC", help="have this C compiler check the headers as well"
    )
    parser.add_argument(
        "--declarations", action="store_true", help="this package's declarations, besides FILEs"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_abi_check(arguments: argparse.Namespace) -> int:
    """Prints a block for each thing that was checked; problems make the status 1."""
    table = _table(arguments.table)
    paths = [path_of(name) for name in arguments.files]
    for path in paths:
        _require_there(path)
    if arguments.compiler is not None and not paths:
        refuse("--compiler goes with the FILE of a header")
    reports = []
    for report in _reports(arguments, table, paths):
        reports.append(report)
        if not arguments.json:
            _print(report)
    problems = sum(len(report.problems) for report in reports)
    nothing = not any(report.judged or report.problems for report in reports)
    if arguments.json:
        print(json.dumps(_as_json(reports, table), indent=2, ensure_ascii=False))
    else:
        found = "nothing could be judged" if nothing else _summary(reports, problems)
        print(f"{len(reports)} checked against ABI {table.version}: {found}")
    if arguments.compiler is not None and not any(report.compiled for report in reports):
        note = f"{arguments.compiler} had no header to compile"
        print(f"{PROGRAM}: note: {note}", file=sys.stderr)
    if nothing:
        return fail("nothing could be judged")
    return 1 if problems else 0


def _summary(reports: list[Report], problems: int) -> str:
    faulty = sum(not report.ok for report in reports)
    unjudged = sum(report.ok and not report.judged for report in reports)
    found = f"{_counted(problems)}, in {faulty} of them" if problems else _counted(problems)
    return f"{found}; {unjudged} not judged" if unjudged else found


def _require_there(path: Path) -> None:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        refuse(f"{path}: no such file or directory")
    except OSError:
        # It is there, and reported among the others.
        return


def _table(name: str | None) -> Table:
    from ..abi_check.reading import reason
    from ..abi_check.table import Table, read_table

    if name is None:
        return Table(abi.TABLE)
    path = path_of(name)
    try:
        return read_table(path)
    except OSError as error:
        refuse(f"--table {path}: {reason(error)}")
    except ValueError as error:
        refuse(f"--table {path}: {error}")


def _reports(arguments: argparse.Namespace, table: Table, paths: list[Path]) -> Iterator[Report]:
    from ..abi_check.binary import check_library
    from ..abi_check.declarations import check_declarations
    from ..abi_check.files import check_path
    from ..abi_check.report import Report

    if not paths and not arguments.declarations:
        try:
            yield check_library(locate(arguments.library), table)
        except ElizaError as error:
            report = Report("the library")
            report.problem(error.message)
            yield report
    for path in paths:
        yield from check_path(path, table, arguments.compiler)
    if not paths or arguments.declarations:
        yield check_declarations(table)


def _print(report: Report) -> None:
    count = len(report.problems)
    state = _counted(count) if count else "ok" if report.judged else "not judged"
    print(f"{report.subject}: {state}")
    if report.judged:
        print(f"  judged: {', '.join(report.judged)}")
    for finding in report.problems:
        print(f"  {_place(report, finding)}: {finding.message}")
    for finding in report.unjudged:
        print(f"  {_place(report, finding)}: not judged: {finding.message}")


def _counted(problems: int) -> str:
    return {0: "no problems", 1: "1 problem"}.get(problems, f"{problems} problems")


def _place(report: Report, finding: Finding) -> str:
    return report.subject if finding.line is None else f"{report.subject}:{finding.line}"


def _as_json(reports: list[Report], table: Table) -> dict[str, Any]:
    return {
        "abi_version": table.version,
        "ok": all(report.ok for report in reports) and any(report.judged for report in reports),
        "subjects": [
            {
                "subject": report.subject,
                "ok": report.ok,
                "judged": report.judged,
                "problems": [finding._asdict() for finding in report.problems],
                "unjudged": [finding._asdict() for finding in report.unjudged],
            }
            for report in reports
        ],
    }
