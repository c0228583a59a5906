"""Reads JavaScript and TypeScript: symbol tables for Bun, Deno and ffi-napi, koffi, constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Hashable, Mapping, Optional

from ..table import Kind, Struct
from . import constants, layouts, naming
from .c_types import Function, Types, parsed_prototype, parsed_type, spelled
from .findings import Findings
from .javascript_memory import judge_accesses
from .javascript_values import (
    FUNCTIONS,
    Array,
    External,
    Object,
    Program,
    Ref,
    last_name,
    literal,
    property_name,
    unwrap,
)
from .offsets import Row, judge_offset_constant, judge_rows
from .signatures import Binding, Type, judge_call, judge_callback, judge_function, judge_name
from .syntax import ancestors, children, field, line, parse, text

if TYPE_CHECKING:
    from tree_sitter import Node

_BUN = {
    Kind.VOID: "void",
    Kind.INT8: "char i8 int8_t u8 uint8_t bool",
    Kind.INT16: "i16 int16_t u16 uint16_t",
    Kind.INT32: "i32 int32_t int u32 uint32_t",
    Kind.INT64: "i64 int64_t u64 uint64_t i64_fast u64_fast usize isize size_t",
    Kind.FLOAT32: "f32 float",
    Kind.FLOAT64: "f64 double",
    Kind.POINTER: "ptr pointer void* char* cstring function callback fn buffer",
}
_FFI_NAPI = {Kind.POINTER: "pointer string CString Object byte*"}
_KINDS = {name: kind for kind, names in _BUN.items() for name in names.split()}
_NAPI_KINDS = {name: kind for kind, names in _FFI_NAPI.items() for name in names.split()}
_KOFFI_DECLARES = frozenset({"func", "cdecl", "stdcall", "fastcall", "thiscall", "declare"})
_KOFFI_STRINGS = ("str", "string", "str16", "string16")
_KOFFI_POINTERS = frozenset({"pointer"})
_KOFFI_WRAPPERS = frozenset({"out", "inout", "disposable"})
_KEEPERS = frozenset({"symbols", "syms", "sym"})


def check(findings: Findings, source: bytes, grammar: str) -> None:
    program = Program(parse(grammar, source))
    _Reader(findings, program).read()
    judge_accesses(findings, program)


class _Reader:
    def __init__(self, findings: Findings, program: Program) -> None:
        self.findings = findings
        self.program = program
        self.types = Types(findings.table)
        self.types.enums.update((name, Type(name, Kind.POINTER)) for name in _KOFFI_STRINGS)
        self.aliases: dict[str, str] = {}
        """What koffi's types of each name, also of variables, are made of."""
        self.bound: set[str] = set()
        """The names that this source binds itself."""
        self.read_strings: set[int] = set()
        """Nodes that were judged as something better than a plain string."""

    def read(self) -> None:
        self._koffi_types()
        for ref in self.program.nodes.get("object", []):
            self._object(ref)
        for ref in self.program.nodes.get("assignment_expression", []):
            self._assigned(ref)
        for name in _KOFFI_DECLARES:
            for call in self.program.calls.get(name, []):
                self._koffi_function(call)
        for ref in self.program.nodes.get("new_expression", []):
            self._callback(ref)
        for kind in ("string", "template_string"):
            for ref in self.program.nodes.get(kind, []):
                self._string(ref)
        self._calls()
        self._types_of_parameters()
        self._constants()

    # ------------------------------------------------------------------ symbol tables

    def _object(self, ref: Ref) -> None:
        """The entries of an object that are named after functions, and the object as an entry."""
        entries = [
            (name, ref.at(pair), ref.at(value))
            for pair in children(ref.node)
            if pair.type == "pair"
            for key, value in [(field(pair, "key"), field(pair, "value"))]
            if key is not None and value is not None
            for name in [self.program.key(ref.at(key)) or self._unread_key(ref.at(pair), key)]
            if naming.is_abi_name(name)
        ]
        read = [(name, pair, self.program.value(value)) for name, pair, value in entries]
        is_table = any(_is_entry(value) for _, _, value in read)
        for name, pair, value in read:
            if _is_entry(value) or (is_table and _is_empty(value)):
                own = value.entries.get("name")
                named = self.program.value(own) if isinstance(own, Ref) else name
                named = named if isinstance(named, str) else name
                self._entry(named, value, pair, ref.node.id)
            else:
                self._other_entry(name, value, pair, ref.node.id)
        self._named_entry(ref)

    def _unread_key(self, pair: Ref, key: Node) -> str:
        if key.type == "computed_property_name":
            value = field(pair.node, "value")
            if value is not None and _is_entry(self.program.value(pair.at(value))):
                self._unreadable(f"the name {text(key)} of a bound function", pair.node)
        return ""

    def _named_entry(self, ref: Ref) -> None:
        """``{ name: "eliza_inference_x", args }`` and ``["eliza_inference_x", { args }]``."""
        pairs = {property_name(field(p, "key")) for p in children(ref.node) if p.type == "pair"}
        if not pairs & _ENTRY_KEYS:
            return
        value = self.program.value(ref)
        for key in ("name", "symbol"):
            own = value.entries.get(key)
            name = self.program.value(own) if isinstance(own, Ref) else own
            if isinstance(name, str) and naming.is_abi_name(name):
                self._entry(name, value, ref, None)
                return
        before = ref.node.prev_named_sibling
        name = literal(before) or ""
        parent = ref.node.parent
        if (
            parent is not None
            and parent.type in ("array", "arguments")
            and naming.is_abi_name(name)
        ):
            if before is not None:
                self.read_strings.add(before.id)
            self._entry(name, value, ref, None)

    def _assigned(self, ref: Ref) -> None:
        left, right = field(ref.node, "left"), field(ref.node, "right")
        name = last_name(left)
        if right is not None and naming.is_abi_name(name):
            value = self.program.value(ref.at(right))
            if _is_entry(value):
                self._entry(name, value, ref, None)

    def _entry(self, name: str, entry: Object, ref: Ref, group: Hashable) -> None:
        """A function in the form of Bun or of Deno."""
        self.bound.add(name)
        where = line(ref.node)
        lists = entry.entries.get("args", entry.entries.get("parameters"))
        result = entry.entries.get("returns", entry.entries.get("result"))
        parameters: Optional[list[Type]] = []
        returns: Optional[Type] = Type("void", Kind.VOID)
        if lists is not None:
            parameters = self._listed(lists)
        if result is not None:
            returns = self._type(result)
        if not entry.complete:
            parameters = None if lists is None else parameters
            returns = None if result is None else returns
        if parameters is None:
            self.findings.cannot_judge(f"{name}: its parameters are not written out", where)
        if returns is None:
            self.findings.cannot_judge(f"{name}: its return type is not written out", where)
        judge_function(self.findings, name, Binding(returns, parameters, where), group)

    def _other_entry(self, name: str, value: Any, pair: Ref, group: Hashable) -> None:
        """An entry named after a function that is in neither form."""
        where = line(pair.node)
        if isinstance(value, Array) and len(value.items) == 2 and value.complete:
            parameters = self.program.value(value.items[1])
            if isinstance(parameters, Array):
                self.bound.add(name)
                listed = self._listed(value.items[1])
                binding = Binding(self._type(value.items[0]), listed, where)
                judge_function(self.findings, name, binding, group)
                return
        written = field(pair.node, "value")
        callee = last_name(field(unwrap(written), "function")) if written is not None else ""
        unread = isinstance(value, External) and value.last.endswith("()")
        if unread and callee not in _KOFFI_DECLARES and callee not in _MOCKS:
            self.bound.add(name)
            judge_name(self.findings, name, where, group)
            self.findings.unclear(name, f"{callee}(..) is not known here", where)

    def _listed(self, lists: Any) -> Optional[list[Type]]:
        """The types of a list of parameters, or None where it cannot be read as a whole."""
        value = self.program.value(lists) if isinstance(lists, Ref) else lists
        if not isinstance(value, Array) or not value.complete:
            return None
        return [self._type(item) for item in value.items]

    def _type(self, ref: Any) -> Type:
        """One type of Bun, Deno or ffi-napi."""
        written = str(getattr(ref, "last", ref))
        if isinstance(ref, Ref):
            written = text(self.program.definition(ref).node)
        where = line(ref.node) if isinstance(ref, Ref) else 0
        return self._kind(ref, written)._replace(line=where)

    def _kind(self, ref: Any, written: str) -> Type:
        value = self.program.value(ref) if isinstance(ref, Ref) else ref
        if isinstance(value, str):
            kind = _KINDS.get(value) or _NAPI_KINDS.get(value) or spelled(value).kind
            kind = Kind.POINTER if value.endswith("*") else kind
            return Type(written, kind, signed=not value.startswith("u"))
        if isinstance(value, External) and value.last == "refType()":
            return Type(written, Kind.POINTER)
        if isinstance(value, External) and len(value.path) > 1:
            kind = _KINDS.get(value.last)
            if kind is None and "types" in value.path:  # of ref-napi
                kind = spelled(value.last).kind
            return Type(written, kind, signed=not value.last.startswith("u"))
        if isinstance(value, Object) and "struct" in value.entries:
            return Type(written, None, doubt="a structure by value")
        doubt = "a number that stands for a type" if isinstance(value, (int, float)) else ""
        return Type(written, None, doubt=doubt)

    # ------------------------------------------------------------------ callbacks

    def _callback(self, ref: Ref) -> None:
        """``new JSCallback(f, { args, returns })`` and ``new Deno.UnsafeCallback({ .. }, f)``."""
        if last_name(field(ref.node, "constructor")) not in ("JSCallback", "UnsafeCallback"):
            return
        for argument in self.program.arguments(ref):
            value = self.program.value(argument)
            if _is_entry(value):
                names = [self.program.label(ref.node), *ref.scope.labels()]
                self._named_callback(names, value, ref.node)

    def _named_callback(self, names: list[str], value: Object, node: Node) -> None:
        lists = value.entries.get("args", value.entries.get("parameters"))
        result = value.entries.get("returns", value.entries.get("result"))
        parameters = self._listed(lists) if lists is not None else []
        returns = self._type(result) if result is not None else Type("void", Kind.VOID)
        for name in names:
            callback = naming.callback_hinted(name, self.findings.table)
            if callback is not None:
                judge_callback(self.findings, callback, Binding(returns, parameters, line(node)))
                return
        self._unreadable("which callback this is", node)

    # ------------------------------------------------------------------ koffi

    def _koffi_types(self) -> None:
        """Take in the types that are registered by a name."""
        for how in ("struct", "proto"):
            for call in self.program.calls.get(how, []):
                arguments = self.program.arguments(call)
                name = self.program.value(arguments[0]) if arguments else None
                if how == "struct" and isinstance(name, str):
                    fields = children(arguments[-1].node)
                    self.types.structs.update({name} if len(fields) > 1 else ())
                elif how == "proto" and isinstance(name, str):
                    name = self._koffi_callback(call)[0]
                    self.types.enums[name] = Type(name, Kind.POINTER)
                self._alias(self.program.label(call.node), name)
        for how in ("pointer", "alias", "enumeration", "disposable"):
            for call in self.program.calls.get(how, []):
                arguments = self.program.arguments(call)
                name = self.program.value(arguments[0]) if arguments else None
                if isinstance(name, str) and name.isidentifier() and len(arguments) > 1:
                    self.types.enums[name] = self._koffi_registered(how, arguments[1])
                    self._alias(name, text(arguments[1].node))
                if arguments:
                    self._alias(self.program.label(call.node), text(arguments[0].node))

    def _alias(self, name: str, written: Any) -> None:
        if name and isinstance(written, str):
            self.aliases.setdefault(name, written)

    def _types_of_parameters(self) -> None:
        """Judge structures and callbacks, after the functions that say which ones they are."""
        self.findings.follow(self.aliases)
        for call in self.program.calls.get("struct", []):
            self._koffi_struct(call)
        for name, calls in self.program.calls.items():
            if name != "struct" and "struct" in name.lower():
                for call in calls:
                    self._struct_type(call)
        for ref in self.program.nodes.get("new_expression", []):
            if "struct" in last_name(field(ref.node, "constructor")).lower():
                self._struct_type(ref)
        for call in self.program.calls.get("proto", []):
            self._koffi_prototype_of_callback(call)

    def _koffi_registered(self, how: str, target: Ref) -> Type:
        if how == "pointer":
            return Type("", Kind.POINTER)
        return Type("", Kind.INT32) if how == "enumeration" else self._koffi_type(target)

    def _koffi_function(self, call: Ref) -> None:
        arguments = self.program.arguments(call)
        values = [self.program.value(argument) for argument in arguments]
        callee = field(call.node, "function")
        # In a try statement of its own a declaration may fail.
        tried = next(
            (e for e in ancestors(call.node) if e.type in ("try_statement", *FUNCTIONS)), None
        )
        alone = tried is not None and tried.type == "try_statement"
        group = tried.id if tried is not None and alone else text(field(callee, "object"))
        for argument, value in zip(arguments, values):
            if isinstance(value, str) and "(" in value and "eliza_" in value:
                self._consume(argument)
                self._koffi_prototype(value, argument, group)
                return
            if isinstance(value, External) and "eliza_" in text(argument.node):
                self._consume(argument)
                self._unreadable("a prototype that is put together at run time", call.node)
                return
        named = [at for at, v in enumerate(values) if isinstance(v, str) and naming.is_abi_name(v)]
        if len(named) != 1 or len(values) != named[0] + 3:
            return
        at = named[0]
        self._consume(arguments[at])
        listed = values[at + 2]
        parameters = None
        if isinstance(listed, Array) and listed.complete:
            parameters = [self._koffi_type(item) for item in listed.items]
        binding = Binding(self._koffi_type(arguments[at + 1]), parameters, line(call.node))
        self.bound.add(values[at])
        judge_function(self.findings, values[at], binding, group)

    def _koffi_prototype(self, prototype: str, written: Ref, group: Hashable) -> None:
        at = line(written.node)
        found = parsed_prototype(_without_markers(prototype), self.types, at)
        if found is None:
            self._unreadable(f"the prototype {prototype.strip()!r}", written.node)
            return
        name, function = found
        self.bound.add(name)
        if naming.is_abi_name(name):
            judge_function(self.findings, name, _binding(function, at), group)

    def _koffi_callback(self, call: Ref) -> tuple[str, Optional[Binding]]:
        """The name and the signature of a prototype of a callback, as far as it is read."""
        values = [self.program.value(argument) for argument in self.program.arguments(call)]
        if not values or not isinstance(values[0], str):
            return "", None
        where = line(call.node)
        if "(" in values[0]:
            found = parsed_prototype(_without_markers(values[0]), self.types, where)
            name, binding = found[0] if found else "", _binding(found[1], where) if found else None
        else:
            arguments = self.program.arguments(call)
            name, binding = values[0], None
            if len(values) == 3 and isinstance(values[2], Array) and values[2].complete:
                parameters = [self._koffi_type(item) for item in values[2].items]
                binding = Binding(self._koffi_type(arguments[1]), parameters, where)
        return name, binding

    def _koffi_prototype_of_callback(self, call: Ref) -> None:
        name, binding = self._koffi_callback(call)
        names = [each for each in (name, self.program.label(call.node)) if each]
        passed = [self.findings.callback_passed(each) for each in names]
        hinted = [naming.callback_hinted(each, self.findings.table) for each in names]
        callback = next((each for each in (*passed, *hinted) if each is not None), None)
        if callback is None or binding is None:
            self._unreadable(f"which callback {' or '.join(names[:1]) or 'this'} is", call.node)
        else:
            judge_callback(self.findings, callback, binding)

    def _koffi_struct(self, call: Ref) -> None:
        values = [self.program.value(argument) for argument in self.program.arguments(call)]
        fields = next((value for value in values if isinstance(value, Object)), None)
        name = values[0] if values and isinstance(values[0], str) else self.program.label(call.node)
        if fields is not None:
            self._struct(name, fields, self._koffi_type, call.node)

    def _struct_type(self, call: Ref) -> None:
        """``StructType({ .. })`` of ref-struct, and whatever else defines structures by fields."""
        for argument in self.program.arguments(call):
            value = self.program.value(argument)
            if isinstance(value, Array):
                value = self._pairs(value)
            # Of types, and not of values.
            if isinstance(value, Object) and any(
                self._type(each).kind is not None for each in value.entries.values()
            ):
                name = self.program.label(call.node) or last_name(field(call.node, "function"))
                self._struct(name, value, self._type, call.node)

    def _pairs(self, listed: Array) -> Object:
        """``[["max_tokens", "int32"], ..]`` as an object."""
        made = Object(complete=listed.complete)
        for item in listed.items:
            pair = self.program.value(item)
            name = self._name_in_row(pair)
            if isinstance(pair, Array) and len(pair.items) == 2 and name:
                made.entries[name] = pair.items[1]
                made.lines[name] = line(item.node)
        return made

    def _struct(
        self, name: str, fields: Object, type_of: Callable[[Any], Type], node: Node
    ) -> None:
        mirror = layouts.mirrored(self.findings, name, list(fields.entries), line(node), True)
        if mirror is None:
            return
        if not fields.complete:
            self._unreadable(f"all fields of {name}", node)
            return
        members = [
            layouts.Member(key, type_of(value), fields.lines.get(key, line(node)))
            for key, value in fields.entries.items()
        ]
        layouts.judge_layout(self.findings, mirror.struct, members, line(node), name)

    def _koffi_type(self, ref: Any) -> Type:
        if not isinstance(ref, Ref):
            return Type(str(getattr(ref, "last", ref)))
        node = self.program.definition(ref)
        call = unwrap(node.node)
        written = text(ref.node)
        if call.type == "call_expression":
            callee, arguments = last_name(field(call, "function")), self.program.arguments(node)
            if callee in _KOFFI_POINTERS | {"proto"}:
                return Type(written, Kind.POINTER)
            if callee == "struct":
                return Type(written, None, doubt="a structure by value", by_value=True)
            if callee in _KOFFI_WRAPPERS and arguments:
                return self._koffi_type(arguments[0])._replace(written=written)
            return Type(written)
        value = self.program.value(ref)
        name = value.last if isinstance(value, External) and len(value.path) > 1 else value
        if not isinstance(name, str):
            return Type(written)
        return parsed_type(_without_markers(name), self.types)._replace(written=written)

    # ------------------------------------------------------------------ names and calls

    def _string(self, ref: Ref) -> None:
        if ref.node.id in self.read_strings or "eliza_" not in text(ref.node):
            return
        value = self.program.value(ref)
        parent = ref.node.parent
        if parent is not None and parent.type == "binary_expression":
            value = self.program.value(ref.at(parent))
            parent = parent.parent
        if isinstance(value, str) and "(" in value and self._declares_prototypes():
            self._loose_prototype(value, ref)
            return
        if parent is None or parent.type in _NO_BINDING:
            return
        names_a_symbol = _is_lookup(parent)
        if isinstance(value, str):
            if naming.is_abi_name(value):
                self._plain_name(value, ref.node, names_a_symbol)
        elif names_a_symbol and "eliza_inference_" in text(ref.node):
            self._unreadable("a name that is put together at run time", ref.node)

    def _declares_prototypes(self) -> bool:
        """Whether functions are declared by prototypes, which then may stand anywhere."""
        return any(name in self.program.calls for name in _KOFFI_DECLARES)

    def _loose_prototype(self, prototype: str, ref: Ref) -> None:
        found = parsed_prototype(_without_markers(prototype), self.types, line(ref.node))
        if found is not None and naming.is_abi_name(found[0]) and found[1].returns.kind is not None:
            self.bound.add(found[0])
            binding = _binding(found[1], line(ref.node))
            judge_function(self.findings, found[0], binding, "prototypes")

    def _plain_name(self, name: str, node: Node, names_a_symbol: bool) -> None:
        if names_a_symbol:
            judge_name(self.findings, name, line(node))
        elif name not in self.findings.table.functions and name.startswith("eliza_inference_"):
            version = self.findings.table.version
            self.findings.cannot_judge(
                f"{name} is named; ABI {version} does not export it", line(node)
            )

    def _calls(self) -> None:
        for name, calls in self.program.calls.items():
            for call in calls:
                callee = call.at(unwrap(field(call.node, "function") or call.node))
                called = self._reached(name, callee)
                if called:
                    self._call(called, call, children(field(call.node, "arguments")))
        for ref in self.program.nodes.get("member_expression", []):
            if last_name(ref.node) == "async":
                self._asynchronous(ref)

    def _asynchronous(self, ref: Ref) -> None:
        """``f.async(.., callback)`` of koffi and of ffi-napi."""
        target, parent = field(ref.node, "object"), ref.node.parent
        name = "" if target is None else self._reached(last_name(target), ref.at(unwrap(target)))
        if not name:
            return
        callee = field(parent, "function") if parent is not None else None
        if parent is not None and callee is not None and callee.id == ref.node.id:
            self._call(name, ref.at(parent), children(field(parent, "arguments"))[:-1])
        else:
            self._unreadable(f"how many arguments {name}.async is called with", ref.node)

    def _reached(self, name: str, callee: Ref) -> str:
        """The function of the ABI that an expression of this last name is, or nothing."""
        if naming.is_abi_name(name) and self._is_symbol(name, callee):
            return name
        return self._aliased(name, callee)

    def _call(self, name: str, call: Ref, arguments: list[Node]) -> None:
        if name not in self.findings.table.functions:
            if name not in self.bound:
                self.findings.bound(name, line(call.node))
            return
        if any(each.type == "spread_element" for each in arguments):
            self._unreadable(f"how many arguments {name} is called with", call.node)
        elif not any(each.has_error for each in arguments):
            judge_call(self.findings, name, len(arguments), line(call.node))
            for each, parameter in zip(arguments, self.findings.table.functions[name].parameters):
                made = self.program.definition(call.at(each)).node
                if last_name(field(made, "function")) == "register":
                    written = text(children(field(made, "arguments"))[-1])
                    self.findings.stands_for(written, parameter.type)

    def _aliased(self, name: str, ref: Ref) -> str:
        """The function of the ABI that a constant holds."""
        callee = ref.node
        if not name or callee.type not in ("identifier", "member_expression"):
            return ""
        if callee.type == "identifier" and ref.scope.find(name) is None:
            return ""
        held = unwrap(self.program.definition(ref).node)
        if held.type == "call_expression" and last_name(field(held, "function")) in _KOFFI_DECLARES:
            return self._declared_by(ref.at(held))
        if held.type == "member_expression" and naming.is_abi_name(last_name(held)):
            return last_name(held) if self._keeps_symbols(ref.at(held)) else ""
        declaration = ref.scope.find(name) if callee.type == "identifier" else None
        if declaration is not None and declaration.path and declaration.node is not None:
            original = str(declaration.path[-1])
            source = Ref(declaration.node, declaration.scope)
            if naming.is_abi_name(original) and self._is_symbols(source):
                return original
        return ""

    def _declared_by(self, call: Ref) -> str:
        for argument in self.program.arguments(call):
            value = self.program.value(argument)
            if isinstance(value, str) and "(" in value:
                found = parsed_prototype(_without_markers(value), self.types)
                return found[0] if found and naming.is_abi_name(found[0]) else ""
            if isinstance(value, str) and naming.is_abi_name(value):
                return value
        return ""

    def _is_symbol(self, name: str, ref: Ref) -> bool:
        """Whether ``x.name`` or ``name`` is the library's, and no wrapper."""
        callee = ref.node
        if callee.type == "identifier":
            declaration = ref.scope.find(name)
            if declaration is None or declaration.node is None or not declaration.path:
                return False
            return self._is_symbols(Ref(declaration.node, declaration.scope))
        own = self.program.members.get(name, [])
        return self._keeps_symbols(ref) or (name in self.bound and not own)

    def _keeps_symbols(self, member: Ref) -> bool:
        target = field(member.node, "object")
        return target is not None and self._is_symbols(member.at(target))

    def _is_symbols(self, ref: Ref) -> bool:
        """Whether an expression is the ``symbols`` of an opened library."""
        for _ in range(10):
            node = unwrap(ref.node)
            if last_name(node) in _KEEPERS:
                return True
            if node.type == "identifier":
                declaration = ref.scope.find(text(node))
                if declaration is not None and declaration.path[-1:] == ("symbols",):
                    return True
            following = self.program.definition(ref)
            if following.node.id == node.id:
                return False
            ref = following
        return False

    # ------------------------------------------------------------------ constants

    def _constants(self) -> None:
        for ref in self.program.nodes.get("variable_declarator", []):
            name = text(field(ref.node, "name"))
            self._constant(name, field(ref.node, "value"), ref)
        self._loose_constants()
        for ref in self.program.nodes.get("enum_declaration", []):
            members = self.program.enumeration(ref)
            self._members(text(field(ref.node, "name")), members)
        for ref in self.program.nodes.get("object", []):
            label = self.program.label(ref.node)
            if self._may_hold_constants(label, ref.node):
                self._members(label, self.program.value(ref))
        for kind in ("class_declaration", "class", "abstract_class_declaration"):
            for ref in self.program.nodes.get(kind, []):
                self._class(ref)
        for ref in self.program.nodes.get("array", []):
            self._rows_of_array(ref)

    def _constant(self, name: str, value: Optional[Node], ref: Ref) -> None:
        if value is None or not name.isidentifier() or not _may_be_constant(name, self.findings):
            return
        number = self.program.value(ref.at(value))
        if isinstance(number, int) and not isinstance(number, bool):
            constants.judge_constant(self.findings, name, number, line(ref.node))
            judge_offset_constant(self.findings, name, number, line(ref.node))

    def _loose_constants(self) -> None:
        """``const ERR_CANCELLED = -7`` outside of any container."""
        found = []
        for ref in self.program.nodes.get("variable_declarator", []):
            name, value = text(field(ref.node, "name")), field(ref.node, "value")
            known = naming.constant_meant(name, self.findings.table) is not None
            if value is not None and (known or naming.is_error(name)):
                number = _whole(self.program.value(ref.at(value)))
                if number is not None:
                    found.append(constants.Member(name, number, line(ref.node)))
        constants.judge_loose(self.findings, "", found)

    def _may_hold_constants(self, label: str, node: Node) -> bool:
        if naming.is_offset_name(label) or set(naming.words(label)) & {"eliza", "eli"}:
            return True
        keys = [property_name(field(each, "key")) for each in children(node) if each.type == "pair"]
        table = self.findings.table
        if any(naming.constant_named(k, table) or _is_field(k, table.structs) for k in keys):
            return True
        return sum(naming.constant_meant(k, table) is not None for k in keys) > 1

    def _members(self, container: str, members: Object) -> None:
        numbers = {
            name: number
            for name, entry in members.entries.items()
            for number in [self.program.value(entry) if isinstance(entry, Ref) else entry]
            if isinstance(number, int) and not isinstance(number, bool)
        }
        listed = [
            constants.Member(name, number, members.lines.get(name, 0))
            for name, number in numbers.items()
        ]
        constants.judge_members(self.findings, container, listed)
        self._rows_of_members(container, members)

    def _rows_of_members(self, container: str, members: Object) -> None:
        """``{ slotId: 20 }``, ``{ slotId: [20, "i32"] }``, ``{ slotId: { offset: 20 } }``."""
        rows = []
        for name, entry in members.entries.items():
            value = self.program.value(entry) if isinstance(entry, Ref) else entry
            offset, written, sure = self._row(value)
            if offset is not None:
                rows.append(Row(name, offset, members.lines.get(name, 0), written, sure))
        judge_rows(self.findings, container, rows, len(members.entries))

    def _rows_of_array(self, ref: Ref) -> None:
        """``[{ name: "slot_id", offset: 20 }, ..]`` and ``[["slot_id", 20, "i32"], ..]``."""
        items = children(ref.node)
        if len(items) < 2 or items[0].type not in ("object", "array"):
            return
        rows = []
        for item in items:
            value = self.program.value(ref.at(item))
            name = self._name_in_row(value)
            offset, written, sure = self._row(value)
            if name and offset is not None:
                rows.append(Row(name, offset, line(item), written, sure))
        judge_rows(self.findings, self.program.label(ref.node), rows, len(items))

    def _row(self, value: Any) -> tuple[Optional[int], Optional[Type], bool]:
        """The offset and the type in a row, and whether the row says that it is an offset."""
        if isinstance(value, Object):
            offset = self._evaluated(value.entries.get("offset"))
            return _whole(offset), self._row_type(value.entries.get("type")), True
        if isinstance(value, Array) and value.complete and len(value.items) < 4:
            values = [self.program.value(item) for item in value.items]
            offsets = [at for at, each in enumerate(values) if _whole(each) is not None]
            if len(offsets) == 1:
                types = value.items[offsets[0] + 1 :] or value.items[1 : offsets[0]]
                written = self._row_type(types[0]) if types else None
                return _whole(values[offsets[0]]), written, False
            return None, None, False
        return _whole(value), None, False

    def _row_type(self, written: Any) -> Optional[Type]:
        return None if written is None else self._type(written)

    def _name_in_row(self, value: Any) -> str:
        named = None
        if isinstance(value, Object):
            named = self._evaluated(value.entries.get("name"))
        elif isinstance(value, Array) and value.items:
            named = self.program.value(value.items[0])
        return named if isinstance(named, str) else ""

    def _evaluated(self, entry: Any) -> Any:
        return self.program.value(entry) if isinstance(entry, Ref) else entry

    def _class(self, ref: Ref) -> None:
        name = text(field(ref.node, "name"))
        members = Object()
        for each in children(field(ref.node, "body")):
            value = field(each, "value")
            key = property_name(field(each, "name") or field(each, "property"))
            if each.type in ("public_field_definition", "field_definition") and value is not None:
                members.entries[key] = ref.at(value)
                members.lines[key] = line(each)
                self._constant(key, value, ref.at(each))
        self._members(name, members)

    # ------------------------------------------------------------------ helpers

    def _consume(self, ref: Ref) -> None:
        node = unwrap(ref.node)
        self.read_strings.add(node.id)
        self.read_strings.update(each.id for each in children(node))

    def _unreadable(self, what: str, node: Node) -> None:
        self.findings.cannot_judge(f"cannot tell {what}", line(node))


