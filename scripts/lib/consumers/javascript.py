"""JavaScript and TypeScript: Bun, Node and Deno."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from pathlib import Path

from lib.console import Failure, run
from lib.consumers import Consumer, Place, Program, Unavailable
from lib.npm import NODE_LEVEL, node, npm_packages
from lib.programs import on_path

# What is fetched, and the oldest that the programs were seen to run with.
BUN, BUN_LEVEL = "1.4.5", (1, 4)
DENO, DENO_LEVEL = "2.9.6", (2, 5)


def _bun(place: Place) -> Program:
    bun = on_path("bun", BUN_LEVEL) or _fetch(
        f"no Bun {'.'.join(map(str, BUN_LEVEL))} or later on the PATH (bun.sh)",
        f"@oven/bun-{_bun_platform()}",
        BUN,
        "bin/bun",
    )
    return Program((str(bun), "run", "--no-install", str(_copy(place) / "scenario.ts")))


def _node(place: Place) -> Program:
    package = json.loads((place.source / "package.json").read_text("utf-8"))
    specs = [f"{name}@{version}" for name, version in package["dependencies"].items()]
    try:
        program, modules = node(), npm_packages(*specs)
    except Failure as failure:
        raise Unavailable(
            f"no Node {NODE_LEVEL} or later on the PATH (nodejs.org), or its packages "
            f"{', '.join(specs)} cannot be fetched: {failure}"
        ) from failure
    (place.work / "node_modules").symlink_to(modules)
    return Program((str(program), str(_copy(place) / "scenario.mjs")))


def _deno(place: Place) -> Program:
    deno = on_path("deno", DENO_LEVEL) or _fetch(
        f"no Deno {'.'.join(map(str, DENO_LEVEL))} or later on the PATH (deno.com)",
        f"@deno/{_deno_platform()}",
        DENO,
        "deno",
    )
    scenario = _copy(place) / "scenario.ts"
    offline = ("--quiet", "--no-remote", "--no-npm", "--no-lock")
    environment = {"DENO_DIR": str(place.work / "cache"), "DENO_NO_UPDATE_CHECK": "1"}
    run([deno, "check", *offline, scenario], "deno check", {**os.environ, **environment})
    allowed = ("--no-prompt", "--allow-ffi", "--allow-env=ELIZA_LLM_BACKEND")
    return Program((str(deno), "run", *offline, *allowed, str(scenario)), environment)


CONSUMERS: tuple[Consumer, ...] = (
    Consumer("node", "node", _node),
    Consumer("bun", "bun", _bun),
    Consumer("deno", "deno", _deno),
)


def _copy(place: Place) -> Path:
    """The sources, with what all three share, to where runtimes may leave things beside them."""
    for folder in (place.source, place.source.parent / "javascript"):
        shutil.copytree(folder, place.work / folder.name)
    return place.work / place.source.name


def _fetch(missing: str, package: str, version: str, binary: str) -> Path:
    """The program in a package that holds nothing else, for one platform."""
    try:
        return npm_packages(f"{package}@{version}") / package / binary
    except Failure as failure:
        raise Unavailable(f"{missing}, and it cannot be fetched: {failure}") from failure


def _bun_platform() -> str:
    machine = {"x86_64": "x64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    name = f"{sys.platform}-{machine}"
    if sys.platform == "linux" and not _glibc():
        name += "-musl"
    if sys.platform == "linux" and machine == "x64" and not _avx2():
        name += "-baseline"
    return name


def _deno_platform() -> str:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    if sys.platform != "linux":
        return f"{sys.platform}-{machine}"
    if not _glibc():
        raise Unavailable("no Deno on the PATH, and npm has none for this C library")
    return f"linux-{machine}-glibc"


def _glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _avx2() -> bool:
    try:
        return "avx2" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
