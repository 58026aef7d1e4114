"""Results of the checks: values of results.json, and of the receipt, whose JSON schema has their docstrings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

#: Of results.json and of the request: the suite and envspec must agree on it.
FORMAT = 1


class Kind(Enum):
    """How a finding counts: the first two pass or fail."""

    EXACT = "exact"
    BOUNDED = "bounded"
    INFO = "info"
    NOT_RUN = "not run"


class Status(Enum):
    """Result of a check: `not run` is what this machine or stack can't do, `not known` what began without a result."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"
    NOT_KNOWN = "not known"


class Cause(Enum):
    """Why a check failed, or is not known: by its findings, or by the end of its process.

    `over its limit` is a process that did nothing any more, `ran out of time` one that still worked.
    """

    FOUND = "found"
    RAISED = "raised"
    CRASHED = "crashed"
    OVER_LIMIT = "over its limit"
    OUT_OF_MEMORY = "out of memory"
    OUT_OF_TIME = "ran out of time"


class Level(Enum):
    """Where a fingerprint is the same: everywhere, or on the same kind of machine and stack only."""

    UNIVERSAL = "universal"
    KEYED = "keyed"


class NotRun(Exception):
    """This machine or this stack can't run the check, or a part of it."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes: torch 2.9 names a missing symbol only in `__cause__`."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


#: Begins of the lines that torch adds to every error of CUDA: how to search for its place, not what it is.
#: Source: torch, c10/cuda/CUDAMiscFunctions.cpp; torch 2.11 adds all of them.
_CUDA_ADVICE = (
    *("Search for `cuda", "CUDA kernel errors might be ", "For debugging consider passing CUDA_LAUNCH_BLOCKING"),
    "Compile with `TORCH_USE_CUDA_DSA` ",
)


def error_text(error: BaseException) -> str:
    """`Type: text` of an error without its causes, and without torch's advice about errors of CUDA."""
    lines = [line for line in str(error).splitlines() if not line.startswith(_CUDA_ADVICE)]
    return ": ".join(filter(None, [type(error).__name__, "\n".join(lines).strip()]))


def error_texts(error: BaseException) -> list[str]:
    """An error and its causes, as `error_text`."""
    return [error_text(each) for each in error_chain(error)]


#: Python's errors and torch's; torch 2.4 has its own below `torch.cuda` only, by the same name.
_OUT_OF_MEMORY = frozenset({"MemoryError", "OutOfMemoryError"})
#: Only torch's allocator raises that error. Another call of CUDA that needs memory raises an AcceleratorError (torch
#: 2.11), in older releases a RuntimeError.
_CUDA_OUT_OF_MEMORY = ("CUDA error: out of memory", "CUDA driver error: out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the host or of a GPU ran out."""
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & _OUT_OF_MEMORY) or str(error).startswith(_CUDA_OUT_OF_MEMORY)


class Validated:
    """Base of the dataclasses that pydantic validates on the host; the suite has no pydantic."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
    }


@dataclass(frozen=True)
class Gpu(Validated):
    """A GPU as CUDA shows it to the suite, and so to torch; a slice of a GPU (MIG) is one."""

    index: int
    name: str
    uuid: str
    compute_capability: str
    memory_bytes: int
    pci: str = ""
    """Domain, bus, device and function; of a slice, that of the whole GPU."""
    multiprocessors: int | None = None


@dataclass(frozen=True)
class Board(Validated):
    """A GPU as NVML shows it, also one that CUDA does not show."""

    index: int
    pci: str = ""
    name: str = ""
    uuid: str = ""
    compute_capability: str = ""
    memory_bytes: int | None = None
    mig: bool = False
    """Whether it is divided into slices."""
    hidden: bool = False
    """Whether this container or user may not use it."""
    links: list[str] = field(default_factory=list)
    """PCI addresses at the other ends of its active NVLinks."""
    errors: dict[str, str] = field(default_factory=dict)
    """Field -> error of NVML: the GPU or its driver has a fault."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Field -> why this GPU, driver or container does not have it."""


