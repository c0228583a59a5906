"""The constants, layouts and helper methods of a Java source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional, Sequence, Union

from ..table import Kind
from .c_types import spelled
from .signatures import LONG_DOUBT, Type
from .syntax import children, field, line, text

if TYPE_CHECKING:
    from tree_sitter import Node

_KINDS = {
    Kind.INT8: "JAVA_BYTE JAVA_BOOLEAN C_CHAR C_BOOL",
    Kind.INT16: "JAVA_SHORT JAVA_CHAR C_SHORT",
    Kind.INT32: "JAVA_INT C_INT",
    Kind.INT64: "JAVA_LONG C_LONG_LONG",
    Kind.FLOAT32: "JAVA_FLOAT C_FLOAT",
    Kind.FLOAT64: "JAVA_DOUBLE C_DOUBLE",
    Kind.POINTER: "ADDRESS C_POINTER",
}
_NAMED = {
    name + ending: kind
    for kind, names in _KINDS.items()
    for name in names.split()
    for ending in ("", "_UNALIGNED")
}
_KEEPS_KIND = ("withName", "withOrder", "withByteAlignment", "withTargetLayout", "withoutName")
_DEPTH = 30
Value = Union[int, str, None]


class Environment(NamedTuple):
    """What the parameters of a helper method stand for in one of its calls."""

    arguments: Mapping[str, Sequence[Node]]


class Values:
    """The variables of one source that are given a value once."""

    def __init__(self, nodes: Mapping[str, Sequence[Node]]) -> None:
        self._variables: dict[str, Optional[Node]] = {}
        for node in nodes.get("variable_declarator", []):
            name = text(field(node, "name"))
            known = name in self._variables
            self._variables[name] = None if known else field(node, "value")
        for node in nodes.get("formal_parameter", []):
            self._variables[text(field(node, "name"))] = None

    def definition(self, node: Optional[Node]) -> Optional[Node]:
        """What a name stands for in the end, or the expression itself."""
        for _ in range(_DEPTH):
            name = last_name(node)
            found = self._variables.get(name) if name else None
            if found is None:
                return node
            node = found
        return node

    def evaluate(
        self, node: Optional[Node], names: Optional[Environment] = None, depth: int = 0
    ) -> Value:
        """A whole number or a string, where the source says it."""
        if node is None or depth > _DEPTH:
            return None
        if node.type.endswith("integer_literal"):
            return _number(text(node))
        if node.type == "string_literal":
            return text(node)[1:-1].replace("\\0", "")
        if node.type in ("parenthesized_expression", "cast_expression"):
            inner = children(node)
            return self.evaluate(inner[-1], names, depth + 1) if inner else None
        if node.type == "unary_expression":
            value = self.evaluate(field(node, "operand"), names, depth + 1)
            negates = text(field(node, "operator")) == "-" and isinstance(value, int)
            return -value if negates and isinstance(value, int) else None
        if node.type == "binary_expression":
            return self._binary(node, names, depth)
        return self._name(node, names, depth)

    def _name(self, node: Node, names: Optional[Environment], depth: int) -> Value:
        given = names.arguments.get(text(node), ()) if names is not None else ()
        if len(given) == 1:
            return self.evaluate(given[0], None, depth + 1)
        found = self._variables.get(last_name(node))
        return self.evaluate(found, names, depth + 1)

    def _binary(self, node: Node, names: Optional[Environment], depth: int) -> Value:
        left = self.evaluate(field(node, "left"), names, depth + 1)
        right = self.evaluate(field(node, "right"), names, depth + 1)
        operator = text(field(node, "operator"))
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return left + right
        if isinstance(left, int) and isinstance(right, int):
            return {"+": left + right, "-": left - right, "*": left * right}.get(operator)
        return None

    def layout(self, node: Optional[Node], depth: int = 0) -> Type:
        """How a value of a memory layout travels."""
        written = text(node)
        if node is None or depth > _DEPTH:
            return Type(written)
        where = line(node)
        if node.type == "method_invocation":
            target, name = field(node, "object"), text(field(node, "name"))
            if name in _KEEPS_KIND:
                return self.layout(target, depth + 1)._replace(written=written, line=where)
            arguments = children(field(node, "arguments"))
            if name == "get" and len(arguments) == 1:
                spelling = self.evaluate(arguments[0])
                if isinstance(spelling, str) and "*" in spelling:
                    return Type(written, Kind.POINTER, line=where)
                if isinstance(spelling, str):
                    return spelled(spelling)._replace(written=written, line=where)
            return Type(written, line=where)
        if node.type in ("cast_expression", "parenthesized_expression"):
            return self.layout(children(node)[-1], depth + 1)._replace(written=written, line=where)
        name = last_name(node)
        found = self._variables.get(name)
        if found is not None:
            return self.layout(found, depth + 1)._replace(written=written, line=where)
        if name == "C_LONG":
            return Type(written, None, doubt=LONG_DOUBT, line=where)
        return Type(written, _NAMED.get(name), line=where)


def last_name(node: Optional[Node]) -> str:
    """``JAVA_INT`` of ``ValueLayout.JAVA_INT``."""
    if node is None:
        return ""
    if node.type == "field_access":
        return text(field(node, "field"))
    return text(node) if node.type == "identifier" else ""


def _number(written: str) -> Optional[int]:
    try:
        return int(written.replace("_", "").rstrip("lL"), 0)
    except ValueError:
        return None
