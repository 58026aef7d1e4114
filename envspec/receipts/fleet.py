"""The receipts of many nodes: which differ from most of them, in what, and which to take out of use. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from statistics import median
from typing import Final

from msgspec import Struct

from envspec.conformance.results import CheckFinding, Status
from envspec.conformance.results import Kind as FindingKind
from envspec.context import ranges
from envspec.receipts.compare import Weight, differences, fingerprints, inputs_of, majority
from envspec.receipts.metrics import HOST_PEAK, Better, Number, kind, models, numbers, tolerance, worsening
from envspec.receipts.model import Receipt, Verdict
from envspec.structs import replace

#: A value is odd beyond this many deviations from the median, estimated by 1.4826 times the median of the absolute
#: deviations (MAD). Source: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993.
DEVIATIONS: Final = 3.5
_SCALE: Final = 1.4826
#: With fewer nodes of a kind, their median and their deviations show little: only tolerances count.
FEWEST: Final = 4
#: Of a kind of machine: the suite ran on each node by itself.
_ALONE: Final = "; 1 node"


class NodeVerdict(Enum):
    """What to do with a node, the worst first."""

    DRAIN = "drain"
    WATCH = "watch"
    OK = "ok"


class FleetNode(Struct, frozen=True):
    """A node of a run.

    receipt: None if there is none; of a lost node that of its first checks.
    lost: why.
    together: the receipt of its checks with other nodes; None if there were none, or if it is lost there.
    together_lost: why.
    """

    name: str
    receipt: Receipt | None
    lost: str = ""
    together: Receipt | None = None
    together_lost: str = ""


class NodeReport(Struct, frozen=True):
    """A node, and why it is not `ok`, the worst reason first."""

    name: str
    verdict: NodeVerdict
    reasons: tuple[str, ...]
    receipt: Receipt | None


class OddNumber(Struct, frozen=True):
    """A rate or a peak of memory in which a node is worse than most of its kind; of several GPUs of a node the worst.

    gpus: their numbers; empty if the number is no GPU's.
    worse: as a fraction of the median.
    deviations: how many from the median; None with too few nodes, or if most have the same value.
    """

    node: str
    check: str
    name: str
    gpus: tuple[int, ...]
    unit: str
    value: float
    median: float
    better: Better
    worse: float
    deviations: float | None

    @property
    def what(self) -> str:
        """As `matmul: bf16, on GPU 0-3,7`."""
        what = f"{self.check}: {self.name}"
        if not self.gpus:
            return what
        return f"{what}, on GPU {ranges(self.gpus)}"

    @property
    def text(self) -> str:
        """The reason why the node is odd."""
        side = "below" if self.better is Better.HIGHER else "above"
        return f"{self.what} is {100 * self.worse:.0f} % {side} the median"


class NodeDifference(Struct, frozen=True):
    """A property that most nodes of a kind share. others: value -> the nodes that have it instead."""

    what: str
    most: str
    others: Mapping[str, tuple[str, ...]]
    counts: bool

    def texts_of(self, node: str) -> Iterator[str]:
        """The reason why a node is odd, if it is."""
        if not self.counts:
            return
        for value, names in self.others.items():
            if node in names:
                yield f"{self.what}: {value or 'none'}, most have {self.most or 'none'}"


class Fleet(Struct, frozen=True):
    """Nodes compared with each other.

    nodes: by verdict, then by name.
    shared: what fails on all nodes, and so is no fault of one.
    few: kinds of machines with fewer than FEWEST nodes.
    not_known: names of nodes with a receipt that is `not known`.
    """

    nodes: tuple[NodeReport, ...]
    odd: tuple[OddNumber, ...]
    differences: tuple[NodeDifference, ...]
    shared: tuple[str, ...]
    few: tuple[str, ...]
    not_known: tuple[str, ...]

    def of(self, verdict: NodeVerdict) -> tuple[NodeReport, ...]:
        return tuple(each for each in self.nodes if each.verdict is verdict)

    def names_of(self, verdict: NodeVerdict) -> tuple[str, ...]:
        return tuple(each.name for each in self.of(verdict))

    @property
    def verdict(self) -> Verdict:
        """`failed` if a node is to be drained or something fails on all, else `not known` if a receipt is."""
        if self.of(NodeVerdict.DRAIN) or self.shared:
            return Verdict.FAILED
        if self.not_known:
            return Verdict.NOT_KNOWN
        return Verdict.PASSED


def fleet(nodes: Iterable[FleetNode]) -> Fleet:
    """Compare nodes with each other. Their names are unique; their order does not matter."""
    found = sorted(nodes, key=lambda node: natural(node.name))
    judge = _Judge(found)
    reports = [judge.report(node) for node in found]
    order = list(NodeVerdict)
    few = []
    for name, named in judge.kinds.items():
        if len(named) < FEWEST:
            few.append(name.removesuffix(_ALONE))
    return Fleet(
        nodes=tuple(sorted(reports, key=lambda each: order.index(each.verdict))),
        odd=tuple(sorted(judge.odd, key=lambda each: -each.worse)),
        differences=tuple(judge.differences),
        shared=(*judge.shared.values(), *judge.shared_together.values()),
        few=tuple(few),
        not_known=tuple(node.name for node in found if _not_known(node)),
    )


class _Judge:
    """What is usual on the nodes of a fleet, and what each node differs in.

    kinds: kind of machine -> node -> its receipt.
    shared, shared_together: what fails on all nodes -> the text about it.
    numbers: node -> what is odd in its numbers, then what could not be compared.
    """

    def __init__(self, nodes: Sequence[FleetNode]) -> None:
        self.receipts = {node.name: node.receipt for node in nodes if node.receipt}
        self.shared = _shared(list(self.receipts.values()), "on each node")
        together = [node.together for node in nodes if node.together]
        self.shared_together = _shared(together, "with the others, on each node")
        self.kinds: dict[str, dict[str, Receipt]] = {}
        for name, receipt in self.receipts.items():
            self.kinds.setdefault(kind(receipt), {})[name] = receipt
        self.odd: list[OddNumber] = []
        self.numbers: defaultdict[str, list[str]] = defaultdict(list)
        self.differences: list[NodeDifference] = []
        for named in self.kinds.values():
            judged = _judged(named)
            for odd in _odd_numbers(judged, is_enough=len(named) >= FEWEST):
                self.odd.append(odd)
                self.numbers[odd.node].append(odd.text)
            for name, text in (*_parts_not_run(named), *_not_compared(named, judged)):
                self.numbers[name].append(text)
            self.differences += _differences(named)
        self._usual_kinds = _usual_kinds(self.receipts.values())
        self._usual_checks = _usual_checks(self.receipts.values())
        self._faults = dict(_faults(self.receipts))

    def report(self, node: FleetNode) -> NodeReport:
        drain, watch = list(self._faults_of(node)), list(self._oddities_of(node))
        verdict = NodeVerdict.OK
        if drain:
            verdict = NodeVerdict.DRAIN
        elif watch:
            verdict = NodeVerdict.WATCH
        return NodeReport(node.name, verdict, (*drain, *watch), node.receipt)

    def _faults_of(self, node: FleetNode) -> Iterator[str]:
        if node.lost or node.receipt is None:
            yield f"lost: {node.lost}"
        yield from self._faults.get(node.name, ())
        if node.receipt:
            yield from _failed(node.receipt, self.shared)

    def _oddities_of(self, node: FleetNode) -> Iterator[str]:
        yield from _not_known(node)
        if node.receipt:
            yield from _not_run(node.receipt, self._usual_checks)
            yield from self._unusual_kind(node.receipt)
        yield from self.numbers.get(node.name, ())
        for difference in self.differences:
            yield from difference.texts_of(node.name)
        if node.together:
            for each in _failed(node.together, self.shared_together):
                yield f"with the others: {each}"
        elif node.together_lost:
            yield f"with the others: lost: {node.together_lost}"

    def _unusual_kind(self, receipt: Receipt) -> Iterator[str]:
        own = kind(receipt)
        most = self._usual_kinds.get(models(receipt), own)
        largest = max(map(len, self.kinds.values()))
        count = len(self.receipts)
        if most != own:
            theirs = most.removesuffix(_ALONE)
            yield f"kind of machine: {own.removesuffix(_ALONE)}, most with these GPUs are {theirs}"
        elif len(self.kinds[own]) == 1 and count > 2 and 2 * largest > count:
            yield f"is the only one of its kind: {own.removesuffix(_ALONE)}"


def natural(name: str) -> tuple[Sequence[tuple[str, int]], str]:
    """A key by which node10 follows node9, and node01 precedes node1."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)], name


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
            # A name without a number stands alone.
            width = -1
            if digits:
                width = len(digits) if is_padded else 0
            groups.setdefault((stem, width), []).append(int(digits or 0))
    return ",".join(_hosts(stem, width, found) for (stem, width), found in groups.items())


