"""Receipts compared: several with the first of them, and one run with a recorded one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Final, TypeVar

from msgspec import Struct

from envspec.conformance.results import CheckFinding, CheckOutcome, Fingerprint, Kind, Level, Status
from envspec.receipts.metrics import Better, Number, better, devices, has_kind, kind, numbers, tolerance, worsening
from envspec.receipts.model import Baseline, BaselineRow, Receipt

K = TypeVar("K")
V = TypeVar("V")


class Weight(Enum):
    """What a difference between receipts means.

    FAULT: one of the machines computes wrong results. DIFFERS: it counts. INFO: it is harmless.
    """

    FAULT = "fault"
    DIFFERS = "differs"
    INFO = "info"


class Line(Struct, frozen=True):
    """A value that is not the same in all receipts.

    values: one for each receipt, empty if it has none.
    """

    what: str
    values: tuple[str, ...]
    weight: Weight
    note: str = ""


class NumberLine(Struct, frozen=True):
    """A number that several receipts have.

    worse: for each receipt, how much worse it is as a fraction of the first value, negative if it is better; None if
        the receipt has no such number or is of another kind of machine.
    tolerances: for each receipt, how much worse it may be; None if no change counts.
    """

    check: str
    name: str
    unit: str
    values: tuple[float | None, ...]
    better: Better
    worse: tuple[float | None, ...]
    tolerances: tuple[float | None, ...]

    @property
    def is_judged(self) -> bool:
        """Whether a change of one of the values counts."""
        return _has_any(self.tolerances)

    @property
    def is_beyond(self) -> bool:
        """Whether a value differs from the first by more than its tolerance, better or worse."""
        for part, allowed in zip(self.worse, self.tolerances, strict=True):
            if part is not None and allowed is not None and abs(part) > allowed:
                return True
        return False


class Comparison(Struct, frozen=True):
    """Receipts compared with the first of them.

    names: unique.
    is_same_kind: of machine.
    sections: what is not the same in all receipts: `Stack`, `Machine`, `Versions that ran`, `Checks`, `Findings` and
    `Fingerprints`.
    """

    names: tuple[str, ...]
    receipts: tuple[Receipt, ...]
    is_same_kind: bool
    sections: Mapping[str, tuple[Line, ...]]
    numbers: tuple[NumberLine, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(chain.from_iterable(self.sections.values()))

    @property
    def faults(self) -> tuple[Line, ...]:
        """Differences that show that a machine computes wrong results."""
        return tuple(line for line in self.lines if line.weight is Weight.FAULT)

    @property
    def differs(self) -> bool:
        """Whether there is a difference that counts."""
        if any(row.is_beyond for row in self.numbers):
            return True
        return any(line.weight is not Weight.INFO for line in self.lines)


def _has_any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _is_locked(receipt: Receipt) -> str:
    if receipt.local is None:
        return "an image"
    return {True: "yes", False: "no", None: "unknown"}[receipt.local.is_locked]


def _topology(receipt: Receipt) -> str:
    return ", ".join(map(" ".join, sorted(receipt.machine.topology.items())))


def _environment(receipt: Receipt) -> str:
    return ", ".join(map("=".join, sorted(receipt.machine.environment.items())))


_Comparable = tuple[str, Callable[[Receipt], str], Weight]

_STACK: Final[Sequence[_Comparable]] = (
    ("lock", lambda receipt: receipt.subject, Weight.DIFFERS),
    # A build records image IDs and system packages in envspec.lock; the identity does not include them.
    ("envspec.lock", lambda receipt: f"sha256:{receipt.lock.sha256}" if receipt.lock else "", Weight.INFO),
    ("lock's identity", lambda receipt: f"sha256:{receipt.lock.identity}" if receipt.lock else "", Weight.DIFFERS),
    ("image ID", lambda receipt: receipt.image.id if receipt.image else "no image", Weight.DIFFERS),
    ("environment matches the lock", _is_locked, Weight.DIFFERS),
    ("envspec", lambda receipt: receipt.envspec, Weight.INFO),
)
_MACHINE: Final[Sequence[_Comparable]] = (
    ("kind of machine", kind, Weight.DIFFERS),
    ("devices", devices, Weight.DIFFERS),
    ("driver", lambda receipt: receipt.machine.driver, Weight.DIFFERS),
    ("container toolkit", lambda receipt: receipt.machine.toolkit, Weight.INFO),
    ("topology", _topology, Weight.DIFFERS),
    # They change what is measured.
    ("environment variables", _environment, Weight.DIFFERS),
    ("system", lambda receipt: receipt.machine.system, Weight.INFO),
    ("kernel", lambda receipt: receipt.machine.kernel, Weight.INFO),
    ("CPU", lambda receipt: receipt.machine.cpu, Weight.INFO),
    ("CPUs", lambda receipt: str(receipt.machine.cpus or ""), Weight.INFO),
    ("memory, bytes", lambda receipt: str(receipt.machine.memory_bytes or ""), Weight.INFO),
    ("shared memory, bytes", lambda receipt: str(receipt.machine.shm_bytes or ""), Weight.INFO),
)


def compare(named: Sequence[tuple[str, Receipt]]) -> Comparison:
    """What is not the same in two or more receipts; numbers are compared with those of the first."""
    names, receipts = zip(*named, strict=True)
    return Comparison(
        names=names,
        receipts=receipts,
        is_same_kind=len(set(map(kind, receipts))) == 1 and all(map(has_kind, receipts)),
        sections={
            "Stack": tuple(_differing(_STACK, receipts)),
            "Machine": tuple(_differing(_MACHINE, receipts)),
            "Versions that ran": tuple(_versions(receipts)),
            "Checks": tuple(_checks(receipts)),
            "Findings": tuple(_findings(receipts)),
            "Fingerprints": tuple(fingerprints(names, receipts)),
        },
        numbers=tuple(_numbers(receipts)),
    )


def differences(receipts: Sequence[Receipt]) -> Iterator[Line]:
    """Of the stack, the machine and the versions that ran: what is not the same in all receipts."""
    return chain(_differing(_STACK, receipts), _differing(_MACHINE, receipts), _versions(receipts))


def _differing(questions: Iterable[_Comparable], receipts: Sequence[Receipt]) -> Iterator[Line]:
    for what, answer, weight in questions:
        values = tuple(answer(receipt) for receipt in receipts)
        if len(set(values)) > 1:
            yield Line(what, values, weight)


def _aligned(
    receipts: Sequence[Receipt], table: Callable[[Receipt], Mapping[K, V]]
) -> Iterator[tuple[K, list[V | None]]]:
    """Every key of the receipts' tables, in order of first appearance, with its value in each receipt."""
    tables = list(map(table, receipts))
    for key in dict.fromkeys(chain.from_iterable(tables)):
        yield key, [each.get(key) for each in tables]


