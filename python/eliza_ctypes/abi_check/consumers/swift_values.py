"""The numbers and the arguments of Swift expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Optional, Sequence

from .syntax import child, children, field, text

if TYPE_CHECKING:
    from tree_sitter import Node


_TYPES_WITH_MEMBERS = ("class_body", "enum_class_body")


class Values:
    """The constants of one source."""

    def __init__(self, nodes: Mapping[str, Sequence[Node]]) -> None:
        self._constants: dict[str, Optional[Node]] = {}
        """By name, and by the name of the type and the own one; None where several have it."""
        for node in nodes.get("property_declaration", []):
            value = field(node, "value")
            is_constant = text(child(node, "value_binding_pattern")).endswith("let")
            container = _container(node)
            for pattern in node.children_by_field_name("name"):
                if is_constant and value is not None:
                    self._add(text(pattern), value)
                    if container:
                        self._add(f"{container}.{text(pattern)}", value)
                elif not container:
                    self._constants[text(pattern)] = None

    def _add(self, name: str, value: Node) -> None:
        self._constants[name] = None if name in self._constants else value

    def definition(self, name: str) -> Optional[Node]:
        """The value of the only constant of this name, such as ``size`` or ``Config.size``."""
        short = name.rsplit(".", 2)
        found = self._constants.get(".".join(short[-2:]))
        return found if found is not None else self._constants.get(short[-1])

    def evaluate(self, node: Optional[Node], depth: int = 0) -> Optional[int]:
        """A whole number, where the source says it."""
        if node is None or depth > 30:
            return None
        if node.type in ("integer_literal", "hex_literal", "bin_literal", "oct_literal"):
            return int(text(node).replace("_", ""), 0) if _is_number(text(node)) else None
        if node.type == "prefix_expression":
            inner = self.evaluate(field(node, "target"), depth + 1)
            return -inner if inner is not None and text(field(node, "operation")) == "-" else None
        if node.type in ("additive_expression", "multiplicative_expression"):
            return self._binary(node, depth)
        if node.type in ("tuple_expression", "call_expression"):
            return self._only(node, depth)
        if node.type == "simple_identifier":
            return self.evaluate(self.definition(text(node)), depth + 1)
        if node.type == "navigation_expression":
            return self.evaluate(self.definition(text(node)), depth + 1)
        return None

    def _binary(self, node: Node, depth: int) -> Optional[int]:
        left = self.evaluate(field(node, "lhs"), depth + 1)
        right = self.evaluate(field(node, "rhs"), depth + 1)
        operator = text(field(node, "op"))
        if left is None or right is None:
            return None
        return {"+": left + right, "-": left - right, "*": left * right}.get(operator)

    def _only(self, node: Node, depth: int) -> Optional[int]:
        """``(20)``, ``Int32(20)``, ``ElizaError(rawValue: -7)``."""
        if node.type == "tuple_expression":
            inner = [value for value in node.children_by_field_name("value") if value.is_named]
            return self.evaluate(inner[0], depth + 1) if len(inner) == 1 else None
        arguments = listed_arguments(node)
        if len(arguments) != 1 or label_of(arguments[0]) not in ("", "rawValue"):
            return None
        return self.evaluate(value_of(arguments[0]), depth + 1)


def listed_arguments(call: Node) -> list[Node]:
    """The arguments in the parentheses of a call."""
    arguments = child(child(call, "call_suffix"), "value_arguments")
    return [each for each in children(arguments) if each.type == "value_argument"]


def label_of(argument: Node) -> str:
    return text(child(argument, "value_argument_label"))


def value_of(argument: Optional[Node]) -> Optional[Node]:
    return field(argument, "value")


def argument_of(argument: Optional[Node]) -> Optional[Node]:
    """The variable that an argument passes, also as ``&variable``."""
    value = value_of(argument)
    return field(value, "target") if value is not None and text(value).startswith("&") else value


def called_name(call: Node) -> str:
    """The last name of what is called."""
    callee = children(call)[0] if children(call) else None
    if callee is not None and callee.type == "navigation_expression":
        return text(child(field(callee, "suffix"), "simple_identifier"))
    return text(callee) if callee is not None and callee.type == "simple_identifier" else ""


def _container(node: Node) -> str:
    """The type that a property is declared in."""
    body = node.parent
    if body is None or body.type not in _TYPES_WITH_MEMBERS:
        return ""
    return text(field(body.parent, "name"))


def _is_number(digits: str) -> bool:
    try:
        int(digits.replace("_", ""), 0)
    except ValueError:
        return False
    return True
