"""Values that the PyPI and the conda resolution share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from envspec.models import SPEC, CondaPackage, CudaVersion, Dependent, Platform


@dataclass(frozen=True, slots=True)
class Provider:
    """A Python package that conda installs, and the conda package that it is in.

    name: in PEP 503's form. version: PEP 440's. package: the conda package. channel: what the spec calls its channel.
    askers: who asks for the conda package: the spec (`spec`), or conda packages.
    """

    name: str
    version: str
    package: str
    channel: str
    askers: tuple[Dependent, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version} comes from {self.channel}"

    @property
    def whence(self) -> str:
        """`numpy 2.2.6 comes from conda-forge (conda's numpy, asked by scipy)`."""
        names = sorted({"the spec" if asker.name == SPEC else asker.name for asker in self.askers})
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        asked = f", asked by {', '.join(names[:3])}{more}" if names else ""
        return f"{self} (conda's {self.package}{asked})"


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel and where its rows are found.

    name: as in the spec. url: its address without credentials, no `/` at the end: what the lock says.
    address: the same with the user's credentials, for fetching. rows: a folder with `<subdir>/repodata.json` that
    stands for the channel itself (a part of it, say); its rows keep the channel's own URLs. only: the subdirs that it
    has, where the spec says so; empty: `noarch`, and each of the spec's platforms.
    """

    name: str
    url: str
    address: str
    rows: Path | None = None
    only: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        return self.rows is not None or self.address.startswith("file:")


@dataclass(frozen=True, slots=True)
class VirtualPackage:
    """What the environment's machine has: `__cuda 12.8`, `__archspec 1 x86_64`. Never taken from this machine."""

    name: str
    version: str
    build: str = "0"

    def __str__(self) -> str:
        return f"{self.name}={self.version}" + ("" if self.build == "0" else f"={self.build}")


@dataclass(frozen=True, slots=True)
class CondaRequest:
    """One platform's question.

    channels: the first goes first. requirements: match specs in the spec's words, Python's among them.
    constraints: match specs that hold for a package if something asks for it. cuda: the CUDA whose builds are required
    of the packages that have such builds; None where a build for the CPU is meant.
    as_of: no row that was built later is considered; undated: whether rows that do not say when they were built are.
    of_platform: those of the requirements that only this platform's table has.
    cuts: names with a moment of their own. locked: rows to keep where the requirements allow it.
    """

    platform: Platform
    channels: tuple[Channel, ...]
    requirements: tuple[str, ...]
    virtual_packages: tuple[VirtualPackage, ...]
    as_of: datetime
    constraints: tuple[str, ...] = ()
    of_platform: frozenset[str] = frozenset()
    cuda: CudaVersion | None = None
    undated: bool = False
    cuts: Mapping[str, datetime] = field(default_factory=dict)
    locked: tuple[CondaPackage, ...] = ()

    def cut_of(self, name: str) -> datetime:
        return self.cuts.get(name, self.as_of)
