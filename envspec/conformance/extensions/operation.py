"""What an operator's function gets: its module, a device, random inputs, and comparisons with plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from envspec.conformance.bounds import SIZES, Limit
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import NO_BF16, TYPES, has_bf16
from envspec.conformance.results import NotRun

#: Of inputs: integers whose results are exact in any order of summation, and numbers whose errors have bounds.
INTEGERS = "integers"
KINDS = (INTEGERS, "normal numbers")


@dataclass(frozen=True)
class Extension:
    """A row of the table.

    module: what Python imports, the submodule with the operator. compare: run the operator and compare it. packages:
    its further names in locks (normalised), besides the module's. on_cpu: whether the operator has code for the CPU.
    """

    module: str
    compare: Callable[[Operation], None]
    packages: tuple[str, ...] = ()
    on_cpu: bool = False

    @property
    def top(self) -> str:
        """The module that says whether it is installed."""
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class Operation:
    """An extension on a device. subject: its version and the device, for people. place: prefix of findings."""

    context: CheckContext
    torch: Any
    module: Any
    subject: str
    place: str

    @property
    def device(self) -> str:
        """`cuda`, the current GPU, or `cpu`."""
        return self.context.device

    def size(self, name: str) -> int:
        """A size by its name in `SIZES`, by device if it depends on that."""
        return SIZES.get(f"extensions.{name}.{self.device}") or SIZES[f"extensions.{name}"]

    def function(self, name: str, owner: Any = None) -> Any:
        """A function of the module, or of `owner`.

        Raises:
            NotRun: this release does not have it.
        """
        found = getattr(self.module if owner is None else owner, name, None)
        if found is None:
            raise NotRun(f"{self.subject}: this release has no {name}")
        return found

    def types(self, *names: str) -> dict[str, str]:
        """Short name of a type -> torch's; bf16 is reported if the device lacks it."""
        found = {name: TYPES[name] for name in names}
        if not has_bf16(self.torch, self.device):
            del found["bf16"]
            self.context.not_run(f"{self.place}: bf16", NO_BF16)
        return found

    def drawn(self, kind: str, most: int, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
        """Random numbers of one of KINDS; integers from -most to most."""
        if kind == INTEGERS:
            return self.integers(-most, most, *shape, dtype=dtype, seed=seed)
        return self.normal(*shape, dtype=dtype, seed=seed)

    def compare(self, kind: str, name: str, found: Any, right: Any, scale: Any, bound: Limit) -> None:
        """The result of inputs of one of KINDS: of integers as `equal`, else as `close`."""
        if kind == INTEGERS:
            self.equal(f"{name} of {kind}", found, right)
        else:
            self.close(f"{name} of {kind}", found, right, scale, bound)

    def normal(self, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
        """Random numbers, rounded to the type: the same on every device."""
        numbers = self.torch.Generator().manual_seed(self.context.request.seed + seed)
        drawn = self.torch.randn(*shape, generator=numbers)
        return drawn.to(self.device, getattr(self.torch, dtype))

    def integers(self, low: int, high: int, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
        """Random integers, both ends included."""
        numbers = self.torch.Generator().manual_seed(self.context.request.seed + seed)
        drawn = self.torch.randint(low, high + 1, shape, generator=numbers)
        return drawn.to(self.device, getattr(self.torch, dtype))

    def equal(self, name: str, found: Any, right: Any) -> None:
        """Every element is the same: for inputs whose result is exact in any order of summation."""
        if not self.alike(name, found, right):
            return
        off = (found.double() - right.double()).abs().flatten()
        # A NaN differs from itself.
        wrong = ~(off == 0)
        count = int(wrong.sum())
        detail = f"{self.subject}: {found.numel()} elements are equal"
        if count:
            first = int(wrong.nonzero()[0])
            values = f"{float(found.flatten()[first]):.9g}, must be {float(right.flatten()[first]):.9g}"
            detail = (
                f"{self.subject}: {count} of {found.numel()} elements differ from plain torch, by up to "
                f"{float(off.nan_to_num(float('inf')).max()):.3g}; the first, {_index(first, found.shape)}, is {values}"
            )
        self.context.exact(f"{self.place}: {name}", ok=not count, detail=detail)

    def close(self, name: str, found: Any, right: Any, scale: Any, bound: Limit) -> None:
        """Every element is within a bound. right, scale: in fp64; the bound is for errors divided by `scale`."""
        if not self.alike(name, found, right):
            return
        off = (found.double() - right).abs()
        # Where there is nothing to sum, nothing may be found; a NaN is not 0.
        relative = self.torch.where(scale > 0, off / scale, self.torch.where(off == 0, 0.0, float("inf"))).flatten()
        worst = int(relative.argmax())
        detail = f"{self.subject}; the worst element is {_index(worst, found.shape)}"
        self.context.within(f"{self.place}: {name}", float(relative[worst]), bound, detail=detail)

    def alike(self, name: str, found: Any, right: Any) -> bool:
        """Whether the shapes are the same; if not, that is a finding."""
        alike = tuple(found.shape) == tuple(right.shape)
        if not alike:
            detail = f"{self.subject}: its result is {tuple(found.shape)}, must be {tuple(right.shape)}"
            self.context.exact(f"{self.place}: {name}", ok=False, detail=detail)
        return alike


def _index(flat: int, shape: Any) -> list[int]:
    found: list[int] = []
    for size in reversed(tuple(shape)):
        flat, position = divmod(flat, int(size))
        found.insert(0, position)
    return found