_ENTRY_KEYS = frozenset({"args", "returns", "parameters", "result"})
_MOCKS = frozenset({"fn", "mock", "vi", "jest", "spyOn", "stub", "bind"})
_NO_BINDING = frozenset({"pair", "computed_property_name", "literal_type", "property_signature"})


def _is_entry(value: Any) -> bool:
    return isinstance(value, Object) and bool(_ENTRY_KEYS & set(value.entries))


def _is_empty(value: Any) -> bool:
    return isinstance(value, Object) and not value.entries and value.complete


def _is_lookup(parent: Node) -> bool:
    """Whether a string in this place names a symbol to look up."""
    if parent.type == "subscript_expression":
        return True
    if parent.type != "arguments":
        return False
    call = next(ancestors(parent), None)
    called = last_name(field(call, "function")) if call is not None else ""
    return naming.looks_up(called)


def _may_be_constant(name: str, findings: Findings) -> bool:
    return (
        "ELIZA" in name.upper()
        or naming.is_offset_name(name)
        or naming.struct_sized(name, findings.table) is not None
    )


def _is_field(name: str, structs: Mapping[str, Struct]) -> bool:
    return any(naming.field_named(name, struct) is not None for struct in structs.values())


def _whole(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _binding(function: Function, where: int) -> Binding:
    return Binding(function.returns, function.parameters, where, function.variadic)


def _without_markers(prototype: str) -> str:
    """A prototype without koffi's words for the direction of parameters and for disposal."""
    for marker in ("_Inout_", "_In_", "_Out_", "__cdecl", "__stdcall"):
        prototype = prototype.replace(marker, " ")
    return prototype.replace("!", " ")
