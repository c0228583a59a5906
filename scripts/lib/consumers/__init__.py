"""How each program of `tests/consumers/` is built, and the runtimes that this needs.

One module for each world; what a machine lacks is fetched from the package registries into the
cache, and `Unavailable` says by name what cannot be had.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable


class Unavailable(Exception):
    """A toolchain or runtime that this machine does not have and the registries do not carry."""


@dataclass(frozen=True)
class Place:
    """What a recipe works with."""

    source: Path
    """The consumer's folder; nothing is written there."""
    work: Path
    """An empty folder for what is built; absolute."""
    header: Path
    """The folder that holds `eliza-inference-ffi.h`."""
    library: Path
    """The library to link with. At run time its folder, or that of another build of it, is on the
    dynamic linker's path."""


@dataclass(frozen=True)
class Program:
    """How the built program starts; the driver appends LIBRARY and BUNDLE."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the process's environment."""


@dataclass(frozen=True)
class Consumer:
    """One way to load the library."""

    name: str
    folder: str
    """Below `tests/consumers/`."""
    build: Callable[[Place], Program]
    """Raises Unavailable, or Failure where building fails."""
