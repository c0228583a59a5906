"""The cache outside the checkout: environments, downloads, compiler cache, generated models.

Every entry is a folder that counts only once its completion mark exists, and is made under a lock:
an interrupted run leaves nothing that a later one would trust, and two runs at once do not collide.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, TextIO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

from lib.console import Failure

MARK = ".complete"


def root() -> Path:
    chosen = os.environ.get("ELIZA_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "eliza-inference"


def key(*parts: object) -> str:
    """A short name for everything that determines an entry's content."""
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()[:12]


def is_complete(entry: Path) -> bool:
    return (entry / MARK).exists()


def make_once(entry: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder `entry`, filled by `make(entry)` if no earlier run has completed it."""
    if is_complete(entry):
        return entry
    with locked(entry.with_name(entry.name + ".lock")):
        if is_complete(entry):
            return entry
        if entry.exists():
            shutil.rmtree(entry)
        entry.mkdir()
        make(entry)
        (entry / MARK).touch()
    return entry


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """While nobody else holds the lock file `path`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise Failure(
            f"the cache {root()} cannot be written: {error.strerror}; ELIZA_CACHE_DIR names another"
        ) from error
    with file:
        _wait_for_lock(file)
        yield


def _wait_for_lock(file: TextIO) -> None:
    """Until the file is closed nobody else gets it."""
    if sys.platform == "win32":
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                return
            except OSError:
                time.sleep(1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX)
