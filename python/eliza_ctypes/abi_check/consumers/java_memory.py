"""Finds where Java reads and writes structures by offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Hashable, Iterator, NamedTuple, Optional

from ..table import Kind
from .findings import Findings
from .java_values import Values, last_name
from .memory import Access, Memory, judge_memory
from .syntax import ancestors, children, field, line, of_type, text, trailing_comments

if TYPE_CHECKING:
    from tree_sitter import Node

_SUFFIXES = {
    "Int": Kind.INT32,
    "Float": Kind.FLOAT32,
    "Long": Kind.INT64,
    "Double": Kind.FLOAT64,
    "Short": Kind.INT16,
    "Byte": Kind.INT8,
    "Pointer": Kind.POINTER,
}
_VERBS = {"put": True, "set": True, "get": False}
_MEASURED = {"set": True, "setAtIndex": True, "get": False, "getAtIndex": False}
_ALLOCATORS = frozenset({"allocate", "allocateDirect", "Memory", "reinterpret"})
_METHODS = ("method_declaration", "constructor_declaration", "static_initializer", "program")


class _Call(NamedTuple):
    kind: Optional[Kind]
    writes: bool
    offset: Node
    scale: int
    value: Optional[Node]


def judge_accesses(findings: Findings, root: Node, values: Values) -> None:
    collector = _Collector(root, values)
    for call in of_type(root, "method_invocation"):
        collector.take(call)
    for memory in collector.memories.values():
        judge_memory(findings, memory)


class _Collector:
    def __init__(self, root: Node, values: Values) -> None:
        self.values = values
        self.memories: dict[Hashable, Memory] = {}
        self._comments = trailing_comments(of_type(root, "line_comment", "block_comment"))
        self._orders: dict[str, list[str]] = {}
        for call in of_type(root, "method_invocation"):
            if text(field(call, "name")) == "order":
                self._orders.setdefault(_base_name(call), []).append(text(call))

    def take(self, call: Node) -> None:
        found = self._by_layout(call) or self._by_name(call)
        receiver = field(call, "object")
        if found is None or receiver is None:
            return
        offset = self.values.evaluate(found.offset)
        memory = self._memory(receiver, call)
        name, defined = last_name(found.offset), self.values.definition(found.offset)
        names = [name] if name else [text(each) for each in of_type(found.offset, "identifier")]
        constant = bool(name) and defined is not None and defined.id != found.offset.id
        memory.accesses.append(
            Access(
                line(call),
                text(field(call, "name")),
                found.kind,
                offset * found.scale if isinstance(offset, int) else None,
                names,
                line(defined) if constant and defined is not None else None,
                list(_names(found.value)) if found.writes else _names_of_result(call),
                self._comments.get(line(call), ""),
                self._is_big_endian(receiver, call),
                found.writes,
            )
        )

    def _by_layout(self, call: Node) -> Optional[_Call]:
        """``segment.set(JAVA_INT, 20, value)``."""
        name, arguments = text(field(call, "name")), children(field(call, "arguments"))
        writes = _MEASURED.get(name)
        if writes is None or len(arguments) != (3 if writes else 2):
            return None
        kind = self.values.layout(arguments[0]).kind
        if kind is None:
            return None
        scale = kind.size if name.endswith("AtIndex") else 1
        return _Call(kind, writes, arguments[1], scale, arguments[2] if writes else None)

    def _by_name(self, call: Node) -> Optional[_Call]:
        """``buffer.putInt(20, value)`` and JNA's ``memory.setInt(20, value)``."""
        name, arguments = text(field(call, "name")), children(field(call, "arguments"))
        writes, kind = _VERBS.get(name[:3]), _SUFFIXES.get(name[3:])
        if writes is None or kind is None or len(arguments) != (2 if writes else 1):
            return None
        return _Call(kind, writes, arguments[0], 1, arguments[1] if writes else None)

    def _memory(self, receiver: Node, call: Node) -> Memory:
        name = last_name(receiver) or text(receiver)
        method = next((each for each in ancestors(call) if each.type in _METHODS), None)
        key = (method.start_byte if method is not None else -1, name)
        known = key in self.memories
        memory = self.memories.setdefault(key, Memory())
        if not known:
            memory.names.append(last_name(receiver))
            memory.around = [
                text(field(each, "name")) for each in ancestors(call) if field(each, "name")
            ]
            self._find_size(memory, self._made(receiver, name, method))
        return memory

    def _made(self, receiver: Node, name: str, method: Optional[Node]) -> Optional[Node]:
        """The expression that makes the memory."""
        for declared in of_type(method, "variable_declarator") if method is not None else ():
            if text(field(declared, "name")) == name:
                return field(declared, "value")
        return self.values.definition(receiver)

    def _find_size(self, memory: Memory, made: Optional[Node]) -> None:
        for call in (
            of_type(made, "method_invocation", "object_creation_expression") if made else ()
        ):
            name = text(field(call, "name") or field(call, "type"))
            arguments = children(field(call, "arguments"))
            size = self.values.evaluate(arguments[0]) if arguments else None
            if name in _ALLOCATORS and isinstance(size, int):
                memory.size, memory.line = size, line(call)
                memory.names.append(last_name(arguments[0]))

    def _is_big_endian(self, receiver: Node, call: Node) -> bool:
        """Whether the memory is a ByteBuffer that is made here and keeps Java's own order."""
        if not text(field(call, "name")).startswith(("put", "get")):
            return False
        name = last_name(receiver)
        method = next((each for each in ancestors(call) if each.type in _METHODS), None)
        made = text(self._made(receiver, name, method))
        orders = " ".join([made, *self._orders.get(name, [])])
        return made.startswith("ByteBuffer.allocate") and (
            "BIG_ENDIAN" in orders or ".order(" not in orders
        )


def _base_name(call: Node) -> str:
    target = field(call, "object")
    return last_name(target)


def _names(node: Optional[Node]) -> Iterator[str]:
    """The names of what a value is taken from."""
    if node is None:
        return
    if node.type == "identifier":
        yield text(node)
    elif node.type == "field_access":
        yield text(field(node, "field"))
        yield from _names(field(node, "object"))
    elif node.type == "method_invocation":
        arguments = children(field(node, "arguments"))
        if not arguments:
            yield text(field(node, "name"))
            yield from _names(field(node, "object"))
        for each in arguments:
            yield from _names(each)
    elif node.type in ("cast_expression", "parenthesized_expression", "unary_expression"):
        yield from _names(children(node)[-1])
    elif node.type == "ternary_expression":
        branches = [field(node, "consequence"), field(node, "alternative")]
        found = [name for each in branches for name in _names(each)]
        yield from found or _names(field(node, "condition"))


def _names_of_result(call: Node) -> list[str]:
    """What a value that is read becomes."""
    for outer in ancestors(call):
        if outer.type == "variable_declarator":
            return [text(field(outer, "name"))]
        if outer.type not in ("cast_expression", "parenthesized_expression"):
            return []
    return []