def _hosts(stem: str, width: int, found: Sequence[int]) -> str:
    if width < 0:
        return stem
    if len(found) == 1:
        return f"{stem}{ranges(found, width)}"
    return f"{stem}[{ranges(found, width)}]"


def _shared(receipts: Sequence[Receipt], where: str) -> dict[str, str]:
    """What fails in all receipts, at least two -> the text about it. A check that did not run shows nothing."""
    failures = [_failures(receipt) for receipt in receipts]
    first: dict[str, str] = {}
    for found in failures:
        for name, text in found.items():
            first.setdefault(name, text)
    shared: dict[str, str] = {}
    not_run = [receipt.names_of(Status.NOT_RUN) for receipt in receipts]
    for name, text in first.items():
        count = unknown = 0
        for found, missing in zip(failures, not_run, strict=True):
            if name in found:
                count += 1
            elif name in missing:
                unknown += 1
        if count >= 2 and 2 * count > len(receipts) and count + unknown == len(receipts):
            shared[name] = f"{text}, {where}"
            if text.startswith(f"{name}: "):
                shared[name] = f"{name} fails {where}{text.removeprefix(name)}"
    return shared


def _not_known(node: FleetNode) -> list[str]:
    """Why it is not known whether the stack works on a node."""
    reasons = []
    for where, receipt in (("", node.receipt), ("with the others: ", node.together)):
        if receipt and receipt.verdict is Verdict.NOT_KNOWN:
            for reason in receipt.reasons:
                reasons.append(f"{where}not known: {reason}")
    return reasons


