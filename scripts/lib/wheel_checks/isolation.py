"""Commands as on a machine without compiler, network or this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

# What tests call beside Python; nothing that compiles.
TOOLS = ("bash", "cat", "env", "false", "head", "sh", "sleep", "true")
# Nothing listens there; for machines on which the network cannot be taken away.
_NOWHERE = "http://127.0.0.1:9"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def command(*arguments: object) -> list[str]:
    """In a network of its own, which reaches nothing, where the system allows that."""
    return [*_without_network(), *map(str, arguments)]


def tools(folder: Path) -> Path:
    """Make `folder`, to be the end of a PATH."""
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def settings(home: Path, *programs: Path) -> dict[str, str]:
    """An environment that knows `home` and the folders of `programs` only."""
    proxies = {name: _NOWHERE for each in _PROXIES for name in (each, each.upper())}
    return {
        **proxies,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join(map(str, programs)),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@cache
def _without_network() -> tuple[str, ...]:
    unshare = shutil.which("unshare")
    for options in (("-n",), ("-r", "-n")):
        if unshare:
            attempt = [unshare, *options, "true"]
            if subprocess.run(attempt, capture_output=True).returncode == 0:
                return (unshare, *options)
    return ()
