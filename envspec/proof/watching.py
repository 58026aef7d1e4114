"""What the suite tells while it runs, line by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Begun:
    """A check has begun."""

    check: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A check is over. status: of `envspec.conformance.values.Status`. seconds: its wall time."""

    check: str
    status: str
    seconds: float
    reason: str


Told = Callable[["Begun | Ended"], None]


def heard(line: str) -> Begun | Ended | None:
    """What a line of the suite's stdout says; None for any other."""
    try:
        said = json.loads(line)
        if "begin" in said:
            return Begun(said["begin"])
        return Ended(said["end"], said["status"], float(said["seconds"]), said["reason"])
    except (ValueError, TypeError, KeyError):
        return None


def tell(line: str, told: Told) -> None:
    """Hand on what a line says."""
    said = heard(line)
    if said is not None:
        told(said)