def _failures(receipt: Receipt) -> dict[str, str]:
    """Check, or number that is worse than a baseline's -> the failure; that of a check begins with its name."""
    if receipt.verdict is Verdict.NOT_KNOWN:
        return {}
    required = receipt.summary.required_not_run
    found: dict[str, str] = {}
    for each in receipt.checks:
        if each.status is Status.FAILED or each.check in required:
            found[each.check] = f"{each.check}: {' '.join(each.reason.split()) or each.status.value}"
    for row in receipt.worse_rows():
        # On each node, it is worse by another percentage.
        found[f"{row.check}: {row.name}"] = row.text
    for name in required:
        found.setdefault(name, f"{name}: required and not run")
    if not found and receipt.verdict is Verdict.FAILED:
        # Of other programs, or written by hand.
        found["verdict"] = "; ".join(receipt.reasons) or "its verdict is failed, without a reason"
    return found


def _failed(receipt: Receipt, shared: Container[str]) -> Iterator[str]:
    for name, text in _failures(receipt).items():
        if name not in shared:
            yield text


def _usual_checks(receipts: Collection[Receipt]) -> set[str]:
    """Checks that passed on most nodes."""
    passed: Counter[str] = Counter()
    for receipt in receipts:
        passed.update(receipt.names_of(Status.PASSED))
    return {name for name, count in passed.items() if 2 * count > len(receipts)}


def _usual_kinds(receipts: Iterable[Receipt]) -> dict[frozenset[str], str]:
    """Models of GPUs -> the kind of machine of more than half of the nodes with them: a lost GPU makes another kind."""
    pools: dict[frozenset[str], list[str]] = {}
    for receipt in receipts:
        pools.setdefault(models(receipt), []).append(kind(receipt))
    usual = {}
    for names, kinds in pools.items():
        most = majority(kinds)
        if names and most:
            usual[names] = most
    return usual


def _not_run(receipt: Receipt, usual: Set[str]) -> Iterator[str]:
    """Checks that did not run here. usual: those that passed on most nodes."""
    for each in receipt.checks:
        if each.status is Status.NOT_RUN and not each.required and each.check in usual:
            yield f"{each.check}: not run: {each.reason}"


def _parts_not_run(named: Mapping[str, Receipt]) -> Iterator[tuple[str, str]]:
    """Parts of checks that did not run on a node, and did on most nodes of its kind."""
    ran: Counter[tuple[str, str]] = Counter()
    missing: list[tuple[str, str, CheckFinding]] = []
    for name, receipt in named.items():
        here: set[tuple[str, str]] = set()
        for check in receipt.checks:
            for each in check.findings:
                if each.kind is FindingKind.NOT_RUN:
                    missing.append((name, check.check, each))
                else:
                    here.add((check.check, each.name))
        ran.update(here)
    for name, of_check, each in missing:
        if 2 * ran[of_check, each.name] > len(named):
            yield name, f"{of_check}: {each.name}: not run: {each.detail}"


