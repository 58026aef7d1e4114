"""The conda stage: the packages of every platform, below PyPI's; with `--upgrade-package`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from envspec.errors import NetworkError, NoSolution
from envspec.facts.tables import conda_names
from envspec.io.tasks import run_interruptible
from envspec.models import CondaPackage, Lock, Platform
from envspec.names import normalised
from envspec.operations.lock_state import CondaResult, LockState
from envspec.resolve import solver
from envspec.resolve.conda.channels import ChannelTimestamps
from envspec.resolve.conda.pypi_names import PypiNames, UnmappedName, archive_reader, provided_by, with_provided
from envspec.resolve.conda.request import channels_of, conda_request, decisions_of
from envspec.resolve.conda.solve import CondaSolution, solve_all
from envspec.resolve.types import Channel, Cutoffs
from envspec.resolve.upgrade import conda_packages, has_name, moved_conda, newer_specs, without_names

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
        decisions=tuple(d for platform in packages for d in decisions_of(spec, state.facts, platform)),
        cutoffs=cutoffs,
        provided={platform: provided_by(rows) for platform, rows in packages.items()},
    )


class _Solver:
    """The requests of every platform, for any cutoffs."""

    def __init__(self, state: LockState, channels: tuple[Channel, ...], upgraded: Sequence[str]) -> None:
        self._state = state
        self._channels = channels
        self._upgraded = tuple(upgraded)
        self._aged = {name.lower(): at for name, at in state.aged_times().items()}

    def solve(self) -> tuple[dict[str, datetime], tuple[CondaSolution, ...]]:
        """What the cutoffs allow; with `--upgrade-package`, only what its names must move."""
        state = self._state
        old = state.old if state.follows_old else None
        own = {name.lower(): at for name, at in state.own_times().items()}
        before = dict(old.conda_as_of) if old else {}
        cutoffs = {**before, **own}
        # The cutoff alone doesn't keep them: channels add records that were built before it, and patch others.
        kept: _Rows = conda_packages(old) if old else self._without(own)
        if old and not self._upgraded:
            # The spec lets these move.
            moving = {normalised(name) for name, at in own.items() if before.get(name) != at}
            kept = {platform: without_names(rows, moving) for platform, rows in kept.items()}
        if state.base is not None:
            cutoffs |= dict(state.base.conda_as_of)
        if old and self._upgraded:
            answers = self._upgrade(old)
            kept = {answer.request.platform: answer.packages for answer in answers}
            cutoffs |= dict.fromkeys(moved_conda(conda_packages(old), kept), state.newest) | self._aged
        if not state.finds_times:
            answers = self._ask_beside(state.base, Cutoffs(state.as_of, cutoffs), kept)
        # The cutoff of a removed package must not apply when it is added again.
        locked = {package.name for answer in answers for package in answer.packages}
        return {name: at for name, at in cutoffs.items() if name in locked}, answers

    def _ask_beside(self, base: Lock | None, cutoffs: Cutoffs, kept: _Rows) -> tuple[CondaSolution, ...]:
        """For a variant: with the versions of the base, and with its builds too, if possible."""
        if base is None:
            return self._ask(cutoffs, kept)
        existing = conda_packages(base)
        anywhere = next(iter(existing.values()), ())
        rows: dict[Platform, tuple[CondaPackage, ...]] = {}
        bounds: dict[Platform, tuple[str, ...]] = {}
        for platform in self._state.spec.env.platforms:
            own, names = existing.get(platform, ()), {normalised(row.name) for row in existing.get(platform, ())}
            rows[platform] = (*own, *without_names(kept.get(platform, ()), names))
            bounds[platform] = tuple(f"{row.name} =={row.version}" for row in own or anywhere)
        with suppress(NoSolution):
            return self._ask(cutoffs, rows, bounds)
        return self._ask(cutoffs, rows)

    def _without(self, own: Mapping[str, datetime]) -> _Rows:
        """What the spec gives without single packages' times, which then move what they have to and nothing else."""
        if not own:
            return {}
        try:
            answers = self._ask(Cutoffs(self._state.as_of, {}), {})
        except NoSolution:
            # It requires one of these builds.
            return {}
        return {
            answer.request.platform: without_names(answer.packages, set(map(normalised, own))) for answer in answers
        }

    def _upgrade(self, old: Lock) -> tuple[CondaSolution, ...]:
        """The packages after `--upgrade-package`: all may move up to now; what can stay stays."""
        state, names = self._state, self._upgraded
        before = conda_packages(old)
        cutoffs = Cutoffs(state.as_of, self._aged, state.newest)
        kept = {platform: without_names(rows, names) for platform, rows in before.items()}
        answers = self._ask(cutoffs, kept)
        behind = [name for name in names if not self._has_moved(name, before, answers)]
        bounds: dict[Platform, tuple[str, ...]] = {}
        # The solver keeps a package for the sake of another that stays, even if it could move both.
        for name in behind:
            more = {
                platform: (*bounds.get(platform, ()), *newer_specs(rows, name)) for platform, rows in before.items()
            }
            with suppress(NoSolution):
                answers = self._ask(cutoffs, kept, more)
                bounds = more
        return answers

    def _has_moved(self, name: str, before: _Rows, answers: Sequence[CondaSolution]) -> bool:
        now = {answer.request.platform: answer.packages for answer in answers}
        moved = moved_conda(before, now)
        return any(p.name in moved for rows in before.values() for p in rows if has_name(p, (name,)))

    def _ask(
        self, cutoffs: Cutoffs, kept: _Rows, bounds: Mapping[Platform, tuple[str, ...]] = _NONE
    ) -> tuple[CondaSolution, ...]:
        state = self._state
        spec, facts = state.spec, state.facts
        plain = [
            conda_request(spec, platform, facts, cutoffs, kept.get(platform, ()), self._channels)
            for platform in spec.env.platforms
        ]
        requests = [
            replace(request, constraints=(*request.constraints, *bounds.get(request.platform, ()))) for request in plain
        ]
        seen = ChannelTimestamps(state.store, self._channels, spec.env.platforms)
        if state.context.is_offline:
            seen.check(cutoffs.others or cutoffs.as_of)
        try:
            answers = run_interruptible(solve_all(requests, solver(state.request.conda_resolver), state.context))
            if not state.context.is_offline:
                seen.save(state.started)
            return answers
        except NetworkError as error:
            error.hint = _and_the_part(error.hint, state.old, self._channels)
            raise


