"""What is found about one consumer: said once each, and counted for the report."""

from __future__ import annotations

import difflib
import re
from typing import Hashable, Mapping, NamedTuple

from ..report import Finding, Report
from ..table import Struct, Table
from . import naming

# Behind a known name: of a later version, or of something beside it, and no misspelling.
_ADDITION = re.compile(r"_\w+|v?\d+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)


class _Unknown(NamedTuple):
    name: str
    line: int
    group: Hashable
    is_looked_up: bool


class Findings:
    """Collects for one report. ``finish`` writes what was judged."""

    def __init__(self, table: Table, report: Report, source: bytes) -> None:
        self.table = table
        self.report = report
        self.topics = naming.topics(source)
        """The structures that the source is about."""
        self.own_structs = frozenset(
            name for name in table.structs if name.encode() in _COMMENT.sub(b"", source)
        )
        """The table's structures that the source itself uses by their names."""
        self._roles: dict[str, str] = {}
        self._said: set[Finding] = set()
        self._counted: dict[str, set[Hashable]] = {}
        self._groups: set[Hashable] = set()
        self._unknown: list[_Unknown] = []
        self._unclear: list[tuple[str, str, int]] = []

    def problem(self, message: str, line: int) -> None:
        if self._new(message, line):
            self.report.problem(message, line)

    def cannot_judge(self, message: str, line: int) -> None:
        if self._new(message, line):
            self.report.cannot_judge(message, line)

    def unclear(self, name: str, message: str, line: int) -> None:
        """What cannot be judged of a function, unless it is judged in another place."""
        self._unclear.append((name, message, line))

    def count(self, what: str, thing: Hashable) -> None:
        """Count a thing once under ``what``, a phrase in which ``#`` stands for the number."""
        self._counted.setdefault(what, set()).add(thing)

    def first(self, *thing: Hashable) -> bool:
        """Whether this is the first time that a thing comes up."""
        things = self._counted.setdefault("", set())
        before = len(things)
        things.add(thing)
        return len(things) > before

    def bound(
        self, name: str, line: int, group: Hashable = None, is_looked_up: bool = False
    ) -> bool:
        """Judge that a bound name exists. Names in one group are bound alike, from one library.

        A name that is only looked up, as a string, may be the name of anything else; in no group,
        it may also be there or not.
        """
        if name in self.table.functions:
            self._groups.add(group)
            return True
        if name not in self.table.callbacks and name not in self.table.structs:
            self._unknown.append(_Unknown(name, line, group, is_looked_up))
        return False

    def stands_for(self, written: str, c_type: str) -> None:
        """Note that a type is written where the table says ``c_type``."""
        meant = c_type.replace("const ", "").rstrip("* ")
        if meant in self.table.structs or meant in self.table.callbacks:
            for name in _IDENTIFIER.findall(written):
                self._roles.setdefault(name, meant)

    def follow(self, aliases: Mapping[str, str]) -> None:
        """Note what the types are made of that were noted by such a name."""
        pending = [name for name in aliases if name in self._roles or name in self.table.structs]
        seen = set(pending)
        while pending:
            name = pending.pop()
            written = aliases[name]
            self.stands_for(written, self._roles.get(name, name))
            inner = set(_IDENTIFIER.findall(written)) & set(aliases) - seen
            seen |= inner
            pending += inner

    def struct_passed(self, name: str) -> Struct | None:
        """The structure that a type of this name is passed as, to a function or to a callback."""
        role = self._roles.get(name, "")
        if role in self.table.callbacks:
            role = self.table.callbacks[role].parameters[0].type.replace("const ", "").rstrip("* ")
        return self.table.structs.get(role)

    def callback_passed(self, name: str) -> str | None:
        """The callback that a type of this name is passed as."""
        role = self._roles.get(name)
        return role if role in self.table.callbacks else None

    def finish(self) -> None:
        for unknown in self._unknown:
            self._judge_unknown(unknown)
        judged = self._counted.get("functions", set())
        for name, message, line in self._unclear:
            if name not in judged:
                self.cannot_judge(f"{name}: {message}", line)
        self.report.problems.sort(key=lambda finding: finding.line or 0)
        self.report.unjudged.sort(key=lambda finding: finding.line or 0)
        self._counted.pop("", None)
        signed = self._counted.pop("functions", set())
        named = self._counted.pop("names", set()) - signed
        if signed:
            total = len(self.table.functions)
            self.report.judged.append(f"{len(signed)} of {total} functions")
        if named:
            self.report.judged.append(_counted("the name# of # function#", len(named)))
        for what, things in self._counted.items():
            self.report.judged.append(_counted(what, len(things)))

    def _judge_unknown(self, unknown: _Unknown) -> None:
        name, line, group, is_looked_up = unknown
        message = f"{name} is not exported by ABI {self.table.version}"
        near = self._near(name)
        ours = name.startswith("eliza_inference_")
        among_known = group is not None and group in self._groups
        if near or among_known or (ours and group is None and not is_looked_up):
            self.problem(message + near, line)
        elif ours:
            how = "looked up alone" if group is None else "bound apart from what is"
            self.cannot_judge(f"{message}, and is {how}", line)
        elif not is_looked_up:
            self.cannot_judge(f"{name} is no function of {self.table.library}", line)

    def _near(self, name: str) -> str:
        known = [each for each in self.table.functions if name.startswith(each)]
        if any(_ADDITION.fullmatch(name, len(each)) for each in known):
            return ""
        near = difflib.get_close_matches(name, self.table.functions, 1, 0.95)
        return f"; did you mean {near[0]}?" if near else ""

    def _new(self, message: str, line: int) -> bool:
        finding = Finding(message, line)
        if finding in self._said:
            return False
        self._said.add(finding)
        return True


def _counted(what: str, number: int) -> str:
    """``# call#`` becomes ``1 call`` or ``2 calls``."""
    plural = "" if number == 1 else "s"
    return " ".join(
        word.replace("#", str(number) if word == "#" else plural) for word in what.split(" ")
    )
