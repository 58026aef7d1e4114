"""What was measured, its medians and ratios, and the goals that it is held against."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import median
from typing import Final

REFERENCE: Final = "uv pip compile"
OURS: Final = "envspec"


class Scenario(Enum):
    COLD = "cold"
    WARM = "warm"
    ADDED = "one package added"
    UNCHANGED = "nothing changed"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. received_bytes: from the network, None where not counted. exit_code: None for a run over its limit."""

    stack: str
    tool: str
    scenario: str
    round: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    received_bytes: int | None
    exit_code: int | None
    said: str


@dataclass(frozen=True, slots=True)
class Absence:
    """A run that was not made, and why: no tool is left out in silence."""

    stack: str
    tool: str
    scenario: str
    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool locked for a stack: how many packages, the torch family's versions, and whether they go together."""

    stack: str
    tool: str
    packages: int
    family: dict[str, str]
    verdict: str
    imports: str = "not tried"


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the goals: what was measured against what, in which unit, and whether it is within the bound."""

    what: str
    stack: str
    measured: float
    bound: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.measured <= self.bound


@dataclass(frozen=True, slots=True)
class Results:
    machine: dict[str, str]
    tools: dict[str, str]
    notes: dict[str, str]
    options: dict[str, object]
    samples: tuple[Sample, ...]
    absences: tuple[Absence, ...]
    answers: tuple[Answer, ...]
    goals: tuple[Goal, ...]

    def document(self) -> dict[str, object]:
        """For JSON: everything, goals with their verdict."""
        goals = [{**asdict(goal), "met": goal.is_met} for goal in self.goals]
        return {**asdict(self), "goals": goals}


def mid(samples: Iterable[Sample], stack: str, tool: str, scenario: Scenario, what: str = "wall_s") -> float | None:
    """The median of a figure over the runs that ended well; None where there is none.

    Times are those of the runs whose bytes were not counted, where there are such: the proxy takes part of a core.
    """
    found = [
        sample
        for sample in samples
        if (sample.stack, sample.tool, sample.scenario) == (stack, tool, scenario.value) and sample.exit_code == 0
    ]
    if what == "received_bytes":
        found = [sample for sample in found if sample.received_bytes is not None]
    else:
        found = [sample for sample in found if sample.received_bytes is None] or found
    return median(getattr(sample, what) for sample in found) if found else None


def ratio(samples: Sequence[Sample], stack: str, tool: str, scenario: Scenario) -> float | None:
    """A tool's median time over the reference's in the same scenario."""
    ours, reference = (mid(samples, stack, name, scenario) for name in (tool, REFERENCE))
    return ours / reference if ours is not None and reference else None


def lock_goals(samples: Sequence[Sample], stacks: Iterable[str]) -> list[Goal]:
    """The goals that compare with the reference, for each stack that both could lock."""
    bounds = ((Scenario.COLD, 1.15), (Scenario.WARM, 0.25), (Scenario.ADDED, 0.6))
    goals = []
    for stack in stacks:
        for scenario, bound in bounds:
            found = ratio(samples, stack, OURS, scenario)
            if found is not None:
                goals.append(Goal(f"{scenario.value}, time", stack, found, bound, f"x {REFERENCE}"))
        peak = mid(samples, stack, OURS, Scenario.COLD, "peak_bytes")
        if peak is not None:
            goals.append(Goal("cold, peak memory", stack, peak / 1e6, 250, "MB"))
    return goals


def verdict_on(family: dict[str, str]) -> str:
    """Whether locked versions of the torch family can be imported together, by what is known of their builds.

    torchaudio up to 2.10 is built for the torch of its own minor version, whatever its metadata says; torchtext 0.18.0,
    the last, for torch 2.3. Source: imports that were tried (docs and `--imports`).
    """
    torch, audio, text = (family.get(name, "").split("+")[0] for name in ("torch", "torchaudio", "torchtext"))
    faults = []
    if audio and _minor(audio) != _minor(torch) and _minor(torch) < (2, 11):
        faults.append(f"torchaudio {audio} beside torch {torch}")
    if text and _minor(torch) >= (2, 4):
        faults.append(f"torchtext {text} beside torch {torch}")
    return "; ".join(faults) or ("coherent" if torch else "")


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def published(text: str, limit: int = 600) -> str:
    """A tool's message without addresses, host names and paths of this machine."""
    text = re.sub(r"https?://[^\s'\",)]+", "<url>", text)
    text = re.sub(r"\b(?:[a-z0-9-]+\.)+(?:org|com|net|io|dev)\b", "<host>", text)
    text = re.sub(r"(?<![\w<])/(?:[\w.+@-]+/)+[\w.+@-]*", "<path>", text)
    return text[-limit:].strip()
