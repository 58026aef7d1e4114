"""What can be checked of a lock's packages without an index: names of files, hosts, requirements.

What follows from the spec is computed again by `expected`; `envspec lock --verify` compares versions, files and
hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envspec.credentials import without_credentials
from envspec.models import (
    DEFAULT_INDEX,
    DIRECT_URL,
    GIT,
    LOCAL,
    SPEC,
    CondaChannel,
    CondaPackage,
    Dependent,
    InstalledPackage,
    Package,
    Resolution,
)
from envspec.names import SDIST_ENDINGS, normalised
from envspec.resolve.pypi.index.selection import TagRanks
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.types import BoundKind, TargetRequest
from envspec.resolve.upgrade import names_of

#: How a lock says that envspec measured a hash, since the index has none.
_HASHES = ("", "measured")


def package_mismatches(part: Resolution, request: TargetRequest) -> Iterator[str]:
    """What of a platform's packages from PyPI is not possible for a request, a line each."""
    rules = request.rules
    locked = names_of([part])
    for text in request.request.requirements:
        requirement = parsed(text)
        name = normalised(requirement.name) if requirement else ""
        if name not in locked and name not in rules.provided:
            yield f"the spec requires {name}, which is not in it"
    if len(locked) < len(part.packages):
        yield "a package from PyPI is in it twice"
    for name in sorted(locked & rules.provided.keys()):
        yield f"{name}: {rules.provided[name].description}, and the lock installs it again"
    # Conda packages and those of a base may require a package as well as the spec does.
    for name in _unrequired(part.packages, {SPEC, *rules.provided}):
        yield f"{name}: neither the spec nor a package of the lock requires it"
    ranks = TagRanks(rules.tags)
    names = {SPEC, *locked, *rules.provided}
    for package in part.packages:
        for text in (*_of_package(package, ranks, request), *_of_dependents(package, names)):
            yield f"{package.name} {package.version}: {text}"
    for installed in part.installed:
        for text in _of_dependents(installed, names):
            yield f"{installed.name} {installed.version}: {text}"


def _of_package(package: Package, ranks: TagRanks, request: TargetRequest) -> Iterator[str]:
    rules = request.rules
    yield from _of_file(package, ranks)
    if package.file.index not in (DEFAULT_INDEX, DIRECT_URL, GIT, LOCAL):
        yield from _of_url(package, request)
    cutoff = rules.cutoff_of(package.name)
    if package.uploaded and package.name not in rules.direct and package.uploaded > cutoff:
        yield f"it was uploaded on {package.uploaded}, after {cutoff} (as_of)"
    for dependent in package.required_by:
        yield from _of_dependent(package, dependent, request)
    for constraint in request.request.of_kind(BoundKind.CONSTRAINT):
        bound = parsed(constraint.line)
        if bound and normalised(bound.name) == package.name and not _allows(bound.specifier, package.version):
            yield f"the spec or its build of torch requires {constraint.line}"
    for text in package.removed:
        removed = parsed(text)
        if removed is None or rules.overrides.get(normalised(removed.name), removed) is not None:
            yield f"its requirement {text} is removed, which no override of the spec does"


def _of_file(package: Package, ranks: TagRanks) -> Iterator[str]:
    file, is_wheel = package.file, package.file.filename.endswith(".whl")
    # The name of an sdist by URL is its server's own matter: v1.2.tar.gz.
    if (file.index != DIRECT_URL or is_wheel) and not _is_file_of(package, file.filename):
        yield f"{file.filename} is not a file of it"
    elif is_wheel and file.index not in (GIT, LOCAL) and ranks.rank(file.filename) is None:
        yield f"{file.filename} can't be loaded there"
    if package.built is not None and not _is_file_of(package, package.built.filename):
        yield f"{package.built.filename} is not a wheel of it"
    if package.unbuilt is not None and (is_wheel or package.built is not None):
        yield f"it is marked as unbuilt ({package.unbuilt.value}), and has a wheel"
    if file.hash not in _HASHES:
        yield f"its hash is {file.hash!r}, which no index states"


def _of_url(package: Package, request: TargetRequest) -> Iterator[str]:
    """A file of an index that a lock names by its URL is on one of the hosts of the index."""
    index, url = request.rules.index_of(package.name), package.file.url
    bounds = index.within()
    if bounds is None:
        return
    if url is None or url != without_credentials(url) or not bounds.allows(url, redirected=False):
        yield (
            f"its file is at {url}, which is neither on the host of index {index.name} nor on one of the `files` that "
            "the spec gives it"
        )


