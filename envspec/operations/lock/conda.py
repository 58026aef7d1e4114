"""The conda stage: the packages of every platform, below PyPI's; with `--upgrade-package`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from envspec.errors import NetworkError, NoSolution
from envspec.facts.tables import conda_names
from envspec.io.tasks import run_interruptible
from envspec.models import CondaPackage, Lock, Platform
from envspec.names import normalised
from envspec.operations.lock.complete import conda_decisions
from envspec.operations.lock_state import CondaResult, LockState, keep_names, rename
from envspec.resolve import solver
from envspec.resolve.conda.channels import ChannelTimestamps
from envspec.resolve.conda.pypi_names import PypiNames, UnmappedName, archive_reader, provided_by, with_provided
from envspec.resolve.conda.request import channels_of, conda_request
from envspec.resolve.conda.solve import CondaSolution, solve_all
from envspec.resolve.types import Channel, CondaRequest, Cutoffs
from envspec.resolve.upgrade import conda_packages, has_name, moved_conda, newer_specs, without_names
from envspec.structs import replace

_Rows = Mapping[Platform, tuple[CondaPackage, ...]]
_NONE: Final[Mapping[Platform, tuple[str, ...]]] = {}


def resolve_conda(state: LockState, upgraded: Sequence[str]) -> CondaResult:
    """Every platform's conda packages, with the Python packages that they install.

    upgraded: the names of conda packages that `--upgrade-package` may move.

    Raises:
        NoSolution: no set of packages satisfies the spec, or only one for the CPU.
        UnmappedName: the PyPI name of a Python package is unknown, and [pip] requires packages too.
        NetworkError: a channel can't be read.
        UsageError: the engine can't run on this machine, or a channel's variable is not set.
    """
    spec = state.spec
    channels = channels_of(spec, state.context.environ, state.request.channel_repodata)
    cutoffs, answers = _Solver(state, channels, upgraded).solve()
    packages = run_interruptible(_with_provides(state, channels, answers))
    return CondaResult(
        packages=packages,
        channels=answers[0].channels,
        decisions=tuple(conda_decisions(spec, state.facts)),
        cutoffs=cutoffs,
        provided={platform: provided_by(rows) for platform, rows in packages.items()},
    )


class _Solver:
    """The requests of every platform, for any cutoffs."""

    def __init__(self, state: LockState, channels: tuple[Channel, ...], upgraded: Sequence[str]) -> None:
        self._state = state
        self._channels = channels
        self._upgraded = tuple(upgraded)
        self._aged = rename(state.aged_times(), str.lower)

    def solve(self) -> tuple[dict[str, datetime], tuple[CondaSolution, ...]]:
        """What the cutoffs allow; with `--upgrade-package`, only what its names must move."""
        state = self._state
        old = state.old if state.follows_old else None
        before = dict(old.conda_as_of) if old else {}
        own = rename(state.own_times(), str.lower)
        cutoffs = {**before, **own}
        # The cutoff alone doesn't keep them: channels add records that were built before it, and patch others.
        kept: _Rows = conda_packages(old) if old else self._without_times(own)
        if old and not self._upgraded:
            # The spec lets these move.
            moving = [normalised(name) for name, at in own.items() if before.get(name) != at]
            kept = _without(kept, moving)
        if state.base is not None:
            cutoffs |= dict(state.base.conda_as_of)
        answers: tuple[CondaSolution, ...] = ()
        if old and self._upgraded:
            answers = self._upgrade(old)
            kept = _packages_of(answers)
            cutoffs |= dict.fromkeys(moved_conda(conda_packages(old), kept), state.newest) | self._aged
        if not (answers and state.finds_times):
            answers = self._ask_beside(state.base, Cutoffs(state.as_of, cutoffs), kept)
        # The cutoff of a removed package must not apply when it is added again.
        locked: set[str] = set()
        for answer in answers:
            for package in answer.packages:
                locked.add(package.name)
        return keep_names(cutoffs, locked), answers

    def _ask_beside(self, base: Lock | None, cutoffs: Cutoffs, kept: _Rows) -> tuple[CondaSolution, ...]:
        """For a variant: with the versions of the base, and with its builds too, if possible."""
        if base is None:
            return self._ask(cutoffs, kept)
        existing = conda_packages(base)
        anywhere = next(iter(existing.values()), ())
        rows: dict[Platform, tuple[CondaPackage, ...]] = {}
        bounds: dict[Platform, tuple[str, ...]] = {}
        for platform in self._state.spec.env.platforms:
            own = existing.get(platform, ())
            names = {normalised(row.name) for row in own}
            rows[platform] = (*own, *without_names(kept.get(platform, ()), names))
            bounds[platform] = tuple(f"{row.name} =={row.version}" for row in own or anywhere)
        with suppress(NoSolution):
            return self._ask(cutoffs, rows, bounds)
        return self._ask(cutoffs, rows)

    def _without_times(self, own: Mapping[str, datetime]) -> _Rows:
        """What the spec gives without single packages' times, which then move what they have to and nothing else."""
        if not own:
            return {}
        try:
            answers = self._ask(Cutoffs(self._state.as_of, {}), {})
        except NoSolution:
            # It requires one of these builds.
            return {}
        return _without(_packages_of(answers), list(map(normalised, own)))

    def _upgrade(self, old: Lock) -> tuple[CondaSolution, ...]:
        """The packages after `--upgrade-package`: all may move up to now; what can stay stays."""
        state, names = self._state, self._upgraded
        before = conda_packages(old)
        cutoffs = Cutoffs(state.as_of, self._aged, state.newest)
        kept = _without(before, names)
        answers = self._ask(cutoffs, kept)
        behind = [name for name in names if not self._has_moved(name, before, answers)]
        bounds: dict[Platform, tuple[str, ...]] = {}
        # The solver keeps a package for the sake of another that stays, even if it could move both.
        for name in behind:
            more = dict(bounds)
            for platform, rows in before.items():
                more[platform] = (*bounds.get(platform, ()), *newer_specs(rows, name))
            with suppress(NoSolution):
                answers = self._ask(cutoffs, kept, more)
                bounds = more
        return answers

    def _has_moved(self, name: str, before: _Rows, answers: Sequence[CondaSolution]) -> bool:
        moved = moved_conda(before, _packages_of(answers))
        for rows in before.values():
            for row in rows:
                if row.name in moved and has_name(row, (name,)):
                    return True
        return False

    def _ask(
        self, cutoffs: Cutoffs, kept: _Rows, bounds: Mapping[Platform, tuple[str, ...]] = _NONE
    ) -> tuple[CondaSolution, ...]:
        state = self._state
        spec, facts = state.spec, state.facts
        requests: list[CondaRequest] = []
        for platform in spec.env.platforms:
            plain = conda_request(spec, platform, facts, cutoffs, kept.get(platform, ()), self._channels)
            requests.append(replace(plain, constraints=(*plain.constraints, *bounds.get(platform, ()))))
        seen = ChannelTimestamps(state.store, self._channels, spec.env.platforms)
        if state.context.is_offline:
            seen.check(cutoffs.others or cutoffs.as_of)
        try:
            answers = run_interruptible(solve_all(requests, solver(state.request.conda_resolver), state.context))
            if not state.context.is_offline:
                seen.save(state.started)
            return answers
        except NetworkError as error:
            if part := _part_hint(state.old, self._channels):
                error.hint = f"{error.hint}; {part}" if error.hint else part
            raise


