"""The PyPI stage: the packages of every target; with `--upgrade-package`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from packaging.version import Version

from envspec.context import SILENT, ReporterOf
from envspec.errors import EnvspecError, NoSolution
from envspec.io.http import open_http
from envspec.io.http_settings import default_index_url
from envspec.io.tasks import run_interruptible
from envspec.models import Decision, Lock, Platform, Resolution, Target
from envspec.names import normalised
from envspec.operations.lock_state import LockState, PypiResult, is_to_build
from envspec.origins import INDEX_FAMILY, PYTORCH_INDEX
from envspec.resolve import resolver
from envspec.resolve.pypi.errors import UnusableSdists
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import BuiltSource
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.request import (
    GivenPackages,
    IndexUrls,
    override_decisions,
    sources_of,
    target_request,
    wheel_urls,
)
from envspec.resolve.pypi.resolve import StatedSdists, TargetRequest, resolve_all
from envspec.resolve.pypi.resolver import Unsolvable
from envspec.resolve.pypi.url_wheels import fetch_wheel
from envspec.resolve.types import LOOSEN, Cutoffs, ProvidedPackage, RefusedLines
from envspec.resolve.upgrade import differing, moved_pypi, names_of, pins_of, with_old_pins, without_packages
from envspec.spec import Requirement, Spec
from envspec.spec.requirements import read_constraint

if TYPE_CHECKING:
    from envspec.operations.lock_sdists import SdistBuilds

#: For how many seconds another [pip] is tried.
_TRY_S: Final = 20

_Lines: TypeAlias = Mapping[Platform, Sequence[str]]
_NO_LINES: Final[_Lines] = {}
#: The requests that have a solution, and it.
_Found: TypeAlias = tuple[list[TargetRequest], tuple[Resolution, ...]]


class Pypi:
    """The requests of every target, for any cutoffs.

    provided: the Python packages that conda installs, by platform. upgraded: the names of PyPI packages that
    `--upgrade-package` may move.
    """

    def __init__(
        self,
        state: LockState,
        targets: Sequence[Target],
        provided: Mapping[Platform, Mapping[str, ProvidedPackage]],
        upgraded: Sequence[str],
    ) -> None:
        self._state = state
        self._targets = targets
        self._provided = provided
        self._upgraded = tuple(upgraded)
        # To upgrade single packages, the engines run several times.
        self._warn_once = cache(state.context.reporter.warning)
        environ = state.context.environ
        self._urls = IndexUrls(default_index_url(environ), environ.get("ENVSPEC_PYTORCH_INDEX") or PYTORCH_INDEX)
        self._wheels = run_interruptible(_fetch_wheels(state, wheel_urls(state.spec)))
        self._sources: Mapping[Target, Mapping[str, BuiltSource]] = {}
        self._commits: tuple[Decision, ...] = ()
        self._sdists: SdistBuilds | None = None
        if any(sources_of(state.spec, target) for target in targets):
            # Imports half of what images need.
            from envspec.operations.build_wheels import build_sources

            self._sources, self._commits = run_interruptible(build_sources(state, targets))

    def resolve(self) -> PypiResult:
        """What the cutoffs allow; with `--upgrade-package`, only what its names must move."""
        try:
            found = self._resolved()
        except Unsolvable as error:
            from envspec.operations.lock_ways_out import ways_to_solve

            if error.hint == LOOSEN:
                error.hint = ways_to_solve(error.message, self._state.spec, self._tried, self._state.context) or LOOSEN
            raise
        except UnusableSdists as error:
            from envspec.operations.lock_ways_out import with_wheels

            if others := with_wheels(error.sdists, self._state.spec, self._tried, self._built()):
                error.hint = f"{error.hint}\n  or {others}"
            raise
        if not any(part.held_back for part in found.resolutions):
            return found
        from envspec.operations.lock_ways_out import newer_releases

        return replace(found, way_out=newer_releases(found.resolutions, self._state.spec, self._tried, self._built()))

    def _built(self) -> Collection[str]:
        """The names of sdists that were built, or are locked unbuilt."""
        return self._sdists.usable() if self._sdists is not None else ()

    def _tried(self, update: Mapping[str, object], sdists: Sdists = Sdists.WITHOUT_WHEEL) -> tuple[Resolution, ...]:
        """What the spec with another [pip] resolves to, without a report and a build; empty without a solution."""
        state, spec = self._state, self._state.spec
        with suppress(EnvspecError, asyncio.TimeoutError):
            changed = spec.model_copy(update={"pip": spec.pip.model_copy(update=dict(update))})
            asked = self._composed(Cutoffs(state.as_of, self._own_cutoffs()), changed)
            asked = asked if self._sdists is None else [self._sdists.knowing(each) for each in asked]
            asked = [each.with_sdists(sdists) for each in asked]
            quiet = replace(state.context, reporter=SILENT)
            resolving = resolve_all(asked, resolver(state.request.resolver), state.store, quiet)
            return run_interruptible(asyncio.wait_for(resolving, _TRY_S))
        return ()

    def _own_cutoffs(self) -> dict[str, datetime]:
        return {normalised(name): at for name, at in self._state.own_times().items()}

    def _resolved(self) -> PypiResult:
        pinned = self._state.old if self._state.follows_old else None
        own = self._own_cutoffs()
        before = dict(pinned.package_as_of) if pinned is not None else {}
        cutoffs = Cutoffs(self._state.as_of, {**before, **own})
        base = self._state.base
        if base is not None:
            cutoffs = replace(cutoffs, names={**cutoffs.names, **dict(base.package_as_of)})
        if pinned is not None and self._upgraded:
            pinned, cutoffs = self._upgrade(pinned, cutoffs)
        given: tuple[Resolution, ...] = ()
        old: tuple[Resolution, ...] = ()
        if pinned is not None:
            # The spec lets these move.
            moving = {name for name, at in own.items() if before.get(name) != at}
            old = without_packages(pinned.resolutions, moving - set(self._upgraded))
        elif own:
            given = without_packages(self._without_own_times(), own)
        if base is not None:
            given = pins_of(self._targets, given, base.resolutions)
        requests, resolutions = self._ask_with_old(cutoffs, given, pins_of(self._targets, old))
        # The cutoff of a removed package must not apply when it is added again.
        locked = {package.name for resolution in resolutions for package in resolution.packages}
        own = {name: at for name, at in cutoffs.names.items() if name in locked}
        for name in self._idle_overrides(resolutions):
            self._warn_once(
                f"pip.overrides: {name} changes nothing: what locked packages require is the same without it"
            )
        return PypiResult(resolutions, tuple(requests), own, (*self._commits, *override_decisions(self._state.spec)))

    def _idle_overrides(self, resolutions: Sequence[Resolution]) -> list[str]:
        """The names of overrides without an effect, as far as it is recorded: not for what conda provides."""
        packages = [package for resolution in resolutions for package in resolution.packages]
        replaced = {package.name for package in packages if any(by.replaces for by in package.required_by)}
        provided = {name for of_platform in self._provided.values() for name in of_platform}
        names = {each.requirement.name for each in self._state.spec.pip.overrides}
        removed = {
            normalised(found.name) for package in packages for text in package.removed if (found := parsed(text))
        }
        return sorted(names - replaced - removed - provided)

    def _ask_with_old(self, cutoffs: Cutoffs, given: Sequence[Resolution], old: Sequence[Resolution]) -> _Found:
        """The requests that have a solution, and it, with the versions of the lock before wherever the spec allows.

        Those are no preferences if the spec and the lock's date give them anyhow: then the lock is, in every byte, the
        one that is made without an older one.

        given: what is preferred in any case. old: of the lock before.
        """
        try:
            alone = self._ask_alike(self._usual_family(given), cutoffs, given)
        except NoSolution as error:
            # A locked version may be yanked by now, or be built already.
            if isinstance(error, RefusedLines) or not names_of(old):
                raise
            with suppress(NoSolution):
                pins = pins_of(self._targets, old, given)
                return self._ask_alike(self._coupled_of(pins), cutoffs, pins)
            raise
        if not differing(alone[1], old):
            return alone
        try:
            found = self._ask_beside(alone, cutoffs, given, old)
        except NoSolution:
            return alone
        moved = [part.moved for part in found[1]]
        if not differing(found[1], alone[1]):
            found = alone
        elif differing(found[1], old) or names_of(found[1]) - names_of(old):
            # As every later run has it: reasons depend on what the lock before has.
            found = self._ask_beside(alone, cutoffs, given, found[1])
        return found[0], tuple(replace(part, moved=texts) for part, texts in zip(found[1], moved, strict=True))

    def _ask_beside(
        self, alone: _Found, cutoffs: Cutoffs, given: Sequence[Resolution], old: Sequence[Resolution]
    ) -> _Found:
        """With the versions of the lock before as preferences. alone: without them."""
        pins = pins_of(self._targets, old, given)
        is_coupled = not {*INDEX_FAMILY, *self._extensions}.isdisjoint(differing(alone[1], old))
        family = self._coupled_of(pins) if is_coupled else self._usual_family(given)
        return self._ask_alike(family, cutoffs, pins, without_packages(alone[1], names_of(given)))

    @property
    def _extensions(self) -> set[str]:
        """Packages whose wheels have the build of torch in their labels."""
        return {row.package for row in self._state.facts.extensions}

    def _coupled_of(self, pins: Sequence[Resolution]) -> list[_Lines]:
        """Pins of what other builds exist of to try, the best ones first."""
        extensions = self._extensions
        tries = ({*INDEX_FAMILY, *extensions}, INDEX_FAMILY, ("torch",), extensions)
        return [_lines_of(pins, names) for names in tries]

    def _usual_family(self, given: Sequence[Resolution]) -> list[_Lines]:
        """Pins of the torch family to try: those of a variant's base, else those that the spec prefers."""
        return [_lines_of(given, INDEX_FAMILY)] if self._state.base is not None else self._preferred_family(given)

    def _preferred_family(self, pins: Sequence[Resolution]) -> list[_Lines]:
        """The best ones first, if torch is among them; not of what is pinned."""
        known = names_of(pins)
        lines = [
            (line.name, f"{line.name}=={Version(each.version).public}{f'; {line.marker}' if line.marker else ''}")
            for line in self._state.spec.pip.prefer
            if line.name in INDEX_FAMILY and line.name not in known
            for each in line.specifier
        ]
        torch = [text for name, text in lines if name == "torch"]
        tries = [[text for _, text in lines], torch] if torch else []
        return [dict.fromkeys((target.platform for target in self._targets), each) for each in tries]

    def _ask_alike(
        self,
        tries: Sequence[_Lines],
        cutoffs: Cutoffs,
        pins: Sequence[Resolution],
        free: Sequence[Resolution] = (),
    ) -> _Found:
        """The requests that have a solution, and it, with pins of the torch family if possible.

        Builds of the torch family have the same version under different labels, and from different indexes: no
        resolver prefers one for the sake of the other.

        free: see `PypiRequest`.
        """
        requests = self._composed(cutoffs)
        different = [lines for at, lines in enumerate(tries) if lines not in tries[:at]]
        for lines in different:
            if not any(lines.values()):
                continue
            with suppress(NoSolution):
                alike = self._composed(cutoffs, lines=lines)
                # That torch may have no code for the GPUs.
                if all(each.serves_gpus >= alone.serves_gpus for each, alone in zip(alike, requests, strict=True)):
                    return alike, self._ask([with_old_pins(each, pins, without=free) for each in alike])
        return requests, self._ask([with_old_pins(each, pins, without=free) for each in requests])

    def _without_own_times(self) -> tuple[Resolution, ...]:
        """What the spec gives without single packages' times, which then move what they have to and nothing else."""
        try:
            return self._ask(self._composed(Cutoffs(self._state.as_of, {})))
        except NoSolution:
            # It requires one of these releases.
            return ()

    def _composed(self, cutoffs: Cutoffs, spec: Spec | None = None, lines: _Lines = _NO_LINES) -> list[TargetRequest]:
        """lines: more constraints, of each platform."""
        state = self._state
        return [
            target_request(
                _constrained(spec or state.spec, lines.get(target.platform, ())),
                target,
                state.facts,
                cutoffs,
                GivenPackages(
                    self._wheels,
                    self._sources.get(target, {}),
                    self._provided.get(target.platform, {}),
                    state.beneath.found.get(target.platform),
                ),
                self._urls,
            )
            for target in self._targets
        ]

    def _upgrade(self, old: Lock, kept: Cutoffs) -> tuple[Lock, Cutoffs]:
        """The lock with the pins after `--upgrade-package`, and the cutoffs of those that moved.

        Everything may move up to now; what can stay stays.
        """
        state, names = self._state, self._upgraded
        asked = {requirement.name for requirement in state.spec.pip.dependencies}
        before = {package.name for resolution in old.resolutions for package in resolution.packages}
        # What was added to the spec is no part of the upgrade; torch's build is chosen again only for its family.
        still = dict.fromkeys(asked - before - set(names), kept.as_of)
        family = {"torch": state.newest} if set(names) & set(INDEX_FAMILY) else {}
        aged = {normalised(name): at for name, at in state.aged_times().items()}
        free = self._composed(Cutoffs(kept.as_of, {**still, **family, **aged}, others=state.newest))

        def moving(newer: Sequence[str]) -> tuple[Resolution, ...]:
            return self._ask([with_old_pins(q, old.resolutions, free=names, newer=newer) for q in free])

        # An engine keeps a package because of another one's pin, even if it could move both.
        newer: list[str] = []
        for tried in (names, *((name,) for name in names if len(names) > 1)):
            with suppress(Unsolvable):
                moving([*newer, *tried])
                newer += tried
                if tried == names:
                    break
        new = moving(newer)
        cutoffs = {**kept.names, **dict.fromkeys(moved_pypi(old.resolutions, new), state.newest), **aged, **still}
        locked = {package.name for resolution in new for package in resolution.packages}
        own = {name: at for name, at in cutoffs.items() if name in locked and at != kept.as_of}
        return replace(old, resolutions=new), replace(kept, names=own)

    def _ask(self, requests: Sequence[TargetRequest]) -> tuple[Resolution, ...]:
        """What the requests resolve to. Packages whose major version is CUDA's have that of the lock, if that makes
        nothing older that the spec names: resolvers go back to an old one if its newest needs an older release of
        something that they have chosen before.
        """
        found = self._ask_once(requests)
        names = {row.package for row in self._state.facts.cuda_majors}
        if not any(package.name in names for part in found for package in part.packages):
            return found
        from envspec.operations.lock_ways_out import is_older, with_cuda_majors

        bounded = [with_cuda_majors(each, part, self._state.facts) for each, part in zip(requests, found, strict=True)]
        if any(new is not old for new, old in zip(bounded, requests, strict=True)):
            with suppress(NoSolution):
                other = self._ask_once(bounded)
                return found if is_older(found, other, self._state.spec) else other
        return found

    def _ask_once(self, requests: Sequence[TargetRequest]) -> tuple[Resolution, ...]:
        """What the requests resolve to; sdists among it are built, and count by what their wheels state."""
        state = self._state
        once = replace(state.context, reporter=ReporterOf(state.context.reporter, warning=self._warn_once))
        builds = self._sdists
        while True:
            asked = requests if builds is None else [builds.knowing(each) for each in requests]
            stated: StatedSdists = {}
            resolving = resolve_all(asked, resolver(state.request.resolver), state.store, once, _later, stated)
            resolutions: tuple[Resolution, ...] = ()
            unsolvable: EnvspecError | None = None
            try:
                resolutions = run_interruptible(resolving)
            except NoSolution as error:
                unsolvable = error
            needs_builds = any(is_to_build(package) for part in resolutions for package in part.packages)
            if builds is None and (needs_builds or any(stated.values())):
                # Imports half of what images need.
                from envspec.operations.lock_sdists import SdistBuilds

                builds = self._sdists = SdistBuilds(state)
            if builds is not None and not run_interruptible(builds.are_true(asked, stated)):
                continue
            if unsolvable is not None:
                raise unsolvable from None
            if builds is None or not needs_builds:
                return resolutions
            if run_interruptible(builds.build(asked, resolutions)):
                return tuple(map(builds.recorded, resolutions))


