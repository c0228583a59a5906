"""Vocabularies as llama.cpp keeps them, made from ``tokenizer.json`` and SentencePiece models.

Beside each stands its reference: the tokenizer that the model was trained with, run by the package
that made it. What llama.cpp makes of the vocabulary must agree with it; see ``trial``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Callable, Iterator, Protocol, Sequence

from ..errors import BundleInvalid
from . import needed

with needed("tokenizers"):
    import tokenizers
with needed("sentencepiece"):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_CHUNK = 4096
# Names of llama.cpp's pre-tokenizers for byte-level BPE, the frequent ones first. Names for the
# same rules as one of these are left out.
_BYTE_LEVEL_RULES = (
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "smollm",
    "gpt-4o",
    "deepseek-v3",
    "qwen35",
    "default",
    "tekken",
    "starcoder",
    "refact",
    "command-r",
    "falcon",
    "mpt",
    "olmo",
    "stablelm2",
    "dbrx",
    "smaug-bpe",
    "deepseek-llm",
    "deepseek-coder",
    "chatglm-bpe",
    "glm4",
    "viking",
    "jais",
    "jais-2",
    "codeshell",
    "bloom",
    "gpt3-finnish",
    "poro-chat",
    "exaone",
    "exaone4",
    "exaone-moe",
    "chameleon",
    "minerva-7b",
    "megrez",
    "granite-embed-multi-97m",
    "tiny_aya",
    "superbpe",
    "trillion",
    "granite-docling",
    "bailingmoe",
    "seed-coder",
    "hunyuan",
    "hunyuan-dense",
    "hy_v4",
    "joyai-llm",
    "grok-2",
    "afmoe",
    "laguna",
    "minimax-m2",
    "solar-open",
    "mellum2",
    "minicpm5",
    "spark2_5",
    "youtu",
    "sarvam-moe",
    "roberta-bpe",
    "ufakzeka",
)


class TokenType(IntEnum):
    """GGUF's token types; SentencePiece's have the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """What a vocabulary-only GGUF says, before the model's special tokens."""

    model: str
    """``tokenizer.ggml.model``: gpt2, llama or gemma4."""
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] = ()
    merges: Sequence[str] = ()
    pre: str = "default"
    add_space_prefix: bool = False
    unknown: int | None = None

    @property
    def rules(self) -> str:
        """What its kind is called in messages."""
        prefix = ", space prefix" if self.add_space_prefix else ""
        return f"{self.model}, {self.pre}{prefix}"

    def with_rules(self, pre: str) -> Vocabulary:
        """The same vocabulary under another pre-tokenizer."""
        return replace(self, pre=pre)


class Reference(Protocol):
    """The tokenizer that a model was trained with. It adds no BOS token."""

    parses_special: bool
    """Whether a special token that is written in a text becomes that token."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""

    def spelled(self, text: str) -> list[int]:
        """The token that is exactly ``text``, else what ``text`` is tokenized to."""

    def normalized(self, text: str) -> str:
        """``text`` in the form that llama.cpp expects where it does not normalize itself."""


@dataclass(frozen=True)
class Source:
    """A model's own tokenizer: the reference, and what may stand for it in llama.cpp."""

    reference: Reference
    candidates: Sequence[Vocabulary]
    """In the order in which to try them. All have the same tokens."""
    notes: Sequence[str] = field(default=())
    """What llama.cpp does otherwise in every case, for the user to know."""

    @property
    def tokens(self) -> Sequence[str]:
        """The strings of the tokens, by id."""
        return self.candidates[0].tokens

    @property
    def types(self) -> Sequence[int]:
        """The types of the tokens, by id."""
        return self.candidates[0].types

    def token_texts(self) -> Iterator[str]:
        """The text of each ordinary token that is whole characters."""
        decode = _byte_level_text if self.candidates[0].model == "gpt2" else _spaced_text
        for token, kind in zip(self.tokens, self.types):
            text = decode(token) if kind == TokenType.NORMAL else None
            if text:
                yield text

    def special_tokens(self) -> Iterator[tuple[int, str]]:
        """The tokens that are written as they are: their ids and texts."""
        for number, (token, kind) in enumerate(zip(self.tokens, self.types)):
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED):
                yield number, token


