"""The CPU levels of a portable build."""

from __future__ import annotations

import re
import subprocess
import sys

from lib.building import Build
from lib.bundles import python_environment
from lib.console import Failure

VARIABLE = "ELIZA_CPU_LEVEL"


def offered_levels(made: Build) -> list[str]:
    """Those that this machine runs, from the lowest up: the library lists them in a refusal."""
    command = [sys.executable, "-m", "eliza_ctypes", "info"]
    env = {**python_environment(made), VARIABLE: "?"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    found = re.search(r"this processor offers (.*) of ", done.stderr)
    if found is None:
        raise Failure(f"no CPU levels in {made.library}\n{done.stderr}")
    return found[1].split(", ")
