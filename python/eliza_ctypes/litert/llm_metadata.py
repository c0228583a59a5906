"""The model's own description: start and stop tokens, and what the runtime needs to know."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from . import needed
from .container import LLM_METADATA, LitertFile
from .vocabulary import Reference

with needed("litert-lm-builder"):
    from litert_lm_builder.runtime.proto import llm_metadata_pb2

NEVER = 2**31 - 1
"""A token id that no model draws: the runtime opens no session without a stop token."""


class SpecialTokens(NamedTuple):
    """The tokens with a part in every generation. Those outside the vocabulary are left out."""

    start: int | None
    stops: Sequence[Sequence[int]]
    padding: int | None


def read_llm_metadata(file: LitertFile) -> Any:
    """The description of the text model. Raises BundleInvalid where there is not exactly one."""
    numbers = file.numbers(LLM_METADATA)
    if len(numbers) != 1:
        raise file.invalid(f"holds {len(numbers)} descriptions of a text model, not 1")
    metadata = llm_metadata_pb2.LlmMetadata()
    try:
        metadata.ParseFromString(file.content(file.sections[numbers[0]]))
    except Exception as error:  # DecodeError
        raise file.invalid(f"the description of its model cannot be read: {error}") from None
    return metadata


def special_tokens(
    metadata: Any, reference: Reference, size: int, file: LitertFile
) -> SpecialTokens:
    """What the description names by id or by text. Raises BundleInvalid."""
    sequences = [_ids(union, reference) for union in metadata.stop_tokens]
    if sequences and all(ids == [NEVER] for ids in sequences):
        raise file.invalid("was made by this command; take the file that it was made from")
    stops = [ids for ids in sequences if ids and all(0 <= token < size for token in ids)]
    if not stops:
        raise file.invalid("names no stop token that is in its vocabulary")
    start = _ids(metadata.start_token, reference)
    if len(start) > 1:
        raise file.invalid(f"its start token is {len(start)} tokens")
    padding = _ids(metadata.pad_token, reference)
    return SpecialTokens(
        start=start[0] if start else None,
        stops=[ids for at, ids in enumerate(stops) if ids not in stops[:at]],
        padding=padding[0] if len(padding) == 1 and padding[0] < size else None,
    )


def for_exact_ids(metadata: Any, reference: Reference) -> bytes:
    """The same description for the tokenizer without texts: start and stop are not its matter."""
    changed = llm_metadata_pb2.LlmMetadata()
    changed.CopyFrom(metadata)
    for name in ("start_token", "stop_tokens", "pad_token"):
        changed.ClearField(name)
    changed.stop_tokens.add().token_ids.ids.append(NEVER)
    kind = changed.llm_model_type.WhichOneof("model_type")
    if kind is not None:
        model_type = getattr(changed.llm_model_type, kind)
        for described, value in model_type.ListFields():
            # Such as the token before an image.
            if described.message_type is metadata.start_token.DESCRIPTOR:
                ids = _ids(value, reference)
                value.token_ids.ids[:] = ids
    serialized: bytes = changed.SerializeToString(deterministic=True)
    return serialized


def _ids(union: Any, reference: Reference) -> list[int]:
    kind = union.WhichOneof("token_union")
    if kind == "token_ids":
        return list(union.token_ids.ids)
    return reference.spelled(union.token_str) if kind == "token_str" and union.token_str else []
