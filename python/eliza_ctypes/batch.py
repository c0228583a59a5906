"""Many prompts at once: one JSON object on each line, answered in order by several streams."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn, Sequence

from .chat import Message, continue_from
from .config import LlmStreamConfig, configured
from .errors import Cancelled, ElizaError, InvalidArgument
from .stream import Generation, Stream

if TYPE_CHECKING:
    from .chat import ChatTemplate
    from .context import Context

Result = dict[str, Any]
"""``index`` and, where the line has one, ``id``; ``input``, a fingerprint; then ``text``,
``tokens``, their number, and ``finish``; or else ``error``.

``finish`` is "stop" for the model's own end or a stop string, "length" for max_tokens or a full
context.
"""

_FIELDS = ("id", "prompt", "messages", "max_tokens", "temperature", "stop", "json_schema")
# Lines that may be under way for each stream: a slow one does not hold up the others at once.
_WINDOW = 4


class Settings:
    """What holds for every line that does not say otherwise."""

    def __init__(
        self, config: LlmStreamConfig, stop: Sequence[str], stats: bool, *others: object
    ) -> None:
        """``stats`` adds a ``stats`` object to the results. ``others`` decide the text as well."""
        self.config = config
        self.stop = list(stop)
        self.stats = stats
        self._deciding = repr((config, self.stop, others)).encode("utf-8", "backslashreplace")

    def fingerprint(self, line: bytes) -> str:
        """Of a line and all settings that decide its result."""
        return hashlib.sha256(self._deciding + b"\0" + line).hexdigest()[:16]


class Worker:
    """Answers one line at a time. Its stream is kept while the settings stay the same."""

    def __init__(
        self, context: Context, settings: Settings, template: Callable[[], ChatTemplate]
    ) -> None:
        self._context = context
        self._settings = settings
        self._template = template
        self._stream: Stream | None = None
        self._held: list[int] = []
        self._stopping = False

    def open(self, config: LlmStreamConfig) -> Stream:
        """A stream with these settings. Raises ElizaError."""
        if self._stream is None or self._stream.config != config:
            self.close()
            self._stream = self._context.open_stream(config)
        return self._stream

    def cancel(self) -> None:
        """Ends what runs, from any thread, and all that follows with it."""
        self._stopping = True
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        """Closes the stream."""
        stream, self._stream, self._held = self._stream, None, []
        if stream is not None:
            stream.close()

    def answer(self, index: int, line: bytes) -> Result:
        """The result of one line, whatever is wrong with it. Raises Cancelled after a cancel."""
        result: Result = {"index": index}
        digest = self._settings.fingerprint(line)
        try:
            fields = _fields(line)
            if "id" in fields:
                result["id"] = fields["id"]
            result["input"] = digest
            result.update(self._generate(fields))
        except Exception as error:
            # The stream may be cancelled, or in the middle of something.
            self.close()
            if self._stopping:
                raise Cancelled.because("the batch was cancelled") from error
            known = isinstance(error, ElizaError)
            result["input"] = digest
            result["error"] = str(error) if known else f"{type(error).__name__}: {error}"
        return result

    def _generate(self, fields: dict[str, Any]) -> Result:
        config, stop = _settings_of(fields, self._settings)
        if "messages" in fields:
            messages = _messages(fields["messages"])
            tokens = self._template().tokenize(self._context, messages)
        else:
            tokens = self._context.tokenize(_is("prompt", fields["prompt"], str, "a string"))
        stream = self.open(config)
        rest = continue_from(stream, self._held, tokens)
        self._held = tokens[: len(tokens) - len(rest)]
        if self._stopping:
            # A cancel before this would have been cleared by going back.
            raise Cancelled.because("the batch was cancelled")
        generation = Generation(stream, rest, stop)
        text = "".join(generation)
        self._held = tokens + generation.tokens
        stats = stream.stats
        result: Result = {"text": text, "tokens": len(generation.tokens)}
        result["finish"] = _finish(generation, text)
        if self._settings.stats:
            result["stats"] = stats._asdict()
        return result


def run(
    workers: Sequence[Worker],
    lines: Iterable[bytes],
    write: Callable[[Result], object],
    first: int = 0,
) -> None:
    """Answers ``lines``; ``write`` gets the results in order, one at a time, on any thread.

    The lines count from ``first``. Few are read ahead of what is written. What ``lines`` or
    ``write`` raises, KeyboardInterrupt included, cancels the rest and is raised here.
    """
    from concurrent.futures import ThreadPoolExecutor
    from queue import SimpleQueue

    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)
    order = _Order(write, first, _WINDOW * len(workers))

    def work(index: int, line: bytes) -> None:
        worker = idle.get()
        try:
            order.put(index, worker.answer(index, line))
        except BaseException as error:
            order.fail(error)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(len(workers), thread_name_prefix="eliza-batch")
    try:
        for index, line in enumerate(lines, first):
            order.enter()
            pool.submit(work, index, line)
        order.wait()
    except BaseException:
        for worker in workers:
            worker.cancel()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Order:
    """Puts results back into order; only so many lines are let in before one is written."""

    def __init__(self, write: Callable[[Result], object], first: int, window: int) -> None:
        self._write = write
        self._next = first
        self._free = self._window = window
        self._ready: dict[int, Result] = {}
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def enter(self) -> None:
        """Waits until one more line may be read. Raises what :meth:`put` or others failed with."""
        self._wait_for(1, taken=1)

    def wait(self) -> None:
        """Waits until everything is written; raises like :meth:`enter`."""
        self._wait_for(self._window)

    def put(self, index: int, result: Result) -> None:
        """Writes the result once all before it are written."""
        with self._changed:
            self._ready[index] = result
            while self._next in self._ready and self._failure is None:
                self._write(self._ready.pop(self._next))
                self._next += 1
                self._free += 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing more is written: half a line may be."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def _wait_for(self, free: int, taken: int = 0) -> None:
        with self._changed:
            while self._failure is None and self._free < free:
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            self._free -= taken


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(
            line.decode("utf-8-sig"), parse_constant=_refuse_constant, parse_float=_finite
        )
    except UnicodeDecodeError as error:
        raise InvalidArgument.because(f"the line is not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument.because(f"the line is not JSON: {error}") from None
    _is("the line", fields, dict, "a JSON object")
    for name in fields:
        if name not in _FIELDS:
            raise InvalidArgument.because(
                f"the field {name!r} is not known; there are {', '.join(_FIELDS)}"
            )
    if ("prompt" in fields) == ("messages" in fields):
        raise InvalidArgument.because("a line takes either prompt or messages")
    known: dict[str, Any] = fields
    return known


def _settings_of(
    fields: dict[str, Any], settings: Settings
) -> tuple[LlmStreamConfig, Sequence[str]]:
    """The command's settings, changed by those of the line."""
    config, stop = settings.config, settings.stop
    if "max_tokens" in fields:
        count = _is("max_tokens", fields["max_tokens"], int, "a whole number")
        config = config._replace(max_tokens=count)
    if "temperature" in fields:
        temperature = _is("temperature", fields["temperature"], (int, float), "a number")
        config = config._replace(temperature=temperature)
    if "stop" in fields:
        given = fields["stop"]
        stop = [given] if isinstance(given, str) else _is("stop", given, list, "a list of strings")
        for word in stop:
            _is("stop", word, str, "a list of strings")
    if "json_schema" in fields:
        plain = config._replace(gbnf_grammar=None)
        config = configured(plain, {}, fields["json_schema"], None, None)
    return config, stop


def _messages(messages: Any) -> list[Message]:
    _is("messages", messages, list, "a list")
    for message in messages:
        _is("a message", message, dict, "an object")
        for name in ("role", "content"):
            _is(f"a message's {name}", message.get(name), str, "a string")
    if not messages:
        raise InvalidArgument.because("messages is empty")
    found: list[Message] = messages
    return found


def _is(name: str, value: Any, kind: Any, described: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidArgument.because(f"{name} must be {described}")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        _refuse_constant(text)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finish(generation: Generation, text: str) -> str:
    """Why a generation ended; asks the stream where the steps do not tell."""
    if len(text) < sum(len(step.text) for step in generation.steps):
        return "stop"
    tokens = generation.tokens
    if 0 < generation.stream.config.max_tokens <= len(tokens):
        return "length"
    # The end that a model chooses comes without a token of its own, mostly.
    if tokens and not generation.steps[-1].tokens:
        return "stop"
    try:
        generation.stream.prefill(generation.prompt[-1:])
    except InvalidArgument:
        return "length"
    return "stop"
