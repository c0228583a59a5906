"""What the expressions of a JavaScript or TypeScript source stand for, as far as it says so itself.

Names are looked up by lexical scope. Constants, object and array literals, enumerations, spreads
and small helper functions are followed; everything else is ``External``, known by its name alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Optional, Union

from .syntax import DEEPEST, TooDeep, child, children, line, text, word_set
from .syntax import field as part

if TYPE_CHECKING:
    from tree_sitter import Node

FUNCTIONS = (
    "function_declaration",
    "function_expression",
    "function",
    "arrow_function",
    "method_definition",
    "generator_function",
    "generator_function_declaration",
)
_BLOCKS = ("statement_block", "for_statement", "for_in_statement", "catch_clause", "class_body")
_CLASSES = ("class_declaration", "class", "abstract_class_declaration")
_WRAPPERS = (
    "parenthesized_expression",
    "as_expression",
    "satisfies_expression",
    "non_null_expression",
    "await_expression",
)
_DEPTH = 40
_STEPS = 20_000
"""How far one expression is followed."""


class Scope:
    """A region of names. ``function`` is the function whose body it is in."""

    def __init__(self, parent: Optional[Scope], function: Optional[Node], label: str = "") -> None:
        self.parent = parent
        self.function = function
        self.label = label
        self.names: dict[str, Declaration] = {}

    def find(self, name: str) -> Optional[Declaration]:
        scope: Optional[Scope] = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def labels(self) -> Iterator[str]:
        """The names of the functions and classes around, from the innermost."""
        scope: Optional[Scope] = self
        while scope is not None:
            if scope.label:
                yield scope.label
            scope = scope.parent


@dataclass
class Declaration:
    """What a name was declared as."""

    how: str
    """``value``, ``parameter``, ``rest``, ``import``, ``function``, ``enum`` or ``other``."""
    node: Optional[Node]
    """The value, the function, the enumeration or the parameter's function."""
    scope: Scope
    """Where the value's own names are looked up."""
    path: tuple[Union[str, int], ...] = ()
    """How destructuring gets at it; the position of a parameter comes first."""
    line: int = 0
    type: str = ""
    external: tuple[str, ...] = ()
    default: Optional[Node] = None
    """Of a parameter."""
    assigned: int = 0


class Ref(NamedTuple):
    """An expression, and where its names are looked up."""

    node: Node
    scope: Scope
    env: Mapping[int, tuple[Ref, ...]] = {}
    """The arguments of the calls that led here, by the called function."""

    def at(self, node: Node) -> Ref:
        return Ref(node, self.scope, self.env)


@dataclass
class External:
    """A value from elsewhere: ``bun:ffi``, ``FFIType``, ``ptr``."""

    path: tuple[str, ...]

    @property
    def last(self) -> str:
        return self.path[-1] if self.path else ""


