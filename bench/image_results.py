"""What was measured of images: medians, ratios, and the goals that they are held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import median
from typing import Final

from bench.image_contestants import DIRECT, DIRECT_PYC, UV, UV_PYC
from bench.results import Absence

UNCHANGED_S: Final = 0.3


class Scenario(Enum):
    COLD = "build + push, empty caches"
    CACHED = "build + push, wheels in the tool's cache"
    CHANGED = "build + push, one small package changed"
    UNCHANGED = "build + push, nothing changed"
    PULL = "first pull by the engine"
    PULL_CHANGED = "pull by the engine after the change"
    COPY = "first copy by skopeo"
    COPY_CHANGED = "copy by skopeo after the change"
    IMPORT = "biggest import in a fresh container"


BUILDS: Final = (Scenario.COLD, Scenario.CACHED, Scenario.CHANGED, Scenario.UNCHANGED)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run; None for what was not looked at.

    wall_s: all of it; push_s: of that, the push, where it is a command of its own. cpu_s: with the engine's.
    peak_bytes: resident, with the engine's. disk_bytes: more on disk than before the round, without the registry's.
    sent_bytes, read_bytes: to and from the registry. exit_code: None for a run over its limit.
    """

    stack: str
    tool: str
    scenario: str
    round: int
    wall_s: float
    push_s: float | None = None
    cpu_s: float | None = None
    peak_bytes: int | None = None
    disk_bytes: int | None = None
    sent_bytes: int | None = None
    read_bytes: int | None = None
    exit_code: int | None = 0
    said: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """An image without its base. packed_bytes: as the registry has it. unpacked_bytes: of files, as the engine says."""

    stack: str
    tool: str
    layers: int
    packed_bytes: int
    unpacked_bytes: int | None


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What was built. wheels: how many, with bytes as the index has them. module: the biggest import."""

    name: str
    wheels: int
    wheels_bytes: int
    module: str


@dataclass(frozen=True, slots=True)
class ImageGoal:
    """ours, theirs: the two figures; theirs is empty where the bound is an absolute one. at_least: of theirs / ours."""

    what: str
    stack: str
    ours: float
    theirs: float | None
    bound: float
    unit: str

    @property
    def ratio(self) -> float | None:
        return None if self.theirs is None else self.theirs / self.ours

    @property
    def is_met(self) -> bool:
        return self.ours < self.bound if self.ratio is None else self.ratio >= self.bound


@dataclass(frozen=True, slots=True)
class ImageResults:
    machine: dict[str, str]
    versions: dict[str, str]
    notes: dict[str, str]
    options: dict[str, object]
    stacks: tuple[StackFacts, ...]
    samples: tuple[Sample, ...]
    sizes: tuple[Size, ...]
    absences: tuple[Absence, ...]

    @property
    def goals(self) -> tuple[ImageGoal, ...]:
        return tuple(goal for stack in self.stacks for goal in goals(self.samples, self.sizes, stack.name))

    def document(self) -> dict[str, object]:
        """For JSON: everything, goals with their ratio and verdict."""
        told = [{**asdict(goal), "ratio": goal.ratio, "met": goal.is_met} for goal in self.goals]
        return {**asdict(self), "goals": told}


def mid(samples: Iterable[Sample], stack: str, tool: str, scenario: Scenario, what: str = "wall_s") -> float | None:
    """The median of a figure over the runs that ended well; None where there is none."""
    asked = (stack, tool, scenario.value, 0)
    found = [getattr(s, what) for s in samples if (s.stack, s.tool, s.scenario, s.exit_code) == asked]
    known = [value for value in found if value is not None]
    return median(known) if known else None


_PAIRS: Final = ((DIRECT, UV, 10.0), (DIRECT_PYC, UV_PYC, 5.0))


def goals(samples: Sequence[Sample], sizes: Sequence[Size], stack: str) -> list[ImageGoal]:
    """The goals that could be measured on a stack."""
    found = []
    for ours, theirs, bound in _PAIRS:
        for scenario, wanted in ((Scenario.COLD, bound), (Scenario.CACHED, bound), (Scenario.CHANGED, 50.0)):
            own, other = (mid(samples, stack, tool, scenario) for tool in (ours, theirs))
            if own and other:
                found.append(ImageGoal(f"{scenario.value}: {ours} against {theirs}", stack, own, other, wanted, "s"))
    for ours in (DIRECT, DIRECT_PYC):
        own = mid(samples, stack, ours, Scenario.UNCHANGED)
        if own:
            found.append(ImageGoal(f"{Scenario.UNCHANGED.value}: {ours}", stack, own, None, UNCHANGED_S, "s"))
    for ours, theirs, _ in _PAIRS:
        own_size, other_size = (_size(sizes, stack, tool) for tool in (ours, theirs))
        if own_size and other_size:
            pairs = [("packed", own_size.packed_bytes, other_size.packed_bytes)]
            if own_size.unpacked_bytes and other_size.unpacked_bytes:
                pairs.append(("unpacked", own_size.unpacked_bytes, other_size.unpacked_bytes))
            found += [
                ImageGoal(f"image, {form}: {ours} against {theirs}", stack, a / 1e6, b / 1e6, 1.0, "MB")
                for form, a, b in pairs
            ]
    return found


def _size(sizes: Iterable[Size], stack: str, tool: str) -> Size | None:
    return next((size for size in sizes if (size.stack, size.tool) == (stack, tool)), None)
