"""What the suite tells while it runs, line by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from envspec.escaping import blanked


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
            return Begun(_word(said["begin"]))
        return Ended(_word(said["end"]), _word(said["status"]), float(said["seconds"]), _word(said["reason"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


def _word(value: object) -> str:
    """Of a program that the image may have put in the suite's place: nothing that steers a terminal."""
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return blanked(value)


def tell(line: str, told: Told) -> None:
    """Hand on what a line says."""
    said = heard(line)
    if said is not None:
        told(said)
