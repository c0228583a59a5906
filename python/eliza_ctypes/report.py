"""What a library file is, what it can do, and which backend would serve a bundle."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple

from .abi import FUNCTIONS, PREFIX
from .context import Context
from .errors import ElizaError
from .library import Library

_FACTS = b"ELIZA_BUILD_FACTS {"
_BACKEND_VARIABLE = "ELIZA_LLM_BACKEND"
_IN_TREE = ("llama.cpp", "llamacpp")
_STATE = re.compile(
    r"^  (?P<name>\S.*) \(rank (?P<rank>-?\d+)\): (?P<state>[^;\n]*)(; (?P<remark>.*))?$",
    re.MULTILINE,
)
# How the library begins the state of a backend that would serve the bundle.
_ABLE = "available and able"


class BackendState(NamedTuple):
    """One backend of the library, as seen from one bundle."""

    name: str
    rank: int
    state: str
    remark: str = ""
    """What the backend adds: how it would run this bundle, such as on which accelerator."""

    def __str__(self) -> str:
        return f"{self.state}; {self.remark}" if self.remark else self.state

    @property
    def able(self) -> bool:
        """Whether the backend would serve the bundle if it were chosen."""
        return self.state.startswith(_ABLE) or self.name.lower() in _IN_TREE


def build_facts(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The build facts that a library file carries, found without loading it; None: there are none.

    Raises OSError.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.find(_FACTS)
            end = content.find(b"\0", start)
            if start < 0 or end < 0:
                return None
            try:
                facts = json.loads(content[start + len(_FACTS) - 1 : end].decode("utf-8"))
            except ValueError:
                return None
    return facts if isinstance(facts, dict) else None


def capabilities(library: Library) -> dict[str, bool]:
    """What the library says it supports, by the names of its ``*_supported`` functions."""
    suffix = "_supported"
    names = [name[len(PREFIX) :] for name in FUNCTIONS if name.endswith(suffix)]
    return {name[: -len(suffix)]: library.has(name) and bool(library.call(name)) for name in names}


def backend_states(library: Library, bundle: Path) -> list[BackendState]:
    """Every backend that the library knows. No model is loaded.

    The library lists its backends where the environment forces one that it does not know; so this
    sets ``ELIZA_LLM_BACKEND`` for one call, which other threads would see.
    """
    with forced_backend("?"), Context(bundle, library) as context:
        listing = _refusal(context)
    return [
        BackendState(found["name"], int(found["rank"]), found["state"], found["remark"] or "")
        for found in _STATE.finditer(listing)
    ]


@contextlib.contextmanager
def forced_backend(name: str) -> Iterator[None]:
    """Sets ``ELIZA_LLM_BACKEND``, which other threads would see, and restores it."""
    before = os.environ.get(_BACKEND_VARIABLE)
    os.environ[_BACKEND_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BACKEND_VARIABLE]
        else:
            os.environ[_BACKEND_VARIABLE] = before


def cpu_level(library: Library) -> str:
    """What the library's in-tree runtime computes with, such as ``CPU level avx2``; empty for a
    library that was compiled for one kind of processor.

    Raises :class:`ElizaError` where it can compute with nothing that this processor has. Sets a
    variable as :func:`backend_states` does.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text").mkdir()
        states = backend_states(library, Path(folder))
    return next((state.remark for state in states if state.name.lower() in _IN_TREE), "")


def serving_backend(states: Iterable[BackendState]) -> tuple[str | None, str]:
    """The backend that would serve, and why. None where opening a stream would fail."""
    states = list(states)
    forced = os.environ.get(_BACKEND_VARIABLE)
    if forced:
        if forced.lower() in _IN_TREE:
            return _IN_TREE[0], f"{_BACKEND_VARIABLE} forces it"
        for backend in states:
            if backend.name.lower() == forced.lower():
                chosen = backend.name if backend.able else None
                return chosen, f"{_BACKEND_VARIABLE} forces {backend.name}: {backend}"
        return None, f"{_BACKEND_VARIABLE} forces {forced!r}, which this library does not know"
    able = [backend for backend in states if backend.able and backend.rank > 0]
    if able:
        best = max(able, key=lambda backend: backend.rank)
        return best.name, f"the highest rank ({best.rank}) that can serve this bundle"
    return _IN_TREE[0], "no other backend can serve this bundle"


def _refusal(context: Context) -> str:
    try:
        context.open_stream().close()
    except ElizaError as error:
        return error.message
    return ""
