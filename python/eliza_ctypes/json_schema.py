"""A JSON Schema as a GBNF grammar, so that only valid JSON can be generated.

Every finished text is JSON that the schema allows. What a grammar cannot say exactly is refused by
name, never ignored. Where a schema leaves things open, the grammar takes the narrower side:

* Without ``type``, a schema means the types that its keywords speak of: ``properties`` an object.
* Objects with ``properties`` get others only where ``additionalProperties`` asks for them, arrays
  with ``prefixItems`` further ones only where ``items`` does. ``properties`` keep their order.
* Integers have at most 19 digits, fractions 16 and exponents 2: a model cannot loop on digits.
* Between tokens of JSON stands nothing, a space, or a line end and up to 20 spaces.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Tuple, Union

from .errors import InvalidArgument
from .gbnf import SHARED, Rules, alternatives, in_class, joined, literal, span

Schema = Union[Mapping[str, Any], bool]

_Location = Tuple[str, ...]

_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly"}
_ANNOTATIONS |= {"writeOnly", "discriminator", "$schema", "$comment", "$defs", "definitions"}
_KEYWORDS = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
# Keywords that say everything by themselves, and what may stand beside them.
_ALONE = {
    "$ref": frozenset[str](),
    "anyOf": frozenset[str](),
    "oneOf": frozenset[str](),
    "enum": frozenset({"type"}),
    "const": frozenset({"type"}),
}
_KNOWN = _ANNOTATIONS.union({"type"}, _ALONE, *_KEYWORDS.values())

_FORMATS = ("date", "time", "date-time", "uuid")
_INTEGER_DIGITS = 19
# Bounds of numbers beyond this, and keys longer than this together, make absurd grammars.
_LARGEST_BOUND = 10**100
_MOST_KEY_CHARACTERS = 4000
_MOST_RULES = 10000


def to_gbnf(schema: Schema) -> str:
    """The grammar, with a rule named ``root``, of the values that ``schema`` allows.

    Raises InvalidArgument, which names keyword and place, for a schema that is broken, that allows
    no finite value, or that uses more than: ``type``, ``enum``, ``const``, ``anyOf``, ``$ref``
    into the schema itself, ``oneOf`` of alternatives that exclude each other; ``properties``,
    ``required``, ``additionalProperties``; ``items``, ``prefixItems``, ``minItems``, ``maxItems``;
    ``minLength``, ``maxLength``, the ``format`` of a date, time, date-time or uuid; bounds of
    integers, and inclusive whole ones of numbers; annotations.
    """
    return _Converter(schema).grammar()


class _Converter:
    """One schema on its way. Each place in it that is not trivial becomes one rule."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._rules = Rules()
        self._names: dict[_Location, str] = {}
        self._places: dict[str, _Location] = {}
        self._waiting: deque[tuple[str, Mapping[str, Any]]] = deque()
        # Of each rule: its alternatives, each as the rules that it cannot do without; and the rules
        # that it may be, rather than contain.
        self._needs: dict[str, list[list[str]]] = {}
        self._choices: dict[str, list[str]] = {}

    def grammar(self) -> str:
        name = self._value(self._root, ())
        if name != "root":
            self._rules = Rules({"root": name, **self._rules})
        # A queue, not recursion: schemas nest and refer to themselves as they like.
        while self._waiting:
            rule, schema = self._waiting.popleft()
            self._rules[rule] = ""  # keeps its place before the rules that it brings along
            self._rules[rule] = self._body(rule, schema)
            if len(self._rules) > _MOST_RULES:
                _refuse((), f"it makes more than {_MOST_RULES} rules, the most that are read")
        self._refuse_empty_cycles()
        self._refuse_endless_values()
        return "".join(f"{name} ::= {body}\n" for name, body in self._rules.items())

    def _value(self, schema: Any, at: _Location) -> str:
        """The rule for one value."""
        schema, at = self._resolved(schema, at)
        if schema is True:
            return self._rules.shared("value")
        if at in self._names:
            return self._names[at]
        kind = self._kind(schema, at)
        if kind in SHARED:
            return self._rules.shared(kind)
        name = f"{kind}{len(self._names) + 1}" if at else "root"
        self._names[at], self._places[name] = name, at
        self._needs[name] = []
        self._waiting.append((name, schema))
        return name

    def _kind(self, schema: Mapping[str, Any], at: _Location) -> str:
        """A shared rule's name where that one says it all, else how a rule of its own is called."""
        if all(key in _ANNOTATIONS or key == "$id" for key in schema):
            return "value"
        for key in ("anyOf", "oneOf", "enum", "const"):
            if key in schema:
                return "choice-"
        types = _types(schema, at)
        if "format" in schema and "string" not in types:
            _refuse((*at, "format"), "format is supported for strings only")
        if len(types) > 1:
            return "choice-"
        return types[0] if _KEYWORDS[types[0]].isdisjoint(schema) else f"{types[0]}-"

    def _resolved(self, schema: Any, at: _Location) -> tuple[Any, _Location]:
        """The checked schema that is meant, and its place, past any $ref."""
        seen = {at}
        while True:
            _check(schema, at)
            if schema is True or "$ref" not in schema:
                return schema, at
            schema, at = self._referenced(schema["$ref"], (*at, "$ref"))
            if at in seen:
                _refuse(at, "a $ref that leads back to itself")
            seen.add(at)

    def _referenced(self, reference: Any, at: _Location) -> tuple[Any, _Location]:
        if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
            _refuse(at, f"{reference!r} is no JSON pointer into this schema (#/...)")
        from urllib.parse import unquote

        found: Any = self._root
        target: list[str] = []
        for part in unquote(reference).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
                part = str(int(part))
            else:
                _refuse(at, f"{reference!r} leads nowhere")
            target.append(part)
        return found, tuple(target)

    def _body(self, name: str, schema: Mapping[str, Any]) -> str:
        at = self._places[name]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._choice(name, key, schema[key], (*at, key))
        if "enum" in schema or "const" in schema:
            self._needs[name].append([])
            values = _values(schema, at) or ()
            place = (*at, "const" if "const" in schema else "enum")
            return alternatives(literal(_spelled(value, place)) for value in values)
        write = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
        }
        bodies = []
        for kind in _types(schema, at):
            if _KEYWORDS[kind].isdisjoint(schema):
                self._needs[name].append([])
                bodies.append(self._rules.shared(kind))
            else:
                bodies.append(write[kind](name, schema, at))
        return alternatives(bodies)

    def _choice(self, name: str, key: str, schemas: Any, at: _Location) -> str:
        if not isinstance(schemas, list) or not schemas:
            _refuse(at, f"{key} takes a list that is not empty")
        places = [(schema, (*at, str(index))) for index, schema in enumerate(schemas)]
        if key == "oneOf":
            for index, one in enumerate(places):
                for other in places[:index]:
                    if not self._exclude(one, other):
                        _refuse(at, "the alternatives of oneOf may overlap; use anyOf")
        self._choices[name] = [self._value(*place) for place in places]
        self._needs[name] += [[rule] for rule in self._choices[name]]
        return alternatives(self._choices[name])

    def _exclude(
        self, one: tuple[Any, _Location], other: tuple[Any, _Location], depth: int = 4
    ) -> bool:
        """Whether no value can satisfy both. False where that is not plain to see."""
        one, other = self._resolved(*one), self._resolved(*other)
        if depth == 0 or one[0] is True or other[0] is True:
            return False
        for split, against in ((one, other), (other, one)):
            for key in ("anyOf", "oneOf"):
                if key in split[0] and isinstance(split[0][key], list):
                    return all(
                        self._exclude((schema, (*split[1], key, str(index))), against, depth - 1)
                        for index, schema in enumerate(split[0][key])
                    )
        if _possible_types(*one).isdisjoint(_possible_types(*other)):
            return True
        values = _values(*one), _values(*other)
        if values[0] is not None and values[1] is not None:
            return all(_different(a, b) for a in values[0] for b in values[1])
        if _possible_types(*one) != {"object"} or _possible_types(*other) != {"object"}:
            return False
        properties = [_properties(*place) for place in (one, other)]
        return any(
            name in properties[0]
            and name in properties[1]
            and self._exclude(
                (properties[0][name], (*one[1], "properties", name)),
                (properties[1][name], (*other[1], "properties", name)),
                depth - 1,
            )
            for name in [*_required(*one), *_required(*other)]
        )

    # Objects

    def _object(self, name: str, schema: Mapping[str, Any], at: _Location) -> str:
        properties = dict(_properties(schema, at))
        places = {key: (*at, "properties", key) for key in properties}
        required = _required(schema, at)
        extra_at = (*at, "additionalProperties")
        for key in required:
            if key not in properties:
                if schema.get("additionalProperties") is False:
                    _refuse((*at, "required"), f"{key!r} is not among the properties")
                properties[key] = schema.get("additionalProperties", True)
                places[key] = extra_at
        members: list[str] = []
        needs: list[str] = []
        for key, value in properties.items():
            rule = self._value(value, places[key])
            members.append(f"{literal(_spelled(key, at) + ':')} {self._rules.shared('ws')} {rule}")
            if key in required:
                needs.append(rule)
        self._needs[name].append(needs)
        extra = ""
        more = schema.get("additionalProperties", "properties" not in schema)
        if more is not False:
            extra = f"{name}-extra"
            key_rule = self._other_key(name, properties, extra_at)
            self._rules[extra] = f'{key_rule} ":" ws {self._value(more, extra_at)}'
        return self._members(name, members, [key in required for key in properties], extra)

    def _members(self, name: str, members: list[str], required: list[bool], extra: str) -> str:
        self._rules.shared("ws")
        rest = f'("," ws {extra})*' if extra else ""
        if any(required):
            # Optional ones bring a comma: after themselves, or before where a required one came.
            first = required.index(True)
            parts = [f'({member} "," ws)?' for member in members[:first]]
            parts.append(members[first])
            for member, needed in zip(members[first + 1 :], required[first + 1 :]):
                parts.append(f'"," ws {member}' if needed else f'("," ws {member})?')
            return joined('"{" ws', *parts, rest, 'ws "}"')
        starts = [joined(extra, rest)] if extra else []
        for index in range(len(members) - 1, -1, -1):
            starts.insert(0, joined(members[index], rest))
            if index > 0:
                after = f"{name}-from-{index}"
                self._rules[after] = joined(f'("," ws {members[index]})?', rest)
                rest = after
        return joined('"{" ws', f"(({alternatives(starts)}) ws)?" if starts else "", '"}"')

    def _other_key(self, name: str, keys: Mapping[str, Any], at: _Location) -> str:
        """A key that is none of ``keys``: a tree of their characters, left at some point.

        It is written without escapes, so that no key has a second spelling.
        """
        if not keys:
            return self._rules.shared("string")
        keys = {key: None for key in keys if _spelled(key, at) == f'"{key}"' and "\x7f" not in key}
        if sum(map(len, keys)) > _MOST_KEY_CHARACTERS:
            _refuse(at, f"beside properties of more than {_MOST_KEY_CHARACTERS} characters")
        following: dict[str, set[str]] = {"": set()}
        for key in keys:
            for index, character in enumerate(key):
                following.setdefault(key[:index], set()).add(character)
            following.setdefault(key, set())
        rules = {prefix: f"{name}-key-{index}" for index, prefix in enumerate(following)}
        plains = self._rules.shared("plains")
        for prefix, characters in following.items():
            known = sorted(characters)
            ways = [f"{literal(known_one)} {rules[prefix + known_one]}" for known_one in known]
            ways.append(rf'[^"\\\x00-\x1F\x7F{"".join(map(in_class, known))}] {plains}')
            if prefix not in keys:
                ways.append('""')
            self._rules[rules[prefix]] = alternatives(ways)
        return rf'"\"" {rules[""]} "\""'

    # Arrays

    def _array(self, name: str, schema: Mapping[str, Any], at: _Location) -> str:
        prefix = schema.get("prefixItems", [])
        if not isinstance(prefix, list):
            _refuse((*at, "prefixItems"), "prefixItems takes a list")
        low, high = _counts(schema, at, "minItems", "maxItems")
        if "prefixItems" in schema and "items" not in schema:
            closed = max(low, len(prefix))
            high = closed if high is None else min(high, closed)
        if schema.get("items") is False:
            high = min(len(prefix), len(prefix) if high is None else high)
            if low > high:
                _refuse((*at, "minItems"), "more than items and prefixItems allow")
        prefix = prefix[:high]
        values = [
            self._value(item, (*at, "prefixItems", str(index))) for index, item in enumerate(prefix)
        ]
        item = ""
        if high is None or high > len(values):
            item = self._value(schema.get("items", True), (*at, "items"))
            values = values or [item]
        self._needs[name].append(values[:low] + ([item] if low > len(prefix) else []))
        self._rules.shared("ws")
        if not values:
            return '"[" ws "]"'
        rest = ""
        if high is None or high > len(values):
            following = f"{name}-next"
            self._rules[following] = f'"," ws {item}'
            least = max(0, low - len(values))
            most = None if high is None else high - len(values)
            rest = self._rules.repeated(following, least, most)
        for index in range(len(values) - 1, 0, -1):
            rest = joined(f'"," ws {values[index]}', rest)
            if index >= low:
                after = f"{name}-from-{index}"
                self._rules[after] = rest
                rest = f"{after}?"
        items = joined(values[0], rest, "ws")
        return joined('"[" ws', items if low > 0 else f"({items})?", '"]"')

    # Strings and numbers

    def _string(self, name: str, schema: Mapping[str, Any], at: _Location) -> str:
        self._needs[name].append([])
        layout = schema.get("format")
        if layout is None:
            low, high = _counts(schema, at, "minLength", "maxLength")
            repeated = self._rules.repeated(self._rules.shared("char"), low, high)
            return joined(r'"\""', repeated, r'"\""')
        if layout not in _FORMATS:
            _refuse((*at, "format"), f"the format {layout!r} is not supported")
        for key in ("minLength", "maxLength"):
            if key in schema:
                _refuse((*at, key), f"{key} beside format is not supported")
        return rf'"\"" {self._rules.shared(layout)} "\""'

    def _integer(self, name: str, schema: Mapping[str, Any], at: _Location) -> str:
        self._needs[name].append([])
        low: list[int] = []
        high: list[int] = []
        for key, bounds, limit in (
            ("minimum", low, math.ceil),
            ("exclusiveMinimum", low, lambda value: math.floor(value) + 1),
            ("maximum", high, math.floor),
            ("exclusiveMaximum", high, lambda value: math.ceil(value) - 1),
        ):
            if key in schema:
                bounds.append(limit(_bound(schema[key], (*at, key))))
        return self._between(max(low, default=None), min(high, default=None), at)

    def _number(self, name: str, schema: Mapping[str, Any], at: _Location) -> str:
        self._needs[name].append([])
        for key in ("exclusiveMinimum", "exclusiveMaximum"):
            if key in schema:
                _refuse((*at, key), f"{key} is supported for integers only")
        bounds: list[int | None] = []
        for key in ("minimum", "maximum"):
            value = _bound(schema[key], (*at, key)) if key in schema else None
            if value is not None and value != int(value):
                _refuse((*at, key), f"{key} of a number must be whole")
            bounds.append(None if value is None else int(value))
        return self._between(bounds[0], bounds[1], at, self._rules.shared("fraction"))

    def _between(self, low: int | None, high: int | None, at: _Location, fraction: str = "") -> str:
        """Numbers from ``low`` to ``high``, with ``fraction`` where the bounds have room for it."""
        if low is not None and high is not None and low > high:
            _refuse(at, f"no number lies between {low} and {high}")
        digits = max([_INTEGER_DIGITS, *(len(str(abs(b))) for b in (low, high) if b is not None)])

        def sizes(least: int, most: int | None) -> list[str]:
            largest = 10**digits - 1 if most is None else most
            if not fraction or most is None:
                return [joined(way, fraction and f"{fraction}?") for way in span(least, largest)]
            below = [f"{way} {fraction}?" for way in span(least, most - 1)]
            return [*below, f'"{most}" ("." "0"{{1,16}})?']

        ways = []
        if low is None or low < 0:
            least = 0 if high is None or high >= 0 else -high
            sized = sizes(least, None if low is None else -low)
            ways.append(f'"-" ({alternatives(sized)})')
        if high is None or high >= 0:
            ways += sizes(max(0, low or 0), high)
        return alternatives(ways)

    def _refuse_empty_cycles(self) -> None:
        """No rule may be itself, through choices alone: nothing would be read in between."""
        left = dict(self._choices)
        while True:
            settled = [name for name, ways in left.items() if left.keys().isdisjoint(ways)]
            if not settled:
                break
            for name in settled:
                del left[name]
        for name in left:
            _refuse(self._places[name], "refers to itself with no value in between")

    def _refuse_endless_values(self) -> None:
        left = dict(self._needs)
        while True:
            finite = [
                name
                for name, ways in left.items()
                if any(left.keys().isdisjoint(needed) for needed in ways)
            ]
            if not finite:
                break
            for name in finite:
                del left[name]
        for name in left:
            _refuse(self._places[name], "every value would have to contain another one, endlessly")