def _in_all(receipts: Sequence[Receipt], table: Callable[[Receipt], Mapping[K, V]]) -> set[K]:
    """The keys that the tables of all receipts have."""
    return set.intersection(*(set(table(receipt)) for receipt in receipts))


def _versions(receipts: Sequence[Receipt]) -> Iterator[Line]:
    rows = dict(_aligned(receipts, lambda receipt: receipt.ran))
    for what in sorted(rows):
        values = tuple(version or "" for version in rows[what])
        if len(set(values)) > 1:
            # A run of fewer checks loads fewer libraries of the same stack.
            is_other = len(set(filter(None, values))) > 1
            yield Line(what, values, Weight.DIFFERS if is_other else Weight.INFO)


def _numbers(receipts: Sequence[Receipt]) -> Iterator[NumberLine]:
    kinds = [kind(receipt) if has_kind(receipt) else "" for receipt in receipts]
    for _, found in _aligned(receipts, _numbers_of):
        present = list(filter(None, found))
        if len(present) >= 2:
            yield _number_line(present[0], found, kinds)


def _numbers_of(receipt: Receipt) -> dict[tuple[str, str, str], Number]:
    return {number.key: number for number in numbers(receipt)}


def _number_line(first: Number, found: Sequence[Number | None], kinds: Sequence[str]) -> NumberLine:
    """A number of several receipts.

    first: of the first receipt that has it.
    found: of each receipt; None if it does not have the number.
    kinds: of the receipts' machines; empty if unknown.
    """
    base = kinds[found.index(first)]
    values: list[float | None] = []
    worse: list[float | None] = []
    tolerances: list[float | None] = []
    for number, other in zip(found, kinds, strict=True):
        part = allowed = None
        if number and base and other == base:
            part = worsening(first.better, first.value, number.value)
        if number and number is not first:
            allowed = tolerance(first, number)
        values.append(number.value if number else None)
        worse.append(part)
        tolerances.append(allowed)
    return NumberLine(first.check, first.name, first.unit, tuple(values), first.better, tuple(worse), tuple(tolerances))


def _checks(receipts: Sequence[Receipt]) -> Iterator[Line]:
    for name, found in _aligned(receipts, _checks_of):
        values = tuple(map(_outcome, found))
        if len(set(values)) > 1:
            yield Line(name, values, Weight.DIFFERS, _first_reason(found))


def _checks_of(receipt: Receipt) -> dict[str, CheckOutcome]:
    return {check.check: check for check in receipt.checks}


def _outcome(check: CheckOutcome | None) -> str:
    if check is None:
        return "not requested"
    if check.cause is None:
        return check.status.value
    return f"{check.status.value}, {check.cause.value}"


