"""What rules of `envspec audit-project` read, and what they report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct, field
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.facts.tables import Facts, GpuRow, TorchRelease
from envspec.importers.types import Clue, Draft, LedgerEntry, Source
from envspec.models import CudaVersion, Platform, Target
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


class Finding(Struct, frozen=True):
    """One thing that is wrong. what: a sentence without its end. why: how it is known. fact: where that is from.

    todo: what to do, beginning with a verb.
    """

    rule: Rule
    source: Source
    what: str
    why: str
    fact: str
    todo: str


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
    def name(self) -> str:
        return self.requirement.name

    @property
    def pin(self) -> str:
        """The only version that it allows, as it is written; empty if there are several."""
        for clause in self.requirement.specifier:
            if clause.operator in ("==", "===") and not clause.version.endswith(".*"):
                return clause.version
        return ""


class Taken(NamedTuple):
    """The release that installers choose. filename, size_bytes: of its file; empty and None if a lock file names it.

    required_by: names of what requires it; SPEC for the project itself.
    """

    name: str
    version: str
    filename: str = ""
    size_bytes: int | None = None
    required_by: tuple[str, ...] = ()

    @property
    def is_sdist(self) -> bool:
        return bool(self.filename) and not self.filename.endswith(".whl")


class InstalledTorch(Struct, frozen=True):
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
        if self.variant == "cpu":
            return None
        return CudaVersion.parse(self.variant)

    def __str__(self) -> str:
        built = f"CUDA {self.cuda}" if self.cuda else "the CPU alone"
        return f"torch {Version(self.version).public} for {built}"


class Audit(Struct, frozen=True):
    """A project, and what is known of it.

    required: what applies to the target.
    bounds: constraints.
    is_python_assumed: whether no source names a Python.
    overrides: names, and what is required of them; None for what is removed.
    commands: how many install packages, one after the other.
    gpus: with the line that names each; an empty file for the command's own options, as of the driver.
    pages: of names on the default index; None for a name that it does not have.
    taken: None if it is not known what installers choose.
    is_partial: whether something that the sources require is not part of `taken`.
    unresolved: why installers choose nothing at all; empty if they do.
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

    def requiring(self, name: str) -> list[Required]:
        """The lines that require a package."""
        return [each for each in self.required if each.name == name]

    def first(self, name: str) -> Source | None:
        """The line that requires a package; None if none does."""
        for each in self.requiring(name):
            return each.source
        return None

    def bound(self, name: str) -> SpecifierSet | None:
        """What the lines together allow of a package; None if none requires it."""
        found: SpecifierSet | None = None
        for each in self.requiring(name):
            found = each.requirement.specifier & (found or SpecifierSet())
        return found

    def chosen(self, name: str) -> Taken | None:
        """The release of a package that installers choose; None if it is not known."""
        return (self.taken or {}).get(name)

    def bringing(self, name: str) -> Source:
        """The line that requires a package, or something that leads to it; the first source if that is not known."""
        seen, open_names = {name}, [name]
        for each in open_names:
            source = self.first(each)
            if source is not None:
                return source
            found = self.chosen(each)
            if found is None:
                continue
            for dependent in found.required_by:
                if dependent not in seen:
                    seen.add(dependent)
                    open_names.append(dependent)
        if (locked := self.draft.locked.get(name)) is not None:
            return locked.source
        version = self.draft.versions.get(name, "")
        for entry in self.ledger:
            if version and version in entry.text and name in entry.text:
                return entry.source
        return self.top

    def has_other_index(self, name: str) -> bool:
        """Whether a name may come from an index of the sources that is neither the default one nor PyTorch's."""
        for index in self.draft.indexes:
            if not index.packages or name in index.packages:
                return True
        return bool(self.draft.unread_indexes or self.draft.unsupported)

    @property
    def of_images(self) -> set[str]:
        """Names of packages that a base image has, and that no other line requires."""
        lines = {each.source for each in self.ledger if FROM.match(each.text)}
        names, others = set(), set()
        for each in self.required:
            if each.source in lines:
                names.add(each.name)
            else:
                others.add(each.name)
        if "torch" in names:
            names |= {"torchvision", "torchaudio"}
        return names - others

    def versions(self) -> dict[str, str]:
        """The versions that the sources lock for the target; none for platforms other than linux-64."""
        if self.target.platform is not Platform.LINUX_64:
            return {}
        versions = dict(self.draft.versions)
        for name, locked in self.draft.locked.items():
            if self.target.python.series not in locked.pythons:
                versions.pop(name, None)
        return versions

    @property
    def top(self) -> Source:
        """The first source as a whole."""
        if not self.ledger:
            return Source("the project")
        return Source(self.ledger[0].source.file)

    @property
    def gpu_rows(self) -> list[GpuRow]:
        """The GPUs without the lines that name them."""
        return [gpu for gpu, _ in self.gpus]

    @property
    def driver_version(self) -> str:
        """Empty if it is not known."""
        return self.driver.value if self.driver else ""

    def default_of(self, row: TorchRelease) -> str:
        """The variant of the default index's build of a torch for the platform; empty if there is none."""
        return row.default_on(self.target.platform) or ""

    @property
    def means_gpu(self) -> Clue | None:
        """What says that the project is for GPUs; None if nothing does."""
        for gpu, source in self.gpus:
            if not source.file:
                return Clue(gpu.name, source, "--gpu")
        for clue in (*self.draft.cudas, *self.draft.gpus, *self.draft.drivers):
            if clue.value != "cpu":
                return clue
        return None


class AuditReport(Struct, frozen=True):
    """What is wrong with a project.

    findings: the worst first.
    examined: names of the groups of rules that ran.
    sources: the files that were read.
    python, platform: what was examined.
    as_of: up to when releases count.
    ignored: how many findings the user does not want.
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
