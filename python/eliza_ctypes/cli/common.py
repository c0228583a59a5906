"""What the commands share: options of a generation, the bundle, and how they fail."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Iterator, NoReturn

from ..bundle import bundle_for
from ..config import DRAFT_MAX, Draft, LlmStreamConfig, configured
from ..context import Context
from ..errors import InvalidArgument
from ..library import Library

PROGRAM = "eliza-ctypes"
# Settings that the library reads from the environment when a stream is opened.
_ENVIRONMENT = {
    "seed": "ELIZA_LLM_SEED",
    "threads": "ELIZA_LLM_THREADS",
    "context_size": "ELIZA_LLM_N_CTX",
}


def fail(message: str, status: int = 1) -> int:
    """Says what went wrong, in one line; returns the exit status."""
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    print(f"{PROGRAM}: error: {line.replace(':; ', ': ')}", file=sys.stderr)
    return status


def add_generation(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """The options that say how to generate; ``max_tokens`` is the default."""
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
    grammar.add_argument(
        "--json-schema", metavar="FILE", help="the text must be JSON that follows this schema"
    )
    option("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    option(
        "--draft",
        metavar="N|PATH",
        help="speculate: at most N tokens a step, or with the drafter model PATH",
    )
    option(
        "--draft-max",
        type=int,
        metavar="N",
        help=f"tokens that the drafter model drafts at most (default: {DRAFT_MAX})",
    )
    option("--cache-key", metavar="KEY", help="reuse what prompts with this key have in common")
    option("--kv-type", metavar="TYPE", help="type of the KV cache, such as q8_0")
    option("-k", "--kv-type-k", metavar="TYPE", help="that of the keys alone")
    option("-v", "--kv-type-v", metavar="TYPE", help="that of the values alone")
    option("--gpu-layers", type=int, default=0, metavar="N", help="layers on the GPU")
    option("--threads", type=int, metavar="N", help="sets ELIZA_LLM_THREADS")
    option("--context-size", type=int, metavar="N", help="tokens; sets ELIZA_LLM_N_CTX")
    option("--stats", action="store_true", help="counts and speed, on stderr")


def config_of(arguments: argparse.Namespace) -> LlmStreamConfig:
    """The stream's settings that the options of :func:`add_generation` ask for."""
    grammar = arguments.grammar
    if arguments.grammar_file is not None:
        grammar = _content("--grammar-file", arguments.grammar_file)
    config = LlmStreamConfig(
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
    schema = None
    if arguments.json_schema is not None:
        try:
            schema = json.loads(_content("--json-schema", arguments.json_schema))
            config = configured(config, {}, schema, None, None)
        except InvalidArgument as error:
            refuse(f"--json-schema: {arguments.json_schema}: {error.message}")
        except (ValueError, RecursionError) as error:
            refuse(f"--json-schema: {arguments.json_schema} is not JSON: {error}")
    key = None if arguments.cache_key is None else text_of(arguments.cache_key)
    return configured(config, {}, None, key, _draft(arguments))


def _draft(arguments: argparse.Namespace) -> Draft | None:
    given: str | None = arguments.draft
    if given is not None and given.isascii() and given.lstrip("-").isdigit():
        if given.startswith("-"):
            refuse("--draft takes a number of tokens, 0 or more, or the PATH of a drafter model")
        if arguments.draft_max is None:
            return int(given)
    elif given is not None:
        most = arguments.draft_max
        return path_of(given), DRAFT_MAX if most is None else most
    if arguments.draft_max is not None:
        refuse("--draft-max goes with the PATH of a drafter model: --draft PATH")
    return None


def _content(option: str, path: str) -> str:
    try:
        return path_of(path).read_text("utf-8")
    except UnicodeDecodeError:
        refuse(f"{option}: {path} is not UTF-8")


@contextlib.contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[tuple[Path, Context]]:
    """The bundle that BUNDLE names, and a context on it."""
    library = Library(arguments.library)
    with bundle_for(path_of(arguments.bundle)) as bundle, Context(bundle, library) as context:
        yield bundle, context


def set_environment(arguments: argparse.Namespace) -> None:
    """Hands on what the library reads from the environment alone."""
    for name, variable in _ENVIRONMENT.items():
        value = getattr(arguments, name)
        if value is not None:
            os.environ[variable] = str(value)


def standard_input() -> str:
    """All of stdin, without its last line end."""
    text = sys.stdin.read()
    return text[:-1] if text.endswith("\n") else text


def path_of(argument: str) -> Path:
    """An argument that must name something."""
    if not argument:
        refuse("a path is empty")
    return Path(argument)


def text_of(argument: str) -> str:
    """An argument as the UTF-8 that it is, whatever the locale made of it."""
    return os.fsencode(argument).decode("utf-8", "replace")


def refuse(message: str) -> NoReturn:
    """Ends the program over wrong usage."""
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    raise SystemExit(2)
