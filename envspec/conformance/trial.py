"""What a check is given: the order, a folder of its own, and the ways to say what it finds.

Every word is a line of JSON in a file, flushed at once, so that a process that dies by a signal leaves what it found
until then, and in which phase it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from envspec.conformance.bounds import Limit
from envspec.conformance.order import Order
from envspec.conformance.values import Finding, Fingerprint, Kind, Level, Peak, as_json


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
