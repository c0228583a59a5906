"""Reads C, C++ and Objective-C++: calls, prototypes, function pointers bound by name, copies of
structures and constants, static assertions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Iterator, Optional

from ..table import Kind, Struct
from . import constants, layouts, naming
from .c_types import FUNCTION_DECLARATORS, Declared, Shape, Types
from .findings import Findings
from .offsets import judge_offset, judge_offset_constant
from .signatures import (
    Binding,
    Type,
    judge_call,
    judge_function,
    judge_looked_up,
    judge_name,
)
from .syntax import ancestors, child, children, field, line, of_type, parse, text, walk, word_set

if TYPE_CHECKING:
    from tree_sitter import Node

# Words that a compiler or a preprocessor takes away, which the grammar does not know.
_NOISE = word_set("""
    CALLBACK ELIZA_INFERENCE_API EXTERN_C JNICALL JNIEXPORT JNIIMPORT NS_ASSUME_NONNULL_BEGIN
    NS_ASSUME_NONNULL_END WINAPI _In_ _In_opt_ _Inout_ _Nonnull _Nullable _Null_unspecified _Out_
    _Out_opt_ __nonnull __nullable __BEGIN_DECLS __END_DECLS
    """)
_NOISE_ENDINGS = ("_API", "_EXPORT", "_EXPORTS", "_IMPORT", "_EXTERN", "_CALL", "_DECL")
_CASTS = frozenset({"reinterpret_cast", "static_cast", "bit_cast", "dynamic_cast"})
_AFFIXES = ("pfn_", "fn_", "p_", "pf_")
_SUFFIXES = ("_t", "_fn", "_f", "_func", "_function", "_ptr", "_pfn", "_type", "_sig", "_proc", "_")
_DECLARING = ("declaration", "field_declaration", "parameter_declaration", "function_definition")


def check(findings: Findings, source: bytes) -> None:
    _Reader(findings, parse("cpp", _without_noise(source))).read()


class _Reader:
    def __init__(self, findings: Findings, root: Node) -> None:
        self.findings = findings
        self.root = root
        self.types = Types(findings.table)
        self.own_functions: set[str] = set()
        self.own_names: set[str] = set()
        """The names that this source declares as something else than a function to be bound."""
        self.own_structs: dict[str, set[str]] = {}
        self.containers: dict[str, list[constants.Member]] = {}
        self.mirrored: dict[str, Struct] = {}
        """Those that are copies of the table's."""
        self.nodes: dict[str, list[Node]] = {}
        for node in walk(root):
            if node.type in _KEPT:
                self.nodes.setdefault(node.type, []).append(node)

    def read(self) -> None:
        self._collect_types()
        self._prototypes()
        self._bound_by_string()
        self._bound_by_type_name()
        self.findings.follow(self._aliases_of_pointers())
        self._structs()
        self._constants()
        self._assertions()
        self._fields()
        self._names()
        self._macros()

    def _each(self, *types: str) -> Iterator[Node]:
        for kind in types:
            yield from self.nodes.get(kind, [])

    # ------------------------------------------------------------------ what is declared

    def _collect_types(self) -> None:
        for node in self._each("type_definition"):
            for name, shape in self.types.declared(node):
                self.types.aliases.setdefault(name, shape)
        for node in self._each("alias_declaration"):
            described = field(node, "type")
            if described is not None:
                name = text(field(node, "name"))
                self.types.aliases.setdefault(name, self.types.described(described))
        for node in self._each("enum_specifier"):
            name, base = text(field(node, "name")), field(node, "base")
            if name and field(node, "body") is not None:
                given = self.types.travels(Shape("base", node=base, written=text(base)))
                plain = Type(name, Kind.INT32)
                self.types.enums[name] = given if base is not None else plain
        for node in self._each("struct_specifier", "class_specifier"):
            fields = [e for e in children(field(node, "body")) if e.type == "field_declaration"]
            if len(fields) > 1:
                self.types.structs.add(text(field(node, "name")))
        for node in self._each("declaration", "field_declaration"):
            self._collect_variables(node)
        for node in self._each("function_definition"):
            declared = self._function_declared(node)
            if declared is not None:
                self.own_functions.add(declared.name)
        for node in self._each("preproc_def", "preproc_function_def"):
            self.own_names.add(text(field(node, "name")))

    def _collect_variables(self, node: Node) -> None:
        for name, shape in self.types.declared(node):
            self.types.variables.setdefault(name, []).append(shape)
            if shape.how != "function":
                self.own_names.add(name)

    def _function_declared(self, node: Node) -> Optional[Declared]:
        declarator = field(node, "declarator")
        if declarator is None:
            return None
        return self.types.apply(declarator, self.types.base(node))

    # ------------------------------------------------------------------ prototypes

    def _prototypes(self) -> None:
        for node in self._each("declaration", "function_definition", "field_declaration"):
            if node.type == "function_definition":
                declared = self._function_declared(node)
                listed = [declared] if declared is not None else []
            else:
                listed = self.types.declared(node)
            for name, shape in listed:
                self._prototype(name.rsplit("::", 1)[-1], shape, node)
        for node in self._each("preproc_def"):
            name = text(field(node, "name"))
            if naming.is_abi_name(name):
                judge_name(self.findings, name, line(node))

    def _prototype(self, name: str, shape: Shape, node: Node) -> None:
        """A declaration, or a variable or member that holds the function of its own name."""
        if not naming.is_abi_name(name) or self._is_its_own(name):
            return
        defined = node.type == "function_definition"
        known = name in self.findings.table.functions
        function = self.types.function(shape)
        if (defined and not known) or (function is None and shape.how == "base"):
            return
        if defined and "static" in {text(c) for c in children(node)}:
            return
        if self.types.meant_function(shape) is not None:
            judge_name(self.findings, name, line(node))
        elif function is not None:
            binding = Binding(function.returns, function.parameters, line(node), function.variadic)
            judge_function(self.findings, name, binding, "prototypes")

    def _is_its_own(self, name: str) -> bool:
        """Whether a declared function is most likely one of the consumer's own."""
        known = name in self.findings.table.functions
        return not known and not name.startswith("eliza_inference_")

    def _bound_by_type_name(self) -> None:
        """Function types that are called after a function: ``eliza_inference_create_fn``."""
        for node in self._each("type_definition", "alias_declaration"):
            if node.type == "alias_declaration":
                described = field(node, "type")
                names = [text(field(node, "name"))] if described is not None else []
            else:
                names = [declared.name for declared in self.types.declared(node)]
            for name in names:
                known = self._named_after(name)
                if known is not None:
                    self._judge_shape(known, self.types.aliases.get(name), node, None)

    def _named_after(self, name: str) -> Optional[str]:
        for prefix in ("", *_AFFIXES):
            for suffix in ("", *_SUFFIXES):
                if name.lower().startswith(prefix) and name.lower().endswith(suffix):
                    core = name[len(prefix) : len(name) - len(suffix)]
                    if core in self.findings.table.functions:
                        return core
        return None

    # ------------------------------------------------------------------ binding by name

    def _bound_by_string(self) -> None:
        for node in self._each("string_literal"):
            name = text(child(node, "string_content"))
            if naming.is_abi_name(name):
                self._string(name, node)

    def _string(self, name: str, node: Node) -> None:
        parent = node.parent
        if parent is None or parent.type not in ("argument_list", "initializer_list"):
            return
        call = parent.parent if parent.type == "argument_list" else None
        if call is not None and _is_message(call):
            return
        shape, certain = self._bound_type(node, parent)
        group = self._group(parent, call)
        if shape is not None and self._judge_shape(name, shape, node, group):
            return
        if call is not None and not naming.looks_up(text(field(call, "function"))):
            return
        judge_name(self.findings, name, line(node), group)
        known = name in self.findings.table.functions
        if known and not certain:
            self.findings.unclear(name, "the type that it is bound to is not clear", line(node))

    def _group(self, place: Node, call: Optional[Node]) -> Optional[str]:
        """What binds a name: a function, or a table of names; None where it may be missing."""
        if call is None:
            outer = place.parent
            rows = outer if outer is not None and outer.type == "initializer_list" else place
            return f"table at {rows.start_byte}"
        function = field(call, "function")
        called = field(function, "field") or function
        name = text(field(called, "name") or called).rsplit("::", 1)[-1]
        return None if naming.finds_or_not(name) else name

    def _judge_shape(
        self, name: str, shape: Optional[Shape], node: Node, group: Optional[str]
    ) -> bool:
        """Judge a function pointer's type; whether it was one."""
        meant = self.types.meant_function(shape)
        if meant is not None:
            if meant != name and name in self.findings.table.functions:
                self.findings.problem(f"{name} is bound as decltype of {meant}", line(node))
            judge_name(self.findings, name, line(node), group)
            return True
        function = self.types.function(shape)
        if function is None:
            return False
        returns, parameters, variadic, where = function
        binding = Binding(returns, parameters, where or line(node), variadic, line(node))
        judge_looked_up(self.findings, name, binding, line(node), group)
        return True

    def _bound_type(self, node: Node, place: Node) -> tuple[Optional[Shape], bool]:
        """The type that a looked-up symbol becomes, and whether a lack of one is no doubt."""
        beside = self._type_beside(node, place)
        if beside is not None:
            return beside, True
        for outer in ancestors(node):
            if outer.type == "call_expression":
                given = self._template_argument(outer)
                if given is not None:
                    return given, True
            elif outer.type == "cast_expression":
                described = field(outer, "type")
                shape = self.types.described(described) if described is not None else None
                if self._is_function(shape):
                    return shape, True
            elif outer.type == "assignment_expression":
                return self._type_of_target(field(outer, "left")), False
            elif outer.type == "init_declarator":
                return self._type_of_declared(outer), False
            elif outer.type in ("compound_statement", "expression_statement", "field_declaration"):
                break
        return None, False

    def _type_beside(self, node: Node, place: Node) -> Optional[Shape]:
        """``LOAD(create, "eliza_inference_create")``, ``{"..", (void **)&api.create}``."""
        found = []
        for other in children(place):
            if other.id != node.id:
                shape = self._type_of_target(other)
                if self._is_function(shape):
                    found.append(shape)
        return found[0] if len(found) == 1 else None

    def _template_argument(self, call: Node) -> Optional[Shape]:
        """``reinterpret_cast<create_fn>(..)``, ``library.get<create_fn>(..)``."""
        function = field(call, "function")
        templates = [function, field(function, "field"), field(function, "name")]
        for template in templates:
            arguments = field(template, "arguments")
            for each in children(arguments):
                if each.type == "type_descriptor":
                    shape = self.types.described(each)
                    if self._is_function(shape):
                        return shape
        return None

    def _type_of_target(self, node: Optional[Node]) -> Optional[Shape]:
        """The declared type of the variable or member that an expression leads to."""
        for _ in range(10):
            if node is None:
                return None
            if node.type in ("identifier", "field_expression"):
                return self.types.type_of(node)
            if node.type == "call_expression" and _is_cast(node):
                node = next(iter(children(field(node, "arguments"))), None)
            elif node.type == "cast_expression":
                node = field(node, "value")
            elif node.type in ("pointer_expression", "unary_expression"):
                node = field(node, "argument")
            elif node.type == "parenthesized_expression":
                node = next(iter(children(node)), None)
            else:
                return None
        return None

    def _type_of_declared(self, declarator: Node) -> Optional[Shape]:
        declaration = declarator.parent
        inner = field(declarator, "declarator")
        if declaration is None or inner is None:
            return None
        shape = self.types.apply(inner, self.types.base(declaration)).shape
        return shape if self._is_function(shape) else None

    def _is_function(self, shape: Optional[Shape]) -> bool:
        return shape is not None and (
            self.types.function(shape) is not None or self.types.meant_function(shape) is not None
        )

    # ------------------------------------------------------------------ calls and other uses

    def _names(self) -> None:
        """Judge the uses of functions by their names: calls, addresses, ``decltype``."""
        for node in self._each("identifier"):
            name = text(node)
            parent = node.parent
            if not naming.is_abi_name(name) or parent is None or parent.type in _DECLARATORS:
                continue
            own = name in self.own_functions or name in self.own_names
            if name in self.findings.table.functions:
                self._use(name, node, parent)
            elif not own and name.startswith("eliza_inference_"):
                self.findings.bound(name, line(node))

    def _use(self, name: str, node: Node, parent: Node) -> None:
        if parent.type == "qualified_identifier":
            node, parent = parent, parent.parent or parent
        function = field(parent, "function") if parent.type == "call_expression" else None
        if function is None or function.id != node.id:
            judge_name(self.findings, name, line(node))
            return
        arguments = field(parent, "arguments")
        listed = children(arguments)
        unsure = arguments is None or arguments.has_error
        if unsure or any(each.type == "parameter_pack_expansion" for each in listed):
            self.findings.cannot_judge(f"{name}: its arguments cannot be counted", line(node))
        else:
            judge_call(self.findings, name, len(listed), line(node))

    def _macros(self) -> None:
        for node in self._each("preproc_function_def", "preproc_def"):
            body = text(field(node, "value"))
            if "eliza_inference_" in body and "#" in body:
                self.findings.cannot_judge(
                    f"{text(field(node, 'name'))} pastes names of functions together", line(node)
                )

    # ------------------------------------------------------------------ structures

    def _structs(self) -> None:
        for node in self._each("struct_specifier", "class_specifier"):
            body = field(node, "body")
            if body is None:
                continue
            names = [text(field(node, "name"))]
            if node.parent is not None and node.parent.type == "type_definition":
                names += [each.name for each in self.types.declared(node.parent)]
            members = list(self._members(body))
            fields = [member.name for member in members]
            for name in filter(None, names):
                mirror = layouts.mirrored(self.findings, name, fields, line(node), False)
                if mirror is not None:
                    self._mirror(name, mirror, members, node)
                    break

    def _mirror(
        self, name: str, mirror: layouts.Mirror, members: list[layouts.Member], node: Node
    ) -> None:
        self.own_structs[name] = {member.name for member in members}
        unknown = [each.type.written for each in members if each.type.kind is None]
        if mirror.certain or _mirrors(mirror.struct, members):
            self.mirrored[name] = mirror.struct
            layouts.judge_layout(self.findings, mirror.struct, members, line(node), name)
        elif unknown and not any(_OWNING.search(each) for each in unknown):
            why = f"the size of {unknown[0]} is not known here"
            layouts.not_judged(self.findings, name, why, line(node))

    def _aliases_of_pointers(self) -> dict[str, str]:
        """What aliases are made of: ``typedef const Config *config_t``."""
        found = {}
        for node in self._each("type_definition", "alias_declaration"):
            if not any(field(each, "body") is not None for each in of_type(node, *_BODIES)):
                names = [each.name for each in self.types.declared(node)]
                for name in names or [text(field(node, "name"))]:
                    found[name] = text(node)
        return found

    def _members(self, body: Node) -> Iterator[layouts.Member]:
        for node in children(body):
            if node.type != "field_declaration" or _is_static(node):
                continue
            for name, shape in self.types.declared(node):
                if name and shape.how != "function":
                    count, element = 1, shape
                    while element.how == "array":
                        count *= element.length or 0
                        element = element.inner
                    kind = self.types.travels(element)
                    if count == 0:
                        kind = Type(shape.written, None, doubt="an array of unknown length")
                    yield layouts.Member(name, kind, line(node), count)

    def _fields(self) -> None:
        """Judge the names of fields that are used of variables of the structures' types."""
        for node in self._each("field_expression"):
            argument = field(node, "argument")
            if argument is not None and argument.type in ("identifier", "field_expression"):
                struct = self._struct_of(argument)
                if struct is not None:
                    self._field(struct, text(field(node, "field")), node)
        for node in self._each("initializer_pair"):
            designator = child(node, "field_designator")
            struct = self._struct_initialized(node)
            if designator is not None and struct is not None:
                self._field(struct, text(child(designator, "field_identifier")), node)

    def _field(self, struct: Struct, name: str, node: Node) -> None:
        if any(name == each.name for each in struct.fields) or not name:
            self.findings.count(f"# use# of fields of {struct.name}", line(node))
        elif name == naming.LATER_FIELD and struct.name == naming.CONFIG:
            self.findings.cannot_judge(f"{struct.name}.{name} is of a later ABI", line(node))
        elif not any(name in fields for fields in self.own_structs.values()):
            self.findings.problem(f"{struct.name} has no field {name}", line(node))

    def _struct_of(self, expression: Node) -> Optional[Struct]:
        return self._struct_in(self.types.type_of(expression))

    def _struct_initialized(self, pair: Node) -> Optional[Struct]:
        for outer in list(ancestors(pair))[:4]:
            if outer.type in ("declaration", "field_declaration"):
                return self._struct_in(self.types.base(outer))
            if outer.type == "compound_literal_expression":
                described = field(outer, "type")
                return self._struct_in(self.types.described(described)) if described else None
            if outer.type == "initializer_pair":
                return None
        return None

    def _struct_in(self, shape: Optional[Shape]) -> Optional[Struct]:
        while shape is not None and shape.how == "pointer":
            shape = shape.inner
        if shape is None or shape.how != "base":
            return None
        name = shape.written.split("::")[-1].split(" ")[-1]
        return self.findings.table.structs.get(name)

    # ------------------------------------------------------------------ constants

    def _constants(self) -> None:
        for node in self._each("preproc_def"):
            value = _number(text(field(node, "value")))
            if value is not None:
                name = text(field(node, "name"))
                self._contained(node).append(constants.Member(name, value, line(node)))
                constants.judge_constant(self.findings, name, value, line(node))
                judge_offset_constant(self.findings, name, value, line(node))
        for node in self._each("enum_specifier"):
            self._enumeration(node)
        for node in self._each("init_declarator"):
            self._constant(node, field(node, "declarator"), field(node, "value"))
        for node in self._each("field_declaration"):
            self._constant(node, field(node, "declarator"), field(node, "default_value"))
        for container, members in self.containers.items():
            constants.judge_loose(self.findings, container, members)

    def _contained(self, node: Node) -> list[constants.Member]:
        """The constants of the type or the namespace that a constant belongs to."""
        outer = next((each for each in ancestors(node) if each.type in _CONTAINERS), None)
        return self.containers.setdefault(text(field(outer, "name")), [])

    def _constant(self, node: Node, name: Optional[Node], value: Optional[Node]) -> None:
        number = self._evaluate(value)
        if number is not None and name is not None and name.type in _PLAIN_NAMES:
            self._contained(node).append(constants.Member(text(name), number, line(node)))
            constants.judge_constant(self.findings, text(name), number, line(node))
            judge_offset_constant(self.findings, text(name), number, line(node))

    def _enumeration(self, node: Node) -> None:
        members, following = [], 0
        for each in children(field(node, "body")):
            if each.type == "enumerator":
                given = field(each, "value")
                number = self._evaluate(given) if given is not None else following
                if number is None:
                    break
                members.append(constants.Member(text(field(each, "name")), number, line(each)))
                following = number + 1
        constants.judge_members(self.findings, text(field(node, "name")), members)

    def _evaluate(self, value: Optional[Node]) -> Optional[int]:
        while value is not None and value.type in ("initializer_list", "parenthesized_expression"):
            inner = children(value)
            value = inner[0] if len(inner) == 1 else None
        return None if value is None else _number(text(value))

    def _assertions(self) -> None:
        """``sizeof(eliza_llm_stream_config_t) == 80``, ``offsetof(.., slot_id) == 20``."""
        for node in self._each("binary_expression"):
            if text(field(node, "operator")) not in ("==", "!="):
                continue
            sides = [field(node, "left"), field(node, "right")]
            for one, other in (sides, sides[::-1]):
                number = self._evaluate(other)
                if one is not None and number is not None:
                    self._assertion(one, number)

    def _assertion(self, measured: Node, number: int) -> None:
        if measured.type == "sizeof_expression":
            name = text(field(measured, "type") or field(measured, "value")).strip("() ")
            struct = self._struct_measured(name)
            if struct is not None:
                what = f"sizeof({name})"
                constants.judge_size(self.findings, struct, number, line(measured), what)
        elif measured.type == "offsetof_expression":
            name, member = text(field(measured, "type")), text(field(measured, "member"))
            struct = self._struct_measured(name)
            known = naming.field_named(member, struct) if struct is not None else None
            if struct is not None and known is not None:
                label = f"offsetof({name}, {member})"
                judge_offset(self.findings, struct, known, number, label, line(measured))

    def _struct_measured(self, written: str) -> Optional[Struct]:
        name = written.split(" ")[-1]
        struct, exact = naming.struct_mirrored(name, self.findings.table)
        return self.mirrored.get(name) or (struct if exact else None)


