"""What envspec requests of the suite: written as JSON on the host, read by the suite."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from envspec.conformance.results import FORMAT, Board, Driver, Gpu, Validated

#: The same numbers on every machine; part of every receipt.
SEED = 20260915


@dataclass(frozen=True)
class Nodes(Validated):
    """The machines of the run."""

    count: int = 1
    rank: int = 0
    rendezvous: str | None = None
    """HOST:PORT of the first one; None if there is only this one."""


class BadOption(ValueError):
    """An option that can't be meant. hint: what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def _positive(text: str, wrong: BadOption) -> float:
    """A finite number above 0. Raises `wrong` for another text."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise wrong


def limit_of(text: str) -> tuple[str, float]:
    """The value of `--limit`: NAME=SECONDS. Raises BadOption for another form."""
    name, _, seconds = text.partition("=")
    wrong = BadOption(f"--limit {text}: the form is NAME=SECONDS", "--limit transformer=300")
    return name, _positive(seconds, wrong)


def factor_of(text: str | None) -> float:
    """The value of `--limit-factor`, 1 for None. Raises BadOption for another form."""
    if text is None:
        return 1.0
    return _positive(text, BadOption(f"--limit-factor {text}: not a number above 0", "--limit-factor 4"))


def world_size_of(text: str | None) -> int | Literal["all"] | None:
    """The value of `--world-size`; None for None. Raises BadOption for another form."""
    if text is None:
        return None
    if text == "all":
        return "all"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise BadOption(f"--world-size {text}: neither a number nor all", "--world-size 2")


def chosen_world_size(chosen: int | Literal["all"] | None, own: int | None) -> int | None:
    """The world size of a request; None for one process per GPU. own: the spec's, without a chosen one."""
    if chosen == "all":
        return None
    return chosen or own


def check_nodes(nodes: Nodes) -> None:
    """Raises BadOption for several nodes without a rendezvous, or a rank that is none of theirs."""
    count, rank, rendezvous = nodes.count, nodes.rank, nodes.rendezvous
    if nodes == Nodes():
        return
    if not 0 <= rank < count:
        ranks = "there is one node, and its rank is 0"
        if count > 1:
            ranks = f"the ranks of {count} nodes are 0 to {count - 1}"
        hint = "give each node its own number; --nodes is how many there are"
        raise BadOption(f"--node-rank {rank}: {ranks}", hint)
    hint = "add --rendezvous HOST:PORT, the first node's, on every node"
    if rendezvous is None:
        raise BadOption(f"{count} nodes need a rendezvous", hint)
    host, _, port = rendezvous.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise BadOption(f"--rendezvous {rendezvous}: the form is HOST:PORT", hint)


#: What `--burn` runs unless checks are named: products, what shows a GPU that is none of the lock's, and its errors.
_BURNED = ("device", "sustained", "health")


def burn_of(text: str | None) -> float:
    """The value of `--burn`, minutes, in seconds; 0 for None. Raises BadOption for another form."""
    if text is None:
        return 0.0
    return 60 * _positive(text, BadOption(f"--burn {text}: not a number of minutes", "--burn 10"))


def named_checks(checks: Sequence[str], burn_s: float) -> tuple[str, ...]:
    """The checks that a user's options request by name: `--burn` requests `sustained`."""
    return (*checks, "sustained") if burn_s else tuple(checks)


def burned(checks: Sequence[str], burn_s: float) -> tuple[str, ...]:
    """The named checks; with `--burn` also `sustained`, and without names nothing but _BURNED."""
    if not checks and burn_s:
        checks = _BURNED
    return named_checks(checks, burn_s)


@dataclass(frozen=True)
class LockedGpuCode:
    """GPU code in a locked package: SASS as `sm_80`, PTX as `compute_120`."""

    package: str
    version: str
    sm: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


