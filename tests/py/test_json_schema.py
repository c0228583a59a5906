"""JSON Schema to GBNF: the grammar's text, what is refused, and what models write under it."""

from __future__ import annotations

import datetime
import importlib
import json
import uuid
from pathlib import Path
from typing import Any, Callable

import pytest

from eliza_ctypes import Context, Generation, InvalidArgument, Library
from eliza_ctypes.json_schema import to_gbnf

# No type stubs: Any says so.
jsonschema: Any = importlib.import_module("jsonschema")

SHORT = {"type": "string", "maxLength": 3}
TAGGED = [
    {"type": "object", "properties": {"t": {"const": name}, "x": SHORT}, "required": ["t"]}
    for name in ("a", "b")
]
LIST = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
}


def rules(schema: Any) -> dict[str, str]:
    """The rules of the grammar by name."""
    return dict(line.split(" ::= ", 1) for line in to_gbnf(schema).splitlines())


# The grammar's text


@pytest.mark.parametrize(
    ("schema", "root"),
    [
        (True, "value"),
        ({}, "value"),
        ({"title": "a thing", "default": 3, "$id": "https://example.org/x"}, "value"),
        ({"type": "string"}, "string"),
        ({"type": "object"}, "object"),
        ({"type": ["integer", "null"]}, "integer | null"),
        ({"type": ["integer", "number"]}, "number"),
        ({"const": 'a"\\\n'}, r'"\"a\\\"\\\\\\n\""'),
        ({"enum": ["é", 1, None, True, [1, {"a": 2}], 1]}, None),
        ({"type": "integer", "enum": [1, 2.0, "x", 1.5, True]}, '"1" | "2.0"'),
        ({"type": "string", "minLength": 2, "maxLength": 2}, r'"\"" char{2} "\""'),
        ({"type": "string", "minLength": 1}, r'"\"" char char* "\""'),
        ({"type": "string", "maxLength": 5}, r'"\"" char-to-5 "\""'),
        ({"type": "array", "items": {"type": "null"}}, '"[" ws (null root-next* ws)? "]"'),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3},
            '"[" ws null root-next root-next? ws "]"',
        ),
        ({"type": "array", "maxItems": 0}, '"[" ws "]"'),
        ({"prefixItems": [{"type": "null"}], "maxItems": 9}, '"[" ws (null ws)? "]"'),
        ({"type": "integer", "minimum": 0}, "[0-9] | [1-9] [0-9]{1,18}"),
        ({"type": "integer", "minimum": 1, "maximum": 12}, '[1-9] | "1" [0-2]'),
        ({"type": "integer", "exclusiveMinimum": -3, "maximum": 0}, '"-" ([0-2]) | "0"'),
        ({"type": "number", "minimum": 0, "maximum": 1}, '"0" fraction? | "1" ("." "0"{1,16})?'),
        ({"type": "string", "format": "uuid"}, r'"\"" uuid "\""'),
    ],
)
def test_the_root_rule(schema: Any, root: str | None) -> None:
    expected = root or r'"\"é\"" | "1" | "null" | "true" | "[1, {\"a\": 2}]"'
    assert rules(schema)["root"] == expected


def test_a_whole_grammar() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "boolean"}, "age": {"type": "integer"}},
        "required": ["age"],
    }
    assert to_gbnf(schema) == (
        r'root ::= "{" ws ("\"name\":" ws boolean "," ws)? "\"age\":" ws integer ws "}"'
        "\n"
        'boolean ::= "true" | "false"\n'
        r'ws ::= (" " | "\n" " "{0,20})?'
        "\n"
        'integer ::= "-"? ("0" | [1-9] [0-9]{0,18})\n'
    )


def test_optional_properties_may_be_absent_in_any_combination() -> None:
    grammar = rules({"properties": {name: {"type": "null"} for name in "abc"}})
    assert grammar["root"] == (
        r'"{" ws (("\"a\":" ws null root-from-1 | "\"b\":" ws null root-from-2 | '
        r'"\"c\":" ws null) ws)? "}"'
    )
    assert grammar["root-from-1"] == r'("," ws "\"b\":" ws null)? root-from-2'
    assert grammar["root-from-2"] == r'("," ws "\"c\":" ws null)?'


def test_another_property_never_takes_the_name_of_a_declared_one() -> None:
    grammar = rules({"properties": {"a": {}, "a]": {}}, "additionalProperties": {"type": "null"}})
    assert grammar["root-extra"] == r'"\"" root-key-0 "\"" ":" ws null'
    assert grammar["root-key-0"] == r'"a" root-key-1 | [^"\\\x00-\x1F\x7Fa] plains | ""'
    assert grammar["root-key-1"] == r'"]" root-key-2 | [^"\\\x00-\x1F\x7F\]] plains'
    assert grammar["root-key-2"] == r'[^"\\\x00-\x1F\x7F] plains'


