"""The ctypes objects that this package calls the library with, against the table.

``eliza_ctypes.abi`` derives them from its own copy of the table. Here they are looked at as ctypes
will use them, with no word of how they came about.
"""

from __future__ import annotations

import ctypes
from typing import Any, Iterator

from .. import abi
from .report import Report
from .table import Kind, Signature, Struct, Table

# Of the ctypes scalars; a code with several sizes counts where it has the right one.
_CODES = {Kind.INT8: "b", Kind.INT32: "il", Kind.INT64: "QL", Kind.FLOAT32: "f"}


def check_declarations(table: Table) -> Report:
    """Compares functions, structures, callbacks, constants and opaque types."""
    report = Report("eliza_ctypes")
    for message in (
        *_differences(abi.TABLE, table.content, "the packaged abi-v8.json"),
        *_constants(table),
        *_functions(table),
        *_structs(table),
        *_callbacks(table),
        *_names("opaque type", abi.OPAQUE, table.opaque),
        *_opaque(table),
    ):
        report.problem(message)
    report.judged += [
        f"{len(abi.FUNCTIONS)} functions",
        f"{len(abi.CONSTANTS)} constants",
        f"{len(abi.STRUCTS)} structures",
        f"{len(abi.CALLBACKS)} callbacks",
        f"{len(abi.OPAQUE)} opaque types",
        "the packaged table",
    ]
    return report


def _names(what: str, found: Any, wanted: Any) -> Iterator[str]:
    for name in wanted:
        if name not in found:
            yield f"the {what} {name} is missing"
    for name in found:
        if name not in wanted:
            yield f"the {what} {name} is not in the table"


def _differences(found: Any, wanted: Any, where: str) -> Iterator[str]:
    """Where two JSON documents differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted(found.keys() | wanted.keys()):
            if key not in found:
                yield f"{where} lacks {key}"
            elif key not in wanted:
                yield f"{where} has {key}, the table does not"
            else:
                yield from _differences(found[key], wanted[key], f"{where}: {key}")
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, (one, other) in enumerate(zip(found, wanted)):
            name = one.get("name", number) if isinstance(one, dict) else number
            yield from _differences(one, other, f"{where}: {name}")
    elif found != wanted:
        if isinstance(found, list) and isinstance(wanted, list):
            yield f"{where} has {len(found)} entries, the table has {len(wanted)}"
        else:
            yield f"{where} is {found!r}, the table says {wanted!r}"


def _constants(table: Table) -> Iterator[str]:
    yield from _names("constant", abi.CONSTANTS, table.constants)
    for name, value in abi.CONSTANTS.items():
        if value != table.constants.get(name, value):
            yield f"{name} is {value}, the table says {table.constants[name]}"


def _functions(table: Table) -> Iterator[str]:
    yield from _names("function", abi.FUNCTIONS, table.functions)
    for name, declared in abi.FUNCTIONS.items():
        wanted = table.functions.get(name)
        if wanted is None:
            continue
        names = [argument.name for argument in declared.arguments]
        names += ["out_error"] if declared.takes_out_error else []
        wanted_names = [parameter.name for parameter in wanted.parameters]
        if names != wanted_names:
            yield f"{name} names its arguments {names}, the table says {wanted_names}"
        yield from _signature(name, declared.returns, declared.argtypes, wanted, table)


def _signature(
    name: str, restype: Any, argtypes: Any, wanted: Signature, table: Table
) -> Iterator[str]:
    if not _is(restype, wanted.returns, table):
        yield f"{name} returns {_shown(restype)}, the table says `{wanted.returns}`"
    if len(argtypes) != len(wanted.parameters):
        count = len(wanted.parameters)
        yield f"{name} takes {len(argtypes)} arguments, the table says {count}"
        return
    for number, (ctype, parameter) in enumerate(zip(argtypes, wanted.parameters), 1):
        if not _is(ctype, parameter.type, table):
            named = f" {parameter.name}" if parameter.name else ""
            yield (
                f"{name}: argument {number}{named} is {_shown(ctype)}, "
                f"the table says `{parameter.type}`"
            )


def _structs(table: Table) -> Iterator[str]:
    yield from _names("structure", abi.STRUCTS, table.structs)
    for name, structure in abi.STRUCTS.items():
        if name in table.structs:
            yield from _struct(structure, table.structs[name], table)


def _struct(structure: Any, wanted: Struct, table: Table) -> Iterator[str]:
    for what, value, told in (
        ("takes", ctypes.sizeof(structure), wanted.size),
        ("is aligned to", ctypes.alignment(structure), wanted.align),
    ):
        if value != told:
            yield f"{wanted.name} {what} {value} bytes, the table says {told}"
    types = {field[0]: field[1] for field in structure._fields_}
    yield from _names(f"field of {wanted.name}", types, [each.name for each in wanted.fields])
    for name, kind, _, offset in wanted.fields:
        if name not in types:
            continue
        place = getattr(structure, name)
        if place.offset != offset:
            yield f"{wanted.name}.{name} is at offset {place.offset}, the table says {offset}"
        if place.size != ctypes.sizeof(types[name]) or not _is(types[name], kind, table):
            yield f"{wanted.name}.{name} is {_shown(types[name])}, the table says `{kind}`"


def _callbacks(table: Table) -> Iterator[str]:
    yield from _names("callback", abi.CALLBACKS, table.callbacks)
    for name, callback in abi.CALLBACKS.items():
        if name in table.callbacks:
            types = callback._restype_, callback._argtypes_
            yield from _signature(name, *types, table.callbacks[name], table)


def _opaque(table: Table) -> Iterator[str]:
    for name, structure in abi.OPAQUE.items():
        if getattr(structure, "_fields_", None):
            yield f"{name} has fields, the table says it is opaque"


def _is(ctype: Any, declaration: str, table: Table) -> bool:
    """Whether ctypes passes values of this type as C passes those of the declaration.

    ctypes has no ``const``; ``c_void_p`` may stand for any pointer to bytes.
    """
    plain = declaration.replace("const ", "").strip()
    if plain in table.callbacks:
        return ctype is abi.CALLBACKS.get(plain)
    if plain.endswith("*"):
        target = plain[:-1].strip()
        if target in ("char", "void"):
            return ctype in (ctypes.c_char_p, ctypes.c_void_p)
        pointee = getattr(ctype, "_type_", None)
        is_pointer = isinstance(ctype, type) and issubclass(ctype, ctypes._Pointer)
        return is_pointer and _is(pointee, target, table)
    if isinstance(ctype, type) and issubclass(ctype, ctypes.Structure):
        return ctype is {**abi.STRUCTS, **abi.OPAQUE}.get(plain)
    if plain in table.structs or plain in table.opaque:
        return False
    kind = table.kind(plain)
    if kind is Kind.VOID:
        return ctype is None
    code = getattr(ctype, "_type_", None)
    codes = _CODES[kind]
    return isinstance(code, str) and code in codes and ctypes.sizeof(ctype) == kind.size


def _shown(ctype: Any) -> str:
    return "nothing" if ctype is None else str(getattr(ctype, "__name__", ctype))
