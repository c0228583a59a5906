"""Judges what a consumer writes down about where the fields of a structure are."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from ..table import Struct, StructField
from . import naming
from .findings import Findings
from .signatures import Type


class Row(NamedTuple):
    """A row of a consumer's own table of a structure's fields."""

    name: str
    offset: int
    line: int
    type: Optional[Type] = None
    sure: bool = False
    """Whether the row itself says that the number is an offset."""


def judge_rows(findings: Findings, container: str, rows: Sequence[Row], total: int) -> None:
    """Judge rows that most likely say where fields are: some of ``total`` entries of a table.

    Where nothing calls them offsets they count as such if most of them are right.
    """
    for struct in findings.table.structs.values():
        known = [
            (row, at)
            for row in rows
            for at in [naming.field_at_offset_named(row.name, struct)]
            if at is not None
        ]
        right = sum(row.offset == at.offset for row, at in known)
        sure = naming.is_offset_name(container) or all(row.sure for row in rows)
        if len(known) < 2 or 2 * len(known) < total or not (sure or 2 * right > len(known)):
            continue
        for row, at in known:
            name = f"{container}.{row.name}" if container else row.name
            judge_offset(findings, struct, at, row.offset, name, row.line)
            _judge_type(findings, struct, at, row)


def judge_offset_constant(findings: Findings, name: str, offset: int, line: int) -> None:
    """Judge a constant such as ``OFF_SLOT_ID``; one that means no offset is passed over."""
    if not naming.is_offset_name(name):
        return
    for struct in findings.table.structs.values():
        known = naming.field_at_offset_named(name, struct)
        if known is not None and struct.name in findings.topics:
            judge_offset(findings, struct, known, offset, name, line)


def judge_offset(
    findings: Findings, struct: Struct, known: StructField, offset: int, name: str, line: int
) -> None:
    """Judge one statement about one field, once."""
    findings.count(f"# offset# of {struct.name}", known.name)
    if offset != known.offset and findings.first(known, line):
        findings.problem(
            f"{name} puts {struct.name}.{known.name} at offset {offset}; "
            f"the table says {known.offset}",
            line,
        )


def _judge_type(findings: Findings, struct: Struct, at: StructField, row: Row) -> None:
    kind = row.type.kind if row.type is not None else None
    if row.type is not None and kind is not None and not kind.travels_as(at.kind):
        findings.problem(
            f"{struct.name}.{at.name} is {row.type.written}, {kind.value}; "
            f"the table says {at.type}, {at.kind.value}",
            row.line,
        )
