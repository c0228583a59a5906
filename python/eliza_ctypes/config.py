"""How a stream generates: the fields of ``eliza_llm_stream_config_t``."""

from __future__ import annotations

import ctypes
import operator
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Tuple, Union

from .abi import CONFIG_V8, int_bounds
from .errors import InvalidArgument
from .loader import PathArgument

if TYPE_CHECKING:
    from .json_schema import Schema

Draft = Union[int, PathArgument, Tuple[PathArgument, int]]
"""How to speculate: at most so many tokens a step, drafted without a second model; or a drafter
model's file; or that file and at most so many tokens."""

DRAFT_MAX = 8
"""Tokens that a drafter model drafts at most where nothing else is said."""

_FLOAT32_MAX = 3.4028235677973366e38
_PATHS = ("bundle_dir", "filename", "gguf_path", "mtp_drafter_path")


class LlmStreamConfig(NamedTuple):
    """One stream's settings. The defaults are greedy, without a cap, without extras.

    The library validates; values that do not fit their C type raise InvalidArgument at open.
    A NamedTuple, because ``dataclasses`` would double the import time of the package.
    """

    max_tokens: int = 0
    """Tokens of one generation; 0 or less: no cap."""
    temperature: float = 0.0
    """0 or less: greedy."""
    top_p: float = 0.0
    """Off outside (0, 1)."""
    top_k: int = 0
    """Off at 0 or less."""
    repeat_penalty: float = 0.0
    """Off at 0 and 1."""
    slot_id: int = -1
    """Prompt-cache slot; less than 0: none."""
    prompt_cache_key: str | None = None
    """Streams with one key reuse the beginning that their prompts have in common."""
    draft_min: int = 0
    draft_max: int = 0
    """Tokens drafted for one step at most; 0: no speculation."""
    mtp_drafter_path: Union[str, os.PathLike[str], None] = None
    gbnf_grammar: str | None = None
    disable_thinking: int = 0
    """A flag, 0 or 1."""
    n_gpu_layers: int = 0
    cache_type_k: str | None = None
    """KV cache type by name, such as ``"q8_0"``; None: the library's default."""
    cache_type_v: str | None = None

    def to_native(self, structure: Any) -> Any:
        """The settings as a ``structure``, which also keeps the strings alive.

        Fields of later ABI versions stay 0. Raises InvalidArgument.
        """
        native = structure()
        for name, ctype in CONFIG_V8._fields_:
            setattr(native, name, to_native(name, ctype, getattr(self, name)))
        return native


def configured(
    config: LlmStreamConfig | None,
    fields: dict[str, Any],
    json_schema: Schema | None,
    cache_key: str | None,
    draft: Draft | None,
) -> LlmStreamConfig:
    """``config``, changed by ``fields`` of the same names and by the short forms of some.

    Raises InvalidArgument where a short form meets the field that it stands for, and for a schema
    that cannot be followed; TypeError for an unknown field.
    """
    unknown = sorted(fields.keys() - set(LlmStreamConfig._fields))
    if unknown:
        raise TypeError(
            f"LlmStreamConfig has no field {unknown[0]!r}; there are "
            f"{', '.join(LlmStreamConfig._fields)}"
        )
    chosen = (config or LlmStreamConfig())._replace(**fields)
    if json_schema is not None:
        from .json_schema import to_gbnf

        _refuse_both(chosen, "json_schema", "gbnf_grammar")
        chosen = chosen._replace(gbnf_grammar=to_gbnf(json_schema))
    if cache_key is not None:
        _refuse_both(chosen, "cache_key", "prompt_cache_key")
        chosen = chosen._replace(prompt_cache_key=cache_key)
    if draft is not None:
        for field in ("draft_max", "mtp_drafter_path"):
            _refuse_both(chosen, "draft", field)
        if isinstance(draft, (str, os.PathLike)):
            draft = draft, DRAFT_MAX
        if isinstance(draft, tuple):
            path, most = draft
            chosen = chosen._replace(mtp_drafter_path=path, draft_max=most)
        else:
            chosen = chosen._replace(draft_max=operator.index(draft))
    return chosen


def _refuse_both(config: LlmStreamConfig, short: str, field: str) -> None:
    if getattr(config, field) != LlmStreamConfig._field_defaults[field]:
        raise InvalidArgument.because(f"{short} and {field} cannot be given together")


def to_native(name: str, ctype: Any, value: Any) -> Any:
    """``value`` as ctypes takes it for a parameter or field ``name`` of type ``ctype``.

    ctypes wraps integers silently and cuts strings at a NUL; here both raise InvalidArgument.
    """
    if value is None and ctype is not ctypes.c_float and int_bounds(ctype) is None:
        return None
    if ctype is ctypes.c_char_p:
        return _encode(name, value)
    bounds = int_bounds(ctype)
    if bounds is not None:
        number = operator.index(value)
        if not bounds[0] <= number <= bounds[1]:
            raise InvalidArgument.because(
                f"{name} is {number}; it must lie between {bounds[0]} and {bounds[1]}"
            )
        return number
    if ctype is ctypes.c_float:
        return _float32(name, value)
    return value


def _float32(name: str, value: Any) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = _FLOAT32_MAX * 10
    if _FLOAT32_MAX <= abs(number) < float("inf"):
        raise InvalidArgument.because(f"{name} is {value}; it does not fit a 32-bit float")
    return number


def _encode(name: str, value: Any) -> bytes:
    """Bytes of a string parameter. Only ``text`` comes with a length, and so may hold NULs."""
    if isinstance(value, os.PathLike) or (name in _PATHS and isinstance(value, str)):
        encoded = os.fsencode(value)
    elif isinstance(value, str):
        try:
            encoded = value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgument.because(f"{name} cannot be written as UTF-8: {error}") from None
    elif isinstance(value, bytes):
        encoded = value
    else:
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if name != "text" and b"\0" in encoded:
        raise InvalidArgument.because(f"{name} contains a NUL character: {value!r}")
    return encoded
