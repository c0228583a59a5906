"""Compares a consumer's copy of a structure with the table."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from ..table import Kind, Struct, StructField
from . import naming
from .constants import judge_size
from .findings import Findings
from .signatures import Type


class Member(NamedTuple):
    """A field of a consumer's structure."""

    name: str
    type: Type
    line: int
    elements: int = 1
    """More than one for an array."""
    offset: Optional[int] = None
    """Where the consumer says so; else it follows from the fields before by C's rules."""


class Mirror(NamedTuple):
    """Which structure of the table a consumer's structure is a copy of."""

    struct: Struct
    certain: bool
    """Whether by its whole name or by where it is passed; else by what its fields are called."""


def mirrored(
    findings: Findings, name: str, fields: Sequence[str], line: int, is_for_c: bool
) -> Optional[Mirror]:
    """The structure that one of this name, with these fields, is a copy of.

    ``is_for_c`` says that the source holds it as C does; else it may be a consumer's own options.
    """
    similar, exact = naming.struct_mirrored(name, findings.table)
    if similar is not None and exact:
        return Mirror(similar, True)
    passed = findings.struct_passed(name)
    if passed is not None and name not in ("void", "c_void"):
        if names_most(passed, fields):
            return Mirror(passed, True)
        if fields:
            why = f"its fields are not called as those of {passed.name}"
            not_judged(findings, name, why, line)
        return None
    if similar is not None:
        return Mirror(similar, False) if names_most(similar, fields) else None
    for struct in findings.table.structs.values():
        known = {naming.field_named(each, struct) for each in fields} - {None}
        many = len(known) >= _MANY or 2 * len(known) > len(struct.fields)
        # Where the structure itself is used, one of like fields is no copy that anything gets.
        used = is_for_c or struct.name not in findings.own_structs
        if many and used and names_most(struct, fields):
            return Mirror(struct, False)
    return None


def not_judged(findings: Findings, name: str, why: str, line: int) -> None:
    findings.cannot_judge(f"the structure {name} is not judged: {why}", line)


_MANY = 10
"""Fields of one structure, in a structure of any other name."""


def names_most(struct: Struct, fields: Sequence[str]) -> bool:
    """Whether at least half of a structure's fields are called as those of the table's."""
    known = [each for each in fields if naming.field_named(each, struct) is not None]
    return bool(known) and 2 * len(known) >= len(fields)


def judge_layout(
    findings: Findings, struct: Struct, members: Sequence[Member], line: int, written: str
) -> None:
    """Judge fields in the order of the source. ``written`` is the structure's name there."""
    end, align, shift = 0, 1, 0
    seen, places = set(), set()
    for member in members:
        kind = member.type.kind
        if kind is None or kind is Kind.VOID:
            findings.cannot_judge(
                f"{written}.{member.name}: the size of {member.type.written or '?'} is not known "
                f"here; the fields from there on are not judged",
                member.line,
            )
            return
        offset = -(-end // kind.size) * kind.size if member.offset is None else member.offset
        places.add(offset)
        known = naming.field_named(member.name, struct)
        if known is not None:
            seen.add(known.name)
            shift = _judge_known(findings, known, member, kind, offset, shift, written)
        else:
            _judge_unknown(findings, struct, member, kind, offset, written)
        findings.count(f"# field# of {struct.name}", (member.name, member.line))
        end = offset + kind.size * member.elements
        align = max(align, kind.size)
    missing = [f.name for f in struct.fields if f.name not in seen and f.offset >= end]
    size = -(-end // align) * align
    if missing:
        findings.problem(f"{written} ends before {', '.join(missing)}", line)
    elif all(member.offset is None for member in members):
        padded = [f.name for f in struct.fields if f.name not in seen and f.offset not in places]
        if padded and shift == 0:
            findings.problem(f"{written} has padding in place of {', '.join(padded)}", line)
        judge_size(findings, struct, size, line, written)


def _judge_known(
    findings: Findings,
    known: StructField,
    member: Member,
    kind: Kind,
    offset: int,
    shift: int,
    written: str,
) -> int:
    """Judge a field of the table; the shift from its place there, which many may share."""
    name = f"{written}.{member.name}"
    if not kind.travels_as(known.kind) or member.elements != 1:
        findings.problem(
            f"{name} is {_spelled(member, kind)}; the table says {known.type}, {known.kind.value}",
            member.line,
        )
    if offset - known.offset not in (0, shift):
        findings.problem(
            f"{name} is at offset {offset}; the table says {known.offset}", member.line
        )
    return offset - known.offset


def _judge_unknown(
    findings: Findings, struct: Struct, member: Member, kind: Kind, offset: int, written: str
) -> None:
    """Judge a field of another name, which is right where it only renames one of the table."""
    name = f"{written}.{member.name}"
    if offset >= struct.size:
        later = struct.name == naming.CONFIG and naming.key(member.name) == naming.key(
            naming.LATER_FIELD
        )
        if not later or kind is not Kind.INT32 or offset != struct.size:
            findings.cannot_judge(
                f"{name} at offset {offset} lies behind the {struct.size} bytes of {struct.name}",
                member.line,
            )
        return
    at = next((f for f in struct.fields if f.offset == offset), None)
    if at is None:
        findings.problem(f"{name} is at offset {offset}, where no field begins", member.line)
    elif not kind.travels_as(at.kind) or member.elements != 1:
        findings.problem(
            f"{name} is {_spelled(member, kind)} at offset {offset}; "
            f"the table has {at.name} there, {at.kind.value}",
            member.line,
        )


def _spelled(member: Member, kind: Kind) -> str:
    many = f", {member.elements} times" if member.elements != 1 else ""
    return f"{member.type.written}, {kind.value}{many}"
