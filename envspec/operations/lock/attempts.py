"""Attempts to resolve the PyPI packages of a lock, in one loop, until the first one that has a solution."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field

from envspec.base_image.apt import follows_base
from envspec.context import SILENT, ReporterOf
from envspec.credentials import without_credentials
from envspec.errors import EnvspecError, NoSolution, WrongHash
from envspec.io.http_settings import default_index_url
from envspec.io.lazy_http import open_lazy_http
from envspec.io.tasks import run_interruptible
from envspec.models import DIRECT_URL, Commit, Platform, Resolution, Target
from envspec.operations.lock_state import LockState, is_to_build, packages_in
from envspec.origins import PYTORCH_INDEX
from envspec.resolve import resolver
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import BuiltSource, PackageIndex
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.pypi.request import GivenPackages, IndexUrls, sources_of, target_request, wheel_urls
from envspec.resolve.pypi.resolve import resolve_all
from envspec.resolve.pypi.resolver import Unsolvable
from envspec.resolve.pypi.types import TargetRequest
from envspec.resolve.types import Cutoffs, ProvidedPackage, RefusedLines
from envspec.resolve.upgrade import names_of, with_old_pins
from envspec.spec import Requirement, Spec
from envspec.spec.requirements import read_constraint
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.operations.lock.sdists import SdistBuilds

#: For how many seconds another [pip] is tried.
_TRY_S: Final = 20

#: Modules of the stages after the engines; ctypes exchanges folders.
_LATER: Final = (
    "ctypes",
    "envspec.resolve.pypi.packages",
    "envspec.operations.lock.finish",
    "envspec.operations.lock.assemble",
)
#: Modules that look up the digests of base images, and when these were created: 0.1 s.
_OF_REGISTRIES: Final = ("envspec.image.base", "envspec.operations.session", "envspec.registry.client", "aiohttp")
#: More constraints, of each platform.
Lines: TypeAlias = Mapping[Platform, Sequence[str]]


class Attempt(Struct, frozen=True):
    """One way to resolve the packages of all targets.

    cutoffs: up to when releases count.
    pins: versions that are preferred.
    free: what is chosen without the pins of the lock before; see `PypiRequest`.
    lines: constraints that are worth an attempt, and not the spec's. They may not lose code for a GPU.
    movable: names without a preference.
    newer: names that must be newer than their pins.
    """

    cutoffs: Cutoffs
    pins: Sequence[Resolution] = ()
    free: Sequence[Resolution] = ()
    lines: Lines = field(default_factory=dict)
    movable: Collection[str] = ()
    newer: Collection[str] = ()


class Solution(Struct, frozen=True):
    """The packages of all targets.

    attempt: the one that has a solution.
    requests: its requests.
    """

    attempt: Attempt
    requests: Sequence[TargetRequest]
    resolutions: tuple[Resolution, ...]


class Attempts:
    """Resolves the targets of one lock. What one attempt has shown of sdists counts for those after it.

    provided: the Python packages that conda installs, by platform.
    """

    def __init__(
        self,
        state: LockState,
        targets: Sequence[Target],
        provided: Mapping[Platform, Mapping[str, ProvidedPackage]],
    ) -> None:
        self._state = state
        self._targets = targets
        self._provided = provided
        # Several attempts may give the same warning.
        reporter = ReporterOf(state.context.reporter, warning=cache(state.context.reporter.warning))
        self.context = replace(state.context, reporter=reporter)
        self._resolver = resolver(state.request.resolver)
        environ = state.context.environ
        self._urls = IndexUrls(default_index_url(environ), environ.get("ENVSPEC_PYTORCH_INDEX") or PYTORCH_INDEX)
        self._wheels = run_interruptible(_fetch_wheels(state, wheel_urls(state.spec)))
        self._sources: Mapping[Target, Mapping[str, BuiltSource]] = {}
        self.commits: tuple[Commit, ...] = ()
        self._sdists: SdistBuilds | None = None
        self._expected = state.old.resolutions if state.old else ()
        if any(sources_of(state.spec, target) for target in targets):
            # Imports half of what images need.
            from envspec.operations.build_wheels import build_sources

            self._sources, self.commits = run_interruptible(build_sources(state, targets))

    def first(self, attempts: Iterable[Attempt]) -> Solution:
        """The first attempt that has a solution.

        Raises:
            NoSolution: none has one: the error of the first attempt without lines of its own.
        """
        refusal: NoSolution | None = None
        for attempt in attempts:
            try:
                requests = self._requests(self._state.spec, attempt)
                if not attempt.lines or self._serves_all_gpus(requests, attempt):
                    return Solution(attempt, requests, self._resolve_alike(requests))
            except NoSolution as error:
                if attempt.lines:
                    continue
                refusal = refusal or error
                if isinstance(error, RefusedLines):
                    # No other version of anything helps.
                    break
        raise refusal or NoSolution("no attempt was made")

    def solve_quietly(self, update: Mapping[str, object], cutoffs: Cutoffs, sdists: Sdists) -> tuple[Resolution, ...]:
        """What the spec with another [pip] resolves to, without a report and a build; empty without a solution."""
        pip = self._state.spec.pip.model_copy(update=dict(update))
        with suppress(EnvspecError, asyncio.TimeoutError):
            requests = self._requests(self._state.spec.model_copy(update={"pip": pip}), Attempt(cutoffs))
            asked = [self._with_build_results(each).with_sdists(sdists) for each in requests]
            quiet = replace(self._state.context, reporter=SILENT)
            resolving = resolve_all(asked, self._resolver, self._state.store, quiet)
            return run_interruptible(asyncio.wait_for(resolving, _TRY_S))
        return ()

    def usable_sdists(self) -> Collection[str]:
        """The names of sdists that were built, or are locked unbuilt."""
        if self._sdists is None:
            return ()
        return self._sdists.usable()

    def _requests(self, spec: Spec, attempt: Attempt) -> list[TargetRequest]:
        requests: list[TargetRequest] = []
        for target in self._targets:
            given = GivenPackages(
                self._wheels,
                self._sources.get(target, {}),
                self._provided.get(target.platform, {}),
                self._state.beneath.found.get(target.platform),
            )
            constrained = _constrained(spec, attempt.lines.get(target.platform, ()))
            request = target_request(constrained, target, self._state.facts, attempt.cutoffs, given, self._urls)
            requests.append(with_old_pins(request, attempt.pins, attempt.movable, attempt.newer, attempt.free))
        return requests

    def _serves_all_gpus(self, requests: Sequence[TargetRequest], attempt: Attempt) -> bool:
        """Whether lines of an attempt leave code for every GPU: another torch may have none."""
        plain = self._requests(self._state.spec, replace(attempt, lines={}))
        return all(each.serves_gpus >= other.serves_gpus for each, other in zip(requests, plain, strict=True))

    def _resolve_alike(self, requests: Sequence[TargetRequest]) -> tuple[Resolution, ...]:
        """What the requests resolve to. Packages whose major version is CUDA's have that of the lock, if that makes
        nothing older that the spec names: resolvers go back to an old one if its newest needs an older release of
        something that they have chosen before.
        """
        found = self._resolve(requests)
        if names_of(found).isdisjoint(row.package for row in self._state.facts.cuda_majors):
            return found
        from envspec.operations.lock.suggestions import older_names, with_cuda_majors

        bounded = [with_cuda_majors(each, part, self._state.facts) for each, part in zip(requests, found, strict=True)]
        if all(new is old for new, old in zip(bounded, requests, strict=True)):
            return found
        with suppress(NoSolution):
            other = self._resolve(bounded)
            if not older_names(found, other, self._state.spec):
                return other
        return found

    def _import_later(self) -> None:
        """Import the modules of the next stages while the engines run."""
        spec, modules = self._state.spec, list(_LATER)
        base = spec.image.base
        is_by_tag = "@" not in base if base else any(map(spec.cuda_on, spec.env.platforms))
        needs_registry = is_by_tag or bool(base and follows_base(spec))
        if needs_registry and self._state.old is None and not self.context.is_offline:
            modules += _OF_REGISTRIES
        for module in modules:
            # Whoever needs it reports that it is missing.
            with suppress(ImportError):
                import_module(module)

    def _resolve(self, requests: Sequence[TargetRequest]) -> tuple[Resolution, ...]:
        """What the requests resolve to. Sdists that are chosen are built, and count by what their wheels require; if
        there is no solution, so are those that were passed over for what they state.
        """
        while True:
            asked = list(map(self._with_build_results, requests))
            resolving = resolve_all(
                asked, self._resolver, self._state.store, self.context, self._import_later, self._expected
            )
            try:
                found = run_interruptible(resolving)
            except Unsolvable as error:
                passed_over = error.passed_over
                if not passed_over or run_interruptible(self._builds().state_the_truth(asked, passed_over)):
                    raise
                continue
            if not any(map(is_to_build, packages_in(found))):
                return found
            builds = self._builds()
            if run_interruptible(builds.build(asked, found)):
                return tuple(map(builds.recorded, found))

    def _with_build_results(self, request: TargetRequest) -> TargetRequest:
        if self._sdists is None:
            return request
        return self._sdists.with_build_results(request)

    def _builds(self) -> SdistBuilds:
        if self._sdists is None:
            # Imports half of what images need.
            from envspec.operations.lock.sdists import SdistBuilds

            self._sdists = SdistBuilds(self._state)
        return self._sdists


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
        http = None
        if not context.is_offline:
            http = await stack.enter_async_context(open_lazy_http(context.environ))
        urls: list[str] = []
        fetching: list[Awaitable[ListedFile]] = []
        for each in requirements:
            urls.append(str(each.without_credentials().url))
            fetching.append(_fetch_wheel(each, state, IndexClient(state.store, context.now, http, context.environ)))
        fetched = await asyncio.gather(*fetching)
    return dict(zip(urls, fetched, strict=True))


async def _fetch_wheel(requirement: Requirement, state: LockState, client: IndexClient) -> ListedFile:
    """The wheel at a requirement's URL. It is fetched again if the last time was before `as_of`."""
    url = without_credentials(str(requirement.url))
    listed = ListedFile(unquote(urlsplit(url).path.rpartition("/")[2]), url)
    found = await client.measure(PackageIndex(DIRECT_URL, str(requirement.url)), listed, state.as_of)
    if requirement.sha256 and requirement.sha256 != found.sha256:
        raise WrongHash(
            f"{url} has SHA-256 {found.sha256}, the spec has {requirement.sha256}",
            hint="correct the spec if the file is right, else report it to the server's operator",
        )
    return found
