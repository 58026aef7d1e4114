"""The conda half of a lock: every platform's rows, before PyPI's packages are put on top of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from envspec.errors import NetworkError, NoSolution
from envspec.facts.conda import conda_names
from envspec.io.tasks import run_interruptible
from envspec.models import CondaPackage, Lock, Platform
from envspec.operations.lock_state import CondaHalf, Upgrade, Work
from envspec.resolve.conda.channels import Seen
from envspec.resolve.conda.pypi_names import Names, UnmappedName, archive_reader, provided_by, with_provides
from envspec.resolve.conda.request import CondaMoments, channels_of, compose_conda, decisions_of
from envspec.resolve.conda.solve import CondaAnswer, CondaWorld, solve_all
from envspec.resolve.engines import conda_engine
from envspec.resolve.types import Channel
from envspec.resolve.upgrade import are_names_of, free_rows, moved_rows, newer_rows, rows_of

_Rows = Mapping[Platform, tuple[CondaPackage, ...]]
_NONE: Final[Mapping[Platform, tuple[str, ...]]] = {}


def conda_half(work: Work, upgraded: Sequence[str]) -> CondaHalf:
    """Every platform's conda packages, with the Python packages that they install.

    upgraded: those of the names that `--upgrade-package` may move which are this half's.

    Raises:
        NoSolution: no set of rows satisfies the spec, or one for the CPU alone.
        UnmappedName: a row installs Python packages of which nobody knows the name, and [pip] asks for packages too.
        NetworkError: a channel can't be read.
        UsageError: the engine can't run here, or a channel's variable is not set.
    """
    spec = work.spec
    channels = channels_of(spec, work.around.environ, work.request.channel_repodata)
    moments, answers = _Solver(work, channels, upgraded).solve()
    packages = run_interruptible(_with_provides(work, channels, answers))
    return CondaHalf(
        packages=packages,
        channels=answers[0].channels,
        decisions=tuple(d for platform in packages for d in decisions_of(spec, work.facts, platform)),
        moments=moments,
        provided={platform: provided_by(rows) for platform, rows in packages.items()},
        warnings=tuple(f"{a.request.platform.value}: {text}" for a in answers for text in a.warnings),
    )


class _Solver:
    """The requests of every platform, for any moments."""

    def __init__(self, work: Work, channels: tuple[Channel, ...], upgraded: Sequence[str]) -> None:
        self._work = work
        self._channels = channels
        self._upgraded = tuple(upgraded)

    def solve(self) -> tuple[dict[str, datetime], tuple[CondaAnswer, ...]]:
        """What the moments allow, or, for `--upgrade-package`, what its names must move and nothing else."""
        work = self._work
        keeps = work.request.upgrade is Upgrade.KEEP and work.spec.env.as_of is None
        old = work.old if keeps else None
        moments = dict(old.conda_as_of) if old else {}
        # The moment alone doesn't keep them: channels take rows that say they were built before it, and patch others.
        kept: _Rows = rows_of(old) if old else {}
        if old and self._upgraded:
            kept = self._upgrade(old)
            moments |= dict.fromkeys(moved_rows(rows_of(old), kept), work.started)
        answers = self._ask(CondaMoments(work.as_of, moments), kept)
        # The moment of what is gone would hold for it again when it comes back.
        locked = {package.name for answer in answers for package in answer.packages}
        return {name: at for name, at in moments.items() if name in locked}, answers

    def _upgrade(self, old: Lock) -> _Rows:
        """The rows that `--upgrade-package` leads to: all may move up to now, and nothing does that can be kept."""
        work, names = self._work, self._upgraded
        before = rows_of(old)
        moments = CondaMoments(work.as_of, {}, work.started)
        kept = {platform: free_rows(rows, names) for platform, rows in before.items()}
        answers = self._ask(moments, kept)
        behind = [name for name in names if not self._has_moved(name, before, answers)]
        bounds: dict[Platform, tuple[str, ...]] = {}
        # The solver holds a package back for one that it keeps, where it could have moved both.
        for name in behind:
            more = {platform: (*bounds.get(platform, ()), *newer_rows(rows, name)) for platform, rows in before.items()}
            with suppress(NoSolution):
                answers = self._ask(moments, kept, more)
                bounds = more
        return {answer.request.platform: answer.packages for answer in answers}

    def _has_moved(self, name: str, before: _Rows, answers: Sequence[CondaAnswer]) -> bool:
        now = {answer.request.platform: answer.packages for answer in answers}
        moved = moved_rows(before, now)
        return any(p.name in moved for rows in before.values() for p in rows if are_names_of(p, (name,)))

    def _ask(
        self, moments: CondaMoments, kept: _Rows, bounds: Mapping[Platform, tuple[str, ...]] = _NONE
    ) -> tuple[CondaAnswer, ...]:
        work, around = self._work, self._work.around
        spec, facts = work.spec, work.facts
        plain = [
            compose_conda(spec, platform, facts, moments, kept.get(platform, ()), self._channels)
            for platform in spec.env.platforms
        ]
        requests = [
            replace(request, constraints=(*request.constraints, *bounds.get(request.platform, ()))) for request in plain
        ]
        world = CondaWorld(around.cache, around.environ, around.report, work.offline)
        seen = Seen(work.store, self._channels, spec.env.platforms)
        if work.offline:
            seen.check(moments.others or moments.as_of)
        try:
            answers = run_interruptible(solve_all(requests, conda_engine(work.request.conda_resolver), world))
            if not work.offline:
                seen.remember(work.started)
            return answers
        except NetworkError as fault:
            fault.hint = _and_the_part(fault.hint, work.old, self._channels)
            raise


def _and_the_part(hint: str | None, old: Lock | None, channels: Sequence[Channel]) -> str | None:
    """For a channel that the lock was made from a part of: whoever did that may have forgotten to say it again."""
    asked = {channel.url for channel in channels if channel.rows is None}
    names = [channel.name for channel in old.channels if channel.part and channel.url in asked] if old else []
    if not names:
        return hint
    again = f"the lock was made from a part of {names[0]}: --channel-repodata {names[0]}=DIR takes such a part again"
    return f"{hint}; {again}" if hint else again


async def _with_provides(
    work: Work, channels: tuple[Channel, ...], answers: Sequence[CondaAnswer]
) -> dict[Platform, tuple[CondaPackage, ...]]:
    """Which Python packages the rows hold; where [pip] asks for nothing, nobody has to know of all of them.

    Then no archive is read either: a lock must not say more of its rows because archives could be had.
    """
    spec, environ = work.spec, work.around.environ
    names = Names(spec.conda.names if spec.conda else {}, conda_names(), work.store)
    reader = archive_reader(channels, environ, offline=work.offline) if spec.pip.dependencies else None
    found = await asyncio.gather(*(with_provides(answer.packages, names, reader) for answer in answers))
    # A platform has rows of its own, and the user one package.
    unmapped = {(package.name, package.version): package for _, unknown in found for package in unknown}
    if unmapped and spec.pip.dependencies:
        raise UnmappedName(list(unmapped.values()), names)
    return {a.request.platform: packages for a, (packages, _) in zip(answers, found, strict=True)}