def _first_reason(found: Sequence[CheckOutcome | None]) -> str:
    """The reason of the first check that did not pass."""
    for check in found:
        if check and check.status is not Status.PASSED:
            return check.reason
    return ""


def _findings(receipts: Sequence[Receipt]) -> Iterator[Line]:
    """Findings that pass or fail, and those that were not run, of checks that all receipts have.

    A part that ran in one receipt only is no difference by itself: an image is pulled once.
    """
    shared = _in_all(receipts, _checks_of)
    for (check, name, _), found in _aligned(receipts, _findings_of):
        if check not in shared:
            continue
        outcomes = set(map(_judged, found))
        values = tuple(map(_value, found))
        if len(outcomes) > 1:
            weight = Weight.DIFFERS if outcomes & {"passed", "failed"} else Weight.INFO
            yield Line(f"{check}: {name}", values, weight, _note(found))
        elif "info" not in outcomes and len(set(values)) > 1:
            yield Line(f"{check}: {name}", values, Weight.INFO, _apart(found))


def _findings_of(receipt: Receipt) -> dict[tuple[str, str, str], CheckFinding]:
    rows = {}
    for check in receipt.checks:
        for each in check.findings:
            rows[check.check, each.name, each.unit] = each
    return rows


def _judged(finding: CheckFinding | None) -> str:
    if finding is None:
        return "missing"
    if finding.kind is Kind.NOT_RUN:
        return "not run"
    if finding.kind is Kind.INFO:
        return "info"
    return "passed" if finding.ok else "failed"


def _value(finding: CheckFinding | None) -> str:
    if finding is None:
        return ""
    outcome = _judged(finding)
    if finding.value is None:
        return outcome
    return f"{outcome}, {finding.value:.6g} {finding.unit}".rstrip()


def _note(found: Sequence[CheckFinding | None]) -> str:
    """What was observed first that did not pass."""
    for each in found:
        if each and each.ok is not True and each.detail:
            return each.detail
    return ""


