"""What an environment should contain, and how it differs: values that also travel as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final

#: The package of a finding about the environment's Python, its programs and settings.
PYTHON: Final = "python"


@dataclass(frozen=True)
class ExpectedPackage:
    """A locked wheel. version: empty if only its build gives it one. record_sha256: see `record.wheel_sha256`; None if
    it is not in the lock.
    """

    name: str
    version: str
    record_sha256: str | None = None


@dataclass(frozen=True)
class ExpectedConda:
    """A locked conda package. sha256: of its archive."""

    name: str
    version: str
    build: str
    sha256: str


@dataclass(frozen=True)
class Expected:
    """A whole environment.

    allowed: names of distributions that may be installed besides.
    beneath: those of the base image, or of the system, on top of which it is installed; record_sha256 is then that of
        RECORD itself.
    owners: path -> package, of files that several packages have with different content; see
        `installed.entries_of_owners`.
    wrong_records: package -> path -> SHA-256, of files that RECORD does not list as they are; see `models.WrongRow`.
    """

    packages: tuple[ExpectedPackage, ...]
    conda: tuple[ExpectedConda, ...] = ()
    beneath: tuple[ExpectedPackage, ...] = ()
    allowed: tuple[str, ...] = ("pip", "setuptools", "wheel")
    owners: Mapping[str, str] = field(default_factory=dict)
    wrong_records: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Expected:
        """From the values of `asdict`."""
        return Expected(
            packages=tuple(ExpectedPackage(**each) for each in data["packages"]),
            conda=tuple(ExpectedConda(**each) for each in data["conda"]),
            beneath=tuple(ExpectedPackage(**each) for each in data["beneath"]),
            allowed=tuple(data["allowed"]),
            owners=data["owners"],
            wrong_records=data["wrong_records"],
        )


class Drift(Enum):
    """A kind of difference. text: names a finding's path, expected and found."""

    MISSING = "missing", "{expected} is not installed"
    VERSION = "version", "{found} is installed, the lock has {expected}"
    EXTRA = "extra", "{found} is installed and is not in the lock"
    DUPLICATE = "duplicate", "is installed more than once: {found}"
    SHADOWED = "shadowed", "{path} is earlier on Python's path and hides it"
    RECORD = "record", "{path}: its list of files is not the locked wheel's: {found}"
    CHANGED = "changed", "{path} was changed"
    FILE_MISSING = "file-missing", "{path} is missing"
    UNREADABLE = "unreadable", "{path} cannot be read: {found}"
    LEADS_OUT = "leads-out", "{path} is not checked: it links out of the environment, to {found}"
    LINK = "link", "{path} is a link to {found}, not a file"
    INTERPRETER = "interpreter", "{path} runs {found}, which is not the environment's Python"
    SYSTEM_PACKAGES = "system-packages", "{path} includes packages of the system, which are not in the lock"
    UNHASHED = "unhashed", "{path} is listed without a strong hash"
    UNOWNED = "unowned", "{path} belongs to no package"
    BYTECODE = "bytecode", "{path} was not compiled from its source"
    BENEATH_MISSING = "beneath-missing", "{expected}, on top of which the lock is, is not on Python's path"
    BENEATH = "beneath", "{found} is on Python's path, the lock is on top of {expected}"
    ARCHIVE = "archive", "was installed from another archive: SHA-256 {found}, the lock has {expected}"

    text: str

    def __new__(cls, value: str, text: str) -> Drift:
        member = object.__new__(cls)
        member._value_, member.text = value, text
        return member


@dataclass(frozen=True)
class DriftFinding:
    """One difference. package: empty for a file of no package. path: relative to the environment.

    expected, found: versions, hashes or reasons, if there are any.
    """

    package: str
    drift: Drift
    path: str = ""
    expected: str = ""
    found: str = ""

    @property
    def text(self) -> str:
        """One line, without the package's name."""
        return self.drift.text.format(path=self.path, expected=self.expected, found=self.found)


@dataclass(frozen=True)
class VerifyCounts:
    """What was compared, and with what.

    files, size_bytes: hashed.
    against_lock: packages whose list of files is compared with a digest in the lock.
    against_record: locked packages without such a digest; allowed: installed packages that the lock only allows. Both
    are compared with nothing but their own RECORD, as are the files in `record_only` (headers, for example) of all.
    generated: programs compared with their entry points.
    listed: files of no package, compared with the list that `envspec install` wrote; unlisted: not compared, because
    the environment has no list.
    bytecode_by_source: compared with its source's hash; by_time: left to Python, which compares time and size; by_code:
    its source was compiled again; other_python: of another Python, not checked. Bytecode that a package lists with a
    hash is among `files`.
    """

    packages: int = 0
    conda: int = 0
    files: int = 0
    size_bytes: int = 0
    against_lock: int = 0
    against_record: int = 0
    allowed: int = 0
    record_only: int = 0
    generated: int = 0
    listed: int = 0
    unlisted: int = 0
    bytecode_by_source: int = 0
    bytecode_by_time: int = 0
    bytecode_by_code: int = 0
    bytecode_other_python: int = 0


@dataclass(frozen=True)
class VerifyResult:
    """findings: sorted by package, kind and path; none if the environment is as locked."""

    findings: tuple[DriftFinding, ...]
    counts: VerifyCounts

    @property
    def is_same(self) -> bool:
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """`same`, `findings`, each with its `text`, and `counts`."""
        found = [{**asdict(each), "drift": each.drift.value, "text": each.text} for each in self.findings]
        return {"same": self.is_same, "findings": found, "counts": asdict(self.counts)}
