"""Results of the checks; each value is an object of results.json."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

#: Of results.json and of the request: the suite and envspec must agree on it.
FORMAT = 1


class Kind(Enum):
    """How a finding counts: the first two pass or fail."""

    EXACT = "exact"
    BOUNDED = "bounded"
    INFORMING = "informing"
    NOT_RUN = "not run"


class Status(Enum):
    """Result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


class Cause(Enum):
    """Why a check failed: by its findings, or by the end of its process."""

    FOUND = "found"
    RAISED = "raised"
    CRASHED = "crashed"
    OVER_LIMIT = "over its limit"
    OUT_OF_MEMORY = "out of memory"


class Level(Enum):
    """Where a fingerprint is the same: everywhere, or on the same kind of machine and stack only."""

    UNIVERSAL = "universal"
    KEYED = "keyed"


class NotRun(Exception):
    """This machine or this stack can't run the check, or a part of it."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes: torch 2.9 names a missing symbol only in `__cause__`."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


@dataclass(frozen=True)
class CheckFinding:
    """One value or property that a check examined.

    ok: None if the finding neither passes nor fails. value: in `unit`. bound: the limit of `value`, by `relation`.
    detail: the observation, or the reason why it was not run.
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
    detail: str = ""

    @staticmethod
    def of(data: dict[str, Any]) -> CheckFinding:
        """The finding that `as_json` wrote."""
        return CheckFinding(**{**data, "kind": Kind(data["kind"])})

    def __str__(self) -> str:
        if self.value is not None and self.bound is not None:
            unit = f" {self.unit}" if self.unit else ""
            text = f"{self.name}: {self.value:.3g}{unit}, must be {self.relation} {self.bound:.3g}{unit}"
            return f"{text} ({self.detail})" if self.detail else text
        return f"{self.name}: {self.detail}" if self.detail else self.name


@dataclass(frozen=True)
class Fingerprint:
    """A SHA-256 over results. key: what it depends on; empty at the universal level."""

    name: str
    level: Level
    digest: str
    key: str = ""

    @staticmethod
    def of(data: dict[str, Any]) -> Fingerprint:
        """The fingerprint that `as_json` wrote."""
        return Fingerprint(**{**data, "level": Level(data["level"])})


@dataclass(frozen=True)
class Peak:
    """Maximum memory of a check: tensors on its device, memory reserved there, and host memory of its process."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    host_bytes: int | None = None


@dataclass
class CheckOutcome:
    """Everything about one check.

    seconds: from its turn to its end. phases: (name, seconds) within its turn. preimports: the same of what it imported
    before its turn, while other checks ran. log: the end of its output; empty if it passed.
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
    preimports: list[tuple[str, float]] = field(default_factory=list)
    findings: list[CheckFinding] = field(default_factory=list)
    fingerprints: list[Fingerprint] = field(default_factory=list)
    ran: dict[str, str] = field(default_factory=dict)
    peak: Peak = Peak()
    log: str = ""


def as_json(value: Any) -> Any:
    """Values of this module, or containers of them, in JSON's types; NaN and infinite numbers become null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if isinstance(value, (CheckFinding, Fingerprint, Peak, CheckOutcome)):
        return as_json(asdict(value))
    return value
