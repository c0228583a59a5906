"""Compares what a consumer says about functions, callbacks and calls with the table."""

from __future__ import annotations

from typing import Hashable, NamedTuple, Optional, Sequence

from ..table import Kind, Parameter, Signature
from .findings import Findings

LONG_DOUBT = "a long has 32 bits on Windows and 64 elsewhere"


class Type(NamedTuple):
    """A type as a consumer wrote it, and how a value of it travels."""

    written: str
    kind: Optional[Kind] = None
    """None where that cannot be told."""
    signed: bool = True
    doubt: str = ""
    """Why it cannot be told."""
    line: int = 0
    """Where it is written, if that is known."""
    by_value: bool = False
    """Whether it is a structure itself, which the ABI passes nowhere."""


class Binding(NamedTuple):
    """What a consumer says about one function. None stands for what cannot be read."""

    returns: Optional[Type]
    parameters: Optional[Sequence[Type]]
    line: int
    variadic: bool = False
    bound_at: int = 0
    """The line where the name is bound, if the types are written elsewhere."""


def judge_function(findings: Findings, name: str, binding: Binding, group: Hashable = None) -> None:
    """Judge a bound function, whose name may be unknown."""
    if not findings.bound(name, binding.line, group):
        return
    if binding.returns is None and binding.parameters is None:
        judge_name(findings, name, binding.line, group)
        return
    findings.count("functions", name)
    note_types(findings, findings.table.functions[name], binding)
    _judge(findings, findings.table.functions[name], binding)


def _say(findings: Findings, message: str, binding: Binding, line: int = 0) -> None:
    elsewhere = binding.bound_at and binding.bound_at != binding.line
    where = f" (bound on line {binding.bound_at})" if elsewhere else ""
    findings.problem(message + where, line or binding.line)


def judge_name(findings: Findings, name: str, line: int, group: Hashable = None) -> None:
    """Judge a function that is bound by its name, with nothing said about its types."""
    if findings.bound(name, line, group, is_looked_up=True):
        findings.count("names", name)


def judge_looked_up(
    findings: Findings,
    name: str,
    binding: Optional[Binding],
    line: int,
    group: Hashable = None,
    why: str = "the type that it is bound to is not clear",
) -> None:
    """Judge a function that is looked up by its name; ``why`` says what a missing binding lacks."""
    if not findings.bound(name, line, group, is_looked_up=True):
        return
    if binding is not None:
        judge_function(findings, name, binding, group)
    else:
        findings.count("names", name)
        findings.unclear(name, why, line)


def judge_callback(findings: Findings, name: str, binding: Binding) -> None:
    findings.count("# callback#", name)
    note_types(findings, findings.table.callbacks[name], binding)
    _judge(findings, findings.table.callbacks[name], binding)


def judge_call(findings: Findings, name: str, count: int, line: int) -> None:
    """Judge the number of arguments of a call of a function of the table."""
    signature = findings.table.functions[name]
    findings.count("the argument count# of # call#", (name, line))
    if count != len(signature.parameters):
        findings.problem(
            f"{name} is called with {_number(count, 'argument')}; "
            f"the table has {_listed(signature)}",
            line,
        )


def note_types(findings: Findings, signature: Signature, binding: Binding) -> None:
    """Note which of the source's types are the structures and the callbacks of the table."""
    for mine, parameter in zip(binding.parameters or (), signature.parameters):
        findings.stands_for(mine.written, parameter.type)


def _judge(findings: Findings, signature: Signature, binding: Binding) -> None:
    if binding.returns is not None:
        _judge_return(findings, signature, binding.returns, binding)
    if binding.parameters is not None:
        _judge_parameters(findings, signature, binding)


def _judge_return(
    findings: Findings, signature: Signature, returns: Type, binding: Binding
) -> None:
    wanted = signature.return_kind
    if returns.kind is None:
        where = returns.line or binding.line
        findings.cannot_judge(f"{signature.name}: the return type {_doubtful(returns)}", where)
    elif not returns.kind.travels_as(wanted):
        _say(
            findings,
            f"{signature.name} returns {_spelled(returns)}; "
            f"the table says {signature.returns}, {_how(wanted)}",
            binding,
            returns.line,
        )
    elif wanted is Kind.INT32 and not returns.signed:
        _say(
            findings,
            f"{signature.name} returns {returns.written}, in which negative error codes are lost; "
            f"the table says {signature.returns}",
            binding,
            returns.line,
        )


def _judge_parameters(findings: Findings, signature: Signature, binding: Binding) -> None:
    written = binding.parameters or ()
    if len(written) != len(signature.parameters):
        _say(
            findings,
            f"{signature.name} is bound with {_number(len(written), 'parameter')}; "
            f"the table has {_listed(signature)}",
            binding,
        )
        return
    if binding.variadic:
        _say(findings, f"{signature.name} is bound with variable arguments", binding)
    for position, (mine, parameter) in enumerate(zip(written, signature.parameters), 1):
        what = f"{signature.name}: parameter {position}"
        what += f" ({parameter.name})" if parameter.name else ""
        if mine.by_value:
            _say(
                findings,
                f"{what} is {mine.written}, a structure by value; "
                f"the table says {parameter.type}, {_how(parameter.kind)}",
                binding,
                mine.line,
            )
        elif mine.kind is None:
            where = mine.line or binding.line
            findings.cannot_judge(f"{what}: the type {_doubtful(mine)}", where)
        elif not mine.kind.travels_as(parameter.kind) or _is_swapped(mine.kind, parameter):
            _say(
                findings,
                f"{what} is {_spelled(mine)}; "
                f"the table says {parameter.type}, {_how(parameter.kind)}",
                binding,
                mine.line,
            )


def _is_swapped(kind: Kind, parameter: Parameter) -> bool:
    """Whether a pointer stands where a size is passed: most likely two arguments are swapped.

    An address may well be held in an integer, but a size in no pointer; except where a callback
    gets it, which some languages can take as a number only so.
    """
    return bool(parameter.name) and kind is Kind.POINTER and parameter.kind is not Kind.POINTER


def _listed(signature: Signature) -> str:
    names = [parameter.name or parameter.type for parameter in signature.parameters]
    return f"{len(names)}: {', '.join(names)}" if names else "none"


def _number(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def _how(kind: Kind) -> str:
    return "nothing" if kind is Kind.VOID else kind.value


def _spelled(written: Type) -> str:
    """``usize, a 64-bit integer``."""
    how = _how(written.kind) if written.kind is not None else ""
    return f"{written.written}, {how}"


def _doubtful(written: Type) -> str:
    reason = f": {written.doubt}" if written.doubt else ""
    return f"{written.written or '?'} is not known here{reason}"