@dataclass
class Object:
    """An object literal or an enumeration."""

    entries: dict[str, Union[Ref, Any]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    complete: bool = True
    """False where it may have entries that cannot be read."""


@dataclass
class Array:
    items: list[Ref] = field(default_factory=list)
    complete: bool = True


@dataclass
class Closure:
    """A function."""

    node: Node
    scope: Scope


class Program:
    """One source: its scopes, and its nodes by type."""

    def __init__(self, root: Node) -> None:
        self.top = Scope(None, None)
        self.nodes: dict[str, list[Ref]] = {}
        self.comments: dict[int, str] = {}
        self.members: dict[str, list[Ref]] = {}
        """What is stored under a property: class fields, ``this.x = ..``, methods."""
        self.calls: dict[str, list[Ref]] = {}
        """Calls by the last name of what is called."""
        self._scopes: dict[int, Scope] = {}
        self._labels: dict[int, str] = {}
        self._assignments: list[tuple[str, Ref]] = []
        self._classes: set[str] = set()
        self._steps = 0
        self._visit(root)
        self._settle_assignments()

    def scope_of(self, node: Node) -> Scope:
        """The scope that a node opens."""
        return self._scopes.get(node.id, self.top)

    def label_of(self, function: Node) -> str:
        return text(part(function, "name")) or self._labels.get(function.id, "")

    # ------------------------------------------------------------------ reading the source

    def _visit(self, root: Node) -> None:
        cursor = root.walk()
        scopes = [self.top]
        opened: list[bool] = []
        while True:
            node = cursor.node
            opens = False
            if cursor.depth > DEEPEST:
                raise TooDeep
            if node is not None and node.is_named:
                opens = self._enter(node, scopes)
            if cursor.goto_first_child():
                opened.append(opens)
                continue
            if opens:
                scopes.pop()
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return
                if opened.pop():
                    scopes.pop()

    def _enter(self, node: Node, scopes: list[Scope]) -> bool:
        """Take a node in; whether it opened a scope."""
        scope = scopes[-1]
        kind = node.type
        if kind in _KEPT:
            self.nodes.setdefault(kind, []).append(Ref(node, scope))
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, node, scope)
        if kind in FUNCTIONS:
            inner = Scope(scope, node, self.label_of(node))
            self._declare_parameters(node, inner)
        elif kind in _CLASSES:
            self._classes.add(text(part(node, "name")))
            inner = Scope(scope, scope.function, text(part(node, "name")))
        elif kind in _BLOCKS:
            inner = Scope(scope, scope.function)
        else:
            return False
        self._scopes[node.id] = inner
        scopes.append(inner)
        return True

    def _comment(self, node: Node, scope: Scope) -> None:
        self.comments[line(node)] = text(node).strip("/*! \t\r\n")

    def _call(self, node: Node, scope: Scope) -> None:
        self.calls.setdefault(last_name(part(node, "function")), []).append(Ref(node, scope))

    def _declarator(self, node: Node, scope: Scope) -> None:
        pattern, value = part(node, "name"), part(node, "value")
        if pattern is None:
            return
        kind = text(child(part(node, "type"), "type_identifier", "generic_type"))
        if value is not None:
            self._label(value, text(pattern))
        declaration = Declaration("value", value, scope, type=kind)
        self._declare(pattern, scope, declaration)

    def _function(self, node: Node, scope: Scope) -> None:
        name = part(node, "name")
        if name is not None:
            scope.names[text(name)] = Declaration("function", node, scope, line=line(node))

    def _enum(self, node: Node, scope: Scope) -> None:
        name = text(part(node, "name"))
        scope.names[name] = Declaration("enum", node, scope, line=line(node))

    def _import(self, node: Node, scope: Scope) -> None:
        module = literal(part(node, "source")) or ""
        for clause in children(child(node, "import_clause")):
            if clause.type == "identifier":
                self._external(text(clause), (module,), scope)
            elif clause.type == "namespace_import":
                self._external(text(child(clause, "identifier")), (module,), scope)
            for each in children(clause):
                if each.type == "import_specifier":
                    name = text(part(each, "name"))
                    alias = text(part(each, "alias")) or name
                    self._external(alias, (module, name), scope)

    def _external(self, name: str, path: tuple[str, ...], scope: Scope) -> None:
        scope.names[name] = Declaration("import", None, scope, external=path)

    def _pair(self, node: Node, scope: Scope) -> None:
        value, name = part(node, "value"), property_name(part(node, "key"))
        if value is not None and name:
            self._label(value, name)
            if unwrap(value).type in FUNCTIONS:
                self._member(name, Ref(value, scope))

    def _method(self, node: Node, scope: Scope) -> None:
        name = property_name(part(node, "name"))
        if name:
            self._member(name, Ref(node, scope))

    def _class_field(self, node: Node, scope: Scope) -> None:
        name = property_name(part(node, "name") or part(node, "property"))
        value = part(node, "value")
        if value is not None and name:
            self._label(value, name)
            self._member(name, Ref(value, scope))

    def _assignment(self, node: Node, scope: Scope) -> None:
        left, right = part(node, "left"), part(node, "right")
        if left is None or right is None:
            return
        if left.type == "identifier":
            self._assignments.append((text(left), Ref(node, scope)))
        elif left.type == "member_expression":
            name = property_name(part(left, "property"))
            self._label(right, name)
            if part(left, "object") is not None and text(part(left, "object")) == "this":
                self._member(name, Ref(right, scope))

    def _update(self, node: Node, scope: Scope) -> None:
        argument = part(node, "argument")
        if argument is not None and argument.type == "identifier":
            self._assignments.append((text(argument), Ref(node, scope)))

    def _label(self, value: Node, name: str) -> None:
        value = unwrap(value)
        self._labels[value.id] = name
        if value.type == "call_expression" and last_name(part(value, "function")) in _FREEZING:
            for frozen in children(part(value, "arguments"))[:1]:
                self._labels[unwrap(frozen).id] = name

    def label(self, value: Node) -> str:
        """The name of the variable or property that a value is given to."""
        return self._labels.get(value.id, "")

    def _member(self, name: str, value: Ref) -> None:
        self.members.setdefault(name, []).append(value)

    def _declare(self, pattern: Node, scope: Scope, model: Declaration) -> None:
        """Declare the names of a pattern, each with its own path."""
        if pattern.type in ("identifier", "shorthand_property_identifier_pattern"):
            declared = Declaration(**{**vars(model), "line": line(pattern)})
            scope.names[text(pattern)] = declared
        elif pattern.type == "object_pattern":
            for each in children(pattern):
                self._declare_in_object(each, scope, model)
        elif pattern.type == "array_pattern":
            for position, each in enumerate(children(pattern)):
                self._declare(each, scope, _inside(model, position))
        elif pattern.type in ("assignment_pattern", "object_assignment_pattern"):
            left = part(pattern, "left")
            if left is not None:
                self._declare(left, scope, model)
        elif pattern.type == "rest_pattern" and children(pattern):
            is_parameter = model.how == "parameter" and len(model.path) == 1
            rest = Declaration(**{**vars(model), "how": "rest" if is_parameter else "other"})
            self._declare(children(pattern)[0], scope, rest)

    def _declare_in_object(self, each: Node, scope: Scope, model: Declaration) -> None:
        if each.type == "pair_pattern":
            value = part(each, "value")
            if value is not None:
                name = property_name(part(each, "key"))
                self._declare(value, scope, _inside(model, name))
        elif each.type == "object_assignment_pattern":
            left = part(each, "left")
            if left is not None:
                self._declare(left, scope, _inside(model, text(left)))
        else:
            self._declare(each, scope, _inside(model, text(each)))

    def _declare_parameters(self, function: Node, scope: Scope) -> None:
        single = part(function, "parameter")
        listed = children(part(function, "parameters"))
        for position, each in enumerate([single] if single is not None else listed):
            pattern = part(each, "pattern") or each
            kind = text(child(part(each, "type"), "type_identifier", "generic_type"))
            model = Declaration("parameter", function, scope, (position,), type=kind)
            model.default = part(each, "value") or part(each, "right")
            self._declare(pattern, scope, model)

    def _settle_assignments(self) -> None:
        """A variable without a value that is assigned once has that value; else it varies."""
        for name, ref in self._assignments:
            declaration = ref.scope.find(name)
            if declaration is None:
                continue
            declaration.assigned += 1
            right = part(ref.node, "right")
            once = declaration.how == "value" and declaration.node is None
            if once and declaration.assigned == 1 and ref.node.type == "assignment_expression":
                declaration.node, declaration.scope = right, ref.scope
            else:
                declaration.how = "other"

    # ------------------------------------------------------------------ evaluating

    def value(self, ref: Ref, depth: int = 0) -> Any:
        """A number, a string, a boolean, or one of the classes above."""
        node = unwrap(ref.node)
        evaluate = _VALUES.get(node.type)
        self._steps = self._steps + 1 if depth else 0
        if evaluate is None or depth > _DEPTH or self._steps > _STEPS:
            return External((text(node)[:60],))
        return evaluate(self, ref.at(node), depth + 1)

    def entry(self, ref: Ref, step: Union[str, int]) -> Optional[Ref]:
        """The expression that an object or array literal has under a name or an index."""
        value = self.value(ref)
        if isinstance(value, Array) and isinstance(step, int):
            return value.items[step] if value.complete and step < len(value.items) else None
        found = value.entries.get(str(step)) if isinstance(value, Object) else None
        return found if isinstance(found, Ref) else None

    def declaration(self, ref: Ref) -> Optional[Declaration]:
        """The declaration of an identifier."""
        return ref.scope.find(text(ref.node))

    def definition(self, ref: Ref) -> Ref:
        """The expression that a name, a property or a call of a helper stands for in the end."""
        for _ in range(_DEPTH):
            ref = ref.at(unwrap(ref.node))
            following = self.step(ref)
            if following is None or following.node.id == ref.node.id:
                return ref
            ref = following
        return ref

    def step(self, ref: Ref) -> Optional[Ref]:
        """The expression that this one gets its value from, if the source shows it."""
        node = ref.node
        if node.type in ("identifier", "shorthand_property_identifier"):
            return self._declared_as(ref)
        if node.type == "member_expression":
            return self._stored_in(ref)
        if node.type == "call_expression":
            callee, arguments = part(node, "function"), self.arguments(ref)
            if last_name(callee) in _FREEZING and arguments:
                return arguments[0]
            function = self.callee(ref)
            result = self.returned(function.node) if function is not None else None
            if function is not None and result is not None:
                return Ref(result.node, result.scope, {**ref.env, function.node.id: arguments})
        return None

    def callee(self, call: Ref) -> Optional[Closure]:
        """The function of this source that a call calls."""
        node = unwrap(part(call.node, "function") or call.node)
        found: Optional[Ref] = None
        if node.type == "member_expression":
            own = self.members.get(last_name(node), [])
            found = own[0] if len(own) == 1 else None
        elif node.type == "identifier":
            declaration = call.scope.find(text(node))
            known = declaration is not None and declaration.how in ("function", "value")
            if declaration is not None and known and not declaration.path and declaration.node:
                found = Ref(declaration.node, declaration.scope)
        if found is None or unwrap(found.node).type not in FUNCTIONS:
            return None
        return Closure(unwrap(found.node), found.scope)

    def _declared_as(self, ref: Ref) -> Optional[Ref]:
        declaration = ref.scope.find(text(ref.node))
        if declaration is None or declaration.node is None:
            return None
        path = declaration.path
        if declaration.how == "parameter":
            start, path = self.argument(declaration, ref.env), path[1:]
        elif declaration.how == "value":
            start = Ref(declaration.node, declaration.scope, ref.env)
        else:
            return None
        for step in path:
            start = self.entry(start, step) if start is not None else None
        return start

    def _stored_in(self, ref: Ref) -> Optional[Ref]:
        target, name = part(ref.node, "object"), property_name(part(ref.node, "property"))
        if target is None:
            return None
        own = self.members.get(name, [])
        if len(own) == 1 and (target.type == "this" or text(target) in self._classes):
            return own[0]
        return self.entry(ref.at(target), name)

    def argument(
        self, declaration: Declaration, env: Mapping[int, tuple[Ref, ...]]
    ) -> Optional[Ref]:
        """What was passed for a parameter: a Ref, or None."""
        if declaration.how != "parameter" or declaration.node is None:
            return None
        arguments, position = env.get(declaration.node.id), declaration.path[0]
        if arguments is None or not isinstance(position, int):
            return None
        if position < len(arguments):
            return arguments[position]
        default = declaration.default
        return None if default is None else Ref(default, declaration.scope, env)

    def call_sites(self, function: Node) -> list[Ref]:
        """The calls of a function of this source; none where its name is not its own."""
        name = self.label_of(function)
        own = self.members.get(name, [])
        if not name or len(own) > 1:
            return []
        found = []
        for call in self.calls.get(name, []):
            callee = unwrap(part(call.node, "function") or call.node)
            if callee.type == "identifier":
                declaration = call.scope.find(name)
                value = declaration.node if declaration is not None else None
                if value is not None and unwrap(value).id == function.id:
                    found.append(call)
            elif own and unwrap(own[0].node).id == function.id:
                found.append(call)
        return found

    def arguments(self, call: Ref) -> tuple[Ref, ...]:
        return tuple(call.at(node) for node in children(part(call.node, "arguments")))

    def returned(self, function: Node) -> Optional[Ref]:
        """The expression that a function returns, where that is all it decides."""
        body = part(function, "body")
        if body is None:
            return None
        if body.type != "statement_block":
            return Ref(body, self.scope_of(function))
        returns = [each for each in children(body) if each.type == "return_statement"]
        last = children(body)[-1:]
        if len(returns) != 1 or returns != last or not children(returns[0]):
            return None
        return Ref(children(returns[0])[0], self.scope_of(body))

    def _follow(self, value: Any, path: tuple[Union[str, int], ...], ref: Ref, depth: int) -> Any:
        for step in path:
            value = self._step(value, step, ref, depth)
        return value

    def _step(self, value: Any, step: Union[str, int], ref: Ref, depth: int) -> Any:
        if isinstance(value, Object) and str(step) in value.entries:
            entry = value.entries[str(step)]
            return self.value(entry, depth) if isinstance(entry, Ref) else entry
        if isinstance(value, Array) and value.complete and step in range(len(value.items)):
            return self.value(value.items[int(step)], depth)
        if isinstance(value, External):
            return External((*value.path, str(step)))
        return External(("?", str(step)))

    def _identifier(self, ref: Ref, depth: int) -> Any:
        name = text(ref.node)
        declaration = ref.scope.find(name)
        if declaration is None or declaration.how == "other":
            return External((name,))
        if declaration.how == "import":
            return External(declaration.external)
        if declaration.how == "rest":
            return self._rest(declaration, ref)
        if declaration.how == "parameter":
            passed = self.argument(declaration, ref.env)
            if passed is None:
                return External((name,))
            return self._follow(self.value(passed, depth), declaration.path[1:], ref, depth)
        if declaration.node is None:
            return External((name,))
        if declaration.how == "function":
            return Closure(declaration.node, declaration.scope)
        if declaration.how == "enum":
            return self._enumeration(Ref(declaration.node, declaration.scope), depth)
        inner = Ref(declaration.node, declaration.scope, ref.env)
        return self._follow(self.value(inner, depth), declaration.path, inner, depth)

    def _rest(self, declaration: Declaration, ref: Ref) -> Any:
        """What was passed for a rest parameter."""
        function, position = declaration.node, declaration.path[0]
        arguments = ref.env.get(function.id) if function is not None else None
        if arguments is None or not isinstance(position, int):
            return External((text(ref.node),))
        spread = any(each.node.type == "spread_element" for each in arguments[position:])
        return Array(list(arguments[position:]), not spread)

    def _enumeration(self, ref: Ref, depth: int) -> Object:
        result, following = Object(), 0
        for each in children(part(ref.node, "body")):
            value: Any = following
            name = each
            if each.type == "enum_assignment":
                name = part(each, "name") or each
                given = part(each, "value")
                value = self.value(ref.at(given), depth) if given is not None else None
            if isinstance(value, (int, float)):
                following = int(value) + 1
            result.entries[property_name(name)] = value
            result.lines[property_name(name)] = line(each)
        return result

    def enumeration(self, ref: Ref) -> Object:
        return self._enumeration(ref, 0)

    def _object(self, ref: Ref, depth: int) -> Object:
        result = Object()
        for each in children(ref.node):
            if each.type == "pair":
                self._object_pair(result, ref.at(each), depth)
            elif each.type == "shorthand_property_identifier":
                result.entries[text(each)] = ref.at(each)
                result.lines[text(each)] = line(each)
            elif each.type == "method_definition":
                result.entries[property_name(part(each, "name"))] = Closure(each, ref.scope)
            elif each.type == "spread_element":
                self._object_spread(result, ref.at(children(each)[0]), depth)
        return result

    def _object_pair(self, result: Object, ref: Ref, depth: int) -> None:
        key, value = part(ref.node, "key"), part(ref.node, "value")
        name = self.key(ref.at(key), depth) if key is not None else None
        if name is None or value is None:
            result.complete = False
            return
        result.entries[name] = ref.at(value)
        result.lines[name] = line(ref.node)

    def _object_spread(self, result: Object, ref: Ref, depth: int) -> None:
        value = self.value(ref, depth)
        if isinstance(value, Object):
            result.entries.update(value.entries)
            result.lines.update(value.lines)
            result.complete = result.complete and value.complete
        else:
            result.complete = False

    def key(self, ref: Ref, depth: int = 0) -> Optional[str]:
        """The name of a property, also a computed one."""
        if ref.node.type != "computed_property_name":
            return property_name(ref.node)
        inner = children(ref.node)
        value = self.value(ref.at(inner[0]), depth) if inner else None
        return value if isinstance(value, str) else None

    def _array(self, ref: Ref, depth: int) -> Array:
        result = Array()
        for each in children(ref.node):
            if each.type != "spread_element":
                result.items.append(ref.at(each))
                continue
            value = self.value(ref.at(children(each)[0]), depth)
            if isinstance(value, Array):
                result.items.extend(value.items)
                result.complete = result.complete and value.complete
            else:
                result.complete = False
        return result

    def _member_access(self, ref: Ref, depth: int) -> Any:
        target, name = part(ref.node, "object"), property_name(part(ref.node, "property"))
        if target is None:
            return External((name,))
        own = self.members.get(name, [])
        if len(own) == 1 and (target.type == "this" or text(target) in self._classes):
            return self.value(own[0], depth)
        return self._step(self.value(ref.at(target), depth), name, ref, depth)

    def _subscript(self, ref: Ref, depth: int) -> Any:
        target, index = part(ref.node, "object"), part(ref.node, "index")
        if target is None or index is None:
            return External(("?",))
        step = self.value(ref.at(index), depth)
        if isinstance(step, (str, int)):
            return self._step(self.value(ref.at(target), depth), step, ref, depth)
        return External(("?",))

    def _call_value(self, ref: Ref, depth: int) -> Any:
        callee = unwrap(part(ref.node, "function") or ref.node)
        arguments = self.arguments(ref)
        name = last_name(callee)
        if name in _TRANSPARENT and arguments:
            return self.value(arguments[0], depth)
        if name in ("require", "import") and arguments:
            module = self.value(arguments[0], depth)
            return External((module if isinstance(module, str) else "?",))
        function = self.callee(ref)
        if function is not None:
            result = self.returned(function.node)
            if result is not None:
                env = {**ref.env, function.node.id: arguments}
                return self.value(Ref(result.node, result.scope, env), depth)
        return External((f"{name}()",))

    def _closure(self, ref: Ref, depth: int) -> Closure:
        return Closure(ref.node, ref.scope)

    def _number(self, ref: Ref, depth: int) -> Any:
        digits = text(ref.node).replace("_", "").rstrip("n")
        try:
            return int(digits, 0)
        except ValueError:
            pass
        try:
            return float(digits)
        except ValueError:
            return External((digits,))

    def _string(self, ref: Ref, depth: int) -> Any:
        return literal(ref.node)

    def _template(self, ref: Ref, depth: int) -> Any:
        pieces = []
        for each in children(ref.node):
            if each.type == "template_substitution" and children(each):
                value = self.value(ref.at(children(each)[0]), depth)
                if not isinstance(value, (str, int)):
                    return External((text(ref.node)[:60],))
                pieces.append(str(value))
            else:
                pieces.append(text(each))
        return "".join(pieces)

    def _true_or_false(self, ref: Ref, depth: int) -> bool:
        return ref.node.type == "true"

    def _unary(self, ref: Ref, depth: int) -> Any:
        argument = part(ref.node, "argument")
        value = self.value(ref.at(argument), depth) if argument is not None else None
        operator = text(part(ref.node, "operator"))
        if isinstance(value, (int, float)) and operator in ("-", "+"):
            return -value if operator == "-" else value
        return External((text(ref.node)[:60],))

    def _binary(self, ref: Ref, depth: int) -> Any:
        left, right = part(ref.node, "left"), part(ref.node, "right")
        operation = _OPERATIONS.get(text(part(ref.node, "operator")))
        if left is not None and right is not None and operation is not None:
            first = self.value(ref.at(left), depth)
            second = self.value(ref.at(right), depth)
            numbers = isinstance(first, (int, float)) and isinstance(second, (int, float))
            if numbers or (isinstance(first, str) and isinstance(second, str)):
                try:
                    return operation(first, second)
                except (TypeError, ValueError, ArithmeticError):
                    pass
        return External((text(ref.node)[:60],))

    def _ternary(self, ref: Ref, depth: int) -> Any:
        first, second = part(ref.node, "consequence"), part(ref.node, "alternative")
        if first is not None and second is not None:
            one, other = self.value(ref.at(first), depth), self.value(ref.at(second), depth)
            if isinstance(one, (int, str, External)) and one == other:
                return one
        return External((text(ref.node)[:60],))


