"""Finds where JavaScript reads and writes structures by offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Hashable, Iterator, NamedTuple, Optional

from ..table import Kind
from . import naming
from .findings import Findings
from .javascript_values import (
    Declaration,
    Object,
    Program,
    Ref,
    last_name,
    property_name,
    unwrap,
)
from .memory import Access, Memory, judge_memory
from .syntax import ancestors, children, line, text, word_set
from .syntax import field as part

if TYPE_CHECKING:
    from tree_sitter import Node

_ELEMENTS = {
    "Int8Array": Kind.INT8,
    "Uint8Array": Kind.INT8,
    "Uint8ClampedArray": Kind.INT8,
    "Int16Array": Kind.INT16,
    "Uint16Array": Kind.INT16,
    "Int32Array": Kind.INT32,
    "Uint32Array": Kind.INT32,
    "BigInt64Array": Kind.INT64,
    "BigUint64Array": Kind.INT64,
    "Float32Array": Kind.FLOAT32,
    "Float64Array": Kind.FLOAT64,
}
_ALLOCATORS = frozenset({"alloc", "allocUnsafe", "allocUnsafeSlow"})
_VIEWS_OF_POINTERS = frozenset({"toArrayBuffer", "toBuffer", "getArrayBuffer"})
_BUN_READS = {
    "ptr": Kind.POINTER,
    "intptr": Kind.INT64,
    "i8": Kind.INT8,
    "u8": Kind.INT8,
    "i16": Kind.INT16,
    "u16": Kind.INT16,
    "i32": Kind.INT32,
    "u32": Kind.INT32,
    "i64": Kind.INT64,
    "u64": Kind.INT64,
    "f32": Kind.FLOAT32,
    "f64": Kind.FLOAT64,
}
_DEPTH = 5
_EXPANSIONS = 2000


class _Method(NamedTuple):
    """A method that reads or writes by offset."""

    kind: Kind
    writes: bool
    offset: int
    """The position of the offset among the arguments."""
    endian: str
    """``argument``, ``big`` or ``little``."""


def _methods() -> dict[str, _Method]:
    found: dict[str, _Method] = {}
    for name, kind in (
        ("Int8", Kind.INT8),
        ("Uint8", Kind.INT8),
        ("Int16", Kind.INT16),
        ("Uint16", Kind.INT16),
        ("Int32", Kind.INT32),
        ("Uint32", Kind.INT32),
        ("Float32", Kind.FLOAT32),
        ("Float64", Kind.FLOAT64),
        ("BigInt64", Kind.INT64),
        ("BigUint64", Kind.INT64),
    ):
        endian = "little" if kind is Kind.INT8 else "argument"
        found[f"set{name}"] = _Method(kind, True, 0, endian)
        found[f"get{name}"] = _Method(kind, False, 0, endian)
        for spelled in {name, name.replace("Uint", "UInt"), _NODE_FLOATS.get(name, name)}:
            for suffix, order in (("LE", "little"), ("BE", "big")):
                ending = "" if kind is Kind.INT8 else suffix
                found[f"write{spelled}{ending}"] = _Method(kind, True, 1, order)
                found[f"read{spelled}{ending}"] = _Method(kind, False, 0, order)
    found["getPointer"] = _Method(Kind.POINTER, False, 0, "little")
    return found


_NODE_FLOATS = {"Float32": "Float", "Float64": "Double"}
_METHODS = _methods()


@dataclass
class _Root:
    """Where a receiver leads: the memory, and what was learnt on the way."""

    key: Hashable
    names: list[str] = field(default_factory=list)
    around: list[str] = field(default_factory=list)
    size: Optional[int] = None
    line: int = 0
    base: Optional[int] = 0
    element: Optional[Kind] = None
    is_view: bool = False
    """Whether it is a DataView, whose byte order is an argument."""


class _Site(NamedTuple):
    """An access before its offset is known."""

    ref: Ref
    receiver: Ref
    offset: Optional[Node]
    value: Optional[Node]
    endian: Optional[Node]
    method: _Method
    how: str


def judge_accesses(findings: Findings, program: Program) -> None:
    collector = _Collector(program)
    collector.collect()
    for memory in collector.memories.values():
        if memory.accesses:
            judge_memory(findings, memory)


class _Collector:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.memories: dict[Hashable, Memory] = {}
        self._expansions = 0

    def collect(self) -> None:
        for name, method in _METHODS.items():
            for call in self.program.calls.get(name, []):
                self._method_call(call, name, method)
        for name, kind in _BUN_READS.items():
            for call in self.program.calls.get(name, []):
                self._bun_read(call, name, kind)
        for ref in self.program.nodes.get("subscript_expression", []):
            self._element(ref)
        for name in ("eliza_inference_llm_stream_open",):
            for call in self.program.calls.get(name, []):
                self._opened(call)

    # ------------------------------------------------------------------ the ways of access

    def _method_call(self, call: Ref, name: str, method: _Method) -> None:
        callee = unwrap(part(call.node, "function") or call.node)
        receiver = part(callee, "object")
        arguments = children(part(call.node, "arguments"))
        if receiver is None or callee.type != "member_expression":
            return
        if self.program.members.get(name) and not self._root(call.at(receiver)).is_view:
            return
        at = method.offset
        offset = arguments[at] if len(arguments) > at else None
        if offset is None and method.endian == "argument":
            return
        endian = arguments[at + 2 if method.writes else at + 1 :] if at == 0 else []
        value = arguments[1 - at] if method.writes and len(arguments) > 1 - at else None
        order = endian[0] if endian and method.endian == "argument" else None
        site = _Site(call, call.at(receiver), offset, value, order, method, name)
        self._expand(site, call, 0)

    def _bun_read(self, call: Ref, name: str, kind: Kind) -> None:
        callee = unwrap(part(call.node, "function") or call.node)
        target = part(callee, "object")
        arguments = children(part(call.node, "arguments"))
        if target is None or last_name(target) != "read" or not arguments:
            return
        offset = arguments[1] if len(arguments) > 1 else None
        method = _Method(kind, False, 1, "little")
        site = _Site(call, call.at(arguments[0]), offset, None, None, method, f"read.{name}")
        self._expand(site, call, 0)

    def _element(self, ref: Ref) -> None:
        """``new Int32Array(buffer)[5] = x``, or the same of a variable."""
        target, index = part(ref.node, "object"), part(ref.node, "index")
        if target is None or index is None or not _may_be_array(target):
            return
        root = self._root(ref.at(target))
        if root.element is None:
            return
        parent = ref.node.parent
        left = part(parent, "left") if parent is not None else None
        writes = left is not None and left.id == ref.node.id
        if root.element is Kind.INT8 and not writes:
            return
        value = part(parent, "right") if writes else None
        how = text(ref.node)[:40]
        method = _Method(root.element, writes, 0, "little")
        site = _Site(ref, ref.at(target), index, value, None, method, how)
        self._expand(site, ref, 0)

    def _opened(self, call: Ref) -> None:
        """Note what is passed as the configuration of a stream."""
        arguments = children(part(call.node, "arguments"))
        if len(arguments) < 2:
            return
        for node in _identifiers(arguments[1]):
            memory = self.memories.get(self._root(call.at(node)).key)
            if memory is not None:
                memory.opens_a_stream = True

    # ------------------------------------------------------------------ following helpers

    def _expand(self, site: _Site, seen_at: Ref, depth: int) -> None:
        """Take an access in, once for each call of the helper that it is written in."""
        self._expansions += 1
        offset = 0 if site.offset is None else self._number(site.ref.at(site.offset))
        if offset is None and depth < _DEPTH and self._expansions < _EXPANSIONS:
            calls = self._calls_that_decide(site)
            for call, function in calls:
                env = {**site.ref.env, function.id: self.program.arguments(call)}
                ref = Ref(site.ref.node, site.ref.scope, env)
                receiver = Ref(site.receiver.node, site.receiver.scope, env)
                self._expand(site._replace(ref=ref, receiver=receiver), call, depth + 1)
            if calls:
                return
        self._take(site, seen_at, offset)

    def _calls_that_decide(self, site: _Site) -> list[tuple[Ref, Node]]:
        """The calls whose arguments are the offset."""
        if site.offset is None:
            return []
        for name in _identifiers(site.offset):
            declaration, env = site.ref.scope.find(text(name)), site.ref.env
            declaration, env = self._through_arguments(declaration, env)
            if declaration is not None and declaration.how == "parameter":
                function = declaration.node
                if function is not None and function.id not in env:
                    return [(call, function) for call in self.program.call_sites(function)]
        return []

    def _through_arguments(
        self, declaration: Optional[Declaration], env: object
    ) -> tuple[Optional[Declaration], dict[int, tuple[Ref, ...]]]:
        """The parameter behind parameters: a helper may pass on what its caller passes."""
        bound: dict[int, tuple[Ref, ...]] = dict(env) if isinstance(env, dict) else {}
        for _ in range(_DEPTH):
            if declaration is None:
                break
            passed = self.program.argument(declaration, bound)
            names = list(_identifiers(passed.node)) if passed is not None else []
            if passed is None or not names:
                break
            declaration = passed.scope.find(text(names[0]))
        return declaration, bound

    def _number(self, ref: Ref) -> Optional[int]:
        value = self.program.value(ref)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    # ------------------------------------------------------------------ taking an access in

    def _take(self, site: _Site, seen_at: Ref, offset: Optional[int]) -> None:
        root = self._root(site.receiver)
        memory = self.memories.setdefault(root.key, Memory())
        memory.names.extend(name for name in root.names if name not in memory.names)
        around = [*root.around, *site.ref.scope.labels(), *seen_at.scope.labels()]
        memory.around.extend(name for name in around if name not in memory.around)
        if root.size is not None:
            memory.size, memory.line = root.size, root.line
        if (
            offset is not None
            and root.element is not None
            and site.ref.node.type != "call_expression"
        ):
            offset *= root.element.size
        offset = offset + root.base if offset is not None and root.base is not None else None
        names, defined = self._offset_names(site)
        if root.base != 0:
            defined = None
        memory.accesses.append(
            Access(
                line(seen_at.node),
                site.how,
                site.method.kind,
                offset,
                names,
                defined,
                self._value_names(site),
                self.program.comments.get(line(seen_at.node), ""),
                self._is_big_endian(site, root),
                site.method.writes,
            )
        )

    def _is_big_endian(self, site: _Site, root: _Root) -> bool:
        if site.method.endian != "argument":
            return site.method.endian == "big"
        if site.endian is None:
            return root.is_view
        return self.program.value(site.ref.at(site.endian)) is False

    def _offset_names(self, site: _Site) -> tuple[list[str], Optional[int]]:
        """The names of an offset, and the line of the one constant that it is."""
        if site.offset is None:
            return [], None
        ref = site.ref.at(unwrap(site.offset))
        for _ in range(_DEPTH):
            declaration = ref.scope.find(text(ref.node))
            passed = self.program.argument(declaration, ref.env) if declaration else None
            if passed is None:
                break
            ref = passed.at(unwrap(passed.node))
        if ref.node.type == "identifier":
            declaration = ref.scope.find(text(ref.node))
            return [text(ref.node)], declaration.line if declaration else None
        if ref.node.type == "member_expression":
            target, name = part(ref.node, "object"), last_name(ref.node)
            holder = self.program.value(ref.at(target)) if target is not None else None
            names = [name, *_chain(target)]
            if isinstance(holder, Object) and name in holder.lines:
                return names, holder.lines[name]
            own = self.program.members.get(name, [])
            return names, line(own[0].node) if len(own) == 1 else None
        names = [text(each) for each in _identifiers(ref.node)]
        names += [text(each) for each in _properties(ref.node)]
        return names, None

    def _value_names(self, site: _Site) -> list[str]:
        if site.value is not None:
            return list(dict.fromkeys(self._names(site.ref.at(site.value), 0)))
        if site.method.writes:
            return []
        return self._names_of_result(site.ref)

    def _names_of_result(self, ref: Ref) -> list[str]:
        """What a value that is read becomes."""
        for position, parent in enumerate(ancestors(ref.node)):
            if parent.type == "variable_declarator":
                return [text(part(parent, "name"))]
            if parent.type == "pair":
                return [property_name(part(parent, "key"))]
            if parent.type == "return_statement":
                return list(ref.scope.labels())[:1]
            if parent.type not in _PASSING or position > 6:
                return []
        return []

    def _names(self, ref: Ref, depth: int) -> Iterator[str]:
        """The names of what a value is taken from."""
        node = unwrap(ref.node)
        if depth > 8:
            return
        if node.type == "identifier":
            yield from self._names_of_identifier(ref.at(node), depth)
        elif node.type == "member_expression":
            if last_name(node) not in _MEASURES:
                yield last_name(node)
                yield from _chain(part(node, "object"))
        elif node.type in ("call_expression", "new_expression"):
            arguments = children(part(node, "arguments"))
            if not arguments and node.type == "call_expression":
                yield last_name(part(node, "function"))
            for each in arguments:
                yield from self._names(ref.at(each), depth + 1)
        else:
            for each in _valued(node):
                yield from self._names(ref.at(each), depth + 1)

    def _names_of_identifier(self, ref: Ref, depth: int) -> Iterator[str]:
        declaration = self.program.declaration(ref)
        passed = self.program.argument(declaration, ref.env) if declaration else None
        if passed is not None:
            yield from self._names(passed, depth + 1)
            return
        yield text(ref.node)
        if declaration is None:
            return
        yield from (step for step in declaration.path if isinstance(step, str))
        if declaration.how == "value" and declaration.node is not None and not declaration.path:
            yield from self._names(Ref(declaration.node, declaration.scope, ref.env), depth + 1)

    # ------------------------------------------------------------------ what memory it is

    def _root(self, ref: Ref) -> _Root:
        root = _Root(None, around=list(ref.scope.labels()))
        for _ in range(20):
            ref = ref.at(unwrap(ref.node))
            following = self._toward(ref, root)
            if following is None:
                break
            ref = following
        if root.key is None:
            root.key = ("node", ref.node.id)
        return root

    def _toward(self, ref: Ref, root: _Root) -> Optional[Ref]:
        """One step towards the memory; None at its end."""
        node = ref.node
        if node.type == "identifier":
            return self._from_identifier(ref, root)
        if node.type == "member_expression":
            return self._from_member(ref, root)
        if node.type == "new_expression":
            return self._from_new(ref, root)
        if node.type == "call_expression":
            return self._from_call(ref, root)
        return None

    def _from_identifier(self, ref: Ref, root: _Root) -> Optional[Ref]:
        name = text(ref.node)
        root.names.append(name)
        declaration = self.program.declaration(ref)
        if declaration is None:
            root.key = ("name", name)
            return None
        if declaration.type:
            root.names.append(declaration.type)
            root.is_view = root.is_view or declaration.type == "DataView"
        following = self.program.step(ref)
        function = declaration.node
        if following is None and declaration.how == "parameter" and function is not None:
            following = self._only_argument(declaration, function)
        if following is None:
            root.key = ("declared", id(declaration))
        return following

    def _only_argument(self, declaration: Declaration, function: Node) -> Optional[Ref]:
        calls = self.program.call_sites(function)
        if len(calls) != 1:
            return None
        env = {function.id: self.program.arguments(calls[0])}
        passed = self.program.argument(declaration, env)
        return passed if isinstance(passed, Ref) and len(declaration.path) == 1 else None

    def _from_member(self, ref: Ref, root: _Root) -> Optional[Ref]:
        name, target = last_name(ref.node), part(ref.node, "object")
        if name == "buffer" and target is not None:
            return ref.at(target)
        root.names.append(name)
        following = self.program.step(ref)
        if following is None:
            root.key = ("member", text(ref.node))
        return following

    def _from_new(self, ref: Ref, root: _Root) -> Optional[Ref]:
        made = last_name(part(ref.node, "constructor"))
        arguments = self.program.arguments(ref)
        element = _ELEMENTS.get(made)
        if element is not None and root.element is None and not root.is_view:
            root.element = element
        if made == "DataView":
            root.is_view = True
        known = element is not None or made in _BUFFERS
        if not known or not arguments:
            return None
        count = self._number(arguments[0])
        if made in _ALLOCATIONS or (count is not None and element is not None):
            size = None if count is None else count * (element.size if element else 1)
            self._made(ref, root, size, arguments[0])
            return None
        if len(arguments) > 1:
            self._shift(root, arguments[1])
        return arguments[0]

    def _from_call(self, ref: Ref, root: _Root) -> Optional[Ref]:
        called, arguments = last_name(part(ref.node, "function")), self.program.arguments(ref)
        target = part(unwrap(part(ref.node, "function") or ref.node), "object")
        owner = last_name(target)
        if owner == "Buffer" and arguments:
            if called in _ALLOCATORS:
                self._made(ref, root, self._number(arguments[0]), arguments[0])
            return arguments[0] if called == "from" else None
        if called in _VIEWS_OF_POINTERS and arguments:
            root.names.extend(text(each) for each in _identifiers(arguments[0].node))
            if len(arguments) > 2:
                self._made(ref, root, self._number(arguments[2]), arguments[2])
            if len(arguments) > 1:
                self._shift(root, arguments[1])
            return None
        following = self.program.step(ref)
        if following is not None:
            root.names.append(called)
        return following

    def _made(self, ref: Ref, root: _Root, size: Optional[int], written: Ref) -> None:
        """Note that the memory is made here, with this size."""
        root.size, root.line = size, line(ref.node)
        named = [*_identifiers(written.node), *_properties(written.node)]
        root.names.extend(text(each) for each in named if naming.is_clue(text(each)))

    def _shift(self, root: _Root, by: Ref) -> None:
        """Note that a view begins elsewhere in the memory."""
        if last_name(by.node) == "byteOffset":
            return
        number = self._number(by)
        if number is None or root.base is None:
            root.base = None
        else:
            root.base += number


_ALLOCATIONS = frozenset({"ArrayBuffer", "SharedArrayBuffer"})
_BUFFERS = _ALLOCATIONS | {"DataView", "UnsafePointerView"}
_MEASURES = frozenset({"length", "byteLength", "size", "byteOffset"})
_PASSING = word_set("""
    arguments call_expression as_expression parenthesized_expression non_null_expression
    satisfies_expression await_expression
    """)


def _valued(node: Node) -> list[Node]:
    """The parts of an expression that its value is one of."""
    parts = []
    operator = text(part(node, "operator"))
    if node.type == "ternary_expression":
        parts = [part(node, "consequence"), part(node, "alternative")]
        if all(each is not None and _is_plain(each) for each in parts):
            parts = [part(node, "condition")]
    elif node.type == "unary_expression":
        parts = [part(node, "argument")]
    elif operator in ("??", "||"):
        parts = [part(node, "left"), part(node, "right")]
    elif operator in ("|", ">>>", ">>"):
        parts = [part(node, "left")]
    elif operator in ("&&",):
        parts = [part(node, "right")]
    elif operator in ("==", "===", "!=", "!==", ">", "<", ">=", "<="):
        parts = [part(node, "left")]
    return [each for each in parts if each is not None]


def _is_plain(node: Node) -> bool:
    return unwrap(node).type in ("number", "true", "false", "null", "unary_expression", "undefined")


def _identifiers(node: Node) -> Iterator[Node]:
    """The identifiers of a small expression."""
    if node.type == "identifier":
        yield node
    for each in children(node):
        yield from _identifiers(each)


def _properties(node: Node) -> Iterator[Node]:
    if node.type == "property_identifier":
        yield node
    for each in children(node):
        yield from _properties(each)


def _chain(node: Optional[Node]) -> Iterator[str]:
    """The names of ``a.b.c``."""
    while node is not None:
        node = unwrap(node)
        if last_name(node):
            yield last_name(node)
        node = part(node, "object") if node.type == "member_expression" else None


def _may_be_array(target: Node) -> bool:
    return unwrap(target).type in ("identifier", "member_expression", "new_expression")
