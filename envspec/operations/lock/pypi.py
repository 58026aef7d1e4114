"""The PyPI stage: which attempts give the packages of every target, and in which order; with `--upgrade-package`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from packaging.version import Version

from envspec.errors import NoSolution
from envspec.models import Lock, Platform, Resolution, Target
from envspec.names import normalised
from envspec.operations.lock.attempts import Attempt, Attempts, Lines, Solution
from envspec.operations.lock_state import Hints, LockState, PypiResult, keep_names, packages_in, pypi_names_of, rename
from envspec.origins import INDEX_FAMILY
from envspec.resolve.pypi.errors import UnusableSdists
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.resolver import Unsolvable
from envspec.resolve.types import Cutoffs, ProvidedPackage
from envspec.resolve.upgrade import differing, moved_pypi, names_of, pins_of, without_packages
from envspec.structs import replace


class Pypi:
    """The packages of every target.

    provided: the Python packages that conda installs, by platform.
    upgraded: the names of PyPI packages that `--upgrade-package` may move.
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
        self._attempts = Attempts(state, targets, provided)
        self._own = rename(state.own_times(), normalised)

    def resolve(self, hints: Hints) -> PypiResult:
        """What the cutoffs allow; with `--upgrade-package`, only what its names must move."""
        if hints is Hints.NONE:
            return self._resolve()
        spec, built = self._state.spec, self._attempts.usable_sdists
        try:
            return self._resolve()
        except Unsolvable as error:
            from envspec.operations.lock.suggestions import ways_to_solve

            if error.is_hint_general:
                ways = ways_to_solve(error.message, spec, self._tried, self._state.context)
                error.hint = ways or error.hint
            raise
        except UnusableSdists as error:
            from envspec.operations.lock.suggestions import with_wheels

            if others := with_wheels(error.sdists, spec, self._tried, built()):
                error.hint = f"{error.hint}\n  or {others}"
            raise

    def _way_out(self, resolutions: Sequence[Resolution]) -> str:
        """See `PypiResult`."""
        if not any(part.held_back for part in resolutions):
            return ""
        from envspec.operations.lock.suggestions import newer_releases

        return newer_releases(resolutions, self._state.spec, self._tried, self._attempts.usable_sdists())

    def _tried(self, update: Mapping[str, object], sdists: Sdists = Sdists.WITHOUT_WHEEL) -> tuple[Resolution, ...]:
        return self._attempts.solve_quietly(update, Cutoffs(self._state.as_of, self._own), sdists)

    def _resolve(self) -> PypiResult:
        state, own, base = self._state, self._own, self._state.base
        pinned = state.old if state.follows_old else None
        before = dict(pinned.package_as_of) if pinned is not None else {}
        names = {**before, **own}
        if base is not None:
            names |= dict(base.package_as_of)
        cutoffs = Cutoffs(state.as_of, names)
        if pinned is not None and self._upgraded:
            pinned, cutoffs = self._upgrade(pinned, cutoffs)
            if state.finds_times:
                return PypiResult(pinned.resolutions, cutoffs=cutoffs.names, commits=self._attempts.commits)
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
        found = self._with_old_versions(cutoffs, given, pins_of(self._targets, old))
        # The cutoff of a removed package must not apply when it is added again.
        times = keep_names(cutoffs.names, names_of(found.resolutions))
        for name in self._idle_overrides(found.resolutions):
            self._attempts.context.reporter.warning(
                f"pip.overrides: {name} changes nothing: what locked packages require is the same without it"
            )
        way_out = partial(self._way_out, found.resolutions)
        return PypiResult(found.resolutions, tuple(found.requests), times, self._attempts.commits, way_out)

    def _idle_overrides(self, resolutions: Sequence[Resolution]) -> list[str]:
        """The names of overrides without an effect, as far as it is recorded: not for what conda provides."""
        idle = {each.requirement.name for each in self._state.spec.pip.overrides}
        for provided in self._provided.values():
            idle.difference_update(provided)
        for package in packages_in(resolutions):
            if any(by.replaces for by in package.required_by):
                idle.discard(package.name)
            for text in package.removed:
                if requirement := parsed(text):
                    idle.discard(normalised(requirement.name))
        return sorted(idle)

    def _without_own_times(self) -> tuple[Resolution, ...]:
        """What the spec gives without single packages' times, which then move what they have to and nothing else."""
        try:
            return self._attempts.first([Attempt(Cutoffs(self._state.as_of, {}))]).resolutions
        except NoSolution:
            # It requires one of these releases.
            return ()

    def _with_old_versions(self, cutoffs: Cutoffs, given: Sequence[Resolution], old: Sequence[Resolution]) -> Solution:
        """The solution with the versions of the lock before wherever the spec allows them.

        Those are no preferences if the spec and the lock's date give them anyhow: then the lock is, in every byte, the
        one that is made without an older one.

        given: what is preferred in any case.
        old: of the lock before.
        """
        plain = Attempt(cutoffs, given)
        attempts = self._alike(plain, self._usual_lines(given))
        pinned = Attempt(cutoffs, pins_of(self._targets, old, given))
        if names_of(old):
            # A locked version may be yanked by now, or be built already.
            attempts += self._alike(pinned, self._coupled_lines(pinned.pins))
        alone = self._attempts.first(attempts)
        if alone.attempt.pins is pinned.pins or not differing(alone.resolutions, old):
            return alone
        try:
            found = self._beside(alone, cutoffs, given, old)
        except NoSolution:
            return alone
        moved = [part.moved for part in found.resolutions]
        if not differing(found.resolutions, alone.resolutions):
            found = alone
        elif differing(found.resolutions, old) or names_of(found.resolutions) - names_of(old):
            # As every later run has it: reasons depend on what the lock before has.
            found = self._beside(alone, cutoffs, given, found.resolutions)
        parts = [replace(part, moved=texts) for part, texts in zip(found.resolutions, moved, strict=True)]
        return replace(found, resolutions=tuple(parts))

    def _beside(
        self, alone: Solution, cutoffs: Cutoffs, given: Sequence[Resolution], old: Sequence[Resolution]
    ) -> Solution:
        """With the versions of the lock before as preferences. alone: without them."""
        pins = pins_of(self._targets, old, given)
        coupled = {*INDEX_FAMILY, *self._extensions}
        is_coupled = not coupled.isdisjoint(differing(alone.resolutions, old))
        lines = self._coupled_lines(pins) if is_coupled else self._usual_lines(given)
        free = without_packages(alone.resolutions, names_of(given))
        return self._attempts.first(self._alike(Attempt(cutoffs, pins, free), lines))

    def _alike(self, attempt: Attempt, tries: Sequence[Lines]) -> list[Attempt]:
        """The attempt with each of these lines, then without any.

        Builds of the torch family have the same version under different labels, and from different indexes: no
        resolver prefers one for the sake of the other.
        """
        attempts: list[Attempt] = []
        for at, lines in enumerate(tries):
            if lines not in tries[:at] and any(lines.values()):
                attempts.append(replace(attempt, lines=lines))
        return [*attempts, attempt]

    @property
    def _extensions(self) -> set[str]:
        """Packages whose wheels have the build of torch in their labels."""
        return {row.package for row in self._state.facts.extensions}

    def _coupled_lines(self, pins: Sequence[Resolution]) -> list[Lines]:
        """Pins of what other builds exist of to try, the best ones first."""
        extensions = self._extensions
        tries = ({*INDEX_FAMILY, *extensions}, INDEX_FAMILY, ("torch",), extensions)
        return [_lines_of(pins, names) for names in tries]

    def _usual_lines(self, given: Sequence[Resolution]) -> list[Lines]:
        """Pins of the torch family to try: those of a variant's base, else those that the spec prefers."""
        if self._state.base is not None:
            return [_lines_of(given, INDEX_FAMILY)]
        return self._preferred_lines(given)

    def _preferred_lines(self, pins: Sequence[Resolution]) -> list[Lines]:
        """The best ones first, if torch is among them; not of what is pinned."""
        family = set(INDEX_FAMILY) - names_of(pins)
        lines: list[str] = []
        torch: list[str] = []
        for preference in self._state.spec.pip.prefer:
            if preference.name not in family:
                continue
            marker = f"; {preference.marker}" if preference.marker else ""
            for each in preference.specifier:
                line = f"{preference.name}=={Version(each.version).public}{marker}"
                lines.append(line)
                if preference.name == "torch":
                    torch.append(line)
        if not torch:
            return []
        platforms = [target.platform for target in self._targets]
        return [dict.fromkeys(platforms, lines), dict.fromkeys(platforms, torch)]

    def _upgrade(self, old: Lock, kept: Cutoffs) -> tuple[Lock, Cutoffs]:
        """The lock with the pins after `--upgrade-package`, and the cutoffs of those that moved.

        Everything may move up to now; what can stay stays.
        """
        state, names = self._state, self._upgraded
        required = pypi_names_of(state.spec)
        # What was added to the spec is no part of the upgrade.
        still = dict.fromkeys(required - names_of(old.resolutions) - set(names), kept.as_of)
        aged = rename(state.aged_times(), normalised)
        limits = dict(still)
        if not set(names).isdisjoint(INDEX_FAMILY):
            # torch's build is chosen again only for its family.
            limits["torch"] = state.newest
        cutoffs = Cutoffs(kept.as_of, {**limits, **aged}, others=state.newest)
        new = self._moved(Attempt(cutoffs, old.resolutions, movable=names)).resolutions
        moved = dict.fromkeys(moved_pypi(old.resolutions, new), state.newest)
        times = keep_names({**kept.names, **moved, **aged, **still}, names_of(new))
        later = {name: at for name, at in times.items() if at != kept.as_of}
        return replace(old, resolutions=new), replace(kept, names=later)

    def _moved(self, attempt: Attempt) -> Solution:
        """With newer releases of all names that may move, else of as many of them as fit together.

        They are required to be newer: an engine keeps a package because of another one's pin, even if it could move
        both.
        """
        with suppress(Unsolvable):
            return self._attempts.first([replace(attempt, newer=attempt.movable)])
        newer: list[str] = []
        found: Solution | None = None
        for name in attempt.movable:
            if len(newer) + 1 == len(attempt.movable):
                break
            with suppress(Unsolvable):
                found = self._attempts.first([replace(attempt, newer=[*newer, name])])
                newer.append(name)
        return found or self._attempts.first([attempt])


def _lines_of(pins: Sequence[Resolution], names: Collection[str]) -> Lines:
    """The releases of some packages on each platform, whatever their builds."""
    found: dict[Platform, list[str]] = {}
    for part in pins:
        lines: list[str] = []
        for each in part.packages:
            if each.name in names:
                lines.append(f"{each.name}=={Version(each.version).public}")
        found[part.target.platform] = lines
    return found