def _check(schema: Any, at: _Location) -> None:
    """Refuses what is no schema, and every keyword that is not supported where it stands."""
    if schema is True:
        return
    if schema is False:
        _refuse(at, "false allows no value")
    if not isinstance(schema, Mapping):
        _refuse(at, f"a schema is an object or a boolean, not {type(schema).__name__}")
    for key in schema:
        if not isinstance(key, str):
            _refuse(at, f"the key {key!r} is no string")
        # Below another $id a $ref would mean another document.
        if key not in _KNOWN and not (key == "$id" and not at):
            _refuse((*at, key), f"the keyword {key} is not supported")
    for key, beside in _ALONE.items():
        if key in schema:
            for other in schema:
                if other not in _ANNOTATIONS and other not in (key, "$id") and other not in beside:
                    _refuse((*at, other), f"{other} beside {key} is not supported")


def _types(schema: Mapping[str, Any], at: _Location) -> list[str]:
    """The types that a value may have, in the order given; of equal ones the wider."""
    given = schema.get("type")
    if given is None:
        types = [kind for kind in _KEYWORDS if not _KEYWORDS[kind].isdisjoint(schema)]
    else:
        types = [given] if isinstance(given, str) else given
        known = [kind for kind in types if isinstance(kind, str) and kind in _KEYWORDS]
        if not isinstance(types, list) or not types or known != types:
            _refuse((*at, "type"), f"{given!r} is no type, and no list of types")
    types = list(dict.fromkeys(types))
    return [t for t in types if t != "integer" or "number" not in types]


