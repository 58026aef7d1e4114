"""An environment compared with its lock."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from envspec.verifier.hashing import (
    STRONG,
    BytecodeState,
    ExpectedFile,
    compare_bytecode,
    from_record,
    hash_all,
    is_bytecode,
    source_of,
)
from envspec.verifier.record import installed_path, installed_sha256
from envspec.verifier.scan import (
    CondaRecord,
    Distribution,
    PythonEnvironment,
    conda_records,
    distributions,
    normalised,
    same_version,
    shadows,
    walk,
)
from envspec.verifier.types import (
    Drift,
    DriftFinding,
    Expected,
    ExpectedConda,
    ExpectedPackage,
    VerifyCounts,
    VerifyResult,
)

#: By which an environment finds packages of a base (`models.PATH_FILE`).
_PATH_FILE = "envspec.pth"


@dataclass
class OwnedFiles:
    """Files that packages list, by paths relative to the environment; without those outside of it.

    owners: the first package that lists a path. expected: those with a strong hash. unhashed: listed without one.
    record_only: how many files have a hash that no digest in a lock covers.
    """

    owners: dict[str, str] = field(default_factory=dict)
    expected: dict[str, ExpectedFile] = field(default_factory=dict)
    unhashed: dict[str, str] = field(default_factory=dict)
    record_only: int = 0

    def add(self, path: str, owner: str, algorithm: str = "", digest: str = "", size_bytes: int = 0) -> None:
        self.owners.setdefault(path, owner)
        # Bytecode is compared with its source: installers compile again over a wheel's, and images omit it.
        if algorithm in STRONG and from_record(digest) and not is_bytecode(path):
            file = self.expected.setdefault(path, ExpectedFile(path, {}))
            file.hashes[algorithm, digest] = None
            file.size_bytes = max(size_bytes, file.size_bytes)

    def add_distribution(self, one: Distribution, environment: PythonEnvironment) -> None:
        root, depth = f"{environment.prefix}{os.sep}", _depth(one, environment)
        for entry in one.entries or ():
            path = os.path.normpath(os.path.join(one.site, entry.path))  # noqa: PTH118 (40,000 times)
            if not path.startswith(root):
                continue
            inside = path[len(root) :].replace(os.sep, "/")
            self.add(inside, one.name, entry.algorithm, entry.digest, entry.size_bytes or 0)
            is_covered = installed_path(entry.path, depth) is not None
            if inside in self.expected:
                self.record_only += not is_covered
            elif (is_covered or entry.algorithm) and not is_bytecode(inside):
                self.unhashed[inside] = one.name


@dataclass(frozen=True)
class Installed:
    """What an environment declares. wheels: without distributions that conda installed."""

    environment: PythonEnvironment
    wheels: tuple[Distribution, ...]
    conda: tuple[CondaRecord, ...]
    files: OwnedFiles
    unreadable: tuple[DriftFinding, ...]


def read_installed(environment: PythonEnvironment) -> Installed:
    """Read the metadata of all packages."""
    files, wheels, unreadable = OwnedFiles(), list[Distribution](), list[DriftFinding]()
    conda = tuple(conda_records(environment.prefix))
    for record in conda:
        for path in record.paths:
            files.add(path, record.name)
        for path, digest, size_bytes in record.files:
            files.add(path, record.name, "sha256", digest, size_bytes)
    of_conda = frozenset(files.owners)
    for site in environment.sites:
        try:
            wheels += (one for one in distributions(site) if not _is_condas(one, environment, of_conda))
        except OSError as error:
            reason = error.strerror or str(error)
            unreadable.append(DriftFinding("", Drift.UNREADABLE, environment.relative(site), found=reason))
    for one in wheels:
        files.add_distribution(one, environment)
    return Installed(environment, tuple(wheels), conda, files, tuple(unreadable))


def _is_condas(one: Distribution, environment: PythonEnvironment, paths: frozenset[str]) -> bool:
    """Whether conda installed a distribution: then its list of files is conda's."""
    inside = f"{environment.relative(one.site)}/{one.folder}"
    return not paths.isdisjoint((inside, f"{inside}/METADATA", f"{inside}/RECORD"))


