"""What is expected of an environment, and what was found: values that also travel as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class ExpectedPackage:
    """A locked distribution. contents: see `record.wheel_contents`; None where the lock does not tell it."""

    name: str
    version: str
    contents: str | None = None


@dataclass(frozen=True)
class ExpectedConda:
    """A locked conda package. sha256: of its archive."""

    name: str
    version: str
    build: str
    sha256: str


@dataclass(frozen=True)
class Expected:
    """All that an environment is to hold. allowed: names of distributions that may be there beside it."""

    packages: tuple[ExpectedPackage, ...]
    conda: tuple[ExpectedConda, ...] = ()
    allowed: tuple[str, ...] = ("pip", "setuptools", "wheel")


class Drift(Enum):
    """How something differs."""

    MISSING = "missing"
    VERSION = "version"
    EXTRA = "extra"
    DUPLICATE = "duplicate"
    SHADOWED = "shadowed"
    RECORD = "record"
    CHANGED = "changed"
    FILE_MISSING = "file-missing"
    UNREADABLE = "unreadable"
    LEADS_OUT = "leads-out"
    UNHASHED = "unhashed"
    UNOWNED = "unowned"
    BYTECODE = "bytecode"
    ARCHIVE = "archive"


@dataclass(frozen=True)
class Finding:
    """One thing that differs. package: its name, empty for a file that none owns. path: from the environment's folder.

    expected, found: versions, hashes or words, as far as there are any.
    """

    package: str
    drift: Drift
    path: str = ""
    expected: str = ""
    found: str = ""

    @property
    def text(self) -> str:
        """One line, without the package's name."""
        return _TEXTS[self.drift].format(path=self.path, expected=self.expected, found=self.found)


_TEXTS = {
    Drift.MISSING: "{expected} is not installed",
    Drift.VERSION: "{found} is installed, the lock has {expected}",
    Drift.EXTRA: "{found} is installed, and the lock does not have it",
    Drift.DUPLICATE: "is installed more than once: {found}",
    Drift.SHADOWED: "{path} comes before it on Python's path and hides it",
    Drift.RECORD: "{path}: its list of files is not the locked wheel's: {found}",
    Drift.CHANGED: "{path} was changed",
    Drift.FILE_MISSING: "{path} is missing",
    Drift.UNREADABLE: "{path} can't be read: {found}",
    Drift.LEADS_OUT: "{path} is not looked at: it leads out of the environment, to {found}",
    Drift.UNHASHED: "{path} is listed without a hash that counts",
    Drift.UNOWNED: "{path} belongs to no package",
    Drift.BYTECODE: "{path} was not compiled from its source",
    Drift.ARCHIVE: "was linked from another archive: SHA-256 {found}, the lock has {expected}",
}


@dataclass(frozen=True)
class Counts:
    """What was compared, and how.

    files, size_bytes: whose bytes were hashed. anchored: packages whose list of files is compared with the lock's own
    digest; unanchored: locked ones for which it has none; beside: those that the lock only allows. Both of these are
    compared with nothing but the list beside them. own_word: files, such as programs, that
    are compared with that list alone in every package. bytecode that is listed with a hash is among `files`; by_source:
    compared by its source's hash; by_time: Python itself looks at time and size; other_python: not this one's, and
    not looked at.
    """

    packages: int = 0
    conda: int = 0
    files: int = 0
    size_bytes: int = 0
    anchored: int = 0
    unanchored: int = 0
    beside: int = 0
    own_word: int = 0
    bytecode_by_source: int = 0
    bytecode_by_time: int = 0
    bytecode_other_python: int = 0


@dataclass(frozen=True)
class Result:
    """findings: sorted by package, then by kind and path; none where the environment is what it should be."""

    findings: tuple[Finding, ...]
    counts: Counts

    @property
    def is_same(self) -> bool:
        return not self.findings


def read_expected(data: Any) -> Expected:
    """The value of an object as `dataclasses.asdict` writes it; ValueError, KeyError or TypeError for anything else."""
    return Expected(
        packages=tuple(ExpectedPackage(**each) for each in data["packages"]),
        conda=tuple(ExpectedConda(**each) for each in data["conda"]),
        allowed=tuple(data["allowed"]),
    )


def result_object(result: Result) -> dict[str, Any]:
    """JSON's values for a result: `same`, `findings`, each with its `text`, and `counts`."""
    found = [{**asdict(each), "drift": each.drift.value, "text": each.text} for each in result.findings]
    return {"same": result.is_same, "findings": found, "counts": asdict(result.counts)}
