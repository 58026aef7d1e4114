"""An environment against what a lock expects of it: the `lock` check, and all of `envspec verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envspec.installed import bytecode
from envspec.installed.bytecode import Compared
from envspec.installed.conda_meta import CondaRecord, conda_records
from envspec.installed.distributions import Distribution, distributions, normalised, same_version
from envspec.installed.hashing import hash_all
from envspec.installed.owned import Owned, depth_of, is_condas, owned, relative, unowned
from envspec.installed.place import Place
from envspec.installed.record import installed_contents
from envspec.installed.shadows import shadows
from envspec.installed.values import Counts, Drift, Expected, ExpectedConda, ExpectedPackage, Finding, Result
from envspec.installed.walk import Walked, walk


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
    counted, wrong = bytecode.compare_all(map(Path, paths))
    findings = []
    for path, why in wrong:
        inside, source = relative(str(path), place), bytecode.source_of(path)
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
