"""Pins -> packages: the one file of each, what requires it, and why a newer release was rejected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field
from packaging.requirements import Requirement
from packaging.version import Version

from envspec.credentials import without_credentials
from envspec.models import (
    DEFAULT_INDEX,
    DIRECT_URL,
    SPEC,
    Dependent,
    HeldBack,
    InstalledPackage,
    Package,
    Rejected,
    Resolution,
    SharedFiles,
    WheelFile,
)
from envspec.names import normalised
from envspec.origins import PYTORCH
from envspec.reasons import Reason, Why, has_code, reason, words
from envspec.resolve.pypi.errors import torch_family_conflict, unknown_extras
from envspec.resolve.pypi.extensions import labels_of
from envspec.resolve.pypi.found import is_release
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import Rules
from envspec.resolve.pypi.index.selection import of_version, upload_time
from envspec.resolve.pypi.index.view import View
from envspec.resolve.pypi.metadata import (
    allows,
    applicable,
    declared,
    missing_extras,
    offered_extras,
    override,
    parsed,
    requires_python,
    without_marker,
)
from envspec.resolve.pypi.resolver import Pins, ResolverError
from envspec.resolve.pypi.shared_files import MAX_INIT_BYTES, shared_files
from envspec.resolve.pypi.types import OLD_PINS, BoundKind, PypiRequest
from envspec.resolve.pypi.wheel_coverage import no_wheel_reason
from envspec.resolve.types import CondaProvided, FoundPackage, ProvidedPackage
from envspec.structs import replace

#: A package this much older than `as_of` is reported if something else than the spec holds it back.
FAR_BACK_DAYS: Final = 2 * 365
#: The same for one that the spec names and whose newer releases nothing excludes: the resolver chose others first.
BACKTRACKED_DAYS: Final = 365
#: Reasons of which the author of the spec knows.
_BY_SPEC: Final = ("spec-requires", "spec-overrides", "needs-spec", "constrained")
_NO_SET: Final = (reason("fits-no-set"),)


class _Node(Struct):
    """One pinned package while the graph is built.

    releases: what the target sees of its project.
    offered: the extras that it has.
    replaced: what its metadata has instead of some of `requires`.
    removed: what it has besides.
    hash: see `WheelFile`.
    """

    name: str
    version: Version
    file: ListedFile
    releases: Mapping[Version, Sequence[ListedFile]]
    requires: tuple[str, ...]
    offered: frozenset[str]
    replaced: Mapping[str, str]
    removed: tuple[str, ...]
    hash: str = ""
    extras: set[str] = field(default_factory=set)
    askers: set[Dependent] = field(default_factory=set)


class _Graph(Struct, frozen=True):
    """The pinned packages of one target.

    environment: for markers.
    nodes: by name, also of what is from no index.
    """

    request: PypiRequest
    environment: Mapping[str, str]
    view: View
    nodes: Mapping[str, _Node]

    def required_by(self, node: _Node) -> list[Requirement]:
        """What a package requires, with its extras."""
        return list(applicable(node.requires, self.environment, frozenset(node.extras)))


class _Chosen(Struct, frozen=True):
    """A package to install.

    backtracked: whether nothing excludes a newer release but its own requirements, which do not fit the others.
    moved: why it has another release than in the lock before; None if it has the same.
    """

    node: _Node
    package: Package
    backtracked: bool
    moved: str | None


async def build(request: PypiRequest, pins: Pins, view: View) -> Resolution:
    """Everything that one target installs from indexes, from a resolver's pins and the index's pages.

    What is from no index is no package here, but part of the graph.

    Raises:
        PypiCondaConflict: a package requires PyPI's build of a member of the torch family, and torch is conda's.
        ResolverError: the resolver pinned what the index does not list.
        NetworkError: metadata or a size cannot be fetched.
    """
    read = await asyncio.gather(*(_node(name, version, view) for name, version in pins.items()))
    nodes = dict(zip(pins, read, strict=True))
    graph = _Graph(request, view.rules.environment, view, nodes)
    _add_requirements(graph)
    installed = [node for name, node in sorted(nodes.items()) if name not in view.rules.provided]
    of_default = {node.name: node.askers for node in installed if _is_of_default(node.name, view.rules)}
    if conflict := torch_family_conflict(of_default, view.rules.provided):
        raise conflict
    lacking = await _unknown_extras(installed, view)
    await asyncio.gather(*(_measure(node, view) for node in installed if node.file.sha256 is None))
    chosen = await asyncio.gather(*(_choose(node, graph) for node in installed))
    existing = _existing_packages(graph)
    held_back = _held_back(chosen, request, view.rules)
    warnings = [*_by_python(held_back, request.target.python.series), *_warnings(installed, graph)]
    moved: list[str] = []
    rows: list[HeldBack] = []
    for each in chosen:
        if each.moved:
            moved.append(each.moved)
        if each.backtracked and each.package in held_back:
            rows.append(HeldBack(each.package.name, held_back[each.package], _oldest_recent(each.node, view)))
    return Resolution(
        request.target,
        tuple(each.package for each in chosen),
        (*warnings, *lacking, *_unmet_warnings(existing, view.rules)),
        installed=existing,
        shared=await _shared({node.name: node.file for node in installed}, view),
        moved=tuple(moved),
        held_back=tuple(rows),
    )


def _is_of_default(name: str, rules: Rules) -> bool:
    return name not in rules.direct and rules.is_of_default(name)


async def _unknown_extras(installed: Iterable[_Node], view: View) -> list[Reason]:
    # What an sdist says of its extras may be made when it is built.
    read = [node for node in installed if node.file.is_wheel or node.offered]
    former = await asyncio.gather(*(_former_extras(node, view) for node in read))
    packages: dict[str, tuple[str, frozenset[str], frozenset[str], set[Dependent]]] = {}
    for node, extras in zip(read, former, strict=True):
        packages[node.name] = str(node.version), node.offered, extras, node.askers
    return unknown_extras(packages)


async def _choose(node: _Node, graph: _Graph) -> _Chosen:
    view, source = graph.view, graph.view.rules.sources.get(node.name)
    digest, (rejected, backtracked), preferred, moved, size = await asyncio.gather(
        view.record_digest(node.name, node.file),
        _newest_release(node, graph),
        _preferred_release(node, graph),
        _why_moved(node, graph),
        view.size_bytes(node.name, node.file),
    )
    removed = applicable(node.removed, graph.environment, frozenset(node.extras))
    package = Package(
        name=node.name,
        version=str(node.version),
        file=_locked_file(node, view, size),
        required_by=tuple(sorted(node.askers)),
        uploaded=upload_time(node.file.uploaded) if node.file.uploaded else None,
        rejected=rejected,
        extras=tuple(sorted(node.extras)),
        record_sha256=digest,
        wrong_record=view.wrong_record(node.file),
        removed=tuple(sorted(map(without_marker, removed))),
        preferred=preferred,
    )
    if source:
        package = replace(package, built=source.built, unbuilt=source.unbuilt)
    return _Chosen(node, package, backtracked, moved)


def _held_back(chosen: Iterable[_Chosen], request: PypiRequest, rules: Rules) -> dict[Package, Reason]:
    """The packages that went years back, each with its warning."""
    excluded = {name for name, _ in request.excluded()}
    found: dict[Package, Reason] = {}
    for each in chosen:
        warning = far_back(each.package, each.backtracked, rules.as_of)
        if warning is not None and each.package.name not in excluded:
            found[each.package] = warning
    return found


def _existing_packages(graph: _Graph) -> tuple[InstalledPackage, ...]:
    """What the packages are installed on top of, with what of them requires it."""
    found: list[InstalledPackage] = []
    for name, package in sorted(graph.view.rules.provided.items()):
        if isinstance(package, FoundPackage):
            askers = graph.nodes[name].askers if name in graph.nodes else ()
            found.append(replace(package.recorded, required_by=tuple(sorted(askers))))
    return tuple(found)


def _warnings(installed: Sequence[_Node], graph: _Graph) -> Iterator[Reason]:
    """Warnings about wheels, and about releases that were left out."""
    yield from filter(None, (_compiled_warning(node, graph) for node in installed))
    yield from filter(None, (_untagged_warning(node, graph.view.rules) for node in installed))
    for node in installed:
        if node.file.yanked:
            yield reason("used-yanked-because", package=node.name, version=node.version, reason=node.file.yanked)
        elif node.file.yanked is not None:
            yield reason("used-yanked", package=node.name, version=node.version)
    for (name, version), why in sorted(graph.request.excluded().items()):
        yield reason("left-out", why, package=name, version=version)


def _unmet_warnings(existing: Iterable[InstalledPackage], rules: Rules) -> Iterator[Reason]:
    """Warnings for requirements of packages in use that their environment does not meet."""
    for each in existing:
        package = rules.provided[each.name]
        if each.required_by and isinstance(package, FoundPackage) and package.unmet:
            yield reason(
                "unmet-there",
                place=package.place,
                package=package.name,
                version=package.version,
                requirements=", ".join(package.unmet),
            )


async def _shared(files: Mapping[str, ListedFile], view: View) -> tuple[SharedFiles, ...]:
    """Files that packages have with different content. files: package -> its wheel."""

    async def read(name: str, path: str) -> bytes | None:
        return await view.small_file(name, files[name], path, MAX_INIT_BYTES)

    return await shared_files(view.overlaps(files), read)


async def _former_extras(node: _Node, view: View) -> frozenset[str]:
    """The extras of the oldest release that the spec allows, if the package lacks one that the spec names."""
    lacking: list[Requirement] = []
    for asker in node.askers:
        requirement = parsed(asker.requirement)
        if asker.name == SPEC and requirement and missing_extras(requirement, node.offered):
            lacking.append(requirement)
    if not lacking or node.name in view.rules.direct:
        return frozenset()
    older: dict[Version, ListedFile] = {}
    for version, files in node.releases.items():
        if version < node.version and lacking[0].specifier.contains(version):
            older[version] = files[-1]
    if not older:
        return frozenset()
    return offered_extras(await view.metadata(node.name, older[min(older)].filename))


def _compiled_warning(node: _Node, graph: _Graph) -> Reason | None:
    """A warning for a wheel that is compiled against PyPI's torch, beside conda's torch."""
    torch = graph.view.rules.provided.get("torch")
    if torch is None or node.file.filename.split("-")[-2] == "none" or not node.file.is_wheel:
        return None
    if isinstance(torch, FoundPackage) and is_release(torch.version):
        return None
    if all(normalised(requirement.name) != "torch" for requirement in graph.required_by(node)):
        return None
    values = {"package": node.name, "version": node.version, "torch": torch.version}
    if isinstance(torch, CondaProvided):
        return reason("compiled-beside-conda", channel=torch.channel, **values)
    return reason("compiled-beside", place=torch.place, **values)


def _untagged_warning(node: _Node, rules: Rules) -> Reason | None:
    """A warning for a wheel that is for Linux, whatever its glibc."""
    platform = node.file.filename.removesuffix(".whl").rpartition("-")[2]
    # PyTorch's own are built for the systems that it names; those that are built here, for the target.
    if not platform.startswith("linux_") or rules.index_of(node.name).name.startswith(PYTORCH):
        return None
    return reason("untagged", package=node.name, version=node.version, tag=platform)


async def _node(name: str, version: str, view: View) -> _Node:
    exact = Version(version)
    releases = (await view.selection(name)).releases
    files = releases.get(exact)
    if not files:
        raise ResolverError(f"{name} {version} was chosen, but the index lists no file of it for this target")

    file = min(files, key=view.preference)
    published = await view.published_metadata(name, file.filename)
    requires: list[str] = []
    removed: list[str] = []
    replaced: dict[str, str] = {}
    for text in dict.fromkeys(declared(published)):
        new = override(text, view.rules.overrides)
        if new is None:
            removed.append(text)
            continue
        requires.append(new)
        if new == text:
            continue
        before, after = parsed(text), parsed(new)
        if before and after and before.specifier != after.specifier:
            replaced[str(after)] = without_marker(before)
    return _Node(name, exact, file, releases, tuple(requires), offered_extras(published), replaced, tuple(removed))


def _rank(file: ListedFile, view: View) -> int:
    """The target's preference for a file; above all of its tags for one that it cannot load."""
    rank = view.rank(file.filename)
    return len(view.rules.tags) if rank is None else rank


