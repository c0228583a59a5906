"""Building the programs of `tests/consumers/` and running their scenario."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lib.building import CHECKOUT
from lib.bundles import python_path
from lib.console import Failure
from lib.consumers import Consumer, Place, Program, java, javascript, native, swift

SOURCES = CHECKOUT / "tests" / "consumers"
SECONDS = 180
# What somebody set for other programs: a runtime may do something else then, and several print it.
_SETTINGS = (
    *("ELIZA_", "BUN_", "DENO_", "GODEBUG", "GOTRACEBACK", "NODE_", "PYTHON", "RUST_", "SWIFT_"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"),
)


def _python(place: Place) -> Program:
    command = (sys.executable, str(place.source / "scenario.py"))
    return Program(command, {"PYTHONPATH": python_path()})


REFERENCE = Consumer("python", "python", _python)
CONSUMERS: tuple[Consumer, ...] = (
    *native.CONSUMERS,
    *javascript.CONSUMERS,
    *java.CONSUMERS,
    *swift.CONSUMERS,
)


def build(consumer: Consumer, library: Path, work: Path) -> Program:
    """Raises Unavailable or Failure."""
    work.mkdir(parents=True)
    header = CHECKOUT / "cpp" / "include"
    return consumer.build(Place(SOURCES / consumer.folder, work, header, library))


def play(
    program: Program, library: Path, bundle: Path, folder: Path, *part: str, **extra: str
) -> Any:
    """What the program prints, run in `folder`, which is made, with `extra` in its environment.

    `part` names another part than the scenario, as `misuse`.

    Raises Failure where it fails, or prints anything but one JSON object.
    """
    folder.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    env.update(program.environment)
    env.update(extra, ELIZA_LLM_SEED="7", ELIZA_LLM_DRAFT="always")
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    env[variable] = os.pathsep.join(filter(None, [str(library.parent), env.get(variable)]))
    command = [*program.command, str(library), str(bundle), *part]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as expired:
        said = (expired.stderr or b"").decode("utf-8", "replace")
        raise Failure(f"{command[0]}: not done after {SECONDS} seconds\n{said}") from None
    if done.returncode != 0 or done.stderr:
        said = done.stderr.decode("utf-8", "replace")
        what = f"exit status {done.returncode}" if done.returncode else "wrote to stderr:"
        raise Failure(f"{' '.join(command)}: {what}\n{said}")
    try:
        return json.loads(done.stdout.decode("utf-8"))
    except ValueError as error:
        raise Failure(f"{command[0]}: {error}: {done.stdout[:400]!r}") from None
