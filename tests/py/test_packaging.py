"""The source distribution, the version, and what a build without network says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import eliza_ctypes
from eliza_ctypes.report import build_facts

CHECKOUT = Path(__file__).resolve().parents[2]
# Of what is under version control, that which neither builds nor tests read.
LEFT_OUT = (".ci/", ".editorconfig", ".github/", ".gitignore")
# Nothing listens there, and pip asks once.
NO_NETWORK = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "0",
}

pytestmark = [pytest.mark.build_tree, pytest.mark.unsanitized]


def source_distribution(source: Path, folder: Path) -> Path:
    program = f"import scikit_build_core.build as b; print(b.build_sdist({str(folder)!r}))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source_distribution(CHECKOUT, tmp_path_factory.mktemp("dist"))


def test_the_library_has_the_version_of_the_package(library_path: Path) -> None:
    facts = build_facts(library_path)
    assert facts is not None
    assert facts["library"] == eliza_ctypes.__version__


def test_the_changelog_tells_of_this_version() -> None:
    text = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = re.search(r"^## \[(.+)\](?: - \d{4}-\d\d-\d\d)?$", text, re.MULTILINE)
    assert latest is not None
    assert latest[1] in ("Unreleased", eliza_ctypes.__version__)


def test_wheels_are_tested_with_the_tools_of_all_other_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "scripts"))
    from lib.environments import TEST

    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^test-requires = \[(.+?)\]", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert set(re.findall(r'"(.+?)"', listed[1])) <= {pin.partition(";")[0] for pin in TEST}


def test_a_source_distribution_is_complete_without_strangers_and_always_the_same(
    sdist: Path, tmp_path: Path
) -> None:
    """One made from what the first one unpacks to, with other things beside it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path)
    (unpacked,) = tmp_path.iterdir()
    for stray in ("notes.txt", "build/library.so", "python/eliza_ctypes/__pycache__/abi.pyc"):
        (unpacked / stray).parent.mkdir(exist_ok=True)
        (unpacked / stray).touch()
    again = source_distribution(unpacked, tmp_path)
    assert again.read_bytes() == sdist.read_bytes()


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="this is no git checkout")
def test_a_source_distribution_has_everything_that_git_has(sdist: Path) -> None:
    command = ["git", "-C", str(CHECKOUT), "ls-files", "--deduplicate", "--cached"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        name
        for name in filter(None, tracked)
        if not name.startswith(LEFT_OUT) and (CHECKOUT / name).exists()
    }
    assert expected - inside == set()


@pytest.mark.slow
def test_without_network_pip_ends_with_what_is_missing_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "scripts"))
    from lib.building import tools

    env = {**tools(), **NO_NETWORK, "ELIZA_CACHE_DIR": str(tmp_path / "cache")}
    for name in [name for name in env if name.startswith("ELIZA_LLAMA_CPP")]:
        del env[name]
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    command += ["--wheel-dir", str(tmp_path), str(CHECKOUT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0
    said = (done.stdout + done.stderr).rstrip().splitlines()
    ending = "\n".join(said[-30:])
    assert "Traceback" not in ending
    assert "cannot fetch llama.cpp: llama-cpp-python 0.3.36" in ending
    assert "No matching distribution found for llama-cpp-python==0.3.36" in ending
    assert "--config-settings=cmake.define.ELIZA_LLAMA_CPP_DIR=" in ending
    assert "the environment variable ELIZA_LLAMA_CPP_DIR" in ending
