"""Releases that are sdists alone, built while the spec is locked: what their wheels require counts, and their hashes
are locked.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from packaging.version import Version

from envspec.build.reproducible import metadata_of, record_digest, sha256_of
from envspec.build.types import (
    REQUIRES_TORCH,
    BuildRequest,
    Compilers,
    IsPlaceholder,
    NeedsCompiler,
    WheelBuildFailed,
    index_hint,
    torch_hint,
)
from envspec.build.wheel import sdist_source
from envspec.context import Step
from envspec.fetch.sources import copy_to_cache
from envspec.fetch.types import archive_path
from envspec.io.confine import NoConfinement
from envspec.io.lazy_http import open_lazy_http
from envspec.io.tasks import gather_or_cancel
from envspec.models import BuiltWheel, Package, Resolution, Target, Unbuilt
from envspec.operations.build_wheels import WheelBuilder
from envspec.operations.lock_state import LockState, is_to_build
from envspec.operations.session import Session
from envspec.resolve.pypi.errors import GPUS_LINES, NeedsSdist, UnbuiltSdist, UnusableSdists
from envspec.resolve.pypi.extensions import no_fitting_wheel, published_elsewhere
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.file_metadata import source_of_metadata
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.pages import Pages
from envspec.resolve.pypi.index.routing import PackageIndex
from envspec.resolve.pypi.index.selection import version_of
from envspec.resolve.pypi.index.view import View
from envspec.resolve.pypi.metadata import requirements_in
from envspec.resolve.pypi.request import indexes_of
from envspec.resolve.pypi.resolver import PassedOver
from envspec.resolve.pypi.types import TargetRequest
from envspec.resolve.types import Release, required_by
from envspec.resolve.upgrade import names_of
from envspec.structs import replace

#: How many of a project's releases have to state the truth until its older ones are believed.
_BELIEVED: Final = 3
#: How many sdists are built at once because a resolver passed them over.
_MOST_VERIFIED: Final = 30


class _Known(Struct):
    """What is known of one target's releases.

    wheels: with the digests of their RECORDs.
    metadata: of wheels that state something else than their sdists.
    excluded: why a release cannot be built.
    compiled: what is left to a compiler.
    unbuilt: what nothing confines the build of, with where its requirements are from.
    """

    wheels: dict[Release, tuple[BuiltWheel, str | None]] = field(default_factory=dict)
    metadata: dict[Release, bytes] = field(default_factory=dict)
    excluded: dict[Release, str] = field(default_factory=dict)
    compiled: set[Release] = field(default_factory=set)
    unbuilt: dict[Release, Unbuilt] = field(default_factory=dict)


class _Sdist(Struct, frozen=True):
    """An sdist to build. sha256: measured if its index gives none."""

    release: Release
    target: Target
    index: PackageIndex
    file: ListedFile
    sha256: str

    @property
    def name(self) -> str:
        return self.release[0]


class _Building(Struct, frozen=True):
    """What the builds of one round use."""

    client: IndexClient
    views: Mapping[Target, View]
    builder: WheelBuilder

    async def listed(self, target: Target, name: str, filename: str) -> _Sdist:
        """An sdist with its row on the page of its index."""
        view = self.views[target]
        file = (await view.selection(name)).files[filename]
        if file.sha256 is None:
            file = await view.measure(name, file)
        release = name, version_of(filename) or Version("0")
        return _Sdist(release, target, view.rules.index_of(name), file, file.sha256 or "")

    async def unbuilt(self, package: Package, target: Target) -> UnbuiltSdist:
        """The package for a message."""
        view, own = self.views[target], Version(package.version)
        with_wheels: set[Version] = set()
        for file in (await view.selection(package.name)).files.values():
            version = version_of(file.filename)
            is_wheel = view.rank(file.filename) is not None and not file.yanked
            if is_wheel and version and not version.is_prerelease:
                with_wheels.add(version)
        older = sorted(version for version in with_wheels if version < own)
        newer = sorted(version for version in with_wheels if version > own)
        nearest = tuple(map(str, older[-1:] + newer[:1]))
        needs = tuple(required_by(package.required_by))
        return UnbuiltSdist(package.name, package.version, target.platform.value, needs, nearest)


class _Problems(Struct):
    """The sdists of one round that can't be locked.

    refused: that may not be built, or not by a compiler.
    failed: whose builds failed.
    silent: that nothing confines the build of, and that do not state what their wheels require.
    """

    refused: list[UnbuiltSdist] = field(default_factory=list)
    failed: list[tuple[UnbuiltSdist, WheelBuildFailed]] = field(default_factory=list)
    silent: list[tuple[UnbuiltSdist, NoConfinement]] = field(default_factory=list)


class SdistBuilds:
    """The sdists of one lock, by target."""

    def __init__(self, state: LockState) -> None:
        self._state = state
        self._before = state.built_before()
        self._known: dict[Target, _Known] = defaultdict(_Known)
        self._verified: set[PassedOver] = set()

    def usable(self) -> set[str]:
        """The names of the sdists that have been built, or are locked unbuilt."""
        names: set[str] = set()
        for known in self._known.values():
            for name, _ in (*known.wheels, *known.unbuilt):
                names.add(name)
        return names

    def with_build_results(self, request: TargetRequest) -> TargetRequest:
        """The request, with what the builds have shown."""
        known = self._known[request.request.target]
        return request.with_build_results(known.metadata, known.excluded)

    def recorded(self, resolution: Resolution) -> Resolution:
        """The resolution, with the wheels, and with how the requirements of what is not built are known."""
        known = self._known[resolution.target]

        def with_wheel(package: Package) -> Package:
            if not is_to_build(package):
                return package
            release = package.name, Version(package.version)
            built, record_sha256 = known.wheels.get(release, (None, None))
            return replace(package, built=built, record_sha256=record_sha256, unbuilt=known.unbuilt.get(release))

        return replace(resolution, packages=tuple(map(with_wheel, resolution.packages)))

    async def build(self, requests: Sequence[TargetRequest], resolutions: Sequence[Resolution]) -> bool:
        """Build what is not built yet; whether the resolutions are right.

        They are not if a wheel requires something else than its sdist states, or if a release cannot be built for its
        target: resolve again.

        Raises:
            NeedsSdist: sdists that may not be built, or not by a compiler; all of them. NoSolution: builds failed.
            NoConfinement: nothing confines builds, and sdists do not state what their wheels require; all of them.
            UnfitMachine: there is no Python for builds. NetworkError: an sdist or what its build requires is not
            available.
        """
        problems = _Problems()
        has_torch = "torch" in names_of(resolutions)
        async with self._building(requests) as building:
            to_try: list[tuple[Package, Target]] = []
            for package, target in self._new(resolutions):
                if self._may_try(package.name):
                    to_try.append((package, target))
                else:
                    problems.refused.append(await building.unbuilt(package, target))

            async def is_right(package: Package, target: Target) -> bool:
                sdist = await building.listed(target, package.name, package.file.filename)
                try:
                    return self._is_left(sdist) or await self._build(sdist, building)
                except NoConfinement as error:
                    if not await self._leave_unbuilt(sdist, building):
                        problems.silent.append((await building.unbuilt(package, target), error))
                except WheelBuildFailed as error:
                    unbuilt = await building.unbuilt(package, target)
                    return self._judge(error, sdist, unbuilt, problems, has_torch=has_torch)
                return True

            tasks = (is_right(package, target) for package, target in to_try)
            if not all(await gather_or_cancel(tasks, self._state.context.jobs)):
                # What cannot be built may not be chosen again.
                return False
        await self._refuse(requests, resolutions, problems)
        _refuse_silent(problems.silent)
        return True

    def _is_left(self, sdist: _Sdist) -> bool:
        """Note an sdist that is built beside torch: that is left until the lock is complete."""
        spec = self._state.spec
        is_left = spec.pip.build.may_compile(sdist.name) and sdist.name in spec.build
        if is_left:
            self._known[sdist.target].compiled.add(sdist.release)
        return is_left

    def _judge(
        self, error: WheelBuildFailed, sdist: _Sdist, unbuilt: UnbuiltSdist, problems: _Problems, *, has_torch: bool
    ) -> bool:
        """Note a build that failed, as a problem unless the sdist can be left to a compiler, or not be chosen again.

        Returns whether the sdist is what the resolver took it for.
        """
        known = self._known[sdist.target]
        may_compile = self._state.spec.pip.build.may_compile(sdist.name)
        compiler = error.reason if isinstance(error, NeedsCompiler) else ""
        is_extension = self._state.facts.extension(sdist.name, unbuilt.version) is not None
        if compiler and not may_compile:
            problems.refused.append(replace(unbuilt, error=compiler))
        elif compiler == REQUIRES_TORCH and not is_extension and has_torch:
            why = f"{compiler}, and would get another one than the lock's"
            other = WheelBuildFailed(error.of, why, hint=torch_hint([sdist.name]))
            problems.failed.append((unbuilt, other))
        elif may_compile and (compiler or is_extension):
            # An extension may fail without torch.
            known.compiled.add(sdist.release)
        elif reason := error.python_error:
            series = sdist.target.python.series
            known.excluded[sdist.release] = f"cannot be built for Python {series} (its build reports: {reason})"
            return False
        else:
            problems.failed.append((unbuilt, error))
        return True

    async def _leave_unbuilt(self, sdist: _Sdist, building: _Building) -> bool:
        """Note an sdist that nothing confines the build of; False if it does not state what its wheel requires."""
        known = self._known[sdist.target]
        content = await building.client.content(sdist.index, sdist.file)
        name, version = sdist.name, str(sdist.release[1])
        source = await asyncio.to_thread(source_of_metadata, content, sdist.file.filename, name, version)
        if source is None:
            return False
        if self._state.spec.pip.build.may_compile(sdist.name):
            known.compiled.add(sdist.release)
        else:
            known.unbuilt[sdist.release] = source
        return True

    async def _refuse(
        self, requests: Sequence[TargetRequest], resolutions: Sequence[Resolution], problems: _Problems
    ) -> None:
        """Raise the error for all sdists that may not be built, and those whose builds failed, if there are any."""
        refused = problems.refused
        if not (refused or problems.failed):
            return
        failed: list[UnbuiltSdist] = []
        errors: list[WheelBuildFailed] = []
        lines: list[str] = []
        for sdist, error in sorted(problems.failed, key=lambda each: each[1].message):
            failed.append(sdist)
            errors.append(error)
            lines.append(f"{sdist.described()}{error.message.removeprefix(error.of)}")
        lines += _warnings_about([*refused, *failed], resolutions)
        hints = [*_hints(errors), *self._gpu_hints(requests, refused)]
        beside = sorted({each.name for each in refused if each.error == REQUIRES_TORCH})
        if beside and "torch" in names_of(resolutions):
            hints.append(torch_hint(beside))
        if not refused:
            raise UnusableSdists("\n".join(lines), failed, "\n  and ".join(hints))
        raise NeedsSdist(
            refused,
            requests[0].request.target,
            self._state.spec.pip.build.packages,
            other="\n".join(lines),
            hints=hints,
            elsewhere=await self._elsewhere(requests, refused),
            failed=failed,
        )

    def _may_try(self, name: str) -> bool:
        """Whether an sdist may be built to see what it needs; of extensions it is known that it is torch and nvcc."""
        allowed = self._state.spec.pip.build
        if self._is_extension(name):
            return allowed.may_compile(name)
        return allowed.may_build(name)

    def _is_extension(self, name: str) -> bool:
        row = self._state.facts.extension(name)
        return row is not None and "torch" in row.requires

    def _gpu_hints(self, requests: Iterable[TargetRequest], refused: Iterable[UnbuiltSdist]) -> Iterator[str]:
        """What to do if extensions are to be built beside a torch for CUDA, for GPUs that the spec does not name."""
        if not any(self._is_extension(each.name) or each.error == REQUIRES_TORCH for each in refused):
            return
        for each in requests:
            extensions = each.rules.extensions
            if extensions.variant != "cpu" and not extensions.gpus:
                yield f"name the GPUs to compile for, such as:\n    {GPUS_LINES}"
                return

    async def _elsewhere(self, requests: Sequence[TargetRequest], refused: Sequence[UnbuiltSdist]) -> str:
        """Where there are wheels of these projects."""
        hints: dict[str, None] = {}
        for each in refused:
            row = self._state.facts.misnamed.get(each.name)
            if row and row.sdists:
                hints[row.hint] = None
        return "\n  or ".join(filter(None, (*hints, await self._of_extensions(requests, refused))))

    async def _of_extensions(self, requests: Sequence[TargetRequest], refused: Sequence[UnbuiltSdist]) -> str:
        """Where there are wheels of the extensions among these sdists."""
        releases = dict.fromkeys((each.name, each.version) for each in refused)
        async with self._building(requests) as building:
            for each in requests:
                for name, _ in releases:
                    if unfit := await no_fitting_wheel(name, each.request, building.views[each.request.target]):
                        return f"{unfit.hint}: {unfit.message}"
        return published_elsewhere(releases, requests[0].rules.extensions)

    async def state_the_truth(self, requests: Sequence[TargetRequest], passed_over: Sequence[PassedOver]) -> bool:
        """Whether sdists require what they state, as far as builds show it: the newest of each project that a resolver
        passed over before it found no solution. Each is built once.

        What cannot be built, or is not since nothing confines it, is believed.

        Raises:
            UnfitMachine, NetworkError: as `build`.
        """
        new: list[PassedOver] = []
        for each in _newest(passed_over):
            if self._may_try(each.name) and each not in self._verified:
                new.append(each)
        new = new[:_MOST_VERIFIED]
        self._verified.update(new)
        async with self._building(requests) as building:

            async def is_true(each: PassedOver) -> bool:
                sdist = await building.listed(each.target, each.name, each.filename)
                try:
                    return await self._build(sdist, building)
                except (NoConfinement, WheelBuildFailed):
                    return True

            return all(await gather_or_cancel(map(is_true, new), self._state.context.jobs))

    def _new(self, resolutions: Sequence[Resolution]) -> Iterator[tuple[Package, Target]]:
        for resolution in resolutions:
            known = self._known[resolution.target]
            for package in filter(is_to_build, resolution.packages):
                release = package.name, Version(package.version)
                if not (release in known.wheels or release in known.compiled or release in known.unbuilt):
                    yield package, resolution.target

    @asynccontextmanager
    async def _building(self, requests: Sequence[TargetRequest]) -> AsyncIterator[_Building]:
        state = self._state
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(Session(state.context.without_progress()))
            client = IndexClient(state.store, state.context.now, environ=state.context.environ)
            stack.push_async_callback(client.close)
            if not state.context.is_offline:
                client.http = await stack.enter_async_context(open_lazy_http(state.context.environ))
            pages = Pages(client, {each.view_key: each.rules for each in requests})
            views = {each.request.target: View(pages, each.view_key) for each in requests}
            yield _Building(client, views, WheelBuilder(state.spec.env.name, lambda _: None, session))

    async def _build(self, sdist: _Sdist, building: _Building) -> bool:
        """Build one; whether its wheel requires what the sdist states."""
        known, state = self._known[sdist.target], self._state
        state.context.reporter.progress(Step(f"building {sdist.name}", of=sdist.target.platform.value))
        recorded = self._before.get((sdist.target, sdist.sha256))
        made = await building.builder.recorded_wheel(recorded)
        if made is None:
            made = await building.builder.build_wheel(self._wanted(sdist, building))
        metadata = await asyncio.to_thread(metadata_of, made.path, sdist.name)
        stated = (await building.client.metadata(sdist.index, sdist.file)).body
        # What is recorded stays, even if this machine's build gives other bytes.
        if recorded and recorded.built:
            known.wheels[sdist.release] = recorded.built, recorded.record_sha256
        else:
            known.wheels[sdist.release] = made.wheel, await asyncio.to_thread(record_digest, made.path)
        is_same = requirements_in(metadata) == requirements_in(stated)
        if not is_same:
            known.metadata[sdist.release] = metadata
        return is_same

    def _wanted(self, sdist: _Sdist, building: _Building) -> BuildRequest:
        state, version = self._state, str(sdist.release[1])
        as_of = max(state.as_of, building.views[sdist.target].rules.cutoff_of(sdist.name))
        path = archive_path(state.context.cache, f"{sdist.name} {version}", sdist.sha256, sdist.file.filename)

        def is_cached() -> bool:
            if not path.is_file():
                return False
            with path.open("rb") as opened:
                return sha256_of(opened)[0] == sdist.sha256

        async def fetch() -> Path:
            if not await asyncio.to_thread(is_cached):
                content = BytesIO(await building.client.content(sdist.index, sdist.file))
                await asyncio.to_thread(copy_to_cache, content, path)
            return path

        source, nowhere = sdist_source(sdist.sha256, fetch), Compilers.NOWHERE
        return BuildRequest(sdist.name, version, sdist.target, as_of, source, indexes_of(state.spec), compilers=nowhere)


def _newest(passed_over: Sequence[PassedOver]) -> Iterator[PassedOver]:
    """The newest sdists of each project. passed_over: newest first."""
    counts: Counter[tuple[Target, str]] = Counter()
    for each in passed_over:
        counts[each.target, each.name] += 1
        if counts[each.target, each.name] <= _BELIEVED:
            yield each


def _refuse_silent(silent: Sequence[tuple[UnbuiltSdist, NoConfinement]]) -> None:
    """Raise the error for all sdists that nothing confines the build of, and that do not state their requirements."""
    if silent:
        lines = sorted(sdist.described() for sdist, _ in silent)
        text = "an sdist that states what its wheel requires is locked without a build, and these do not:"
        raise NoConfinement("\n  ".join([f"{silent[0][1].message}; {text}", *lines]), hint=silent[0][1].hint)


def _warnings_about(sdists: Iterable[UnbuiltSdist], resolutions: Iterable[Resolution]) -> list[str]:
    """The warnings about sdists that are years old."""
    releases = {(each.name, str(each.version)) for each in sdists}
    found: list[str] = []
    for part in resolutions:
        for warning in part.warnings:
            values = dict(warning.values)
            if warning.code == "years-old" and (values["package"], values["version"]) in releases:
                found.append(str(warning))
    return found


def _hints(failed: Sequence[WheelBuildFailed]) -> list[str]:
    """What to do about failed builds; placeholders of one index together."""
    names: dict[str, list[str]] = defaultdict(list)
    others: dict[str, None] = {}
    for error in failed:
        if isinstance(error, IsPlaceholder):
            names[error.url].append(error.name)
        elif error.hint:
            others[error.hint] = None
    return [*others, *(index_hint(url, of_index) for url, of_index in names.items())]
