"""What a user's options select of a request: the same options on envspec's command line and on the suite's own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from envspec.conformance.checks import CHECKS
from envspec.conformance.request import DRIVER, Nodes, SuiteRequest

#: What `--burn` runs unless checks are named: products, what shows a GPU that is none of the lock's, and its errors.
_BURNED = ("device", "sustained", "health")


class BadOption(ValueError):
    """An option that can't be meant. hint: what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class SuiteSelection:
    """What to test.

    device: `cuda` or `cpu`; None for the request's.
    checks: empty for the request's.
    world_size: None for the request's; `all` for one process per GPU, whatever the request has.
    limits: check -> seconds, instead of its own limit.
    limit_factor: of all limits; None for the request's.
    burn_s: seconds of the products of `sustained`, which is then tested in any case; without `checks` only `device` and
        `health` besides.
    """

    device: str | None = None
    checks: tuple[str, ...] = ()
    world_size: int | Literal["all"] | None = None
    nodes: Nodes = field(default_factory=Nodes)
    limits: Mapping[str, float] = field(default_factory=dict)
    limit_factor: float | None = None
    burn_s: float = 0.0

    def applied(self, requested: SuiteRequest) -> SuiteRequest:
        """The request with this selection instead of its own. Raises BadOption: an unknown check, or wrong nodes."""
        _check_nodes(self.nodes)
        named = self.checks
        if self.burn_s:
            named = (*named, "sustained")
        chosen = named or requested.checks
        if self.burn_s and not self.checks:
            chosen = _BURNED
        limited = [name for name in self.limits if name != DRIVER]
        for name in (*self.checks, *limited):
            if name not in CHECKS:
                raise BadOption(f"there is no check {name}", f"use {', '.join(CHECKS)}")
        checks = tuple(name for name in CHECKS if name in chosen)
        request = replace(
            requested,
            device=self.device or requested.device,
            checks=checks,
            required=tuple(name for name in checks if name in requested.required),
            limits={**requested.limits, **self.limits},
            limit_factor=self.limit_factor or requested.limit_factor,
            burn_s=self.burn_s or requested.burn_s,
            named=named or requested.named,
        )
        if self.world_size:
            request = replace(request, world_size=None if self.world_size == "all" else self.world_size)
        if self.nodes != Nodes():
            request = replace(request, nodes=self.nodes)
        return request


def selected(options: Mapping[str, Any]) -> SuiteSelection:
    """The selection of a command's options, by their names: `device`, `checks`, `limits`, `limit_factor` and `burn`.

    A command that is about this machine has `world_size`, `nodes`, `node_rank` and `rendezvous`, too.

    Raises:
        BadOption: a value has another form.
    """
    limits = {}
    for text in options["limits"]:
        name, _, seconds = text.partition("=")
        wrong = BadOption(f"--limit {text}: the form is NAME=SECONDS", "--limit transformer=300")
        limits[name] = _positive(seconds, wrong)
    factor, burn = options["limit_factor"], options["burn"]
    if factor is not None:
        factor = _positive(factor, BadOption(f"--limit-factor {factor}: not a number above 0", "--limit-factor 4"))
    if burn is not None:
        burn = 60 * _positive(burn, BadOption(f"--burn {burn}: not a number of minutes", "--burn 10"))
    nodes = Nodes()
    if "rendezvous" in options:
        nodes = Nodes(options["nodes"], options["node_rank"], options["rendezvous"])
    world_size = _world_size(options.get("world_size"))
    return SuiteSelection(options["device"], tuple(options["checks"]), world_size, nodes, limits, factor, burn or 0.0)


def _positive(text: str, wrong: BadOption) -> float:
    """A finite number above 0. Raises `wrong` for another text."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise wrong


def _world_size(text: str | None) -> int | Literal["all"] | None:
    if text is None:
        return None
    if text == "all":
        return "all"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise BadOption(f"--world-size {text}: neither a number nor all", "--world-size 2")


def _check_nodes(nodes: Nodes) -> None:
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