async def _measure(node: _Node, view: View) -> None:
    node.file, node.hash = await view.measure(node.name, node.file), "measured"


def _add_requirements(graph: _Graph) -> None:
    """Record what requires what: each package is visited again if more of its extras are required."""
    waiting: list[tuple[str, Requirement, str]] = []
    for line in filter(None, map(parsed, graph.request.requirements)):
        waiting.append((SPEC, line, ""))
    visited: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        asker, requirement, replaces = waiting.pop()
        node = graph.nodes.get(normalised(requirement.name))
        if node is None or (
            asker == SPEC and requirement.marker and not requirement.marker.evaluate(dict(graph.environment))
        ):
            continue
        node.askers.add(Dependent(asker, without_marker(requirement), replaces))
        node.extras.update(map(normalised, requirement.extras))
        state = (node.name, frozenset(node.extras))
        if state not in visited:
            visited.add(state)
            for each in graph.required_by(node):
                waiting.append((node.name, each, node.replaced.get(str(each), "")))


def _locked_file(node: _Node, view: View, size_bytes: int | None) -> WheelFile:
    file, rules = node.file, view.rules
    sha256 = file.sha256 or ""
    if node.name in rules.sources:
        return rules.sources[node.name].file
    if node.name in rules.direct:
        return WheelFile(DIRECT_URL, file.filename, sha256, size_bytes, without_credentials(file.url))
    index = rules.index_of(node.name)
    url = None if index.name == DEFAULT_INDEX else index.public(file.url)
    return WheelFile(index.name, file.filename, sha256, size_bytes, url, node.hash)


