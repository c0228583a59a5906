"""A stream that closes itself, and the text of one generation."""

from __future__ import annotations

import time
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncGenerator,
    Generator,
    Iterable,
    Iterator,
    Sequence,
    TypeVar,
)

from .config import LlmStreamConfig
from .errors import InvalidArgument
from .handle import HandleOwner
from .library import Library, LlmStreamHandle, LlmStreamStep, TokenSequence
from .loader import PathArgument
from .slot import slot_tokens
from .stats import StreamMeter, StreamStats

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_Item = TypeVar("_Item")


class Stream(HandleOwner):
    """One sequence of tokens on a model. ``Context.open_stream`` makes it.

    Iterating, with ``for`` or ``async for``, yields steps up to the final one; leaving the loop
    before that cancels the stream. One thread at a time uses a stream, :meth:`cancel` and
    :meth:`close` aside; others wait. Everything raises ClosedHandle after :meth:`close`.
    """

    _handle: LlmStreamHandle

    def __init__(
        self, library: Library, handle: LlmStreamHandle, config: LlmStreamConfig | None = None
    ) -> None:
        super().__init__(handle)
        self.config = config or LlmStreamConfig()
        self._library = library
        self._meter = StreamMeter(self.config.slot_id < 0 and self.config.prompt_cache_key is None)
        self._executor: ThreadPoolExecutor | None = None

    def prefill(self, tokens: TokenSequence) -> None:
        """Appends tokens; after a final step this opens the next generation.

        Raises InvalidArgument (unknown id, does not fit the context; the stream stays usable),
        Cancelled.
        """
        started = time.perf_counter()
        self._library.llm_stream_prefill(self._handle, tokens)
        self._meter.prefilled(len(tokens), started)

    def next(self, tokens_cap: int = 256, text_cap: int = 8192) -> LlmStreamStep:
        """One model step: one token, or one accepted draft. Raises Cancelled, FfiFault.

        ``tokens_cap`` and ``text_cap`` (bytes) bound what one step brings; nothing is lost. What a
        verifier callback raises is raised here; the step comes with the following call.
        """
        step = self._library.llm_stream_next(self._handle, tokens_cap, text_cap)
        self._meter.stepped(step)
        return step

    @property
    def stats(self) -> StreamStats:
        """Counts and times of the current generation, also after :meth:`close`."""
        return self._meter.stats()

    def cancel(self) -> None:
        """Ends a running prefill or step, from any thread, without waiting.

        The stream answers Cancelled until a reset. A closed stream is left alone.
        """
        self._library.llm_stream_cancel(self._handle)

    def reset(self) -> None:
        """Starts over on the warm stream."""
        self._library.llm_stream_reset(self._handle)
        self._meter.begin(0)

    def reset_keep(self, n_keep: int) -> int:
        """Goes back to the first ``n_keep`` tokens, or fewer; returns how many were kept."""
        kept = self._library.llm_stream_reset_keep(self._handle, n_keep)
        self._meter.begin(kept)
        return kept

    def save(self, path: PathArgument) -> None:
        """Writes the stream's tokens and state to a file. Raises ElizaError."""
        self._library.llm_stream_save_slot(self._handle, path)

    def restore(self, path: PathArgument) -> list[int]:
        """Takes a state that :meth:`save` wrote; returns the tokens that the stream now holds.

        A prompt that begins with them needs a prefill of the rest only. Raises ElizaError where the
        library refuses the file (the stream's state is then as the message says), OSError.
        """
        self._library.llm_stream_restore_slot(self._handle, path)
        tokens = slot_tokens(path)
        self._meter.begin(len(tokens))
        return tokens

    def __iter__(self) -> Iterator[LlmStreamStep]:
        done = False
        try:
            while not done:
                step = self.next()
                done = step.done
                yield step
        except GeneratorExit:
            if not done:
                self.cancel()
            raise

    async def aprefill(self, tokens: TokenSequence) -> None:
        """:meth:`prefill` on the stream's own thread; cancelling the task cancels the stream."""
        import asyncio

        work = asyncio.get_running_loop().run_in_executor(self._worker(), self.prefill, tokens)
        try:
            await work
        except asyncio.CancelledError:
            self.cancel()
            raise

    def __aiter__(self) -> AsyncGenerator[LlmStreamStep, None]:
        return self.iterate_in_thread(iter(self))

    async def iterate_in_thread(self, iterator: Iterator[_Item]) -> AsyncGenerator[_Item, None]:
        """Iterates over ``iterator``, which uses this stream, on the stream's own thread."""
        import asyncio

        loop, worker, end = asyncio.get_running_loop(), self._worker(), object()
        try:
            while True:
                item: Any = await loop.run_in_executor(worker, next, iterator, end)
                if item is end:
                    return
                yield item
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            # Queued behind a step that may still run, which the cancel above ends. Closing an
            # unfinished iterator cancels by itself.
            await loop.run_in_executor(worker, _close_iterator, iterator)

    def _worker(self) -> ThreadPoolExecutor:
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            # Its thread ends with the stream object. Shutting it down in close() would refuse what
            # an async loop over this stream still has to run on it.
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="eliza-stream")
        return self._executor


