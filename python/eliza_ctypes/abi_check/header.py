"""A C header against the table, read as each platform's compiler would read it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Iterator

from .header_view import CODES, HeaderView
from .reading import open_regular
from .report import Finding, Report
from .table import Signature, Struct, Table

TARGETS = (
    "x86_64-linux-gnu",
    "aarch64-linux-android",
    "arm64-apple-darwin",
    "x86_64-pc-windows-msvc",
)
VERSION = "ELIZA_INFERENCE_ABI_VERSION"


def check_header(path: str | os.PathLike[str], table: Table) -> Report:
    """Compares every declaration, constant and layout, on every platform in TARGETS.

    Raises OSError, CheckPackagesMissing.
    """
    report = Report(str(path))
    header = Path(path).resolve()
    open_regular(header).close()
    constants = constants_of(table)
    views = {target: HeaderView(header, constants, target) for target in TARGETS}
    views["C++"] = HeaderView(header, constants, TARGETS[0], "c++")
    found = {name: list(view.errors) for name, view in views.items()}
    # After some errors whatever follows would seem to be missing.
    if not any(view.broken_off for view in views.values()):
        if not any(view.declares_anything() for view in views.values()):
            report.problem("declares nothing of the ABI: not a header of this library?")
            return report
        for name, view in views.items():
            found[name] += _linkage(view) if name == "C++" else _differences(view, table)
        report.judged = _judged(views[TARGETS[0]], table)
    report.problems = _merged(found)
    return report


def constants_of(table: Table) -> dict[str, int]:
    """What a header defines: the table's constants, and its version."""
    return {**table.constants, VERSION: table.version}


def _judged(view: HeaderView, table: Table) -> list[str]:
    counts = (
        (view.functions.keys() & table.functions.keys(), "functions"),
        (view.constants.keys() & constants_of(table).keys(), "constants"),
        (view.typedefs.keys() & table.structs.keys(), "structures"),
        (view.typedefs.keys() & table.callbacks.keys(), "callbacks"),
        (view.typedefs.keys() & set(table.opaque), "opaque types"),
    )
    judged = [f"{len(names)} {what}" for names, what in counts if names]
    return [*judged, f"on {len(TARGETS)} platforms and as C++"] if judged else []


def _merged(found: dict[str, list[Finding]]) -> list[Finding]:
    """Each difference once, by line, with the platforms where not all of them have it."""
    views_of: dict[Finding, list[str]] = {}
    for name, findings in found.items():
        for finding in dict.fromkeys(findings):
            views_of.setdefault(finding, []).append(name)
    # What is wrong in C on every platform is not worth a remark about C++.
    everywhere = (list(found), list(found)[:-1])
    merged = [
        finding
        if views in everywhere
        else finding._replace(message=f"{finding.message} (on {', '.join(views)})")
        for finding, views in views_of.items()
    ]
    return sorted(merged, key=lambda finding: finding.line or 0)


def _differences(view: HeaderView, table: Table) -> Iterator[Finding]:
    """From the table, in no order."""
    yield from _standard_types(view, table)
    yield from _functions(view, table)
    yield from _constants(view, constants_of(table))
    yield from _types(view, table)


def _standard_types(view: HeaderView, table: Table) -> Iterator[Finding]:
    """A header that brings its own ``size_t`` and the like may mean something else by it."""
    unsigned = view.types.UINT, view.types.ULONG, view.types.ULONGLONG
    for name, cursor in view.scalars.items():
        actual = cursor.underlying_typedef_type.get_canonical()
        size = table.kind(name).size
        if actual.get_size() != size or (actual.kind in unsigned) != (name == "size_t"):
            wanted = f"{'an unsigned' if name == 'size_t' else 'a signed'} {8 * size}-bit integer"
            yield view.finding(cursor, f"{name} is `{actual.spelling}`, not {wanted}")


