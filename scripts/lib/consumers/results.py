"""What a run of the consumers measured."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path


def cancel_times(junit: Path) -> list[str]:
    """A table of what the JUnit report has of it, a line each; empty where no test measured."""
    rows = []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        times = {
            str(each.get("name")): float(each.get("value", "nan")) for each in case.iter("property")
        }
        if {"cancel_next_ms", "cancel_prefill_ms"} <= times.keys():
            name = str(case.get("name")).partition("[")[2].rstrip("]")
            step, prefill = times["cancel_next_ms"], times["cancel_prefill_ms"]
            rows.append(f"  {name:20} next {step:6.2f}   prefill {prefill:6.2f}")
    return ["milliseconds from cancel to the return of the stopped call:", *rows] if rows else []
