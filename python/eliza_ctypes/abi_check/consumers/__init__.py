"""Checks of a consumer's source against the ABI table.

Needs tree-sitter and its grammars, which the package's ``abi-check`` extra installs. Nothing of
them is imported before a source is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..reading import as_utf8
from ..report import Report

if TYPE_CHECKING:
    from ..table import Table
    from .findings import Findings

# What is bundled or generated may be longer; nobody writes a binding that long.
_LONGEST = 1 << 20

_GRAMMARS = {
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), "javascript"),
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    ".tsx": "tsx",
    **dict.fromkeys((".c", ".cc", ".cpp", ".cxx", ".m", ".mm"), "cpp"),
    **dict.fromkeys((".h", ".hh", ".hpp", ".hxx"), "cpp"),
    ".swift": "swift",
    ".rs": "rust",
    ".java": "java",
}


def can_read(path: Path) -> bool:
    """Whether a file of this name is in a language that is read."""
    return path.suffix.lower() in _GRAMMARS


def check_consumer(path: Path, source: bytes, table: Table) -> Report:
    """Compare what a source binds with the table.

    A source that a reader fails at is reported as one that cannot be judged, whatever the reason.
    Raises ImportError where the language's parser is not installed, and ValueError where
    `can_read` is false.
    """
    from .findings import Findings
    from .naming import mentions_the_abi

    grammar = _GRAMMARS.get(path.suffix.lower())
    if grammar is None:
        raise ValueError(f"{path}: no language that is read")
    report = Report(str(path))
    try:
        source = as_utf8(source)
    except UnicodeDecodeError as error:
        report.cannot_judge(f"could not be read: it is no {error.encoding}, which its mark says")
        return report
    # Every other byte of UTF-16 is zero in a source; without a mark it is not decoded.
    if not mentions_the_abi(source.replace(b"\0", b"")):
        return report
    if b"\0" in source:
        report.cannot_judge("could not be read: it is no text")
    elif len(source) > _LONGEST:
        report.cannot_judge(f"could not be read: it is longer than {_LONGEST >> 20} MiB")
    else:
        findings = Findings(table, report, source)
        try:
            _read(findings, source, grammar)
        except ImportError:
            raise
        except Exception as error:
            report.cannot_judge(f"could not be read: {type(error).__name__}: {error}")
        findings.finish()
    return report


def _read(findings: Findings, source: bytes, grammar: str) -> None:
    from . import c_family, java, javascript, rust, swift

    if grammar == "cpp":
        c_family.check(findings, source)
    elif grammar == "swift":
        swift.check(findings, source)
    elif grammar == "rust":
        rust.check(findings, source)
    elif grammar == "java":
        java.check(findings, source)
    else:
        javascript.check(findings, source, grammar)
