"""Every consumer's transcript equals Python's, on every build of the library.

`scripts/consumers` runs this, and says by environment variables which builds and which bundle.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable

import pytest

from lib.consumers import Consumer, Program, Unavailable
from lib.consumers.playing import CONSUMERS, REFERENCE, build, play

LIBRARIES = {
    name: Path(path) for name, path in json.loads(os.environ["ELIZA_TEST_LIBRARIES"]).items()
}
PLAIN = next(iter(LIBRARIES.values()))
# Those that must not be skipped.
REQUIRED = os.environ.get("ELIZA_REQUIRED_CONSUMERS", "").split()


MISUSING = tuple(consumer for consumer in CONSUMERS if not consumer.name.startswith("c-"))


def each(names: str, outcome: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), outcome)


STREAM_CALLS = "prefill next save_slot restore_slot reset reset_keep"
CONTEXT_CALLS = "tokenize detokenize transcribe open set_verifier"
TEXTS = "bundle prompt_cache_key mtp_drafter_path gbnf_grammar cache_type_k cache_type_v"
# What of the misuse can be written in which language, and what comes of it.
EVERYWHERE: dict[str, object] = {
    "nul": each(f"{TEXTS} save_slot restore_slot", "refused"),
    "whole_text": "a\N{REPLACEMENT CHARACTER}b",
}
WITH_SIGNS_AND_ALIASES: dict[str, object] = {
    **EVERYWHERE,
    "capacity": each("next_tokens next_text detokenize transcribe", "refused"),
    "busy": each(STREAM_CALLS, "busy"),
}
WITH_CLOSE: dict[str, object] = {
    **WITH_SIGNS_AND_ALIASES,
    "closed": each(STREAM_CALLS, "closed"),
    "closed_context": each(CONTEXT_CALLS, "closed"),
}
WITH_THREADS: dict[str, object] = {
    **WITH_CLOSE,
    "closing": "cancelled",
    "closing_context": "finished",
}
NULLS = each("bundle text ids pcm config tokens save_slot restore_slot", "refused")
JAVA: dict[str, object] = {
    **WITH_THREADS,
    "null": NULLS,
    "null_static": each("family folder name", "refused"),
    "no_family": "refused",
    "closed_inside": "refused",
}
BUN: dict[str, object] = {
    **WITH_CLOSE,
    "null": NULLS,
    "number": each(
        "max_tokens slot_id reset_keep tokens ids sample_rate next_tokens next_text", "refused"
    ),
    "type": each("bundle text gbnf_grammar temperature no_field tokens pcm save_slot", "refused"),
    "closed_inside": "closed",
    "pending": "accepted",
}
OUTCOMES = {
    "rust": EVERYWHERE,
    "swift": WITH_SIGNS_AND_ALIASES,
    "go": WITH_THREADS,
    "jni": JAVA,
    "java-ffm": JAVA,
    "node": {**BUN, "closing": "cancelled"},
    "bun": BUN,
    "deno": {**BUN, "closing": "cancelled"},
}


class Programs:
    """Builds every consumer once, with the first library."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[str, Program | Exception] = {}

    def __call__(self, consumer: Consumer) -> Program:
        """Skips the test where the consumer's world is not to be had here."""
        if consumer.name not in self._built:
            try:
                self._built[consumer.name] = build(consumer, PLAIN, self._folder / consumer.name)
            except Exception as problem:
                self._built[consumer.name] = problem
        built = self._built[consumer.name]
        if isinstance(built, Unavailable) and consumer.name not in REQUIRED:
            pytest.skip(f"{consumer.name} was not run: {built}")
        if isinstance(built, Exception):
            raise built
        return built


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def bundle() -> Path:
    """One that the relay of tests/consumers/relay would serve."""
    return Path(os.environ["ELIZA_TEST_CONSUMER_BUNDLE"])


@pytest.fixture(scope="session")
def reference(
    programs: Programs, bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Python's transcript with the first library."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    transcript: dict[str, Any] = play(programs(REFERENCE), PLAIN, bundle, folder)["transcript"]
    return transcript


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("consumer", (REFERENCE, *CONSUMERS), ids=lambda consumer: consumer.name)
def test_the_transcript_is_that_of_python_with_the_plain_library(
    consumer: Consumer,
    library: str,
    programs: Programs,
    reference: dict[str, Any],
    bundle: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    calls = tmp_path / "calls"
    played = play(
        programs(consumer),
        LIBRARIES[library],
        bundle,
        tmp_path / "run",
        ELIZA_TEST_RELAY_CALLS=str(calls),
    )
    for call in ("next", "prefill"):
        record_property(f"cancel_{call}_ms", played["cancel_ms"][call])
    transcript = played["transcript"]
    assert sorted(transcript) == sorted(reference)
    for key, value in reference.items():
        assert transcript[key] == value, key
    # The relay is in the way exactly where it was built in, and there in that of every method.
    assert calls.exists() == (library == "relay")
    if calls.exists():
        sessions = [json.loads(line) for line in calls.read_text().splitlines()]
        assert all(sum(counts[method] for counts in sessions) for method in sessions[0]), sessions


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("consumer", MISUSING, ids=lambda consumer: consumer.name)
def test_misuse_is_an_error_of_the_language_and_ends_no_process(
    consumer: Consumer, library: str, programs: Programs, bundle: Path, tmp_path: Path
) -> None:
    played = play(programs(consumer), LIBRARIES[library], bundle, tmp_path / "run", "misuse")
    assert sorted(played) == sorted(OUTCOMES[consumer.name])
    for key, value in OUTCOMES[consumer.name].items():
        assert played[key] == value, key


def test_the_reference_shows_what_the_scenario_is_about(reference: dict[str, Any]) -> None:
    """Equal transcripts prove nothing if they are empty."""
    first = reference["first"]["steps"]
    assert text_of(first).startswith(" Paris.") and len(first) == 16
    assert [step["code"] for step in first] == [0] * 15 + [1]
    assert reference["again"]["steps"] == reference["kept"]["steps"] == first
    assert reference["selected"]["steps"] == reference["keyed"][1]["steps"] == first
    for cut in ("cancel_next", "cancel_prefill", "outlived"):
        assert reference[cut]["steps"] == first[:4]
    split = reference["split"]["steps"]
    assert split[0]["tokens"] and split[0]["text"] == "" and "🙃" in text_of(split)
    assert text_of(reference["tiny"]["steps"]) == text_of(split)
    assert all(len(step["text"].encode()) < 5 for step in reference["tiny"]["steps"])
    assert reference["cramped"]["steps"][-1]["code"] == -2
    assert reference["cramped"]["then"]["text"] == "🙃"
    assert text_of(reference["sampled"]["steps"]) != text_of(first)
    assert text_of(reference["grammar"]["steps"]) in (" yes", " no")
    assert any(step["accepted"] == 4 for step in reference["drafted"]["steps"])
    assert any(event["rejected_from"] >= 0 for event in reference["drafted"]["events"])
    assert reference["cancel_next"]["code"] == reference["cancel_prefill"]["code"] == -7
    assert "bündle-🙂" in reference["bad_bundle"]["message"]


def text_of(steps: list[dict[str, Any]]) -> str:
    return "".join(step["text"] for step in steps)
