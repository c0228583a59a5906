"""``eliza-ctypes batch``: results in order, lines that fail, runs that were interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

import eliza_ctypes
from eliza_ctypes import Context, Library
from eliza_ctypes.batch import Result, Worker, run
from eliza_ctypes.gguf import read_metadata

SMILE = " 😀 and wave 👋 to the 世界."
COMMAND = [sys.executable, "-m", "eliza_ctypes", "batch"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(eliza_ctypes.__file__).parents[1])}


def batch(
    *arguments: object, stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        timeout=120,
    )


def written(*lines: Any) -> bytes:
    """Lines of JSON; bytes are taken as they are."""
    return b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )


def results(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(written(*({"id": n, "prompt": "smile", "max_tokens": n} for n in range(12))))
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_results_are_written_in_order(chain_bundle: Path, prompts: Path, output: Path) -> None:
    for jobs in (1, 3):
        output.unlink(missing_ok=True)
        done = batch(chain_bundle, prompts, "-o", output, "-j", jobs)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        found = results(output.read_bytes())
        assert [result["index"] for result in found] == list(range(12))
        assert [result["id"] for result in found] == list(range(12))
        # max_tokens 0 is no cap.
        assert [result["tokens"] for result in found] == [22, *range(1, 12)]
        assert [result["finish"] for result in found] == ["stop"] + ["length"] * 11
        assert found[0]["text"] == SMILE
        assert list(found[0]) == ["index", "id", "input", "text", "tokens", "finish"]


def test_a_line_may_say_how_it_is_answered(chain_bundle: Path) -> None:
    lines = written(
        {"prompt": "smile", "stop": "wave"},
        {"prompt": "smile", "stop": ["😀"]},
        {"prompt": "smile", "max_tokens": 3},
        {"prompt": "smile", "json_schema": {"enum": ["yes", "no"]}, "temperature": 1.0},
        {"prompt": "smile"},
    )
    done = batch(chain_bundle, stdin=lines, ELIZA_LLM_SEED="1")
    assert done.returncode == 0, done.stderr
    found = results(done.stdout)
    assert [result["text"] for result in found[:2]] == [" 😀 and ", " "]
    assert [result["finish"] for result in found[:3]] == ["stop", "stop", "length"]
    assert found[3]["text"] in ('"yes"', '"no"')
    assert found[4]["text"] == SMILE


def test_a_kept_stream_answers_like_generate(smollm2_bundle: Path, library: Library) -> None:
    story = "The lighthouse keeper wrote down every ship that passed. " * 8
    prompts = [story + end for end in ("On Monday", "On Tuesday", "The")] + ["A fresh start"]
    lines = written(*({"prompt": prompt} for prompt in prompts))
    done = batch(smollm2_bundle, "--max-tokens", 12, "-j", 1, "--stats", stdin=lines)
    found = results(done.stdout)
    with Context(smollm2_bundle, library) as context:
        alone = ["".join(context.generate(prompt, max_tokens=12)) for prompt in prompts]
    assert [result["text"] for result in found] == alone
    assert found[1]["stats"]["prompt_tokens_reused"] > 0
    assert found[1]["stats"]["generated_tokens"] == 12


def test_messages_are_written_by_the_chat_template(tiny_bpe_bundle: Path) -> None:
    messages = [{"role": "user", "content": "the fox"}]
    template = read_metadata(next((tiny_bpe_bundle / "text").iterdir())).values
    assert "tokenizer.chat_template" in template
    lines = written({"messages": messages}, {"prompt": "the fox"})
    done = batch(tiny_bpe_bundle, "--max-tokens", 4, "--stats", stdin=lines)
    chat, plain = (result["stats"]["prompt_tokens"] for result in results(done.stdout))
    assert chat > plain


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "smile"', "the line is not JSON"),
        (b"[" * 100_000, "the line is not JSON"),
        (b'{"prompt": "\xff"}', "the line is not UTF-8"),
        (b'{"prompt": "smile", "temperature": NaN}', "NaN is no number"),
        (b'"smile"', "the line must be a JSON object"),
        ({"prompt": "smile", "seed": 1}, "the field 'seed' is not known"),
        ({"id": 1}, "a line takes either prompt or messages"),
        ({"prompt": "smile", "messages": []}, "a line takes either prompt or messages"),
        ({"prompt": 3}, "prompt must be a string"),
        ({"prompt": "\ud800"}, "text cannot be written as UTF-8"),
        ({"prompt": "loop " * 400}, "do not fit"),
        ({"prompt": "smile", "max_tokens": True}, "max_tokens must be a whole number"),
        ({"prompt": "smile", "max_tokens": 2**40}, "max_tokens is 1099511627776"),
        ({"prompt": "smile", "temperature": "hot"}, "temperature must be a number"),
        ({"prompt": "smile", "stop": [1]}, "stop must be a list of strings"),
        ({"prompt": "smile", "stop": [""]}, "stop takes a sequence of strings"),
        ({"prompt": "smile", "json_schema": {"pattern": "a"}}, "the keyword pattern"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user"}]}, "a message's content must be a string"),
        ({"messages": [{"role": "user", "content": "x"}]}, "carries no chat template"),
    ],
)
def test_a_line_that_cannot_be_answered_loses_no_other(
    chain_bundle: Path, line: Any, message: str
) -> None:
    good = {"prompt": "smile"}
    done = batch(chain_bundle, stdin=written(good, line, good), ELIZA_LLM_N_CTX="256")
    first, failed, last = results(done.stdout)
    assert first["text"] == last["text"] == SMILE
    assert message in failed["error"]
    assert failed["index"] == 1 and "text" not in failed
    assert done.returncode == 1
    assert done.stderr.decode().startswith("eliza-ctypes: error: 1 of 3 lines failed")


def test_a_full_context_is_the_length_and_an_end_is_a_stop(chain_bundle: Path) -> None:
    lines = written({"prompt": "loop", "max_tokens": 0}, {"prompt": "smile"})
    done = batch(chain_bundle, stdin=lines, ELIZA_LLM_N_CTX="64")
    assert [result["finish"] for result in results(done.stdout)] == ["length", "stop"]


def test_ids_are_handed_through_whatever_they_are(chain_bundle: Path) -> None:
    ids = [None, 1.5, "ü", {"a": [1]}, "\ud800"]
    lines = written(*({"id": value, "prompt": "smile", "max_tokens": 1} for value in ids))
    assert [result["id"] for result in results(batch(chain_bundle, stdin=lines).stdout)] == ids


def test_blank_lines_count_for_nothing(chain_bundle: Path) -> None:
    line = written({"prompt": "smile"})
    done = batch(chain_bundle, "-", stdin=b"\n\r\n" + line + b"  \n" + line[:-1])
    assert [result["index"] for result in results(done.stdout)] == [0, 1]
    assert batch(chain_bundle, stdin=b"").stdout == b""


# Interrupted runs


@pytest.fixture
def whole(chain_bundle: Path, prompts: Path, output: Path) -> bytes:
    """The output of a run that was not interrupted."""
    assert batch(chain_bundle, prompts, "-o", output).returncode == 0
    return output.read_bytes()


@pytest.mark.parametrize("size", [0, 10, 200, 700, -1, None])
def test_a_run_goes_on_where_the_output_ends(
    chain_bundle: Path, prompts: Path, output: Path, whole: bytes, size: int | None
) -> None:
    output.write_bytes(whole[:size])
    kept = output.stat().st_ino
    assert batch(chain_bundle, prompts, "-o", output).returncode == 0
    assert output.read_bytes() == whole
    assert output.stat().st_ino == kept


def test_what_is_answered_is_not_answered_again(
    chain_bundle: Path, prompts: Path, output: Path, whole: bytes
) -> None:
    answered = whole.replace("😀".encode(), b":-)")
    output.write_bytes(answered)
    prompts.write_bytes(prompts.read_bytes() + written({"prompt": "smile"}))
    assert batch(chain_bundle, prompts, "-o", output).returncode == 0
    assert output.read_bytes().startswith(answered)
    assert results(output.read_bytes())[-1]["text"] == SMILE


def test_lines_that_failed_before_still_make_the_status_1(
    chain_bundle: Path, prompts: Path, output: Path
) -> None:
    prompts.write_bytes(written({"prompt": 1}, {"prompt": "smile"}))
    first = batch(chain_bundle, prompts, "-o", output)
    again = batch(chain_bundle, prompts, "-o", output)
    assert first.returncode == again.returncode == 1
    assert again.stderr == first.stderr


@pytest.mark.parametrize(
    "change",
    [
        lambda prompts, _: prompts.write_bytes(prompts.read_bytes().replace(b"smile", b"broken")),
        lambda prompts, _: prompts.write_bytes(prompts.read_bytes()[:100]),
        lambda _, output: output.write_bytes(b'{"index": 0}\n'),
        lambda _, output: output.write_bytes(b"something else\n"),
        lambda _, output: output.write_bytes(b"".join(output.read_bytes().splitlines(True)[1:])),
    ],
    ids=["other prompts", "fewer prompts", "no results", "no JSON", "a part"],
)
def test_an_output_of_something_else_is_refused_and_left_alone(
    chain_bundle: Path,
    prompts: Path,
    output: Path,
    whole: bytes,
    change: Callable[[Path, Path], object],
) -> None:
    change(prompts, output)
    before = output.read_bytes()
    done = batch(chain_bundle, prompts, "-o", output)
    assert done.returncode == 2
    assert b"name another output" in done.stderr
    assert output.read_bytes() == before


@pytest.mark.parametrize("options", [["--max-tokens", "5"], ["--seed", "1"], ["--stop", "x"]])
def test_an_output_of_other_settings_is_refused(
    chain_bundle: Path, prompts: Path, output: Path, whole: bytes, options: list[str]
) -> None:
    done = batch(chain_bundle, prompts, "-o", output, *options)
    assert done.returncode == 2
    assert b"of other settings" in done.stderr


@pytest.fixture
def endless(chain_bundle: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run that answers one line and is then inside two that never end."""
    process = subprocess.Popen(
        [*COMMAND, str(chain_bundle), "-o", str(output), "-j", "2", "--max-tokens", "0"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "ELIZA_LLM_N_CTX": "1000000"},
    )
    assert process.stdin is not None
    lines = [{"prompt": "smile"}, {"prompt": "loop"}, {"prompt": "smile"}, {"prompt": "loop"}]
    process.stdin.write(written(*lines))
    process.stdin.flush()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="no process interrupts another on Windows")