def unwrap(node: Node) -> Node:
    """An expression without parentheses, assertions of its type, and ``await``."""
    while node.type in _WRAPPERS or node.type == "type_assertion":
        inner = children(node)
        if not inner:
            return node
        node = inner[-1] if node.type == "type_assertion" else inner[0]
    return node


def property_name(node: Optional[Node]) -> str:
    """The name of a property as it is written; empty for a computed one."""
    if node is None or node.type == "computed_property_name":
        return ""
    if node.type == "string":
        return literal(node) or ""
    return text(node).lstrip("#")


def literal(node: Optional[Node]) -> Optional[str]:
    """The content of a string literal."""
    if node is None or node.type != "string":
        return None
    return text(node)[1:-1].encode("utf-8", "replace").decode("utf-8").replace("\\0", "")


def last_name(node: Optional[Node]) -> str:
    """The last name of what is called or accessed: ``c`` of ``a.b.c``."""
    if node is None:
        return ""
    node = unwrap(node)
    if node.type == "member_expression":
        return property_name(part(node, "property"))
    if node.type == "subscript_expression":
        return literal(part(node, "index")) or ""
    if node.type in ("identifier", "import", "super"):
        return text(node)
    return ""


def _inside(model: Declaration, step: Union[str, int]) -> Declaration:
    return Declaration(**{**vars(model), "path": (*model.path, step)})