def _possible_types(schema: Mapping[str, Any], at: _Location) -> set[str]:
    """The types of what JSON Schema itself allows, integers counted as numbers."""
    values = _values(schema, at)
    if values is not None:
        return {_type_of(value) for value in values}
    types = _types(schema, at) if "type" in schema else list(_KEYWORDS)
    return {"number" if kind == "integer" else kind for kind in types}


def _values(schema: Mapping[str, Any], at: _Location) -> list[Any] | None:
    """The values of an enum or const that are of a type beside it; None where there is none."""
    if "const" in schema:
        key, values = "const", [schema["const"]]
    elif "enum" in schema:
        key, values = "enum", schema["enum"]
        if not isinstance(values, list):
            _refuse((*at, key), "enum takes a list")
    else:
        return None
    if "type" in schema:
        types = _types(schema, at)
        values = [
            value
            for value in values
            if _type_of(value) in types or ("integer" in types and _is_whole(value))
        ]
    if not values:
        _refuse((*at, key), "there is no value to choose")
    return values


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    for kind, python in (("string", str), ("number", (int, float)), ("object", Mapping)):
        if isinstance(value, python):
            return kind
    return "array"


def _is_whole(value: Any) -> bool:
    return _type_of(value) == "number" and (isinstance(value, int) or value.is_integer())