def _of_dependents(package: Package | InstalledPackage, names: set[str]) -> Iterator[str]:
    """What is wrong with the names of what requires a package, and of what it requires."""
    for dependent in package.required_by:
        requirement = parsed(dependent.requirement)
        if dependent.name not in names:
            yield f"{dependent.name}, which requires it, is not in the lock"
        if requirement is None or normalised(requirement.name) != package.name:
            yield f"{dependent.name} requires {dependent.requirement}, which is another package"


def _of_dependent(package: Package, dependent: Dependent, request: TargetRequest) -> Iterator[str]:
    requirement = parsed(dependent.requirement)
    if requirement is None:
        return
    if not _allows(requirement.specifier, package.version):
        yield f"{dependent.name} requires {dependent.requirement}"
    override = request.rules.overrides.get(package.name)
    if dependent.name != SPEC and override is not None and requirement.specifier != override:
        yield f"the spec overrides what {dependent.name} requires, {dependent.requirement}, with {override}"
    if dependent.replaces and override is None:
        yield f"what {dependent.name} requires is replaced, which no override of the spec does"


def _allows(specifier: SpecifierSet, version: str) -> bool:
    return specifier.contains(version, prereleases=True)


def _unrequired(packages: Iterable[Package | CondaPackage], roots: set[str]) -> list[str]:
    """The packages that are not required by a root, nor by what a root requires in turn."""
    names: set[str] = set()
    requires: dict[str, list[str]] = {}
    for package in packages:
        names.add(package.name)
        for dependent in package.required_by:
            requires.setdefault(dependent.name, []).append(package.name)
    reached, waiting = set[str](), [*roots]
    while waiting:
        for name in requires.get(waiting.pop(), ()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return sorted(names - reached)


def _is_file_of(package: Package, filename: str) -> bool:
    if filename.endswith(".whl"):
        parts = filename.removesuffix(".whl").split("-")
        if len(parts) not in (5, 6):
            return False
        name, version = parts[0], parts[1]
    else:
        ending = next(filter(filename.endswith, SDIST_ENDINGS), None)
        if ending is None:
            return False
        name, _, version = filename.removesuffix(ending).rpartition("-")
    return normalised(name) == package.name and _is_same_version(unquote(version), package.version)


def _is_same_version(found: str, locked: str) -> bool:
    if found == locked:
        return True
    # Seldom: `1.0-1` is `1.0.post1`, and not every old file name has its version in normal form.
    try:
        return Version(found.replace("_", "+", 1)) == Version(locked) or Version(found) == Version(locked)
    except InvalidVersion:
        return False


def conda_mismatches(part: Resolution, channels: Iterable[CondaChannel], requirements: Iterable[str]) -> Iterator[str]:
    """What of a platform's conda packages is not possible, a line each. requirements: the spec's, with Python's."""
    # Imported only for locks of specs with [conda].
    from envspec.resolve.conda.records import name_of

    locked, urls = {each.name for each in part.conda}, {each.name: each.url for each in channels}
    for text in requirements:
        if name_of(text) not in locked:
            yield f"the spec requires {text}, which is not in it"
    if len(locked) < len(part.conda):
        yield "a conda package is in it twice"
    for name in _unrequired(part.conda, {SPEC}):
        yield f"{name}: neither the spec nor a package of the lock requires it"
    for record in part.conda:
        for text in _of_record(record, part.target.platform.value, urls):
            yield f"{record.name} {record.version}: {text}"
        for text in record.depends:
            # Virtual packages are the machine's.
            if name_of(text) not in locked and not name_of(text).startswith("__"):
                yield f"{record.name} {record.version}: it requires {text}, which is not in it"


def _of_record(record: CondaPackage, platform: str, urls: Mapping[str, str]) -> Iterator[str]:
    stem, filename = record.file_stem, record.filename
    channel = urls.get(record.channel)
    if filename not in (f"{stem}.conda", f"{stem}.tar.bz2"):
        yield f"{filename} is not a file of {stem}"
    if channel is None:
        yield f"the spec names no channel {record.channel}"
    elif record.subdir not in (platform, "noarch"):
        yield f"it is for {record.subdir}"
    elif unquote(record.url) != unquote(f"{channel}/{record.subdir}/{filename}"):
        yield f"{record.url} is not {filename} in channel {record.channel}"
