"""What came of receipts beside each other, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from envspec.receipt.numbers import Better
from envspec.receipt.values import Receipt


class Weight(Enum):
    """What it means that receipts have different values for something.

    FAULT: one of them computes wrongly. DIFFERS: they are not the same. INFORMS: it may well be so.
    """

    FAULT = "fault"
    DIFFERS = "differs"
    INFORMS = "informs"


@dataclass(frozen=True, slots=True)
class Line:
    """Something that is not the same in all receipts. values: one of each receipt, empty where it has none."""

    what: str
    values: tuple[str, ...]
    weight: Weight
    told: str = ""


@dataclass(frozen=True, slots=True)
class NumberLine:
    """A number that several receipts have.

    worse: of each receipt by which part of the first one's it is worse, negative where it is better; None where it is
    not there, or of another kind of machine. tolerance: None where no change counts.
    """

    check: str
    name: str
    unit: str
    values: tuple[float | None, ...]
    better: Better
    worse: tuple[float | None, ...]
    tolerance: float | None

    @property
    def is_beyond(self) -> bool:
        """Whether one of them is further than the tolerance from the first, to the better or to the worse."""
        return self.tolerance is not None and any(abs(part) > self.tolerance for part in self.worse if part)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Receipts beside the first of them. names: theirs, no two the same. is_same_kind: of machine.

    stack, machine, versions, checks, findings, fingerprints: what is not the same in all.
    """

    names: tuple[str, ...]
    receipts: tuple[Receipt, ...]
    is_same_kind: bool
    stack: tuple[Line, ...]
    machine: tuple[Line, ...]
    versions: tuple[Line, ...]
    checks: tuple[Line, ...]
    findings: tuple[Line, ...]
    fingerprints: tuple[Line, ...]
    numbers: tuple[NumberLine, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        """Of all sections."""
        sections = (self.stack, self.machine, self.versions, self.checks, self.findings, self.fingerprints)
        return tuple(line for section in sections for line in section)

    @property
    def faults(self) -> tuple[Line, ...]:
        """Where one of the machines computes wrongly."""
        return tuple(line for line in self.lines if line.weight is Weight.FAULT)

    @property
    def differs(self) -> bool:
        """Whether there is a difference that counts."""
        return any(line.weight is not Weight.INFORMS for line in self.lines) or any(
            row.is_beyond for row in self.numbers
        )