def _without_noise(source: bytes) -> bytes:
    """A source with macros that only decorate declarations turned into spaces."""
    root = parse("cpp", source)
    decorations = set(_NOISE)
    for node in of_type(root, "preproc_def"):
        value = text(field(node, "value")).strip()
        if not value or value.startswith(("__attribute__", "__declspec", "extern ")):
            decorations.add(text(field(node, "name")))
    patched = bytearray(source)
    for node in of_type(root, "identifier", "type_identifier", "namespace_identifier"):
        name = text(node)
        decorates = name in decorations or (name.isupper() and name.endswith(_NOISE_ENDINGS))
        if decorates and node.parent is not None and not node.parent.type.startswith("preproc"):
            patched[node.start_byte : node.end_byte] = b" " * (node.end_byte - node.start_byte)
    return bytes(patched)


def _number(written: str) -> Optional[int]:
    digits = written.strip().strip("()").replace("'", "").rstrip("uUlL").replace(" ", "")
    try:
        return int(digits, 0)
    except ValueError:
        return None


def _is_cast(call: Node) -> bool:
    name = text(field(call, "function")).split("<")[0]
    return name.rsplit("::", 1)[-1] in _CASTS | {"addressof"}


def _is_message(call: Node) -> bool:
    """Whether a call only says a name: to a log, in an exception."""
    called = set(naming.words(text(field(call, "function"))))
    return bool(called & _SAYING)


