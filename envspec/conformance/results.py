"""What a check finds, as values; each becomes one object of results.json."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

#: Of results.json and of the order: both sides of the container's wall must say the same.
FORMAT = 1


class Kind(Enum):
    """What a finding may say of its check."""

    EXACT = "exact"
    BOUNDED = "bounded"
    INFORMING = "informing"
    NOT_RUN = "not run"


class Status(Enum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


class Cause(Enum):
    """Why a check failed: what it found, or what became of its process."""

    FOUND = "found"
    RAISED = "raised"
    CRASHED = "crashed"
    OVER_LIMIT = "over its limit"
    OUT_OF_MEMORY = "out of memory"


class Level(Enum):
    """How far a fingerprint reaches: the same everywhere, or only on the same kind of machine and stack."""

    UNIVERSAL = "universal"
    KEYED = "keyed"


class NotRun(Exception):
    """This machine, or this stack, can't do what is asked; the reason, and what would help."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True)
class Finding:
    """One thing that a check looked at.

    ok: None where it only informs or was not run. value: a number in `unit`, or a word. bound: what `value` is held
    against, by `relation`. told: what was seen, or the reason, in a few words.
    """

    name: str
    kind: Kind
    ok: bool | None = None
    value: float | None = None
    unit: str = ""
    bound: float | None = None
    relation: str = ""
    formula: str = ""
    source: str = ""
    told: str = ""


@dataclass(frozen=True)
class Fingerprint:
    """A SHA-256 over results. key: what it depends on; empty at the universal level."""

    name: str
    level: Level
    digest: str
    key: str = ""


@dataclass(frozen=True)
class Peak:
    """The most memory that a check's process held: on its device in tensors and reserved, and of the host."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    host_bytes: int | None = None


@dataclass
class Result:
    """What came of one check.

    seconds: from its turn to its end. phases: (name, seconds) of its turn. ahead: the same of what it imported before
    its turn, while other checks ran. log: the end of what it printed, where it did not pass.
    """

    check: str
    status: Status = Status.NOT_RUN
    cause: Cause | None = None
    reason: str = ""
    hint: str = ""
    required: bool = False
    seconds: float = 0.0
    limit_s: float = 0.0
    phases: list[tuple[str, float]] = field(default_factory=list)
    ahead: list[tuple[str, float]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    fingerprints: list[Fingerprint] = field(default_factory=list)
    ran: dict[str, str] = field(default_factory=dict)
    peak: Peak = Peak()
    log: str = ""


def as_json(value: Any) -> Any:
    """A value of this module, or several, as JSON has them; what is no finite number becomes null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if isinstance(value, (Finding, Fingerprint, Peak, Result)):
        return as_json(asdict(value))
    return value


def finding_of(data: dict[str, Any]) -> Finding:
    """The finding that `as_json` wrote."""
    return Finding(**{**data, "kind": Kind(data["kind"])})


def fingerprint_of(data: dict[str, Any]) -> Fingerprint:
    """The fingerprint that `as_json` wrote."""
    return Fingerprint(**{**data, "level": Level(data["level"])})