def test_a_declared_name_that_needs_escapes_is_no_other_name() -> None:
    grammar = rules({"properties": {'"': {"type": "null"}}, "additionalProperties": True})
    assert grammar["root-extra"] == r'"\"" root-key-0 "\"" ":" ws value'
    assert grammar["root-key-0"] == r'[^"\\\x00-\x1F\x7F] plains | ""'


def test_a_required_name_that_is_not_declared_takes_what_others_may() -> None:
    assert r'"\"x\":" ws value' in rules({"properties": {}, "required": ["x"]})["root"]
    schema = {"required": ["x"], "additionalProperties": {"type": "null"}}
    assert r'"\"x\":" ws null' in rules(schema)["root"]


def test_a_long_repetition_is_made_of_blocks() -> None:
    grammar = rules({"type": "string", "maxLength": 1_000_000})
    assert len(grammar) < 30
    assert all(len(body) < 200 for body in grammar.values())


def test_a_reference_and_what_it_means_share_one_rule() -> None:
    assert list(rules(LIST)) == ["root", "object-1", "integer", "ws", "choice-2", "null"]
    pointer = {"$ref": "#/%24defs/a~1b", "$defs": {"a/b": {"type": "null"}}}
    assert rules(pointer)["root"] == "null"


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "string"}, {"type": "integer"}, {"type": ["null", "array"]}],
        [{"const": 1}, {"enum": [2, True]}, {"type": "string"}],
        TAGGED,
        [{"anyOf": TAGGED}, {"type": "null"}],
    ],
)
def test_one_of_is_taken_where_the_alternatives_exclude_each_other(alternatives: Any) -> None:
    assert " | " in rules({"oneOf": alternatives})["root"]


def test_a_schema_may_nest_deeper_than_python_recurses() -> None:
    schema: Any = {"type": "null"}
    for _ in range(4000):
        schema = {"type": "array", "items": schema}
    assert to_gbnf(schema).count("\n") > 4000


# Refusals


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (False, "at #: false allows no value"),
        (None, "at #: a schema is an object or a boolean, not NoneType"),
        ([{}], "at #: a schema is an object or a boolean, not list"),
        ({1: 2}, "at #: the key 1 is no string"),
        ({"properties": {"a": {"pattern": "x"}}}, "#/properties/a/pattern: the keyword pattern"),
        ({"properties": {"a/b~": {"not": {}}}}, "#/properties/a~1b~0/not: the keyword not"),
        ({"properties": {"a": False}}, "#/properties/a: false allows no value"),
        ({"properties": {2: {}}}, "#/properties: properties takes an object with strings"),
        ({"items": {"$id": "x"}}, "#/items/$id: the keyword $id"),
        ({"items": [{}]}, "#/items: a schema is an object or a boolean, not list"),
        ({"items": False, "minItems": 1}, "#/minItems: more than items and prefixItems allow"),
        ({"type": "text"}, "#/type: 'text' is no type"),
        ({"type": []}, "#/type: [] is no type"),
        ({"type": [["null"]]}, "#/type: [['null']] is no type"),
        ({"$ref": "https://example.org/a"}, "#/$ref: 'https://example.org/a' is no JSON pointer"),
        ({"$ref": "#/$defs/a"}, "#/$ref: '#/$defs/a' leads nowhere"),
        ({"$ref": "#"}, "at #: a $ref that leads back to itself"),
        ({"$ref": "#/$defs/a", "minLength": 1}, "#/minLength: minLength beside $ref"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "at #: refers to itself with no value"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "at #: every value would have"),
        ({"items": {"$ref": "#"}, "minItems": 1}, "at #: every value would have"),
        ({"anyOf": []}, "#/anyOf: anyOf takes a list that is not empty"),
        ({"anyOf": [{}], "type": "null"}, "#/type: type beside anyOf"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "#/oneOf: the alternatives"),
        ({"oneOf": [{"type": "string"}, {"const": "a"}]}, "#/oneOf: the alternatives"),
        ({"oneOf": [{"properties": {"a": {}}}, {"type": "null"}]}, "#/oneOf: the alternatives"),
        ({"enum": []}, "#/enum: there is no value to choose"),
        ({"enum": ["a"], "type": "null"}, "#/enum: there is no value to choose"),
        ({"enum": [{1: 2}]}, "#/enum: it holds a dict that JSON cannot write"),
        ({"const": float("nan")}, "#/const: it holds a float that JSON cannot write"),
        ({"const": "\ud800"}, "#/const: it holds a str that JSON cannot write"),
        ({"const": 1, "enum": [1]}, "#/const: const beside enum"),
        ({"required": ["a"], "additionalProperties": False}, "#/required: 'a' is not among"),
        ({"required": "a"}, "#/required: required takes a list of strings"),
        ({"minLength": 2, "maxLength": 1}, "#/minLength: minLength is 2, more than maxLength, 1"),
        ({"minItems": True}, "#/minItems: minItems takes a whole number"),
        ({"format": "email"}, "#/format: the format 'email' is not supported"),
        ({"type": "integer", "format": "int32"}, "#/format: format is supported for strings"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "at #: no number lies between 3 and 2"),
        ({"type": "integer", "minimum": 10**5000}, "#/minimum: minimum takes a number"),
        ({"type": "number", "minimum": 0.5}, "#/minimum: minimum of a number must be whole"),
        ({"type": "number", "exclusiveMinimum": 0}, "#/exclusiveMinimum: exclusiveMinimum is"),
        (
            {"properties": {"k" * 5000: {}}, "additionalProperties": True},
            "#/additionalProperties: beside properties of more than",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name_and_place(schema: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        to_gbnf(schema)
    assert message in str(caught.value)


@pytest.mark.parametrize("keyword", ["allOf", "not", "if", "patternProperties", "uniqueItems"])
def test_unsupported_keywords_are_refused_by_name(keyword: str) -> None:
    with pytest.raises(InvalidArgument, match=f"#/{keyword}: the keyword {keyword} is not"):
        to_gbnf({"type": "object", keyword: {}})


def test_a_schema_of_too_many_rules_is_refused() -> None:
    names = range(20_000)
    chain = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}, {"type": "null"}]} for n in names}
    with pytest.raises(InvalidArgument, match="more than 10000 rules"):
        to_gbnf({"$ref": "#/$defs/0", "$defs": chain})


