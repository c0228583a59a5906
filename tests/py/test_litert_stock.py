"""LiteRT-LM files as they are published: what cannot be exact is refused or counted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from eliza_ctypes import Context, ElizaError, InvalidArgument, Library

if sys.version_info < (3, 10):
    pytest.skip("litert-lm-builder needs Python 3.10", allow_module_level=True)

from eliza_ctypes.litert.add import add_litert
from litert_files import TINY, with_description

pytestmark = pytest.mark.litert

ABCD = [69, 278, 273, 279]
START = 1


@pytest.fixture(autouse=True)
def litert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELIZA_LITERT_LM_LIBRARY", os.environ["ELIZA_TEST_LITERT_LIBRARY"])
    monkeypatch.setenv("ELIZA_LLM_BACKEND", "litert-lm")


@pytest.fixture
def context_of(tmp_path: Path, library: Library) -> Callable[[Callable[[Any], None]], Context]:
    """A context of the tiny model with another description."""

    def make(change: Callable[[Any], None]) -> Context:
        (tmp_path / "text").mkdir()
        with_description(tmp_path / "text" / "model.litertlm", change)
        return Context(tmp_path, library)

    return make


def answer(context: Context, prompt: list[int]) -> list[int]:
    with context.open_stream() as stream:
        stream.prefill(prompt)
        return [token for step in stream for token in step.tokens]


def test_the_start_token_is_not_read_twice(context_of: Any) -> None:
    with context_of(lambda described: described.start_token.token_ids.ids.append(START)) as context:
        assert context.tokenize("a b c d") == [START, *ABCD]
        assert answer(context, [START, *ABCD]) == answer(context, ABCD)
        with context.open_stream() as stream:
            with pytest.raises(InvalidArgument, match="start token alone"):
                stream.prefill([START])
            stream.prefill([START, *ABCD])
            assert next(iter(stream)).tokens


@pytest.mark.parametrize("start", [[21, 264], [99_999]])
def test_a_start_token_that_is_not_one_token_is_refused(context_of: Any, start: list[int]) -> None:
    def change(described: Any) -> None:
        described.start_token.token_ids.ids.extend(start)

    with context_of(change) as context, pytest.raises(ElizaError, match=r"start token.*add-litert"):
        context.open_stream()


def test_a_stop_sequence_of_several_tokens_is_refused(context_of: Any) -> None:
    def change(described: Any) -> None:
        described.stop_tokens.add().token_ids.ids.extend([262, 300])

    with (
        context_of(change) as context,
        pytest.raises(ElizaError, match="several tokens"),
    ):
        context.open_stream()


@pytest.mark.parametrize("claimed", [100_000, -5, 0])
def test_the_context_is_that_of_the_models_cache(context_of: Any, claimed: int) -> None:
    def change(described: Any) -> None:
        described.max_num_tokens = claimed

    with context_of(change) as context, context.open_stream() as stream:
        with pytest.raises(InvalidArgument, match="of 256 positions"):
            stream.prefill([69] * 257)
        stream.prefill([69] * 250)
        assert len([token for step in stream for token in step.tokens]) <= 6


def test_exact_ids_with_a_start_token_are_refused(tmp_path: Path, library: Library) -> None:
    (tmp_path / "text").mkdir()
    exact = add_litert(TINY, tmp_path / "exact", library, verify_by_generating=False).model

    def change(described: Any) -> None:
        described.start_token.token_ids.ids.append(START)

    with_description(tmp_path / "text" / "model.litertlm", change, exact)
    with (
        Context(tmp_path, library) as context,
        pytest.raises(ElizaError, match="a start token"),
    ):
        context.open_stream()