def read_tokenizer_json(content: bytes, name: str) -> Source:
    """From a Hugging Face ``tokenizer.json``; ``name`` is for messages.

    Raises BundleInvalid for what is none, and for kinds that llama.cpp has not.
    """
    try:
        described = json.loads(content)
        tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the package raises plain Exception
        raise BundleInvalid.because(f"{name}: is no tokenizer.json: {error}") from None
    model = described["model"]
    if model.get("type", "BPE") != "BPE":
        raise BundleInvalid.because(
            f"{name}: a tokenizer of the kind {model['type']} cannot be converted, only BPE"
        )
    reference = _HuggingFace(tokenizer)
    tokens, types = _tokens_of(described, name)
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    if any(one.count(" ") != 1 for one in merges):
        raise BundleInvalid.because(f"{name}: a token with a space in it cannot be converted")
    unknown = model["vocab"].get(model.get("unk_token"))
    shared: dict[str, Any] = {"tokens": tokens, "types": types, "unknown": unknown}
    if "ByteLevel" in _kinds(described.get("pre_tokenizer")):
        first = Vocabulary("gpt2", merges=merges, **shared)
        candidates = [first.with_rules(rules) for rules in _BYTE_LEVEL_RULES]
        if "NFC" not in _kinds(described.get("normalizer")):
            return Source(reference, candidates)
        reference.normalize = _nfc
        note = "text that is not in Unicode normalization form C is tokenized as it is"
        return Source(reference, candidates, [note])
    if not model.get("byte_fallback"):
        raise BundleInvalid.because(
            f"{name}: BPE that is neither byte-level nor falls back to bytes cannot be converted"
        )
    _check_bytes(types, name)
    prefixed = "Prepend" in _kinds(described.get("normalizer")) or "Metaspace" in _kinds(
        described.get("pre_tokenizer")
    )
    candidates = []
    scores = _scores(tokens, types, merges)
    if scores:
        first = Vocabulary("llama", scores=scores, add_space_prefix=prefixed, **shared)
        candidates = [first, replace(first, add_space_prefix=not prefixed)]
    candidates.append(Vocabulary("gemma4", merges=merges, pre="gemma4", **shared))
    return Source(reference, candidates)


def read_sentencepiece(content: bytes, name: str) -> Source:
    """From a SentencePiece model, the content of a ``tokenizer.model``; like the above."""
    described = sentencepiece_model_pb2.ModelProto()
    try:
        described.ParseFromString(content)
        reference = _SentencePiece(described)
    except Exception as error:  # DecodeError, RuntimeError
        raise BundleInvalid.because(f"{name}: is no SentencePiece model: {error}") from None
    trainer = described.trainer_spec
    if trainer.model_type != trainer.BPE:
        kind = trainer.ModelType.Name(trainer.model_type)
        raise BundleInvalid.because(
            f"{name}: a tokenizer of the kind {kind} cannot be converted, only BPE"
        )
    types = [piece.type for piece in described.pieces]
    _check_bytes(types, name)
    tokens = [
        _plain(piece.piece) if piece.type == TokenType.USER_DEFINED else piece.piece
        for piece in described.pieces
    ]
    _check_distinct(tokens, name)
    vocabulary = Vocabulary(
        "llama",
        tokens,
        types,
        scores=[piece.score for piece in described.pieces],
        add_space_prefix=described.normalizer_spec.add_dummy_prefix,
        unknown=types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in types else None,
    )
    return Source(reference, [vocabulary])


def id_transparent_size(content: bytes) -> int | None:
    """How many ids a SentencePiece model has if its piece i is the text ``<i>``, else None.

    Its unknown piece is not counted where it stands behind them.
    """
    described = sentencepiece_model_pb2.ModelProto()
    try:
        described.ParseFromString(content)
    except Exception:  # DecodeError: the one who reads it in earnest says so
        return None
    pieces = [piece.piece for piece in described.pieces]
    if pieces and described.pieces[-1].type == TokenType.UNKNOWN:
        pieces.pop()
    same = pieces and all(piece == f"<{number}>" for number, piece in enumerate(pieces))
    return len(pieces) if same else None


def id_transparent(size: int) -> bytes:
    """A SentencePiece model for the ids below ``size``, in which id i is the text ``<i>``.

    The unknown piece stands behind them: runs of an unknown piece would become one token.
    """
    model = sentencepiece_model_pb2.ModelProto()
    for number in range(size):
        model.pieces.add(piece=f"<{number}>", score=0.0, type=TokenType.USER_DEFINED)
    model.pieces.add(piece="<unk>", score=0.0, type=TokenType.UNKNOWN)
    trainer = model.trainer_spec
    trainer.model_type = trainer.BPE
    trainer.vocab_size = size + 1
    trainer.unk_id, trainer.unk_piece = size, "<unk>"
    trainer.bos_id = trainer.eos_id = trainer.pad_id = -1
    rules = model.normalizer_spec
    rules.name = "identity"
    rules.add_dummy_prefix = rules.remove_extra_whitespaces = rules.escape_whitespaces = False
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


class _HuggingFace:
    parses_special = True

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.normalize: Callable[[str], str] = str

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = []
        for start in range(0, len(texts), _CHUNK):
            chunk = list(texts[start : start + _CHUNK])
            encoded = self._tokenizer.encode_batch(chunk, add_special_tokens=False)
            ids += [one.ids for one in encoded]
        return ids

    def spelled(self, text: str) -> list[int]:
        known = self._tokenizer.token_to_id(text)
        return self.encode([text])[0] if known is None else [known]

    def normalized(self, text: str) -> str:
        return self.normalize(text)