def _functions(view: HeaderView, table: Table) -> Iterator[Finding]:
    for name, wanted in table.functions.items():
        if name not in view.functions:
            yield Finding(f"{name} is missing: the table declares {_prototype(wanted)}")
        for cursor in view.functions.get(name, ()):
            for why in _function(view, cursor, wanted):
                yield view.finding(cursor, f"{name}: {why}")
    for name, cursors in view.functions.items():
        if name not in table.functions and not view.is_static(cursors[0]):
            yield view.finding(cursors[0], f"{name} is declared, but not in the table")


def _function(view: HeaderView, cursor: Any, wanted: Signature) -> Iterator[str]:
    if view.is_static(cursor):
        yield "is static: no library can supply it"
    returns = cursor.result_type.spelling
    if _plain(returns) != _plain(wanted.returns):
        yield f"returns `{returns}`, the table says `{wanted.returns}`"
    if cursor.type.kind != view.types.FUNCTIONPROTO:
        yield f"declares no argument list, the table says {_prototype(wanted)}"
        return
    if cursor.type.is_function_variadic():
        yield f"takes any number of arguments, the table says {_prototype(wanted)}"
    types = view.argument_types(cursor)
    names = [argument.spelling for argument in cursor.get_arguments()]
    if len(types) != len(wanted.parameters):
        shown = ", ".join(_declared(*each) for each in zip(types, names)) or "void"
        count = len(wanted.parameters)
        yield f"takes {len(types)} arguments, `{shown}`, not {count}: {_prototype(wanted)}"
        return
    for number, (kind, name, parameter) in enumerate(zip(types, names, wanted.parameters), 1):
        if (_plain(kind), name) != (_plain(parameter.type), parameter.name):
            yield (
                f"argument {number} is `{_declared(kind, name)}`, "
                f"the table says `{_declared(parameter.type, parameter.name)}`"
            )


def _linkage(view: HeaderView) -> Iterator[Finding]:
    """Functions that a C++ compiler would look for under another name."""
    cursors = [cursor for each in view.functions.values() for cursor in each]
    mangled = [cursor for cursor in cursors if cursor.mangled_name != cursor.spelling]
    if mangled:
        names = ", ".join(cursor.spelling for cursor in mangled[:3])
        more = f" and {len(mangled) - 3} more" if len(mangled) > 3 else ""
        yield view.finding(mangled[0], f'no extern "C" around {names}{more}')


def _constants(view: HeaderView, wanted: dict[str, int]) -> Iterator[Finding]:
    for name, value in wanted.items():
        found, cursor = view.constants.get(name, (None, None))
        if name not in view.constants:
            yield Finding(f"{name} is missing: the table says {value}")
        elif found not in (None, value):
            yield view.finding(cursor, f"{name} is {found}, the table says {value}")
    others = {**{name: cursor for name, (_, cursor) in view.constants.items()}, **view.macros}
    for name, cursor in others.items():
        if CODES.match(name) and name not in wanted:
            yield view.finding(cursor, f"{name} is defined, but not in the table")


def _types(view: HeaderView, table: Table) -> Iterator[Finding]:
    for name in (*table.structs, *table.callbacks, *table.opaque):
        if name in view.tags and name not in view.typedefs:
            why = f"{name} is no type name: `typedef struct {name} {name};` is missing"
            yield view.finding(view.tags[name], why)
        elif name not in view.typedefs:
            yield Finding(f"the type {name} is missing")
    named = set()
    for name, cursor in view.typedefs.items():
        actual = cursor.underlying_typedef_type.get_canonical()
        named.add(actual.get_declaration().get_usr())
        if name in table.structs:
            yield from _struct(view, cursor, table.structs[name])
        elif name in table.callbacks:
            yield from _callback(view, cursor, table.callbacks[name])
        elif name in table.opaque:
            yield from _opaque(view, cursor)
        elif view.is_interface(actual):
            yield view.finding(cursor, f"the type {name} is not in the table")
    for name, cursor in view.tags.items():
        if cursor.get_usr() not in named and name not in view.typedefs:
            yield view.finding(cursor, f"the type {name} is not in the table")


