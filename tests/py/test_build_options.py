"""Configurations that CMake must refuse, because the library would not be what it says."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Optional

import pytest

from lib.building import CHECKOUT, tools

pytestmark = [pytest.mark.build_tree, pytest.mark.unsanitized]

NEWER = {"x86_64": ["-mavx2", "-msse4.2", "-mbmi2"], "aarch64": ["-march=armv8.2-a"]}


def refusal(folder: Path, *options: str, **variables: str) -> str:
    command = ["cmake", "-S", str(CHECKOUT), "-B", str(folder), "-G", "Ninja", *options]
    env = {**tools(), **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    return " ".join(done.stderr.split())


@pytest.mark.parametrize("variable", ["CFLAGS", "CXXFLAGS"])
@pytest.mark.parametrize("flag", NEWER.get(platform.machine(), []))
def test_flags_for_newer_processors_are_refused_outside_the_levels(
    tmp_path: Path, variable: str, flag: str
) -> None:
    said = refusal(tmp_path, "-DELIZA_CPU_LEVELS=ON", **{variable: flag})
    assert "outside the levels the library must run on every processor" in said
    assert flag in said


def test_an_unknown_level_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    said = refusal(tmp_path, "-DELIZA_CPU_LEVELS=avx3")
    assert "'avx3' is no level of" in said


@pytest.mark.parametrize(
    ("options", "origin", "reason"),
    [
        ([], None, "ELIZA_CPU_LEVELS_DIR is given without ELIZA_CPU_LEVELS"),
        (["-DELIZA_CPU_LEVELS=ON"], None, "nothing was built in"),
        (["-DELIZA_CPU_LEVELS=ON"], f"{64 * '0'}\nGNU 12\n", "made of other sources"),
        (["-DELIZA_CPU_LEVELS=ON"], "", "made of other sources"),
    ],
)
def test_a_folder_of_levels_that_cannot_be_used_is_refused(
    tmp_path: Path, options: list[str], origin: Optional[str], reason: str
) -> None:
    folder = tmp_path / "levels"
    folder.mkdir()
    if origin is not None:
        (folder / "origin.txt").write_text(origin)
    said = refusal(tmp_path / "build", *options, f"-DELIZA_CPU_LEVELS_DIR={folder}")
    assert reason in said