async def _newest_release(node: _Node, graph: _Graph) -> tuple[Rejected | None, bool]:
    """The newest release that `as_of` allows, if it is not the pinned one, with the reason.

    Also whether the resolver backtracked: nothing excludes the release, but its own requirements do not fit the others.
    """
    request, view = graph.request, graph.view
    if node.name in view.rules.direct:
        return None, False
    candidates = _newer_releases(node, view)
    if not candidates:
        # A newer release may have no file that this target can load.
        newest = (await view.selection(node.name)).unloadable
        is_newer = newest is not None and Version(newest) > node.version
        if not newest or not is_newer:
            return None, False
        labels = await labels_of(node.name, newest, request, view)
        if labels:
            return Rejected(newest, (reason("other-labels", labels=labels),)), False
        return Rejected(newest, (no_wheel_reason(request.target),)), False
    python, backtracked = request.target.python.version, False
    # Of releases for this Python, the reason is what somebody can change.
    fitting = {each: file for each, file in candidates.items() if allows(file.requires_python or "", python)}
    version, file = max((fitting or candidates).items())
    why, backtracked = await _reason(node, (version, file), graph)
    is_preferred = request.release_of(node.name, BoundKind.PREFERRED) == node.version
    if why == _NO_SET and (is_preferred or request.is_kept(node.name, node.version)):
        why, backtracked = (reason("kept", version=node.version),), False
    return Rejected(str(version), why), backtracked


