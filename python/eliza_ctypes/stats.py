"""What one generation cost: counts and times, taken where the calls pass by."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .library import LlmStreamStep


class StreamStats(NamedTuple):
    """The current generation of a stream, or the last one until the next begins.

    One begins with the first prefill after open, a final step, a reset, or a restore.
    """

    drafted: int
    """Tokens that a drafter proposed."""
    accepted: int
    """Those of them that the model agreed with."""
    acceptance: float | None
    """Their share, 0 to 1; None where none were drafted."""
    prompt_tokens: int
    """Length of the sequence that is continued, in tokens, however it got there."""
    prompt_tokens_reused: int | None
    """Those of them that were there before the caller's prefill: kept, restored, or left from the
    generation before. None for a stream with a prompt cache: the library reuses what it can then,
    and does not tell."""
    generated_tokens: int
    """Tokens delivered so far."""
    time_to_first_token: float | None
    """Seconds from the start of the first prefill to the first token; None before."""
    tokens_per_second: float | None
    """Of the tokens after the first step that brought any, the caller's own time between the steps
    included; None before there are some."""


class StreamMeter:
    """Counts what passes through one stream, all of it on the thread that uses the stream."""

    def __init__(self, reuse_is_known: bool) -> None:
        self._reuse_is_known = reuse_is_known
        self._length = 0
        self.begin(0)

    def begin(self, length: int) -> None:
        """The stream holds ``length`` tokens, and nothing else is counted yet."""
        self._length = self._reused = self._prompt = length
        self._generated = self._in_first_step = self._drafted = self._accepted = 0
        self._started: float | None = None
        self._first = self._last = 0.0
        self._final = False

    def prefilled(self, count: int, started: float) -> None:
        """``count`` tokens were added by a call that began at ``started``."""
        if self._final:
            self.begin(self._length)
        if self._started is None:
            self._started = started
        self._length += count
        self._prompt += count

    def stepped(self, step: LlmStreamStep) -> None:
        """A step came back from the library."""
        count = len(step.tokens)
        if count:
            self._last = time.perf_counter()
            if not self._generated:
                self._first, self._in_first_step = self._last, count
            self._generated += count
            self._length += count
        self._drafted += step.drafter_drafted
        self._accepted += step.drafter_accepted
        self._final = step.done

    def stats(self) -> StreamStats:
        """What was counted."""
        later = self._generated - self._in_first_step
        seconds = self._last - self._first
        first = None
        if self._generated and self._started is not None:
            first = self._first - self._started
        return StreamStats(
            self._drafted,
            self._accepted,
            self._accepted / self._drafted if self._drafted else None,
            self._prompt,
            self._reused if self._reuse_is_known else None,
            self._generated,
            first,
            later / seconds if later and seconds > 0 else None,
        )
