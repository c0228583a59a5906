"""A run of named steps with their durations and test counts, and the table at the end."""

from __future__ import annotations

import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from lib.console import Failure, say

PYTEST_NO_TESTS = 5


@dataclass
class Step:
    name: str
    seconds: float
    ok: bool
    passed: int = 0
    failed: int = 0
    skipped: int = 0


class Steps:
    def __init__(self) -> None:
        self.done: list[Step] = []

    def call(self, name: str, action: Callable[[], object]) -> bool:
        """Run Python code; a Failure is printed and ends the step, not the run."""
        say(f"== {name}")
        start = time.monotonic()
        try:
            action()
            ok = True
        except Failure as failure:
            say(str(failure))
            ok = False
        self.done.append(Step(name, time.monotonic() - start, ok))
        return ok

    def run(
        self,
        name: str,
        command: Sequence[object],
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        junit: Path | None = None,
        may_be_empty: bool = False,
    ) -> bool:
        """Run a command with its output shown; with `junit`, count the tests in that report.

        A test runner that ran no test has not passed, unless the selection `may_be_empty`.
        """
        say(f"== {name}")
        if junit is not None:
            junit.unlink(missing_ok=True)
        start = time.monotonic()
        status = subprocess.run(
            [str(part) for part in command], env=env, cwd=cwd, stdin=subprocess.DEVNULL
        ).returncode
        step = Step(name, time.monotonic() - start, status == 0)
        if junit is not None:
            _count(step, junit)
            if step.passed + step.failed == 0:
                step.ok = may_be_empty and status in (0, PYTEST_NO_TESTS)
        self.done.append(step)
        return step.ok

    def close(self) -> int:
        """Print the table and the totals; the exit status of the whole run."""
        width = max(len(step.name) for step in self.done)
        print()
        for step in self.done:
            counts = f"{step.passed} passed, {step.failed} failed, {step.skipped} skipped"
            tests = counts if step.passed or step.failed or step.skipped else ""
            result = "ok" if step.ok else "FAILED"
            print(f"{step.name:<{width}}  {step.seconds:7.1f} s  {result:<6}  {tests}".rstrip())
        total = sum(step.seconds for step in self.done)
        broken = [step.name for step in self.done if not step.ok]
        print(f"{'total':<{width}}  {total:7.1f} s  {'FAILED' if broken else 'ok'}")
        passed, failed, skipped = (
            sum(getattr(step, count) for step in self.done)
            for count in ("passed", "failed", "skipped")
        )
        print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)
        return 1 if broken else 0


def failures(junit: Path) -> str:
    """Names and output of the failed tests in ctest's report."""
    if not junit.exists():
        return "no report: ctest did not run to its end"
    return "\n".join(
        f"-- {case.get('name')}\n{case.findtext('system-out') or ''}"
        for case in ElementTree.parse(junit).getroot().iter("testcase")
        if case.find("failure") is not None
    )


def _count(step: Step, junit: Path) -> None:
    """Add up a JUnit report as pytest (suites in a root) or ctest (one suite) writes it."""
    if not junit.exists():
        return
    for suite in ElementTree.parse(junit).getroot().iter("testsuite"):
        number = {name: int(suite.get(name) or 0) for name in ("tests", "failures", "errors")}
        skipped = int(suite.get("skipped") or 0) + int(suite.get("disabled") or 0)
        failed = number["failures"] + number["errors"]
        step.failed += failed
        step.skipped += skipped
        step.passed += number["tests"] - failed - skipped
