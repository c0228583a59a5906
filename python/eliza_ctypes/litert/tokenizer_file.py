"""``text/NAME.tokenizer``: a vocabulary in a GGUF file without tensors, for llama.cpp to load."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from ..errors import BundleInvalid
from ..gguf import read_strings
from . import needed
from .llm_metadata import SpecialTokens
from .vocabulary import TokenType, Vocabulary

with needed("gguf"):
    import gguf

STOP_SEQUENCES = "eliza.stop_sequences"
"""int32 array: the token sequences that end a generation, one behind the other, each with a -1."""


def write_tokenizer(
    vocabulary: Vocabulary, special: SpecialTokens, template: str, name: str, path: Path
) -> None:
    """Writes ``path`` anew, with the chat template if there is one.

    Raises BundleInvalid where no token can stand for the end, OSError.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.types))
    if vocabulary.scores:
        writer.add_token_scores(list(vocabulary.scores))
    if vocabulary.merges:
        writer.add_token_merges(list(vocabulary.merges))
    if vocabulary.unknown is not None:
        writer.add_unk_token_id(vocabulary.unknown)
    if special.start is not None:
        writer.add_bos_token_id(special.start)
    if special.padding is not None:
        writer.add_pad_token_id(special.padding)
    writer.add_eos_token_id(_end_of_text(vocabulary, special))
    writer.add_add_bos_token(special.start is not None)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(vocabulary.add_space_prefix)
    if template:
        writer.add_chat_template(template)
    writer.add_array(STOP_SEQUENCES, [token for ids in special.stops for token in (*ids, -1)])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
    finally:
        writer.close()


def check_same_vocabulary(gguf_file: Path, tokens: Sequence[str]) -> None:
    """Raises BundleInvalid where the two have another string for an id that both have."""
    known_tokens = read_strings(gguf_file, "tokenizer.ggml.tokens")
    if known_tokens is None:
        raise BundleInvalid.because(f"{gguf_file} holds no vocabulary to compare with")
    for number, (known, token) in enumerate(zip(known_tokens, tokens)):
        if _spaced(known) != _spaced(token):
            raise BundleInvalid.because(
                f"{gguf_file} has another vocabulary: token {number} is {known!r} there and "
                f"{token!r} in the LiteRT-LM model; one bundle has one vocabulary"
            )


def _end_of_text(vocabulary: Vocabulary, special: SpecialTokens) -> int:
    """llama.cpp takes token 2 or 11 where none is named, so one must be, even one never drawn."""
    for ids in special.stops:
        if len(ids) == 1:
            return ids[0]
    never_drawn = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)
    for number, kind in enumerate(vocabulary.types):
        if kind in never_drawn:
            return number
    raise BundleInvalid.because(f"a {vocabulary.model} vocabulary without special tokens")


def _spaced(token: str) -> str:
    """Converters write the spaces of some tokens in one way or the other."""
    return token.replace("\u2581", " ")