async def _reason(node: _Node, candidate: tuple[Version, ListedFile], graph: _Graph) -> tuple[Why, bool]:
    """Why another release of a package was not taken, and whether the resolver backtracked: nothing excludes it, but
    its own requirements do not fit the others.
    """
    request, view = graph.request, graph.view
    version, file = candidate
    python = request.target.python.version
    if why := _exclusions(node, version, request):
        return why, False
    if not allows(file.requires_python or "", python):
        return _needs_python(file.requires_python, python), False
    metadata = await view.metadata(node.name, file.filename)
    # An index may not give the Python of an sdist.
    if (needed := requires_python(metadata)) and not allows(needed, python):
        return _needs_python(needed, python), False
    release = node.name, version
    if excluded := request.excluded().get(release):
        return excluded, False
    if problem := view.unreadable.get(release):
        return (reason("unreadable", problem=problem),), False
    required = applicable(declared(metadata), graph.environment, frozenset(node.extras))
    return _unmet_requirement(required, graph)


def _needs_python(needed: str | None, python: str) -> Why:
    return (reason("needs-python", python=needed, target=python),)


async def _preferred_release(node: _Node, graph: _Graph) -> Rejected | None:
    """The version that the spec prefers, with the reason why another one is locked."""
    request = graph.request
    preferred = request.release_of(node.name, BoundKind.PREFERRED)
    if preferred not in (None, node.version) and request.is_kept(node.name, node.version):
        return Rejected(str(preferred), (reason("lock-before"),))
    return await _why_not_chosen(preferred, node, graph)


