"""``tokenize``, ``info`` and ``bundle``: what a bundle and the library are."""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
from pathlib import Path
from typing import Any

from .. import __version__
from ..bundle import bundle_for, make_bundle, text_model
from ..errors import ElizaError
from ..library import Library
from ..loader import locate
from ..report import (
    BackendState,
    backend_states,
    build_facts,
    capabilities,
    cpu_level,
    serving_backend,
)
from .common import fail, opened, path_of, refuse, standard_input, text_of


def run_tokenize(arguments: argparse.Namespace) -> int:
    """Prints token ids, or the text of token ids."""
    given = " ".join(text_of(word) for word in arguments.input) if arguments.input else None
    text = standard_input() if given is None else given
    with opened(arguments) as (_, context):
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
        refuse(f"--decode takes token ids: {error}")


def run_info(arguments: argparse.Namespace) -> int:
    """Describes the library, and what it makes of a bundle."""
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
        if (facts["build"] or {}).get("cpu_levels"):
            facts["cpu"] = cpu_level(library)
        if arguments.bundle is not None:
            with bundle_for(path_of(arguments.bundle)) as bundle:
                facts["bundle"] = _bundle_facts(library, bundle, arguments.bundle)
    except ElizaError as error:
        problem = error
        facts["error"] = error.message
    if arguments.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _print_facts(facts)
    return 0 if problem is None else fail(problem.message)


def _bundle_facts(library: Library, bundle: Path, shown: str) -> dict[str, Any]:
    states = backend_states(library, bundle)
    backend, reason = serving_backend(states)
    facts: dict[str, Any] = {
        "path": shown,
        "litert_models": sorted(path.name for path in (bundle / "text").glob("*.litertlm")),
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
    if facts.get("cpu"):
        print(f"computes  {facts['cpu']}")
    if "bundle" in facts:
        bundle = facts["bundle"]
        print(f"bundle    {bundle['path']}")
        print(f"model     {bundle.get('text_model', 'no GGUF text model')}")
        for name in bundle["litert_models"]:
            print(f"{'':9} {name}")
        for backend in bundle["backends"]:
            state = BackendState(**backend)
            print(f"backend   {state.name} (rank {state.rank}): {state}")
        print(f"served by {bundle['served_by'] or 'none'}: {bundle['reason']}")


def run_bundle(arguments: argparse.Namespace) -> int:
    """Makes a bundle, and prints where its model is."""
    print(make_bundle(path_of(arguments.gguf), path_of(arguments.directory), copy=arguments.copy))
    return 0
