"""The portable library: every CPU level that this machine has, and processors that it is not.

The libraries and programs under test run in processes of their own: a process keeps its level.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eliza_ctypes.report import build_facts
from lib.building import Build
from lib.levels import EMULATED as PROCESSORS
from lib.levels import TOO_OLD as TOO_OLD_PROCESSORS
from lib.levels import VARIABLE

pytestmark = pytest.mark.portable

N_PROMPT, N_GEN = 40, 24
EMULATED, TOO_OLD = PROCESSORS["x86_64"], TOO_OLD_PROCESSORS["x86_64"]


def levels_of(library: Path) -> list[str]:
    facts = build_facts(library)
    assert facts is not None
    levels = str(facts["cpu_levels"]).split(", ")
    assert levels != [""], "the library under test has no levels: build it with ELIZA_CPU_LEVELS"
    return levels


@pytest.fixture(scope="module")
def offered(library_path: Path) -> list[str]:
    """The levels that this machine runs, from the lowest to the highest, as the library says."""
    done = info({VARIABLE: "no such level"})
    found = re.search(r"this processor offers (.*) of ", done.stderr)
    assert found, done.stderr
    levels = found[1].split(", ")
    assert set(levels) <= set(levels_of(library_path))
    return levels


def info(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eliza_ctypes", "info", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )


def drive(
    library: Path, bundle: Path, *arguments: object, level: str = "", cpu: str = ""
) -> subprocess.CompletedProcess[str]:
    """tests/tools/abi_decode.c, on this processor or an emulated one."""
    program = library.parent.parent / "bin" / "abi_decode"
    command = [str(part) for part in (program, library, bundle, *arguments)]
    if cpu:
        emulator = shutil.which("qemu-x86_64")
        assert emulator, "qemu-x86_64 is missing (on Debian: qemu-user)"
        command = [emulator, "-cpu", cpu, *command]
    env = {**os.environ, VARIABLE: level, "ELIZA_LLM_THREADS": "2"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def tokens_of(done: subprocess.CompletedProcess[str]) -> list[int]:
    assert done.returncode == 0, done.stderr
    tokens: list[int] = json.loads(done.stdout)["tokens"]
    return tokens


def test_info_names_the_level_and_what_there_is(library_path: Path, offered: list[str]) -> None:
    facts = json.loads(info({}, "--json").stdout)
    assert facts["cpu"] == f"CPU level {offered[-1]}"
    assert facts["build"]["cpu_native"] == "OFF"
    assert f"computes  CPU level {offered[-1]}\n" in info({}).stdout


def test_every_level_can_be_forced(offered: list[str]) -> None:
    for level in offered:
        assert json.loads(info({VARIABLE: level}, "--json").stdout)["cpu"] == f"CPU level {level}"


def test_info_fails_where_a_level_is_forced_that_is_none(tiny_bpe_bundle: Path) -> None:
    for arguments in ((), (tiny_bpe_bundle,)):
        done = info({VARIABLE: "avx3"}, *arguments)
        assert done.returncode == 1
        assert f"environment variable {VARIABLE} is 'avx3'" in done.stderr


def test_every_level_gives_the_tiny_models_tokens(
    library_path: Path, tiny_bpe_bundle: Path, offered: list[str]
) -> None:
    answers = {
        level: tokens_of(
            drive(library_path, tiny_bpe_bundle, "tokens", N_PROMPT, N_GEN, level=level)
        )
        for level in offered
    }
    assert all(answer == answers[offered[0]] for answer in answers.values()), answers
    assert len(answers[offered[0]]) == N_GEN


def test_every_level_generates_with_smollm2(
    library_path: Path, smollm2_bundle: Path, offered: list[str]
) -> None:
    """Levels sum in other orders: their texts part where two tokens are about equally likely."""
    answers = {
        level: tokens_of(drive(library_path, smollm2_bundle, "tokens", 16, 32, level=level))
        for level in offered
    }
    assert {len(answer) for answer in answers.values()} == {32}
    assert len({tuple(answer[:2]) for answer in answers.values()}) == 1, answers


@pytest.mark.parametrize("cpu", EMULATED)
def test_older_processors_generate(
    library_path: Path, tiny_bpe_bundle: Path, offered: list[str], cpu: str
) -> None:
    level = EMULATED[cpu]
    here = drive(library_path, tiny_bpe_bundle, "tokens", N_PROMPT, N_GEN, level=level)
    there = drive(library_path, tiny_bpe_bundle, "tokens", N_PROMPT, N_GEN, cpu=cpu)
    assert tokens_of(there) == tokens_of(here)


@pytest.mark.parametrize("cpu", EMULATED)
def test_a_level_above_the_processors_is_refused(
    library_path: Path, tiny_bpe_bundle: Path, cpu: str
) -> None:
    levels = levels_of(library_path)
    above = levels[levels.index(EMULATED[cpu]) + 1]
    done = drive(library_path, tiny_bpe_bundle, "load", level=above, cpu=cpu)
    assert done.returncode == 1
    message = f"eliza_inference_create: environment variable {VARIABLE} is '{above}', for which"
    assert message in done.stderr
    assert f"this processor offers {', '.join(levels[: levels.index(above)])} of" in done.stderr


@pytest.mark.parametrize("cpu", TOO_OLD)
def test_a_processor_below_the_lowest_level_gets_an_error(
    library_path: Path, tiny_bpe_bundle: Path, cpu: str
) -> None:
    done = drive(library_path, tiny_bpe_bundle, "load", cpu=cpu)
    assert done.returncode == 1, done.stderr
    assert "create: eliza_inference_create: this build's lowest CPU level" in done.stderr
    assert "sse4_2" in done.stderr


def test_nothing_of_a_level_is_seen_or_runs_from_outside(library_path: Path) -> None:
    build = Build(library_path.parent.parent)
    given = build.settings().get("ELIZA_CPU_LEVELS_DIR")
    folder = Path(given) if given else build.directory / "cpu-levels"
    for level in levels_of(library_path):
        symbols = subprocess.run(
            ["nm", "--defined-only", str(folder / f"{level}.o")], capture_output=True, text=True
        )
        seen = re.findall(r"^\w+ [A-Zuvw] (.*)$", symbols.stdout, re.MULTILINE)
        assert seen == [f"eliza_cpu_reg_{level}"]
        sections = subprocess.run(
            ["objdump", "-h", str(folder / f"{level}.o")], capture_output=True, text=True
        )
        assert not re.findall(r"\.(?:init_array|ctors|preinit_array)\S*", sections.stdout)