def _lines_of(pins: Sequence[Resolution], names: Collection[str]) -> _Lines:
    """The releases of some packages on each platform, whatever their builds."""
    found: dict[Platform, list[str]] = {}
    for part in pins:
        named = [each for each in part.packages if each.name in names]
        found[part.target.platform] = [f"{each.name}=={Version(each.version).public}" for each in named]
    return found


def _constrained(spec: Spec, lines: Sequence[str]) -> Spec:
    if not lines:
        return spec
    constraints = (*spec.pip.constraints, *map(read_constraint, lines))
    return spec.model_copy(update={"pip": spec.pip.model_copy(update={"constraints": constraints})})


async def _fetch_wheels(state: LockState, requirements: Sequence[Requirement]) -> dict[str, ListedFile]:
    """The wheels that the spec names by URL, by this URL without credentials."""
    if not requirements:
        return {}
    context = state.context
    async with AsyncExitStack() as stack:
        http = None if context.is_offline else await stack.enter_async_context(open_http(context.environ))
        fetched = await asyncio.gather(
            *(fetch_wheel(r, state.as_of, http, state.store, context.now, context.environ) for r in requirements)
        )
    return {str(r.without_credentials().url): file for r, file in zip(requirements, fetched, strict=True)}


def _later() -> None:
    """Import the modules of the next stage while the engines run."""
    import_module("envspec.operations.lock_assemble")
    import_module("envspec.lockfile.export")