def _faults(named: Mapping[str, Receipt]) -> Iterator[tuple[str, list[str]]]:
    """Nodes whose results differ from those of most with the same inputs, though they are equal on every machine."""
    found: dict[str, list[str]] = {}
    groups: dict[str, dict[str, Receipt]] = {}
    for name, receipt in named.items():
        groups.setdefault(inputs_of(receipt), {})[name] = receipt
    for group in groups.values():
        names = tuple(group)
        for line in fingerprints(names, tuple(group.values())):
            if line.weight is not Weight.FAULT:
                continue
            most = majority(line.values)
            # Without a majority nothing shows which of them are right.
            why = "computes other results than most nodes" if most else "nodes compute different results"
            for name, value in zip(names, line.values, strict=True):
                if value not in ("", most):
                    found.setdefault(name, []).append(f"{line.what}: {why}")
    yield from found.items()


def _differences(named: Mapping[str, Receipt]) -> Iterator[NodeDifference]:
    for line in differences(tuple(named.values())):
        most = majority(line.values)
        others: dict[str, tuple[str, ...]] = {}
        for name, value in zip(named, line.values, strict=True):
            if value != most:
                others[value] = (*others.get(value, ()), name)
        yield NodeDifference(line.what, most, others, counts=line.weight is Weight.DIFFERS and bool(most))


_Key = tuple[str, str, str]
_Judged = dict[_Key, list[tuple[str, Number]]]


def _judged(named: Mapping[str, Receipt]) -> _Judged:
    """The numbers whose changes count, with their nodes. GPUs count together, whatever their number in the node."""
    found: dict[_Key, list[tuple[str, Number]]] = {}
    for name, receipt in named.items():
        for each in numbers(receipt):
            # What the host's memory held of libraries depends on what else ran there, and is no fault of a node.
            if each.better is not Better.NEITHER and each.tolerance is not None and each.name != HOST_PEAK:
                found.setdefault(each.of_all_gpus, []).append((name, each))
    return found


def _odd_numbers(judged: _Judged, *, is_enough: bool) -> Iterator[OddNumber]:
    """is_enough: whether there are enough nodes for deviations."""
    for (check, what, unit), rows in judged.items():
        middle = _middle(rows)
        if len(rows) < 2 or not middle.value:
            continue
        deviation = 0.0
        if is_enough:
            deviation = _SCALE * median(abs(each.value - middle.value) for _, each in rows) / middle.value
        nodes: dict[str, list[tuple[float, Number]]] = {}
        for node, each in rows:
            worse, allowed = worsening(each.better, middle.value, each.value), tolerance(middle, each)
            # A tolerance of 1 is that of a rate which can't be compared.
            if allowed is not None and allowed < 1 and worse > max(allowed, DEVIATIONS * deviation):
                nodes.setdefault(node, []).append((worse, each))
        for node, several in nodes.items():
            worse, worst = max(several, key=lambda pair: pair[0])
            gpus = tuple(each.gpu for _, each in several if each.gpu is not None)
            deviations = worse / deviation if deviation else None
            yield OddNumber(node, check, what, gpus, unit, worst.value, middle.value, worst.better, worse, deviations)


def _not_compared(named: Mapping[str, Receipt], judged: _Judged) -> Iterator[tuple[str, str]]:
    """Nodes whose checks passed, but with rates that are missing or too disturbed to be compared."""
    passed = {name: receipt.names_of(Status.PASSED) for name, receipt in named.items()}
    for (check, what, _), rows in judged.items():
        if rows[0][1].better is not Better.HIGHER:
            continue
        middle = _middle(rows)
        counts = dict.fromkeys(named, 0)
        disturbed = set()
        for name, number in rows:
            counts[name] += 1
            if tolerance(middle, number) == 1:
                disturbed.add(name)
        usual, nodes = Counter(counts.values()).most_common(1)[0]
        for name in named:
            if check not in passed[name]:
                continue
            if 2 * nodes > len(named) and counts[name] < usual:
                found = f"{counts[name]} of {usual} rates were measured" if counts[name] else "not measured"
                yield name, f"{check}: {what}: not compared: {found}"
            elif name in disturbed:
                yield name, f"{check}: {what}: not compared: its times were too far apart: other programs ran"


def _middle(rows: Sequence[tuple[str, Number]]) -> Number:
    """The number of a node in the middle."""
    values, spreads = [], []
    for _, number in rows:
        values.append(number.value)
        spreads.append(number.spread)
    return replace(rows[0][1], value=median(values), spread=median(spreads))
