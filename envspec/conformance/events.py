"""JSON lines between a check and the suite.

Every word is a line of JSON in a file, flushed at once, so that a process that dies by a signal leaves what it found
until then, and in which phase it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, TextIO

from envspec.conformance.bounds import Limit
from envspec.conformance.request import Order
from envspec.conformance.results import Finding, Fingerprint, Kind, Level, Peak, as_json, finding_of, fingerprint_of


@dataclass(frozen=True)
class Files:
    """The folder of one check. order: the run's. peaks: of the checks before it. log: what its processes print."""

    folder: Path

    @property
    def order(self) -> Path:
        return self.folder / "order.json"

    @property
    def peaks(self) -> Path:
        return self.folder / "peaks.json"

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"


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


class Trial:
    """One check's view of the run.

    scratch: an empty folder, which goes with it. peaks: of the checks before it, once its turn has come. loaded: what
    it has imported, by `packages.load`.
    """

    def __init__(self, order: Order, scratch: Path, events: TextIO) -> None:
        self.order = order
        self.scratch = scratch
        self.peaks: dict[str, Peak] = {}
        self.loaded: dict[str, Any] = {}
        self._events = events

    @property
    def device(self) -> str:
        """`cuda` or `cpu`, as torch calls them."""
        return self.order.device

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of the check, timed; where the process dies, it is told as the place."""
        # On the clock that all processes share: the suite says on it when the check's turn came.
        began = time.monotonic()
        self._say("begin", [name, began])
        yield
        self._say("phase", [name, time.monotonic() - began])

    def exact(self, name: str, *, ok: bool, told: str = "", hint: str = "") -> None:
        """Something that is right or wrong. told: what was seen. hint: what to do where it is wrong."""
        self._find(Finding(name, Kind.EXACT, ok=bool(ok), told=told))
        if hint and not ok:
            self._say("hint", hint)

    def within(self, name: str, value: float, limit: Limit, unit: str = "", told: str = "") -> None:
        """A number held against a bound of the table; what is no number fails."""
        value = float(value)
        finding = Finding(
            name,
            Kind.BOUNDED,
            ok=limit.holds(value),
            value=value,
            unit=unit,
            bound=limit.value,
            relation=limit.relation.value,
            formula=limit.formula,
            source=limit.source,
            told=told if not math.isnan(value) else f"{told + ': ' if told else ''}not a number",
        )
        self._find(finding)

    def inform(self, name: str, value: float, unit: str, told: str = "") -> None:
        """A number that judges nothing: a time, a bandwidth, a memory peak. unit: `s`, `TFLOP/s`, `bytes`, `1/s`."""
        self._find(Finding(name, Kind.INFORMING, value=float(value), unit=unit, told=told))

    def tell(self, name: str, told: str) -> None:
        """A word that judges nothing."""
        self._find(Finding(name, Kind.INFORMING, told=told))

    def not_run(self, name: str, reason: str) -> None:
        """A part of the check that this machine or this stack can't do."""
        self._find(Finding(name, Kind.NOT_RUN, told=reason))

    def ran(self, what: str, version: str) -> None:
        """The version of something that really ran: torch, cuDNN, NCCL."""
        self._say("ran", [what, version])

    def fingerprint(self, name: str, parts: Sequence[bytes], level: Level, key: str = "") -> None:
        """A hash over results, in their order. key: what it depends on, where it is not universal."""
        digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()
        self._say("fingerprint", Fingerprint(name, level, digest, key))

    def peak(self, peak: Peak) -> None:
        """The most memory that this check held; what other processes of its tell counts too, the largest stands."""
        self._say("peak", peak)

    def _find(self, finding: Finding) -> None:
        self._say("finding", finding)

    def _say(self, what: str, value: Any) -> None:
        self._events.write(json.dumps({what: as_json(value)}) + "\n")
        self._events.flush()
