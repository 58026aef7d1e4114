"""The conda stage: all platforms at the same time, over one gateway."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envspec.conformance.text import counted
from envspec.context import Context, Step
from envspec.errors import UsageError
from envspec.models import CondaChannel, CondaPackage, Platform
from envspec.resolve.conda.candidates import (
    ChosenRecords,
    machine_records,
    newest_first,
    preferred_candidate,
    rejected_candidate,
)
from envspec.resolve.conda.channel_client import SharedChannelError
from envspec.resolve.conda.channels import Channels, in_time, locked_channel, open_channels
from envspec.resolve.conda.errors import (
    channel_priority_error,
    cpu_build_error,
    no_solution_error,
    other_platform_error,
)
from envspec.resolve.conda.records import (
    by_name,
    cpu_fallbacks,
    cuda_builds,
    cuda_constraint,
    is_cpu_build,
    is_cuda_build,
    name_of,
    package_of,
    record_name,
    with_askers,
)
from envspec.resolve.conda.solver import CondaSolver, CondaUnsolvable
from envspec.resolve.types import Channel, CondaRequest
from envspec.structs import replace

if TYPE_CHECKING:
    from rattler import RepoDataRecord


class CondaSolution(Struct, frozen=True):
    """One platform's packages, sorted by name, without `provides`. channels: in the request's order."""

    request: CondaRequest
    packages: tuple[CondaPackage, ...]
    channels: tuple[CondaChannel, ...]


async def solve_all(
    requests: Sequence[CondaRequest], solver: CondaSolver, context: Context
) -> tuple[CondaSolution, ...]:
    """Solve every request, in their order.

    Raises:
        UsageError: the solver cannot run on this machine, a requirement is no match spec, or a folder has no repodata.
        NoSolution: nothing satisfies a request, or nothing with the required CUDA builds.
        NetworkError: a channel cannot be read.
    """
    if why := solver.unable(context.environ):
        raise UsageError(
            f"{solver.version.partition(' ')[0]}: {why}",
            hint="install one, or use --resolver rattler, which needs no other program",
        )
    every: dict[Channel, None] = {}
    for request in requests:
        every |= dict.fromkeys(request.channels)
    cache = context.cache / "conda" / "rows"
    async with open_channels(every, cache, context.environ, offline=context.is_offline) as channels:
        turn = asyncio.Semaphore(len(requests))
        if any(channel.is_folder for channel in every):
            # A folder's records are mapped whole, 200 MB a platform of conda-forge's size, without waiting for a
            # network: one platform after another. linux-64 comes last: the others are compared with its records.
            turn = asyncio.Semaphore(1)

        async def solve(request: CondaRequest) -> _Solved:
            platform = request.platform
            async with turn:
                context.reporter.progress(Step("solving conda's packages", of=platform.value))
                solved = await _solve(request, solver, channels)
                context.reporter.progress(Step(counted(len(solved[-1]), "conda package"), of=platform.value))
                if platform is not Platform.LINUX_64:
                    channels.release(request)
            return solved

        order = sorted(requests, key=lambda request: request.platform is Platform.LINUX_64)
        tasks = {request.platform: asyncio.ensure_future(solve(request)) for request in order}
        try:
            await asyncio.wait(tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        # Of several errors the first platform's is raised, independent of timing. A shared one has no cause of its own.
        in_order = [tasks[request.platform] for request in requests]
        errors = list(filter(None, [task.exception() for task in in_order]))
        if errors:
            raise min(errors, key=lambda error: isinstance(error, SharedChannelError))
        solved = await asyncio.gather(*in_order)
        for request, chosen, _ in solved:
            await _refuse_cuda_elsewhere(request, chosen, channels)
    solutions: list[CondaSolution] = []
    for request, (_, _, packages) in zip(requests, solved, strict=True):
        solutions.append(CondaSolution(request, packages, tuple(map(locked_channel, request.channels))))
    return tuple(solutions)


#: The request with the constraints that were added, the records, and their packages.
_Solved = tuple[CondaRequest, Sequence["RepoDataRecord"], tuple[CondaPackage, ...]]


async def _solve(first: CondaRequest, solver: CondaSolver, channels: Channels) -> _Solved:
    """Solve without builds for the CPU of packages that have CUDA builds, if CUDA is meant."""
    request = await _lock_preferred(first, channels)
    fallbacks: list[RepoDataRecord] = []
    while True:
        try:
            with tempfile.TemporaryDirectory(prefix="envspec-") as work:
                chosen = await solver.solve(request, channels, Path(work))
            channels.refuse_missing(request)
        except CondaUnsolvable as error:
            channels.refuse_missing(request)
            if fallbacks:
                raise await cpu_build_error(fallbacks, error, first, channels) from error
            raise await no_solution_error(error, first, channels) from error
        records = await channels.records(request, map(record_name, chosen))
        # Each round requires CUDA builds of names that had others in the round before: no more rounds than names.
        fallbacks = _fallbacks(request, chosen, records)
        # rattler matches requirements with each channel's records before it applies the priority: for `numpy 2.3.*`, a
        # channel with older ones alone is to it a channel without numpy, and the next channel provides the name.
        urls = {record.url for record in records}
        for record in chosen:
            if record.url not in urls:
                raise channel_priority_error(record, request, records)
        if not fallbacks:
            return request, chosen, _packages(request, chosen, records)
        added = [cuda_constraint(record_name(record)) for record in fallbacks]
        request = replace(request, constraints=(*request.constraints, *added))


async def _lock_preferred(request: CondaRequest, channels: Channels) -> CondaRequest:
    """The request that locks the records which the spec prefers, where no older lock decides."""
    names = {name for name, _, _ in request.preferred} - {package.name for package in request.locked}
    if not names:
        return request
    records = by_name(await channels.records(request, names))
    locked = list(request.locked)
    for preferred in request.preferred:
        if preferred[0] in names and (record := _preferred_record(request, preferred, records)):
            locked.append(package_of(record, request.channels))
    return replace(request, locked=tuple(locked))


def _preferred_record(
    request: CondaRequest, preferred: tuple[str, str, str], records: Mapping[str, Sequence[RepoDataRecord]]
) -> RepoDataRecord | None:
    """The record that the spec prefers, or the newest build of its version; None if the channel has none in time."""
    name, version, build = preferred
    timely = in_time(newest_first(records.get(name, ())), request)
    same = [record for record in timely if str(record.version) == version]
    for record in same:
        if str(record.build) == build:
            return record
    return same[0] if same else None


def _packages(
    request: CondaRequest, chosen: Sequence[RepoDataRecord], records: Iterable[RepoDataRecord]
) -> tuple[CondaPackage, ...]:
    """records: all records of the chosen names."""
    by_chosen = ChosenRecords(request, {record_name(each): each for each in chosen} | machine_records(request))
    grouped = by_name(records)
    preferred = {name: (version, build) for name, version, build in request.preferred}

    def explained(package: CondaPackage) -> CondaPackage:
        of_name = grouped.get(package.name, ())
        moved = preferred_candidate(by_chosen, package, preferred.get(package.name), of_name)
        return replace(package, rejected=rejected_candidate(by_chosen, package.name, of_name), preferred=moved)

    packages = [package_of(each, request.channels) for each in chosen]
    return tuple(map(explained, with_askers(packages, request.requirements)))


def _fallbacks(
    request: CondaRequest, chosen: Sequence[RepoDataRecord], records: Iterable[RepoDataRecord]
) -> list[RepoDataRecord]:
    """The chosen records that should have been CUDA builds, unless the spec requires their build."""
    if request.cuda is None:
        return []
    meant = _names_meant(request, chosen)
    cuda = in_time(cuda_builds(records), request)
    return [record for record in cpu_fallbacks(chosen, cuda) if record_name(record) not in meant]


def _names_meant(request: CondaRequest, chosen: Iterable[RepoDataRecord]) -> set[str]:
    """The names of which the spec requires a build, and their dependencies."""
    from rattler import MatchSpec

    records = {record_name(record): record for record in chosen}
    left = [name_of(text) for text in request.requirements if MatchSpec(text).build is not None]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name in records and name not in found:
            found.add(name)
            left += map(name_of, records[name].depends)
    return found


async def _refuse_cuda_elsewhere(request: CondaRequest, chosen: Sequence[RepoDataRecord], channels: Channels) -> None:
    """Refuse a package whose CUDA builds are for linux-64 only: on this platform it would silently be for the CPU.

    Checked are builds that are marked for the CPU, and those that the spec requires.
    """
    if request.cuda is None or request.platform is Platform.LINUX_64:
        return
    required, meant = set(map(name_of, request.requirements)), _names_meant(request, chosen)
    suspects: dict[str, RepoDataRecord] = {}
    for record in chosen:
        name = record_name(record)
        if record.subdir == "noarch" or is_cuda_build(record) or name in meant:
            continue
        if name in required or is_cpu_build(record):
            suspects[name] = record
    records = await channels.records(request, suspects, Platform.LINUX_64)
    fallbacks = _fallbacks(request, list(suspects.values()), records)
    if fallbacks:
        raise other_platform_error(fallbacks, request, records)
