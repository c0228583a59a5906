"""Bundle directories made from GGUF files, kept in the cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lib import cache
from lib.building import CHECKOUT, Build
from lib.console import run


def python_path() -> str:
    """The PYTHONPATH with which `import eliza_ctypes` finds the package."""
    return os.pathsep.join(filter(None, [str(CHECKOUT / "python"), os.environ.get("PYTHONPATH")]))


def python_environment(made: Build) -> dict[str, str]:
    """The process environment in which `import eliza_ctypes` finds package and library."""
    return {**os.environ, "PYTHONPATH": python_path(), "ELIZA_INFERENCE_LIBRARY": str(made.library)}


def bundle(gguf: Path, made: Build) -> Path:
    state = gguf.stat()
    name = f"{gguf.stem}-{cache.key(gguf, state.st_size, state.st_mtime_ns)}"

    def make(entry: Path) -> None:
        command = [sys.executable, "-m", "eliza_ctypes", "bundle", gguf, entry / "bundle"]
        run(command, "eliza_ctypes bundle", python_environment(made))

    return cache.make_once(cache.root() / "bundles" / name, make) / "bundle"
