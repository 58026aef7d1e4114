"""The conda stage: every platform's rows at the same time, over one gateway."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.context import Context, Reporter, Step
from envspec.errors import UsageError
from envspec.models import CondaChannel, CondaPackage, Platform
from envspec.resolve.conda.candidates import Chosen, machine_rows, newest_refused
from envspec.resolve.conda.channel_client import SharedFault
from envspec.resolve.conda.channels import Channels, is_in_time, locked_channel, opened
from envspec.resolve.conda.cuda_builds import Build, cuda_constraint, fallbacks, is_cpu_build, is_cuda_build
from envspec.resolve.conda.errors import (
    check_requirements,
    elsewhere_refusal,
    fallback_refusal,
    priority_refusal,
    refusal,
)
from envspec.resolve.conda.records import by_name, name_of, package_of, with_askers
from envspec.resolve.conda.solver import CondaEngine, CondaUnsolvable
from envspec.resolve.types import CondaRequest

if TYPE_CHECKING:
    from rattler import RepoDataRecord


@dataclass(frozen=True, slots=True)
class CondaAnswer:
    """One platform's rows, sorted by name; `provides` is not filled in yet. channels: in the request's order."""

    request: CondaRequest
    packages: tuple[CondaPackage, ...]
    channels: tuple[CondaChannel, ...]
    warnings: tuple[str, ...] = ()


async def solve_all(requests: Sequence[CondaRequest], engine: CondaEngine, context: Context) -> tuple[CondaAnswer, ...]:
    """Solve every request, in their order.

    Raises:
        UsageError: the engine can't run on this machine, a requirement is no match spec, or a folder of rows is none.
        NoSolution: nothing satisfies a request, or nothing with the CUDA builds that it has to have.
        NetworkError: a channel can't be read.
    """
    if why := engine.unable(context.environ):
        raise UsageError(
            f"{engine.version.partition(' ')[0]}: {why}", hint="the engine `rattler` needs nothing of the machine"
        )
    for request in requests:
        check_requirements(request)
    known = {channel: None for request in requests for channel in request.channels}
    cache = context.cache / "conda" / "rows"
    async with opened(known, cache, context.environ, offline=context.is_offline) as channels:
        # A folder's rows are mapped whole, 200 MB a platform of conda-forge's size, and nobody waits for a network: one
        # platform after another. linux-64 comes last, since the others are held against its rows.
        turn = asyncio.Semaphore(1 if any(channel.is_folder for channel in known) else len(requests))
        order = sorted(requests, key=lambda request: request.platform is Platform.LINUX_64)
        tasks = [asyncio.ensure_future(_solved(request, engine, channels, context.reporter, turn)) for request in order]
        try:
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        solved = _all(dict(zip((request.platform for request in order), ended, strict=True)), requests)
        for each in solved.values():
            await _refuse_cuda_elsewhere(each.request, each.chosen, channels)
    return tuple(_answer(request, solved[request.platform]) for request in requests)


def _all(
    ended: Mapping[Platform, _Solved | BaseException], requests: Iterable[CondaRequest]
) -> Mapping[Platform, _Solved]:
    """What was solved. Of several refusals the first platform's is raised: which one came first is chance."""
    faults = [fault for r in requests if isinstance(fault := ended[r.platform], BaseException)]
    if faults:
        # What others were told of a request that they shared says nothing.
        raise next((fault for fault in faults if not isinstance(fault, SharedFault)), faults[0])
    return {platform: each for platform, each in ended.items() if not isinstance(each, BaseException)}


async def _solved(
    request: CondaRequest, engine: CondaEngine, channels: Channels, reporter: Reporter, turn: asyncio.Semaphore
) -> _Solved:
    platform = request.platform
    async with turn:
        reporter.progress(Step("solving conda's packages", of=platform.value))
        solved = await _solve(request, engine, channels)
        reporter.progress(Step(f"{len(solved.chosen)} conda packages", of=platform.value))
        if platform is not Platform.LINUX_64:
            channels.forget(request)
    return solved


def _answer(request: CondaRequest, solved: _Solved) -> CondaAnswer:
    return CondaAnswer(request, solved.packages, tuple(map(locked_channel, request.channels)))


@dataclass(frozen=True, slots=True)
class _Solved:
    """request: with the constraints that were added. packages: told from all rows of the chosen names, not kept."""

    request: CondaRequest
    chosen: Sequence[RepoDataRecord]
    packages: tuple[CondaPackage, ...]


