"""The ABI table in the form that the checks compare with."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import Any, Mapping, NamedTuple


class Kind(enum.Enum):
    """How a value travels: what a caller and the library must agree on."""

    VOID = "void"
    INT8 = "an 8-bit integer"
    INT16 = "a 16-bit integer"
    INT32 = "a 32-bit integer"
    INT64 = "a 64-bit integer"
    FLOAT32 = "a 32-bit float"
    FLOAT64 = "a 64-bit float"
    POINTER = "a pointer"

    @property
    def size(self) -> int:
        """Bytes, in a structure as well."""
        return _SIZES[self]

    def travels_as(self, other: Kind) -> bool:
        """Whether both are passed alike: many bindings pass pointers as 64-bit integers."""
        wide = (Kind.INT64, Kind.POINTER)
        return self is other or (self in wide and other in wide)


_SIZES = {
    Kind.VOID: 0,
    Kind.INT8: 1,
    Kind.INT16: 2,
    Kind.INT32: 4,
    Kind.INT64: 8,
    Kind.FLOAT32: 4,
    Kind.FLOAT64: 8,
    Kind.POINTER: 8,
}
_SCALARS = {
    "void": Kind.VOID,
    "int8_t": Kind.INT8,
    "int": Kind.INT32,
    "int32_t": Kind.INT32,
    "size_t": Kind.INT64,
    "float": Kind.FLOAT32,
}


class Parameter(NamedTuple):
    name: str
    type: str
    """As C writes it, such as ``const char *``."""
    kind: Kind


class Signature(NamedTuple):
    """A function, or a callback, whose parameters have no names."""

    name: str
    returns: str
    return_kind: Kind
    parameters: tuple[Parameter, ...]


class StructField(NamedTuple):
    name: str
    type: str
    kind: Kind
    offset: int


class Struct(NamedTuple):
    name: str
    size: int
    align: int
    fields: tuple[StructField, ...]


class Table:
    """One version of the ABI."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        """As it was read."""
        self.library: str = content["library"]
        self.version: int = content["abi_version"]
        self.constants: dict[str, int] = dict(content["constants"])
        self.opaque: tuple[str, ...] = tuple(content["opaque"])
        self._callbacks_by_name = content["callbacks"]
        self.callbacks = {
            name: self._signature(name, entry["returns"], [("", kind) for kind in entry["args"]])
            for name, entry in content["callbacks"].items()
        }
        self.functions = {
            entry["name"]: self._signature(
                entry["name"],
                entry["returns"],
                [(argument["name"], argument["type"]) for argument in entry["args"]],
            )
            for entry in content["functions"]
        }
        self.structs = {
            name: Struct(
                name,
                entry["size"],
                entry["align"],
                tuple(
                    StructField(f["name"], f["type"], self.kind(f["type"]), f["offset"])
                    for f in entry["fields"]
                ),
            )
            for name, entry in content["structs"].items()
        }

    def kind(self, c_type: str) -> Kind:
        """How a C type of the table travels. Raises ValueError for one that it does not know."""
        plain = c_type.replace("const ", "").strip()
        if plain.endswith("*") or plain in self._callbacks_by_name:
            return Kind.POINTER
        if plain not in _SCALARS:
            raise ValueError(f"the ABI table uses the unknown C type {c_type!r}")
        return _SCALARS[plain]

    def _signature(self, name: str, returns: str, parameters: list[tuple[str, str]]) -> Signature:
        return Signature(
            name,
            returns,
            self.kind(returns),
            tuple(Parameter(each, kind, self.kind(kind)) for each, kind in parameters),
        )


def read_table(path: str | os.PathLike[str]) -> Table:
    """Raises OSError, and ValueError for a file that is no such table."""
    try:
        return Table(json.loads(Path(path).read_text("utf-8")))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no ABI table: {error!r}") from error
