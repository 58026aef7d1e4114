"""Values that the PyPI and the conda resolution share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct, field
from packaging.version import Version

from envspec.conformance.text import some_of
from envspec.errors import NoSolution
from envspec.models import SPEC, CondaPackage, CudaVersion, Dependent, GpuCodeFound, InstalledPackage, Platform
from envspec.spec.errors import KeyPath
from envspec.spec.requirements import Requirement, without_label

#: A package on an index: its normalised name and its version.
Release = tuple[str, Version]

#: The hint of a conflict where nothing better is known.
LOOSEN: Final = "loosen one of the requirements named above, or move as_of"


class Cutoffs(Struct, frozen=True):
    """The newest upload and build times that count.

    names: packages with a cutoff of their own, by `--upgrade-package`.
    others: the cutoff of all other packages while it is open which of them have to move too; None: `as_of`.
    """

    as_of: datetime
    names: Mapping[str, datetime]
    others: datetime | None = None


def required_by(askers: Iterable[Dependent]) -> list[str]:
    """The names of what requires a package, sorted: `the spec` and packages."""
    names = {asker.name for asker in askers}
    if SPEC in names:
        names = names - {SPEC} | {"the spec"}
    return sorted(names)


class _Provided(Struct, frozen=True):
    """A Python package that comes from no index: conda installs it, or it is there before.

    name: normalised (PEP 503).
    version: PEP 440's.
    """

    name: str
    version: str

    @property
    def description(self) -> str:
        """Where it comes from, in words."""
        return str(self)

    @property
    def identity(self) -> list[object]:
        """JSON of all that resolvers see of it."""
        return [self.name, self.version]


class FoundPackage(_Provided, frozen=True):
    """A Python package that is installed before anything of the lock is.

    place: where, as messages name it.
    metadata: its METADATA; None if nobody has it: then that of its release on the index counts.
    record_sha256: of its RECORD.
    unmet: what it requires and its environment does not meet.
    """

    place: str = ""
    metadata: bytes | None = None
    record_sha256: str | None = None
    unmet: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.place} has {self.name} {self.version}"

    @property
    def identity(self) -> list[object]:
        content = hashlib.sha256(self.metadata).hexdigest() if self.metadata is not None else None
        return [self.name, self.version, self.place, content, self.record_sha256]

    @property
    def recorded(self) -> InstalledPackage:
        """As a lock has it."""
        return InstalledPackage(self.name, self.version, self.record_sha256)


class FoundEnvironment(Struct, frozen=True):
    """What an environment is installed on top of. Of a base image, or of a file that lists a system's packages.

    place: as messages name it.
    packages: by name.
    python: exact; empty if it is unknown.
    glibc: None if it is unknown.
    home, site, nested: see `models.OnTopOf`.
    constraints: lines that hold for everything that is installed there (`PIP_CONSTRAINT`).
    torch_build: `cu128`, `cpu`, empty if it is unknown.
    gpu_code: of its torch.
    notes: for the user.
    """

    place: str
    packages: Mapping[str, FoundPackage]
    python: str = ""
    glibc: tuple[int, int] | None = None
    home: str = ""
    site: str = ""
    nested: str = ""
    constraints: tuple[str, ...] = ()
    torch_build: str = ""
    gpu_code: GpuCodeFound | None = None
    notes: tuple[str, ...] = ()


class CondaProvided(_Provided, frozen=True):
    """A Python package that conda installs.

    package: the conda package that contains it.
    channel: its channel as the spec names it.
    askers: what requires the conda package.
    """

    package: str = ""
    channel: str = ""
    askers: tuple[Dependent, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version} comes from {self.channel}"

    @property
    def description(self) -> str:
        """`numpy 2.2.6 comes from conda-forge (conda's numpy, required by scipy)`."""
        names = required_by(self.askers)
        required = ""
        if names:
            required = f", required by {some_of(names, 3)}"
        return f"{self} (conda's {self.package}{required})"

    @property
    def identity(self) -> list[object]:
        return [self.name, self.version, self.package, self.channel]


ProvidedPackage: TypeAlias = FoundPackage | CondaProvided


class Channel(Struct, frozen=True):
    """A conda channel.

    name: as in the spec.
    url: without credentials, no `/` at the end: what the lock records.
    address: the same with the user's credentials.
    repodata: a folder with `<subdir>/repodata.json` that replaces the channel's own (a part of it, for example); its
        records keep the channel's URLs.
    only: the platforms that the channel has, according to the spec; empty: `noarch` and each of the spec's platforms.
    """

    name: str
    url: str
    address: str
    repodata: Path | None = None
    only: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        return self.repodata is not None or self.address.startswith("file:")


class VirtualPackage(Struct, frozen=True):
    """A property of the environment's machine: `__cuda 12.8`, `__archspec 1 x86_64`. Never read from this machine."""

    name: str
    version: str
    build: str = "0"

    def __str__(self) -> str:
        if self.build == "0":
            return f"{self.name}={self.version}"
        return f"{self.name}={self.version}={self.build}"


class CondaRequest(Struct, frozen=True):
    """What a conda solver solves for one platform.

    channels: in strict priority.
    requirements: match specs as the spec writes them, Python's included.
    as_of: later builds are ignored.
    constraints: match specs for packages that something else requires.
    of_platform: the requirements of this platform's own table.
    cuda: packages that have CUDA builds must come as one, for this CUDA; None: builds for the CPU are meant.
    undated: whether records without a build time count.
    cutoffs: names with an `as_of` of their own.
    locked: packages to keep if the requirements allow them.
    preferred: name, version and build (empty: any) that the spec prefers for names that are not locked.
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
    cutoffs: Mapping[str, datetime] = field(default_factory=dict)
    locked: tuple[CondaPackage, ...] = ()
    preferred: tuple[tuple[str, str, str], ...] = ()

    def cutoff_of(self, name: str) -> datetime:
        return self.cutoffs.get(name, self.as_of)


class RefusedLine(NamedTuple):
    """What is wrong with lines of [pip] dependencies: with that which reads `line`, else with each of the name."""

    name: str
    problem: str
    hint: str
    line: str = ""

    def is_of(self, line: Requirement) -> bool:
        # A label of the torch family chooses its build, and is then removed.
        is_same = not self.line or self.line in (str(line), str(without_label(line)[0]))
        return line.name == self.name and is_same


class RefusedLines(NoSolution):
    """Lines of the spec that nothing satisfies, whatever else it requires."""

    def __init__(self, found: Iterable[RefusedLine]) -> None:
        self.found = tuple(dict.fromkeys(found))
        super().__init__(
            "; ".join(dict.fromkeys(each.problem for each in self.found)),
            hint="; ".join(dict.fromkeys(each.hint for each in self.found)),
        )

    def of_lines(self, required: Iterable[Requirement]) -> list[tuple[KeyPath, str, str]]:
        """The key of each refused line of [pip] dependencies, with its problem and hint."""
        refused: list[tuple[KeyPath, str, str]] = []
        for at, line in enumerate(required):
            for each in self.found:
                if each.is_of(line):
                    refused.append((("pip", "dependencies", at), each.problem, each.hint))
        return refused
