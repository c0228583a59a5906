"""C programs of tests/tools that drive a wheel's library: compiled, given bundles, run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib import cache
from lib.building import CHECKOUT
from lib.console import Failure, run
from lib.zig import Target, compiler

SECONDS = 900
_INCLUDE = CHECKOUT / "cpp" / "include"
_HEADER = _INCLUDE / "eliza-inference-ffi.h"


def compile_driver(name: str, target: Target, *options: str) -> Path:
    """tests/tools/NAME.c for that system; once for each version of its source."""
    source = CHECKOUT / "tests" / "tools" / f"{name}.c"
    program = f"{name}.exe" if target.system == "Windows" else name
    strict = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    command = [compiler(target), "-O1", *strict, f"-I{_INCLUDE}", source, *options]

    def make(entry: Path) -> None:
        run([*command, "-o", entry / program], f"compiling {source.name}")

    key = cache.key(*command, source.read_text(), _HEADER.read_text())
    return cache.make_once(cache.root() / "programs" / f"{name}-{key}", make) / program


def make_bundle(folder: Path, model: Path) -> Path:
    """A bundle of that model in a new `folder`, which is returned."""
    (folder / "text").mkdir(parents=True)
    (folder / "text" / model.name).symlink_to(model)
    return folder


def drive(
    command: Sequence[object], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run to the end, whatever that is, without a developer's settings of the library.

    Raises Failure after SECONDS.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("ELIZA_")}
    words = [str(part) for part in command]
    try:
        return subprocess.run(
            words,
            env={**env, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(words)}: no end after {SECONDS} s") from None
