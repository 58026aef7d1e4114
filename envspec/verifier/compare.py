"""An environment compared with its lock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path

from envspec.verifier.hashing import BytecodeState, compare_bytecode, hash_all, source_of
from envspec.verifier.installed import Installed, depth_of, entries_of_owners, right_rows
from envspec.verifier.own_files import CONFIG, has_system_packages, is_known
from envspec.verifier.record import installed_sha256
from envspec.verifier.scan import (
    CondaRecord,
    Distribution,
    PythonEnvironment,
    distributions,
    normalised,
    same_version,
    shadows,
)
from envspec.verifier.types import (
    PYTHON,
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


def compare(expected: Expected, installed: Installed) -> VerifyResult:
    """Find all differences; read only, and nothing outside of the environment. What can't be read is a finding."""
    environment, files = installed.environment, installed.files
    findings = list(installed.findings)
    findings += _packages(expected, installed)
    findings += _conda(expected.conda, installed)
    findings += compare_beneath(expected.beneath, environment.below)
    if not expected.beneath and has_system_packages(environment.prefix):
        findings.append(DriftFinding(PYTHON, Drift.SYSTEM_PACKAGES, CONFIG))
    for one, hiding in shadows(installed.wheels, environment.path):
        findings.append(DriftFinding(one.name, Drift.SHADOWED, str(hiding)))
    _correct(expected, installed)
    for path, owner in files.unhashed.items():
        if path not in files.expected:
            findings.append(DriftFinding(owner, Drift.UNHASHED, path))
    hashed = hash_all(files.expected.values(), str(environment.prefix))
    for each in hashed:
        first = "=".join(next(iter(files.expected[each.path].hashes)))
        if each.drift is not None:
            findings.append(DriftFinding(files.owners[each.path], each.drift, each.path, first, each.found))
        elif each.link:
            findings.append(DriftFinding(files.owners[each.path], Drift.LINK, each.path, first, each.link))
    findings += _unowned(expected, installed)
    compared, wrong = compare_bytecode(environment.prefix / path for path in installed.bytecode)
    for file, reason in wrong:
        findings.append(bytecode_finding(file, reason, installed))
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
        record_only=len(files.record_only),
        generated=len(files.generated),
        listed=len(files.listed),
        unlisted=len(files.unlisted),
        bytecode_by_source=compared[BytecodeState.BY_SOURCE],
        bytecode_by_time=compared[BytecodeState.BY_TIME],
        bytecode_other_python=compared[BytecodeState.OTHER_PYTHON],
    )
    return VerifyResult(in_order(findings), counts)


def _correct(expected: Expected, installed: Installed) -> None:
    """Correct what RECORDs list by what the lock says of files that are listed wrongly or by several packages."""
    environment, files = installed.environment, installed.files
    corrected = dict[str, str]()
    for one in installed.wheels:
        for path, right in right_rows(one, environment, expected.wrong_records).items():
            # What another package lists is that package's.
            if files.owners.get(path, one.name) == one.name:
                files.replace_hashes(path, one.name, right)
                corrected[path] = one.name
    for path, (owner, entry) in entries_of_owners(installed.wheels, environment, expected.owners).items():
        if path in files.expected and corrected.get(path) != owner:
            files.owners[path] = owner
            files.expected[path].hashes = {(entry.algorithm, entry.digest): None}


def _unowned(expected: Expected, installed: Installed) -> Iterator[DriftFinding]:
    """Files in site-packages that no package lists, and bytecode whose source is missing."""
    environment, owners = installed.environment, installed.files.owners
    own: list[str] = []
    if expected.beneath:
        own = [f"{environment.relative(site)}/{_PATH_FILE}" for site in environment.sites]
    for path in installed.paths:
        if path not in owners and path not in own and not is_known(environment.prefix / path):
            yield DriftFinding("", Drift.UNOWNED, path)
    for path in installed.bytecode:
        source = source_of(Path(path))
        is_left = source is None or not (source.as_posix() in owners or (environment.prefix / source).is_file())
        if is_left and path not in owners:
            yield DriftFinding("", Drift.UNOWNED, path)


def in_order(findings: Iterable[DriftFinding]) -> tuple[DriftFinding, ...]:
    """Sorted by package, kind and path; each once."""
    return tuple(sorted(set(findings), key=_sort_key))


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
            wrong = expected.wrong_records.get(name, {})
            absent = {path for path, sha256 in wrong.items() if sha256 is None}
            yield from _distribution(one, locked.get(name), installed.environment, absent)
    for name in locked.keys() - by_name.keys():
        yield DriftFinding(name, Drift.MISSING, expected=locked[name].version)


def _distribution(
    one: Distribution, locked: ExpectedPackage | None, environment: PythonEnvironment, absent: Set[str]
) -> Iterator[DriftFinding]:
    record = f"{environment.relative(one.site / one.folder)}/RECORD"
    if locked and not _is_version(locked, one.version):
        yield DriftFinding(one.name, Drift.VERSION, expected=locked.version, found=one.version)
    elif one.entries is None:
        yield DriftFinding(one.name, Drift.RECORD, record, found=one.problem)
    elif locked and locked.record_sha256 is not None:
        digest = installed_sha256(one.entries, depth_of(one, environment), absent)
        if digest != locked.record_sha256:
            yield DriftFinding(one.name, Drift.RECORD, record, locked.record_sha256, digest or "it has other hashes")


def compare_beneath(expected: Sequence[ExpectedPackage], folders: Sequence[Path]) -> Iterator[DriftFinding]:
    """How packages differ from those that a lock is on top of. folders: of Python's path, in order."""
    if not expected:
        return
    found: dict[str, Distribution] = {}
    for folder in folders:
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
    if not locked.version:
        return True
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


def bytecode_finding(path: Path, reason: str, installed: Installed) -> DriftFinding:
    """A finding about bytecode. reason: why it can't be read; empty if it differs from its source."""
    environment, owners = installed.environment, installed.files.owners
    inside, source = environment.relative(path), source_of(path)
    owner = owners.get(inside, "")
    if not owner and source:
        owner = owners.get(environment.relative(source), "")
    return DriftFinding(owner, Drift.UNREADABLE if reason else Drift.BYTECODE, inside, found=reason)
