"""What envspec requests of the suite: written as JSON on the host, read by the suite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envspec.conformance.results import FORMAT, Board, Driver, Gpu, Validated

#: The same numbers on every machine; part of every receipt.
SEED = 20260915
#: Of limits: the driver's query, which is no check.
DRIVER = "driver"


@dataclass(frozen=True)
class Nodes(Validated):
    """The machines of the run."""

    count: int = 1
    rank: int = 0
    rendezvous: str | None = None
    """HOST:PORT of the first one; None if there is only this one."""


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