def _packages_of(answers: Iterable[CondaSolution]) -> _Rows:
    return {answer.request.platform: answer.packages for answer in answers}


def _without(packages: _Rows, names: Collection[str]) -> _Rows:
    """The packages of each platform that have none of these normalised names."""
    return {platform: without_names(rows, names) for platform, rows in packages.items()}


def _part_hint(old: Lock | None, channels: Sequence[Channel]) -> str:
    """For a lock that was made from a part of a channel: the option that names this part again; else empty."""
    asked = {channel.url for channel in channels if channel.repodata is None}
    for channel in old.channels if old else ():
        if channel.part and channel.url in asked:
            name = channel.name
            return f"the lock was made from a part of {name}: --channel-repodata {name}=DIR uses such a part again"
    return ""


async def _with_provides(
    state: LockState, channels: tuple[Channel, ...], answers: Sequence[CondaSolution]
) -> dict[Platform, tuple[CondaPackage, ...]]:
    """The packages, with the Python packages that they install; some may stay unknown if [pip] requires nothing.

    Then no archive is read either: a lock must not contain more because archives could be fetched.
    """
    spec, context = state.spec, state.context
    names = PypiNames(spec.conda.names if spec.conda else {}, conda_names(), state.store)
    reader = None
    if spec.pip.dependencies:
        reader = archive_reader(channels, context.environ, offline=context.is_offline)
    found = await asyncio.gather(*(with_provided(answer.packages, names, reader) for answer in answers))
    packages: dict[Platform, tuple[CondaPackage, ...]] = {}
    unmapped: dict[tuple[str, str], CondaPackage] = {}
    for answer, (known, unknown) in zip(answers, found, strict=True):
        packages[answer.request.platform] = known
        # Every platform has its own record of one package.
        unmapped |= {(package.name, package.version): package for package in unknown}
    if unmapped and spec.pip.dependencies:
        raise UnmappedName(list(unmapped.values()), names)
    return packages
