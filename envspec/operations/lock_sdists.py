"""Releases that are sdists alone, built while the spec is locked: what their wheels require counts, and their hashes
are locked.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from io import BytesIO
from pathlib import Path

from packaging.version import Version

from envspec.build.reproducible import metadata_of, record_digest, sha256_of
from envspec.build.types import BuildRequest, CachedWheel, Compilers, NeedsCompiler, WheelBuildFailed, WheelRequest
from envspec.build.wheel import sdist_request
from envspec.context import Step
from envspec.errors import NoSolution
from envspec.fetch.sources import copy_to_cache, find_built
from envspec.fetch.types import archive_path
from envspec.io.http import open_http
from envspec.io.tasks import gather_or_cancel
from envspec.models import Package, Resolution, Target
from envspec.operations.build_wheels import WheelBuilder
from envspec.operations.lock_state import LockState, is_open
from envspec.operations.session import Session
from envspec.resolve.pypi.errors import NeedsSdist, UnbuiltSdist
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import PackageIndex
from envspec.resolve.pypi.index.view import Pages, View
from envspec.resolve.pypi.metadata import declared, extras_of, parsed, requires_python
from envspec.resolve.pypi.request import indexes_of
from envspec.resolve.pypi.resolve import TargetRequest
from envspec.resolve.types import Release, required_by


@dataclass(slots=True)
class _Known:
    """What is known of one target's releases.

    wheels: packages as locked. metadata: of wheels that state something else than their sdists. excluded: why a release
    cannot be built. compiled: what is left to a compiler.
    """

    wheels: dict[Release, Package] = field(default_factory=dict)
    metadata: dict[Release, bytes] = field(default_factory=dict)
    excluded: dict[Release, str] = field(default_factory=dict)
    compiled: set[Release] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Sdist:
    """A package of a resolution that is not built."""

    package: Package
    target: Target
    index: PackageIndex
    file: ListedFile

    @property
    def release(self) -> Release:
        return self.package.name, Version(self.package.version)


class SdistBuilds:
    """The sdists of one lock, by target."""

    def __init__(self, state: LockState) -> None:
        self._state = state
        self._before = state.built_before()
        self._known: dict[Target, _Known] = defaultdict(_Known)

    def knowing(self, request: TargetRequest) -> TargetRequest:
        """The request, with what the builds have shown."""
        known = self._known[request.request.target]
        return request.knowing(known.metadata, known.excluded)

    def recorded(self, resolution: Resolution) -> Resolution:
        """The resolution, with the wheels."""
        wheels = self._known[resolution.target].wheels

        def with_wheel(package: Package) -> Package:
            made = wheels.get((package.name, Version(package.version))) if is_open(package) else None
            return replace(package, built=made.built, record_sha256=made.record_sha256) if made else package

        return replace(resolution, packages=tuple(map(with_wheel, resolution.packages)))

    async def build(self, requests: Sequence[TargetRequest], resolutions: Sequence[Resolution]) -> bool:
        """Build what is not built yet; whether the resolutions are right.

        They are not if a wheel requires something else than its sdist states, or if a release cannot be built for its
        target: resolve again.

        Raises:
            NeedsSdist: sdists that may not be built, or not by a compiler; all of them. NoSolution: builds failed.
            UnfitMachine: nothing confines builds, or there is no Python for them. NetworkError: an sdist or
            what its build requires is not available.
        """
        pip, new = self._state.spec.pip, list(self._new(resolutions))
        refused = [_unbuilt(package, target) for package, target in new if not pip.may_build(package.name)]
        failed: list[WheelBuildFailed] = []
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(Session(self._state.context.without_progress()))
            client = IndexClient(self._state.store, self._state.context.now, environ=self._state.context.environ)
            stack.push_async_callback(client.close)
            if not self._state.context.is_offline:
                client.http = await stack.enter_async_context(open_http(self._state.context.environ))
            wanted = [each for each in new if pip.may_build(each[0].name)]
            sdists = await self._listed(wanted, requests, client)
            builder = WheelBuilder(self._state.spec.env.name, lambda _: None, session)
            cutoffs = {each.request.target: each.rules.cutoffs for each in requests}

            async def one(sdist: _Sdist) -> bool:
                """Whether the sdist is what the resolver took it for."""
                known = self._known[sdist.target]
                try:
                    return await self._build(sdist, cutoffs[sdist.target], client, builder)
                except NeedsCompiler as error:
                    if pip.may_compile(sdist.package.name):
                        known.compiled.add(sdist.release)
                    else:
                        refused.append(_unbuilt(sdist.package, sdist.target, error.reason))
                except WheelBuildFailed as error:
                    if reason := error.python_error:
                        why = f"cannot be built for Python {sdist.target.python.series} (its build reports: {reason})"
                        known.excluded[sdist.release] = why
                        return False
                    failed.append(error)
                return True

            are_right = all(await gather_or_cancel(map(one, sdists), self._state.context.jobs))
        failed.sort(key=lambda error: error.message)
        if refused:
            raise NeedsSdist(refused, new[0][1], pip.allow_sdist, "\n".join(error.message for error in failed))
        if failed:
            hint = "; ".join(dict.fromkeys(error.hint for error in failed if error.hint))
            raise NoSolution("\n".join(error.message for error in failed), hint=hint)
        return are_right

    def _new(self, resolutions: Sequence[Resolution]) -> Iterator[tuple[Package, Target]]:
        for resolution in resolutions:
            known = self._known[resolution.target]
            for package in filter(is_open, resolution.packages):
                release = package.name, Version(package.version)
                if release not in known.wheels and release not in known.compiled:
                    yield package, resolution.target

    async def _listed(
        self, wanted: Sequence[tuple[Package, Target]], requests: Sequence[TargetRequest], client: IndexClient
    ) -> list[_Sdist]:
        """The packages with their rows on the pages of their indexes."""
        rules = {each.view_key: each.rules for each in requests}
        pages = Pages(client, rules)
        views = {each.request.target: View(pages, each.view_key) for each in requests}

        async def listed(package: Package, target: Target) -> _Sdist:
            view = views[target]
            files = (await view.selection(package.name)).files
            return _Sdist(package, target, view.rules.index_of(package.name), files[package.file.filename])

        return await gather_or_cancel(listed(package, target) for package, target in wanted)

    async def _build(
        self, sdist: _Sdist, cutoffs: Mapping[str, datetime], client: IndexClient, builder: WheelBuilder
    ) -> bool:
        """Build one; whether its wheel requires what the sdist states."""
        package, known = sdist.package, self._known[sdist.target]
        state = self._state
        state.context.reporter.progress(Step(f"building {package.name}", of=sdist.target.platform.value))
        recorded = self._before.get((sdist.target, package.file.sha256))
        made = await self._recorded_wheel(recorded)
        if made is None:
            as_of = max(state.as_of, cutoffs.get(package.name, state.as_of))
            wanted = WheelRequest(
                package.name,
                package.version,
                sdist.target,
                as_of,
                indexes_of(state.spec),
                compilers=Compilers.NOWHERE,
            )
            made = await builder.build_wheel(self._request(wanted, sdist, client))
        metadata = await asyncio.to_thread(metadata_of, made.path, package.name)
        stated = (await client.metadata(sdist.index, sdist.file)).body
        # What is recorded stays, even if this machine's build gives other bytes.
        known.wheels[sdist.release] = recorded or replace(
            package, built=made.wheel, record_sha256=await asyncio.to_thread(record_digest, made.path)
        )
        is_same = _requirements(metadata) == _requirements(stated)
        if not is_same:
            known.metadata[sdist.release] = metadata
        return is_same

    async def _recorded_wheel(self, recorded: Package | None) -> CachedWheel | None:
        if recorded is None or recorded.built is None:
            return None
        paths = await find_built([recorded], self._state.context.without_progress())
        sha256 = recorded.built.sha256
        return CachedWheel(recorded.built, paths[sha256]) if sha256 in paths else None

    def _request(self, wanted: WheelRequest, sdist: _Sdist, client: IndexClient) -> BuildRequest:
        file = sdist.package.file
        path = archive_path(self._state.context.cache, wanted.of, file.sha256, file.filename)

        def is_cached() -> bool:
            if not path.is_file():
                return False
            with path.open("rb") as opened:
                return sha256_of(opened)[0] == file.sha256

        async def fetch() -> Path:
            if not await asyncio.to_thread(is_cached):
                content = BytesIO(await client.content(sdist.index, sdist.file))
                await asyncio.to_thread(copy_to_cache, content, path)
            return path

        return sdist_request(wanted, file.sha256, fetch)


def _unbuilt(package: Package, target: Target, error: str | None = None) -> UnbuiltSdist:
    needs = tuple(required_by(package.required_by))
    return UnbuiltSdist(package.name, package.version, target.platform.value, needs, error)


def _requirements(metadata: bytes) -> tuple[frozenset[str], frozenset[str], str | None]:
    """What a resolver reads of METADATA."""
    needs = frozenset(str(requirement) for text in declared(metadata) if (requirement := parsed(text)) is not None)
    return needs, frozenset(extras_of(metadata)), requires_python(metadata)
