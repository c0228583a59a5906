"""The ``eliza-ctypes`` command.

Exit status: 0, 1 for what fails while running, 2 for wrong usage, 130 after Ctrl-C, 141 where the
reader of the output went away. Errors are one line on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any, NoReturn, Sequence

from .. import __version__
from ..abi_check import CheckPackagesMissing
from ..chat import TemplateEngineMissing
from ..errors import ElizaError
from ..litert import LitertPackagesMissing
from .abi_check import add_abi_check, run_abi_check
from .batch import run_batch
from .common import PROGRAM, add_generation, fail
from .facts import run_bundle, run_info, run_tokenize
from .litert import add_litert_options, run_add_litert
from .talk import run_chat, run_generate


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
    except (TemplateEngineMissing, CheckPackagesMissing, LitertPackagesMissing) as error:
        return fail(str(error), 2)
    except ElizaError as error:
        return fail(error.message)
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return fail(named)
    except Exception as error:
        return fail(f"{type(error).__name__}: {error}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{PROGRAM}: error: {message} (see {self.prog} --help)\n")


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Lets ``bundle add-litert`` be a command of its own beside ``bundle GGUF DIR``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if " ".join(values[:2]) in self.choices:
            values = [" ".join(values[:2]), *values[2:]]
        super().__call__(parser, namespace, values, option_string)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse fills an optional positional at the first gap: what follows an option is left."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and not any(word.startswith("-") and word != "-" for word in rest):
        if getattr(arguments, "input", None) == []:
            arguments.input, rest = rest, []
        if hasattr(arguments, "files"):
            arguments.files += rest
            rest = []
        for name in ("prompt", "prompts"):
            if rest and getattr(arguments, name, "") is None:
                setattr(arguments, name, rest.pop(0))
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Text from a model, through libelizainference.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    library_help = "the library file; else $ELIZA_INFERENCE_LIBRARY, else the packaged one"
    parser.add_argument("--library", metavar="PATH", help=library_help)
    shared = _Parser(add_help=False)
    shared.add_argument("--library", metavar="PATH", default=argparse.SUPPRESS, help=library_help)
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, parser_class=_Parser, action=_Commands
    )

    def command(name: str, run: Any, summary: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=summary, parents=[shared])
        made.set_defaults(run=run)
        return made

    bundle_help = "a bundle directory, or a .gguf file"

    generate = command("generate", run_generate, "Continue a prompt.")
    generate.add_argument("bundle", metavar="BUNDLE", help=bundle_help)
    generate.add_argument(
        "prompt", metavar="PROMPT", nargs="?", help="else stdin, without its last line end"
    )
    how = generate.add_mutually_exclusive_group()
    how.add_argument("--raw", action="store_true", help="continue the text as it is (default)")
    how.add_argument("--chat", action="store_true", help="answer it, by the model's chat template")
    generate.add_argument("--restore-slot", metavar="FILE", help="start from a saved state")
    generate.add_argument("--save-slot", metavar="FILE", help="save the state at the end")
    add_generation(generate, max_tokens=256)

    batch = command("batch", run_batch, "Answer a file of prompts, one JSON object on each line.")
    batch.add_argument("bundle", metavar="BUNDLE", help=bundle_help)
    batch.add_argument(
        "prompts",
        metavar="INPUT",
        nargs="?",
        help='lines such as {"prompt": "..."} or {"messages": [...]}, also with id, max_tokens, '
        "temperature, stop, json_schema; else stdin",
    )
    batch.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="OUTPUT",
        help="one result a line, in order; a run that was interrupted goes on; else stdout",
    )
    batch.add_argument(
        "-j", "--jobs", type=int, default=2, metavar="N", help="streams at once (default: 2)"
    )
    add_generation(batch, max_tokens=256)

    chat = command("chat", run_chat, "Talk with a model, by its own chat template.")
    chat.add_argument("bundle", metavar="BUNDLE", help=bundle_help)
    chat.add_argument("--system", metavar="TEXT", help="what the model is told beforehand")
    add_generation(chat, max_tokens=0)

    tokenize = command("tokenize", run_tokenize, "Print the token ids of a text, or the reverse.")
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

    info = command("info", run_info, "Describe the library, and which backend serves a bundle.")
    info.add_argument("bundle", metavar="BUNDLE", nargs="?", help=bundle_help)
    info.add_argument("--json", action="store_true", help="print one JSON object")

    summary = "Check headers, libraries and bindings against the ABI table."
    add_abi_check(command("abi-check", run_abi_check, summary))

    bundle = command("bundle", run_bundle, "Make a bundle directory from a GGUF file.")
    bundle.add_argument("gguf", metavar="GGUF", help="the model, or any part of a split one")
    bundle.add_argument("directory", metavar="DIR", help="made where it does not exist")
    bundle.add_argument("--copy", action="store_true", help="copy even where a hard link would do")

    summary = "Add a LiteRT-LM model to a bundle directory, with exact token ids."
    add_litert_options(command("bundle add-litert", run_add_litert, summary))
    return parser