def _apart(found: Sequence[CheckFinding | None]) -> str:
    values = [abs(each.value) for each in found if each and each.value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if not low or high - low <= 1e-6 * low:
        return ""
    ratio = high / low
    if ratio < 1.1:
        return f"{100 * (ratio - 1):.2g} % apart"
    return f"the largest is {ratio:.3g} times the smallest"


def inputs_of(receipt: Receipt) -> str:
    """What exact results depend on: the seed determines the input values, the version of the suite their sizes."""
    return f"seed {receipt.seed}, envspec {receipt.envspec}"


def fingerprints(names: Sequence[str], receipts: Sequence[Receipt]) -> Iterator[Line]:
    """Results that are not the same bit by bit; a FAULT where they are equal on every machine."""
    inputs = list(map(inputs_of, receipts))
    for what, found in _aligned(receipts, _fingerprints_of):
        if line := _fingerprint(what, names, found, inputs):
            yield line


def has_shared_fingerprint(receipts: Sequence[Receipt]) -> bool:
    """Whether all receipts have a fingerprint of the same computation."""
    return bool(_in_all(receipts, _fingerprints_of))


def _fingerprints_of(receipt: Receipt) -> dict[str, Fingerprint]:
    rows = {}
    for check in receipt.checks:
        for each in check.fingerprints:
            rows[f"{check.check}: {each.name}"] = each
    return rows


def _fingerprint(
    what: str, names: Sequence[str], found: Sequence[Fingerprint | None], inputs: Sequence[str]
) -> Line | None:
    """Hashes of one computation: exact ones must agree, others if their keys are equal. inputs: of each receipt."""
    values = tuple(each.digest if each else "" for each in found)
    if len(set(filter(None, values))) == 1:
        return None
    groups: dict[tuple[Level, str], set[str]] = {}
    for each, given in zip(found, inputs, strict=True):
        if each is None:
            continue
        key = each.key
        if len(set(inputs)) > 1:
            key = ", ".join(filter(None, [each.key, given]))
        groups.setdefault((each.level, key), set()).add(each.digest)
    split = [level for (level, _), digests in groups.items() if len(digests) > 1]
    if Level.UNIVERSAL in split:
        note = "results that are equal on every machine differ: one of the machines computes wrong results"
        return Line(what, values, Weight.FAULT, f"{note} ({_odd(names, values)})")
    if split:
        return Line(what, values, Weight.INFO, "same key, different bits: floats were summed in another order")
    if len(groups) > 1:
        keys = "; ".join(sorted(key for _, key in groups))
        return Line(what, values, Weight.INFO, f"not compared: the keys differ: {keys}")
    return None


def majority(values: Iterable[str]) -> str:
    """The value of more than half of those with a value; empty if there is none."""
    counts = Counter(filter(None, values))
    if not counts:
        return ""
    value, count = counts.most_common(1)[0]
    return value if 2 * count > counts.total() else ""


def _odd(names: Sequence[str], values: Sequence[str]) -> str:
    most = majority(values)
    if not most:
        return "these receipts do not show which one"
    odd = [name for name, value in zip(names, values, strict=True) if value not in ("", most)]
    return f"differs from the majority: {', '.join(odd)}"


class ComparisonColumn(Struct, frozen=True):
    """A number of each receipt; None if it has none."""

    title: str
    unit: str
    values: tuple[float | None, ...]

    @property
    def better(self) -> Better:
        return better(self.unit)


#: Title, check, unit and the number's name; without a name the check's best number in this unit.
_MAIN: Final = (
    ("matmul", "matmul", "TFLOP/s", None),
    ("bus bandwidth", "ddp", "GB/s", None),
    ("training", "amp", "1/s", None),
    ("tokens", "transformer", "1/s", None),
    ("loader", "dataloader", "1/s", "training, from the loader"),
    ("first kernel", "coldstart", "s", "in all"),
)


def columns(receipts: Sequence[Receipt]) -> tuple[ComparisonColumn, ...]:
    """The main numbers of checks that passed in at least one of the receipts, and the time of the whole suite."""
    rows = []
    for receipt in receipts:
        passed = receipt.names_of(Status.PASSED)
        rows.append([number for number in numbers(receipt) if number.check in passed])
    found = []
    for title, check, unit, name in _MAIN:
        values = tuple(_best(row, check, unit, name) for row in rows)
        if _has_any(values):
            found.append(ComparisonColumn(title, unit, values))
    seconds = tuple(receipt.seconds for receipt in receipts)
    return (*found, ComparisonColumn("suite", "s", seconds))


def _best(found: Iterable[Number], check: str, unit: str, name: str | None) -> float | None:
    """The best number of a check in a unit, with a name if there is one. Of several GPUs the worst counts."""
    best, worst = (min, max) if better(unit) is Better.LOWER else (max, min)
    values: list[float] = []
    gpus: dict[str, list[float]] = {}
    for number in found:
        _, what, _ = number.of_all_gpus
        if (number.check, number.unit) != (check, unit) or name not in (None, what):
            continue
        if number.gpu is None:
            values.append(number.value)
        else:
            gpus.setdefault(what, []).append(number.value)
    values += map(worst, gpus.values())
    return best(values, default=None)


def against(now: Receipt, recorded: Receipt) -> Baseline:
    """Compare every rate and every peak of memory of a run with those of a recorded one.

    Machines of different or unknown kinds are not compared: `not_compared` says why.
    """
    baseline = Baseline(lock=recorded.subject, made_at=recorded.made_at, machine=kind(recorded))
    if why := _why_not_compared(now, recorded):
        return baseline.model_copy(update={"not_compared": why})
    present = _numbers_of(now)
    rows: list[BaselineRow] = []
    missing: list[Number] = []
    unclear: list[str] = []
    for number in numbers(recorded):
        measured = present.get(number.key)
        if not number.value:
            continue
        if measured is None:
            if number.tolerance is not None:
                missing.append(number)
            continue
        allowed = tolerance(number, measured)
        if allowed is None:
            continue
        if allowed < 1:
            rows.append(_row(number, measured.value, allowed))
        else:
            unclear.append(f"{number.check}: {number.name}, its times were too far apart: other programs ran")
    return baseline.model_copy(update={"rows": tuple(rows), "missing": (*_missing(now, missing), *unclear)})


def _why_not_compared(now: Receipt, recorded: Receipt) -> str:
    """Empty if the receipts can be compared."""
    if kind(now) != kind(recorded):
        return f"the machines are of different kinds: recorded on {kind(recorded)}; this is {kind(now)}"
    if not has_kind(now):
        return f"the kind of machine is unknown: it has {kind(now)}"
    return ""


def _missing(now: Receipt, missing: Sequence[Number]) -> list[str]:
    """Numbers that the run does not have; checks that were not requested are listed first, once."""
    requested = _checks_of(now)
    others: dict[str, None] = {}
    texts = []
    for number in missing:
        if number.check in requested:
            texts.append(f"{number.check}: {number.name}")
        else:
            others[number.check] = None
    if others:
        texts.insert(0, f"{', '.join(others)}, not requested")
    return texts


def _row(number: Number, now: float, allowed: float) -> BaselineRow:
    return BaselineRow(
        check=number.check,
        name=number.name,
        unit=number.unit,
        recorded=number.value,
        now=now,
        change=(now - number.value) / number.value,
        tolerance=allowed,
        is_worse=worsening(number.better, number.value, now) > allowed,
    )
