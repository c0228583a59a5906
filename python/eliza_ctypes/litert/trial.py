"""Choosing what llama.cpp shall make of a vocabulary: what gives the reference's ids, or nothing.

The library under test is ours, on a bundle that holds the vocabulary alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Sequence

from ..context import Context
from ..errors import BundleInvalid, ElizaError
from ..library import Library
from .vocabulary import Source, TokenType, Vocabulary

# Texts for every rule that tokenizers differ in.
with (Path(__file__).parent / "corpus.json").open(encoding="utf-8") as _file:
    CORPUS: list[str] = [text for texts in json.load(_file).values() for text in texts]

_BATCH = 8192


class Chosen(NamedTuple):
    """The vocabulary that agrees, and on how many texts it was compared."""

    vocabulary: Vocabulary
    texts: int


class _Difference(Exception):
    """A text, by how many others it was preceded, and what was made of it."""

    def __init__(
        self, compared: int, text: str, ours: Sequence[int], expected: Sequence[int]
    ) -> None:
        super().__init__(
            f"{_shown(text)} is {_shown(list(ours))}, and must be {_shown(list(expected))}"
        )
        self.compared = compared


def choose(
    source: Source,
    library: Library,
    bundle: Path,
    write: Callable[[Vocabulary], None],
    name: str,
) -> Chosen:
    """The first candidate with the reference's ids on every text; it is written last.

    ``write`` makes ``bundle`` hold a candidate. Raises BundleInvalid: no candidate agrees, or the
    library loads none.
    """
    nearest: tuple[int, str] = (-1, "")
    refused = ""
    for candidate in source.candidates:
        write(candidate)
        try:
            return Chosen(candidate, _compared(source, library, bundle))
        except _Difference as difference:
            said = f"under the rules nearest to it ({candidate.rules}) the text {difference}"
            nearest = max(nearest, (difference.compared, said), key=lambda known: known[0])
        except ElizaError as error:
            refused = refused or error.message
    if nearest[1]:
        raise BundleInvalid.because(
            f"{name}: llama.cpp has no tokenizer with the same ids: {nearest[1]}"
        )
    raise BundleInvalid.because(f"{name}: {library.path} reads no such vocabulary: {refused}")


def _compared(source: Source, library: Library, bundle: Path) -> int:
    """Raises _Difference, ElizaError for a vocabulary that does not load."""
    reference = source.reference
    count = 0
    with Context(bundle, library) as context:
        for texts, parse_special in _batches(source):
            for text, expected in zip(texts, reference.encode(texts)):
                ours = context.tokenize(text, add_special=False, parse_special=parse_special)
                if ours != expected:
                    raise _Difference(count, text, ours, expected)
                count += 1
        for token, text in source.special_tokens():
            ours = context.tokenize(text, add_special=False, parse_special=True)
            # A space that the tokenizer puts before every text may come first.
            if ours[-1:] != [token]:
                raise _Difference(count, text, ours, [token])
    return count


def _batches(source: Source) -> Iterator[tuple[list[str], bool]]:
    """The corpus, special tokens between other text, and then the text of every token.

    With each whether special tokens in it are to be found.
    """
    normalized, parse_special = source.reference.normalized, source.reference.parses_special
    yield [normalized(text) for text in CORPUS], parse_special
    # SentencePiece finds those that users define in every text, and control tokens in none.
    found = [
        token
        for number, token in source.special_tokens()
        if parse_special or source.types[number] == TokenType.USER_DEFINED
    ]
    yield [text for token in found for text in (token, f"a{token}b", f"x {token} y\n")], True
    batch = []
    for text in source.token_texts():
        batch.append(normalized(text))
        if len(batch) == _BATCH:
            yield batch, parse_special
            batch = []
    yield batch, parse_special


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