def _different(one: Any, other: Any) -> bool:
    """Whether two values differ for JSON Schema, where 1 is 1.0 but not true. Scalars only."""
    if isinstance(one, (list, Mapping)) and isinstance(other, (list, Mapping)):
        return False
    return _type_of(one) != _type_of(other) or bool(one != other)


def _properties(schema: Mapping[str, Any], at: _Location) -> Mapping[str, Any]:
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or not all(isinstance(key, str) for key in properties):
        _refuse((*at, "properties"), "properties takes an object with strings as keys")
    return properties


def _required(schema: Mapping[str, Any], at: _Location) -> Sequence[str]:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        _refuse((*at, "required"), "required takes a list of strings")
    return required


def _counts(
    schema: Mapping[str, Any], at: _Location, least: str, most: str
) -> tuple[int, int | None]:
    counts: list[int | None] = []
    for key in (least, most):
        value: Any = schema.get(key)
        if key in schema and (not _is_whole(value) or not 0 <= value <= _LARGEST_BOUND):
            _refuse((*at, key), f"{key} takes a whole number from 0")
        counts.append(None if value is None else int(value))
    low, high = counts[0] or 0, counts[1]
    if high is not None and low > high:
        _refuse((*at, least), f"{least} is {low}, more than {most}, {high}")
    return low, high


def _bound(value: Any, at: _Location) -> float:
    if _type_of(value) != "number" or not -_LARGEST_BOUND <= value <= _LARGEST_BOUND:
        _refuse(at, f"{at[-1]} takes a number of at most 100 digits")
    number: float = value
    return number


def _spelled(value: Any, at: _Location) -> str:
    """``value`` as JSON. Refuses what JSON, or UTF-8, has no words for."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
        same = json.loads(text) == value
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        _refuse(at, f"it holds a {type(value).__name__} that JSON cannot write")
    return text


def _refuse(at: _Location, reason: str) -> NoReturn:
    pointer = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in at)
    raise InvalidArgument.because(f"json_schema at #{pointer}: {reason}")
