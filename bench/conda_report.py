"""What was measured of the conda half: medians, ratios to py-rattler, goals, as a page and as a plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.conda_tools import BARE, CONDA_LOCK, ENVSPEC, STAGE
from bench.markdown import goals_table, table
from bench.results import Goal

CPU_BOUND: Final = 1.2
MEMORY_BOUND_MB: Final = 600
#: Rows from which the goals count; below, starting an interpreter is most of what there is.
GOAL_ROWS: Final = 650_000


@dataclass(frozen=True, slots=True)
class Case:
    """One question on one channel. rows: of linux-64 and noarch. transport: `file` or `http`."""

    rows: int
    platforms: int
    transport: str = "file"
    is_cold: bool = True

    @property
    def title(self) -> str:
        many = "1 platform" if self.platforms == 1 else f"{self.platforms} platforms"
        how = "file://" if self.transport == "file" else f"http, {'empty' if self.is_cold else 'full'} cache"
        return f"{self.rows:,} rows, {many}, {how}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. peak_bytes: resident, mapped files with it; own_bytes: without them. exit_code: None over its limit."""

    case: Case
    tool: str
    round: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    own_bytes: int
    exit_code: int | None
    said: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether a tool's rows are py-rattler's: how many it has, how many only one of the two has."""

    case: Case
    tool: str
    rows: int
    differing: int


@dataclass(frozen=True, slots=True)
class CondaResults:
    """channels: rows and bytes of each subdir of each channel, by the rows asked for."""

    machine: dict[str, str]
    tools: dict[str, str]
    notes: dict[str, str]
    options: dict[str, object]
    channels: dict[str, dict[str, object]]
    samples: tuple[Sample, ...]
    agreements: tuple[Agreement, ...]

    @property
    def goals(self) -> tuple[Goal, ...]:
        return tuple(goals(self.samples))

    def document(self) -> dict[str, object]:
        """For JSON: everything, goals with their verdict."""
        return {**asdict(self), "goals": [{**asdict(goal), "met": goal.is_met} for goal in self.goals]}


def mid(samples: Iterable[Sample], case: Case, tool: str, what: str) -> float | None:
    """The median of a figure over the runs that ended well; None where there is none."""
    found = [getattr(s, what) for s in samples if (s.case, s.tool, s.exit_code) == (case, tool, 0)]
    return median(found) if found else None


def ratio(samples: Sequence[Sample], case: Case, tool: str, what: str = "cpu_s") -> float | None:
    """A tool's median over py-rattler's on the same case."""
    own, bare = mid(samples, case, tool, what), mid(samples, case, BARE, what)
    return own / bare if own is not None and bare else None


def goals(samples: Sequence[Sample]) -> list[Goal]:
    """CPU and peak memory on every case of the goals' size."""
    found = []
    for case in cases(samples):
        if case.rows < GOAL_ROWS:
            continue
        for tool in (STAGE, ENVSPEC):
            times, peak = ratio(samples, case, tool), mid(samples, case, tool, "peak_bytes")
            if times is not None:
                found.append(Goal(f"{tool}, CPU", case.title, times, CPU_BOUND, f"x {BARE}"))
            if peak is not None:
                found.append(Goal(f"{tool}, peak memory", case.title, peak / 1e6, MEMORY_BOUND_MB, "MB"))
    return found


def cases(samples: Iterable[Sample]) -> list[Case]:
    return list(dict.fromkeys(sample.case for sample in samples))


def page(results: CondaResults) -> str:
    """Goals first, then one table a case, then what went wrong and how it was measured."""
    samples = results.samples
    parts = ["# Locking the conda half, side by side", ""]
    parts += [" · ".join(f"{key}: {value}" for key, value in results.machine.items()), ""]
    parts += ["Tools: " + " · ".join(f"{tool} {version}" for tool, version in results.tools.items()), ""]
    parts += ["## Goals", "", *_goals(results), ""]
    for case in cases(samples):
        parts += [f"## {case.title}", "", *_case(results, case), ""]
    parts += ["## What failed", "", *_faults(samples), "", "## How", "", *_how(results), ""]
    return "\n".join(parts)


def _goals(results: CondaResults) -> list[str]:
    if not results.goals:
        return [f"None: no channel of {GOAL_ROWS:,} rows was measured."]
    return goals_table(results.goals, "on")


