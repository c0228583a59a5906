"""``bundle add-litert``: a LiteRT-LM model into a bundle, with exact token ids."""

from __future__ import annotations

import argparse
import sys

from ..library import Library
from .common import path_of


def add_litert_options(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``bundle add-litert``."""
    parser.add_argument("file", metavar="FILE", help="the model, a .litertlm file")
    parser.add_argument("directory", metavar="DIR", help="made where it does not exist")
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="the model's tokenizer.json or tokenizer.model; needed only where FILE has none",
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not generate from the new bundle"
    )


def run_add_litert(arguments: argparse.Namespace) -> int:
    """Prints where the model is; on stderr, what is known of it."""
    from ..litert.add import add_litert

    tokenizer = None if arguments.tokenizer is None else path_of(arguments.tokenizer)
    added = add_litert(
        path_of(arguments.file),
        path_of(arguments.directory),
        Library(arguments.library),
        tokenizer,
        verify_by_generating=not arguments.no_verify,
    )
    print(added.model)
    known = f"tokenizer: {added.rules}; the same ids as the original on {added.texts} texts"
    for line in (
        known,
        *(f"tokenizer: {note}" for note in added.notes),
        added.verification.message,
    ):
        print(line, file=sys.stderr)
    return 0