def test_an_interrupt_leaves_what_is_complete_and_in_order(
    endless: subprocess.Popen[bytes], output: Path
) -> None:
    # Nothing tells from outside that the line after the first has begun; the first is enough.
    while not output.exists() or not output.read_bytes().endswith(b"\n"):
        assert endless.poll() is None
    endless.send_signal(signal.SIGINT)
    _, errors = endless.communicate(timeout=60)
    assert (endless.returncode, errors) == (130, b"")
    assert [result["index"] for result in results(output.read_bytes())] == [0]


def test_a_reader_that_goes_away_is_no_error(chain_bundle: Path, prompts: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, str(chain_bundle), str(prompts)],
        env=ENVIRONMENT,
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


# Wrong usage


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["-j", "0"], 2, "-j takes 1 or more streams"),
        (["absent.jsonl"], 1, "absent.jsonl: No such file"),
        (["-o", "absent/out.jsonl"], 1, "absent/out.jsonl: No such file"),
        (["-o", "."], 1, "Is a directory"),
        (["-o", ""], 2, "a path is empty"),
        (["prompts.jsonl", "-o", "prompts.jsonl"], 2, "is the input as well"),
        (["--grammar", "nonsense"], 1, "gbnf_grammar"),
    ],
)
def test_what_fails_for_every_line_fails_once(
    chain_bundle: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(prompts.parent)
    before = prompts.read_bytes()
    done = batch(chain_bundle, *arguments, stdin=written({"prompt": "smile"}))
    assert done.returncode == status
    assert done.stdout == b""
    assert done.stderr.decode().startswith("eliza-ctypes: error: ")
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert prompts.read_bytes() == before


# The order of results, without a model


class _Worker(Worker):
    """Answers with the line itself, line 0 only when told."""

    def __init__(self, go: threading.Event, seen: list[bytes]) -> None:
        self.go = go
        self.seen = seen

    def answer(self, index: int, line: bytes) -> Result:
        self.seen.append(line)
        if index == 0:
            self.go.wait()
        return {"index": index, "text": line}

    def cancel(self) -> None:
        self.go.set()


def test_few_lines_are_read_ahead_of_a_slow_one() -> None:
    go, seen, taken, wrote = threading.Event(), list[bytes](), list[int](), list[int]()

    def lines() -> Iterator[bytes]:
        for number in range(100):
            taken.append(number)
            if len(taken) == 8:
                assert wrote == []
                go.set()
            yield b"x"

    run([_Worker(go, seen) for _ in range(2)], lines(), lambda r: wrote.append(r["index"]))
    assert wrote == list(range(100))


@pytest.mark.parametrize("broken", ["lines", "write"])
def test_an_error_of_the_input_or_the_output_ends_the_run(broken: str) -> None:
    go, seen, wrote = threading.Event(), list[bytes](), list[int]()
    go.set()

    def lines() -> Iterator[bytes]:
        for _ in range(50):
            yield b"x"
        if broken == "lines":
            raise OSError("unreadable")

    def write(result: Result) -> None:
        if broken == "write" and result["index"] == 20:
            raise OSError("full")
        wrote.append(result["index"])

    with pytest.raises(OSError, match="unreadable" if broken == "lines" else "full"):
        run([_Worker(go, seen) for _ in range(3)], lines(), write)
    assert wrote == list(range(len(wrote)))
    assert broken == "lines" or wrote == list(range(20))
