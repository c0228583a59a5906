"""``batch``: a file of prompts in, a file of results out, where an interrupted run goes on."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import stat
import sys
import time
from collections import deque
from functools import lru_cache
from typing import BinaryIO, Iterator

from ..batch import Result, Settings, Worker, run
from ..chat import ChatTemplate
from .common import config_of, fail, opened, path_of, refuse, set_environment, text_of

_BAR = 24
# Seconds between two looks of the progress bar.
_REFRESH = 0.1
_O_BINARY = getattr(os, "O_BINARY", 0)


def run_batch(arguments: argparse.Namespace) -> int:
    """Answers every line; 1 where any could not be answered."""
    if arguments.jobs < 1:
        refuse(f"-j takes 1 or more streams, not {arguments.jobs}")
    config = config_of(arguments)
    set_environment(arguments)
    stop = [text_of(word) for word in arguments.stop]
    model = os.path.realpath(arguments.bundle)
    others = arguments.seed, arguments.context_size, model
    settings = Settings(config, stop, arguments.stats, *others)
    with _input(arguments) as source, _output(arguments, source) as target:
        lines = _Lines(source)
        done, failed = _resume(arguments.output, target, lines, settings)
        with opened(arguments) as (bundle, context):

            @lru_cache(maxsize=1)
            def template() -> ChatTemplate:
                return ChatTemplate.of_bundle(bundle, context)

            workers = [Worker(context, settings, template) for _ in range(arguments.jobs)]
            with contextlib.ExitStack() as streams:
                for worker in workers:
                    streams.callback(worker.close)
                # What would fail for every line fails once, here.
                workers[0].open(config)
                report = _Report(target, lines, done, failed)
                try:
                    run(workers, lines, report.write, done)
                finally:
                    report.close()
    if not report.failed:
        return 0
    return fail(f"{report.failed} of {report.done} lines failed; their results say why")


@contextlib.contextmanager
def _input(arguments: argparse.Namespace) -> Iterator[BinaryIO]:
    if arguments.prompts in (None, "-"):
        yield sys.stdin.buffer
    else:
        with path_of(arguments.prompts).open("rb") as file:
            yield file


@contextlib.contextmanager
def _output(arguments: argparse.Namespace, source: BinaryIO) -> Iterator[BinaryIO]:
    if arguments.output == "-":
        yield sys.stdout.buffer
        return
    path = path_of(arguments.output)
    with contextlib.suppress(OSError):
        if os.path.samestat(path.stat(), os.fstat(source.fileno())):
            refuse(f"{path} is the input as well")
    # Neither truncated nor opened for appending: it is read first, and may lose its end.
    regular = not path.exists() or path.is_file()
    mode = (os.O_RDWR if regular else os.O_WRONLY) | os.O_CREAT | _O_BINARY
    descriptor = os.open(path, mode, 0o666)
    with open(descriptor, "r+b" if regular else "wb") as file:
        yield file


class _Lines:
    """The lines of the input that are not blank, and how far into it each one ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._position = 0
        self.ends: deque[int] = deque()
        state = os.fstat(file.fileno())
        self.size = state.st_size if stat.S_ISREG(state.st_mode) else 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        # Not the file's own iteration: that one waits for more than a line.
        while line := self._file.readline():
            self._position += len(line)
            if line.strip():
                self.ends.append(self._position)
                return line.rstrip(b"\r\n")
        raise StopIteration


def _resume(name: str, target: BinaryIO, lines: _Lines, settings: Settings) -> tuple[int, int]:
    """Skips the lines that ``target`` has results of; returns their number, and the failed ones'.

    A last line that is not whole is cut off.
    """
    done = failed = 0
    if not target.seekable() or not target.readable():
        return done, failed
    while True:
        start = target.tell()
        written = target.readline()
        if not written.endswith(b"\n"):
            target.seek(start)
            target.truncate()
            return done, failed
        try:
            result = json.loads(written)
            fingerprint, index = result["input"], result["index"]
        except (ValueError, TypeError, KeyError, RecursionError):
            refuse(f"{name}: line {done + 1} is no result of a batch; name another output")
        line = next(lines, None)
        if line is None or index != done or fingerprint != settings.fingerprint(line):
            refuse(
                f"{name}: line {done + 1} is the result of another input or of other settings; "
                "name another output, or remove it to start over"
            )
        lines.ends.clear()
        done += 1
        failed += "error" in result


class _Report:
    """Writes results, each at once and whole, and on a terminal shows how far it is."""

    def __init__(self, target: BinaryIO, lines: _Lines, done: int, failed: int) -> None:
        self.done, self.failed = done, failed
        self._target = target
        self._lines = lines
        self._shows = sys.stderr.isatty() and not target.isatty()
        self._tokens = self._position = 0
        self._started = self._shown = time.monotonic()

    def write(self, result: Result) -> None:
        try:
            text = json.dumps(result, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            # Half a surrogate pair, which an id may hold, has an escape only.
            text = json.dumps(result).encode("ascii")
        self._target.write(text + b"\n")
        self._target.flush()
        self.done += 1
        self.failed += "error" in result
        self._tokens += result.get("tokens", 0)
        self._position = self._lines.ends.popleft()
        now = time.monotonic()
        if self._shows and now - self._shown >= _REFRESH:
            self._shown = now
            self._show()

    def close(self) -> None:
        """Leaves the last look where it is."""
        if self._shows:
            self._show()
            print(file=sys.stderr)

    def _show(self) -> None:
        parts = []
        if self._lines.size:
            share = min(1.0, self._position / self._lines.size)
            filled = int(share * _BAR)
            parts.append(f"[{'#' * filled}{'.' * (_BAR - filled)}] {share:4.0%}")
        parts.append(f"{self.done} done")
        if self.failed:
            parts.append(f"{self.failed} failed")
        seconds = time.monotonic() - self._started
        parts.append(f"{self._tokens / seconds if seconds else 0:.1f} tokens/s")
        print("\r" + "  ".join(parts).ljust(78), end="", file=sys.stderr, flush=True)
