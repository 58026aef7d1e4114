"""From pins to packages: the one file of each, who asked for it, and why nothing newer was taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from envspec.credentials import without_credentials
from envspec.errors import NetworkError
from envspec.models import DEFAULT_INDEX, DIRECT_URL, SPEC, Dependent, Package, Rejected, Resolution, Target, WheelFile
from envspec.resolve.pypi.conflicts import members_beside_condas_torch
from envspec.resolve.pypi.errors import no_wheel_for
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.selection import moment, version_of
from envspec.resolve.pypi.index.view import View, normalised
from envspec.resolve.pypi.metadata import allows, declared, parsed, requires_python, shown, wanted
from envspec.resolve.pypi.resolver import EngineFault, Pins, Request

#: A package this much older than `as_of` is worth a word when something else than the spec holds it back.
FAR_BACK_DAYS: Final = 2 * 365
#: What holds back by a constraint, of the spec or of torch's build.
CONSTRAINED: Final = "constrained to"


@dataclass(frozen=True, slots=True)
class _Held:
    """Why the newest was not taken. backtracked: nobody excludes it; its own requirements don't fit the others."""

    refusal: Rejected | None
    backtracked: bool = False


@dataclass(slots=True)
class _Node:
    """One pinned package while the graph is built."""

    name: str
    version: Version
    file: ListedFile
    requires: tuple[str, ...]
    extras: set[str] = field(default_factory=set)
    askers: set[Dependent] = field(default_factory=set)


async def build(request: Request, environment: Mapping[str, str], pins: Pins, view: View) -> Resolution:
    """Everything that one target installs from indexes, from an engine's pins and the index's rows.

    What conda provides is no package here, but has its say in why others are what they are.

    Raises:
        BothHalves: something asks for PyPI's build of a member of the torch family, and torch is conda's.
        EngineFault: the engine pinned what the index doesn't hold.
        NetworkError: metadata or a size can't be fetched.
    """
    nodes = dict(zip(pins, await asyncio.gather(*(_node(name, pins[name], view) for name in pins)), strict=True))
    _walk(nodes, environment, request.requirements)
    installed = [node for name, node in sorted(nodes.items()) if name not in view.rules.provided]
    _refuse_beside_condas_torch(installed, view)
    anchoring = asyncio.gather(*(view.contents(node.name, node.file.filename) for node in installed))
    held = await asyncio.gather(*(_newest(node, nodes, environment, request, view) for node in installed))
    sizes = await asyncio.gather(*(view.size_bytes(node.name, node.file.filename) for node in installed))
    ranked = list(zip(installed, held, sizes, await anchoring, strict=True))
    packages = tuple(
        Package(
            name=node.name,
            version=str(node.version),
            file=_row(node, view, size),
            required_by=tuple(sorted(node.askers)),
            uploaded=moment(node.file.uploaded) if node.file.uploaded else None,
            rejected=why.refusal,
            extras=tuple(sorted(node.extras)),
            built=view.rules.sources[node.name].built if node.name in view.rules.sources else None,
            record_sha256=contents,
        )
        for node, why, size, contents in ranked
    )
    backtracked = [why.backtracked for _, why, _, _ in ranked]
    told = (
        far_back(p, went_back, view.rules.as_of)
        for p, went_back in zip(packages, backtracked, strict=True)
        if all(name != p.name for name, _ in request.excluded)
    )
    compiled = (_compiled_beside(node, view, environment) for node in installed)
    yanked = (_yanked(node) for node, *_ in ranked if node.file.yanked is not None)
    excluded = (f"{name} {version} was left out: {why}" for (name, version), why in sorted(request.excluded.items()))
    warnings = (*(text for text in (*told, *compiled) if text), *yanked, *excluded)
    return Resolution(request.target, packages, warnings)


def _refuse_beside_condas_torch(installed: Iterable[_Node], view: View) -> None:
    rules = view.rules
    asked = {
        node.name: node.askers
        for node in installed
        if node.name not in rules.direct and rules.index_of(node.name) is rules.default
    }
    if mixed := members_beside_condas_torch(asked, rules.provided):
        raise mixed