async def _why_moved(node: _Node, graph: _Graph) -> str | None:
    """Why a package does not have the release of the lock before any more, unless the spec's own lines exclude it."""
    request = graph.request
    old = request.release_of(node.name, *OLD_PINS)
    if old is not None and old.public == node.version.public:
        # Another build of it.
        return None
    found = await _why_not_chosen(old, node, graph)
    if found is None or has_code(found.why[:1], "spec-requires", "spec-overrides"):
        return None
    return f"{node.name} {found.version} -> {node.version}: {words(found.why)}"


async def _why_not_chosen(version: Version | None, node: _Node, graph: _Graph) -> Rejected | None:
    """A version that was preferred, with the reason why another one is locked; None if it is locked."""
    request, view = graph.request, graph.view
    if version is None or version == node.version or node.name in view.rules.direct:
        return None
    text = str(version)
    files = node.releases.get(version)
    if files:
        file = min(files, key=lambda file: file.filename)
        why, _ = await _reason(node, (version, file), graph)
        if why == _NO_SET and file.yanked is not None:
            why = (reason("yanked-because", reason=file.yanked) if file.yanked else reason("yanked"),)
        return Rejected(text, why)
    index = view.rules.index_of(node.name)
    listed = of_version(await view.listed(node.name), version)
    if not listed:
        return Rejected(text, (reason("not-on-index", index=index.name),))
    cutoff = view.rules.cutoff_of(node.name)
    dated = [upload_time(file.uploaded) for file in listed if file.uploaded]
    if dated and min(dated) > cutoff:
        return Rejected(text, (reason("uploaded-later", day=f"{min(dated):%Y-%m-%d}"),))
    return Rejected(text, (no_wheel_reason(request.target),))


def _needs_provided(line: str, provider: ProvidedPackage) -> Reason:
    package, version = provider.name, provider.version
    if isinstance(provider, FoundPackage):
        return reason("needs-there", requirement=line, place=provider.place, package=package, version=version)
    return reason("needs-of-conda", requirement=line, package=package, version=version, channel=provider.channel)


def _unmet_requirement(required: Iterable[Requirement], graph: _Graph) -> tuple[Why, bool]:
    """The requirement of a newer release that the other pins do not meet, and whether the resolver backtracked."""
    view = graph.view
    for requirement in required:
        name = normalised(requirement.name)
        line = without_marker(requirement)
        if (provider := view.rules.provided.get(name)) is not None:
            if not requirement.specifier.contains(provider.version, prereleases=True):
                return (_needs_provided(line, provider),), True
            continue
        other = graph.nodes.get(name)
        if other is None or requirement.specifier.contains(other.version, prereleases=True):
            continue
        if bound := _bound_of_spec(other, requirement, view):
            return (reason("needs-spec", requirement=line, other=bound),), False
        return (reason("needs-other", requirement=line, other=name, version=other.version),), True
    return _NO_SET, True


def _exclusions(node: _Node, version: Version, request: PypiRequest) -> Why:
    """The requirements that exclude a version, else the constraints that do."""
    excluding = [asker for asker in sorted(node.askers) if not _allows(asker, version)]
    bounds: list[Reason] = []
    chosen: list[Reason] = []
    for bound in request.of_kind(BoundKind.CONSTRAINT):
        constraint = parsed(bound.line)
        if constraint is None or normalised(constraint.name) != node.name:
            continue
        if not constraint.specifier.contains(version, prereleases=True):
            line = without_marker(constraint)
            bounds.append(reason(_source_of(line, request), requirement=line))
            # What other packages require of a torch follows from the choice of its build.
            if bound.why and all(asker.name != SPEC for asker in excluding):
                chosen.append(bounds[-1])
    required = [_bound(asker, node.name) for asker in excluding]
    return tuple(dict.fromkeys([*chosen, *required] or bounds))


