"""The results of images as bars: one panel a figure, one bar a tool."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from bench.image_contestants import DIRECT, DIRECT_PYC
from bench.image_results import ImageResults, Scenario, mid

_OURS: Final = {DIRECT: "#56b4e9", DIRECT_PYC: "#0072b2"}
_PEERS: Final = "#d55e00"
#: Title, scenario, figure, its unit's factor.
_PANELS: Final = (
    ("build + push, empty caches, s", Scenario.COLD, "wall_s", 1.0),
    ("build + push, wheels cached, s", Scenario.CACHED, "wall_s", 1.0),
    ("one small package changed, s", Scenario.CHANGED, "wall_s", 1.0),
    ("nothing changed, s", Scenario.UNCHANGED, "wall_s", 1.0),
    ("first pull by the engine, s", Scenario.PULL, "wall_s", 1.0),
    ("pull after the change, s", Scenario.PULL_CHANGED, "wall_s", 1.0),
    ("sent after the change, MB", Scenario.CHANGED, "sent_bytes", 1e-6),
    ("peak memory of the first build, MB", Scenario.COLD, "peak_bytes", 1e-6),
    ("peak disk of the first build, MB", Scenario.COLD, "disk_bytes", 1e-6),
    ("biggest import in a fresh container, s", Scenario.IMPORT, "wall_s", 1.0),
)


def plot(results: ImageResults, path: Path) -> None:
    """Draw the panels that have figures, of each stack, on logarithmic axes, the figure beside its bar."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    stacks = results.stacks
    shown = {stack.name: _panels(results, stack.name) for stack in stacks}
    columns = min(5, max(map(len, shown.values())))
    rows = max((len(panels) + columns - 1) // columns for panels in shown.values())
    figure = pyplot.figure(figsize=(20, 3.0 * rows * len(stacks) + 0.6), layout="constrained")
    parts = figure.subfigures(len(stacks), 1, squeeze=False)
    for (part,), stack in zip(parts, stacks, strict=True):
        axes = part.subplots(rows, columns, squeeze=False)
        part.suptitle(f"{stack.name}: {stack.wheels} wheels, {stack.wheels_bytes / 1e6:,.0f} MB; import {stack.module}")
        for axis, panel in zip_longest(axes.flat, shown[stack.name]):
            if panel is None:
                axis.remove()
            else:
                _bars(axis, *panel)
    figure.suptitle(f"Images, side by side (less is better), {results.machine['date']}, {results.machine['cpu']}")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _panels(results: ImageResults, stack: str) -> list[tuple[str, list[tuple[str, float | None]]]]:
    """Title -> tool and figure, of what was measured."""
    every = [(title, _values(results, stack, scenario, what, scale)) for title, scenario, what, scale in _PANELS]
    return [(title, values) for title, values in every if any(value is not None for _, value in values)]


def _values(
    results: ImageResults, stack: str, scenario: Scenario, what: str, scale: float
) -> list[tuple[str, float | None]]:
    tools = dict.fromkeys(sample.tool for sample in results.samples if sample.stack == stack)
    found = [(tool, mid(results.samples, stack, tool, scenario, what)) for tool in tools]
    return [(tool, None if value is None else value * scale) for tool, value in found]


def _bars(axis: Any, title: str, values: list[tuple[str, float | None]]) -> None:
    values = values[::-1]
    # A bar of nothing has no place on a logarithmic axis.
    lengths = [max(value, 0.001) if value is not None else 0.0 for _, value in values]
    bars = axis.barh([tool for tool, _ in values], lengths, color=[_OURS.get(tool, _PEERS) for tool, _ in values])
    axis.bar_label(bars, ["-" if value is None else _short(value) for _, value in values], padding=3, fontsize=8)
    if any(lengths):
        axis.set_xscale("log")
        # Over less than a decade it would label every step, one over the other.
        axis.xaxis.set_minor_formatter("")
        shown = [length for length in lengths if length]
        axis.set_xlim(min(shown) / 3, max(shown) * 6)
    axis.set_title(title, fontsize=10)
    axis.tick_params(labelsize=8)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
