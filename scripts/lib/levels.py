"""The CPU levels of a portable build."""

from __future__ import annotations

import re
import subprocess
import sys

from lib.building import Build
from lib.bundles import python_environment
from lib.console import Failure

VARIABLE = "ELIZA_CPU_LEVEL"
# As in cmake/CpuLevels.cmake, from the lowest to the highest.
LEVELS = {
    "x86_64": ("sse42", "avx", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"),
    "aarch64": ("armv8", "dotprod", "i8mm"),
}
# Processors that qemu emulates and the level that each one gets. It has no AVX-512.
EMULATED = {
    "x86_64": {
        "Nehalem": "sse42",
        "Westmere": "sse42",
        "SandyBridge": "avx",
        "IvyBridge": "avx",
        "Haswell": "avx2",
        "EPYC": "avx2",
    },
    "aarch64": {
        "cortex-a53": "armv8",
        "cortex-a76": "dotprod",
        "max": "i8mm",
    },
}
# Those below the lowest level. Every aarch64 processor has that.
TOO_OLD = {"x86_64": ("qemu64", "core2duo", "Conroe", "Penryn"), "aarch64": ()}


def offered_levels(made: Build) -> list[str]:
    """Those that this machine runs, from the lowest up: the library lists them in a refusal."""
    command = [sys.executable, "-m", "eliza_ctypes", "info"]
    env = {**python_environment(made), VARIABLE: "?"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return levels_offered(done.stderr)


def levels_offered(refusal: str) -> list[str]:
    """What the library says of this machine where VARIABLE names a level that it has not."""
    found = re.search(r"this processor offers (.*) of ", refusal)
    if found is None:
        raise Failure(f"a library that tells of no CPU levels:\n{refusal.strip()}")
    return found[1].split(", ")
