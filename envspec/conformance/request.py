"""What the suite is asked for: written by envspec as JSON, read inside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envspec.conformance.results import FORMAT

#: The same numbers on every machine; part of every receipt.
SEED = 20260915


@dataclass(frozen=True)
class Nodes:
    """The machines of one run. rendezvous: HOST:PORT of the first one, None where there is only this one."""

    count: int = 1
    rank: int = 0
    rendezvous: str | None = None


@dataclass(frozen=True)
class Code:
    """GPU code that the lock says a package holds: SASS as `sm_80`, PTX as `compute_120`."""

    package: str
    version: str
    sm: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


@dataclass(frozen=True)
class Locked:
    """What the lock says, as far as a check compares it.

    python: of the target. packages: normalised name -> version, wheels' and conda's. expected: the environment, in the
    form of `envspec.verifier`. cuda_release: as `12.8.1`. minimum_driver: as `525.60.13`.
    """

    name: str
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, Any] | None = None
    code: tuple[Code, ...] = ()
    cuda_release: str | None = None
    minimum_driver: str | None = None


@dataclass(frozen=True)
class Start:
    """How the suite's process came to be, for the time until the first kernel. at_s: seconds of the clock (Unix) at
    which the container was asked for; None outside of one. pulled_bytes, pull_s: of the image, None where it was there.
    """

    in_container: bool = False
    at_s: float | None = None
    pulled_bytes: int | None = None
    pull_s: float | None = None


@dataclass(frozen=True)
class Order:
    """One run of the suite.

    device: `cuda` or `cpu`. checks: their names. required: those that must not be `not run`. world_size: processes of
    the distributed checks on this machine, None for as many as it has GPUs. price_per_hour: of this machine, in
    `currency`. limits: seconds for a check that is to have another limit than its own. ahead: how many checks import
    what they need before their turn; None, which envspec writes, for as many as cores and memory allow.
    """

    device: str
    checks: tuple[str, ...]
    required: tuple[str, ...] = ()
    world_size: int | None = None
    nodes: Nodes = Nodes()
    locked: Locked | None = None
    start: Start = Start()
    price_per_hour: float | None = None
    currency: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    ahead: int | None = None
    seed: int = SEED
    format: int = FORMAT

    @property
    def cuda(self) -> bool:
        """Whether GPUs are to be tested."""
        return self.device == "cuda"

    def version(self, package: str) -> str | None:
        """The locked version of a package (normalised name); None where it is not locked, or there is no lock."""
        return self.locked.packages.get(package) if self.locked else None


def read(path: Path) -> Order:
    """The order in a file.

    Raises:
        ValueError: it is of another format than this suite's.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("format") != FORMAT:
        raise ValueError(f"the order is of format {data.get('format')}, this suite knows {FORMAT}")
    locked = data.get("locked")
    return Order(
        **{
            **data,
            "checks": tuple(data["checks"]),
            "required": tuple(data["required"]),
            "nodes": Nodes(**data["nodes"]),
            "start": Start(**data["start"]),
            "locked": locked and Locked(**{**locked, "code": tuple(_code(each) for each in locked["code"])}),
        }
    )


def _code(data: dict[str, Any]) -> Code:
    return Code(data["package"], data["version"], tuple(data["sm"]), tuple(data["ptx"]))
