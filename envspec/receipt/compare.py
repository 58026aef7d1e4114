"""Receipts side by side: the same stack, on the same kind of machine, with the same outcome? And slower where? Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from envspec.receipt.compare_results import check_lines, finding_lines, fingerprint_lines, ordered
from envspec.receipt.comparison import Comparison, Line, NumberLine, Weight
from envspec.receipt.numbers import devices, has_kind, kind, numbers, worsening
from envspec.receipt.values import Receipt


def _is_locked(receipt: Receipt) -> str:
    if receipt.here is None:
        return "an image"
    return {True: "yes", False: "no", None: "not known"}[receipt.here.is_locked]


def _topology(receipt: Receipt) -> str:
    return ", ".join(f"{pair} {how}" for pair, how in sorted(receipt.machine.topology.items()))


_Question = tuple[str, Callable[[Receipt], str], Weight]

_STACK: Final[Sequence[_Question]] = (
    ("lock", lambda receipt: receipt.lock.name, Weight.DIFFERS),
    # A build writes into envspec.lock what it found; the identity is that of all else.
    ("envspec.lock", lambda receipt: f"sha256:{receipt.lock.sha256}", Weight.INFORMS),
    ("lock's identity", lambda receipt: f"sha256:{receipt.lock.identity}", Weight.DIFFERS),
    ("image ID", lambda receipt: receipt.image.id if receipt.image else "no image", Weight.DIFFERS),
    ("environment is the lock's", _is_locked, Weight.DIFFERS),
    ("envspec", lambda receipt: receipt.envspec, Weight.INFORMS),
)
_MACHINE: Final[Sequence[_Question]] = (
    ("kind of machine", kind, Weight.DIFFERS),
    ("devices", devices, Weight.DIFFERS),
    ("driver", lambda receipt: receipt.machine.driver, Weight.DIFFERS),
    ("container toolkit", lambda receipt: receipt.machine.toolkit, Weight.INFORMS),
    ("topology", _topology, Weight.DIFFERS),
    ("system", lambda receipt: receipt.machine.system, Weight.INFORMS),
    ("kernel", lambda receipt: receipt.machine.kernel, Weight.INFORMS),
    ("CPU", lambda receipt: receipt.machine.cpu, Weight.INFORMS),
    ("CPUs", lambda receipt: str(receipt.machine.cpus or ""), Weight.INFORMS),
    ("memory, bytes", lambda receipt: str(receipt.machine.memory_bytes or ""), Weight.INFORMS),
    ("shared memory, bytes", lambda receipt: str(receipt.machine.shm_bytes or ""), Weight.INFORMS),
)


def compare(named: Sequence[tuple[str, Receipt]]) -> Comparison:
    """What is not the same in all of these receipts, of which there are two or more; numbers against the first's."""
    names, receipts = tuple(name for name, _ in named), tuple(receipt for _, receipt in named)
    return Comparison(
        names=names,
        receipts=receipts,
        is_same_kind=len(set(map(kind, receipts))) == 1 and all(map(has_kind, receipts)),
        stack=tuple(_asked(_STACK, receipts)),
        machine=tuple(_asked(_MACHINE, receipts)),
        versions=tuple(_versions(receipts)),
        checks=tuple(check_lines(receipts)),
        findings=tuple(finding_lines(receipts)),
        fingerprints=tuple(fingerprint_lines(names, receipts)),
        numbers=tuple(_numbers(receipts)),
    )


def _asked(questions: Iterable[_Question], receipts: Sequence[Receipt]) -> Iterator[Line]:
    for what, answer, weight in questions:
        values = tuple(answer(receipt) for receipt in receipts)
        if len(set(values)) > 1:
            yield Line(what, values, weight)


def _versions(receipts: Sequence[Receipt]) -> Iterator[Line]:
    for what in sorted({what for receipt in receipts for what in receipt.ran}):
        values = tuple(receipt.ran.get(what, "") for receipt in receipts)
        if len(set(values)) > 1:
            # Who was asked for fewer checks has loaded less, and tells fewer versions of the same stack.
            told = {value for value in values if value}
            yield Line(what, values, Weight.DIFFERS if len(told) > 1 else Weight.INFORMS)


def _numbers(receipts: Sequence[Receipt]) -> Iterator[NumberLine]:
    rows = [{number.key: number for number in numbers(receipt)} for receipt in receipts]
    kinds = [kind(receipt) if has_kind(receipt) else None for receipt in receipts]
    for key in ordered(rows):
        found = [row.get(key) for row in rows]
        present = [each for each in found if each]
        if len(present) < 2:
            continue
        first, like = present[0], present[0].better
        here = kinds[found.index(first)]
        worse = tuple(
            worsening(like, first.value, each.value) if each and other and other == here else None
            for each, other in zip(found, kinds, strict=True)
        )
        values = tuple(each.value if each else None for each in found)
        yield NumberLine(first.check, first.name, first.unit, values, like, worse, first.tolerance)
