"""Events of a check's process for the suite, and of a rank's process for its check.

Each is a line of JSON in a file, flushed at once: a process that is killed by a signal leaves its findings up to then,
and its last phase. Not on stdout: gloo prints there.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, TextIO

from envspec.conformance.bounds import Limit
from envspec.conformance.nvml import Sensors
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import CheckFinding, Fingerprint, Kind, Level, NotRun, Peak, Phase, dumps


class EventWriter:
    """Writes the events of a process. current: the phase that began last."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self.current = "start"

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A timed part of the work; if the process is killed, the result names it."""
        # All processes share this clock: the suite records on it when the check's turn began.
        began = time.monotonic()
        self.current = name
        self.write("begin", [name, began])
        yield
        self.write("phase", [name, time.monotonic() - began])

    def write(self, kind: str, value: Any) -> None:
        """An event. kind: as `ProcessEvents` reads it."""
        # The thread of a rank's heartbeat writes too.
        with self._lock:
            self._lines.write(dumps({kind: value}) + "\n")
            self._lines.flush()


#: Events of which a process writes several.
_LISTS: Mapping[str, Callable[[Any], Any]] = {
    "findings": lambda value: CheckFinding(**{**value, "kind": Kind(value["kind"])}),
    "fingerprints": lambda value: Fingerprint(**{**value, "level": Level(value["level"])}),
    "peaks": lambda value: Peak(**value),
    "hints": str,
}


@dataclass
class ProcessEvents:
    """The events of one process until its end.

    turn: when the check's turn began, in seconds of the monotonic clock.
    phases: those in its turn.
    preimports: those before it.
    open_phases: begun and not ended, and when they began.
    current: the phase that began last.
    hints: of findings that failed.
    values: of a rank: results for the check.
    lost: of a rank: node -> why it is lost.
    raised: kind of the error, and its text.
    not_run: reason and hint.
    """

    turn: float = math.inf
    phases: list[Phase] = field(default_factory=list)
    preimports: list[Phase] = field(default_factory=list)
    open_phases: list[tuple[str, float]] = field(default_factory=list)
    current: str = "start"
    findings: list[CheckFinding] = field(default_factory=list)
    fingerprints: list[Fingerprint] = field(default_factory=list)
    ran: dict[str, str] = field(default_factory=dict)
    peaks: list[Peak] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    raised: tuple[str, str] | None = None
    not_run: tuple[str, str] | None = None
    done: bool = False

    @property
    def position(self) -> str:
        """Where the process was at its last event."""
        if not self.open_phases:
            return "between two phases"
        return f"in the phase {self.open_phases[-1][0]!r}"

    @property
    def peak(self) -> Peak:
        """The maximum of each kind of memory."""
        return Peak.largest(self.peaks)

    @staticmethod
    def read(path: Path) -> ProcessEvents:
        """The events in a file; the last line of a process that was killed may be cut."""
        events = ProcessEvents()
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                for kind, value in json.loads(line).items():
                    events._add(kind, value)
        return events

    def _add(self, kind: str, value: Any) -> None:
        if kind == "begin":
            self.current = value[0]
            self.open_phases.append((value[0], value[1]))
        elif kind == "phase":
            self._end_phase(*value)
        elif kind in _LISTS:
            getattr(self, kind).append(_LISTS[kind](value))
        elif kind in ("ran", "values"):
            getattr(self, kind).update([value])
        else:
            # turn, lost, raised, not_run, done
            setattr(self, kind, tuple(value) if isinstance(value, list) else value)

    def _end_phase(self, name: str, seconds: float) -> None:
        """A phase in which the turn began is split there."""
        phase = next(each for each in reversed(self.open_phases) if each[0] == name)
        self.open_phases.remove(phase)
        early = min(seconds, max(0.0, self.turn - phase[1]))
        if early:
            _add_to(self.preimports, Phase(name, early))
        if seconds > early or not early:
            _add_to(self.phases, Phase(name, seconds - early))


def _add_to(phases: list[Phase], ended: Phase) -> None:
    """Phases of one name are one: a burn has thousands of turns."""
    for number, each in enumerate(phases):
        if each.name == ended.name:
            phases[number] = Phase(ended.name, each.seconds + ended.seconds)
            return
    phases.append(ended)


#: Module -> its names in locks (normalised) besides its own; mostly conda's.
_LOCKED_NAMES: Mapping[str, tuple[str, ...]] = {"torch": ("pytorch",), "torch_geometric": ("pytorch-geometric", "pyg")}


def is_in_stack(request: SuiteRequest, module: str, *names: str) -> bool:
    """Whether a package is locked or installed. names: its further names in locks (normalised).

    A locked package counts even if it is not installed, so that its failing import is a failure.
    """
    in_locks = (module.replace("_", "-"), *_LOCKED_NAMES.get(module, ()), *names)
    return any(map(request.version, in_locks)) or importlib.util.find_spec(module) is not None


class CheckContext(EventWriter):
    """What a check reads of the run, and how it reports.

    scratch: an empty folder, removed with the check. gpu: number of the only GPU that this process sees, if the check
    runs in one process for each. peaks: of the checks before it, from its turn on.
    """

    def __init__(self, request: SuiteRequest, scratch: Path, events: TextIO) -> None:
        super().__init__(events)
        self.request = request
        self.gpu: int | None = None
        self.scratch = scratch
        self.peaks: dict[str, Peak] = {}
        self._modules: dict[str, Any] = {}

    @property
    def device(self) -> str:
        """`cuda` or `cpu`, torch's names."""
        return self.request.device

    @property
    def is_first(self) -> bool:
        """Whether this is the check's only process, or that of the first GPU, which tests what needs no GPU."""
        return not self.gpu

    def sensors(self, period_s: float = 1.0) -> contextlib.AbstractContextManager[Sensors | None]:
        """Sample the sensors of this process's GPU while a block runs; None if no GPU is requested."""
        if not self.request.cuda:
            return contextlib.nullcontext()
        return Sensors(self.request.gpus[self.gpu or 0].pci, period_s)

    def has(self, module: str, *names: str) -> bool:
        """As `is_in_stack`."""
        return is_in_stack(self.request, module, *names)

    def absence(self, module: str) -> str:
        return f"{module} is not in the lock" if self.request.locked else f"{module} is not installed"

    def load(self, module: str, *names: str) -> Any:
        """Import a module once, in a phase of its own, and record a package's version. names: see `has`.

        Raises:
            NotRun: it is neither locked nor installed.
            ImportError, OSError: it is, and can't be imported.
        """
        if module not in self._modules:
            if not self.has(module, *names):
                raise NotRun(self.absence(module))
            with self.phase(f"import {module}"):
                self._modules[module] = importlib.import_module(module)
            if "." not in module:
                self.ran(module, str(getattr(self._modules[module], "__version__", "unknown")))
        return self._modules[module]

    def exact(self, name: str, *, ok: bool, detail: str = "", hint: str = "") -> None:
        """A property that is right or wrong. hint: what to do if it is wrong."""
        self.write("findings", CheckFinding(name, Kind.EXACT, ok=bool(ok), detail=detail))
        if hint and not ok:
            self.write("hints", hint)

    def as_locked(self, name: str, *, ok: bool, detail: str = "", hint: str = "") -> None:
        """A property that the lock decides: right or wrong, or a text if the lock only informs (`as_if`)."""
        if self.request.locked:
            self.exact(name, ok=ok, detail=detail, hint=hint)
        elif not ok:
            self.note(f"{name}: differs from the lock", detail)

    def within(self, name: str, value: float, limit: Limit, unit: str = "", detail: str = "", hint: str = "") -> None:
        """A number and its bound; NaN fails. hint: what to do if it is beyond the bound."""
        value = float(value)
        if math.isnan(value):
            detail = ": ".join(filter(None, [detail, "not a number"]))
        finding = CheckFinding(
            name,
            Kind.BOUNDED,
            limit.holds(value),
            _finite(value),
            unit,
            limit.value,
            limit.relation.value,
            limit.formula,
            limit.source,
            detail,
        )
        self.write("findings", finding)
        if hint and not finding.ok:
            self.write("hints", hint)

    def measure(self, name: str, value: float, unit: str, detail: str = "", spread: float | None = None) -> None:
        """A number that neither passes nor fails. unit: `s`, `TFLOP/s`, `bytes`, `1/s`. spread: see `CheckFinding`."""
        finding = CheckFinding(name, Kind.INFO, value=_finite(value), unit=unit, detail=detail, spread=spread)
        self.write("findings", finding)

    def note(self, name: str, detail: str) -> None:
        """A text that neither passes nor fails."""
        self.write("findings", CheckFinding(name, Kind.INFO, detail=detail))

    def not_run(self, name: str, reason: str) -> None:
        """A part of the check that this machine or this stack can't run."""
        self.write("findings", CheckFinding(name, Kind.NOT_RUN, detail=reason))

    def ran(self, what: str, version: str) -> None:
        """The version of something that really ran: torch, cuDNN, NCCL."""
        self.write("ran", [what, version])

    def fingerprint(self, name: str, parts: Sequence[bytes], level: Level, key: str = "") -> None:
        """A hash over results, in their order. key: what it depends on, if it is not universal."""
        digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()
        self.write("fingerprints", Fingerprint(name, level, digest, key))

    def peak(self, peak: Peak) -> None:
        """Memory of this check or of another process of it; the maximum counts."""
        self.write("peaks", peak)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
