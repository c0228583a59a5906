"""What the content of an ABI table has to look like: all that the checks rely on."""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple

# Names get into C sources as they are.
_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_SHOWN = 60


class _Value(NamedTuple):
    what: str
    is_one: Callable[[Any], bool]


class _ByName(NamedTuple):
    """An object whose keys are names of C."""

    each: Any


def _integer(lowest: int, highest: int) -> Callable[[Any], bool]:
    # JSON's true is no number, though Python's is.
    return lambda value: type(value) is int and lowest <= value <= highest


_NAME = _Value("a name in C", lambda value: isinstance(value, str) and _is_name(value))
_TYPE = _Value("a C type", lambda value: isinstance(value, str))
_BYTES = _Value("a number of bytes", _integer(0, 2**31 - 1))
_FIELD = {"name": _NAME, "type": _TYPE, "offset": _BYTES}
_ARGUMENT = {"name": _NAME, "type": _TYPE}
_TABLE = {
    "library": _Value(
        "a name that begins with lib",
        lambda value: isinstance(value, str) and _is_name(value) and value.startswith("lib"),
    ),
    "abi_version": _Value("a version from 1 on", _integer(1, 2**31 - 1)),
    "pointer_bits": _Value("64", _integer(64, 64)),
    "constants": _ByName(_Value("a value of C's int", _integer(-(2**31), 2**31 - 1))),
    "callbacks": _ByName({"returns": _TYPE, "args": [_TYPE]}),
    "structs": _ByName(
        {
            "size": _BYTES,
            "align": _Value("1, 2, 4 or 8", lambda value: _integer(1, 8)(value) and 8 % value == 0),
            "fields": [_FIELD],
        }
    ),
    "opaque": [_NAME],
    "functions": [{"name": _NAME, "returns": _TYPE, "args": [_ARGUMENT]}],
}


def require_table(content: Any) -> None:
    """Raises ValueError that says what stands where something else has to."""
    _require(content, _TABLE, "")


def _is_name(text: str) -> bool:
    return _C_NAME.fullmatch(text) is not None


def _require(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, _Value):
        if not shape.is_one(value):
            raise _wrong(value, shape.what, where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _wrong(value, "a list", where)
        for number, each in enumerate(value):
            _require(each, shape[0], f"{where}[{number}]")
    elif not isinstance(value, dict):
        raise _wrong(value, "an object", where)
    elif isinstance(shape, _ByName):
        for name, each in value.items():
            _require(name, _NAME, f"a key of {where}")
            _require(each, shape.each, f"{where}.{name}")
    else:
        for key, part in shape.items():
            inside = f"{where}.{key}" if where else key
            if key not in value:
                raise ValueError(f"{inside} is missing")
            _require(value[key], part, inside)


def _wrong(value: Any, wanted: str, where: str) -> ValueError:
    shown = repr(value)
    if len(shown) > _LONGEST_SHOWN:
        shown = f"{shown[:_LONGEST_SHOWN]}..."
    return ValueError(f"{where or 'the content'} is {shown}, not {wanted}")
