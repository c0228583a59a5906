"""Reads Rust: ``extern "C"`` blocks, ``repr(C)`` structures, symbols loaded by name, constants."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Iterator, NamedTuple, Optional

from ..table import Kind, Struct
from . import constants, layouts, naming
from .findings import Findings
from .offsets import judge_offset, judge_offset_constant
from .signatures import (
    LONG_DOUBT,
    Binding,
    Type,
    judge_call,
    judge_function,
    judge_looked_up,
)
from .syntax import ancestors, child, children, field, line, parse, text, walk, word_set

if TYPE_CHECKING:
    from tree_sitter import Node

_KINDS = {
    Kind.INT8: "i8 u8 bool c_char c_schar c_uchar int8_t uint8_t",
    Kind.INT16: "i16 u16 c_short c_ushort int16_t uint16_t",
    Kind.INT32: "i32 u32 char c_int c_uint int32_t uint32_t",
    Kind.INT64: """
        i64 u64 isize usize c_longlong c_ulonglong size_t ssize_t intptr_t uintptr_t ptrdiff_t
        int64_t uint64_t c_size_t c_ssize_t
        """,
    Kind.FLOAT32: "f32 c_float",
    Kind.FLOAT64: "f64 c_double",
}
_NAMED = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_UNSIGNED = word_set("u8 u16 u32 u64 usize bool c_uint c_uchar c_ushort uint32_t size_t")
_POINTERS = frozenset({"NonNull", "Box", "Pin"})
_WRAPPERS = frozenset({"Option", "Symbol", "RawSymbol", "Result", "OnceLock", "OnceCell", "Lazy"})
# The grammar does not read what a macro is given.
_SIZE = re.compile(r"size_of\s*::\s*<\s*([\w:]+)\s*>\s*\(\s*\)\s*(?:==|,|-)\s*(\d+)")
_OFFSET = re.compile(r"offset_of!\s*[(\[]\s*([\w:]+)\s*,\s*(\w+)\s*[)\]]\s*(?:==|,|-)\s*(\d+)")
_STOPS = ("block", "declaration_list", "source_file", "match_block")
_SAYING = word_set(
    "assert bail context debug error eprintln expect format info log msg panic print println trace "
    "warn write writeln"
)


# Of Rust's edition of 2024, which the grammar for Python 3.9 does not know.
_EDITION_2024 = re.compile(rb'\bunsafe(?=\s+extern\s*("[^"]*")?\s*\{)|\bsafe(?=\s+fn\b)')


def check(findings: Findings, source: bytes) -> None:
    known = _EDITION_2024.sub(lambda word: b" " * len(word.group()), source)
    _Reader(findings, parse("rust", known)).read()


class _Function(NamedTuple):
    returns: Type
    parameters: list[Type]
    variadic: bool
    line: int


class _Reader:
    def __init__(self, findings: Findings, root: Node) -> None:
        self.findings = findings
        self.aliases: dict[str, Node] = {}
        self.enums: dict[str, Type] = {}
        self.fields: dict[str, list[Node]] = {}
        """The types of the fields of each name."""
        self.declared: set[str] = set()
        self.mirrored: dict[str, Struct] = {}
        self.nodes: dict[str, list[Node]] = {}
        for node in walk(root):
            if node.type in _KEPT:
                self.nodes.setdefault(node.type, []).append(node)

    def read(self) -> None:
        for node in self._each("type_item"):
            written = field(node, "type")
            if written is not None:
                self.aliases.setdefault(text(field(node, "name")), written)
        for node in self._each("field_declaration"):
            written = field(node, "type")
            if written is not None:
                self.fields.setdefault(text(field(node, "name")), []).append(written)
        for node in self._each("enum_item"):
            name = text(field(node, "name"))
            given = [w for a in _attributes(node) for w in _words_of(a, "repr") if w in _NAMED]
            self.enums[name] = Type(name, _NAMED[given[0]] if given else Kind.INT32)
        for node in self._each("function_signature_item", "function_item"):
            self._declaration(node)
        for node in self._each("string_literal"):
            self._string(node)
        for node in self._each("call_expression"):
            self._call(node)
        self.findings.follow({name: text(node) for name, node in self.aliases.items()})
        for node in self._each("struct_item"):
            self._struct(node)
        for node in self._each("macro_invocation", "binary_expression"):
            self._assertion(node)
        self._constants()

    def _each(self, *types: str) -> Iterator[Node]:
        for kind in types:
            yield from self.nodes.get(kind, [])

    # ------------------------------------------------------------------ types

    def travels(self, node: Optional[Node], depth: int = 0) -> Type:
        """How a value of this type is passed."""
        written = " ".join(text(node).split())
        if node is None or node.type in ("unit_type", "never_type"):
            return Type(written or "()", Kind.VOID)
        if depth > 20:
            return Type(written)
        if node.type in ("pointer_type", "reference_type", "function_type"):
            return Type(written, Kind.POINTER)
        if node.type == "generic_type":
            return self._generic(node, written, depth)
        name = _last_name(node)
        if name in self.aliases:
            return self.travels(self.aliases[name], depth + 1)._replace(written=written)
        if name in self.enums:
            return self.enums[name]._replace(written=written)
        if name in ("c_long", "c_ulong"):
            return Type(written, None, doubt=LONG_DOUBT)
        if name == "c_void":
            return Type(written, Kind.VOID)
        if name in self.findings.table.callbacks:
            return Type(written, Kind.POINTER)
        return Type(written, _NAMED.get(name), name not in _UNSIGNED)

    def _generic(self, node: Node, written: str, depth: int) -> Type:
        name = _last_name(field(node, "type"))
        arguments = children(field(node, "type_arguments"))
        if name in _POINTERS:
            return Type(written, Kind.POINTER)
        if name == "Option" and arguments:
            inner = self.travels(arguments[0], depth + 1)
            return Type(written, inner.kind if inner.kind is Kind.POINTER else None)
        return Type(written)

    def function(self, node: Optional[Node], depth: int = 0) -> Optional[_Function]:
        """The function type that this is, names, or wraps as ``Symbol`` and ``Option`` do."""
        if node is None or depth > 20:
            return None
        if node.type == "function_type":
            return self._signature(node)
        if node.type == "generic_type":
            if _last_name(field(node, "type")) not in _WRAPPERS:
                return None
            found = [self.function(e, depth + 1) for e in children(field(node, "type_arguments"))]
            return next((each for each in found if each is not None), None)
        if node.type in ("type_identifier", "scoped_type_identifier", "identifier"):
            return self.function(self.aliases.get(_last_name(node)), depth + 1)
        return None

    def _signature(self, node: Node) -> _Function:
        parameters, variadic = [], False
        for each in children(field(node, "parameters")):
            if each.type == "variadic_parameter":
                variadic = True
            elif each.type not in ("attribute_item", "self_parameter"):
                written = field(each, "type") if each.type == "parameter" else each
                parameters.append(self.travels(written)._replace(line=line(each)))
        result = field(node, "return_type")
        returns = self.travels(result)._replace(line=line(result) if result is not None else 0)
        return _Function(returns, parameters, variadic, line(node))

    # ------------------------------------------------------------------ declared functions

    def _declaration(self, node: Node) -> None:
        own = text(field(node, "name"))
        symbol = own
        for attribute in _attributes(node):
            given = field(child(attribute, "attribute"), "value")
            if "link_name" in text(attribute) and given is not None:
                symbol = text(child(given, "string_content"))
        if not naming.is_abi_name(symbol):
            return
        foreign = any(each.type == "foreign_mod_item" for each in list(ancestors(node))[:3])
        modifiers = text(child(node, "function_modifiers"))
        if not foreign and "extern" not in modifiers:
            self.declared.add(own)
            return
        self.declared.update({own, symbol})
        known = symbol in self.findings.table.functions
        if node.type == "function_item" and not known:
            return
        function = self._signature(node)
        where = line(field(node, "name") or node)
        binding = Binding(function.returns, function.parameters, where, function.variadic)
        judge_function(self.findings, symbol, binding, "declarations")

    def _call(self, call: Node) -> None:
        """Judge a call of a function that is declared in another file."""
        callee = field(call, "function")
        name = _last_name(callee)
        simple = callee is not None and callee.type in ("identifier", "scoped_identifier")
        if not simple or not naming.is_abi_name(name) or name in self.declared:
            return
        if name in self.findings.table.functions:
            arguments = field(call, "arguments")
            if arguments is not None and not arguments.has_error:
                judge_call(self.findings, name, len(children(arguments)), line(call))
        elif name.startswith("eliza_inference_"):
            self.findings.bound(name, line(call))

    # ------------------------------------------------------------------ binding by name

    def _string(self, node: Node) -> None:
        name = text(child(node, "string_content"))
        if not naming.is_abi_name(name):
            return
        around = list(ancestors(node))
        if any(each.type in ("attribute_item", "match_pattern") for each in around[:4]):
            return
        call = next((each for each in around if each.type in _CALLS), None)
        called = _last_name(field(call, "function") or field(call, "macro"))
        if call is None or set(naming.words(called)) & _SAYING:
            return
        group = None if naming.finds_or_not(called) and not _is_needed(call) else called
        function = self._bound_type(around)
        calls = [field(each, "function") or field(each, "macro") for each in around]
        if function is None and not any(naming.looks_up(_last_name(each)) for each in calls):
            return
        binding = None
        if function is not None:
            returns, parameters, variadic, where = function
            binding = Binding(returns, parameters, where, variadic, line(node))
        judge_looked_up(self.findings, name, binding, line(node), group)

    def _bound_type(self, around: list[Node]) -> Optional[_Function]:
        """The function type that a looked-up symbol becomes."""
        for outer in around:
            found = self._type_at(outer)
            if found is not None:
                return found
            if outer.type == "function_item":
                return self.function(field(outer, "return_type"))
            if outer.type in ("expression_statement", *_STOPS) and not _is_value(outer):
                return None
        return None

    def _type_at(self, outer: Node) -> Optional[_Function]:
        if outer.type == "call_expression":
            generic = field(outer, "function")
            given = children(field(generic, "type_arguments"))
            return next((f for f in map(self.function, reversed(given)) if f is not None), None)
        if outer.type in ("let_declaration", "static_item", "const_item", "type_cast_expression"):
            return self.function(field(outer, "type"))
        if outer.type == "field_initializer":
            return self._type_of_field(text(field(outer, "field")))
        if outer.type == "assignment_expression":
            return self._type_of_field(_last_name(field(outer, "left")))
        if outer.type == "token_tree":
            named = [self.function(each) for each in children(outer) if each.type == "identifier"]
            found = [each for each in named if each is not None]
            return found[0] if len(found) == 1 else None
        return None

    def _type_of_field(self, name: str) -> Optional[_Function]:
        found = self.fields.get(name, [])
        if len({text(each) for each in found}) != 1:
            return None
        return self.function(found[0])

    # ------------------------------------------------------------------ structures

    def _struct(self, node: Node) -> None:
        name = text(field(node, "name"))
        members = [
            self._member(each)
            for each in children(field(node, "body"))
            if each.type == "field_declaration"
        ]
        is_c = any("C" in _words_of(each, "repr") for each in _attributes(node))
        names = [each.name for each in members]
        mirror = layouts.mirrored(self.findings, name, names, line(node), is_c)
        if mirror is None or not layouts.names_most(mirror.struct, names):
            return
        self.mirrored[name] = mirror.struct
        # A reference, also to a slice, may be among a consumer's own options.
        raw = any(each.type.written.startswith("*") for each in members)
        if is_c:
            layouts.judge_layout(self.findings, mirror.struct, members, line(node), name)
        elif mirror.certain or (raw and all(each.type.kind is not None for each in members)):
            self.findings.problem(
                f"{name} has no #[repr(C)]: its fields may be in another order", line(node)
            )

    def _member(self, node: Node) -> layouts.Member:
        written, count = field(node, "type"), 1
        while written is not None and written.type == "array_type":
            length = _number(text(field(written, "length")))
            if length is None:
                written = None
                break
            count, written = count * length, field(written, "element")
        kind = self.travels(written) if written is not None else Type(text(field(node, "type")))
        return layouts.Member(text(field(node, "name")), kind, line(node), count)

    def _assertion(self, node: Node) -> None:
        """``size_of::<T>() == 80`` and ``offset_of!(T, slot_id) == 20``, also within macros."""
        whole = text(node)
        if "size_of" not in whole and "offset_of" not in whole:
            return
        for match in _SIZE.finditer(whole):
            name = match.group(1).rsplit("::", 1)[-1]
            struct = self._struct_measured(name)
            if struct is not None:
                where = line(node) + whole.count("\n", 0, match.start())
                what = f"size_of::<{name}>()"
                constants.judge_size(self.findings, struct, int(match.group(2)), where, what)
        for match in _OFFSET.finditer(whole):
            name = match.group(1).rsplit("::", 1)[-1]
            struct = self._struct_measured(name)
            known = naming.field_named(match.group(2), struct) if struct is not None else None
            if struct is not None and known is not None:
                where = line(node) + whole.count("\n", 0, match.start())
                what = f"offset_of!({name}, {match.group(2)})"
                judge_offset(self.findings, struct, known, int(match.group(3)), what, where)

    def _struct_measured(self, name: str) -> Optional[Struct]:
        return self.mirrored.get(name) or naming.struct_mirrored(name, self.findings.table)[0]

    # ------------------------------------------------------------------ constants

    def _constants(self) -> None:
        containers: dict[str, list[constants.Member]] = {}
        for node in self._each("const_item", "static_item"):
            number = _evaluate(field(node, "value"))
            name = text(field(node, "name"))
            if number is None:
                continue
            member = constants.Member(name, number, line(node))
            containers.setdefault(_container(node), []).append(member)
            judge_offset_constant(self.findings, name, number, line(node))
        for node in self._each("enum_item"):
            name = text(field(node, "name"))
            containers.setdefault(name, []).extend(_variants(node))
        for name, members in containers.items():
            constants.judge_members(self.findings, name, members)


_KEPT = word_set("""
    binary_expression call_expression const_item enum_item field_declaration function_item
    function_signature_item macro_invocation static_item string_literal struct_item type_item
    """)
_UNWRAPPING = word_set("expect map_err ok_or ok_or_else unwrap with_context context")
_CALLS = ("call_expression", "macro_invocation", "field_initializer")


def _is_needed(call: Node) -> bool:
    """Whether a lookup that finds nothing is an error here."""
    for outer in ancestors(call):
        if outer.type == "try_expression":
            return True
        if outer.type == "call_expression" and _last_name(field(outer, "function")) in _UNWRAPPING:
            return True
        if outer.type not in ("block", "call_expression", "field_expression", "unsafe_block"):
            break
    return False


def _is_value(block: Node) -> bool:
    """Whether a block may pass its last value on: ``unsafe { .. }``."""
    parent = block.parent
    if block.type == "expression_statement":
        return False
    return parent is not None and parent.type in ("unsafe_block", "block", "function_item")


def _last_name(node: Optional[Node]) -> str:
    """``c_int`` of ``std::ffi::c_int``, ``get`` of ``library.get``."""
    if node is None:
        return ""
    for part in ("name", "field", "function"):
        inner = field(node, part)
        if inner is not None:
            return _last_name(inner)
    return text(node)


def _attributes(node: Node) -> Iterator[Node]:
    """The attributes right before an item."""
    before = node.prev_named_sibling
    while before is not None and ("attribute" in before.type or "comment" in before.type):
        if before.type == "attribute_item":
            yield before
        before = before.prev_named_sibling


def _words_of(attribute: Node, name: str) -> list[str]:
    """``C`` and ``packed`` of ``#[repr(C, packed)]``."""
    inner = child(attribute, "attribute")
    if inner is None or text(child(inner, "identifier")) != name:
        return []
    return [text(each) for each in children(field(inner, "arguments"))]


def _container(node: Node) -> str:
    """The type or the module that a constant belongs to."""
    for outer in ancestors(node):
        if outer.type == "impl_item":
            return text(field(outer, "type"))
        if outer.type == "mod_item":
            return text(field(outer, "name"))
    return ""


def _variants(node: Node) -> list[constants.Member]:
    found: list[constants.Member] = []
    following: Optional[int] = 0
    for each in children(field(node, "body")):
        if each.type == "enum_variant":
            given = field(each, "value")
            number = _evaluate(given) if given is not None else following
            if number is not None:
                found.append(constants.Member(text(field(each, "name")), number, line(each)))
            following = None if number is None else number + 1
    return found


def _evaluate(node: Optional[Node]) -> Optional[int]:
    while node is not None and node.type in ("parenthesized_expression", "type_cast_expression"):
        node = field(node, "value") or next(iter(children(node)), None)
    return None if node is None else _number(text(node))


def _number(written: str) -> Optional[int]:
    digits = written.replace(" ", "").replace("_", "")
    for suffix in ("isize", "usize", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"):
        if digits.endswith(suffix) and not digits.startswith("0x"):
            digits = digits[: -len(suffix)]
    try:
        return int(digits, 0)
    except ValueError:
        return None
