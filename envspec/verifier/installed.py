"""What an environment declares about itself: its packages, the owner and the hash of each file."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envspec.verifier.hashing import ExpectedFile, from_record, is_bytecode
from envspec.verifier.own_files import LINK, LIST, OwnFiles, is_known, read_own_files
from envspec.verifier.programs import BIN, interpreter_of, is_own, programs, read_program
from envspec.verifier.record import STRONG, RecordEntry, from_hex, installed_path, path_below
from envspec.verifier.scan import CondaRecord, Distribution, PythonEnvironment, conda_records, distributions, walk
from envspec.verifier.types import PYTHON, Drift, DriftFinding


@dataclass
class OwnedFiles:
    """Files with an owner, by paths relative to the environment; without those outside of it.

    owners: the first package that lists a path. expected: those with a strong hash. unhashed: listed without one.
    record_only: with a hash that no digest in a lock covers. generated: programs that are as their entry points say.
    listed: in the environment's own list. unlisted: the environment's own, without a list.
    """

    owners: dict[str, str] = field(default_factory=dict)
    expected: dict[str, ExpectedFile] = field(default_factory=dict)
    unhashed: dict[str, str] = field(default_factory=dict)
    record_only: set[str] = field(default_factory=set)
    generated: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    unlisted: set[str] = field(default_factory=set)

    def add(self, path: str, owner: str, algorithm: str = "", digest: str = "", size_bytes: int = 0) -> None:
        self.owners.setdefault(path, owner)
        # Bytecode is compared with its source: installers compile again over a wheel's, and images omit it.
        if algorithm in STRONG and from_record(digest) and not is_bytecode(path):
            file = self.expected.setdefault(path, ExpectedFile(path, {}))
            file.hashes[algorithm, digest] = None
            file.size_bytes = max(size_bytes, file.size_bytes)

    def add_distribution(self, one: Distribution, environment: PythonEnvironment) -> None:
        root, depth = f"{environment.prefix}{os.sep}", depth_of(one, environment)
        for entry in one.entries or ():
            path = os.path.normpath(os.path.join(one.site, entry.path))  # noqa: PTH118 (40,000 times)
            if not path.startswith(root):
                continue
            inside = path[len(root) :].replace(os.sep, "/")
            self.add(inside, one.name, entry.algorithm, entry.digest, entry.size_bytes or 0)
            is_covered = installed_path(entry.path, depth) is not None
            if inside in self.expected:
                if not is_covered:
                    self.record_only.add(inside)
            elif (is_covered or entry.algorithm) and not is_bytecode(inside):
                self.unhashed[inside] = one.name

    def replace_hashes(self, path: str, owner: str, hashes: ExpectedFile | None) -> None:
        """Compare a file with other hashes than those in RECORD; with none if something else was compared."""
        self.owners.setdefault(path, owner)
        self.expected.pop(path, None)
        self.unhashed.pop(path, None)
        self.record_only.discard(path)
        if hashes:
            self.expected[path] = hashes


@dataclass(frozen=True)
class Installed:
    """What an environment declares.

    wheels: without distributions that conda installed.
    paths: files in its site-packages, relative to the environment.
    bytecode: relative to the environment, without what a package lists with a hash.
    findings: what differs from what the environment itself declares.
    """

    environment: PythonEnvironment
    wheels: tuple[Distribution, ...]
    conda: tuple[CondaRecord, ...]
    files: OwnedFiles
    paths: tuple[str, ...]
    bytecode: tuple[str, ...]
    findings: tuple[DriftFinding, ...]


def read_installed(environment: PythonEnvironment) -> Installed:
    """Read the metadata of all packages, their programs, and the names of all files."""
    files, wheels, findings = OwnedFiles(), list[Distribution](), list[DriftFinding]()
    conda = tuple(conda_records(environment.prefix))
    for record in conda:
        for path in record.paths:
            files.add(path, record.name)
        for path, digest, size_bytes in record.files:
            files.add(path, record.name, "sha256", digest, size_bytes)
    of_conda = frozenset(files.owners)
    unreadable: list[tuple[str, str]] = []
    for site in environment.sites:
        try:
            wheels += (one for one in distributions(site) if not _is_condas(one, environment, of_conda))
        except OSError as error:
            unreadable.append((str(site), error.strerror or str(error)))
    for one in wheels:
        files.add_distribution(one, environment)
    own = read_own_files(environment)
    findings += _programs(wheels, environment, own, files)
    findings += _own_files(environment, own, files)
    unreadable += own.unreadable
    paths: list[str] = []
    bytecode = [*own.bytecode]
    for site in environment.sites:
        found, compiled, failed = walk(str(site))
        paths += map(environment.inside, found)
        bytecode += map(environment.inside, compiled)
        unreadable += failed
    for folder, reason in dict.fromkeys(unreadable):
        findings.append(DriftFinding("", Drift.UNREADABLE, environment.relative(folder), found=reason))
    compared = tuple(path for path in sorted(bytecode) if path not in files.expected)
    return Installed(environment, tuple(wheels), conda, files, tuple(paths), compared, tuple(findings))


def _is_condas(one: Distribution, environment: PythonEnvironment, paths: frozenset[str]) -> bool:
    """Whether conda installed a distribution: then its list of files is conda's."""
    inside = f"{environment.relative(one.site)}/{one.folder}"
    return not paths.isdisjoint((inside, f"{inside}/METADATA", f"{inside}/RECORD"))