def _opaque(view: HeaderView, cursor: Any) -> Iterator[Finding]:
    actual = cursor.underlying_typedef_type.get_canonical()
    if actual.kind != view.types.RECORD:
        shown = f"`{cursor.underlying_typedef_type.spelling}`"
    elif actual.get_size() >= 0:
        shown = "a structure with fields"
    else:
        return
    yield view.finding(cursor, f"{cursor.spelling} is {shown}, the table says it is opaque")


def _callback(view: HeaderView, cursor: Any, wanted: Signature) -> Iterator[Finding]:
    arguments = ", ".join(parameter.type for parameter in wanted.parameters)
    declared = f"{wanted.returns} (*)({arguments or 'void'})"
    actual = cursor.underlying_typedef_type.spelling
    if _plain(actual) != _plain(declared):
        why = f"{wanted.name} is `{actual}`, the table says `{declared}`"
        yield view.finding(cursor, why)


def _struct(view: HeaderView, cursor: Any, wanted: Struct) -> Iterator[Finding]:
    actual = cursor.underlying_typedef_type.get_canonical()
    size, align = actual.get_size(), actual.get_align()
    if actual.kind != view.types.RECORD or size < 0:
        why = f"{wanted.name} has no fields, the table says {wanted.size} bytes of them"
        yield view.finding(cursor, why)
        return
    if size != wanted.size:
        why = f"{wanted.name} takes {size} bytes, the table says {wanted.size}"
        yield view.finding(cursor, why)
    if align != wanted.align:
        why = f"{wanted.name} is aligned to {align} bytes, the table says {wanted.align}"
        yield view.finding(cursor, why)
    yield from _fields(
        view, cursor, {field.spelling: field for field in actual.get_fields()}, wanted
    )


def _fields(
    view: HeaderView, cursor: Any, fields: dict[str, Any], wanted: Struct
) -> Iterator[Finding]:
    offsets = {name: field.get_field_offsetof() // 8 for name, field in fields.items()}
    unknown = fields.keys() - {field.name for field in wanted.fields}
    for name, kind, _, offset in wanted.fields:
        if name in fields:
            for why in _field(fields[name], offsets[name], kind, offset):
                yield view.finding(fields[name], f"{wanted.name}.{name} {why}")
            continue
        why = f"{wanted.name}.{name} is missing: the table has it at offset {offset}"
        there = next((other for other in unknown if offsets[other] == offset), None)
        if there is None:
            yield view.finding(cursor, why)
        else:
            unknown.discard(there)
            yield view.finding(fields[there], f"{why}, the header has `{there}` there")
    for name in unknown:
        why = f"{wanted.name}.{name} at offset {offsets[name]} is not in the table"
        yield view.finding(fields[name], why)


def _field(field: Any, at: int, kind: str, offset: int) -> Iterator[str]:
    bits = f" : {field.get_bitfield_width()}" if field.is_bitfield() else ""
    if bits or _plain(field.type.spelling) != _plain(kind):
        yield f"is `{field.type.spelling}{bits}`, the table says `{kind}`"
    if at != offset:
        yield f"is at offset {at}, the table says {offset}"


def _plain(spelling: str) -> str:
    """A type without what C leaves to taste."""
    return re.sub(r"\s*([*(),])\s*", r"\1", re.sub(r"\bstruct ", "", spelling))


def _declared(kind: str, name: str) -> str:
    return f"{kind}{'' if kind.endswith('*') else ' '}{name or '(no name)'}"


def _prototype(function: Signature) -> str:
    parameters = (_declared(parameter.type, parameter.name) for parameter in function.parameters)
    return f"`{_declared(function.returns, function.name)}({', '.join(parameters) or 'void'})`"