def _depth(one: Distribution, environment: PythonEnvironment) -> int:
    """How many folders a distribution's site-packages is below the environment."""
    return len(one.site.relative_to(environment.prefix).parts)


def compare(expected: Expected, installed: Installed) -> VerifyResult:
    """Find all differences; read only, and nothing outside of the environment. What can't be read is a finding."""
    environment, files = installed.environment, installed.files
    findings = list(installed.unreadable)
    findings += _packages(expected, installed)
    findings += _conda(expected.conda, installed)
    findings += compare_beneath(expected.beneath, environment.below)
    for one, hiding in shadows(installed.wheels, environment.path):
        findings.append(DriftFinding(one.name, Drift.SHADOWED, str(hiding)))
    for path, owner in files.unhashed.items():
        if path not in files.expected:
            findings.append(DriftFinding(owner, Drift.UNHASHED, path))
    hashed = hash_all(files.expected.values(), str(environment.prefix))
    for each in hashed:
        if each.drift is not None:
            first = "=".join(next(iter(files.expected[each.path].hashes)))
            findings.append(DriftFinding(files.owners[each.path], each.drift, each.path, first, each.found))
    bytecode: list[Path] = []
    for site in environment.sites:
        paths, compiled, unreadable = walk(str(site))
        bytecode += (Path(path) for path in compiled if environment.relative(path) not in files.expected)
        start = len(str(environment.prefix)) + 1
        inside = (path[start:].replace(os.sep, "/") for path in paths)
        own = {f"{environment.relative(site)}/{_PATH_FILE}"} if expected.beneath else set()
        findings += (
            DriftFinding("", Drift.UNOWNED, path) for path in inside if path not in (files.owners.keys() | own)
        )
        for folder, reason in unreadable:
            findings.append(DriftFinding("", Drift.UNREADABLE, environment.relative(folder), found=reason))
    compared, wrong = compare_bytecode(bytecode)
    findings += (_bytecode_finding(path, reason, installed) for path, reason in wrong)
    locked = {normalised(each.name): each.record_sha256 is not None for each in expected.packages}
    has_digest = [locked.get(one.name) for one in installed.wheels]
    counts = VerifyCounts(
        packages=len(installed.wheels),
        conda=len(installed.conda),
        files=len(hashed),
        size_bytes=sum(each.size_bytes for each in hashed),
        against_lock=has_digest.count(True),
        against_record=has_digest.count(False),
        allowed=has_digest.count(None),
        record_only=files.record_only,
        bytecode_by_source=compared[BytecodeState.BY_SOURCE],
        bytecode_by_time=compared[BytecodeState.BY_TIME],
        bytecode_other_python=compared[BytecodeState.OTHER_PYTHON],
    )
    return VerifyResult(tuple(sorted(set(findings), key=_sort_key)), counts)


def _sort_key(each: DriftFinding) -> tuple[str, int, str, str, str]:
    return each.package, list(Drift).index(each.drift), each.path, each.expected, each.found


def _packages(expected: Expected, installed: Installed) -> Iterator[DriftFinding]:
    by_name: dict[str, list[Distribution]] = {}
    for one in installed.wheels:
        by_name.setdefault(one.name, []).append(one)
    locked = {normalised(each.name): each for each in expected.packages}
    allowed = {normalised(name) for name in expected.allowed}
    for name, ones in by_name.items():
        if len(ones) > 1:
            yield DriftFinding(name, Drift.DUPLICATE, found=", ".join(one.folder for one in ones))
        if name not in locked and name not in allowed:
            yield DriftFinding(name, Drift.EXTRA, found=ones[0].version)
        for one in ones:
            yield from _distribution(one, locked.get(name), installed.environment)
    for name in locked.keys() - by_name.keys():
        yield DriftFinding(name, Drift.MISSING, expected=locked[name].version)