# What models write

FORMATS: dict[str, Callable[[str], object]] = {
    "date": datetime.date.fromisoformat,
    "time": lambda text: datetime.time.fromisoformat(text[:8]),
    "date-time": lambda text: datetime.datetime.fromisoformat(text[:19]),
    "uuid": uuid.UUID,
}


def object_of(names: str, **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, SHORT), **others}


SCHEMAS: list[Any] = [
    True,
    {"type": "string"},
    {"type": "number"},
    {"type": ["integer", "null", "array"]},
    object_of("abc"),
    object_of("abcd", required=["b", "d"], additionalProperties=False),
    object_of("a", required=["z", "a", "y"]),
    object_of('a]"^-\\é', additionalProperties={"type": "null"}),
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3},
    {"type": "array", "items": {"type": "null"}, "minItems": 5, "maxItems": 70},
    {"prefixItems": [SHORT, {"type": "null"}, {"type": "boolean"}], "minItems": 1},
    {"prefixItems": [SHORT, {"type": "null"}], "items": {"type": "integer"}, "maxItems": 5},
    {"prefixItems": [SHORT, {"type": "null"}], "items": False},
    {"enum": ["a", 1.5, None, True, {"x": ['\n"\\é']}, []]},
    *[{"type": "string", "format": name} for name in FORMATS],
    {"type": "integer", "minimum": -12, "maximum": 1734},
    {"type": "integer", "minimum": 0.5, "exclusiveMaximum": 107},
    {"type": "integer", "exclusiveMaximum": -95},
    {"type": "number", "minimum": -3, "maximum": 12},
    {"type": "number", "minimum": -5, "maximum": -2},
    {"type": "number", "minimum": 101},
    {"oneOf": [*TAGGED, {"type": "integer"}]},
    LIST,
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_whatever_a_model_finishes_is_valid(
    tiny_bpe_bundle: Path, library: Library, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELIZA_LLM_N_CTX", "512")
    monkeypatch.setenv("ELIZA_LLM_THREADS", "1")
    most = 300
    finished = set()
    with Context(tiny_bpe_bundle, library) as context:
        for number in range(24):
            monkeypatch.setenv("ELIZA_LLM_SEED", str(number))
            with context.open_stream(
                json_schema=schema, temperature=2.0, max_tokens=most
            ) as stream:
                generation = Generation(stream, [20 + number])
                text = "".join(generation)
            if len(generation.tokens) < most:
                finished.add(text)
    assert len(finished) > 2
    for text in finished:
        value = json.loads(text)
        jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
        if isinstance(schema, dict) and "format" in schema:
            FORMATS[schema["format"]](value)


def test_a_trained_model_fills_in_a_schema(smollm2_bundle: Path, library: Library) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
            "capital": {"type": "boolean"},
        },
        "required": ["city", "population", "capital"],
        "additionalProperties": False,
    }
    with Context(smollm2_bundle, library) as context:
        prompt = "The city Paris as JSON: "
        text = "".join(context.generate(prompt, json_schema=schema, max_tokens=128))
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
