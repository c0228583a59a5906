"""Syntax trees: tree-sitter's parsers, and the questions that every language's reader asks."""

from __future__ import annotations

import functools
import importlib
import time
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

if TYPE_CHECKING:
    from tree_sitter import Node

_GRAMMARS = {
    "cpp": ("tree_sitter_cpp", "language"),
    "java": ("tree_sitter_java", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "swift": ("tree_sitter_swift", "language"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
}


class GrammarMissing(ImportError):
    """A parser is not installed, or does not fit the tree-sitter that is."""


class Garbled(Exception):
    """A source with so many errors of syntax that looking for its end takes too long."""

    def __init__(self) -> None:
        super().__init__("syntax errors throughout")


class TooDeep(Exception):
    """A source that no person wrote."""

    def __init__(self) -> None:
        super().__init__("nested too deeply")


_PATIENCE = 10.0
"""Seconds for one source, which take milliseconds if they are not random."""
# The readers ask for the ancestors of nodes, and recurse.
DEEPEST = 500


@functools.cache
def _parser(grammar: str) -> Any:
    module, function = _GRAMMARS[grammar]
    try:
        import tree_sitter

        language = getattr(importlib.import_module(module), function)()
        return tree_sitter.Parser(tree_sitter.Language(language))
    except (ImportError, ValueError, TypeError) as error:
        raise GrammarMissing(f"no parser for {grammar}: {error}", name=module) from error


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def parse(grammar: str, source: bytes) -> Node:
    """The root of a tree; a syntax error is a node in it. Raises GrammarMissing, Garbled."""
    parser = _parser(grammar)
    end = time.monotonic() + _PATIENCE
    try:
        if hasattr(parser, "timeout_micros"):  # before tree-sitter 0.25
            parser.timeout_micros = int(_PATIENCE * 1e6)
            tree = parser.parse(source)
        else:
            # Only a source in pieces can be given up, and only one in bytes has the nodes' texts.
            tree = parser.parse(
                lambda offset, point: source[offset : offset + (1 << 16)],
                progress_callback=lambda offset, has_error: time.monotonic() > end,
            )
            tree = parser.parse(source, tree)
    except ValueError:
        parser.reset()
        raise Garbled from None
    root: Node = tree.root_node
    return root


def text(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode("utf-8", "replace")


def line(node: Node) -> int:
    return node.start_point[0] + 1


def walk(root: Node, enter: Callable[[Node], bool] | None = None) -> Iterator[Node]:
    """The named nodes in the order of the source; nothing below a node that `enter` declines."""
    cursor = root.walk()
    while True:
        node = cursor.node
        descend = True
        if cursor.depth > DEEPEST:
            raise TooDeep
        if node is not None and node.is_named:
            yield node
            descend = enter is None or enter(node)
        if descend and cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def of_type(root: Node, *types: str) -> Iterator[Node]:
    return (node for node in walk(root) if node.type in types)


def ancestors(node: Node) -> Iterator[Node]:
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def children(node: Node | None) -> list[Node]:
    """The named children without comments."""
    if node is None:
        return []
    return [child for child in node.named_children if "comment" not in child.type]


def child(node: Node | None, *types: str) -> Node | None:
    """The first child of one of these types."""
    return next((each for each in children(node) if each.type in types), None)


def field(node: Node | None, name: str) -> Node | None:
    return None if node is None else node.child_by_field_name(name)


def trailing_comments(comments: Iterable[Node]) -> dict[int, str]:
    """The text of the comments by their line, the last one of a line."""
    return {line(comment): text(comment).strip("/*! \t\r\n") for comment in comments}
