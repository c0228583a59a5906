"""What `scripts/consumers` says of wrong names, of programs that go wrong, and of times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = CHECKOUT / "scripts" / "consumers"

pytestmark = [pytest.mark.build_tree, pytest.mark.unsanitized]


@pytest.fixture(autouse=True)
def _modules_of_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "scripts"))


@pytest.mark.parametrize("names", [["nosuch"], ["c", "nosuch"], ["bu"], [""], ["c or node"]])
def test_a_name_of_no_consumer_is_wrong_usage(names: list[str]) -> None:
    command = [sys.executable, str(COMMAND), *names]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert f"no consumer {names[-1]!r}: there are python, c-linked, c-dlopen, " in done.stderr


def play(folder: Path, program: str, **environment: str) -> Any:
    from lib.consumers import Program
    from lib.consumers.playing import play

    command = Program((sys.executable, "-c", program), environment)
    return play(command, folder / "library.so", folder / "bundle", folder / "run")


def failure(folder: Path, program: str) -> str:
    from lib.console import Failure

    with pytest.raises(Failure) as raised:
        play(folder, program)
    return str(raised.value)


def test_a_program_that_writes_to_stderr_is_said_to(tmp_path: Path) -> None:
    said = failure(tmp_path, "import sys; print('{}'); print('warning', file=sys.stderr)")
    assert said.endswith(": wrote to stderr:\nwarning\n")
    assert "exit status" not in said


def test_a_program_that_fails_is_said_to_with_its_status(tmp_path: Path) -> None:
    said = failure(tmp_path, "import sys; print('broken', file=sys.stderr); sys.exit(3)")
    assert said.endswith(": exit status 3\nbroken\n")


SETTINGS = {
    "BUN_OPTIONS": "--smol",
    "ELIZA_LLM_BACKEND": "other",
    "JAVA_TOOL_OPTIONS": "-Xmx8m",
    "JDK_JAVA_OPTIONS": "-Xmx8m",
    "_JAVA_OPTIONS": "-Xmx8m",
    "NODE_OPTIONS": "--trace-warnings",
    "PYTHONVERBOSE": "1",
    "RUST_BACKTRACE": "1",
}


def test_settings_that_were_made_for_other_programs_do_not_reach_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TEST_KEPT", "kept")
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    seen = play(tmp_path, program, RUST_BACKTRACE="of the recipe")
    assert {name for name in SETTINGS if name in seen} == {"RUST_BACKTRACE"}
    assert (seen["RUST_BACKTRACE"], seen["TEST_KEPT"]) == ("of the recipe", "kept")


def test_only_times_that_were_measured_are_shown(tmp_path: Path) -> None:
    from lib.consumers.results import cancel_times

    junit = tmp_path / "junit.xml"
    skipped = '<testcase name="test[swift-plain]"><skipped/></testcase>'
    measured = (
        '<testcase name="test[bun-plain]"><properties>'
        '<property name="cancel_next_ms" value="1.25"/>'
        '<property name="cancel_prefill_ms" value="2.5"/></properties></testcase>'
    )
    junit.write_text(f"<testsuites><testsuite>{skipped}</testsuite></testsuites>")
    assert cancel_times(junit) == []
    junit.write_text(f"<testsuites><testsuite>{skipped}{measured}</testsuite></testsuites>")
    heading, row = cancel_times(junit)
    assert heading.startswith("milliseconds")
    assert row.split() == ["bun-plain", "next", "1.25", "prefill", "2.50"]
