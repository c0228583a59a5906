"""The ABI table in the form that the checks compare with."""

from __future__ import annotations

import enum
import json
import os
import re
from typing import Any, Mapping, NamedTuple

from .reading import open_regular
from .table_shape import require_table


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
_TYPE = re.compile(r"(?:const )?(?P<name>\w+)(?P<stars> \*+)?", re.ASCII)


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
    """One version of the ABI. Raises ValueError for content that does not describe one."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        require_table(content)
        self.content = content
        """As it was read."""
        self.library: str = content["library"]
        self.version: int = content["abi_version"]
        self.constants: dict[str, int] = dict(content["constants"])
        self.opaque: tuple[str, ...] = tuple(content["opaque"])
        self._callbacks_by_name = content["callbacks"]
        self._pointees = {
            "char",
            *_SCALARS,
            *self.opaque,
            *content["structs"],
            *content["callbacks"],
        }
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
        if len(self.functions) != len(content["functions"]):
            raise ValueError("functions has a name twice")
        self.structs = {
            name: self._struct(name, entry) for name, entry in content["structs"].items()
        }
        if not self.questions("_abi_version", "const char *"):
            raise ValueError("functions has none that answers the ABI version")

    def kind(self, c_type: str) -> Kind:
        """How a C type of the table travels. Raises ValueError for one that it does not know."""
        match = _TYPE.fullmatch(c_type)
        if match and match["stars"] and match["name"] in self._pointees:
            return Kind.POINTER
        if match and not match["stars"] and match["name"] in self._callbacks_by_name:
            return Kind.POINTER
        if match and not match["stars"] and match["name"] in _SCALARS:
            return _SCALARS[match["name"]]
        raise ValueError(f"{c_type[:60]!r} is no C type of the ABI")

    def questions(self, ending: str, returns: str) -> list[str]:
        """Functions of this ending that take nothing: whoever has a library may call them."""
        return [
            function.name
            for function in self.functions.values()
            if function.name.endswith(ending)
            and function.returns == returns
            and not function.parameters
        ]

    def _signature(self, name: str, returns: str, parameters: list[tuple[str, str]]) -> Signature:
        return Signature(
            name,
            returns,
            self.kind(returns),
            tuple(Parameter(each, kind, self._value(kind)) for each, kind in parameters),
        )

    def _struct(self, name: str, entry: Mapping[str, Any]) -> Struct:
        fields = tuple(
            StructField(f["name"], f["type"], self._value(f["type"]), f["offset"])
            for f in entry["fields"]
        )
        if len({field.name for field in fields}) != len(fields):
            raise ValueError(f"structs.{name} has a field twice")
        for field in fields:
            if field.offset + field.kind.size > entry["size"]:
                raise ValueError(f"structs.{name}: {field.name} does not fit into the size")
        return Struct(name, entry["size"], entry["align"], fields)

    def _value(self, c_type: str) -> Kind:
        kind = self.kind(c_type)
        if kind is Kind.VOID:
            raise ValueError("void is the type of an argument or a field")
        return kind


def read_table(path: str | os.PathLike[str]) -> Table:
    """Raises OSError, and ValueError for a file that is no such table."""
    with open_regular(path) as file:
        content = file.read()
    try:
        return Table(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no ABI table: {error}") from error