class Generation:
    """The text of one generation, piece by piece, with ``for`` or ``async for``.

    Leaving the loop early cancels the stream. ``close_stream`` hands the stream over: it is closed
    at the end, or when the generation is forgotten. A ``stop`` string ends the text before it.
    """

    def __init__(
        self,
        stream: Stream,
        prompt: TokenSequence,
        stop: Sequence[str] = (),
        close_stream: bool = False,
    ) -> None:
        if isinstance(stop, str) or not all(stop):
            raise InvalidArgument.because("stop takes a sequence of strings that are not empty")
        self.stream = stream
        self.prompt = prompt
        self.steps: list[LlmStreamStep] = []
        """Every step so far."""
        # The generator must not refer to this object: forgotten ones could not end at once.
        self._pieces = _text_pieces(stream, prompt, tuple(stop), self.steps, close_stream)
        self._close_stream = close_stream

    @property
    def tokens(self) -> list[int]:
        """Every generated token so far, those of held-back text included."""
        return [token for step in self.steps for token in step.tokens]

    def cancel(self) -> None:
        """Ends the generation from any thread; the loop over it raises Cancelled."""
        self.stream.cancel()

    def close(self) -> None:
        """Ends the generation, from the thread that iterates."""
        self._pieces.close()
        if self._close_stream:
            self.stream.close()

    def __iter__(self) -> Generator[str, None, None]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def __aiter__(self) -> AsyncGenerator[str, None]:
        return self.stream.iterate_in_thread(self._pieces)


def _text_pieces(
    stream: Stream,
    prompt: TokenSequence,
    stop: tuple[str, ...],
    steps: list[LlmStreamStep],
    close_stream: bool,
) -> Generator[str, None, None]:
    try:
        stream.prefill(prompt)
        yield from _until_stop(_recorded(iter(stream), steps), stop)
    finally:
        if close_stream:
            stream.close()


def _recorded(stream: Iterator[LlmStreamStep], steps: list[LlmStreamStep]) -> Iterator[str]:
    for step in stream:
        steps.append(step)
        if step.text:
            yield step.text


def _until_stop(texts: Iterable[str], stop: tuple[str, ...]) -> Iterator[str]:
    """The texts up to the first stop string, which itself is left out.

    What may be the beginning of a stop string is held back until it is decided.
    """
    pending = ""
    for text in texts:
        pending += text
        found = [index for index in (pending.find(word) for word in stop) if index >= 0]
        if found:
            if min(found):
                yield pending[: min(found)]
            return
        held = max((_overlap(pending, word) for word in stop), default=0)
        if len(pending) > held:
            yield pending[: len(pending) - held]
            pending = pending[len(pending) - held :]
    if pending:
        yield pending


def _overlap(text: str, word: str) -> int:
    """Length of the longest proper beginning of ``word`` that ends ``text``."""
    longest = min(len(text), len(word) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(word[:size])), 0)


def _close_iterator(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