def _source_of(bound: str, request: PypiRequest) -> str:
    """Where a constraint comes from, as a code: pins of the torch family may be preferences."""
    for kinds, code in (((BoundKind.PREFERRED,), "spec-prefers"), (OLD_PINS, "lock-keeps")):
        for each in request.of_kind(*kinds):
            name, version = each.release
            if bound == f"{name}=={version.public}":
                return code
    return "constrained"


def _bound(asker: Dependent, name: str) -> Reason:
    """The requirement of one dependent on a package."""
    if asker.replaces and (override := parsed(asker.requirement)):
        return reason("spec-overrides", requirement=f"{name}{override.specifier}")
    if asker.name == SPEC:
        return reason("spec-requires", requirement=asker.requirement)
    return reason("needed-by", package=asker.name, requirement=asker.requirement)


def _bound_of_spec(node: _Node, requirement: Requirement, view: View) -> str | None:
    """The spec's requirement on a package if it excludes every newer release that would meet `requirement`."""
    newer = _newer_releases(node, view)
    meeting = [version for version in newer if requirement.specifier.contains(version, prereleases=True)]
    if not meeting:
        return None
    for asker in sorted(node.askers):
        if asker.name == SPEC and not any(_allows(asker, version) for version in meeting):
            return asker.requirement
    return None


def _newer_releases(node: _Node, view: View) -> dict[Version, ListedFile]:
    """The releases newer than the pin that the target can load, with the best file of each; yanked ones excluded."""
    found: dict[Version, ListedFile] = {}

    def preference(file: ListedFile) -> tuple[int, str]:
        return _rank(file, view), file.filename

    for version, files in node.releases.items():
        if version <= node.version:
            continue
        if node.name in view.rules.extensions and version.public == node.version.public:
            # Another label of the same release.
            continue
        if version.is_prerelease and not node.version.is_prerelease:
            continue
        offered = [file for file in files if file.yanked is None]
        if offered:
            found[version] = min(offered, key=preference)
    return found


def _oldest_recent(node: _Node, view: View) -> str:
    """The oldest of the newer releases that is not years old; empty if there is none."""
    oldest = view.rules.as_of - timedelta(days=_far_back_days(node.askers, backtracked=True))
    newer = _newer_releases(node, view)
    recent = [each for each, file in newer.items() if file.uploaded and upload_time(file.uploaded) > oldest]
    return str(min(recent)) if recent else ""


def _allows(asker: Dependent, version: Version) -> bool:
    requirement: Requirement | None = parsed(asker.requirement)
    return requirement is None or requirement.specifier.contains(version, prereleases=True)


def far_back(package: Package, backtracked: bool, as_of: datetime) -> Reason | None:  # noqa: FBT001 (a fact, no switch)
    """A warning for a package that went years back to make the set fit; None for all others.

    A bound that a dependant declares on something that the spec does not name (sympy's `mpmath<1.4`) is ordinary; one
    in the spec is known to its author, even if a dependant has the same.
    """
    limit_days = _far_back_days(package.required_by, backtracked=backtracked)
    if package.uploaded is None or package.rejected is None or (as_of - package.uploaded).days < limit_days:
        return None
    by_spec = any(asker.name == SPEC for asker in package.required_by)
    if has_code(package.rejected.why, *_BY_SPEC) or not (by_spec or backtracked):
        return None
    return reason(
        "years-old",
        package.rejected.why,
        package=package.name,
        version=package.version,
        month=f"{package.uploaded:%Y-%m}",
        newer=package.rejected.version,
    )


def _far_back_days(askers: Iterable[Dependent], *, backtracked: bool) -> int:
    by_spec = any(asker.name == SPEC for asker in askers)
    return BACKTRACKED_DAYS if by_spec and backtracked else FAR_BACK_DAYS


def _by_python(held_back: Mapping[Package, Reason], series: str) -> Iterator[Reason]:
    """The warnings for packages that went years back; one for all whose newer releases are for other Pythons."""
    found = [each for each in held_back if each.rejected and has_code(each.rejected.why, "needs-python")]
    for package, warning in held_back.items():
        if len(found) == 1 or package not in found:
            yield warning
    if len(found) > 1:
        names = ", ".join(f"{each.name} {each.version} ({each.uploaded:%Y-%m})" for each in found)
        yield reason("other-python", count=len(found), python=series, packages=names)
