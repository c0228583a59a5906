"""The page `docs/abi.md`: the table says what there is, the header's comments what it promises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "eliza_inference_"
FAMILIES = {
    "core": "Core",
    "llm": "Streaming language model",
    "verifier": "Verifier events",
    "tokenizer": "Tokenizer",
    "tts": "Text to speech",
    "asr": "Speech to text",
    "vad": "Voice activity",
    "wakeword": "Wake word",
    "speaker": "Speaker embedding",
    "diariz": "Diarisation",
}
RELEASED_BY = {
    "char **": "eliza_inference_free_string",
    "int **": "eliza_inference_free_tokens",
}
SIZES = {"int8_t": 1, "int": 4, "int32_t": 4, "float": 4}


@dataclass(frozen=True)
class Comment:
    first_line: int
    last_line: int
    text: str


class Comments:
    """The comments of a C file, and what they stand at."""

    def __init__(self, header: Path) -> None:
        from clang.cindex import Index, TokenKind

        unit = Index.create().parse(str(header), args=["-x", "c", "-nostdinc"])
        tokens = list(unit.get_tokens(extent=unit.cursor.extent))
        self._comments = [
            Comment(token.extent.start.line, token.extent.end.line, _plain(token.spelling))
            for token in tokens
            if token.kind == TokenKind.COMMENT
        ]
        self._lines: dict[str, int] = {
            token.spelling: token.extent.start.line
            for token in reversed(tokens)
            if token.kind == TokenKind.IDENTIFIER
        }

    def conventions(self) -> str:
        return self._comments[0].text

    def above(self, name: str) -> str:
        """The comment that ends right above the declaration that first names `name`."""
        line = self._declared_at(name)
        return next((each.text for each in self._comments if each.last_line == line - 1), "")

    def beside(self, name: str) -> str:
        line = self._declared_at(name)
        found = (each.text for each in self._comments if each.first_line == line)
        return " ".join(next(found, "").split())

    def _declared_at(self, name: str) -> int:
        return self._lines[name]


def page(table: dict[str, Any], header: Path) -> str:
    """The whole page, in Markdown."""
    comments = Comments(header)
    return "\n".join(
        [
            f"# The C ABI, version {table['abi_version']}",
            "",
            "Written by `scripts/abi-page` from [abi-v8.json](abi/abi-v8.json), the table that",
            "`scripts/abi-check` holds everything against, and from the comments of",
            f"[{header.name}](../cpp/include/{header.name}). Do not edit it.",
            "",
            comments.conventions().partition("\n\n")[2],
            "",
            *_versions(table),
            *_constants(table, comments),
            *_structs(table, comments),
            *_callbacks(table, comments),
            *_functions(table, comments),
        ]
    )


def _versions(table: dict[str, Any]) -> Iterator[str]:
    yield from ("## Which version added what", "", "| version | functions |", "|---|---|")
    for version in sorted({entry["since"] for entry in table["functions"]}):
        names = [
            f"`{entry['name'][len(PREFIX) :]}`"
            for entry in table["functions"]
            if entry["since"] == version
        ]
        yield f"| {version} | {', '.join(names)} |"
    yield from (
        "",
        "Names without `eliza_inference_`. The functions of version 9 listed here are exported all",
        "the same; a library that reports 9 has more, and a config of 88 bytes.",
        "",
    )


def _constants(table: dict[str, Any], comments: Comments) -> Iterator[str]:
    yield from ("## Codes", "", "| name | value | |", "|---|---|---|")
    for name, value in table["constants"].items():
        yield f"| `{name}` | {value} | {comments.beside(name) or 'success'} |"
    yield ""


def _structs(table: dict[str, Any], comments: Comments) -> Iterator[str]:
    for name, struct in table["structs"].items():
        yield from (f"## `{name}`", "")
        yield f"{struct['size']} bytes, aligned to {struct['align']}."
        above = comments.above(name)
        yield from ("", above, "") if above else ("",)
        yield from ("| offset | bytes | field | type | |", "|---|---|---|---|---|")
        for field in struct["fields"]:
            size = SIZES.get(field["type"], 8)
            yield (
                f"| {field['offset']} | {size} | `{field['name']}` | `{_c(field['type'])}` | "
                f"{comments.beside(field['name'])} |"
            )
        yield ""


def _callbacks(table: dict[str, Any], comments: Comments) -> Iterator[str]:
    yield from ("## Callbacks", "")
    for name, callback in table["callbacks"].items():
        arguments = ", ".join(_c(argument) for argument in callback["args"])
        yield from ("```c", f"typedef {callback['returns']} (*{name})({arguments});", "```", "")
        yield from (comments.above(name), "")


def _functions(table: dict[str, Any], comments: Comments) -> Iterator[str]:
    families: dict[str, list[dict[str, Any]]] = {family: [] for family in FAMILIES}
    for entry in table["functions"]:
        families[entry["family"]].append(entry)
    for family, entries in families.items():
        yield from (f"## {FAMILIES[family]}", "")
        for entry in entries:
            yield from (f"### `{entry['name']}`", "", "```c", *_prototype(entry), "```", "")
            yield from (comments.above(entry["name"]), "")
            hands_out = list(_hands_out(entry, table["functions"]))
            yield f"Since version {entry['since']}. {' '.join(hands_out)}".rstrip()
            yield ""


def _prototype(entry: dict[str, Any]) -> Iterator[str]:
    arguments = [_c(argument["type"], argument["name"]) for argument in entry["args"]]
    start = f"{_c(entry['returns'], entry['name'])}("
    line = f"{start}{', '.join(arguments) or 'void'});"
    if len(line) <= 100:
        yield line
        return
    yield start
    for argument in arguments[:-1]:
        yield f"    {argument},"
    yield f"    {arguments[-1]});"


def _hands_out(entry: dict[str, Any], functions: Sequence[dict[str, Any]]) -> Iterator[str]:
    if entry["returns"].startswith("Eli"):
        yield f"Release the handle with `{_release(entry['returns'], functions)}`."
    for argument in entry["args"]:
        release = RELEASED_BY.get(argument["type"])
        if release and argument["name"] == "out_error":
            yield f"Free `*out_error` with `{release}`."
        elif release:
            yield f"Free `*{argument['name']}` with `{release}`."


def _release(handle: str, functions: Sequence[dict[str, Any]]) -> str:
    """The function that takes nothing but the handle, and returns nothing."""
    (name,) = (
        entry["name"]
        for entry in functions
        if entry["returns"] == "void"
        and [argument["type"] for argument in entry["args"]] == [handle]
    )
    return str(name)


def _c(c_type: str, name: str = "") -> str:
    """`char **` and `out_error` as `char** out_error`, the header's style."""
    return f"{re.sub(r' (?=[*])', '', c_type)} {name}".rstrip()


def _plain(comment: str) -> str:
    """The text of a C comment, without its stars; aligned descriptions of arguments as a list."""
    lines = comment.removeprefix("/*").removesuffix("*/").splitlines()
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in lines]
    text = "\n".join(lines).strip()
    text = re.sub(r"^  ([a-z_*]+)  +(?=\S)", r"- `\1`: ", text, flags=re.MULTILINE)
    return re.sub(r"^ {3,}", "  ", text, flags=re.MULTILINE)
