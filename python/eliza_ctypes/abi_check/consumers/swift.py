"""Reads Swift: ``@_silgen_name``, functions bound by name, mirrored structures, raw memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, NamedTuple, Optional

from ..table import Kind, Struct
from . import constants, layouts, naming
from .findings import Findings
from .offsets import Row, judge_offset_constant, judge_rows
from .signatures import (
    LONG_DOUBT,
    Binding,
    Type,
    judge_call,
    judge_function,
    judge_looked_up,
)
from .swift_memory import judge_accesses
from .swift_source import prepare
from .swift_values import Values, argument_of, called_name, label_of, listed_arguments, value_of
from .syntax import ancestors, child, children, field, line, of_type, parse, text, walk, word_set

if TYPE_CHECKING:
    from tree_sitter import Node

_KINDS = {
    Kind.VOID: "Void Never",
    Kind.INT8: "Int8 UInt8 CChar CSignedChar CUnsignedChar Bool CBool ObjCBool",
    Kind.INT16: "Int16 UInt16 CShort CUnsignedShort",
    Kind.INT32: "Int32 UInt32 CInt CUnsignedInt CChar32",
    Kind.INT64: "Int64 UInt64 Int UInt CLongLong CUnsignedLongLong size_t ssize_t intptr_t",
    Kind.FLOAT32: "Float CFloat Float32",
    Kind.FLOAT64: "Double CDouble Float64 CGFloat",
    Kind.POINTER: """
        OpaquePointer UnsafePointer UnsafeMutablePointer UnsafeRawPointer UnsafeMutableRawPointer
        AutoreleasingUnsafeMutablePointer CVaListPointer Unmanaged
        """,
}
_NAMED = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_UNSIGNED = word_set("UInt8 UInt16 UInt32 UInt64 UInt CUnsignedInt CUnsignedLongLong")
_C_INTEGERS = {"int32_t": Kind.INT32, "int64_t": Kind.INT64, "uint64_t": Kind.INT64}
_TYPES = word_set("""
    array_type dictionary_type existential_type function_type metatype opaque_type optional_type
    protocol_composition_type tuple_type user_type
    """)
_STATEMENTS = ("statements", "function_body", "class_body", "enum_class_body", "source_file")


def check(findings: Findings, source: bytes) -> None:
    prepared = prepare(source)
    root = parse("swift", prepared.source)
    reader = _Reader(findings, root, prepared.inline_types)
    reader.read()
    judge_accesses(findings, root, reader.values, reader.travels)


class _Function(NamedTuple):
    """A C function type."""

    returns: Type
    parameters: list[Type]
    line: int


class _Reader:
    def __init__(
        self, findings: Findings, root: Node, inline_types: dict[str, tuple[str, int]]
    ) -> None:
        self.findings = findings
        self.aliases: dict[str, Node] = {}
        self.variables: dict[str, list[Node]] = {}
        """The declared types of the variables and properties of each name."""
        self.declared: set[str] = set()
        self.mirrored: set[str] = set()
        """The types that pointers to, or the layouts of, are spoken of."""
        self.copies: dict[str, Struct] = {}
        self.nodes: dict[str, list[Node]] = {}
        for node in walk(root):
            if node.type in _KEPT:
                self.nodes.setdefault(node.type, []).append(node)
        for name, (written, at) in inline_types.items():
            alias = "\n" * (at - 1) + f"typealias A = {written}"
            for node in of_type(parse("swift", alias.encode()), "typealias_declaration"):
                self._alias(name, node)
        self.values = Values(self.nodes)

    def read(self) -> None:
        for node in self._each("typealias_declaration"):
            self._alias(text(field(node, "name")), node)
        for node in self._each("property_declaration"):
            written = _written_type(node)
            if written is not None:
                for name in _names(node):
                    self.variables.setdefault(name, []).append(written)
        for node in self._each("function_declaration"):
            self._declaration(node)
        for node in self._each(*_SPEAKING):
            self.mirrored.update(_pointed_to(node))
        for node in self._each("line_string_literal"):
            self._string(node)
        for node in self._each("call_expression"):
            self._call(node)
        self.findings.follow({name: text(node) for name, node in self.aliases.items()})
        for node in self._each("class_declaration"):
            self._class(node)
        for node in self._each("dictionary_literal"):
            self._key_paths(node)
        for node in self._each("equality_expression"):
            self._assertion(node)
        self._constants()

    def _each(self, *types: str) -> Iterator[Node]:
        for kind in types:
            yield from self.nodes.get(kind, [])

    def _alias(self, name: str, node: Node) -> None:
        written = _last_type(node)
        if written is not None:
            self.aliases.setdefault(name, written)

    # ------------------------------------------------------------------ types

    def travels(self, node: Optional[Node], depth: int = 0) -> Type:
        """How a value of this type is passed."""
        written = text(node)
        if node is None or depth > 20:
            return Type(written)
        if node.type == "optional_type":
            inner = self.travels(_last_type(node), depth + 1)
            is_pointer = inner.kind is Kind.POINTER
            return Type(written, inner.kind if is_pointer else None)
        if node.type == "function_type":
            return Type(written, Kind.POINTER)
        if node.type == "tuple_type":
            items = [each for each in children(node) if each.type == "tuple_type_item"]
            if not items:
                return Type(written, Kind.VOID)
            inner_type = _last_type(items[0]) if len(items) == 1 else None
            return self.travels(inner_type, depth + 1)._replace(written=written)
        return self._named(node, written, depth)

    def _named(self, node: Node, written: str, depth: int) -> Type:
        names = [text(each) for each in children(node) if each.type == "type_identifier"]
        name = names[-1] if names else ""
        if name in self.aliases:
            return self.travels(self.aliases[name], depth + 1)._replace(written=written)
        if name == "Optional":
            inner = self.travels(_last_type(child(node, "type_arguments")), depth + 1)
            return Type(written, inner.kind if inner.kind is Kind.POINTER else None)
        if name in ("CLong", "CUnsignedLong"):
            return Type(written, None, doubt=LONG_DOUBT)
        if name in self.findings.table.callbacks:
            return Type(written, Kind.POINTER)
        kind = _NAMED.get(name) or _C_INTEGERS.get(name)
        return Type(written, kind, name not in _UNSIGNED)

    def function(self, node: Optional[Node]) -> Optional[_Function]:
        """The C function type that this is, names, or wraps."""
        for _ in range(20):
            if node is None:
                return None
            if node.type == "function_type":
                return self._function(node)
            if node.type == "optional_type":
                node = _last_type(node)
            elif node.type == "tuple_type":
                items = children(node)
                node = _last_type(items[0]) if len(items) == 1 else None
            elif node.type == "user_type":
                names = [text(each) for each in children(node) if each.type == "type_identifier"]
                node = self.aliases.get(names[-1]) if names else None
            else:
                return None
        return None

    def _function(self, node: Node) -> _Function:
        items = [each for each in children(field(node, "params")) if each.type == "tuple_type_item"]
        parameters = [self.travels(_last_type(item))._replace(line=line(item)) for item in items]
        return _Function(self.travels(_last_type(node)), parameters, line(node))

    # ------------------------------------------------------------------ declared functions

    def _declaration(self, node: Node) -> None:
        """``@_silgen_name("eliza_inference_x") func f(..)``; other functions are the consumer's."""
        own = text(field(node, "name"))
        symbol = ""
        for attribute in of_type(child(node, "modifiers") or node, "attribute"):
            kind = text(child(attribute, "user_type"))
            if kind in ("_silgen_name", "_extern"):
                symbol = _string_in(attribute) or own
        if naming.is_abi_name(own):
            self.declared.add(own)
        if not naming.is_abi_name(symbol):
            return
        self.declared.add(own)
        parameters = [each for each in children(node) if each.type == "parameter"]
        written = [self._parameter(each) for each in parameters]
        result = _last_type(node)
        returns = Type("Void", Kind.VOID)
        if result is not None:
            returns = self.travels(result)._replace(line=line(result))
        if not self.findings.bound(symbol, line(node), "declarations"):
            return
        binding = Binding(returns, written, _line_of_name(node))
        judge_function(self.findings, symbol, binding, "declarations")

    def _parameter(self, node: Node) -> Type:
        modifiers = text(child(node, "parameter_modifiers"))
        written = text(node)
        if "inout" in modifiers.split():
            return Type(written, Kind.POINTER, line=line(node))
        return self.travels(_last_type(node))._replace(written=written, line=line(node))

    # ------------------------------------------------------------------ binding by name

    def _string(self, node: Node) -> None:
        name = text(field(node, "text"))
        if not naming.is_abi_name(name):
            return
        outer = next((each for each in ancestors(node) if each.type in _HOLDERS), None)
        if outer is None or outer.type == "attribute":
            return
        call = next((each for each in ancestors(node) if each.type == "call_expression"), None)
        if call is None or set(naming.words(called_name(call))) & _SAYING:
            return
        called = called_name(call)
        group = None if naming.finds_or_not(called) else called
        function = self._bound_type(node)
        around = [each for each in ancestors(node) if each.type == "call_expression"]
        if function is None and not any(naming.looks_up(called_name(each)) for each in around):
            return
        binding = None
        if function is not None:
            returns, parameters, where = function
            binding = Binding(returns, parameters, where, bound_at=line(node))
        judge_looked_up(self.findings, name, binding, line(node), group)

    def _bound_type(self, node: Node) -> Optional[_Function]:
        """The function type that a looked-up symbol becomes."""
        for outer in ancestors(node):
            if outer.type in _STATEMENTS:
                return None
            found = self._type_at(outer)
            if found is not None:
                return found
            if outer.type in ("property_declaration", "guard_statement", "if_statement"):
                return self._cast_later(outer, node)
            if outer.type == "value_argument" and label_of(outer):
                labelled = self._type_of_variable(label_of(outer))
                if labelled is not None:
                    return labelled
        return None

    def _type_at(self, outer: Node) -> Optional[_Function]:
        """The type that this expression or statement around a symbol's name gives it."""
        if outer.type == "call_expression":
            given = [self._metatype(value_of(each)) for each in listed_arguments(outer)]
            casts = [each for each in of_type(outer, "call_expression") if _is_cast(each)]
            inside = [self._cast_type(each) for each in casts] if len(casts) == 1 else []
            return next((each for each in [*given, *inside] if each is not None), None)
        if outer.type == "as_expression":
            return self.function(_last_type(outer))
        if outer.type == "property_declaration":
            return self.function(_written_type(outer))
        if outer.type == "assignment":
            names = list(of_type(field(outer, "target") or outer, "simple_identifier"))
            return self._type_of_variable(text(names[-1])) if names else None
        return None

    def _type_of_variable(self, name: str) -> Optional[_Function]:
        found = self.variables.get(name, [])
        if len({text(each) for each in found}) != 1:
            return None
        return self.function(found[0])

    def _cast_type(self, call: Node) -> Optional[_Function]:
        given = [self._metatype(value_of(each)) for each in listed_arguments(call)]
        return next((each for each in given if each is not None), None)

    def _metatype(self, node: Optional[Node]) -> Optional[_Function]:
        """The function type ``T`` of ``T.self``."""
        if node is None or node.type != "navigation_expression":
            return None
        parts = text(node).split(".")
        if parts[-1] != "self" or len(parts) < 2:
            return None
        return self.function(self.aliases.get(parts[-2].rstrip("?")))

    def _cast_later(self, binding: Node, node: Node) -> Optional[_Function]:
        """The type of ``unsafeBitCast(s, to:)`` where ``let s = dlsym(..)`` is the statement."""
        names = [text(each) for each in binding.children_by_field_name("bound_identifier")]
        names += _names(binding) if binding.type == "property_declaration" else []
        body = next((each for each in ancestors(binding) if each.type in _STATEMENTS), None)
        if body is None or not names:
            return None
        for call in of_type(body, "call_expression"):
            first = next(iter(listed_arguments(call)), None)
            used = text(value_of(first)).rstrip("!") if first is not None else ""
            if call.start_byte > node.end_byte and _is_cast(call) and used in names:
                return self._cast_type(call)
        return None

    # ------------------------------------------------------------------ calls

    def _call(self, call: Node) -> None:
        """Judge a direct call, of a function that a C module declares."""
        callee = children(call)[0] if children(call) else None
        name = text(callee) if callee is not None and callee.type == "simple_identifier" else ""
        if not naming.is_abi_name(name) or name in self.declared:
            return
        if name not in self.findings.table.functions:
            if name.startswith("eliza_inference_"):
                self.findings.bound(name, line(call))
            return
        suffix = child(call, "call_suffix")
        trailing = [each for each in children(suffix) if each.type == "lambda_literal"]
        if suffix is not None and not suffix.has_error:
            count = len(listed_arguments(call)) + len(trailing)
            judge_call(self.findings, name, count, line(call))

    # ------------------------------------------------------------------ structures

    def _class(self, node: Node) -> None:
        name = text(field(node, "name"))
        self._members(name, node)
        kind = text(field(node, "declaration_kind"))
        if kind != "struct":
            return
        members = list(self._fields(node))
        names = [each.name for each in members]
        mirror = layouts.mirrored(self.findings, name, names, line(node), name in self.mirrored)
        if mirror is None:
            return
        _, exact = naming.struct_mirrored(name, self.findings.table)
        if not layouts.names_most(mirror.struct, names) and not (exact and name in self.mirrored):
            return
        self.copies[name] = mirror.struct
        points = any(each.type.kind is Kind.POINTER for each in members) or name in self.mirrored
        if points and all(each.type.kind is not None for each in members):
            layouts.judge_layout(self.findings, mirror.struct, members, line(node), name)
        elif name in self.mirrored:
            self.findings.cannot_judge(f"{name} is no structure of C types", line(node))

    def _fields(self, node: Node) -> Iterator[layouts.Member]:
        for each in children(field(node, "body")):
            modifiers = text(child(each, "modifiers")).split()
            stored = each.type == "property_declaration" and field(each, "computed_value") is None
            if stored and "static" not in modifiers and "class" not in modifiers:
                written = _written_type(each)
                for name in _names(each):
                    yield layouts.Member(name, self._field_type(each, written), line(each))

    def _field_type(self, node: Node, written: Optional[Node]) -> Type:
        value = field(node, "value")
        if written is None and value is not None and value.type == "call_expression":
            name = called_name(value)
            return Type(name, _NAMED.get(name), name not in _UNSIGNED)
        return self.travels(written)

    def _key_paths(self, node: Node) -> None:
        """``[\\.slotId: 20]``."""
        entries = list(
            zip(node.children_by_field_name("key"), node.children_by_field_name("value"))
        )
        rows = []
        for key, value in entries:
            number = self.values.evaluate(value)
            name = text(key).rsplit(".", 1)[-1]
            if text(key).startswith("\\") and number is not None:
                rows.append(Row(name, number, line(key)))
        judge_rows(self.findings, "", rows, len(entries))

    def _assertion(self, node: Node) -> None:
        """``MemoryLayout<T>.size == 80`` and ``MemoryLayout<T>.offset(of: \\.slotId) == 20``."""
        number = self.values.evaluate(field(node, "rhs"))
        whole = node
        # The grammar takes the brackets of MemoryLayout<T> for comparisons.
        while whole.parent is not None and whole.parent.type == "comparison_expression":
            whole = whole.parent
        measured = text(whole).rsplit("==", 1)[0].replace(" ", "")
        name = measured[len("MemoryLayout<") :].split(">")[0]
        struct = self.copies.get(name) or naming.struct_mirrored(name, self.findings.table)[0]
        if number is None or struct is None or not measured.startswith("MemoryLayout<"):
            return
        if measured.endswith((".size", ".stride")):
            constants.judge_size(self.findings, struct, number, line(node), measured)
        elif ".offset(of:\\" in measured:
            field_name = measured.rstrip(")").rsplit(".", 1)[-1]
            row = Row(field_name, number, line(node), sure=True)
            known = naming.field_named(field_name, struct)
            if known is not None:
                judge_rows(self.findings, "offset", [row, row], 2)

    # ------------------------------------------------------------------ constants

    def _members(self, container: str, node: Node) -> None:
        members: list[constants.Member] = []
        for each in children(field(node, "body")):
            if each.type == "enum_entry":
                members += self._enum_entry(each, members)
            elif each.type == "property_declaration":
                number = self.values.evaluate(_value(each))
                for name in _names(each):
                    if number is not None:
                        members.append(constants.Member(name, number, line(each)))
        constants.judge_members(self.findings, container, members)
        rows = [Row(member.name, member.value, member.line) for member in members]
        if naming.is_offset_name(container):
            judge_rows(self.findings, container, rows, len(rows))

    def _enum_entry(self, node: Node, before: list[constants.Member]) -> list[constants.Member]:
        found: list[constants.Member] = []
        following = before[-1].value + 1 if before else 0
        pending: list[Node] = []
        for position, each in enumerate(node.children):
            role = node.field_name_for_child(position)
            if role == "name":
                for name in pending:
                    found.append(constants.Member(text(name), following, line(name)))
                    following += 1
                pending = [each]
            elif role == "raw_value" and each.is_named and pending:
                number = self.values.evaluate(each)
                if number is None:
                    return found
                found.append(constants.Member(text(pending[0]), number, line(pending[0])))
                pending, following = [], number + 1
        for name in pending:
            found.append(constants.Member(text(name), following, line(name)))
        return found

    def _constants(self) -> None:
        outside = []
        for node in self._each("property_declaration"):
            number = self.values.evaluate(_value(node))
            if number is None:
                continue
            for name in _names(node):
                if node.parent is not None and node.parent.type == "source_file":
                    outside.append(constants.Member(name, number, line(node)))
                constants.judge_constant(self.findings, name, number, line(node))
                judge_offset_constant(self.findings, name, number, line(node))
        constants.judge_loose(self.findings, "", outside)