def _distribution(
    one: Distribution, locked: ExpectedPackage | None, environment: PythonEnvironment
) -> Iterator[DriftFinding]:
    record = f"{environment.relative(one.site / one.folder)}/RECORD"
    if locked and not _is_version(locked, one.version):
        yield DriftFinding(one.name, Drift.VERSION, expected=locked.version, found=one.version)
    elif one.entries is None:
        yield DriftFinding(one.name, Drift.RECORD, record, found=one.problem)
    elif locked and locked.record_sha256 is not None:
        digest = installed_sha256(one.entries, _depth(one, environment))
        if digest != locked.record_sha256:
            yield DriftFinding(one.name, Drift.RECORD, record, locked.record_sha256, digest or "it has other hashes")


def compare_beneath(expected: Sequence[ExpectedPackage], folders: Sequence[Path]) -> Iterator[DriftFinding]:
    """How packages differ from those that a lock is on top of. folders: of Python's path, in order."""
    found: dict[str, Distribution] = {}
    for folder in folders if expected else ():
        # What can't be read is missing for Python too.
        with suppress(OSError):
            for one in distributions(folder):
                found.setdefault(one.name, one)
    for each in expected:
        there = found.get(normalised(each.name))
        if there is None:
            yield DriftFinding(each.name, Drift.BENEATH_MISSING, expected=each.version)
        elif not same_version(each.version, there.version):
            yield DriftFinding(each.name, Drift.BENEATH, expected=each.version, found=there.version)
        elif each.record_sha256 is not None and _record_sha256(there) != each.record_sha256:
            text = f"another build of {there.version}"
            yield DriftFinding(each.name, Drift.BENEATH, str(there.site / there.folder), each.version, text)


def _record_sha256(one: Distribution) -> str | None:
    try:
        return hashlib.sha256((one.site / one.folder / "RECORD").read_bytes()).hexdigest()
    except OSError:
        return None


def _is_version(locked: ExpectedPackage, version: str) -> bool:
    """Whether a distribution is of the locked version. Its METADATA may lack the label in its wheel's name: then
    its RECORD decides.
    """
    public = locked.version.partition("+")[0] if locked.record_sha256 is not None else locked.version
    return same_version(locked.version, version) or same_version(public, version)


def _conda(expected: Sequence[ExpectedConda], installed: Installed) -> Iterator[DriftFinding]:
    locked = {each.name: each for each in expected}
    names = [record.name for record in installed.conda]
    for record in installed.conda:
        yield from _conda_package(record, locked.get(record.name))
        if names.count(record.name) > 1:
            yield DriftFinding(record.name, Drift.DUPLICATE, found=record.file)
    for name in locked.keys() - set(names):
        yield DriftFinding(name, Drift.MISSING, expected=f"{locked[name].version} {locked[name].build}")


def _conda_package(record: CondaRecord, locked: ExpectedConda | None) -> Iterator[DriftFinding]:
    shown = f"{record.version} {record.build}"
    if record.problem:
        yield DriftFinding(record.name, Drift.UNREADABLE, f"conda-meta/{record.file}", found=record.problem)
    elif locked is None:
        yield DriftFinding(record.name, Drift.EXTRA, found=shown)
    elif (record.version, record.build) != (locked.version, locked.build):
        yield DriftFinding(record.name, Drift.VERSION, expected=f"{locked.version} {locked.build}", found=shown)
    elif record.sha256.lower() != locked.sha256.lower():
        yield DriftFinding(record.name, Drift.ARCHIVE, expected=locked.sha256, found=record.sha256 or "unknown")


def _bytecode_finding(path: Path, reason: str, installed: Installed) -> DriftFinding:
    """reason: why it can't be read; empty if it differs from its source."""
    environment, owners = installed.environment, installed.files.owners
    inside, source = environment.relative(path), source_of(path)
    owner = owners.get(inside) or (owners.get(environment.relative(source), "") if source else "")
    return DriftFinding(owner, Drift.UNREADABLE if reason else Drift.BYTECODE, inside, found=reason)