@dataclass(frozen=True)
class LockedStack:
    """The part of the lock that checks compare with.

    packages: normalised name -> version, wheels and conda packages.
    expected: the environment, as JSON of `envspec.verifier`.
    size_bytes: of its wheels and conda archives.
    cuda_release: as `12.8.1`.
    minimum_driver: as `525.60.13`.
    """

    name: str
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, Any] | None = None
    size_bytes: int = 0
    code: tuple[LockedGpuCode, ...] = ()
    cuda_release: str | None = None
    minimum_driver: str | None = None


@dataclass(frozen=True)
class SuiteStart:
    """How the suite's process was started, for the time to the first kernel.

    at_s: Unix time at which the container was requested; None outside of one. pulled_bytes, pull_s: of the image; None
    if it was not pulled.
    """

    at_s: float | None = None
    pulled_bytes: int | None = None
    pull_s: float | None = None


@dataclass(frozen=True)
class SuiteRequest:
    """One run of the suite.

    device: `cuda` or `cpu`.
    required: checks that must not be `not run`.
    world_size: processes of the distributed checks on this machine; None for one per GPU.
    locked: what the stack has to be.
    as_if: a lock with which it is compared though it was not made from it: differences inform.
    limits: check -> seconds, instead of its own limit; `driver`: of the driver's query.
    limit_factor: of all limits.
    burn_s: seconds of the products of `sustained`; 0 for its own.
    named: the checks that the user or the spec requests by name, whose results are the question of the run; without
        them it is training.
    preimports: how many processes may import before their turn; None for as many as the cores allow.
    driver: added by the suite, if GPUs are requested.
    watch: file with what happens to the GPUs meanwhile, added by the suite.
    """

    device: str
    checks: tuple[str, ...]
    required: tuple[str, ...] = ()
    world_size: int | None = None
    nodes: Nodes = Nodes()
    locked: LockedStack | None = None
    as_if: LockedStack | None = None
    start: SuiteStart = SuiteStart()
    limits: Mapping[str, float] = field(default_factory=dict)
    limit_factor: float = 1.0
    burn_s: float = 0.0
    named: tuple[str, ...] = ()
    preimports: int | None = None
    driver: Driver | None = None
    watch: str = ""
    seed: int = SEED
    format: int = FORMAT

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that CUDA shows; none if the CPU is requested."""
        return self.driver.gpus if self.driver else ()

    @property
    def reference(self) -> LockedStack | None:
        """The lock to compare with, whether differences fail or inform."""
        return self.locked or self.as_if

    @property
    def reference_or_empty(self) -> LockedStack:
        """As `reference`; without a lock, a stack without packages."""
        return self.reference or LockedStack("")

    def version(self, package: str) -> str | None:
        """The locked version of a package (normalised name); None if it is not locked, or if there is no lock."""
        return self.locked.packages.get(package) if self.locked else None

    @staticmethod
    def read(path: Path) -> SuiteRequest:
        """Raises ValueError if the request is of another format than this suite's."""
        return SuiteRequest.parse(json.loads(path.read_text(encoding="utf-8")))

    @staticmethod
    def parse(data: dict[str, Any]) -> SuiteRequest:
        """As `read`, of its JSON. Raises AttributeError, KeyError and TypeError, too: a key is missing or wrong."""
        if data.get("format") != FORMAT:
            raise ValueError(f"its format is {data.get('format')}, this suite reads {FORMAT}")
        for name in ("locked", "as_if"):
            if locked := data.get(name):
                code = tuple(LockedGpuCode(**_tuples(each)) for each in locked["code"])
                data[name] = LockedStack(**{**locked, "code": code})
        if driver := data.get("driver"):
            gpus = tuple(Gpu(**each) for each in driver["gpus"])
            boards = tuple(Board(**each) for each in driver["boards"])
            data["driver"] = Driver(**{**driver, "gpus": gpus, "boards": boards})
        parsed = {"nodes": Nodes(**data["nodes"]), "start": SuiteStart(**data["start"])}
        return SuiteRequest(**{**_tuples(data), **parsed})


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(data)
    for key, value in data.items():
        if isinstance(value, list):
            found[key] = tuple(value)
    return found
