"""Programs of this machine that are recent enough."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from lib.console import Failure, run


def on_path(
    name: str, oldest: tuple[int, int], ask: str = "--version", path: str | None = None
) -> Path | None:
    """A program of the PATH, or of `path`; what it answers to `ask` is at least `oldest`."""
    found = shutil.which(name, path=path)
    if found is None:
        return None
    try:
        version = re.search(r"(\d+)\.(\d+)", run([found, ask], name))
    except Failure:  # a launcher, such as rustup's, that has no version to launch
        return None
    recent = version is not None and (int(version[1]), int(version[2])) >= oldest
    return Path(found) if recent else None
