"""Loads a library, calls its functions without arguments and prints the answers as JSON.

A program of its own, run by its path: a library that crashes takes only this process along. Takes
the library's path, the name of the function that answers a string, and those that answer an int.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, Sequence


def main(path: str, version: str, *supported: str) -> None:
    # What the library itself prints, and C keeps until the end, is no answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        said: dict[str, Any] = {"error": str(error)}
    else:
        said = {"answers": _ask(library, version, supported)}
    with answers:
        json.dump(said, answers)


def _ask(library: ctypes.CDLL, version: str, supported: Sequence[str]) -> dict[str, Any]:
    """The answers of those functions that there are."""
    answers: dict[str, Any] = {}
    if hasattr(library, version):
        ask = library[version]
        ask.restype = ctypes.c_char_p
        text = ask()
        answers[version] = None if text is None else text.decode("utf-8", "replace")
    answers.update({name: library[name]() for name in supported if hasattr(library, name)})
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:])
