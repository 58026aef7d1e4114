"""The receipts of many nodes: which differ from most of them, in what, and which to take out of use. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final, NamedTuple

from envspec.conformance.results import CheckOutcome, Status
from envspec.context import ranges
from envspec.receipts.compare import Line, Weight, differences, fingerprints
from envspec.receipts.metrics import Better, Number, kind, numbers, tolerance, worsening
from envspec.receipts.model import Receipt

#: A value is odd beyond this many deviations from the median, estimated by 1.4826 times the median of the absolute
#: deviations (MAD). Source: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993.
DEVIATIONS: Final = 3.5
_SCALE: Final = 1.4826
#: With fewer nodes of a kind, their median and their deviations show little: only tolerances count.
FEWEST: Final = 4
#: Of a kind of machine: the suite ran on each node by itself.
_ALONE: Final = "; 1 node"
_GPU: Final = re.compile(r"GPU (\d+): ")


class NodeVerdict(Enum):
    """What to do with a node, the worst first."""

    DRAIN = "drain"
    WATCH = "watch"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node of a run. receipt: None if it is lost. lost: why.

    together: the receipt of its checks with other nodes; None if there were none, or if it is lost there: why.
    """

    name: str
    receipt: Receipt | None
    lost: str = ""
    together: Receipt | None = None
    together_lost: str = ""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node, and why it is not `ok`, the worst reason first."""

    name: str
    verdict: NodeVerdict
    reasons: tuple[str, ...]
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class OddNumber:
    """A rate in which a node is worse than most of its kind; of several GPUs of a node the worst.

    gpus: their numbers; empty if the rate is no GPU's. worse: as a fraction of the median. deviations: how many from
    the median; None with too few nodes, or if most have the same value.
    """

    node: str
    check: str
    name: str
    gpus: tuple[int, ...]
    unit: str
    value: float
    median: float
    worse: float
    deviations: float | None

    @property
    def what(self) -> str:
        """As `matmul: bf16, on GPU 0-3,7`."""
        return f"{self.check}: {self.name}{f', on GPU {ranges(self.gpus)}' if self.gpus else ''}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A property that most nodes of a kind share. others: value -> the nodes that have it instead."""

    what: str
    most: str
    others: Mapping[str, tuple[str, ...]]
    counts: bool


@dataclass(frozen=True, slots=True)
class Fleet:
    """nodes: by verdict, then by name. shared: what fails on all nodes, and so is no fault of one.

    few: kinds of machines with fewer than FEWEST nodes.
    """

    nodes: tuple[NodeReport, ...]
    odd: tuple[OddNumber, ...]
    differences: tuple[Difference, ...]
    shared: tuple[str, ...]
    few: tuple[str, ...]

    def of(self, verdict: NodeVerdict) -> tuple[NodeReport, ...]:
        return tuple(each for each in self.nodes if each.verdict is verdict)

    @property
    def is_well(self) -> bool:
        """Whether no node is to be drained, and nothing fails on all."""
        return not (self.of(NodeVerdict.DRAIN) or self.shared)


