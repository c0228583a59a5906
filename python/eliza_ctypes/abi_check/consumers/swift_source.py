"""Makes a Swift source fit the grammar.

The grammar knows neither functions without a body, which is what ``@_silgen_name`` declares, nor
C function types within an expression. A body is given to the first. The second are named, and
their text is kept. Lines stay as they are.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

_DECLARES = (b"@_silgen_name", b"@_extern")
_CONVENTION = b"@convention(c)"
_TOKEN = re.compile(rb'//|/\*|"|\(|\)|@_silgen_name\b|@_extern\b|@convention\(c\)')
_BRACKET = re.compile(rb'//|/\*|"|->|[()\[\]<>{}]')
_LONGEST = 10_000
"""Bytes that the parameters of a function take at most."""
_WORD = re.compile(rb"[\w`]+")
_SPACES = b" \t\r\n"
_CLOSING = {b"(": b")", b"<": b">", b"[": b"]", b"{": b"}"}


class Prepared(NamedTuple):
    source: bytes
    inline_types: dict[str, tuple[str, int]]
    """The function types in expressions and their lines, by the names in their places."""


def prepare(source: bytes) -> Prepared:
    edits: list[tuple[int, int, bytes]] = []
    inline: dict[str, tuple[str, int]] = {}
    opened: list[int] = []
    position = 0
    while True:
        token = _TOKEN.search(source, position)
        if token is None:
            return Prepared(_edited(source, edits), inline)
        position = token.end()
        if token.group() == b"(":
            opened.append(token.start())
        elif token.group() == b")":
            if opened:
                opened.pop()
        elif token.group() in _DECLARES:
            end = _end_of_declaration(source, token.end())
            if end is not None:
                edits.append((end, end, b" {}"))
        elif token.group() == _CONVENTION:
            start = opened[-1] if opened else -1
            edit = _inline_type(source, start, token.start(), inline) if opened else None
            if edit is not None:
                edits.append(edit)
                opened.pop()
                position = edit[1]
        else:
            position = _skip(source, token.start())


def _edited(source: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    pieces, done = [], 0
    for start, end, new in sorted(edits):
        if start >= done:
            pieces += [source[done:start], new]
            done = end
    return b"".join([*pieces, source[done:]])


def _inline_type(
    source: bytes, start: int, position: int, inline: dict[str, tuple[str, int]]
) -> Optional[tuple[int, int, bytes]]:
    """The name in place of ``(@convention(c) ..)`` where ``.self`` follows."""
    if source[start + 1 : position].strip(_SPACES):
        return None
    end = _after_balanced(source, start)
    if end is None:
        return None
    after = end + 1 if source[end : end + 1] == b"?" else end
    if not source.startswith(b".self", after):
        return None
    written = source[start:after]
    name = f"InlineType{len(inline)}_"
    inline[name] = written.decode("utf-8", "replace"), source.count(b"\n", 0, start) + 1
    return start, after, name.encode() + b"\n" * written.count(b"\n")


def _end_of_declaration(source: bytes, position: int) -> Optional[int]:
    """Where the body of a declared function would begin, if it has none."""
    position = source.find(b"(", position)
    after = _after_balanced(source, position) if position >= 0 else None
    while after is not None:
        after = _skip_blanks(source, after)
        if source[after : after + 1] == b"@":
            after = _after_word(source, after + 1)
            if source[after : after + 1] == b"(":
                after = _after_balanced(source, after)
            continue
        end = _after_word(source, after)
        if end == after:
            return None
        if source[after:end] == b"func":
            return _end_of_signature(source, _after_word(source, _skip_blanks(source, end)))
        after = end
    return None


def _end_of_signature(source: bytes, position: int) -> Optional[int]:
    after: Optional[int] = _skip_blanks(source, position)
    if after is not None and source[after : after + 1] == b"<":
        after = _after_balanced(source, after)
    if after is None:
        return None
    after = _skip_blanks(source, after)
    end = _after_balanced(source, after) if source[after : after + 1] == b"(" else None
    while end is not None:
        following = _skip_blanks(source, end)
        word = source[following : _after_word(source, following)]
        if word in (b"throws", b"async", b"rethrows"):
            end = following + len(word)
        elif source.startswith(b"->", following):
            end = _end_of_type(source, _skip_blanks(source, following + 2))
        else:
            return None if source[following : following + 1] == b"{" else end
    return None


def _end_of_type(source: bytes, position: int) -> int:
    """Where the type that begins here ends: at the end of a line, unless it is in brackets."""
    end = position
    while position < len(source):
        here = source[position : position + 1]
        if here in (b"\n", b"{", b"}", b";") or source.startswith((b"//", b"/*"), position):
            break
        balanced = _after_balanced(source, position) if here in (b"(", b"[", b"<") else None
        position = position + 1 if balanced is None else balanced
        if here not in (b" ", b"\t", b"\r"):
            end = position
    return end


def _after_balanced(source: bytes, position: int) -> Optional[int]:
    """Behind the bracket that closes the one that is here, unless that is far away."""
    opened = [_CLOSING[source[position : position + 1]]]
    end = position + _LONGEST
    position += 1
    while True:
        token = _BRACKET.search(source, position, end)
        if token is None:
            return None
        position, here = token.end(), token.group()
        if here in (b"//", b"/*", b'"'):
            position = _skip(source, token.start())
        elif here == opened[-1]:
            opened.pop()
            if not opened:
                return position
        elif here in _CLOSING and (here != b"<" or opened[-1] in (b">", b")")):
            opened.append(_CLOSING[here])
        elif here in (b")", b"}"):
            return None


def _skip_blanks(source: bytes, position: int) -> int:
    """Past spaces and comments."""
    while position < len(source):
        if source[position : position + 1] in (b" ", b"\t", b"\r", b"\n"):
            position += 1
        elif source.startswith((b"//", b"/*"), position):
            position = _skip(source, position)
        else:
            break
    return position


def _after_word(source: bytes, position: int) -> int:
    word = _WORD.match(source, position)
    return position if word is None else word.end()


def _skip(source: bytes, position: int) -> int:
    """Behind the comment or the string that begins here, else where we are."""
    if source.startswith(b"//", position):
        end = source.find(b"\n", position)
        return len(source) if end < 0 else end
    if source.startswith(b"/*", position):
        end = source.find(b"*/", position + 2)
        return len(source) if end < 0 else end + 2
    for quote in (b'"""', b'"'):
        if source.startswith(quote, position):
            return _after_string(source, position + len(quote), quote)
    return position


def _after_string(source: bytes, position: int, quote: bytes) -> int:
    while position < len(source):
        if source.startswith(quote, position):
            return position + len(quote)
        if len(quote) == 1 and source[position : position + 1] == b"\n":
            return position
        position += 2 if source[position : position + 1] == b"\\" else 1
    return len(source)
