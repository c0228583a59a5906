"""Reads Java: the foreign-function API, JNA, layouts, memory by offset, constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, NamedTuple, Optional

from ..table import Kind
from . import constants, layouts, naming
from .findings import Findings
from .java_memory import judge_accesses
from .java_values import Environment, Values, last_name
from .offsets import Row, judge_offset_constant, judge_rows
from .signatures import LONG_DOUBT, Binding, Type, judge_call, judge_function, judge_looked_up
from .syntax import ancestors, child, children, field, line, of_type, parse, text, walk, word_set

if TYPE_CHECKING:
    from tree_sitter import Node

_JNA = {
    "void": Kind.VOID,
    "byte": Kind.INT8,
    "short": Kind.INT16,
    "char": Kind.INT16,
    "int": Kind.INT32,
    "boolean": Kind.INT32,
    "long": Kind.INT64,
    "float": Kind.FLOAT32,
    "double": Kind.FLOAT64,
    "Pointer": Kind.POINTER,
    "String": Kind.POINTER,
    "WString": Kind.POINTER,
    "Memory": Kind.POINTER,
    "Structure": Kind.POINTER,
    "Callback": Kind.POINTER,
    "Buffer": Kind.POINTER,
}
_JNA_POINTERS = ("ByReference", "Callback", "Buffer", "Pointer")
_POINTER_BASES = frozenset({"Structure", "Callback", "PointerType", "Memory"})
_STATEMENTS = (
    "block",
    "class_body",
    "interface_body",
    "enum_body_declarations",
    "program",
    "lambda_expression",
)
_SAYING = word_set(
    "debug error exception fail format info log message print printf println trace warn"
)


def check(findings: Findings, source: bytes) -> None:
    root = parse("java", source)
    reader = _Reader(findings, root)
    reader.read()
    judge_accesses(findings, root, reader.values)


class _Handle(NamedTuple):
    function: str
    """Empty if its arguments are not those of one function."""
    scope: Node


class _Reader:
    def __init__(self, findings: Findings, root: Node) -> None:
        self.findings = findings
        self.nodes: dict[str, list[Node]] = {}
        for node in walk(root):
            if node.type in _KEPT:
                self.nodes.setdefault(node.type, []).append(node)
        self.values = Values(self.nodes)
        self.handles: dict[str, list[_Handle]] = {}
        """What the variables and fields of each name hold, also as an address."""
        self.methods: dict[str, list[Node]] = {}
        for node in self._each("method_declaration"):
            self.methods.setdefault(text(field(node, "name")), []).append(node)
        self.bases = {
            text(field(node, "name")): {text(n) for n in of_type(base, "type_identifier")}
            for node in self._each("class_declaration", "interface_declaration")
            for base in [field(node, "superclass") or child(node, "extends_interfaces")]
            if base is not None
        }

    def read(self) -> None:
        for node in self._each("string_literal"):
            self._string(node)
        for node in self._each("method_declaration"):
            self._jna_function(node)
        self._natives()
        for node in self._each("method_invocation"):
            self._struct_layout(node)
        for node in self._each("class_declaration"):
            self._jna_structure(node)
        self._handle_calls()
        self._field_calls()
        self._constants()

    def _each(self, *types: str) -> Iterator[Node]:
        for kind in types:
            yield from self.nodes.get(kind, [])

    # ------------------------------------------------------------------ handles

    def _string(self, node: Node) -> None:
        """A name of a function, also one that a helper method completes."""
        call = next((each for each in ancestors(node) if each.type in _CALLS), None)
        if call is None or set(naming.words(_called(call))) & _SAYING:
            return
        helper = self._helper(call)
        names = self._environment(helper, call) if helper is not None else None
        name = self.values.evaluate(node)
        if not isinstance(name, str):
            return
        if not naming.is_abi_name(name):
            name = self._completed(helper, names)
            if name is None:
                return
        called = _called(call)
        group = None if naming.finds_or_not(called) and not _is_needed(call) else called
        binding = self._binding(node, call)
        if binding is None and helper is not None and names is not None:
            binding = self._binding_of_helper(helper, names, line(node))
        if binding is None and not naming.looks_up(_called(call)):
            return
        self._hold(node, "" if _is_curried(call) or _is_curried(helper) else name)
        why = "its FunctionDescriptor is not clear"
        judge_looked_up(self.findings, name, binding, line(node), group, why)

    def _helper(self, call: Node) -> Optional[Node]:
        """The method of this source that a call calls."""
        found = self.methods.get(_called(call), [])
        count = len(children(field(call, "arguments")))
        fitting = [each for each in found if _takes(each, count)]
        return fitting[0] if len(fitting) == 1 and call.type == "method_invocation" else None

    def _environment(self, helper: Node, call: Node) -> Environment:
        given, arguments = {}, children(field(call, "arguments"))
        for position, each in enumerate(children(field(helper, "parameters"))):
            if each.type == "spread_parameter":
                name = text(field(child(each, "variable_declarator"), "name"))
                given[name] = arguments[position:]
            else:
                given[text(field(each, "name"))] = arguments[position : position + 1]
        return Environment(given)

    def _completed(self, helper: Optional[Node], names: Optional[Environment]) -> Optional[str]:
        """The name that a helper makes of its arguments: ``PREFIX + name``."""
        body = field(helper, "body")
        if body is None or names is None:
            return None
        for node in of_type(body, "binary_expression"):
            value = self.values.evaluate(node, names)
            if isinstance(value, str) and naming.is_abi_name(value):
                return value
        return None

    def _binding(self, node: Node, call: Node) -> Optional[Binding]:
        """The descriptor beside a name, in the statement around it, or where its variable goes."""
        for outer in ancestors(node):
            if outer.type in _STATEMENTS:
                return None
            found = self._descriptors(outer)
            if len(found) == 1:
                return self._descriptor(found[0], Environment({}), line(node))
            if len(found) > 1:
                return None
            if outer.type == "local_variable_declaration":
                return self._binding_later(outer, node)
        return None

    def _descriptors(self, node: Node) -> list[Node]:
        """The descriptors that an expression holds, directly or by name."""
        found = []
        for each in of_type(node, "method_invocation", "identifier"):
            if each.type == "identifier":
                parent = each.parent
                if parent is None or parent.type not in ("argument_list", "field_access"):
                    continue
                target = self.values.definition(each)
                if target is not None and target.id != each.id and _is_descriptor(target):
                    found.append(target)
            elif _is_descriptor(each):
                found.append(each)
        return found

    def _binding_later(self, declared: Node, node: Node) -> Optional[Binding]:
        """The descriptor in the call that gets the variable in which the symbol is."""
        names = {text(field(d, "name")) for d in children(declared) if field(d, "name")}
        block = declared.parent
        for call in of_type(block, "method_invocation") if block is not None else ():
            arguments = children(field(call, "arguments"))
            if call.start_byte > node.end_byte and names & {text(each) for each in arguments}:
                found = self._descriptors(call)
                if len(found) == 1:
                    return self._descriptor(found[0], Environment({}), line(node))
        return None

    def _binding_of_helper(self, helper: Node, names: Environment, where: int) -> Optional[Binding]:
        body = field(helper, "body")
        found = self._descriptors(body) if body is not None else []
        return self._descriptor(found[0], names, where) if len(found) == 1 else None

    def _descriptor(self, node: Node, names: Environment, bound_at: int) -> Optional[Binding]:
        parent = node.parent
        if parent is not None and parent.type == "method_invocation" and _changes(parent, node):
            return None
        given: list[Optional[Node]] = []
        for each in children(field(node, "arguments")):
            given.extend(names.arguments.get(text(each), self._spread(each)))
        types = [self.values.layout(each) for each in given]
        where = line(node) if not names.arguments else bound_at
        if text(field(node, "name")) == "ofVoid":
            return Binding(Type("void", Kind.VOID), types, where, bound_at=bound_at)
        return Binding(types[0], types[1:], where, bound_at=bound_at) if types else None

    def _spread(self, node: Node) -> list[Optional[Node]]:
        """The elements of an array that is passed for all arguments."""
        target = self.values.definition(node)
        if target is not None and target.type == "array_creation_expression":
            target = field(target, "value")
        if target is not None and target.type == "array_initializer":
            return list(children(target))
        return [node]

    # ------------------------------------------------------------------ calls of handles

    def _hold(self, node: Node, function: str) -> None:
        """Note the variable or field that gets what an expression makes of a function's name."""
        for outer in ancestors(node):
            target = None
            if outer.type == "variable_declarator":
                target = field(outer, "name")
            elif outer.type == "assignment_expression":
                target = field(outer, "left")
            if target is not None:
                if _is_curried(outer):
                    function = ""
                scopes = _BODIES if outer.type == "variable_declarator" else ("class_body",)
                scope = next((each for each in ancestors(outer) if each.type in scopes), outer)
                self.handles.setdefault(last_name(target), []).append(_Handle(function, scope))
            if target is not None or outer.type in _STATEMENTS:
                return

    def _handle_calls(self) -> None:
        for call in self._each("method_invocation"):
            symbol = next(iter(children(field(call, "arguments"))), None)
            if _called(call) == "downcallHandle" and symbol is not None:
                held = self._held(symbol)
                if held is not None:
                    self._hold(call, held)
        unclear = []
        for call in self._each("method_invocation"):
            if _called(call) in _INVOKING and self.handles:
                function = self._held(field(call, "object"))
                listed = _called(call) == "invokeWithArguments"
                if function and not listed:
                    count = len(children(field(call, "arguments")))
                    judge_call(self.findings, function, count, line(call))
                elif function is not None:
                    unclear.append(call)
        if unclear:
            self.findings.cannot_judge(
                f"cannot tell which functions are called through handles, {len(unclear)} times",
                line(unclear[0]),
            )

    def _held(self, node: Optional[Node]) -> Optional[str]:
        """The function that a handle calls; empty if that is not clear, None for no function."""
        while node is not None and node.type in ("parenthesized_expression", "cast_expression"):
            node = children(node)[-1]
        if node is None:
            return None
        if node.type == "method_invocation":
            strings = [self.values.evaluate(each) for each in of_type(node, "string_literal")]
            named = {each for each in strings if each in self.findings.table.functions}
            return str(named.pop()) if len(named) == 1 and not _is_curried(node) else ""
        name = last_name(node)
        around = [each for each in ancestors(node) if each.type in _METHODS]
        if node.type == "identifier" and any(_has_parameter(each, name) for each in around):
            return ""
        held = self.handles.get(name, [])
        if node.type == "identifier":
            reach = [each for each in held if _holds(each.scope, node)]
            nearest = max((each.scope.start_byte for each in reach), default=0)
            held = [each for each in reach if each.scope.start_byte == nearest]
        functions = {each.function for each in held}
        if functions:
            return functions.pop() if len(functions) == 1 else ""
        # A variable that gets a handle of anything else, or from a table of handles.
        made = self.values.definition(node)
        made_of = next(of_type(made, "string_literal"), None) if made is not None else None
        return None if made_of is not None else ""

    # ------------------------------------------------------------------ JNA and JNI

    def _jna_function(self, node: Node) -> None:
        name = text(field(node, "name"))
        if not naming.is_abi_name(name):
            return
        owner = next((o for o in ancestors(node) if o.type in _TYPES), None)
        bases = self.bases.get(text(field(owner, "name")), set())
        is_library = any(base.endswith("Library") for base in bases)
        if not is_library and "native" not in text(child(node, "modifiers")).split():
            return
        parameters = [
            self._jna(field(each, "type"))._replace(line=line(each))
            for each in children(field(node, "parameters"))
            if each.type == "formal_parameter"
        ]
        binding = Binding(self._jna(field(node, "type")), parameters, line(node))
        judge_function(self.findings, name, binding, text(field(owner, "name")))

    def _jna(self, node: Optional[Node]) -> Type:
        written = text(node)
        if node is not None and node.type == "array_type":
            return Type(written, Kind.POINTER)
        name = written.rsplit(".", 1)[-1]
        if name == "NativeLong":
            return Type(written, None, doubt=LONG_DOUBT)
        known = self.bases.get(name, set()) & _POINTER_BASES or name.endswith(_JNA_POINTERS)
        return Type(written, Kind.POINTER if known else _JNA.get(name))

    def _natives(self) -> None:
        natives = [
            node
            for node in self._each("method_declaration")
            if "native" in text(child(node, "modifiers")).split()
            and not naming.is_abi_name(text(field(node, "name")))
        ]
        if natives:
            self.findings.cannot_judge(
                f"{len(natives)} native methods: what calls the library is their half in C or C++",
                line(natives[0]),
            )

    def _jna_structure(self, node: Node) -> None:
        name = text(field(node, "name"))
        if "Structure" not in self.bases.get(name, set()):
            return
        declared = {
            text(field(each, "name")): layouts.Member(
                text(field(each, "name")), self._jna(field(fields, "type")), line(fields)
            )
            for fields in children(field(node, "body"))
            if fields.type == "field_declaration"
            and "static" not in text(child(fields, "modifiers"))
            for each in fields.children_by_field_name("declarator")
        }
        order = [text(child(s, "string_fragment")) for s in of_type(node, "string_literal")]
        named = [declared[each] for each in dict.fromkeys(order) if each in declared]
        self._judge_members(named or list(declared.values()), node, name)

    def _judge_members(self, members: list[layouts.Member], node: Node, name: str) -> None:
        """Judge a layout where most of its fields are those of one structure."""
        for struct in self.findings.table.structs.values():
            known = [each for each in members if naming.field_named(each.name, struct) is not None]
            if len(known) > 1 and 2 * len(known) >= len(members):
                layouts.judge_layout(self.findings, struct, members, line(node), name)

    # ------------------------------------------------------------------ layouts

    def _struct_layout(self, node: Node) -> None:
        """``MemoryLayout.structLayout(JAVA_INT.withName("max_tokens"), ..)``."""
        if text(field(node, "name")) != "structLayout":
            return
        members, offset = [], 0
        for each in children(field(node, "arguments")):
            member = self._layout_member(each, offset)
            kind, count = member.type.kind, member.elements
            if kind is None:
                members.append(member)
                break
            if member.name or kind is not Kind.VOID:
                members.append(member)
            offset += count * (kind.size or 1)
        self._judge_members(members, node, self._name_of(node))

    def _layout_member(self, node: Node, offset: int) -> layouts.Member:
        """A member; one without a name and of no kind is padding of so many bytes."""
        name, inner = "", node
        while inner.type == "method_invocation":
            called, arguments = text(field(inner, "name")), children(field(inner, "arguments"))
            if called == "withName" and arguments:
                given = self.values.evaluate(arguments[0])
                name = given if isinstance(given, str) else name
            if called == "paddingLayout" and arguments:
                size = self.values.evaluate(arguments[0])
                kind = Kind.VOID if isinstance(size, int) else None
                count = size if isinstance(size, int) else 1
                return layouts.Member("", Type(text(node), kind), line(node), count, offset)
            target = field(inner, "object")
            if target is None or target.type != "method_invocation":
                break
            inner = target
        return layouts.Member(name, self.values.layout(node), line(node), 1, offset)

    def _name_of(self, node: Node) -> str:
        """What a layout is called: its variable, with the class where that is only ``LAYOUT``."""
        for outer in ancestors(node):
            if outer.type == "variable_declarator":
                name = text(field(outer, "name"))
                owner = next((o for o in ancestors(outer) if o.type in _TYPES), None)
                return f"{text(field(owner, 'name'))}.{name}"
            if outer.type in _STATEMENTS:
                break
        return "structLayout"

    def _field_calls(self) -> None:
        """Calls of one method with a name and a number: ``field(LAYOUT, "slot_id", 20)``."""
        calls: dict[str, list[Row]] = {}
        for node in self._each("method_invocation"):
            arguments = children(field(node, "arguments"))
            names = [self.values.evaluate(a) for a in arguments if a.type == "string_literal"]
            numbers = [self.values.evaluate(a) for a in arguments if "integer_literal" in a.type]
            if len(names) == 1 and len(numbers) == 1:
                name, number = names[0], numbers[0]
                if isinstance(name, str) and isinstance(number, int):
                    calls.setdefault(_called(node), []).append(Row(name, number, line(node)))
        for rows in calls.values():
            for struct in self.findings.table.structs.values():
                known = [row for row in rows if naming.field_named(row.name, struct) is not None]
                judge_rows(self.findings, "", known, len(known))

    # ------------------------------------------------------------------ constants

    def _constants(self) -> None:
        containers: dict[str, list[constants.Member]] = {}
        for node in self._each("variable_declarator"):
            value = self.values.evaluate(field(node, "value"))
            name = text(field(node, "name"))
            parent = node.parent
            if isinstance(value, int) and parent is not None and parent.type in _FIELDS:
                owner = next((o for o in ancestors(node) if o.type in _TYPES), None)
                member = constants.Member(name, value, line(node))
                containers.setdefault(text(field(owner, "name")), []).append(member)
                judge_offset_constant(self.findings, name, value, line(node))
        for node in self._each("enum_declaration"):
            members = containers.setdefault(text(field(node, "name")), [])
            for each in of_type(node, "enum_constant"):
                given = [self.values.evaluate(a) for a in children(field(each, "arguments"))]
                numbers = [value for value in given if isinstance(value, int)]
                if numbers:
                    name = text(field(each, "name"))
                    members.append(constants.Member(name, numbers[0], line(each)))
        for container, members in containers.items():
            constants.judge_members(self.findings, container, members)
            rows = [Row(member.name, member.value, member.line) for member in members]
            if naming.is_offset_name(container):
                judge_rows(self.findings, container, rows, len(rows))


