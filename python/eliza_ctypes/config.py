"""How a stream generates: the fields of ``eliza_llm_stream_config_t``."""

from __future__ import annotations

import ctypes
import operator
import os
from typing import Any, NamedTuple, Union

from .abi import CONFIG_V8, int_bounds
from .errors import InvalidArgument

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
    prompt_cache_key: str | None = None
    draft_min: int = 0
    draft_max: int = 0
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
