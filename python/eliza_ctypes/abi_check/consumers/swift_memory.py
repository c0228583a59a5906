"""Finds where Swift reads and writes structures by offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Hashable, Iterator, Optional

from ..table import Kind
from .findings import Findings
from .memory import Access, Memory, judge_memory
from .signatures import Type
from .swift_values import (
    Values,
    argument_of,
    called_name,
    label_of,
    listed_arguments,
    value_of,
)
from .syntax import ancestors, child, children, field, line, of_type, parse, text, trailing_comments

if TYPE_CHECKING:
    from tree_sitter import Node

_METHODS = {"storeBytes": True, "load": False, "loadUnaligned": False}
_SHIFTS = ("advanced", "successor")
_FUNCTIONS = ("function_declaration", "init_declaration", "computed_property", "source_file")


def judge_accesses(
    findings: Findings, root: Node, values: Values, travels: Callable[[Node], Type]
) -> None:
    collector = _Collector(root, values, travels)
    for call in of_type(root, "call_expression"):
        collector.take(call)
    for call in of_type(root, "call_expression"):
        collector.note_opening(call)
    for memory in collector.memories.values():
        judge_memory(findings, memory)


class _Collector:
    def __init__(self, root: Node, values: Values, travels: Callable[[Node], Type]) -> None:
        self.values = values
        self.travels = travels
        self.memories: dict[Hashable, Memory] = {}
        self._comments = trailing_comments(of_type(root, "comment"))

    def take(self, call: Node) -> None:
        name = called_name(call)
        callee = children(call)[0] if children(call) else None
        if name not in _METHODS or callee is None or callee.type != "navigation_expression":
            return
        arguments = {label_of(each): value_of(each) for each in listed_arguments(call)}
        writes = _METHODS[name]
        if writes != ("of" in arguments) or not (
            {"toByteOffset", "fromByteOffset", "as"} & set(arguments)
        ):
            return
        given = arguments.get("toByteOffset", arguments.get("fromByteOffset"))
        value = arguments.get("of")
        kind = self._kind(arguments.get("as"), value)
        if kind is None and given is None:
            return  # a whole structure, most likely
        receiver, base = self._receiver(field(callee, "target"))
        offset = 0 if given is None else self.values.evaluate(given)
        memory = self._memory(receiver, call)
        names, defined = self._offset_names(given)
        memory.accesses.append(
            Access(
                line(call),
                name,
                kind,
                None if offset is None or base is None else offset + base,
                names,
                defined if base == 0 else None,
                list(_names_of_value(value)) if writes else _names_of_result(call),
                self._comments.get(line(call), ""),
                text(value).endswith(".bigEndian"),
                writes,
            )
        )

    def note_opening(self, call: Node) -> None:
        """Note what is passed as the configuration of a stream."""
        arguments = listed_arguments(call)
        if called_name(call) != "eliza_inference_llm_stream_open" or len(arguments) < 2:
            return
        name = text(argument_of(arguments[1]))
        memory = self.memories.get((_function_around(call), name))
        if memory is not None:
            memory.opens_a_stream = True

    def _receiver(self, node: Optional[Node]) -> tuple[Optional[Node], Optional[int]]:
        """The memory, and how far in it an expression points."""
        base: Optional[int] = 0
        for _ in range(10):
            if node is None:
                break
            if node.type == "tuple_expression":
                node = field(node, "value")
            elif node.type == "call_expression" and called_name(node) in _SHIFTS:
                arguments = listed_arguments(node)
                by = self.values.evaluate(value_of(arguments[0])) if arguments else None
                base = None if base is None or by is None else base + by
                node = field(children(node)[0], "target")
            elif node.type == "additive_expression":
                by = self.values.evaluate(field(node, "rhs"))
                base = None if base is None or by is None else base + by
                node = field(node, "lhs")
            elif node.type == "postfix_expression" or text(node).endswith(".baseAddress"):
                node = field(node, "target")
            else:
                break
        return node, base

    def _memory(self, receiver: Optional[Node], call: Node) -> Memory:
        name = text(receiver)
        names = [name.rsplit(".", 1)[-1]]
        outer = _lambda_target(name, call)
        if outer:
            names = [*([] if name.startswith("$") else names), outer]
            name = outer
        memory = self.memories.setdefault((_function_around(call), name), Memory())
        memory.names += [each for each in names if each not in memory.names]
        memory.around = [text(field(f, "name")) for f in ancestors(call) if field(f, "name")]
        if memory.size is None:
            self._find_size(memory, name, call)
        return memory

    def _find_size(self, memory: Memory, name: str, call: Node) -> None:
        function = next((each for each in ancestors(call) if each.type in _FUNCTIONS), None)
        scopes = [function] if function is not None else []
        for declaration in (d for scope in scopes for d in of_type(scope, "property_declaration")):
            if name in [text(each) for each in declaration.children_by_field_name("name")]:
                for made in of_type(declaration, "call_expression"):
                    for argument in listed_arguments(made):
                        if label_of(argument) in ("byteCount", "count"):
                            memory.size = self.values.evaluate(value_of(argument))
                            memory.line = line(made)
                            memory.names.append(text(value_of(argument)).rsplit(".", 1)[-1])

    def _kind(self, given: Optional[Node], value: Optional[Node]) -> Optional[Kind]:
        """The kind of ``as: Int32.self``, or of ``Int32(..)`` where that is the value."""
        if given is not None:
            written = text(given)
            written = written[: -len(".self")] if written.endswith(".self") else written
        else:
            written = (
                called_name(value) if value is not None and value.type == "call_expression" else ""
            )
        if not written:
            return None
        root = parse("swift", f"typealias A = {written}".encode())
        alias = next(of_type(root, "typealias_declaration"), None)
        types = [each for each in children(alias) if each.type.endswith("_type")]
        return self.travels(types[-1]).kind if types else None

    def _offset_names(self, node: Optional[Node]) -> tuple[list[str], Optional[int]]:
        if node is None:
            return [], None
        if node.type in ("simple_identifier", "navigation_expression"):
            defined = self.values.definition(text(node))
            name = text(node).rsplit(".", 1)[-1]
            return [name], line(defined) if defined is not None else None
        return [text(each) for each in of_type(node, "simple_identifier")], None


def _function_around(node: Node) -> int:
    function = next((each for each in ancestors(node) if each.type in _FUNCTIONS), None)
    return function.start_byte if function is not None else -1


def _lambda_target(name: str, call: Node) -> str:
    """``buffer`` of ``buffer.withUnsafeMutableBytes { name in .. }``."""
    for outer in ancestors(call):
        if outer.type in _FUNCTIONS:
            return ""
        if outer.type == "lambda_literal":
            parameters = [text(field(p, "name")) for p in of_type(outer, "lambda_parameter")]
            around = next(
                (each for each in ancestors(outer) if each.type == "call_expression"), None
            )
            if around is not None and (
                name in parameters or (name.startswith("$") and not parameters)
            ):
                callee = children(around)[0]
                if callee.type == "navigation_expression":
                    return text(field(callee, "target"))
                first = next(iter(listed_arguments(around)), None)
                return text(argument_of(first))
    return ""


def _names_of_value(node: Optional[Node]) -> Iterator[str]:
    """The names of what a value is taken from."""
    if node is None:
        return
    if node.type == "simple_identifier":
        yield text(node)
    elif node.type == "navigation_expression":
        yield from _names_of_value(field(node, "target"))
        yield text(child(field(node, "suffix"), "simple_identifier"))
    elif node.type == "call_expression":
        for each in listed_arguments(node):
            yield from _names_of_value(value_of(each))
        callee = children(node)[0] if children(node) else None
        if callee is not None and callee.type == "navigation_expression":
            yield from _names_of_value(field(callee, "target"))
    elif node.type == "nil_coalescing_expression":
        yield from _names_of_value(field(node, "value"))
        yield from _names_of_value(field(node, "if_nil"))
    elif node.type == "ternary_expression":
        branches = [field(node, "if_true"), field(node, "if_false")]
        found = [name for each in branches for name in _names_of_value(each)]
        yield from found or _names_of_value(field(node, "condition"))
    elif node.type in ("tuple_expression", "postfix_expression", "prefix_expression"):
        yield from _names_of_value(field(node, "value") or field(node, "target"))


def _names_of_result(call: Node) -> list[str]:
    """What a value that is read becomes."""
    for outer in ancestors(call):
        if outer.type == "property_declaration":
            return [text(each) for each in outer.children_by_field_name("name")]
        if outer.type == "value_argument" and label_of(outer):
            return [label_of(outer)]
        if outer.type not in (
            "call_expression",
            "value_argument",
            "value_arguments",
            "call_suffix",
        ):
            return []
    return []
