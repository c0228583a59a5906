"""What a check found: problems, what it could not judge, and what it did judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Finding(NamedTuple):
    """One statement about one place."""

    message: str
    line: int | None = None
    """Counted from 1; None where the subject has no lines."""


@dataclass
class Report:
    """The outcome of one check of one subject. Only problems fail a check."""

    subject: str
    """A path, or a name such as ``eliza_ctypes``."""
    problems: list[Finding] = field(default_factory=list)
    unjudged: list[Finding] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    """Phrases such as ``54 functions``; empty where nothing could be judged at all."""
    compiled: bool = False
    """Whether a compiler was asked too."""

    def problem(self, message: str, line: int | None = None) -> None:
        self.problems.append(Finding(message, line))

    def cannot_judge(self, message: str, line: int | None = None) -> None:
        self.unjudged.append(Finding(message, line))

    @property
    def ok(self) -> bool:
        return not self.problems
