"""Drafts, slot files and the prompt cache of the real library, from Python."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eliza_ctypes import (
    Context,
    ElizaError,
    Generation,
    Library,
    LlmStreamConfig,
    Stream,
    VerifierEvent,
)

# SmolLM2 repeats it without an end, which is easy to draft.
PROMPT = "1, 2, 3, 1, 2, 3, 1, 2, 3,"
STORY = " ".join([PROMPT] * 12)
MORE = " and then"


@pytest.fixture(scope="module")
def smollm2(smollm2_bundle: Path, library: Library) -> Iterator[Context]:
    with Context(smollm2_bundle, library) as context:
        yield context


@pytest.fixture(scope="module")
def plain(smollm2: Context) -> list[int]:
    """What greedy decoding says after PROMPT."""
    generation = smollm2.generate(PROMPT, max_tokens=48)
    "".join(generation)
    return generation.tokens


def take(stream: Stream, count: int) -> list[int]:
    """The next tokens, ``count`` or more."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens += stream.next().tokens
    return tokens


# Speculation


def test_the_library_speculates(library: Library) -> None:
    assert library.llm_mtp_supported()


@pytest.mark.parametrize("draft", [1, 4, 16])
def test_drafts_of_the_sequence_itself_change_no_greedy_token(
    smollm2: Context, plain: list[int], draft: int
) -> None:
    generation = smollm2.generate(PROMPT, draft=draft, max_tokens=48)
    "".join(generation)
    stats = generation.stream.stats
    assert generation.tokens == plain
    assert stats.generated_tokens == 48
    assert 0 < stats.accepted <= stats.drafted
    assert stats.acceptance == stats.accepted / stats.drafted


def test_a_model_that_drafts_for_itself_is_mostly_accepted(
    smollm2: Context, smollm2_gguf: Path, plain: list[int]
) -> None:
    generation = smollm2.generate(PROMPT, draft=(smollm2_gguf, 4), max_tokens=48)
    "".join(generation)
    assert generation.tokens == plain
    acceptance = generation.stream.stats.acceptance
    assert acceptance is not None and acceptance > 0.8


def test_without_a_draft_nothing_is_drafted(smollm2: Context) -> None:
    generation = smollm2.generate(PROMPT, max_tokens=8)
    "".join(generation)
    assert generation.stream.stats[:3] == (0, 0, None)


def test_a_drafter_that_is_no_model_is_refused(smollm2: Context, tmp_path: Path) -> None:
    (tmp_path / "drafter.gguf").write_text("nothing of the kind")
    for path in (tmp_path / "drafter.gguf", tmp_path / "absent.gguf"):
        with pytest.raises(ElizaError, match=path.name):
            smollm2.open_stream(draft=path)


