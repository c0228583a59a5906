"""The C ABI as ctypes objects, all of them derived from the table in ``abi-v8.json``.

The table is the only place where names, types, offsets and constants stand. Importing this
module fails with ``ImportError`` where the C compiler's layout and that of ctypes would differ.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, NamedTuple

with open(os.path.join(os.path.dirname(__file__), "abi-v8.json"), encoding="utf-8") as _file:
    TABLE: dict[str, Any] = json.load(_file)

PREFIX = "eliza_inference_"
CONSTANTS: dict[str, int] = TABLE["constants"]

_SCALARS: dict[str, Any] = {
    "void": None,
    "int": ctypes.c_int,
    "int8_t": ctypes.c_int8,
    "int32_t": ctypes.c_int32,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
}


class Argument(NamedTuple):
    """One declared parameter."""

    name: str
    ctype: Any


class Function(NamedTuple):
    """One declared function; ``arguments`` leaves out the trailing ``out_error``."""

    name: str
    returns: Any
    arguments: tuple[Argument, ...]
    takes_out_error: bool
    since: int
    family: str

    @property
    def argtypes(self) -> list[Any]:
        """What ctypes is told, ``out_error`` included."""
        types = [argument.ctype for argument in self.arguments]
        return [*types, ctypes.POINTER(ctypes.c_void_p)] if self.takes_out_error else types


def _ctype(declaration: str) -> Any:
    """The ctypes type of a C declaration of the table.

    A ``char *`` that is not ``const`` becomes ``void *``: ctypes would turn ``c_char_p`` results
    into ``bytes`` and lose the address that has to be freed.
    """
    if declaration == "const char *":
        return ctypes.c_char_p
    plain = declaration.replace("const ", "")
    if plain in ("char *", "void *"):
        return ctypes.c_void_p
    if plain.endswith("*"):
        return ctypes.POINTER(_ctype(plain[:-1].rstrip()))
    for known in (_SCALARS, STRUCTS, OPAQUE, CALLBACKS):
        if plain in known:
            return known[plain]
    raise ImportError(f"abi-v8.json uses the unknown C type {declaration!r}")


def _layout(name: str, base: Any, fields: list[dict[str, Any]], size: int) -> Any:
    """A structure type, checked against the offsets and the size that the table states."""
    declared = [(field["name"], _ctype(field["type"])) for field in fields]
    structure = type(name, (base,), {"_fields_": declared})
    for field in fields:
        if getattr(structure, field["name"]).offset != field["offset"]:
            raise ImportError(f"{name}.{field['name']} is not at offset {field['offset']} here")
    if ctypes.sizeof(structure) != size:
        raise ImportError(f"{name} takes {ctypes.sizeof(structure)} bytes here, not {size}")
    return structure


def _function(entry: dict[str, Any]) -> Function:
    arguments = [Argument(arg["name"], _ctype(arg["type"])) for arg in entry["args"]]
    takes_out_error = bool(arguments) and arguments[-1].name == "out_error"
    return Function(
        entry["name"],
        _ctype(entry["returns"]),
        tuple(arguments[:-1] if takes_out_error else arguments),
        takes_out_error,
        entry["since"],
        entry["family"],
    )


OPAQUE: dict[str, Any] = {name: type(name, (ctypes.Structure,), {}) for name in TABLE["opaque"]}
STRUCTS: dict[str, Any] = {}
CALLBACKS: dict[str, Any] = {}
for _name, _entry in TABLE["structs"].items():
    STRUCTS[_name] = _layout(_name, ctypes.Structure, _entry["fields"], _entry["size"])
for _name, _entry in TABLE["callbacks"].items():
    CALLBACKS[_name] = ctypes.CFUNCTYPE(
        _ctype(_entry["returns"]), *(_ctype(argument) for argument in _entry["args"])
    )
FUNCTIONS: dict[str, Function] = {entry["name"]: _function(entry) for entry in TABLE["functions"]}

CONFIG_V8 = STRUCTS["eliza_llm_stream_config_t"]
# ABI 9 appends one field. As a subclass it passes wherever the ABI 8 structure is declared.
CONFIG_V9 = _layout(
    "eliza_llm_stream_config_v9_t",
    CONFIG_V8,
    [{"name": "context_size", "type": "int32_t", "offset": ctypes.sizeof(CONFIG_V8)}],
    ctypes.sizeof(CONFIG_V8) + 8,
)


def _functions_on(opaque: str, *endings: str) -> str | None:
    """The function with one of these name endings that takes nothing but the opaque pointer."""
    for function in FUNCTIONS.values():
        types = [argument.ctype for argument in function.arguments]
        if types == [ctypes.POINTER(OPAQUE[opaque])] and function.name.endswith(endings):
            return function.name
    return None


# How each opaque object is given back, and how a call that runs on it is interrupted.
RELEASE: dict[str, str | None] = {
    name: _functions_on(name, "_close", "_destroy") for name in OPAQUE
}
INTERRUPT: dict[str, str | None] = {name: _functions_on(name, "_cancel") for name in OPAQUE}


def int_bounds(ctype: Any) -> tuple[int, int] | None:
    """Smallest and largest value of an integer type; ``None`` for every other type."""
    bits = 8 * ctypes.sizeof(ctype)
    if ctype is ctypes.c_size_t:
        return 0, 2**bits - 1
    if ctype in (ctypes.c_int, ctypes.c_int32, ctypes.c_int8):
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return None
