"""Receipts compared: several with the first of them, and one run with a recorded one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final, TypeVar

from envspec.conformance.results import CheckFinding, CheckOutcome, Fingerprint, Kind, Level, Status
from envspec.receipts.metrics import Better, Number, better, devices, has_kind, kind, numbers, tolerance, worsening
from envspec.receipts.model import Baseline, BaselineRow, Receipt

K = TypeVar("K")


class Weight(Enum):
    """What a difference between receipts means.

    FAULT: one of the machines computes wrong results. DIFFERS: it counts. INFO: it is harmless.
    """

    FAULT = "fault"
    DIFFERS = "differs"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Line:
    """A value that is not the same in all receipts. values: one for each receipt, empty if it has none."""

    what: str
    values: tuple[str, ...]
    weight: Weight
    note: str = ""


@dataclass(frozen=True, slots=True)
class NumberLine:
    """A number that several receipts have.

    worse: for each receipt, how much worse it is as a fraction of the first value, negative if it is better; None if
    the receipt has no such number or is of another kind of machine. tolerances: for each receipt, how much worse it may
    be; None if no change counts.
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
        return any(each is not None for each in self.tolerances)

    @property
    def is_beyond(self) -> bool:
        """Whether a value differs from the first by more than its tolerance, better or worse."""
        return any(
            part is not None and allowed is not None and abs(part) > allowed
            for part, allowed in zip(self.worse, self.tolerances, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Receipts compared with the first of them. names: unique. is_same_kind: of machine.

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
        return any(line.weight is not Weight.INFO for line in self.lines) or any(row.is_beyond for row in self.numbers)


def _is_locked(receipt: Receipt) -> str:
    if receipt.local is None:
        return "an image"
    return {True: "yes", False: "no", None: "unknown"}[receipt.local.is_locked]


def _topology(receipt: Receipt) -> str:
    return ", ".join(f"{pair} {how}" for pair, how in sorted(receipt.machine.topology.items()))


def _environment(receipt: Receipt) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(receipt.machine.environment.items()))


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
    names, receipts = tuple(name for name, _ in named), tuple(receipt for _, receipt in named)
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


def _versions(receipts: Sequence[Receipt]) -> Iterator[Line]:
    for what in sorted({what for receipt in receipts for what in receipt.ran}):
        values = tuple(receipt.ran.get(what, "") for receipt in receipts)
        if len(set(values)) > 1:
            # A run of fewer checks loads fewer libraries of the same stack.
            yield Line(what, values, Weight.DIFFERS if len({*values} - {""}) > 1 else Weight.INFO)


def _numbers(receipts: Sequence[Receipt]) -> Iterator[NumberLine]:
    rows = [{number.key: number for number in numbers(receipt)} for receipt in receipts]
    kinds = [kind(receipt) if has_kind(receipt) else None for receipt in receipts]
    for key in _ordered(rows):
        found = [row.get(key) for row in rows]
        present = [each for each in found if each]
        if len(present) < 2:
            continue
        first, like = present[0], present[0].better
        base = kinds[found.index(first)]
        worse = tuple(
            worsening(like, first.value, each.value) if each and base and other == base else None
            for each, other in zip(found, kinds, strict=True)
        )
        values = tuple(each.value if each else None for each in found)
        allowed = tuple(tolerance(first, each) if each and each is not first else None for each in found)
        yield NumberLine(first.check, first.name, first.unit, values, like, worse, allowed)


def _ordered(rows: Iterable[Iterable[K]]) -> list[K]:
    """Every key of several tables once, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _checks(receipts: Sequence[Receipt]) -> Iterator[Line]:
    rows = [{check.check: check for check in receipt.checks} for receipt in receipts]
    for name in _ordered(rows):
        found = [row.get(name) for row in rows]
        values = tuple(_outcome(check) for check in found)
        if len(set(values)) > 1:
            why = next((check.reason for check in found if check and check.status is not Status.PASSED), "")
            yield Line(name, values, Weight.DIFFERS, why)


def _outcome(check: CheckOutcome | None) -> str:
    if check is None:
        return "not requested"
    return f"{check.status.value}, {check.cause.value}" if check.cause else check.status.value


def _findings(receipts: Sequence[Receipt]) -> Iterator[Line]:
    """Findings that pass or fail, and those that were not run, of checks that all receipts have.

    A part that ran in one receipt only is no difference by itself: an image is pulled once.
    """
    rows = [
        {(check.check, each.name, each.unit): each for check in receipt.checks for each in check.findings}
        for receipt in receipts
    ]
    shared = set.intersection(*({check.check for check in receipt.checks} for receipt in receipts))
    for check, name, unit in _ordered(rows):
        if check not in shared:
            continue
        found = [row.get((check, name, unit)) for row in rows]
        outcomes = {_judged(each) for each in found}
        values = tuple(_value(each) for each in found)
        if len(outcomes) > 1:
            weight = Weight.DIFFERS if outcomes & {"passed", "failed"} else Weight.INFO
            yield Line(f"{check}: {name}", values, weight, _note(found))
        elif "info" not in outcomes and len(set(values)) > 1:
            yield Line(f"{check}: {name}", values, Weight.INFO, _apart(found))


def _judged(finding: CheckFinding | None) -> str:
    if finding is None:
        return "missing"
    if finding.kind is Kind.NOT_RUN:
        return "not run"
    return "info" if finding.kind is Kind.INFO else "passed" if finding.ok else "failed"


def _value(finding: CheckFinding | None) -> str:
    if finding is None:
        return ""
    outcome = _judged(finding)
    if finding.value is None:
        return outcome
    return f"{outcome}, {finding.value:.6g} {finding.unit}".rstrip()


def _note(found: Sequence[CheckFinding | None]) -> str:
    return next((each.detail for each in found if each and each.ok is not True and each.detail), "")


def _apart(found: Sequence[CheckFinding | None]) -> str:
    values = [abs(each.value) for each in found if each and each.value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if not low or high - low <= 1e-6 * low:
        return ""
    ratio = high / low
    return f"{100 * (ratio - 1):.2g} % apart" if ratio < 1.1 else f"the largest is {ratio:.3g} times the smallest"


def inputs_of(receipt: Receipt) -> str:
    """What exact results depend on: the seed determines the input values, the version of the suite their sizes."""
    return f"seed {receipt.seed}, envspec {receipt.envspec}"


def fingerprints(names: Sequence[str], receipts: Sequence[Receipt]) -> Iterator[Line]:
    """Results that are not the same bit by bit; a FAULT where they are equal on every machine."""
    rows = [
        {f"{check.check}: {each.name}": each for check in receipt.checks for each in check.fingerprints}
        for receipt in receipts
    ]
    inputs = list(map(inputs_of, receipts))
    for what in _ordered(rows):
        if line := _fingerprint(what, names, [row.get(what) for row in rows], inputs):
            yield line


def _fingerprint(
    what: str, names: Sequence[str], found: Sequence[Fingerprint | None], inputs: Sequence[str]
) -> Line | None:
    """Hashes of one computation: exact ones must agree, others if their keys are equal. inputs: of each receipt."""
    values = tuple(each.digest if each else "" for each in found)
    if len({value for value in values if value}) == 1:
        return None
    groups: dict[tuple[Level, str], set[str]] = {}
    for each, given in zip(found, inputs, strict=True):
        if each:
            key = ", ".join(filter(None, [each.key, given])) if len(set(inputs)) > 1 else each.key
            groups.setdefault((each.level, key), set()).add(each.digest)
    if any(level is Level.UNIVERSAL and len(digests) > 1 for (level, _), digests in groups.items()):
        note = "results that are equal on every machine differ: one of the machines computes wrong results"
        return Line(what, values, Weight.FAULT, f"{note} ({_odd(names, values)})")
    if any(len(digests) > 1 for digests in groups.values()):
        return Line(what, values, Weight.INFO, "same key, different bits: floats were summed in another order")
    if len(groups) > 1:
        keys = "; ".join(sorted(key for _, key in groups))
        return Line(what, values, Weight.INFO, f"not compared: the keys differ: {keys}")
    return None


def _odd(names: Sequence[str], values: Sequence[str]) -> str:
    known = [value for value in values if value]
    most = max(known, key=known.count)
    if 2 * known.count(most) <= len(known):
        return "these receipts do not show which one"
    odd = [name for name, value in zip(names, values, strict=True) if value not in ("", most)]
    return f"differs from the majority: {', '.join(odd)}"


@dataclass(frozen=True, slots=True)
class ComparisonColumn:
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
        passed = {check.check for check in receipt.checks if check.status is Status.PASSED}
        rows.append([number for number in numbers(receipt) if number.check in passed])
    found = [
        ComparisonColumn(title, unit, tuple(_best(row, check, unit, name) for row in rows))
        for title, check, unit, name in _MAIN
    ]
    whole = ComparisonColumn("suite", "s", tuple(receipt.seconds for receipt in receipts))
    return (*(column for column in found if any(value is not None for value in column.values)), whole)


def _best(found: Iterable[Number], check: str, unit: str, name: str | None) -> float | None:
    """The best number of a check in a unit, with a name if there is one. Of several GPUs the worst counts."""
    best, worst = (min, max) if better(unit) is Better.LOWER else (max, min)
    values: list[float] = []
    gpus: dict[str, list[float]] = {}
    for number in found:
        _, what, _ = number.of_all_gpus
        if (number.check, number.unit) == (check, unit) and name in (None, what):
            (values if number.gpu is None else gpus.setdefault(what, [])).append(number.value)
    return best([*values, *map(worst, gpus.values())], default=None)


def against(now: Receipt, recorded: Receipt) -> Baseline:
    """Compare every rate and every peak of memory of a run with those of a recorded one.

    Machines of different or unknown kinds are not compared, nor are receipts whose rates have no spread yet:
    `not_compared` says why.
    """
    baseline = Baseline(lock=recorded.subject, made_at=recorded.made_at, machine=kind(recorded))
    why = ""
    if kind(now) != kind(recorded):
        why = f"the machines are of different kinds: recorded on {kind(recorded)}; this is {kind(now)}"
    elif not has_kind(now):
        why = f"the kind of machine is unknown: it has {kind(now)}"
    present = {number.key: number for number in numbers(now)}
    found = [(number, present.get(number.key)) for number in numbers(recorded) if number.value]
    if not why and _lacks_spreads(found):
        why = (
            f"no rate of the recorded receipt has a spread (envspec {recorded.envspec} wrote it): record it again with "
            "this envspec, on the same machine when it does nothing else"
        )
    if why:
        return baseline.model_copy(update={"not_compared": why})
    rows = tuple(
        _row(number, each.value, allowed)
        for number, each in found
        if each and (allowed := tolerance(number, each)) is not None
    )
    gone = [number for number, each in found if number.tolerance is not None and each is None]
    unclear = tuple(
        f"{row.check}: {row.name}, its times were too far apart: other programs ran"
        for row in rows
        if row.tolerance >= 1
    )
    rows = tuple(row for row in rows if row.tolerance < 1)
    return baseline.model_copy(update={"rows": rows, "missing": (*_missing(now, gone), *unclear)})


def _lacks_spreads(found: Sequence[tuple[Number, Number | None]]) -> bool:
    """Whether rates that are judged now were recorded, and none of them with a spread."""
    judged = [
        number.tolerance is not None for number, now in found if now and now.better is Better.HIGHER and now.tolerance
    ]
    return bool(judged) and not any(judged)


def _missing(now: Receipt, gone: Sequence[Number]) -> Iterator[str]:
    """Numbers that the run does not have; a check that was not requested is listed once."""
    requested = {check.check for check in now.checks}
    others = dict.fromkeys(number.check for number in gone if number.check not in requested)
    if others:
        yield f"{', '.join(others)}, not requested"
    yield from (f"{number.check}: {number.name}" for number in gone if number.check in requested)


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
