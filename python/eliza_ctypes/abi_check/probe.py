"""A C header against the table, judged by the compiler that will read it.

Where ``header`` parses, this asks: one C file of assertions, one on each line, is compiled without
making any code. What the compiler rejects names the line, and the line names the assertion. The
last one is false: a compiler that does not reject it does not judge.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator, NamedTuple

from .header import constants_of
from .reading import open_regular
from .report import Report
from .table import Signature, Struct, Table

_SECONDS = 60
_ERROR = re.compile(
    r"(?P<file>.+?):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.*)", re.MULTILINE
)


class _Assertion(NamedTuple):
    c: str
    """A constant expression, true where the header agrees with the table."""
    meaning: str


def check_layout_with_compiler(
    header: str | os.PathLike[str], table: Table, compiler: str
) -> Report:
    """Compiles assertions on sizes, offsets, constants and types.

    ``compiler`` is a command that takes gcc's options, with options of its own if need be. Raises
    OSError for a header that cannot be read.
    """
    report = Report(str(header))
    path = Path(header).resolve()
    open_regular(path).close()
    assertions = list(_assertions(table))
    lines = [
        "#include <stddef.h>",
        *(f'_Static_assert({each.c}, "{each.meaning}");' for each in assertions),
        '_Static_assert(0, "a false assertion");',
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "abi_check.c"
        source.write_text("\n".join(lines) + "\n", "utf-8")
        try:
            command = [*_split(compiler), "-std=c11", "-w", "-fmax-errors=0", "-fsyntax-only"]
            done = subprocess.run(
                [*command, "-include", str(path), str(source)],
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=_SECONDS,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            report.problem(f"{compiler} takes more than {_SECONDS} s")
            return report
        except (OSError, ValueError) as error:
            report.problem(f"{compiler} does not run: {getattr(error, 'strerror', None) or error}")
            return report
    # The first line includes offsetof; the assertions follow it.
    by_line = {line: assertion.meaning for line, assertion in enumerate(assertions, 2)}
    judged = False
    for match in _ERROR.finditer(done.stderr):
        line = int(match["line"])
        if Path(match["file"]) == path:
            report.problem(f"does not compile with {compiler}: {match['message']}", line)
        elif match["file"] == str(source) and line != 1:
            judged = True
            meaning = by_line.pop(line, None)
            if meaning is not None:
                report.problem(f"{compiler} denies that {meaning}")
        else:
            report.problem(f"does not compile with {compiler}: {match[0]}")
    if judged:
        report.judged.append(f"{len(assertions)} assertions by {compiler}")
    elif done.returncode == 0:
        report.problem(f"{compiler} judges nothing: it accepts a false assertion")
    elif not report.problems:
        said = " ".join(done.stderr.split())[:500] or "without a message"
        report.problem(f"{compiler} failed with exit status {done.returncode}: {said}")
    return report


def _split(compiler: str) -> list[str]:
    """A name or path as it is, else a command with options such as ``zig cc``."""
    return [compiler] if shutil.which(compiler) else shlex.split(compiler) or [compiler]


def _assertions(table: Table) -> Iterator[_Assertion]:
    for name, value in constants_of(table).items():
        yield _Assertion(f"({name}) == ({value})", f"{name} is {value}")
    for struct in table.structs.values():
        yield from _layout(struct)
    for callback in table.callbacks.values():
        declared = _pointer_to(callback)
        expression = f"_Generic(({callback.name})0, {declared}: 1, default: 0)"
        yield _Assertion(expression, f"{callback.name} is {declared}")
    for name in table.opaque:
        expression = f"_Generic(({name} **)0, struct {name} **: 1, default: 0)"
        yield _Assertion(expression, f"{name} is a structure")
    for function in table.functions.values():
        declared = _pointer_to(function)
        expression = f"_Generic(&{function.name}, {declared}: 1, default: 0)"
        yield _Assertion(expression, f"{function.name} is {declared}")


def _layout(struct: Struct) -> Iterator[_Assertion]:
    name = struct.name
    yield _Assertion(f"sizeof({name}) == {struct.size}", f"{name} takes {struct.size} bytes")
    yield _Assertion(
        f"_Alignof({name}) == {struct.align}", f"{name} is aligned to {struct.align} bytes"
    )
    for field in struct.fields:
        yield _Assertion(
            f"offsetof({name}, {field.name}) == {field.offset}",
            f"{name}.{field.name} is at offset {field.offset}",
        )
        yield _Assertion(
            f"_Generic(&(({name} *)0)->{field.name}, {field.type} *: 1, default: 0)",
            f"{name}.{field.name} is {field.type}",
        )


def _pointer_to(function: Signature) -> str:
    parameters = ", ".join(parameter.type for parameter in function.parameters)
    return f"{function.returns} (*)({parameters or 'void'})"
