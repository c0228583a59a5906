"""The ``eliza-ctypes`` command.

Exit status: 0, 1 for what fails while running, 2 for wrong usage, 130 after Ctrl-C, 141 where the
reader of the output went away. Errors are one line on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Iterator, NoReturn, Sequence

from . import __version__
from .bundle import bundle_for, make_bundle, text_model
from .chat import ChatTemplate, Conversation, TemplateEngineMissing, common_prefix
from .config import LlmStreamConfig
from .context import Context
from .errors import Cancelled, ElizaError
from .library import Library
from .loader import locate
from .report import backend_states, build_facts, capabilities, serving_backend
from .stream import Generation, Stream

_PROGRAM = "eliza-ctypes"
# Settings that the library reads from the environment when a stream is opened.
_ENVIRONMENT = {
    "seed": "ELIZA_LLM_SEED",
    "threads": "ELIZA_LLM_THREADS",
    "context_size": "ELIZA_LLM_N_CTX",
}
_COMMANDS = "/reset forgets the conversation, /exit leaves"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    for name in ("stdin", "stdout", "stderr"):
        # Python has None for a stream that was closed by whoever started it.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # Text is UTF-8 whatever the locale says; what a terminal cannot show must not stop us.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    try:
        arguments = _parse(argv)
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python flushes stdout once more at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except TemplateEngineMissing as error:
        return _fail(str(error), 2)
    except ElizaError as error:
        return _fail(error.message)
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _fail(named)
    except Exception as error:
        return _fail(f"{type(error).__name__}: {error}")


def _fail(message: str, status: int = 1) -> int:
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    print(f"{_PROGRAM}: error: {line.replace(':; ', ': ')}", file=sys.stderr)
    return status


# generate


def _generate(arguments: argparse.Namespace) -> int:
    prompt = _text(arguments.prompt) if arguments.prompt is not None else _standard_input()
    _set_environment(arguments)
    with _context(arguments) as (bundle, context):
        if arguments.chat:
            template = ChatTemplate.of_bundle(bundle, context)
            tokens = template.tokenize(context, [{"role": "user", "content": prompt}])
        else:
            tokens = context.tokenize(prompt)
        with context.open_stream(_config(arguments)) as stream:
            generation = Generation(stream, tokens, arguments.stop)
            _, interrupted = _show(generation, arguments.stats)
    return 130 if interrupted else 0


def _show(generation: Generation, stats: bool) -> tuple[str, bool]:
    """Writes the text as it comes. Returns it, and whether Ctrl-C ended it."""
    pieces: list[str] = []
    interrupted = False
    started = time.perf_counter()
    first = (started, 0)
    with _interrupt_cancels(generation.stream):
        try:
            for piece in generation:
                if not pieces:
                    first = (time.perf_counter(), len(generation.tokens))
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
        except (KeyboardInterrupt, Cancelled):
            interrupted = True
            generation.close()
    ended = time.perf_counter()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if stats:
        _write_stats(generation, first[0] - started, first[1], ended - first[0])
    return "".join(pieces), interrupted


def _write_stats(generation: Generation, first: float, first_count: int, rest: float) -> None:
    count = len(generation.tokens)
    rate = (count - first_count) / rest if rest > 0 and count > first_count else 0.0
    lines = [
        f"prompt tokens         {len(generation.prompt)}",
        f"time to first token   {first * 1e3:.0f} ms",
        f"generated tokens      {count}",
        f"tokens per second     {rate:.1f}",
    ]
    drafted = sum(step.drafter_drafted for step in generation.steps)
    if drafted:
        accepted = sum(step.drafter_accepted for step in generation.steps)
        lines.append(f"drafts accepted       {accepted} of {drafted}")
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


# chat


def _chat(arguments: argparse.Namespace) -> int:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() edits lines once this is imported

    _set_environment(arguments)
    with _context(arguments) as (bundle, context):
        template = ChatTemplate.of_bundle(bundle, context)
        system = None if arguments.system is None else _text(arguments.system)
        conversation = Conversation(template, context, system)
        with context.open_stream(_config(arguments)) as stream:
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
    kept = stream.reset_keep(min(common_prefix(seen, tokens), len(tokens) - 1)) if seen else 0
    generation = Generation(stream, tokens[kept:], arguments.stop)
    text = ""
    try:
        text, _ = _show(generation, arguments.stats)
    except ElizaError as error:
        # Most likely the conversation has outgrown the context.
        _fail(f"{error.message} ({_COMMANDS})")
        stream.reset()
        kept = 0
    conversation.answered(text)
    return tokens + generation.tokens if generation.steps else tokens[:kept]


# tokenize


def _tokenize(arguments: argparse.Namespace) -> int:
    given = " ".join(_text(word) for word in arguments.input) if arguments.input else None
    text = _standard_input() if given is None else given
    with _context(arguments) as (_, context):
        if arguments.decode:
            print(context.detokenize(_ids(text), unparse_special=True))
            return 0
        tokens = context.tokenize(
            text, add_special=not arguments.no_special, parse_special=arguments.parse_special
        )
        if arguments.pieces:
            for token in tokens:
                print(f"{token}\t{context.detokenize([token], unparse_special=True)!r}")
        else:
            print(*tokens)
    return 0


def _ids(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError as error:
        _refuse(f"--decode takes token ids: {error}")


# info


def _info(arguments: argparse.Namespace) -> int:
    path = locate(arguments.library)
    facts: dict[str, Any] = {
        "package": __version__,
        "python": platform.python_version(),
        "library": path,
        "build": build_facts(path),
    }
    problem: ElizaError | None = None
    try:
        library = Library(path)
        facts["abi"] = library.abi_version()
        facts["supports"] = capabilities(library)
        if arguments.bundle is not None:
            with bundle_for(_path(arguments.bundle)) as bundle:
                facts["bundle"] = _bundle_facts(library, bundle, arguments.bundle)
    except ElizaError as error:
        problem = error
        facts["error"] = error.message
    if arguments.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _print_facts(facts)
    return 0 if problem is None else _fail(problem.message)


def _bundle_facts(library: Library, bundle: Path, shown: str) -> dict[str, Any]:
    states = backend_states(library, bundle)
    backend, reason = serving_backend(states)
    facts: dict[str, Any] = {
        "path": shown,
        "backends": [state._asdict() for state in states],
        "served_by": backend,
        "reason": reason,
    }
    # Another runtime's bundle needs no GGUF.
    with contextlib.suppress(ElizaError):
        facts["text_model"] = text_model(bundle).name
    return facts


def _print_facts(facts: dict[str, Any]) -> None:
    print(f"package   eliza_ctypes {facts['package']}, Python {facts['python']}")
    print(f"library   {facts['library']}")
    if "abi" in facts:
        print(f"ABI       {facts['abi']}")
    build = facts["build"]
    if build is None:
        print("build     the library carries no build facts")
    else:
        for number, (name, value) in enumerate(build.items()):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            print(f"{'' if number else 'build':9} {name}: {shown}")
    if "supports" in facts:
        supported = [name for name, yes in facts["supports"].items() if yes]
        missing = [name for name, yes in facts["supports"].items() if not yes]
        print(f"supports  {', '.join(supported) or 'nothing'}")
        print(f"lacks     {', '.join(missing) or 'nothing'}")
    if "bundle" in facts:
        bundle = facts["bundle"]
        print(f"bundle    {bundle['path']}")
        print(f"model     {bundle.get('text_model', 'no GGUF text model')}")
        for backend in bundle["backends"]:
            print(f"backend   {backend['name']} (rank {backend['rank']}): {backend['state']}")
        print(f"served by {bundle['served_by'] or 'none'}: {bundle['reason']}")


# bundle


def _bundle(arguments: argparse.Namespace) -> int:
    print(make_bundle(_path(arguments.gguf), _path(arguments.directory), copy=arguments.copy))
    return 0


# Arguments


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{_PROGRAM}: error: {message} (see {self.prog} --help)\n")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse fills an optional positional at the first gap: what follows an option is left."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and not any(word.startswith("-") for word in rest):
        if getattr(arguments, "input", None) == []:
            arguments.input, rest = rest, []
        elif getattr(arguments, "prompt", "") is None:
            arguments.prompt, *rest = rest
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROGRAM, description="Text from a model, through libelizainference.")
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    library_help = "the library file; else $ELIZA_INFERENCE_LIBRARY, else the packaged one"
    parser.add_argument("--library", metavar="PATH", help=library_help)
    shared = _Parser(add_help=False)
    shared.add_argument("--library", metavar="PATH", default=argparse.SUPPRESS, help=library_help)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    def command(name: str, run: Any, summary: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=summary, parents=[shared])
        made.set_defaults(run=run)
        return made

    bundle_help = "a bundle directory, or a .gguf file"

    generate = command("generate", _generate, "Continue a prompt.")
    generate.add_argument("bundle", metavar="BUNDLE", help=bundle_help)
    generate.add_argument(
        "prompt", metavar="PROMPT", nargs="?", help="else stdin, without its last line end"
    )
    how = generate.add_mutually_exclusive_group()
    how.add_argument("--raw", action="store_true", help="continue the text as it is (default)")
    how.add_argument("--chat", action="store_true", help="answer it, by the model's chat template")
    _add_generation(generate, max_tokens=256)

    chat = command("chat", _chat, "Talk with a model, by its own chat template.")
    chat.add_argument("bundle", metavar="BUNDLE", help=bundle_help)
    chat.add_argument("--system", metavar="TEXT", help="what the model is told beforehand")
    _add_generation(chat, max_tokens=0)

    tokenize = command("tokenize", _tokenize, "Print the token ids of a text, or the reverse.")
    tokenize.add_argument("bundle", metavar="BUNDLE", help=bundle_help)
    tokenize.add_argument(
        "input", metavar="TEXT", nargs="*", help="else stdin, without its last line end"
    )
    tokenize.add_argument("--decode", action="store_true", help="TEXT is token ids")
    tokenize.add_argument("--pieces", action="store_true", help="one id and its text on each line")
    tokenize.add_argument("--no-special", action="store_true", help="add no BOS or EOS token")
    tokenize.add_argument(
        "--parse-special", action="store_true", help="read special tokens written in the text"
    )

    info = command("info", _info, "Describe the library, and which backend serves a bundle.")
    info.add_argument("bundle", metavar="BUNDLE", nargs="?", help=bundle_help)
    info.add_argument("--json", action="store_true", help="print one JSON object")

    bundle = command("bundle", _bundle, "Make a bundle directory from a GGUF file.")
    bundle.add_argument("gguf", metavar="GGUF", help="the model, or any part of a split one")
    bundle.add_argument("directory", metavar="DIR", help="made where it does not exist")
    bundle.add_argument("--copy", action="store_true", help="copy even where a hard link would do")
    return parser


def _add_generation(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    group = parser.add_argument_group("generation")

    def option(*names: str, **settings: Any) -> None:
        group.add_argument(*names, **settings)

    option(
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help="0: no cap (default: %(default)s)",
    )
    option("--temperature", type=float, default=0.0, metavar="T", help="0: greedy (default)")
    option("--top-k", type=int, default=0, metavar="N", help="0: off (default)")
    option("--top-p", type=float, default=0.0, metavar="P", help="0: off (default)")
    option("--repeat-penalty", type=float, default=0.0, metavar="X", help="0: off (default)")
    option("--seed", type=int, metavar="N", help="sets ELIZA_LLM_SEED")
    grammar = group.add_mutually_exclusive_group()
    grammar.add_argument("--grammar", metavar="GBNF", help="the text must match this grammar")
    grammar.add_argument("--grammar-file", metavar="FILE", help="the same, from a file")
    option("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    option("--kv-type", metavar="TYPE", help="type of the KV cache, such as q8_0")
    option("-k", "--kv-type-k", metavar="TYPE", help="that of the keys alone")
    option("-v", "--kv-type-v", metavar="TYPE", help="that of the values alone")
    option("--gpu-layers", type=int, default=0, metavar="N", help="layers on the GPU")
    option("--threads", type=int, metavar="N", help="sets ELIZA_LLM_THREADS")
    option("--context-size", type=int, metavar="N", help="tokens; sets ELIZA_LLM_N_CTX")
    option("--stats", action="store_true", help="counts and speed, on stderr")


def _config(arguments: argparse.Namespace) -> LlmStreamConfig:
    grammar = arguments.grammar
    if arguments.grammar_file is not None:
        grammar = _grammar_of(arguments.grammar_file)
    return LlmStreamConfig(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        repeat_penalty=arguments.repeat_penalty,
        gbnf_grammar=grammar,
        n_gpu_layers=arguments.gpu_layers,
        cache_type_k=arguments.kv_type_k or arguments.kv_type,
        cache_type_v=arguments.kv_type_v or arguments.kv_type,
    )


def _grammar_of(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        _refuse(f"--grammar-file: {path} is not UTF-8")


@contextlib.contextmanager
def _context(arguments: argparse.Namespace) -> Iterator[tuple[Path, Context]]:
    library = Library(arguments.library)
    with bundle_for(_path(arguments.bundle)) as bundle, Context(bundle, library) as context:
        yield bundle, context


def _set_environment(arguments: argparse.Namespace) -> None:
    for name, variable in _ENVIRONMENT.items():
        value = getattr(arguments, name)
        if value is not None:
            os.environ[variable] = str(value)


def _standard_input() -> str:
    text = sys.stdin.read()
    return text[:-1] if text.endswith("\n") else text


def _path(argument: str) -> Path:
    if not argument:
        _refuse("a path is empty")
    return Path(argument)


def _text(argument: str) -> str:
    """An argument as the UTF-8 that it is, whatever the locale made of it."""
    return os.fsencode(argument).decode("utf-8", "replace")


def _refuse(message: str) -> NoReturn:
    print(f"{_PROGRAM}: error: {message}", file=sys.stderr)
    raise SystemExit(2)