@dataclass(frozen=True)
class Driver(Validated):
    """NVIDIA's driver and its GPUs."""

    version: str = ""
    """As `570.124.06`."""
    cuda: str = ""
    """The newest CUDA that it runs, as `12.8`; of a forward compatibility package, that package's."""
    error: str = ""
    """Why CUDA does not work; empty if it does."""
    is_late: bool = False
    """Whether CUDA only ran out of time."""
    is_absent: bool = False
    """Whether there is neither a driver nor a GPU."""
    nvml_error: str = ""
    """Why NVML does not work."""
    nvml_missing: str = ""
    """Why there is no NVML."""
    gpus: tuple[Gpu, ...] = ()
    boards: tuple[Board, ...] = ()
    topology: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckFinding(Validated):
    """One value or property that a check examined."""

    name: str
    kind: Kind
    """`exact` and `bounded` findings pass or fail; the others do neither."""
    ok: bool | None = None
    """None if the finding neither passes nor fails."""
    value: float | None = None
    """In `unit`; None if there is no number, or if it is NaN or infinite."""
    unit: str = ""
    bound: float | None = None
    """The limit of `value`; `relation` is `<=` or `>=`."""
    relation: str = ""
    formula: str = ""
    source: str = ""
    """Origin of the bound."""
    detail: str = ""
    """What was observed, or why it was not run."""
    spread: float | None = None
    """How far repeated measurements of `value` were apart, as a fraction of it; None if it is no such measurement, and
    then `--baseline` does not judge it."""

    def __str__(self) -> str:
        if self.value is not None and self.bound is not None:
            unit = f" {self.unit}" if self.unit else ""
            text = f"{self.name}: {self.value:.3g}{unit}, must be {self.relation} {self.bound:.3g}{unit}"
            return f"{text} ({self.detail})" if self.detail else text
        return f"{self.name}: {self.detail}" if self.detail else self.name


@dataclass(frozen=True)
class Fingerprint(Validated):
    """A hash over results: SHA-256, hexadecimal."""

    name: str
    level: Level
    """A universal one is equal on every machine; a keyed one on machines with the same `key`."""
    digest: str
    key: str = ""


@dataclass(frozen=True)
class Peak(Validated):
    """Peak memory of a check's processes, in bytes."""

    allocated_bytes: int | None = None
    """On the device, in tensors."""
    reserved_bytes: int | None = None
    """On the device, by torch's allocator."""
    host_bytes: int | None = None

    @staticmethod
    def largest(peaks: Iterable[Peak]) -> Peak:
        """The maximum of each kind of memory."""
        most: dict[str, int] = {}
        for peak in peaks:
            for name, value in vars(peak).items():
                if value is not None:
                    most[name] = max(value, most.get(name, value))
        return Peak(**most)


@dataclass(frozen=True)
class Phase(Validated):
    """A phase of a check."""

    name: str
    seconds: float


@dataclass(frozen=True)
class CheckOutcome(Validated):
    """One check and its outcome."""

    check: str
    status: Status
    cause: Cause | None = None
    """Why it failed or is not known: a finding of the check, or how its process ended."""
    reason: str = ""
    hint: str = ""
    required: bool = False
    """Whether the run fails if this check is not run."""
    seconds: float = 0.0
    """From its start to its end."""
    waited_s: float = 0.0
    """Of `seconds`, those in which it only waited for a CPU: its limit does not count them."""
    limit_s: float = 0.0
    phases: tuple[Phase, ...] = ()
    preimports: tuple[Phase, ...] = ()
    """Imports before its start, while other checks ran: not in `seconds`."""
    findings: tuple[CheckFinding, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    ran: dict[str, str] = field(default_factory=dict)
    """Library that ran -> its version."""
    peak: Peak = Peak()
    log: str = ""
    """The end of its output, if it failed or is not known."""


def dumps(value: Any) -> str:
    """Dataclasses, enums and containers of them as JSON."""
    return json.dumps(value, default=lambda each: each.value if isinstance(each, Enum) else vars(each))