def test_drafts_obey_a_schema(smollm2: Context) -> None:
    schema = {"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 4, "maxItems": 6}
    text = "".join(smollm2.generate(PROMPT, draft=8, json_schema=schema, max_tokens=64))
    assert text == "".join(smollm2.generate(PROMPT, json_schema=schema, max_tokens=64))
    assert 4 <= len(json.loads(text)) <= 6


def test_the_verifier_callback_sees_what_the_stats_count(
    smollm2_bundle: Path, library: Library
) -> None:
    events: list[VerifierEvent] = []
    with Context(smollm2_bundle, library) as context:
        context.set_verifier_callback(events.append)
        generation = context.generate(PROMPT, draft=4, max_tokens=32)
        "".join(generation)
        context.set_verifier_callback(None)
    stats = generation.stream.stats
    assert sum(len(event.accepted_token_ids) for event in events) == stats.accepted
    for event in events:
        assert (event.rejected_from == -1) == (event.rejected_to == -1)


def test_a_callback_that_raises_loses_no_token(
    smollm2_bundle: Path, library: Library, plain: list[int]
) -> None:
    def callback(_event: VerifierEvent) -> None:
        raise KeyError("mine")

    tokens: list[int] = []
    raised = 0
    with Context(smollm2_bundle, library) as context:
        context.set_verifier_callback(callback)
        with context.open_stream(draft=4, max_tokens=48) as stream:
            stream.prefill(context.tokenize(PROMPT))
            done = False
            while not done:
                try:
                    step = stream.next()
                except KeyError:
                    raised += 1
                    continue
                tokens += step.tokens
                done = step.done
        context.set_verifier_callback(None)
    assert raised > 0
    assert tokens == plain


# Slot files


@pytest.mark.parametrize("steps", [0, 1, 20])
@pytest.mark.parametrize("kv_type", [None, "q8_0"])
def test_a_restored_stream_goes_on_like_the_one_that_was_saved(
    smollm2: Context, tmp_path: Path, steps: int, kv_type: str | None
) -> None:
    config = LlmStreamConfig(cache_type_k=kv_type, cache_type_v=kv_type)
    prompt = smollm2.tokenize(PROMPT)
    more = smollm2.tokenize(MORE, add_special=False)
    with smollm2.open_stream(config) as stream:
        stream.prefill(prompt)
        generated = take(stream, steps)
        stream.save(tmp_path / "slot")
        plain = take(stream, 8)
    with smollm2.open_stream(config) as other:
        assert other.restore(tmp_path / "slot") == prompt + generated
        assert take(other, 8) == plain
        # The file may be taken again and again, also by a stream that holds something else.
        other.restore(tmp_path / "slot")
        other.prefill(more)
        assert other.stats.prompt_tokens == len(prompt) + len(generated) + len(more)
        assert other.stats.prompt_tokens_reused == len(prompt) + len(generated)
        continued = take(other, 8)
    with smollm2.open_stream(config) as again:
        again.restore(tmp_path / "slot")
        again.prefill(more)
        assert take(again, 8) == continued


def test_going_back_in_a_restored_stream_is_exact(smollm2: Context, tmp_path: Path) -> None:
    prompt = smollm2.tokenize(STORY)
    cut = len(prompt) - 40
    with smollm2.open_stream() as stream:
        stream.prefill(prompt)
        take(stream, 4)
        stream.save(tmp_path / "slot")
    with smollm2.open_stream(max_tokens=16) as other, smollm2.open_stream(max_tokens=16) as fresh:
        other.restore(tmp_path / "slot")
        kept = other.reset_keep(cut - 1)
        assert 0 < kept < cut
        other.prefill(prompt[kept:cut])
        fresh.prefill(prompt[:cut])
        assert take(other, 16) == take(fresh, 16)


@pytest.mark.parametrize("place", [0, 9, 30, 44, 81, -1])
def test_a_damaged_slot_file_is_refused_and_the_stream_stays_usable(
    smollm2: Context, tmp_path: Path, plain: list[int], place: int
) -> None:
    prompt = smollm2.tokenize(PROMPT)
    with smollm2.open_stream(max_tokens=48) as stream:
        stream.prefill(prompt)
        stream.save(tmp_path / "slot")
        content = bytearray((tmp_path / "slot").read_bytes())
        content[place] ^= 0x5A
        (tmp_path / "slot").write_bytes(content)
        with pytest.raises(ElizaError):
            stream.restore(tmp_path / "slot")
        stream.reset()
        stream.prefill(prompt)
        assert take(stream, 48) == plain


@pytest.mark.parametrize("size", [0, 40, 100, -1])
def test_a_slot_file_that_is_cut_off_is_refused(
    smollm2: Context, tmp_path: Path, size: int
) -> None:
    with smollm2.open_stream() as stream:
        stream.prefill(smollm2.tokenize(PROMPT))
        stream.save(tmp_path / "slot")
        content = (tmp_path / "slot").read_bytes()
        (tmp_path / "slot").write_bytes(content[:size])
        with pytest.raises(ElizaError):
            stream.restore(tmp_path / "slot")


def test_a_slot_of_another_model_and_no_file_are_refused(
    smollm2: Context, tiny_bpe_bundle: Path, library: Library, tmp_path: Path
) -> None:
    with Context(tiny_bpe_bundle, library) as tiny, tiny.open_stream() as stream:
        stream.prefill([20, 21])
        stream.save(tmp_path / "slot")
    with smollm2.open_stream() as stream:
        for path in (tmp_path / "slot", tmp_path / "absent", tmp_path):
            with pytest.raises(ElizaError):
                stream.restore(path)
        with pytest.raises(ElizaError):
            stream.save(tmp_path / "absent" / "slot")


# The prompt cache


def test_a_cache_key_changes_the_speed_only(smollm2: Context, plain: list[int]) -> None:
    for _ in range(3):
        generation = smollm2.generate(PROMPT, cache_key="a key", max_tokens=48)
        "".join(generation)
        assert generation.tokens == plain
        assert generation.stream.stats.prompt_tokens_reused is None


def test_streams_of_one_key_may_run_at_once(
    smollm2: Context, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELIZA_LLM_THREADS", "1")
    found: list[list[int]] = []

    def generate() -> None:
        generation = smollm2.generate(PROMPT, cache_key="shared", max_tokens=48)
        "".join(generation)
        found.append(generation.tokens)

    threads = [threading.Thread(target=generate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [plain, plain]


@pytest.mark.parametrize(
    "key", ["k" * 1_000_000, "a\nb", "", "\x7f"], ids=["long", "line end", "empty", "DEL"]
)
def test_a_key_that_is_no_key_is_refused(smollm2: Context, key: str) -> None:
    with pytest.raises(ElizaError, match="prompt_cache_key"):
        smollm2.open_stream(cache_key=key)


# Control tokens


def test_control_tokens_are_no_text_under_a_grammar(
    tiny_bpe_bundle: Path, library: Library
) -> None:
    """Such a token's name, as in ``</think>``, is not what it adds to the text: nothing."""
    with Context(tiny_bpe_bundle, library) as context:
        schema = {"type": "string", "minLength": 60, "maxLength": 60}
        with context.open_stream(json_schema=schema, temperature=2.0) as stream:
            for number in range(24):
                stream.reset()
                text = "".join(Generation(stream, [20 + number]))
                assert len(json.loads(text)) == 60
        for name in ("<s>", "</think>"):
            assert "".join(context.generate([20], json_schema={"const": name})) == f'"{name}"'


# The command line


def generate(bundle: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eliza_ctypes", "generate", bundle, *arguments]
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120
    )


def test_generate_goes_on_from_a_slot_file(smollm2_bundle: Path, tmp_path: Path) -> None:
    slot = tmp_path / "slot"
    fresh = generate(smollm2_bundle, STORY + MORE, "--max-tokens", 12)
    saved = generate(smollm2_bundle, STORY, "--max-tokens", 4, "--save-slot", slot)
    assert (saved.returncode, saved.stderr) == (0, "")
    restored = generate(
        smollm2_bundle, STORY + MORE, "--max-tokens", 12, "--restore-slot", slot, "--stats"
    )
    assert restored.stdout == fresh.stdout
    assert "reused)" in restored.stderr
    stopped = generate(smollm2_bundle, STORY, "--stop", "2", "--save-slot", slot)
    assert (stopped.returncode, stopped.stderr) == (0, "")


def test_generate_drafts(smollm2_bundle: Path) -> None:
    plain = generate(smollm2_bundle, PROMPT, "--max-tokens", 24)
    drafted = generate(smollm2_bundle, PROMPT, "--max-tokens", 24, "--draft", 8, "--stats")
    assert drafted.stdout == plain.stdout != ""
    assert "drafts accepted" in drafted.stderr
