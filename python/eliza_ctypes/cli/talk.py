"""``generate`` and ``chat``: text as it comes."""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import sys
import threading
from typing import Iterator

from ..chat import ChatTemplate, Conversation, continue_from
from ..errors import Cancelled, ElizaError
from ..stats import StreamStats
from ..stream import Generation, Stream
from .common import (
    config_of,
    fail,
    opened,
    path_of,
    set_environment,
    standard_input,
    text_of,
)

_COMMANDS = "/reset forgets the conversation, /exit leaves"


def run_generate(arguments: argparse.Namespace) -> int:
    """Continues the prompt. What a slot file holds of it is not computed again."""
    config = config_of(arguments)
    prompt = text_of(arguments.prompt) if arguments.prompt is not None else standard_input()
    set_environment(arguments)
    with opened(arguments) as (bundle, context):
        if arguments.chat:
            template = ChatTemplate.of_bundle(bundle, context)
            tokens = template.tokenize(context, [{"role": "user", "content": prompt}])
        else:
            tokens = context.tokenize(prompt)
        with context.open_stream(config) as stream:
            if arguments.restore_slot is not None:
                held = stream.restore(path_of(arguments.restore_slot))
                tokens = continue_from(stream, held, tokens)
            generation = Generation(stream, tokens, arguments.stop)
            _, interrupted = _show(generation, arguments.stats)
            if arguments.save_slot is not None and not interrupted:
                if not generation.steps[-1].done:
                    # A stop string left the stream cancelled.
                    stream.reset_keep(stream.stats.prompt_tokens + len(generation.tokens))
                stream.save(path_of(arguments.save_slot))
    return 130 if interrupted else 0


def _show(generation: Generation, stats: bool) -> tuple[str, bool]:
    """Writes the text as it comes. Returns it, and whether Ctrl-C ended it."""
    pieces: list[str] = []
    interrupted = False
    with _interrupt_cancels(generation.stream):
        try:
            for piece in generation:
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
        except (KeyboardInterrupt, Cancelled):
            interrupted = True
            generation.close()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if stats:
        _write_stats(generation.stream.stats)
    return "".join(pieces), interrupted


def _write_stats(stats: StreamStats) -> None:
    reused = f" ({stats.prompt_tokens_reused} reused)" if stats.prompt_tokens_reused else ""
    first, rate = stats.time_to_first_token, stats.tokens_per_second
    lines = [
        f"prompt tokens         {stats.prompt_tokens}{reused}",
        f"time to first token   {'-' if first is None else f'{first * 1e3:.0f} ms'}",
        f"generated tokens      {stats.generated_tokens}",
        f"tokens per second     {'-' if rate is None else f'{rate:.1f}'}",
    ]
    if stats.acceptance is not None:
        share = f"{stats.acceptance:.0%}"
        lines.append(f"drafts accepted       {stats.accepted} of {stats.drafted} ({share})")
    print("\n".join(lines), file=sys.stderr)


@contextlib.contextmanager
def _interrupt_cancels(stream: Stream) -> Iterator[None]:
    """Has Ctrl-C cancel the stream at once.

    Python handles a signal only between two native calls, and a long prefill is one call. The
    interpreter's wakeup descriptor tells another thread before that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def watch() -> None:
        while received := reader.recv(16):
            if signal.SIGINT in received:
                stream.cancel()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        writer.close()
        watcher.join()
        reader.close()


def run_chat(arguments: argparse.Namespace) -> int:
    """Asks and answers until the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() edits lines once this is imported

    config = config_of(arguments)
    set_environment(arguments)
    with opened(arguments) as (bundle, context):
        template = ChatTemplate.of_bundle(bundle, context)
        system = None if arguments.system is None else text_of(arguments.system)
        conversation = Conversation(template, context, system)
        with context.open_stream(config) as stream:
            _converse(conversation, stream, arguments)
    return 0


def _converse(conversation: Conversation, stream: Stream, arguments: argparse.Namespace) -> None:
    """Questions and answers until the end of the input. Ctrl-C ends an answer only."""
    interactive = sys.stdin.isatty()
    if interactive:
        print(f"{_COMMANDS}; Ctrl-C stops an answer", file=sys.stderr)
    seen: list[int] = []
    while True:
        try:
            question = input("> " if interactive else "").strip()
        except EOFError:
            if interactive:
                print()
            return
        if question == "/exit":
            return
        if question == "/reset":
            conversation.restart()
        elif question.startswith("/"):
            print(f"unknown command; {_COMMANDS}", file=sys.stderr)
        elif question:
            seen = _answer(conversation, question, stream, seen, arguments)


def _answer(
    conversation: Conversation,
    question: str,
    stream: Stream,
    seen: list[int],
    arguments: argparse.Namespace,
) -> list[int]:
    """One turn; ``seen`` and the result are the tokens that the stream's state surely holds."""
    tokens = conversation.ask(question)
    rest = continue_from(stream, seen, tokens)
    kept = len(tokens) - len(rest)
    generation = Generation(stream, rest, arguments.stop)
    text = ""
    try:
        text, _ = _show(generation, arguments.stats)
    except ElizaError as error:
        # Most likely the conversation has outgrown the context.
        fail(f"{error.message} ({_COMMANDS})")
        stream.reset()
        kept = 0
    conversation.answered(text)
    return tokens + generation.tokens if generation.steps else tokens[:kept]
