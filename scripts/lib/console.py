"""Talking to the person at the terminal: progress on stderr, one line for a failure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, NoReturn


class Failure(Exception):
    """Something the person has to act on; the message says what."""


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run(
    command: Sequence[object],
    what: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run quietly and return stdout; on failure raise with everything the command printed."""
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            env=env,
            cwd=cwd,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError as error:
        raise Failure(f"{what}: {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise Failure(
            f"{what} failed (exit status {done.returncode})\n$ {' '.join(arguments)}\n{output}"
        )
    return done.stdout


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a command's `main`; a Failure becomes one message and status 1, Ctrl-C status 130."""
    try:
        sys.exit(main())
    except Failure as failure:
        say(f"{Path(sys.argv[0]).name}: {failure}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