def _is_static(node: Node) -> bool:
    kinds = ("storage_class_specifier", "type_qualifier")
    return any(c.type in kinds and text(c) in ("static", "constexpr") for c in children(node))


def _mirrors(struct: Struct, members: list[layouts.Member]) -> bool:
    """Whether a structure of a similar name is a copy: of the same fields, without C++ types."""
    known = [m for m in members if naming.field_named(m.name, struct) is not None]
    kinds = {member.type.kind for member in members}
    return 2 * len(known) >= len(members) and Kind.POINTER in kinds and None not in kinds


_SAYING = word_set(
    "log logi logw loge logd logf print printf fprintf snprintf error warn warning debug info "
    "trace fatal expect assert test fail throw perror puts runtime what message"
)
_BODIES = ("struct_specifier", "class_specifier", "enum_specifier")
_CONTAINERS = ("struct_specifier", "class_specifier", "namespace_definition")
# Of C++ types that no structure of C holds.
_OWNING = re.compile("std::|[Ss]tring|[Oo]ptional|vector|_ptr|QString|absl::")
_PLAIN_NAMES = ("identifier", "field_identifier")
_DECLARATORS = (
    *FUNCTION_DECLARATORS,
    "preproc_def",
    "preproc_function_def",
    "pointer_declarator",
    "init_declarator",
    "parenthesized_declarator",
    "preproc_defined",
    "preproc_ifdef",
    "enumerator",
    "declaration",
    "labeled_statement",
)
_KEPT = word_set("""
    alias_declaration binary_expression class_specifier declaration enum_specifier
    field_declaration field_expression function_definition identifier init_declarator
    initializer_pair preproc_def preproc_function_def string_literal struct_specifier
    type_definition
    """)
