"""A benchmark's report as an SVG file: bars, with a line at 1.0 where they are ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib  # type: ignore[import-not-found]  # the linter's environment has none
from matplotlib.figure import Figure  # type: ignore[import-not-found]

BETTER, WORSE, PLAIN, QUIET = "#2f6f9f", "#c0713a", "#7f8c99", "#666666"
WIDTH_INCHES, BAR_INCHES = 8.0, 0.36
PANEL_INCHES, TITLE_INCHES = 0.6, 0.9  # a panel's title and axis; title and caption of all
# Beyond this span, ratios are drawn on a logarithmic scale.
LINEAR_SPAN = 4.0


@dataclass(frozen=True)
class Bars:
    """A panel: values of one section of the report, each with its label, from top to bottom."""

    title: str
    labels: Mapping[str, str]
    section: str = "ratios"


def draw(
    path: Path,
    title: str,
    panels: Sequence[Bars],
    report: Mapping[str, Mapping[str, float | str]],
    command: str,
) -> None:
    settings = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "eliza",  # the same report gives the same file
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
        "font.size": 9,
    }
    with matplotlib.rc_context(settings):
        bars = [len(panel.labels) for panel in panels]
        height = sum(bars) * BAR_INCHES + len(panels) * PANEL_INCHES + TITLE_INCHES
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.06)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=bars)[:, 0]
        for axis, panel in zip(axes, panels):
            _panel(axis, panel, report)
        machine = report["machine"]
        caption = f"{command}\n{machine['cpu']}, {machine['cores']} cores, {machine['date']}"
        figure.supxlabel(caption, x=0.01, ha="left", fontsize=8, color=QUIET)
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})


def _panel(axis: Any, panel: Bars, report: Mapping[str, Mapping[str, float | str]]) -> None:
    values = [float(report[panel.section][name]) for name in panel.labels]
    rows = range(len(values))
    ratios = panel.section == "ratios"
    if ratios and max(values) > LINEAR_SPAN * min(values) > 0:
        axis.set_xscale("log")
        axis.barh(rows, [value - 1 for value in values], left=1, color=_colours(values))
        axis.set_xlim(min(0.8, *values) / 1.1, max(values) * 1.6)
        ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if t < max(values) * 1.5]
        axis.set_xticks([t for t in ticks if t > min(0.8, *values) / 1.1])
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    else:
        axis.barh(rows, values, color=_colours(values) if ratios else PLAIN)
        axis.set_xlim(0, max(1.0 if ratios else 0.0, *values) * 1.15)
    if ratios:
        axis.axvline(1.0, color="#222222", linewidth=1, linestyle=(0, (4, 3)))
    for row, value in zip(rows, values):
        text = f"{value:.2f}" if value < 100 else f"{value:.0f}"
        axis.annotate(
            text,
            (max(value, 1.0) if ratios else value, row),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axis.set_yticks(rows, list(panel.labels.values()))
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8, colors=QUIET)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color("#cccccc")
    axis.set_title(panel.title, loc="left", fontsize=9, color=QUIET)


def _colours(values: Sequence[float]) -> list[str]:
    """By the value as it is shown."""
    return [BETTER if round(value, 2) >= 1 else WORSE for value in values]
