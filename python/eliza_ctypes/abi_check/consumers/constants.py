"""Compares constants and structure sizes that a consumer writes down with the table."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from ..table import Struct
from . import naming
from .findings import Findings


class Member(NamedTuple):
    """A member of an enumeration, a class or an object."""

    name: str
    value: int
    line: int


def judge_constant(findings: Findings, name: str, value: int, line: int) -> None:
    """Judge a constant by its own name; one that means nothing here is passed over."""
    known = naming.constant_named(name, findings.table)
    if known is not None:
        _judge(findings, name, known, value, line)
    elif name.startswith("ELIZA_ERR_"):
        findings.cannot_judge(f"ABI {findings.table.version} has no constant {name}", line)
    elif name.endswith("ELIZA_INFERENCE_ABI_VERSION") and value != findings.table.version:
        findings.cannot_judge(
            f"{name} is {value}; this is the table of ABI {findings.table.version}", line
        )
    else:
        struct = naming.struct_sized(name, findings.table)
        if struct is not None and struct.name in findings.topics:
            judge_size(findings, struct, value, line, name)


def judge_members(findings: Findings, container: str, members: Sequence[Member]) -> None:
    """Judge the members of a container such as ``enum ElizaStatus``.

    Members with looser names count as constants of the ABI where most of them have its values.
    """
    meant = [
        (member, known)
        for member in members
        if naming.constant_named(member.name, findings.table) is None
        for known in [naming.constant_in(container, member.name, findings.table)]
        if known is not None
    ]
    right = [1 for member, known in meant if member.value == findings.table.constants[known]]
    if len(right) > 1 and 2 * len(right) > len(meant):
        for member, known in meant:
            name = f"{container}.{member.name}"
            _judge(findings, name, known, member.value, member.line)
    elif not meant:
        judge_loose(findings, container, members)
    for member in members:
        judge_constant(findings, member.name, member.value, member.line)


def judge_loose(findings: Findings, container: str, members: Sequence[Member]) -> None:
    """Judge constants such as ``ERR_CANCELLED`` that nothing around them calls the ABI's.

    They count as its constants where most of those beside them are, by name and by value.
    """
    for beside in (members, [member for member in members if naming.is_error(member.name)]):
        meant = [
            (member, known)
            for member in beside
            if naming.constant_named(member.name, findings.table) is None
            for known in [naming.constant_meant(member.name, findings.table)]
            if known is not None
        ]
        if 2 * len(meant) > len(beside):
            break
    else:
        return
    wanted = findings.table.constants
    right = [known for member, known in meant if member.value == wanted[known]]
    # Everything that is in order is 0, also elsewhere.
    telling = sum(wanted[known] != 0 for known in right)
    if telling > 1 and 2 * len(right) > len(meant):
        for member, known in meant:
            name = f"{container}.{member.name}" if container else member.name
            _judge(findings, name, known, member.value, member.line)
    elif telling:
        for member, known in meant:
            if member.value != wanted[known]:
                findings.cannot_judge(
                    f"{member.name} is {member.value}; whether {known} is meant, "
                    f"{wanted[known]}, is not clear",
                    member.line,
                )


def judge_size(findings: Findings, struct: Struct, size: int, line: int, name: str) -> None:
    """Judge what a consumer takes for the size of a structure, or makes room for."""
    later = {struct.size, struct.size + 8} if struct.name == naming.CONFIG else {struct.size}
    findings.first(struct.name, size)
    if size < struct.size:
        findings.problem(
            f"{name} is {size} bytes; the table says {struct.size} for {struct.name}", line
        )
    elif size > struct.size and size not in later:
        findings.cannot_judge(
            f"{name} is {size} bytes, more than the {struct.size} of {struct.name}", line
        )
    findings.count("the size# of # structure#", struct.name)


def _judge(findings: Findings, name: str, known: str, value: int, line: int) -> None:
    findings.count("# constant#", known)
    wanted = findings.table.constants[known]
    if value != wanted:
        which = "" if name == known else f" for {known}"
        findings.problem(f"{name} is {value}; the table says {wanted}{which}", line)
