"""SmolLM2 through LiteRT-LM: the in-tree path's words, and the same tokens by every way to a text.

Making its bundle takes gigabytes of tools, so that only those who have it run these tests.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from eliza_ctypes import Context, Library, Stream

VARIABLE = "ELIZA_TEST_LITERT_SMOLLM2"

pytestmark = [
    pytest.mark.litert,
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get(VARIABLE),
        reason=f"needs SmolLM2 converted for LiteRT-LM: `scripts/bench litert` does it once and "
        f"says what to set {VARIABLE} to",
    ),
]

ANSWER = 16
STORY = " ".join(
    f"On day {day} the crew of the lighthouse counted {day * 7 % 31} ships, wrote down the wind "
    f"and {'slept' if day % 3 else 'repaired the lamp'} until the tide of the green sea turned."
    for day in range(1, 31)
)


@pytest.fixture(scope="module")
def smollm2(library: Library) -> Iterator[Context]:
    with Context(Path(os.environ[VARIABLE]), library) as context:
        yield context


@pytest.fixture(scope="module")
def in_tree(smollm2_bundle: Path, library: Library) -> Iterator[Context]:
    with Context(smollm2_bundle, library) as context:
        yield context


@pytest.fixture(scope="module")
def words(smollm2: Context) -> list[int]:
    return smollm2.tokenize(STORY, add_special=False)


def answer(stream: Stream) -> list[int]:
    return [token for step in stream for token in step.tokens]


def of_a_fresh_stream(context: Context, tokens: list[int]) -> list[int]:
    with context.open_stream(max_tokens=ANSWER) as stream:
        stream.prefill(tokens)
        return answer(stream)


def passage(words: list[int], chance: random.Random, longest: int) -> list[int]:
    """Some of the story, or noise, at which a model wavers between tokens."""
    length = chance.randrange(5, longest)
    if chance.random() < 0.5:
        return [chance.randrange(100, 49152) for _ in range(length)]
    start = chance.randrange(len(words) - length)
    return words[start : start + length]


def test_the_continuation_names_paris(smollm2: Context) -> None:
    assert "Paris" in "".join(smollm2.generate("The capital of France is", max_tokens=ANSWER))


@pytest.mark.parametrize("prompt", ["1, 2, 3,", "def fibonacci(n):\n"], ids=["digits", "code"])
def test_clear_continuations_are_those_of_the_in_tree_path(
    smollm2: Context, in_tree: Context, prompt: str
) -> None:
    tokens = smollm2.tokenize(prompt)
    assert tokens == in_tree.tokenize(prompt)
    assert of_a_fresh_stream(smollm2, tokens) == of_a_fresh_stream(in_tree, tokens)


@pytest.mark.parametrize("seed", range(6))
def test_a_prompt_in_parts_is_as_good_as_whole(
    smollm2: Context, words: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    prompt = passage(words, chance, 300)
    cuts = sorted(chance.sample(range(1, len(prompt)), 3))
    with smollm2.open_stream(max_tokens=ANSWER) as stream:
        for begin, end in zip([0, *cuts], [*cuts, len(prompt)]):
            stream.prefill(prompt[begin:end])
        assert answer(stream) == of_a_fresh_stream(smollm2, prompt)


@pytest.mark.parametrize("seed", range(3))
def test_turns_of_a_chat_are_those_of_fresh_streams(
    smollm2: Context, words: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    text: list[int] = []
    with smollm2.open_stream(max_tokens=ANSWER) as stream:
        for _ in range(4):
            question = passage(words, chance, 120)
            stream.prefill(question)
            text += question
            answered = answer(stream)
            assert answered == of_a_fresh_stream(smollm2, text)
            text += answered


@pytest.mark.parametrize("seed", range(6))
def test_going_back_is_as_good_as_a_fresh_stream(
    smollm2: Context, words: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    text = passage(words, chance, 300)
    with smollm2.open_stream(max_tokens=ANSWER) as stream:
        stream.prefill(text)
        text = text + answer(stream)
        for _ in range(3):
            kept = stream.reset_keep(chance.randrange(len(text)))
            # The old text once more, some of it or all, and then something else.
            again = text[kept : chance.randrange(kept, len(text) + 1)]
            text = text[:kept] + again + passage(words, chance, 60)
            stream.prefill(text[kept:])
            answered = answer(stream)
            assert answered == of_a_fresh_stream(smollm2, text)
            text += answered
