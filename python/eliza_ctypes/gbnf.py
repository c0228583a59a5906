"""Pieces of GBNF, the grammar notation of llama.cpp: rules of JSON, repetitions, ranges of numbers.

The notation: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

from typing import Iterable

_HEX = "[0-9a-fA-F]"
# Rules with fixed names. A rule that names another one brings it along.
SHARED = {
    "ws": r'(" " | "\n" " "{0,20})?',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws (member ("," ws member)* ws)? "}"',
    "member": 'string ":" ws value',
    "array": '"[" ws (value ("," ws value)* ws)? "]"',
    "string": r'"\"" char* "\""',
    "char": r'plain | "\\" (["\\/bfnrt] | "u" unit)',
    "plain": r'[^"\\\x00-\x1F\x7F]',
    "plains": "plain*",
    # No half of a surrogate pair without the other: a pair is one character.
    "unit": (
        rf"[0-9a-cefA-CEF] {_HEX}{{3}} | [dD] [0-7] {_HEX}{{2}} | "
        rf'[dD] [89abAB] {_HEX}{{2}} "\\u" [dD] [c-fC-F] {_HEX}{{2}}'
    ),
    "integer": '"-"? ("0" | [1-9] [0-9]{0,18})',
    "number": "integer fraction? ([eE] [-+]? [0-9]{1,2})?",
    "fraction": '"." [0-9]{1,16}',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "date": (
        '[1-9] [0-9]{3} "-" (("0" [13578] | "10" | "12") "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
        ' | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
        ' | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])) | leap-year "-02-29"'
    ),
    "leap-year": (
        '[1-9] [0-9] ("0" [48] | [2468] [048] | [13579] [26]) | ([2468] [048] | [13579] [26]) "00"'
    ),
    "time": 'clock ":" [0-5] [0-9] ("." [0-9]{1,9})? ("Z" | [-+] clock)',
    "clock": '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]',
    "date-time": 'date "T" time',
    "uuid": f'{_HEX}{{8}} ("-" {_HEX}{{4}}){{3}} "-" {_HEX}{{12}}',
}
# llama.cpp repeats a rule at most 2000 times, and one copy is one rule: repeat blocks of blocks.
_BLOCK = 64


class Rules(dict[str, str]):
    """The rules of one grammar by name, in their order."""

    def shared(self, name: str) -> str:
        """The name of a shared rule, which is added where it is missing."""
        if name not in self:
            body = self[name] = SHARED[name]
            for word in body.replace("(", " ").replace(")", " ").split():
                word = word.rstrip("?*")
                if word in SHARED:
                    self.shared(word)
        return name

    def repeated(self, rule: str, low: int, high: int | None) -> str:
        """``rule`` from ``low`` to ``high`` times, None: any number of times."""
        more = f"{rule}*" if high is None else self._at_most(rule, high - low)
        return joined(self._times(rule, low), more)

    def _times(self, rule: str, count: int) -> str:
        if count <= 1:
            return rule * count
        if count <= _BLOCK:
            return f"{rule}{{{count}}}"
        blocks, rest = divmod(count, _BLOCK)
        return joined(self._times(self._block(rule), blocks), self._times(rule, rest))

    def _at_most(self, rule: str, count: int) -> str:
        if count <= 1:
            return f"{rule}?" * count
        name = f"{rule}-to-{count}"
        if name not in self:
            self[name] = f"{rule}{{0,{count}}}"
            if count > _BLOCK:
                blocks, rest = divmod(count, _BLOCK)
                block = self._block(rule)
                fewer = joined(self._at_most(block, blocks - 1), self._at_most(rule, _BLOCK - 1))
                full = joined(self._times(block, blocks), self._at_most(rule, rest))
                self[name] = f"{fewer} | {full}"
        return name

    def _block(self, rule: str) -> str:
        name = f"{rule}-x{_BLOCK}"
        self.setdefault(name, f"{rule}{{{_BLOCK}}}")
        return name


def span(low: int, high: int) -> list[str]:
    """The whole numbers from ``low`` >= 0 to ``high``, as alternatives."""
    ways: list[str] = []
    whole: list[int] = []  # lengths of which every number is meant
    for length in range(len(str(low)), len(str(high)) + 1 if high >= low else 0):
        least, most = 10 ** (length - 1) if length > 1 else 0, 10**length - 1
        if length > 1 and low <= least and most <= high:
            whole.append(length)
        else:
            ways += _digits(str(max(low, least)), str(min(high, most)))
    if whole:
        ways.append(joined("[1-9]", _any_digits(whole[0] - 1, whole[-1] - 1)))
    return ways


def _digits(low: str, high: str) -> list[str]:
    """The numbers from ``low`` to ``high``, which have equally many digits, as alternatives."""
    if low == high:
        return [literal(low)]
    first, last, free = int(low[0]), int(high[0]), len(low) - 1
    if first == last:
        return [joined(f'"{first}"', way) for way in _digits(low[1:], high[1:])]
    below: list[str] = []
    above: list[str] = []
    if low[1:] != "0" * free:
        below = [f'"{first}" {way}' for way in _digits(low[1:], "9" * free)]
        first += 1
    if high[1:] != "9" * free:
        above = [f'"{last}" {way}' for way in _digits("0" * free, high[1:])]
        last -= 1
    between = []
    if first <= last:
        between = [joined(f"[{first}-{last}]", _any_digits(free))]
    return below + between + above


def _any_digits(least: int, most: int | None = None) -> str:
    if most is not None and most != least:
        return f"[0-9]{{{least},{most}}}"
    return "[0-9]" * least if least <= 1 else f"[0-9]{{{least}}}"


def literal(text: str) -> str:
    """Text that holds no line end, as GBNF quotes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def in_class(character: str) -> str:
    """A character as it stands between brackets."""
    return f"\\{character}" if character in "[]-" else character


def alternatives(ways: Iterable[str]) -> str:
    """One of ``ways``; it needs parentheses in a sequence."""
    return " | ".join(dict.fromkeys(ways))


def joined(*parts: str) -> str:
    """A sequence of the parts that are there."""
    return " ".join(part for part in parts if part)