_KEPT = word_set("""
    class_declaration enum_declaration formal_parameter interface_declaration method_declaration
    method_invocation string_literal variable_declarator
    """)
_CALLS = ("method_invocation", "object_creation_expression", "annotation")
_TYPES = ("class_declaration", "interface_declaration", "enum_declaration", "record_declaration")
_BODIES = ("block", "constructor_body", "class_body", "interface_body")
_METHODS = ("method_declaration", "constructor_declaration", "lambda_expression")
_INVOKING = ("invoke", "invokeExact", "invokeWithArguments")
# What makes a handle of other parameters than the function's.
_CURRYING = word_set("""
    asCollector asSpreader bindTo captureCallState collectArguments dropArguments filterArguments
    foldArguments insertArguments permuteArguments
    """)
_FIELDS = ("field_declaration", "constant_declaration")


def _called(call: Node) -> str:
    return text(field(call, "name") or field(call, "type"))


def _is_curried(node: Optional[Node]) -> bool:
    return node is not None and any(word in text(node) for word in _CURRYING)


def _has_parameter(method: Node, name: str) -> bool:
    parameters = field(method, "parameters")
    if parameters is None:
        return False
    return any(text(each) == name for each in of_type(parameters, "identifier"))


def _holds(scope: Node, node: Node) -> bool:
    return scope.start_byte <= node.start_byte and node.end_byte <= scope.end_byte


def _is_needed(call: Node) -> bool:
    """Whether a lookup that finds nothing is an error here."""
    return call.parent is not None and _called(call.parent) in ("orElseThrow", "get")


def _takes(method: Node, count: int) -> bool:
    parameters = children(field(method, "parameters"))
    if parameters and parameters[-1].type == "spread_parameter":
        return count >= len(parameters) - 1
    return count == len(parameters)


def _is_descriptor(node: Node) -> bool:
    if node.type != "method_invocation":
        return False
    target = field(node, "object")
    return last_name(target) == "FunctionDescriptor" and text(field(node, "name")) in (
        "of",
        "ofVoid",
    )


def _changes(call: Node, descriptor: Node) -> bool:
    """Whether a call makes another descriptor of one."""
    target = field(call, "object")
    changing = ("appendArgumentLayouts", "insertArgumentLayouts", "changeReturnLayout")
    is_target = target is not None and target.id == descriptor.id
    return is_target and text(field(call, "name")) in (*changing, "dropReturnLayout")
