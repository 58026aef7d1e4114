"""What rules of `envspec audit-project` read, and what they report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.facts.tables import Facts, GpuRow, TorchRelease
from envspec.importers.types import Clue, Draft, LedgerEntry, Source
from envspec.models import CudaVersion, Package, Platform, Target
from envspec.resolve.pypi.index.page import PageListing
from envspec.spec.requirements import Requirement

#: A line of a Dockerfile that names a base image.
FROM: Final = re.compile(r"FROM\s", re.IGNORECASE)


class Severity(Enum):
    """ERROR: it fails today, or runs elsewhere than is meant; the only one that fails the command. WARNING: it works,
    and something else happens than the sources say. INFO: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Rule(NamedTuple):
    """code: stable. title: what a finding means, in a few words."""

    code: str
    severity: Severity
    title: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. what: a sentence without its end. why: how it is known. fact: where that is from.

    todo: what to do, beginning with a verb.
    """

    rule: Rule
    source: Source
    what: str
    why: str
    fact: str
    todo: str

    def is_same(self, other: Finding) -> bool:
        """Whether both report one thing: a line can be part of several environments."""
        return (self.rule, self.source, self.what) == (other.rule, other.source, other.what)


class SkippedCheck(NamedTuple):
    """What was not examined, and why: it is neither wrong nor right."""

    what: str
    reason: str


class Need(Enum):
    """What a group of rules needs beside the sources; the value says so if it is missing."""

    PAGES = "needs the index's pages"
    TAKEN = "needs the versions that installers choose today"
    GPUS = "needs --gpu, or a source that names GPUs"
    DRIVER = "needs --driver, or a source that names one"


class Required(NamedTuple):
    """A requirement of a source that applies to the target."""

    requirement: Requirement
    source: Source

    @property
    def pin(self) -> str:
        """The only version that it allows, as it is written; empty if there are several."""
        clauses = [each for each in self.requirement.specifier if each.operator in ("==", "===")]
        return next((each.version for each in clauses if not each.version.endswith(".*")), "")


class Taken(NamedTuple):
    """The release that installers choose. filename, size_bytes: of its file; empty and None if a lock file names it.

    required_by: names of what requires it, empty for the project itself.
    """

    name: str
    version: str
    filename: str = ""
    size_bytes: int | None = None
    required_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, package: Package, project: str) -> Taken:
        """project: how the package's `required_by` names what the sources require."""
        by = tuple(dict.fromkeys("" if each.name == project else each.name for each in package.required_by))
        return cls(package.name, package.version, package.file.filename, package.file.size_bytes, by)

    @property
    def is_sdist(self) -> bool:
        return bool(self.filename) and not self.filename.endswith(".whl")


@dataclass(frozen=True, slots=True)
class InstalledTorch:
    """The build of torch that installers choose. variant: `cu128`, `cpu`. index: PyTorch's variant that a source names.

    source: the line that brings it.
    """

    row: TorchRelease
    version: str
    variant: str
    source: Source
    index: str = ""

    @property
    def cuda(self) -> CudaVersion | None:
        return None if self.variant == "cpu" else CudaVersion.parse(self.variant)

    def __str__(self) -> str:
        built = f"CUDA {self.cuda}" if self.cuda else "the CPU alone"
        return f"torch {Version(self.version).public} for {built}"


@dataclass(frozen=True, slots=True)
class Audit:
    """A project, and what is known of it.

    is_python_assumed: whether no source names a Python. required: what applies to the target; bounds: constraints.
    overrides: names, and what is required of them; None for what is removed. commands: how many install packages, one
    after the other. taken: None if it is not known what installers choose. is_partial: whether something that the
    sources require is not part of it. pages: of names on the default index; None for a name that it does not have.
    gpus: with the line that names each; an empty file for the command's own options, as of the driver. unresolved: why
    installers choose nothing at all; empty if they do.
    """

    draft: Draft
    ledger: tuple[LedgerEntry, ...]
    facts: Facts
    target: Target
    required: tuple[Required, ...] = ()
    bounds: tuple[Required, ...] = ()
    is_python_assumed: bool = False
    overrides: tuple[tuple[str, SpecifierSet | None], ...] = ()
    commands: int = 0
    gpus: tuple[tuple[GpuRow, Source], ...] = ()
    driver: Clue | None = None
    pages: Mapping[str, PageListing | None] | None = None
    taken: Mapping[str, Taken] | None = None
    is_partial: bool = False
    torch: InstalledTorch | None = None
    unresolved: str = ""
    left_out: tuple[SkippedCheck, ...] = field(default=())

    def first(self, name: str) -> Source | None:
        """The line that requires a package; None if none does."""
        return next((each.source for each in self.required if each.requirement.name == name), None)

    def bringing(self, name: str) -> Source:
        """The line that requires a package, or something that leads to it; the first source if that is not known."""
        seen, open_names = {name}, [name]
        for each in open_names:
            source = self.first(each)
            if source is not None:
                return source
            found = self.taken.get(each) if self.taken else None
            for dependent in found.required_by if found else ():
                if dependent and dependent not in seen:
                    seen.add(dependent)
                    open_names.append(dependent)
        version = self.draft.versions.get(name, "")
        for entry in self.ledger:
            if version and version in entry.text and name in entry.text:
                return entry.source
        return self.top

    def is_pinned(self, name: str) -> bool:
        """Whether a line requires one version of a package, which it then has whatever else is installed."""
        return any(each.requirement.name == name and each.pin for each in self.required)

    def has_other_index(self, name: str) -> bool:
        """Whether a name may come from an index of the sources that is neither the default one nor PyTorch's."""
        named = any(not each.packages or name in each.packages for each in self.draft.indexes)
        return named or bool(self.draft.unread_indexes or self.draft.unsupported)

    @property
    def of_images(self) -> set[str]:
        """Names of packages that a base image has, and that no other line requires."""
        lines = {each.source for each in self.ledger if FROM.match(each.text)}
        required = {each.requirement.name for each in self.required if each.source not in lines}
        names = {each.requirement.name for each in self.required if each.source in lines}
        if "torch" in names:
            names |= {"torchvision", "torchaudio"}
        return names - required

    def versions(self) -> dict[str, str]:
        """The versions that the sources lock for the target; none for platforms other than linux-64."""
        series, locked = self.target.python.series, self.draft.locked
        others = {name for name, each in locked.items() if series not in each.pythons}
        if self.target.platform is not Platform.LINUX_64:
            return {}
        return {name: version for name, version in self.draft.versions.items() if name not in others}

    @property
    def top(self) -> Source:
        """The first source as a whole."""
        return Source(self.ledger[0].source.file) if self.ledger else Source("the project")

    @property
    def means_gpu(self) -> Clue | None:
        """What says that the project is for GPUs; None if nothing does."""
        found = [*self.draft.cudas, *self.draft.gpus, *self.draft.drivers]
        asked = [Clue(gpu.name, source, "--gpu") for gpu, source in self.gpus if not source.file]
        return next((each for each in (*asked, *found) if each.value != "cpu"), None)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """findings: the worst first. examined: names of the groups of rules that ran. python, platform: what was examined.

    sources: the files that were read. ignored: how many findings the user does not want. as_of: up to when releases
    count.
    """

    findings: tuple[Finding, ...]
    not_run: tuple[SkippedCheck, ...]
    examined: tuple[str, ...]
    sources: tuple[str, ...]
    python: str
    platform: str
    as_of: str
    ignored: int = 0

    def count(self, severity: Severity) -> int:
        return sum(each.rule.severity is severity for each in self.findings)
