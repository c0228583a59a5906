"""Debian's packages, for what a machine lacks, where installing them needs nobody's consent."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence

from lib.console import Failure, run

_COMMAND = ("apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=120")


def is_usable() -> bool:
    is_root = platform.system() == "Linux" and os.geteuid() == 0
    return is_root and shutil.which("apt-get") is not None


def update() -> None:
    run([*_COMMAND, "update"], "apt-get update", _environment())


def install(*names: str) -> None:
    command = [*_COMMAND, "install", "--no-install-recommends", *names]
    run(command, "apt-get install", _environment())


def provide(*names: str) -> None:
    """Install, with a fresh list of packages where the one at hand does not do."""
    try:
        install(*names)
    except Failure:
        update()
        install(*names)


def program(names: Sequence[str], *packages: str) -> str:
    """The path of the first of these programs that there is, from the packages if need be.

    Raises Failure where none is to be had.
    """
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and is_usable():
        provide(*packages)
        found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise Failure(f"{names[0]} is missing (on Debian: {' '.join(packages)})")
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
