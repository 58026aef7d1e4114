"""The main numbers of a fleet: a column each, a row for each receipt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envspec.receipt.numbers import Better, better, numbers
from envspec.receipt.values import Receipt


@dataclass(frozen=True, slots=True)
class Column:
    """A number of each receipt; None where it has none."""

    title: str
    unit: str
    values: tuple[float | None, ...]

    @property
    def better(self) -> Better:
        return better(self.unit)


#: Title, check, unit, and the number's name; the best of the check in this unit where no name is given.
_MAIN: Final = (
    ("matmul", "matmul", "TFLOP/s", None),
    ("bus bandwidth", "ddp", "GB/s", None),
    ("training", "amp", "1/s", None),
    ("tokens", "transformer", "1/s", None),
    ("loader", "dataloader", "1/s", "training, from the loader"),
    ("first kernel", "coldstart", "s", "in all"),
)


def columns(receipts: Sequence[Receipt]) -> tuple[Column, ...]:
    """The main numbers that at least one of the receipts has, and the time of the whole suite."""
    found = [
        Column(title, unit, tuple(_best(receipt, check, unit, name) for receipt in receipts))
        for title, check, unit, name in _MAIN
    ]
    whole = Column("suite", "s", tuple(receipt.seconds for receipt in receipts))
    return (*(column for column in found if any(value is not None for value in column.values)), whole)


def _best(receipt: Receipt, check: str, unit: str, name: str | None) -> float | None:
    values = [
        number.value
        for number in numbers(receipt)
        if (number.check, number.unit) == (check, unit) and name in (None, number.name)
    ]
    if not values:
        return None
    return min(values) if better(unit) is Better.LOWER else max(values)