_FREEZING = frozenset({"freeze", "seal"})
_TRANSPARENT = _FREEZING | {"Number", "BigInt", "trunc"}
_OPERATIONS: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if a % b == 0 else a / b,
    "<<": lambda a, b: a << b if b < 64 else 0,
    ">>": lambda a, b: a >> b,
    "|": lambda a, b: a | b,
}
_KEPT = word_set("""
    assignment_expression call_expression new_expression object array string template_string
    enum_declaration variable_declarator member_expression subscript_expression
    public_field_definition field_definition class_declaration class method_signature
    property_signature abstract_class_declaration
    """)
_HANDLERS: dict[str, Any] = {
    "comment": Program._comment,
    "call_expression": Program._call,
    "variable_declarator": Program._declarator,
    "function_declaration": Program._function,
    "generator_function_declaration": Program._function,
    "enum_declaration": Program._enum,
    "import_statement": Program._import,
    "pair": Program._pair,
    "method_definition": Program._method,
    "public_field_definition": Program._class_field,
    "field_definition": Program._class_field,
    "assignment_expression": Program._assignment,
    "augmented_assignment_expression": Program._assignment,
    "update_expression": Program._update,
}
_VALUES: dict[str, Any] = {
    "identifier": Program._identifier,
    "shorthand_property_identifier": Program._identifier,
    "object": Program._object,
    "array": Program._array,
    "member_expression": Program._member_access,
    "subscript_expression": Program._subscript,
    "call_expression": Program._call_value,
    "number": Program._number,
    "string": Program._string,
    "template_string": Program._template,
    "true": Program._true_or_false,
    "false": Program._true_or_false,
    "unary_expression": Program._unary,
    "binary_expression": Program._binary,
    "ternary_expression": Program._ternary,
    **dict.fromkeys(FUNCTIONS, Program._closure),
}