def depth_of(one: Distribution, environment: PythonEnvironment) -> int:
    """How many folders a distribution's site-packages is below the environment."""
    return len(one.site.relative_to(environment.prefix).parts)


def right_rows(
    one: Distribution, environment: PythonEnvironment, wrong_records: Mapping[str, Mapping[str, str | None]]
) -> dict[str, ExpectedFile | None]:
    """Path in the environment -> the file of the locked wheel, of those that RECORD does not list as they are; None for
    one that is not in the wheel. wrong_records: see `Expected`.
    """
    found: dict[str, ExpectedFile | None] = {}
    for path, sha256 in wrong_records.get(one.name, {}).items():
        inside = path_below(path, environment.relative(one.site))
        found[inside] = ExpectedFile(inside, {("sha256", from_hex(sha256)): None}) if sha256 else None
    return found


def entries_of_owners(
    wheels: Iterable[Distribution], environment: PythonEnvironment, owners: Mapping[str, str]
) -> dict[str, tuple[str, RecordEntry]]:
    """Path in the environment -> owner and its entry, of files that several packages have.

    owners: path relative to site-packages, or to the environment after `record.DATA` -> package.
    """
    paths: dict[str, list[str]] = {}
    for path, owner in owners.items():
        paths.setdefault(owner, []).append(path)
    found: dict[str, tuple[str, RecordEntry]] = {}
    for one in wheels:
        if one.name not in paths:
            continue
        site = environment.relative(one.site)
        entries = {entry.path: entry for entry in one.entries or ()}
        for path in paths[one.name]:
            inside = path_below(path, site)
            if (entry := entries.get(posixpath.relpath(inside, site))) is not None:
                found[inside] = one.name, entry
    return found


def _programs(
    wheels: list[Distribution], environment: PythonEnvironment, own: OwnFiles, files: OwnedFiles
) -> Iterator[DriftFinding]:
    """Compare programs with their entry points instead of RECORD, which somebody who changes them can change too.

    Builds of Python change the first line of pip's programs without their rows.
    """
    has_python = any(os.path.lexists(environment.prefix / BIN / name) for name in ("python", "python3"))
    for path, points in programs(wheels).items():
        owner = points[0].package
        try:
            text = read_program(environment.prefix / path)
        except OSError:
            # `hash_all` says why, if RECORD has a hash.
            if path not in files.expected:
                yield DriftFinding(owner, Drift.FILE_MISSING, path)
            continue
        interpreter = interpreter_of(text, points) if text is not None else None
        if interpreter is not None:
            files.replace_hashes(path, owner, None)
            files.generated.add(path)
            if has_python and not is_own(interpreter, environment):
                yield DriftFinding(owner, Drift.INTERPRETER, path, found=interpreter)
        elif path not in (own.listed or files.expected):
            files.replace_hashes(path, owner, None)
            yield DriftFinding(owner, Drift.CHANGED, path)


def _own_files(environment: PythonEnvironment, own: OwnFiles, files: OwnedFiles) -> Iterator[DriftFinding]:
    """Compare the environment's own files with its list."""
    if own.problem:
        yield DriftFinding(PYTHON, Drift.UNREADABLE, LIST, found=own.problem)
    listed = own.listed or {}
    for path in listed.keys() - set(own.found):
        yield DriftFinding(files.owners.get(path, PYTHON), Drift.FILE_MISSING, path)
    for path in own.found:
        row = listed.get(path)
        if row is not None:
            files.listed.add(path)
            yield from _listed(path, row, environment, files)
        elif path in files.owners or path in files.generated or is_known(environment.prefix / path):
            continue
        elif own.may_be_of_tools(path, environment.prefix):
            files.unlisted.add(path)
        else:
            yield DriftFinding("", Drift.UNOWNED, path)


def _listed(path: str, row: RecordEntry, environment: PythonEnvironment, files: OwnedFiles) -> Iterator[DriftFinding]:
    owner = files.owners.get(path, PYTHON)
    if row.algorithm != LINK:
        expected = ExpectedFile(path, {(row.algorithm, row.digest): None}, row.size_bytes or 0)
        files.replace_hashes(path, owner, expected)
        return
    full = environment.prefix / path
    target = str(full.readlink()) if full.is_symlink() else "it is not a link"
    if target != row.digest:
        yield DriftFinding(owner, Drift.CHANGED, path, row.digest, target)


def list_own_files(environment: PythonEnvironment) -> str:
    """The text of the list of an environment that has none yet.

    Raises:
        OSError: a file can't be read.
    """
    installed = read_installed(environment)
    left_out = set(installed.files.generated)
    for record in installed.conda:
        left_out |= record.paths
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for path in read_own_files(environment).found:
        if path not in left_out:
            rows.writerow(_row(path, environment.prefix / path))
    return text.getvalue()


def _row(path: str, full: Path) -> tuple[str, str, str]:
    if full.is_symlink():
        return path, f"{LINK}={full.readlink()}", ""
    digest = hashlib.sha256()
    with full.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return path, f"sha256={from_hex(digest.hexdigest())}", str(full.stat().st_size)