async def _solve(first: CondaRequest, engine: CondaEngine, channels: Channels) -> _Solved:
    """Rows without a build for the CPU of a package that has CUDA builds, where CUDA is meant."""
    request = first
    behind: list[Build] = []
    while True:
        try:
            with tempfile.TemporaryDirectory(prefix="envspec-") as work:
                chosen = await engine.solve(request, channels, Path(work))
            channels.refuse_missing(request)
        except CondaUnsolvable as error:
            channels.refuse_missing(request)
            refused = fallback_refusal(behind, error, first, channels) if behind else refusal(error, first, channels)
            raise await refused from error
        rows = await channels.rows(request, [row.name.normalized for row in chosen])
        # Each round asks for CUDA builds of names that the one before had as others, so there are no more than names.
        behind = _fallbacks(request, chosen, rows)
        if (outsider := _outsider(chosen, rows)) is not None:
            raise priority_refusal(outsider, request, rows)
        if not behind:
            return _Solved(request, chosen, _packages(request, chosen, rows))
        request = replace(request, constraints=(*request.constraints, *(cuda_constraint(b.name) for b in behind)))


def _outsider(chosen: Iterable[RepoDataRecord], rows: Iterable[RepoDataRecord]) -> RepoDataRecord | None:
    """A row of a channel that another one goes before for its name. rows: of the channels that have a say.

    rattler holds requirements against each channel's rows before it looks which channel goes first: for `numpy 2.3.*`,
    a channel that has older ones alone is to it a channel without numpy, and the name open to whoever comes next.
    """
    urls = {row.url for row in rows}
    return next((row for row in chosen if row.url not in urls), None)


def _packages(
    request: CondaRequest, chosen: Sequence[RepoDataRecord], rows: Iterable[RepoDataRecord]
) -> tuple[CondaPackage, ...]:
    """rows: all rows of the chosen names."""
    known = Chosen(request, {row.name.normalized: row for row in chosen} | machine_rows(request))
    grouped = by_name(rows)
    return tuple(
        replace(package, newest=newest_refused(known, package.name, grouped.get(package.name, ())))
        for package in with_askers([package_of(row, request.channels) for row in chosen], request.requirements)
    )


def _fallbacks(request: CondaRequest, chosen: Sequence[RepoDataRecord], rows: Iterable[RepoDataRecord]) -> list[Build]:
    """The chosen rows that should have been CUDA builds. One that the spec asks for by its build is meant."""
    from rattler import Version

    if request.cuda is None:
        return []
    meant = _meant(request, chosen)
    # A file's name ends with its build. It is one attribute, and of thousands of rows few are CUDA's.
    cuda = (row for row in rows if "cuda" in row.file_name and is_cuda_build(str(row.build)))
    timely = (row for row in cuda if is_in_time(row, request.cut_of(row.name.normalized), undated=request.undated))
    return [b for b in fallbacks(map(_build, chosen), map(_build, timely), Version) if b.name not in meant]


def _meant(request: CondaRequest, chosen: Iterable[RepoDataRecord]) -> set[str]:
    """The names of which the spec names a build, and what these need in turn."""
    from rattler import MatchSpec

    rows = {row.name.normalized: row for row in chosen}
    left = [name_of(text) for text in request.requirements if MatchSpec(text).build is not None]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name in rows and name not in found:
            found.add(name)
            left += map(name_of, rows[name].depends)
    return found


async def _refuse_cuda_elsewhere(request: CondaRequest, chosen: Sequence[RepoDataRecord], channels: Channels) -> None:
    """Refuse a package whose CUDA builds are for linux-64 only: here it would come for the CPU, without a word.

    Only what is marked as a build for the CPU, or asked for by the spec, is looked up there.
    """
    if request.cuda is None or request.platform is Platform.LINUX_64:
        return
    asked = set(map(name_of, request.requirements))
    suspects = {row.name.normalized for row in chosen if _may_lack_cuda(row, asked)} - _meant(request, chosen)
    rows = await channels.rows(request, suspects, Platform.LINUX_64)
    behind = _fallbacks(request, [row for row in chosen if row.name.normalized in suspects], rows)
    if behind:
        raise elsewhere_refusal(behind, request, rows)


def _may_lack_cuda(row: RepoDataRecord, asked: Collection[str]) -> bool:
    build = str(row.build)
    is_anywhere = row.subdir == "noarch" or is_cuda_build(build)
    return not is_anywhere and (row.name.normalized in asked or is_cpu_build(build))


def _build(row: RepoDataRecord) -> Build:
    return Build(row.name.normalized, str(row.version), str(row.build))