def _case(results: CondaResults, case: Case) -> list[str]:
    rows = []
    for tool in dict.fromkeys(sample.tool for sample in results.samples if sample.case == case):
        agreement = next((a for a in results.agreements if (a.case, a.tool) == (case, tool)), None)
        rows.append([tool, *_figures(results.samples, case, tool), *_agreed(agreement)])
    head = ["tool", "CPU s", "x py-rattler", "wall s", "x py-rattler", "peak MB", "of it own MB", "rows", "same rows"]
    return table(head, rows)


def _figures(samples: Sequence[Sample], case: Case, tool: str) -> list[str]:
    def figure(value: float | None, form: str, scale: float = 1.0) -> str:
        return "-" if value is None else format(value * scale, form)

    return [
        figure(mid(samples, case, tool, "cpu_s"), ".2f"),
        figure(ratio(samples, case, tool), ".2f"),
        figure(mid(samples, case, tool, "wall_s"), ".2f"),
        figure(ratio(samples, case, tool, "wall_s"), ".2f"),
        figure(mid(samples, case, tool, "peak_bytes"), ".0f", 1e-6),
        figure(mid(samples, case, tool, "own_bytes"), ".0f", 1e-6),
    ]


def _agreed(agreement: Agreement | None) -> list[str]:
    if agreement is None:
        return ["-", "-"]
    return [str(agreement.rows), "yes" if agreement.differing == 0 else f"{agreement.differing} differ"]


def _faults(samples: Iterable[Sample]) -> list[str]:
    lines = []
    for sample in samples:
        if sample.exit_code != 0:
            end = "over its limit" if sample.exit_code is None else f"exit {sample.exit_code}"
            lines.append(
                f"- {sample.case.title}, {sample.tool}: {end}: {' '.join(sample.said.split()) or 'no message'}"
            )
    return list(dict.fromkeys(lines)) or ["Nothing."]


def _how(results: CondaResults) -> list[str]:
    options = ", ".join(f"{key} {value}" for key, value in results.options.items())
    sizes = [
        f"- {rows} rows: " + ", ".join(f"{subdir} {what}" for subdir, what in subdirs.items())
        for rows, subdirs in results.channels.items()
    ]
    return [
        "Medians over the rounds; the tools take turns within each round. Every run is a process of its own with an",
        "empty home and, where nothing else is said, an empty cache; the channel's files are in the page cache. CPU is",
        "user and system time of the whole tree of processes, a server's not. Peak memory is the sum of resident sets,",
        "sampled every 20 ms: rattler maps a channel's file, so what it has read of it counts; the column beside it",
        f"says what is left without mapped files. Options: {options}.",
        "",
        "The channel is made by `python -m bench.conda_channel`, the same on every machine:",
        *sizes,
        "",
        *(f"- {tool}: {note}" for tool, note in results.notes.items()),
    ]


_COLORS: Final = {BARE: "#777777", STAGE: "#56b4e9", ENVSPEC: "#0072b2", CONDA_LOCK: "#d55e00"}


def plot(results: CondaResults, path: Path) -> None:
    """Draw how CPU and memory grow with rows (one platform) and with platforms (the largest channel)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    files = [case for case in cases(results.samples) if case.transport == "file"]
    by_rows = sorted((case for case in files if case.platforms == 1), key=lambda case: case.rows)
    most = max(case.rows for case in files)
    by_platforms = sorted((case for case in files if case.rows == most), key=lambda case: case.platforms)
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), layout="constrained", sharey="row")
    for row, (what, label, scale) in enumerate((("cpu_s", "CPU, s", 1.0), ("peak_bytes", "peak memory, MB", 1e-6))):
        for column, (chosen, unit) in enumerate(
            ((by_rows, "rows of linux-64 and noarch, thousands"), (by_platforms, f"platforms ({most:,} rows)"))
        ):
            axis = axes[row][column]
            for tool, color in _COLORS.items():
                points = [
                    (case.rows / 1000 if column == 0 else case.platforms, value * scale)
                    for case in chosen
                    if (value := mid(results.samples, case, tool, what)) is not None
                ]
                if points:
                    axis.plot(*zip(*points, strict=True), "o-", color=color, label=tool)
            axis.set_xlabel(unit)
            axis.set_ylabel(label)
            axis.grid(alpha=0.3)
            if column == 1:
                axis.set_xticks([case.platforms for case in chosen])
            if what == "peak_bytes":
                axis.axhline(MEMORY_BOUND_MB, color="#777777", linestyle=":", label="goal")
    for axis in axes[:, 0]:
        axis.set_ylim(bottom=0)
    axes[0][0].legend()
    figure.suptitle(f"Locking the conda half, {results.machine['date']}, {results.machine['cpu']}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
