"""Speculative decoding against plain decoding of the same prompts with SmolLM2: drafts from the
sequence's own n-grams, on text that repeats and on text that does not, and drafts from a drafter.
The drafter is the model itself: no faster, but nearly every draft must be accepted.

Every generation with drafts must have the tokens of the one without.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.assets import fetch
from lib.building import Build
from lib.bundles import bundle
from lib.console import Failure
from lib.measuring import Measurements, Report, build_for_measuring, python_tool
from lib.pictures import Bars

DRAFT_MAX = 8
LIST = """\
1. Peel two pounds of potatoes and cut them into pieces as large as a walnut.
2. Put them into a pot of cold water with a spoon of salt, and bring it to a boil.
3. Cook them for twenty minutes, until a knife goes through without any force.
4. Pour the water off, add a cup of warm milk and four spoons of butter.
5. Mash everything with a fork, and add pepper, nutmeg and parsley as you like.
"""
REPEATING = (f"The recipe:\n{LIST}\nThe recipe:\n{LIST}\nThe recipe:\n1. Peel",)
FREE = (
    "Once upon a time",
    "The history of the city of Lisbon begins",
    "Dear Maria, thank you for your letter. I have been",
    "A heat pump works by",
)
GREEDY = {"max_tokens": 128}
SAMPLED = {"max_tokens": 256, "temperature": 0.8, "top_k": 40, "top_p": 0.95}

TITLE = "Speculative decoding: SmolLM2 135M Q4_1, drafts of up to 8 tokens"
PICTURE = (
    Bars(
        "decoding speed, with drafts / without",
        {
            "ngram_repeat": "n-grams, text that repeats",
            "ngram_free": "n-grams, free text (sampled)",
        },
    ),
    Bars(
        "accepted / drafted",
        {
            "ngram_repeat_acceptance": "n-grams, text that repeats",
            "ngram_free_acceptance": "n-grams, free text (sampled)",
            "self_draft_acceptance": "the model as its own drafter",
        },
        "figures",
    ),
)


@dataclass(frozen=True)
class Case:
    name: str
    prompts: Sequence[str]
    config: dict[str, Any]
    drafts: dict[str, Any]


def run(rounds: int) -> Report:
    made = build_for_measuring()
    gguf = fetch("smollm2")
    smollm2 = bundle(gguf, made)
    ngrams = {"draft_max": DRAFT_MAX}
    itself = {"draft_max": DRAFT_MAX, "mtp_drafter_path": str(gguf)}
    cases = (
        Case("ngram_repeat", REPEATING, GREEDY, ngrams),
        Case("ngram_free", FREE, SAMPLED, ngrams),
        Case("self_draft", FREE[:1], GREEDY, itself),
    )
    measured = Measurements(rounds)
    for number in measured:
        for case in cases:
            plain, drafted = compared(made, smollm2, case, drafts_first=bool(number % 2))
            acceptance = total(drafted, "accepted") / max(total(drafted, "drafted"), 1)
            if case.name == "self_draft":
                measured.ratio(self_draft_acceptance=acceptance)
            else:
                measured.ratio(**{case.name: speed(drafted) / speed(plain)})
            measured.figure(
                **{
                    f"{case.name}_tps": speed(drafted),
                    f"{case.name}_plain_tps": speed(plain),
                    f"{case.name}_acceptance": acceptance,
                }
            )
    return measured.report(made)


def compared(
    made: Build, model: Path, case: Case, drafts_first: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each prompt without and with drafts, one right after the other in one process."""
    configs = [case.config, {**case.config, **case.drafts}]
    order = [1, 0] if drafts_first else [0, 1]
    jobs = [{"prompt": p, "config": configs[which]} for p in case.prompts for which in order]
    results = python_tool(made, "python_generate.py", model, json.dumps(jobs))
    plain, drafted = results[order.index(0) :: 2], results[order.index(1) :: 2]
    for prompt, one, other in zip(case.prompts, plain, drafted):
        if one["tokens"] != other["tokens"]:
            raise Failure(
                f"{case.name}: drafts change what follows {prompt[-40:]!r}:\n"
                f"without {one['tokens']}\nwith    {other['tokens']}"
            )
    return plain, drafted


def total(results: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(result[name] for result in results))


def speed(results: Sequence[dict[str, Any]]) -> float:
    return total(results, "timed") / total(results, "seconds")