class _SentencePiece:
    parses_special = False

    def __init__(self, model: Any) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(
            model_proto=model.SerializeToString()
        )
        self._ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
        inside = sentencepiece_model_pb2.ModelProto()
        inside.CopyFrom(model)
        inside.normalizer_spec.add_dummy_prefix = False
        # For what stands within a text: no space comes before it.
        self._inside = sentencepiece.SentencePieceProcessor(model_proto=inside.SerializeToString())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode(list(texts), num_threads=1)
        return ids

    def spelled(self, text: str) -> list[int]:
        ids: list[int] = self._inside.encode(text)
        return [self._ids[text]] if text in self._ids else ids

    def normalized(self, text: str) -> str:
        return text


def _tokens_of(described: dict[str, Any], name: str) -> tuple[list[str], list[int]]:
    """Strings and types by id; ids that no token has are filled."""
    model = described["model"]
    by_id = {number: token for token, number in model["vocab"].items()}
    added = {one["id"]: one for one in described.get("added_tokens", [])}
    if not by_id and not added:
        raise BundleInvalid.because(f"{name}: its vocabulary is empty")
    tokens, types = [], []
    for number in range(max([*by_id, *added]) + 1):
        token, kind = by_id.get(number, f"[PAD{number}]"), TokenType.NORMAL
        if number in added:
            token, kind = _added(added[number])
        elif number not in by_id:
            kind = TokenType.UNUSED
        elif model.get("byte_fallback") and _BYTE.fullmatch(token):
            kind = TokenType.BYTE
        if token == model.get("unk_token") and model.get("byte_fallback"):
            kind = TokenType.UNKNOWN
        tokens.append(token)
        types.append(int(kind))
    _check_distinct(tokens, name)
    return tokens, types


def _added(described: dict[str, Any]) -> tuple[str, TokenType]:
    token: str = described["content"]
    if described["special"]:
        return token, TokenType.CONTROL
    if described.get("normalized"):
        return _plain(token), TokenType.USER_DEFINED
    # Looked for before spaces are replaced, so one with a replaced space comes from merges alone.
    return token, TokenType.NORMAL if _SPACE in token else TokenType.USER_DEFINED


def _scores(
    tokens: Sequence[str], types: Sequence[int], merges: Sequence[str]
) -> list[float] | None:
    """Scores under which SentencePiece merges as these merges say; None where there are none.

    SentencePiece merges what gives the best token, by whichever parts. So every pair of tokens that
    gives a token must be a merge, and the merges that give one token must stand together. Special
    tokens do not count: they are found in a text before anything is merged.
    """
    scores: dict[str, float] = {}
    last = ""
    for merge in merges:
        merged = merge.replace(" ", "")
        if merged != last and merged in scores:
            return None
        scores.setdefault(merged, -float(len(scores)))
        last = merged
    ordinary = {token for token, kind in zip(tokens, types) if kind == TokenType.NORMAL}
    known = set(merges)
    for token in ordinary:
        for at in range(1, len(token)):
            first, second = token[:at], token[at:]
            parts = first in ordinary and second in ordinary
            if parts and f"{first} {second}" not in known:
                return None
    return [scores.get(token, 0.0) for token in tokens]


def _check_bytes(types: Sequence[int], name: str) -> None:
    if types.count(TokenType.BYTE) != 256:
        raise BundleInvalid.because(
            f"{name}: a tokenizer without a token for every byte cannot be converted"
        )


def _check_distinct(tokens: Sequence[str], name: str) -> None:
    """llama.cpp ends the process over a token that is there twice."""
    seen: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if seen.setdefault(token, number) != number:
            raise BundleInvalid.because(
                f"{name}: the tokens {seen[token]} and {number} are both {token!r}"
            )


def _kinds(part: Any) -> set[str]:
    """The types of a normalizer or pre-tokenizer and of all that it consists of."""
    if not isinstance(part, dict):
        return set()
    kinds = {str(part.get("type"))}
    for several in ("normalizers", "pretokenizers"):
        for one in part.get(several, []):
            kinds |= _kinds(one)
    return kinds


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _plain(token: str) -> str:
    return token.replace(_SPACE, " ")


def _spaced_text(token: str) -> str | None:
    return _plain(token)


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones are themselves, the others follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return {**alphabet, **{chr(0x100 + at): byte for at, byte in enumerate(others)}}


_ALPHABET = _byte_level_alphabet()


def _byte_level_text(token: str) -> str | None:
    try:
        return bytes(_ALPHABET[character] for character in token).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return None
