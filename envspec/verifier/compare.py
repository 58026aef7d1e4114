"""An environment against its lock."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from envspec.verifier import hashing
from envspec.verifier.hashing import STRONG, Compared, Wanted, from_record, hash_all, is_bytecode
from envspec.verifier.record import installed_contents, installed_place
from envspec.verifier.scan import (
    CondaRecord,
    Distribution,
    Place,
    Walked,
    conda_records,
    distributions,
    normalised,
    same_version,
    shadows,
    walk,
)
from envspec.verifier.types import Counts, Drift, Expected, ExpectedConda, ExpectedPackage, Finding, Result


@dataclass
class Owned:
    """Files of an environment by their paths from its folder on.

    names: whose a file is, the first where there are several. unhashed: listed, and known by nothing but the name.
    own_word: files with a hash that no digest in a lock covers.
    """

    names: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, dict[tuple[str, str], None]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    unhashed: dict[str, str] = field(default_factory=dict)
    own_word: int = 0

    def wanted(self) -> Iterator[Wanted]:
        for path, hashes in self.hashes.items():
            yield Wanted(path, tuple(hashes), self.sizes.get(path, 0))

    def take(self, path: str, owner: str, algorithm: str = "", digest: str = "", size_bytes: int = 0) -> None:
        self.names.setdefault(path, owner)
        # Bytecode is held against its source: installers compile over what a wheel brings, and images go without.
        if algorithm in STRONG and from_record(digest) and not is_bytecode(path):
            self.hashes.setdefault(path, {})[algorithm, digest] = None
            self.sizes[path] = max(size_bytes, self.sizes.get(path, 0))

    def findings(self) -> Iterator[Finding]:
        """Files of which nothing but the name is known, whoever lists them."""
        for path, owner in self.unhashed.items():
            if path not in self.hashes:
                yield Finding(owner, Drift.UNHASHED, path)


def owned(found: Iterable[Distribution], conda: Iterable[CondaRecord], place: Place) -> Owned:
    """What wheels and conda packages list. Files outside of the environment are nobody's."""
    files = Owned()
    for record in conda:
        for path in record.paths:
            files.take(path, record.name)
        for each in record.files:
            for algorithm, digest in each.hashes:
                files.take(each.path, record.name, algorithm, digest, each.size_bytes)
    condas = frozenset(files.names)
    for one in found:
        _take_rows(files, one, place, condas)
    return files


def is_condas(one: Distribution, place: Place, paths: Iterable[str] | frozenset[str]) -> bool:
    """Whether a distribution was put there by conda: then its list of files is conda's."""
    inside = f"{relative(str(one.site), place)}/{one.folder}"
    return inside in paths or f"{inside}/METADATA" in paths or f"{inside}/RECORD" in paths


def _take_rows(files: Owned, one: Distribution, place: Place, condas: frozenset[str]) -> None:
    if one.rows is None or is_condas(one, place, condas):
        return
    root, depth = f"{place.prefix}{os.sep}", depth_of(one, place)
    for row in one.rows:
        path = os.path.normpath(os.path.join(one.site, row.path))  # noqa: PTH118 (40,000 times)
        if not path.startswith(root):
            continue
        inside = path[len(root) :].replace(os.sep, "/")
        files.take(inside, one.name, row.algorithm, row.digest, row.size_bytes or 0)
        anchored = installed_place(row.path, depth) is not None
        if inside in files.hashes:
            files.own_word += not anchored
        elif (anchored or row.algorithm) and not is_bytecode(inside):
            files.unhashed[inside] = one.name


def depth_of(one: Distribution, place: Place) -> int:
    """How many folders a distribution's site-packages lies below the environment."""
    return len(one.site.relative_to(place.prefix).parts)


def relative(path: str, place: Place) -> str:
    """A path from the environment's folder on, `/` between its parts."""
    return os.path.relpath(path, place.prefix).replace(os.sep, "/")


def unowned(paths: Sequence[str], files: Owned, place: Place) -> Iterator[Finding]:
    """Files of a site-packages folder that nobody lists."""
    start = len(str(place.prefix)) + 1
    for path in paths:
        inside = path[start:].replace(os.sep, "/")
        if inside not in files.names:
            yield Finding("", Drift.UNOWNED, inside)


@dataclass(frozen=True)
class _There:
    """What an environment says that it holds. wheels: the distributions that are not conda's."""

    place: Place
    wheels: tuple[Distribution, ...]
    conda: tuple[CondaRecord, ...]
    files: Owned


def compare(expected: Expected, place: Place) -> Result:
    """Everything in which an environment is not what is expected; it is only read.

    What can't be read is a finding, and nothing outside of the environment is looked at.
    """
    there, findings = _look(place)
    findings += _packages(expected, there)
    findings += _conda(expected.conda, there)
    findings += (Finding(one.name, Drift.SHADOWED, str(hiding)) for one, hiding in shadows(there.wheels, place.path))
    findings += there.files.findings()
    files, read = _files(there)
    findings += files
    walked = [walk(str(site)) for site in place.sites]
    compiled, counted = _bytecode(walked, there)
    findings += compiled
    findings += _beside(walked, there)
    counts = replace(
        counted,
        **_kinds(expected, there),
        packages=len(there.wheels),
        conda=len(there.conda),
        files=read.files,
        size_bytes=read.size_bytes,
        own_word=there.files.own_word,
    )
    return Result(tuple(sorted(set(findings), key=_order)), counts)


