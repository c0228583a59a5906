"""The command line against the real library and SmolLM2."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eliza_ctypes import Context, Library
from eliza_ctypes.chat import ChatTemplate, Conversation

PROMPT = "The capital of France is"


def run(*arguments: object, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eliza_ctypes", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=120,
    )


def test_generate_prints_the_continuation_and_stats(smollm2_bundle: Path) -> None:
    done = run("generate", smollm2_bundle, PROMPT, "--max-tokens", 16, "--stats")
    assert done.returncode == 0
    assert "Paris" in done.stdout
    assert re.search(r"generated tokens +16\n", done.stderr)
    assert re.search(r"time to first token +\d+ ms\n", done.stderr)
    assert re.search(r"tokens per second +\d+\.\d\n", done.stderr)


def test_generate_reads_the_prompt_from_stdin(smollm2_bundle: Path) -> None:
    assert "Paris" in run("generate", smollm2_bundle, "--max-tokens", 8, text=PROMPT).stdout


def test_generate_takes_a_model_file(smollm2_gguf: Path) -> None:
    assert "Paris" in run("generate", smollm2_gguf, PROMPT, "--max-tokens", 8).stdout


def test_generate_writes_utf8_to_an_ascii_terminal(chain_bundle: Path) -> None:
    done = run("generate", chain_bundle, "smile", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "😀 and wave 👋 to the 世界." in done.stdout


def test_generate_stops_at_a_stop_string(smollm2_bundle: Path) -> None:
    done = run("generate", smollm2_bundle, PROMPT, "--stop", "Paris", "--max-tokens", 16)
    assert done.returncode == 0
    assert "Paris" not in done.stdout


def test_a_seed_repeats_the_output(smollm2_bundle: Path) -> None:
    arguments = ["generate", smollm2_bundle, "Once", "--temperature", 1, "--seed", 5]
    first, second = (run(*arguments, "--max-tokens", 12).stdout for _ in range(2))
    assert first == second != ""


def test_tokenize_and_back(smollm2_bundle: Path) -> None:
    ids = run("tokenize", smollm2_bundle, "Hello 世界").stdout.split()
    assert ids and all(word.isdigit() for word in ids)
    back = run("tokenize", smollm2_bundle, "--decode", *ids)
    assert back.stdout.rstrip("\n") == "Hello 世界"


def test_info_names_the_backend_that_would_serve(smollm2_bundle: Path) -> None:
    done = run("info", smollm2_bundle, "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert "llama.cpp" in json.dumps(report)
    assert "llama.cpp" in run("info", smollm2_bundle).stdout


def test_info_says_why_a_forced_backend_will_not_do(smollm2_bundle: Path) -> None:
    done = run("info", smollm2_bundle, ELIZA_LLM_BACKEND="no-such")
    assert "no-such" in done.stdout + done.stderr


def test_bundle_makes_a_directory_that_generates(smollm2_gguf: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "a bundle, naïve 世界"
    assert run("bundle", smollm2_gguf, bundle).returncode == 0
    manifest = json.loads((bundle / "eliza-1.manifest.json").read_text())
    assert manifest["files"]["text"][0]["ctx"] == 8192
    assert "Paris" in run("generate", bundle, PROMPT, "--max-tokens", 8).stdout


def test_chat_answers_like_fresh_streams_over_the_whole_conversation(
    smollm2_bundle: Path, library: Library
) -> None:
    questions = ["Name three colours.", "Which of them is the sky?"]
    done = run("chat", smollm2_bundle, "--max-tokens", 24, text="\n".join([*questions, "/exit"]))
    assert done.returncode == 0, done.stderr
    answers = []
    with Context(smollm2_bundle, library) as context:
        conversation = Conversation(ChatTemplate.of_bundle(smollm2_bundle, context), context)
        for question in questions:
            tokens = conversation.ask(question)
            answers.append("".join(context.generate(tokens, max_tokens=24)))
            conversation.answered(answers[-1])
    assert done.stdout == "".join(f"{answer}\n" for answer in answers)


def test_chat_needs_a_template(chain_bundle: Path) -> None:
    done = run("chat", chain_bundle, text="hello\n")
    assert done.returncode == 1
    assert "chat template" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["generate", "/no/such/bundle", "x"], 1),
        (["generate"], 2),
        (["no-such-command"], 2),
        (["info", "/no/such/bundle"], 1),
        (["bundle", "/no/such/model.gguf", "/tmp/never"], 1),
    ],
)
def test_errors_are_one_line_and_a_status(arguments: list[str], status: int) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("eliza-ctypes")


def test_closed_standard_streams_are_no_error(chain_bundle: Path) -> None:
    command = f"{sys.executable} -m eliza_ctypes generate {chain_bundle} smile <&- >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_grammar_file_that_is_not_utf8_is_named(chain_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.gbnf").write_bytes(b'root ::= "\xe9"')
    done = run("generate", chain_bundle, "smile", "--grammar-file", tmp_path / "latin.gbnf")
    assert done.returncode == 2
    assert "latin.gbnf is not UTF-8" in done.stderr


@pytest.fixture
def endless(chain_bundle: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "eliza_ctypes", "generate", str(chain_bundle), "loop"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ELIZA_LLM_N_CTX": "1000000"},
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="no process interrupts another on Windows")
def test_an_interrupt_ends_generate_cleanly(endless: subprocess.Popen[str]) -> None:
    assert endless.stdout is not None
    assert endless.stdout.read(4)
    endless.send_signal(signal.SIGINT)
    _, errors = endless.communicate(timeout=30)
    assert endless.returncode == 130
    assert "Traceback" not in errors


def test_a_closed_pipe_ends_generate_quietly(chain_bundle: Path) -> None:
    command = f"{sys.executable} -m eliza_ctypes generate {chain_bundle} loop | head -c 20"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