def fleet(nodes: Iterable[FleetNode]) -> Fleet:
    """Compare nodes with each other. Their names are unique; their order does not matter."""
    found = sorted(nodes, key=lambda node: natural(node.name))
    receipts = {node.name: node.receipt for node in found if node.receipt}
    shared = _shared(list(receipts.values()), "on each node")
    alone = {name for name, _ in shared}
    together = [node.together for node in found if node.together]
    shared_together = _shared(together, "with the others, on each node")
    kinds: dict[str, dict[str, Receipt]] = {}
    for name, receipt in receipts.items():
        kinds.setdefault(kind(receipt), {})[name] = receipt
    odd = [each for named in kinds.values() for each in _odd_numbers(named)]
    different = [each for named in kinds.values() for each in _differences(named)]
    faults = dict(_faults(receipts))
    majority = max(map(len, kinds.values()), default=0)
    reports = []
    for node in found:
        drain = [*([f"lost: {node.lost}"] if node.receipt is None else []), *faults.get(node.name, ())]
        watch: list[str] = []
        if node.receipt:
            drain += _failed(node.receipt, alone)
            watch += _not_run(node.receipt, receipts.values())
            same = kinds[kind(node.receipt)]
            if len(same) == 1 and 2 * majority > len(receipts) > 2:
                watch.append(f"is the only one of its kind: {kind(node.receipt).removesuffix(_ALONE)}")
        watch += [_shown(each) for each in odd if each.node == node.name]
        for each in different:
            watch += [
                f"{each.what}: {value or 'none'}, most have {each.most or 'none'}"
                for value, names in each.others.items()
                if each.counts and node.name in names
            ]
        if node.together:
            watch += [
                f"with the others: {each}" for each in _failed(node.together, {name for name, _ in shared_together})
            ]
        elif node.together_lost:
            watch.append(f"with the others: lost: {node.together_lost}")
        verdict = NodeVerdict.DRAIN if drain else NodeVerdict.WATCH if watch else NodeVerdict.OK
        reports.append(NodeReport(node.name, verdict, (*drain, *watch), node.receipt))
    order = list(NodeVerdict)
    return Fleet(
        nodes=tuple(sorted(reports, key=lambda each: order.index(each.verdict))),
        odd=tuple(sorted(odd, key=lambda each: -each.worse)),
        differences=tuple(different),
        shared=tuple(text for _, text in (*shared, *shared_together)),
        few=tuple(each.removesuffix(_ALONE) for each, named in kinds.items() if len(named) < FEWEST),
    )


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key by which node10 follows node9."""
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def hostlist(names: Iterable[str]) -> str:
    """Names as Slurm writes them: `login,node[1-3,7]`. Numbers keep their zeros."""
    stems: dict[str, list[str]] = {}
    for name in sorted(set(names), key=natural):
        stem = name.rstrip("0123456789")
        stems.setdefault(stem, []).append(name[len(stem) :])
    groups: dict[tuple[str, int], list[int]] = {}
    for stem, texts in stems.items():
        is_padded = any(digits.startswith("0") for digits in texts)
        for digits in texts:
            group = groups.setdefault((stem, len(digits) if is_padded else 0), [])
            group += [int(digits)] if digits else []
    return ",".join(
        f"{stem}{ranges(found, width)}" if len(found) < 2 else f"{stem}[{ranges(found, width)}]"
        for (stem, width), found in groups.items()
    )


def _shared(receipts: Sequence[Receipt], where: str) -> list[tuple[str, str]]:
    """Checks that fail in all of several receipts, and the text about each."""
    if len(receipts) < 2:
        return []
    failed = [{each.check: each for each in receipt.checks if _is_failed(each)} for receipt in receipts]
    names = [name for name in failed[0] if all(name in each for each in failed)]
    return [(name, f"{name} fails {where}: {failed[0][name].reason}") for name in names]


def _is_failed(check: CheckOutcome) -> bool:
    return check.status is Status.FAILED or (check.required and check.status is Status.NOT_RUN)


def _failed(receipt: Receipt, shared: set[str]) -> list[str]:
    found = [each for each in receipt.checks if _is_failed(each) and each.check not in shared]
    return [f"{each.check}: {' '.join(each.reason.split()) or each.status.value}" for each in found]


def _not_run(receipt: Receipt, receipts: Iterable[Receipt]) -> Iterator[str]:
    """Checks that did not run here and passed on most nodes."""
    mine = {each.check: each for each in receipt.checks if each.status is Status.NOT_RUN and not each.required}
    if not mine:
        return
    passed: Counter[str] = Counter()
    count = 0
    for other in receipts:
        count += 1
        passed.update(each.check for each in other.checks if each.status is Status.PASSED)
    for name, check in mine.items():
        if 2 * passed[name] > count:
            yield f"{name}: not run: {check.reason}"


def _faults(named: Mapping[str, Receipt]) -> Iterator[tuple[str, list[str]]]:
    """Nodes whose results differ from those of most, though they are equal on every machine."""
    names, receipts = tuple(named), tuple(named.values())
    found: dict[str, list[str]] = {}
    for line in fingerprints(names, receipts):
        if line.weight is Weight.FAULT:
            most, others = _split(names, line)
            for value, odd in others.items():
                # Without a majority nothing shows which of them are right.
                why = "computes other results than most nodes" if most else "nodes compute different results"
                for name in odd if value else ():
                    found.setdefault(name, []).append(f"{line.what}: {why}")
    yield from found.items()


def _split(names: Sequence[str], line: Line) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The value that more than half of the nodes with a value have, or none, and the nodes of each other value."""
    known = [value for value in line.values if value]
    value, count = Counter(known).most_common(1)[0] if known else ("", 0)
    most = value if 2 * count > len(known) else ""
    others: dict[str, tuple[str, ...]] = {}
    for name, each in zip(names, line.values, strict=True):
        if each != most:
            others[each] = (*others.get(each, ()), name)
    return most, others


def _differences(named: Mapping[str, Receipt]) -> Iterator[Difference]:
    names, receipts = tuple(named), tuple(named.values())
    for line in differences(receipts):
        most, others = _split(names, line)
        yield Difference(line.what, most, others, counts=line.weight is Weight.DIFFERS and bool(most))


def _odd_numbers(named: Mapping[str, Receipt]) -> Iterator[OddNumber]:
    """GPUs count together, whatever their number in the node."""
    found: dict[tuple[str, str, str], list[tuple[str, Number]]] = {}
    for name, receipt in named.items():
        for each in numbers(receipt):
            if each.better is Better.HIGHER and each.tolerance is not None:
                key = each.check, _GPU.sub("", each.name), each.unit
                found.setdefault(key, []).append((name, each))
    for (check, what, unit), rows in found.items():
        nodes: dict[str, list[_Odd]] = {}
        for node, odd in _odd(rows, is_enough=len(named) >= FEWEST):
            nodes.setdefault(node, []).append(odd)
        for node, several in nodes.items():
            worst = max(several, key=lambda each: each.worse)
            gpus = tuple(int(gpu[1]) for each in several if (gpu := _GPU.match(each.number.name)))
            value = worst.number.value
            yield OddNumber(node, check, what, gpus, unit, value, worst.median, worst.worse, worst.deviations)


class _Odd(NamedTuple):
    number: Number
    median: float
    worse: float
    deviations: float | None


def _odd(rows: Sequence[tuple[str, Number]], *, is_enough: bool) -> Iterator[tuple[str, _Odd]]:
    middle = median(each.value for _, each in rows)
    if len(rows) < 2 or not middle:
        return
    deviation = _SCALE * median(abs(each.value - middle) for _, each in rows) / middle
    usual = min((each for _, each in rows), key=lambda each: abs(each.value - middle))
    for node, each in rows:
        worse, allowed = worsening(each.better, middle, each.value), tolerance(usual, each)
        if allowed is not None and worse > max(allowed, DEVIATIONS * deviation if is_enough else 0.0):
            yield node, _Odd(each, middle, worse, worse / deviation if is_enough and deviation else None)


def _shown(odd: OddNumber) -> str:
    return f"{odd.what} is {100 * odd.worse:.0f} % below the median"