def _order(each: Finding) -> tuple[str, ...]:
    return each.package, list(Drift).index(each.drift).__format__("02"), each.path, each.expected, each.found


def _look(place: Place) -> tuple[_There, list[Finding]]:
    conda = tuple(conda_records(place.prefix))
    condas = frozenset(path for record in conda for path in record.paths)
    found: list[Distribution] = []
    findings: list[Finding] = []
    for site in place.sites:
        try:
            found += (one for one in distributions(site) if not is_condas(one, place, condas))
        except OSError as fault:
            where = relative(str(site), place)
            findings.append(Finding("", Drift.UNREADABLE, where, found=fault.strerror or str(fault)))
    return _There(place, tuple(found), conda, owned(found, conda, place)), findings


def _packages(expected: Expected, there: _There) -> Iterator[Finding]:
    by_name: dict[str, list[Distribution]] = {}
    for one in there.wheels:
        by_name.setdefault(one.name, []).append(one)
    locked = {normalised(each.name): each for each in expected.packages}
    allowed = {normalised(name) for name in expected.allowed}
    for name, ones in by_name.items():
        if len(ones) > 1:
            yield Finding(name, Drift.DUPLICATE, found=", ".join(one.folder for one in ones))
        if name not in locked and name not in allowed:
            yield Finding(name, Drift.EXTRA, found=ones[0].version)
        for one in ones:
            yield from _against(one, locked.get(name), there.place)
    for name in locked.keys() - by_name.keys():
        yield Finding(name, Drift.MISSING, expected=locked[name].version)


def _against(one: Distribution, locked: ExpectedPackage | None, place: Place) -> Iterator[Finding]:
    record = f"{relative(str(one.site / one.folder), place)}/RECORD"
    if locked and not same_version(locked.version, one.version):
        yield Finding(one.name, Drift.VERSION, expected=locked.version, found=one.version)
    elif one.rows is None:
        yield Finding(one.name, Drift.RECORD, record, found=one.fault)
    elif locked and locked.contents is not None:
        contents = installed_contents(one.rows, depth_of(one, place))
        if contents != locked.contents:
            yield Finding(one.name, Drift.RECORD, record, locked.contents, contents or "it has other hashes")


def _kinds(expected: Expected, there: _There) -> dict[str, int]:
    """How many of the installed distributions are compared with what; see `Counts`."""
    locked = {normalised(each.name): each.contents is not None for each in expected.packages}
    found = [locked.get(one.name) for one in there.wheels]
    return {"anchored": found.count(True), "unanchored": found.count(False), "beside": found.count(None)}


def _conda(expected: Sequence[ExpectedConda], there: _There) -> Iterator[Finding]:
    locked = {each.name: each for each in expected}
    names = [record.name for record in there.conda]
    for record in there.conda:
        yield from _against_conda(record, locked.get(record.name))
        if names.count(record.name) > 1:
            yield Finding(record.name, Drift.DUPLICATE, found=record.file)
    for name in locked.keys() - set(names):
        yield Finding(name, Drift.MISSING, expected=f"{locked[name].version} {locked[name].build}")


def _against_conda(record: CondaRecord, locked: ExpectedConda | None) -> Iterator[Finding]:
    shown = f"{record.version} {record.build}"
    if record.fault:
        yield Finding(record.name, Drift.UNREADABLE, f"conda-meta/{record.file}", found=record.fault)
    elif locked is None:
        yield Finding(record.name, Drift.EXTRA, found=shown)
    elif (record.version, record.build) != (locked.version, locked.build):
        yield Finding(record.name, Drift.VERSION, expected=f"{locked.version} {locked.build}", found=shown)
    elif record.sha256.lower() != locked.sha256.lower():
        yield Finding(record.name, Drift.ARCHIVE, expected=locked.sha256, found=record.sha256 or "unknown")


def _files(there: _There) -> tuple[list[Finding], Counts]:
    files = there.files
    hashed = hash_all(files.wanted(), str(there.place.prefix))
    findings = [
        Finding(files.names[each.path], each.drift, each.path, _first(files, each.path), each.found)
        for each in hashed
        if each.drift is not None
    ]
    return findings, Counts(files=len(hashed), size_bytes=sum(each.size_bytes for each in hashed))


def _first(files: Owned, path: str) -> str:
    return "=".join(next(iter(files.hashes[path])))


def _bytecode(walked: Iterable[Walked], there: _There) -> tuple[list[Finding], Counts]:
    files, place = there.files, there.place
    paths = [path for each in walked for path in each.bytecode if relative(path, place) not in files.hashes]
    counted, wrong = hashing.compare_all(map(Path, paths))
    findings = []
    for path, why in wrong:
        inside, source = relative(str(path), place), hashing.source_of(path)
        owner = files.names.get(inside) or files.names.get(relative(str(source), place), "")
        findings.append(Finding(owner, Drift.UNREADABLE if why else Drift.BYTECODE, inside, found=why))
    counts = Counts(
        bytecode_by_source=counted[Compared.BY_SOURCE],
        bytecode_by_time=counted[Compared.BY_TIME],
        bytecode_other_python=counted[Compared.OTHER_PYTHON],
    )
    return findings, counts


def _beside(walked: Iterable[Walked], there: _There) -> Iterator[Finding]:
    for each in walked:
        yield from unowned(each.files, there.files, there.place)
        for folder, why in each.unreadable:
            yield Finding("", Drift.UNREADABLE, relative(folder, there.place), found=why)