def _compiled_beside(node: _Node, view: View, environment: Mapping[str, str]) -> str | None:
    """A warning for a wheel that is compiled against PyPI's torch, where torch is conda's."""
    torch = view.rules.provided.get("torch")
    abi = node.file.filename.split("-")[-2]
    if torch is None or abi == "none" or not node.file.filename.endswith(".whl"):
        return None
    asked = wanted(node.requires, environment, frozenset(node.extras))
    if all(normalised(requirement.name) != "torch" for requirement in asked):
        return None
    return (
        f"{node.name} {node.version} is compiled and needs torch: its wheel was built beside PyPI's, and {torch}; "
        f"if it does not load, take {node.name} from conda as well"
    )


def _yanked(node: _Node) -> str:
    reason = f" ({node.file.yanked})" if node.file.yanked else ""
    return f"{node.name} {node.version} was yanked by its publisher{reason}: taken because nothing else is asked for"


async def _node(name: str, version: str, view: View) -> _Node:
    wanted_version = Version(version)
    ranked = [
        (view.rank(file.filename), _build_tag(file.filename), file)
        for file in (await view.selection(name)).files.values()
        if version_of(file.filename) == wanted_version
    ]
    wheels = [(rank, build, file) for rank, build, file in ranked if rank is not None]
    if wheels:
        # Best tags first, then the highest build number, as pip and uv choose (wheel specification, "build tag").
        _, _, file = min(wheels, key=lambda row: (row[0], tuple(-number for number in row[1]), row[2].filename))
        return _Node(name, wanted_version, file, declared(await view.metadata(name, file.filename)))
    if ranked:
        file = ranked[0][2]
        return _Node(name, wanted_version, file, declared(await view.metadata(name, file.filename)))
    raise EngineFault(f"{name} {version} was chosen, and the index shows no file of it for this target")


def _build_tag(filename: str) -> tuple[int, ...]:
    parts = filename.split("-")
    digits = parts[2] if filename.endswith(".whl") and len(parts) == 6 else ""
    number = "".join(sign for sign in digits if sign.isdigit())
    return (int(number),) if number else (0,)


def _walk(nodes: Mapping[str, _Node], environment: Mapping[str, str], requirements: tuple[str, ...]) -> None:
    """Record who asks for what: every package is looked at again when an extra of it is asked for."""
    waiting = [(SPEC, requirement) for text in requirements if (requirement := parsed(text)) is not None]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        asker, requirement = waiting.pop()
        node = nodes.get(normalised(requirement.name))
        if node is None or (
            asker == SPEC and requirement.marker and not requirement.marker.evaluate(dict(environment))
        ):
            continue
        node.askers.add(Dependent(asker, shown(requirement)))
        node.extras |= {normalised(extra) for extra in requirement.extras}
        state = (node.name, frozenset(node.extras))
        if state not in seen:
            seen.add(state)
            waiting += [(node.name, more) for more in wanted(node.requires, environment, state[1])]


def _row(node: _Node, view: View, size_bytes: int | None) -> WheelFile:
    if node.file.sha256 is None:
        raise NetworkError(
            f"{node.file.filename}: its index gives no SHA-256", hint="an index without hashes can't be locked"
        )
    if node.name in view.rules.sources:
        return view.rules.sources[node.name].file
    if node.name in view.rules.direct:
        return WheelFile(
            DIRECT_URL, node.file.filename, node.file.sha256, size_bytes, without_credentials(node.file.url)
        )
    index = view.rules.index_of(node.name)
    url = None if index.name == DEFAULT_INDEX else index.public(node.file.url)
    return WheelFile(index.name, node.file.filename, node.file.sha256, size_bytes, url)


async def _newest(
    node: _Node, nodes: Mapping[str, _Node], environment: Mapping[str, str], request: Request, view: View
) -> _Held:
    """The newest release that `as_of` allows, where it was not taken, and the reason."""
    if node.name in view.rules.direct:
        return _Held(None)
    candidates = await _newer(node, view)
    if not candidates:
        return _Held(await _unloadable(node, request.target, view))
    version = max(candidates)
    file = candidates[version]
    if refusing := list(_refusing_askers(node, version)) or list(_refusing_constraints(node, version, request)):
        return _Held(Rejected(str(version), "; ".join(refusing)))
    python = request.target.python.version
    if file.requires_python and not allows(file.requires_python, python):
        return _Held(Rejected(str(version), f"needs Python {file.requires_python}, the target has {python}"))
    metadata = await view.metadata(node.name, file.filename)
    # An index may say nothing of its Python beside an sdist.
    needed = requires_python(metadata)
    if needed and not allows(needed, python):
        return _Held(Rejected(str(version), f"needs Python {needed}, the target has {python}"))
    if why := request.excluded.get((node.name, version)) or view.unreadable.get((node.name, version)):
        return _Held(Rejected(str(version), why))
    return await _unmet(version, wanted(declared(metadata), environment, frozenset(node.extras)), nodes, view)


