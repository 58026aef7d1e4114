"""The conda stage: every platform's rows at the same time, over one gateway."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envspec.errors import UsageError
from envspec.model import CondaChannel, CondaPackage
from envspec.resolve.conda.channels import Channels, locked_channel, opened
from envspec.resolve.conda.cuda_builds import Build, cuda_constraint, fallbacks
from envspec.resolve.conda.engine import CondaEngine, CondaUnsolvable
from envspec.resolve.conda.newest import Chosen, constraint_words, machine_rows, newest_refused
from envspec.resolve.conda.question import CondaRequest
from envspec.resolve.conda.refusals import refusal
from envspec.resolve.conda.rows import by_name, package_of, with_askers

if TYPE_CHECKING:
    from rattler import RepoDataRecord

#: Told what goes on, one short line each: (platform, what).
Report = Callable[[str, str], None]

# Each round requires the CUDA builds of packages that the round before brought in; conda-forge needs two.
_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class CondaWorld:
    """The effects of this stage. cache: envspec's folder of caches. environ: HTTP's settings are read from it."""

    cache: Path
    environ: Mapping[str, str]
    report: Report
    offline: bool = False


@dataclass(frozen=True, slots=True)
class CondaAnswer:
    """One platform's rows, sorted by name; `provides` is not filled in yet. channels: in the request's order."""

    request: CondaRequest
    packages: tuple[CondaPackage, ...]
    channels: tuple[CondaChannel, ...]
    warnings: tuple[str, ...] = ()


async def solve_all(
    requests: Sequence[CondaRequest], engine: CondaEngine, world: CondaWorld
) -> tuple[CondaAnswer, ...]:
    """Solve every request, in their order.

    Raises:
        UsageError: the engine can't run on this machine, a requirement is no match spec, or a folder of rows is none.
        NoSolution: nothing satisfies a request, or nothing with the CUDA builds that it has to have.
        NetworkError: a channel can't be read.
    """
    if why := engine.unable(world.environ):
        raise UsageError(f"{engine.version.partition(' ')[0]}: {why}", hint="use --resolver uv+rattler")
    known = {channel: None for request in requests for channel in request.channels}
    async with opened(known, world.cache / "conda" / "rows", world.environ, offline=world.offline) as channels:
        tasks = [asyncio.ensure_future(_answer(request, engine, channels, world.report)) for request in requests]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(request: CondaRequest, engine: CondaEngine, channels: Channels, report: Report) -> CondaAnswer:
    platform = request.platform.value
    report(platform, "solving conda's packages")
    solved = await _solve(request, engine, channels)
    report(platform, f"{len(solved.chosen)} conda packages")
    return CondaAnswer(request, solved.packages(), tuple(map(locked_channel, request.channels)))


@dataclass(frozen=True, slots=True)
class _Solved:
    """request: with the constraints that were added. rows: all rows of the chosen names."""

    request: CondaRequest
    chosen: Sequence[RepoDataRecord]
    rows: Sequence[RepoDataRecord]

    def packages(self) -> tuple[CondaPackage, ...]:
        plain = [package_of(row, self.request.channels) for row in self.chosen]
        chosen = Chosen(
            self.request,
            {row.name.normalized: row for row in self.chosen} | machine_rows(self.request),
            constraint_words(self.request.constraints, self.request),
        )
        grouped = by_name(self.rows)
        return tuple(
            replace(package, newest=newest_refused(chosen, package.name, grouped.get(package.name, ())))
            for package in with_askers(plain, self.request.requirements)
        )


async def _solve(request: CondaRequest, engine: CondaEngine, channels: Channels) -> _Solved:
    """Rows without a build for the CPU among packages that have CUDA builds, where CUDA is meant."""
    for _ in range(_ROUNDS):
        try:
            with tempfile.TemporaryDirectory(prefix="envspec-") as work:
                chosen = await engine.solve(request, channels, Path(work))
        except CondaUnsolvable as error:
            raise await refusal(error, request, channels) from error
        rows = await channels.rows(request, [row.name.normalized for row in chosen])
        behind = _fallbacks(request, chosen, rows)
        if not behind:
            return _Solved(request, chosen, rows)
        request = replace(request, constraints=(*request.constraints, *(cuda_constraint(b.name) for b in behind)))
    raise AssertionError("every round adds a constraint on another name")


def _fallbacks(request: CondaRequest, chosen: Iterable[RepoDataRecord], rows: Iterable[RepoDataRecord]) -> list[Build]:
    from rattler import Version

    if request.cuda is None:
        return []
    return fallbacks(map(_build, chosen), map(_build, rows), Version)


def _build(row: RepoDataRecord) -> Build:
    return Build(row.name.normalized, str(row.version), str(row.build))
