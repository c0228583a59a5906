"""Judges reads and writes by offset, the way of bindings without a structure type.

A reader of a language collects what it knows about each piece of memory. Whether that memory is
one of the table's structures is decided here, by its names, its size, its fields' names, and by
how well the accesses fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Sequence

from ..table import Kind, Struct, StructField
from . import naming
from .constants import judge_size
from .findings import Findings
from .offsets import judge_offset
from .syntax import word_set


class Access(NamedTuple):
    """One read or write."""

    line: int
    how: str
    """The method, as the consumer writes it."""
    kind: Optional[Kind]
    offset: Optional[int]
    """None where it cannot be told."""
    offset_names: Sequence[str] = ()
    """The constants that the offset is made of."""
    defined: Optional[int] = None
    """The line of the constant that alone is the offset."""
    value_names: Sequence[str] = ()
    """What is written, or what the value read becomes, where that has names."""
    comment: str = ""
    big_endian: bool = False
    writes: bool = True


@dataclass
class Memory:
    """One buffer, or what one parameter or variable points to."""

    names: list[str] = field(default_factory=list)
    """Of its variables and of its own type or size."""
    around: list[str] = field(default_factory=list)
    """Of the functions and classes in which it is used."""
    size: Optional[int] = None
    line: int = 0
    """Where its size is decided."""
    opens_a_stream: bool = False
    """Whether it is passed as the configuration of a stream."""
    accesses: list[Access] = field(default_factory=list)


# Evidence is added up: what a variable is called is not enough, what it is called and its size is.
_ENOUGH = 3


def judge_memory(findings: Findings, memory: Memory) -> None:
    scores = {
        struct.name: _evidence(findings, memory, struct)
        for struct in findings.table.structs.values()
    }
    best = max(scores, key=lambda name: scores[name])
    struct = findings.table.structs[best]
    tied = sum(score == scores[best] for score in scores.values()) > 1
    if scores[best] < _ENOUGH or tied:
        if scores[best] >= _ENOUGH - 1 and struct.name in findings.topics:
            _say_undecided(findings, memory)
        return
    # A view of what the library wrote may be of a part of it. A constant was judged already.
    writes = any(access.writes for access in memory.accesses)
    if memory.size is not None and writes and findings.first(struct.name, memory.size):
        name = next((n for n in memory.names if not naming.says_nothing(n)), "a buffer")
        judge_size(findings, struct, memory.size, memory.line, f"{name} for {struct.name}")
    for access in memory.accesses:
        _judge(findings, memory, struct, access)


def _evidence(findings: Findings, memory: Memory, struct: Struct) -> int:
    table = findings.table
    held = [naming.struct_held(name, table) for name in memory.names]
    others = [name for name in memory.names if not naming.says_nothing(name)]
    score = 0
    if memory.opens_a_stream and struct.name == naming.CONFIG:
        score += 3
    if struct in held or (
        not others and any(naming.struct_hinted(name, table) == struct for name in memory.around)
    ):
        score += 2
    if memory.size is not None:
        sizes = (struct.size, struct.size + 8 if struct.name == naming.CONFIG else struct.size)
        if memory.size in sizes and (not others or struct in held):
            score += 2
        elif memory.size < struct.size and struct not in held:
            score -= 2
    if others and struct not in held:
        score -= 1
    named = [_single([naming.field_held(n, struct) for n in _names(a)]) for a in memory.accesses]
    distinct = {each for each in named if each is not None}
    if 2 * len(distinct) >= len(memory.accesses):
        score += min(len(distinct), 2)
    fitting = [access for access in memory.accesses if _fits(access, struct)]
    if 2 * len(fitting) > len(memory.accesses):
        score += 1
    return score


def _names(access: Access) -> list[str]:
    return [*access.offset_names, *access.value_names]


def _fits(access: Access, struct: Struct) -> bool:
    at = _field_at(access.offset, struct)
    return at is not None and access.kind is not None and access.kind.travels_as(at.kind)


def _say_undecided(findings: Findings, memory: Memory) -> None:
    first = min(access.line for access in memory.accesses)
    name = memory.names[0] if memory.names else "memory"
    if all(access.offset is None for access in memory.accesses):
        findings.cannot_judge(f"the offsets in {name} are not constants", first)
    else:
        findings.cannot_judge(
            f"{name} is accessed by offset; whether it is a structure of the ABI is not clear",
            first,
        )


def _judge(findings: Findings, memory: Memory, struct: Struct, access: Access) -> None:
    if access.offset is None:
        findings.cannot_judge(
            f"{access.how}: the offset in {struct.name} is not a constant", access.line
        )
        return
    findings.count(f"# place# in {struct.name}", (access.line, access.offset))
    if access.big_endian:
        findings.problem(
            f"{access.how} at offset {access.offset} of {struct.name} is big-endian", access.line
        )
    means = _field_of_offset(access, struct)
    if means is not None and access.defined is not None:
        name = access.offset_names[0]
        judge_offset(findings, struct, means, access.offset, name, access.defined)
        _judge_kind(findings, struct, access, means)
        _judge_value(findings, struct, access, means)
        return
    at = _field_at(access.offset, struct)
    subject = means or _field_of_value(access, struct, at)
    if subject is not None and subject != at:
        _say_moved(findings, struct, access, subject, at)
    elif at is None:
        _judge_between(findings, memory, struct, access)
    elif not _is_half(memory, access, at):
        _judge_kind(findings, struct, access, at)


def _say_moved(
    findings: Findings,
    struct: Struct,
    access: Access,
    subject: StructField,
    at: Optional[StructField],
) -> None:
    here = f"where {at.name} is" if at is not None else "where no field begins"
    verb = "written" if access.writes else "read"
    findings.problem(
        f"{struct.name}.{subject.name} is {verb} at offset {access.offset}, {here}; "
        f"the table says {subject.offset}",
        access.line,
    )


def _judge_kind(findings: Findings, struct: Struct, access: Access, at: StructField) -> None:
    if access.kind is not None and not access.kind.travels_as(at.kind):
        verb = "written" if access.writes else "read"
        findings.problem(
            f"{struct.name}.{at.name} at offset {access.offset} is {verb} by {access.how}, "
            f"{access.kind.value}; the table says {at.type}, {at.kind.value}",
            access.line,
        )


def _judge_value(findings: Findings, struct: Struct, access: Access, at: StructField) -> None:
    subject = _field_of_value(access, struct, at)
    if subject is not None and subject != at:
        verb = "written" if access.writes else "read"
        findings.problem(
            f"{struct.name}.{subject.name} is {verb} at the offset of {at.name}", access.line
        )


def _judge_between(findings: Findings, memory: Memory, struct: Struct, access: Access) -> None:
    """Judge an access where no field of the table begins."""
    offset = access.offset or 0
    if offset >= struct.size:
        _judge_behind(findings, memory, struct, access, offset)
        return
    before = _field_at(offset - 4, struct)
    if before is not None and _is_half(memory, access, before):
        return
    findings.problem(
        f"{access.how} at offset {offset} of {struct.name}, where no field begins", access.line
    )


def _judge_behind(
    findings: Findings, memory: Memory, struct: Struct, access: Access, offset: int
) -> None:
    if memory.size is None:
        findings.cannot_judge(
            f"{access.how} at offset {offset}, behind the {struct.size} bytes of {struct.name}",
            access.line,
        )
    elif memory.size < struct.size:
        return
    elif struct.name != naming.CONFIG or memory.size < struct.size + 8 or offset != struct.size:
        findings.problem(
            f"{access.how} at offset {offset}; {struct.name} has {struct.size} bytes", access.line
        )
    elif access.kind is not None and access.kind is not Kind.INT32:
        findings.problem(
            f"{naming.LATER_FIELD} at offset {offset} is accessed by {access.how}, "
            f"{access.kind.value}; it is {Kind.INT32.value}",
            access.line,
        )


def _is_half(memory: Memory, access: Access, at: StructField) -> bool:
    """Whether this is one of two accesses to the halves of a 64-bit field."""
    if access.kind is not Kind.INT32 or at.kind.size != 8:
        return False
    halves = {
        a.offset for a in memory.accesses if a.kind is Kind.INT32 and a.writes == access.writes
    }
    return {at.offset, at.offset + 4} <= halves


def _field_at(offset: Optional[int], struct: Struct) -> Optional[StructField]:
    return next((each for each in struct.fields if each.offset == offset), None)


def _field_of_offset(access: Access, struct: Struct) -> Optional[StructField]:
    return _single([naming.field_at_offset_named(name, struct) for name in access.offset_names])


def _field_of_value(
    access: Access, struct: Struct, at: Optional[StructField]
) -> Optional[StructField]:
    """The field that the value's names or the comment mean, the one that is there before others."""
    found = [naming.field_held(name, struct) for name in access.value_names]
    if at is not None and at in found:
        return at
    return _single(found) or _single([naming.field_named(_plain(access.comment), struct)])


def _plain(comment: str) -> str:
    """A comment without what may stand beside a field's name: its offset and its type."""
    kept = [part for part in _SEPARATORS.sub(" ", comment).split() if _names_it(part)]
    return kept[0] if len(kept) == 1 else ""


def _names_it(part: str) -> bool:
    plain = part.strip("()[],.;@=+-<>\"'`").lower()
    return bool(plain) and not plain.isdigit() and plain not in _BESIDE and plain[:2] != "0x"


_SEPARATORS = re.compile(r"[*:./]")
_BESIDE = word_set("""
    bool byte bytes char const cstring f32 float float32 i32 i64 int int32 int32_t int64 offset
    off pad padding pointer ptr ptr64 size_t u32 u64 uint32 uint64 uint64_t usize void at cfg
    config field
    """)


def _single(found: Sequence[Optional[StructField]]) -> Optional[StructField]:
    fields = {each for each in found if each is not None}
    return fields.pop() if len(fields) == 1 else None
