"""The events of a check's process, summed up."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from envspec.conformance.values import Finding, Fingerprint, Peak, finding_of, fingerprint_of


@dataclass
class Heard:
    """What a process has said until its end.

    turn: when the check's turn came, in seconds of the system's monotonic clock. phases: of its turn. ahead: of the
    time before. begun: phases that have begun and not ended, and when. hints: what to do, of findings that are wrong.
    raised: kind of the error, and its text. not_run: the reason, and what would help.
    """

    turn: float = math.inf
    phases: list[tuple[str, float]] = field(default_factory=list)
    ahead: list[tuple[str, float]] = field(default_factory=list)
    begun: list[tuple[str, float]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    fingerprints: list[Fingerprint] = field(default_factory=list)
    ran: dict[str, str] = field(default_factory=dict)
    peaks: list[Peak] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    raised: tuple[str, str] | None = None
    not_run: tuple[str, str] | None = None
    done: bool = False

    @property
    def place(self) -> str:
        """Where the process was when it said its last word."""
        return f"in the phase {self.begun[-1][0]!r}" if self.begun else "between two phases"

    @property
    def peak(self) -> Peak:
        """The largest of all that it has told."""

        def largest(name: str) -> int | None:
            return max((value for each in self.peaks if (value := getattr(each, name)) is not None), default=None)

        return Peak(largest("allocated_bytes"), largest("reserved_bytes"), largest("host_bytes"))

    def end_phase(self, name: str, seconds: float) -> None:
        """A phase is over; one in which the turn came has a part on either side."""
        row = next(each for each in reversed(self.begun) if each[0] == name)
        self.begun.remove(row)
        early = min(seconds, max(0.0, self.turn - row[1]))
        if early:
            self.ahead.append((name, early))
        if seconds > early or not early:
            self.phases.append((name, seconds - early))


#: What a line may say -> what it adds.
_WORDS: Mapping[str, Callable[[Heard, Any], object]] = {
    "turn": lambda heard, at: setattr(heard, "turn", at),
    "begin": lambda heard, row: heard.begun.append(tuple(row)),
    "phase": lambda heard, ended: heard.end_phase(*ended),
    "finding": lambda heard, row: heard.findings.append(finding_of(row)),
    "fingerprint": lambda heard, row: heard.fingerprints.append(fingerprint_of(row)),
    "ran": lambda heard, pair: heard.ran.update([pair]),
    "peak": lambda heard, row: heard.peaks.append(Peak(**row)),
    "hint": lambda heard, text: heard.hints.append(text),
    "raised": lambda heard, pair: setattr(heard, "raised", tuple(pair)),
    "not_run": lambda heard, pair: setattr(heard, "not_run", tuple(pair)),
    "done": lambda heard, is_done: setattr(heard, "done", is_done),
}


def hear(path: Path) -> Heard:
    """What the lines of a file say; the last one of a process that was killed may be cut."""
    heard = Heard()
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            for what, value in json.loads(line).items():
                _WORDS[what](heard, value)
    return heard
