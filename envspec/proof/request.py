"""A run of the conformance suite, as it is asked for, and as its order says it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from envspec.conformance.checks import CHECKS
from envspec.conformance.order import Code, Locked, Nodes, Order, Start
from envspec.errors import UsageError
from envspec.model import Lock, Resolution


class Device(Enum):
    """What is tested: GPUs, or what runs without one."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of the machine costs."""

    amount: float
    currency: str


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for.

    checks: empty for the spec's, or all where it names none. world_size: None for the spec's, or as many as there are
    GPUs. limits: check -> seconds, where it is to have another limit than its own. ahead: how many checks may import
    before their turn, None for as many as the cores allow.
    """

    lock: Lock
    lock_sha256: str
    resolution: Resolution
    device: Device
    checks: tuple[str, ...] = ()
    world_size: int | None = None
    nodes: Nodes = field(default_factory=Nodes)
    price: Price | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    ahead: int | None = None


def order_of(request: Request, expected: Mapping[str, Any], start: Start) -> Order:
    """What the suite is told.

    expected: the environment that the lock says, in the form of `envspec.installed`.

    Raises:
        UsageError: a check that there is not; nodes that don't fit.
    """
    asked = request.lock.conformance
    named = request.checks or (asked.checks if asked else ())
    unknown = [name for name in (*named, *request.limits) if name not in CHECKS]
    if unknown:
        raise UsageError(f"there is no check {unknown[0]}", hint=f"there are: {', '.join(CHECKS)}")
    return Order(
        device=request.device.value,
        checks=tuple(name for name in CHECKS if not named or name in named),
        required=tuple(name for name in CHECKS if asked and name in asked.checks and name in (named or CHECKS)),
        world_size=request.world_size or (asked.world_size if asked else None),
        nodes=request.nodes,
        locked=_locked(request, expected),
        start=start,
        price_per_hour=request.price.amount if request.price else None,
        currency=request.price.currency if request.price else "",
        limits=request.limits,
        ahead=request.ahead,
    )


def text_of(order: Order) -> str:
    """The order as the suite reads it."""
    return json.dumps(asdict(order), indent=1)


def _locked(request: Request, expected: Mapping[str, Any]) -> Locked:
    lock, part = request.lock, request.resolution
    return Locked(
        name=lock.name,
        python=part.target.python.version,
        packages={**_versions(part)},
        expected=expected,
        code=tuple(
            Code(row.package, row.version, row.sm, row.ptx)
            for row in lock.gpu_code
            if row.platform is part.target.platform
        ),
        cuda_release=lock.base_image.cuda_release if lock.base_image else None,
        minimum_driver=lock.driver.minimum if lock.driver else None,
    )


def _versions(part: Resolution) -> dict[str, str]:
    """Normalised name -> version; a wheel on top of conda's package of that name is what Python imports."""
    provided = {each.name: each.version for row in part.conda for each in row.provides}
    return {
        **{row.name: row.version for row in part.conda},
        **provided,
        **{row.name: row.version for row in part.packages},
    }


def nodes_of(count: int, rank: int, rendezvous: str | None) -> Nodes:
    """The machines of a run.

    Raises:
        UsageError: several without a rendezvous, or a rank that is none of theirs.
    """
    if count == 1 and rendezvous is None and rank == 0:
        return Nodes()
    if not 0 <= rank < count:
        ranks = (
            f"the ranks of {count} nodes are 0 to {count - 1}" if count > 1 else "there is one node, and its rank is 0"
        )
        raise UsageError(
            f"--node-rank {rank}: {ranks}",
            hint="each node has a number of its own; --nodes says how many there are",
        )
    hint = "--rendezvous HOST:PORT, the first node's, on every node"
    if rendezvous is None:
        raise UsageError(f"{count} nodes need a place to meet", hint=hint)
    host, _, port = rendezvous.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise UsageError(f"--rendezvous {rendezvous}: the form is HOST:PORT", hint=hint)
    return Nodes(count, rank, rendezvous)


def suite_folders() -> Sequence[Path]:
    """The folders that are copied beside the stack: the suite, and what it shares with envspec."""
    import envspec.conformance
    import envspec.installed

    return [Path(package.__path__[0]) for package in (envspec.conformance, envspec.installed)]