def _refusing_askers(node: _Node, version: Version) -> Iterator[str]:
    for asker in sorted(node.askers):
        if not _allows(asker, version):
            who = "the spec asks" if asker.name == SPEC else f"{asker.name} needs"
            yield f"{who} {asker.requirement}"


def _refusing_constraints(node: _Node, version: Version, request: Request) -> Iterator[str]:
    for constraint in filter(None, map(parsed, request.constraints)):
        ours = normalised(constraint.name) == node.name
        if ours and not constraint.specifier.contains(version, prereleases=True):
            yield f"{CONSTRAINED} {shown(constraint)}"


async def _unmet(version: Version, asked: Iterable[Requirement], nodes: Mapping[str, _Node], view: View) -> _Held:
    """Which requirement of a newer release the other pins don't meet."""
    for requirement in asked:
        name = normalised(requirement.name)
        provider = view.rules.provided.get(name)
        if provider is not None:
            if not requirement.specifier.contains(provider.version, prereleases=True):
                why = f"needs {shown(requirement)}, and {provider}"
                return _Held(Rejected(str(version), why), backtracked=True)
            continue
        other = nodes.get(name)
        if other is None or requirement.specifier.contains(other.version, prereleases=True):
            continue
        if bound := await _bound_of_spec(other, requirement, view):
            return _Held(Rejected(str(version), f"needs {shown(requirement)}, and the spec asks {bound}"))
        why = f"needs {shown(requirement)}, and {other.name} is {other.version}"
        return _Held(Rejected(str(version), why), backtracked=True)
    return _Held(Rejected(str(version), "what it needs leaves no set that fits"), backtracked=True)


async def _bound_of_spec(node: _Node, requirement: Requirement, view: View) -> str | None:
    """What the spec asks of a package, where that rules out every newer release that would meet the requirement."""
    newer = await _newer(node, view)
    meeting = [version for version in newer if requirement.specifier.contains(version, prereleases=True)]
    bounds = (a.requirement for a in sorted(node.askers) if a.name == SPEC and not any(_allows(a, v) for v in meeting))
    return next(bounds, None) if meeting else None


async def _newer(node: _Node, view: View) -> dict[Version, ListedFile]:
    """The releases newer than the pin that the target could load, with one file each. Yanked ones don't count."""
    found: dict[Version, ListedFile] = {}
    for file in (await view.selection(node.name)).files.values():
        version = version_of(file.filename)
        if (
            version
            and version > node.version
            and file.yanked is None
            and (not version.is_prerelease or node.version.is_prerelease)
        ):
            best = found.get(version)
            if best is None or _preference(view, file) < _preference(view, best):
                found[version] = file
    return found


def _preference(view: View, file: ListedFile) -> tuple[int, str]:
    rank = view.rank(file.filename)
    return (len(view.rules.tags) if rank is None else rank, file.filename)


async def _unloadable(node: _Node, target: Target, view: View) -> Rejected | None:
    """A newer release with no file that this target can load."""
    newest = (await view.selection(node.name)).unloadable
    if newest is None or Version(newest) <= node.version:
        return None
    return Rejected(newest, no_wheel_for(target))


def _allows(asker: Dependent, version: Version) -> bool:
    requirement: Requirement | None = parsed(asker.requirement)
    return requirement is None or requirement.specifier.contains(version, prereleases=True)


def far_back(package: Package, backtracked: bool, as_of: datetime) -> str | None:  # noqa: FBT001 (a fact, no switch)
    """A warning for a package that went years back to make the set fit; None where all is well.

    A bound that a dependant declares on something that the spec doesn't name (sympy's `mpmath<1.4`) is ordinary, and
    one that the spec states is known to whoever wrote it, also where a dependant states the same.
    """
    if package.uploaded is None or package.rejected is None or (as_of - package.uploaded).days < FAR_BACK_DAYS:
        return None
    by_spec = any(asker.name == SPEC for asker in package.required_by)
    if any(words in package.rejected.why for words in ("the spec asks ", CONSTRAINED)) or not (by_spec or backtracked):
        return None
    return (
        f"{package.name} {package.version} is from {package.uploaded:%Y-%m}; "
        f"{package.rejected.version} was not taken: {package.rejected.why}"
    )
