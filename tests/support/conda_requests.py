"""Requests to a conda solver, with a machine that has what most have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from envspec.models import CudaVersion, Platform
from envspec.resolve.types import Channel, CondaRequest, VirtualPackage

AS_OF: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
MACHINE: Final[Mapping[str, str]] = {"__unix": "0", "__linux": "5.10", "__glibc": "2.31"}


def request(
    *requirements: str,
    channels: Sequence[Channel],
    platform: Platform = Platform.LINUX_64,
    cuda: CudaVersion | None = None,
    machine: Mapping[str, str] = MACHINE,
    **more: Any,
) -> CondaRequest:
    """cuda: is the machine's `__cuda`, caps `cuda-version`, and has CUDA builds required."""
    virtual = {**machine, **({"__cuda": str(cuda)} if cuda else {})}
    return CondaRequest(
        platform=platform,
        channels=tuple(channels),
        requirements=requirements,
        virtual_packages=tuple(VirtualPackage(name, version) for name, version in sorted(virtual.items())),
        constraints=(f"cuda-version <={cuda}", f"cudatoolkit <={cuda}") if cuda else (),
        cuda=cuda,
        **{"as_of": AS_OF, **more},
    )