def _and_the_part(hint: str | None, old: Lock | None, channels: Sequence[Channel]) -> str | None:
    """The hint, for a lock that was made from a part of a channel, with the option that names this part again."""
    asked = {channel.url for channel in channels if channel.repodata is None}
    names = [channel.name for channel in old.channels if channel.part and channel.url in asked] if old else []
    if not names:
        return hint
    again = f"the lock was made from a part of {names[0]}: --channel-repodata {names[0]}=DIR uses such a part again"
    return f"{hint}; {again}" if hint else again


async def _with_provides(
    state: LockState, channels: tuple[Channel, ...], answers: Sequence[CondaSolution]
) -> dict[Platform, tuple[CondaPackage, ...]]:
    """The packages, with the Python packages that they install; some may stay unknown if [pip] requires nothing.

    Then no archive is read either: a lock must not contain more because archives could be fetched.
    """
    spec, environ = state.spec, state.context.environ
    names = PypiNames(spec.conda.names if spec.conda else {}, conda_names(), state.store)
    reader = archive_reader(channels, environ, offline=state.context.is_offline) if spec.pip.dependencies else None
    found = await asyncio.gather(*(with_provided(answer.packages, names, reader) for answer in answers))
    # Every platform has its own record of one package.
    unmapped = {(package.name, package.version): package for _, unknown in found for package in unknown}
    if unmapped and spec.pip.dependencies:
        raise UnmappedName(list(unmapped.values()), names)
    return {a.request.platform: packages for a, (packages, _) in zip(answers, found, strict=True)}