_KEPT = word_set("""
    call_expression class_declaration comparison_expression dictionary_literal enum_entry
    equality_expression function_declaration lambda_literal line_string_literal
    navigation_expression property_declaration typealias_declaration user_type
    """)
_SPEAKING = ("user_type", "navigation_expression", "call_expression", "comparison_expression")
_HOLDERS = ("attribute", "value_argument", "array_literal", "dictionary_literal")
_SAYING = word_set("print error log debug warning fatal precondition assert message")


def _last_type(node: Optional[Node]) -> Optional[Node]:
    """The type that a declaration, a parameter or another type ends with."""
    if node is None:
        return None
    found = [each for each in children(node) if each.type in _TYPES]
    return found[-1] if found else None


def _written_type(node: Node) -> Optional[Node]:
    return _last_type(child(node, "type_annotation"))


def _names(node: Node) -> list[str]:
    """The names that a property declaration declares."""
    return [text(each) for each in node.children_by_field_name("name") if each.type == "pattern"]


def _value(node: Node) -> Optional[Node]:
    """The value of a property, also of one that computes a constant."""
    given = field(node, "value")
    if given is not None:
        return given
    statements = child(field(node, "computed_value"), "statements")
    listed = children(statements)
    return listed[0] if len(listed) == 1 else None


def _string_in(attribute: Node) -> str:
    literal = next(of_type(attribute, "line_string_literal"), None)
    return text(field(literal, "text"))


def _line_of_name(node: Node) -> int:
    name = field(node, "name")
    return line(name if name is not None else node)


def _is_cast(call: Node) -> bool:
    return called_name(call) in ("unsafeBitCast", "assumingMemoryBound", "bindMemory")


def _pointed_to(node: Node) -> Iterator[str]:
    """``T`` of ``UnsafePointer<T>`` and of ``MemoryLayout<T>``."""
    if node.type == "user_type":
        if "Pointer" in text(child(node, "type_identifier")):
            for each in of_type(child(node, "type_arguments") or node, "type_identifier"):
                yield text(each)
    elif text(node).startswith("MemoryLayout<"):
        yield text(node)[len("MemoryLayout<") :].split(">")[0].strip()
    elif node.type == "call_expression" and called_name(node).startswith("withUnsafe"):
        first = next(iter(listed_arguments(node)), None)
        yield text(argument_of(first))
