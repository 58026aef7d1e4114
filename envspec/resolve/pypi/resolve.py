"""All targets, resolved against the loopback index."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final

from packaging.version import Version

from envspec.context import Context, Step, counted
from envspec.errors import NoSolution, UsageError
from envspec.facts.extensions import without_order
from envspec.io.http import open_http
from envspec.io.loopback import Loopback, listening
from envspec.io.store import Store
from envspec.models import Decision, Resolution
from envspec.names import normalised
from envspec.resolve import cache
from envspec.resolve.pypi import packages
from envspec.resolve.pypi.errors import no_solution_error
from envspec.resolve.pypi.index.client import IndexClient, missing_digests
from envspec.resolve.pypi.index.routing import Rules
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.pypi.index.server import serve, simple_url
from envspec.resolve.pypi.index.view import Bodies, Pages, View
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.refused_lines import refused_lines
from envspec.resolve.pypi.resolver import Pins, PypiRequest, Resolver, Unsolvable, Workspace, excluding
from envspec.resolve.types import RefusedLine, RefusedLines, Release

#: How many releases of one package a warning names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """One target's request with everything that decides its result, and what was decided to make it.

    environment: for markers.
    identity: JSON of all that decides the rules (indexes, `as_of`, facts), without credentials: rules contain
        functions, which cannot be compared.
    tried_in_turn: names of which a resolver will try one release after another.
    serves_gpus: see `BuildChoice`.
    no_torch: why torch can't be in the resolution.
    """

    request: PypiRequest
    rules: Rules
    environment: Mapping[str, str]
    identity: object
    tried_in_turn: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()
    serves_gpus: bool = True
    no_torch: NoSolution | None = None

    @property
    def view_key(self) -> str:
        """Identifies what the target sees of the indexes, independent of its requirements."""
        target = self.request.target
        parts = [self.identity, target.platform.value, target.python.version, target.glibc, target.macos]
        return cache.key_of(parts)[:20]

    def with_build_results(self, built: Mapping[Release, bytes], excluded: Mapping[Release, str]) -> TargetRequest:
        """With what builds of sdists have shown. built: METADATA of wheels. excluded: why a release cannot be built."""
        if not built and not excluded:
            return self
        known = sorted(
            (name, str(version), hashlib.sha256(body).hexdigest()) for (name, version), body in built.items()
        )
        return replace(
            self,
            request=self.request.with_bounds(excluding(excluded)),
            rules=replace(self.rules, built=built),
            identity=[self.identity, known] if known else self.identity,
        )

    def with_sdists(self, sdists: Sdists) -> TargetRequest:
        """With other sdists as candidates."""
        if sdists is self.rules.sdists:
            return self
        return replace(self, rules=replace(self.rules, sdists=sdists), identity=[self.identity, sdists.value])

    def answer_key(self, resolver: Resolver) -> str:
        request = self.request
        bounds = sorted((each.line, each.kind.value) for each in request.bounds)
        return cache.key_of([self.view_key, resolver.version, sorted(request.requirements), bounds])


async def resolve_all(
    requests: Sequence[TargetRequest],
    resolver: Resolver,
    store: Store,
    context: Context,
    meanwhile: Callable[[], object] = bool,
) -> tuple[Resolution, ...]:
    """Resolve every request, in their order; cached resolutions are used.

    meanwhile: called in a thread while resolvers run, for later work.

    Raises:
        UsageError: the resolver cannot resolve for one of the targets on this machine.
        NoSolution: no set of releases satisfies a request, or only with torch, which has no build for its CUDA.
        NetworkError: an index failed, or offline and not in the cache.
    """
    keys = [request.answer_key(resolver) for request in requests]
    by_key = dict(zip(keys, requests, strict=True))
    resolved: dict[str, Resolution] = {}
    for key, each in by_key.items():
        if (answer := cache.get(store, key, each.request.target)) is not None:
            resolved[key] = answer
    fresh = {key: request for key, request in by_key.items() if key not in resolved}
    for each in fresh.values():
        if why := resolver.unable(each.request.target):
            raise UsageError(f"{resolver.version.partition(' ')[0]}: {why}", hint="use --resolver uv")
    if fresh:
        resolved |= await _resolve_fresh(fresh, resolver, store, context, meanwhile)
    for key, each in by_key.items():
        if each.no_torch is not None and any(package.name == "torch" for package in resolved[key].packages):
            raise each.no_torch
    return tuple(resolved[key] for key in keys)


async def _resolve_fresh(
    requests: Mapping[str, TargetRequest],
    resolver: Resolver,
    store: Store,
    context: Context,
    meanwhile: Callable[[], object],
) -> dict[str, Resolution]:
    """Resolutions by their keys; each is cached at once, unless it depends on what may still change."""
    client = IndexClient(store, context.now, environ=context.environ)
    rules = {each.view_key: each.rules for each in requests.values()}
    pages = Pages(client, rules)
    views = {key: View(pages, key) for key in rules}
    turn = asyncio.Semaphore(context.jobs)
    undated: dict[str, set[Version]] = {}

    def note_undated(view: View, pins: Mapping[str, str | None]) -> None:
        pending = view.observed().pending
        for name in pending.keys() & pins.keys():
            undated.setdefault(name, set()).update(_newer(pending[name], pins[name]))

    async def one(key: str, request: TargetRequest, loopback: Loopback) -> Resolution:
        view = views[request.view_key]
        try:
            async with turn:
                resolution = await _resolve(request, resolver, view, context, loopback, reuses_pages=store.reuses_pages)
        except NoSolution:
            found = filter(None, map(parsed, request.request.requirements))
            note_undated(view, dict.fromkeys(normalised(requirement.name) for requirement in found))
            raise
        note_undated(view, {package.name: package.version for package in resolution.packages})
        if view.observed().is_final:
            cache.put(store, key, resolution)
        return resolution

    async with AsyncExitStack() as stack:
        loopback = stack.enter_context(listening())
        # Resolvers start before the server: they need 0.1 s to their first request, and the import of HTTP as long.
        # Their first requests wait at the socket.
        tasks = [asyncio.ensure_future(one(key, each, loopback)) for key, each in requests.items()]
        guesses: list[asyncio.Task[None]] = []
        try:
            await asyncio.to_thread(import_module, "aiohttp.web")
            client.http = None if context.is_offline else await stack.enter_async_context(open_http(context.environ))
            await stack.enter_async_context(serve(views, loopback))
            tried_in_turn = [(views[each.view_key], name) for each in requests.values() for name in each.tried_in_turn]
            guesses += [asyncio.ensure_future(view.prefetch(name)) for view, name in tried_in_turn]
            await asyncio.to_thread(meanwhile)
            return dict(zip(requests, await asyncio.gather(*tasks), strict=True))
        except RefusedLines as error:
            # Those of every target at once.
            found = await asyncio.gather(
                *(refused_lines(each.request, views[each.view_key]) for each in requests.values())
            )
            raise RefusedLines([*error.found, *chain.from_iterable(found)]) from None
        finally:
            for task in (*tasks, *guesses):
                task.cancel()
            await asyncio.gather(*tasks, *guesses, return_exceptions=True)
            await client.close()
            store.is_settled &= all(view.observed().is_final for view in views.values())
            if text := missing_digests(view.digests for view in views.values()):
                context.reporter.warning(text)
            for text in _undated_warnings(undated):
                context.reporter.warning(text)


def _newer(versions: Iterable[str], pinned: str | None) -> set[Version]:
    """The versions above a pin; pre-releases only if the pin is one. None: all."""
    found, pin = set(map(Version, versions)), Version(pinned) if pinned is not None else None
    return {each for each in found if pin is None or (each > pin and (not each.is_prerelease or pin.is_prerelease))}


def _undated_warnings(undated: Mapping[str, set[Version]]) -> Iterator[str]:
    """One for each package. undated: the releases without an upload time that the targets of one run left out."""
    for name, releases in sorted(undated.items()):
        if releases:
            newest = [str(version) for version in sorted(releases)[-_NAMED:]]
            more = f" (and {len(releases) - _NAMED} older)" if len(releases) > _NAMED else ""
            have = "have" if len(releases) > 1 else "has"
            yield (
                f"{name} {', '.join(newest)}{more} {have} no upload time yet: left out; "
                "once the index gives it, `envspec lock --upgrade` includes it"
            )


async def _resolve(
    target: TargetRequest,
    resolver: Resolver,
    view: View,
    context: Context,
    loopback: Loopback,
    *,
    reuses_pages: bool,
) -> Resolution:
    """reuses_pages: whether the resolver may use what its own cache has of the view's pages."""
    platform = target.request.target.platform.value
    context.reporter.progress(Step("resolving", of=platform))
    with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
        work = Path(folder)
        workspace = Workspace(
            # pip fetches every chosen wheel, 4 GB for a torch stack.
            simple_url(view.key, Bodies.STUB),
            loopback.proxy,
            _cache_folder(context.cache / "engines", work) if reuses_pages else work / "cache",
            work,
        )
        request, pins = await _readable(target.request, resolver, view, workspace)
    context.reporter.progress(Step(f"reading the metadata of {counted(len(pins), 'package')}", of=platform))
    resolution = await packages.build(request, target.environment, pins, view)
    context.reporter.progress(Step(counted(len(resolution.packages), "package"), of=platform))
    return resolution


def _cache_folder(preferred: Path, work: Path) -> Path:
    """`preferred` if it is writable, else a folder for this run."""
    try:
        preferred.mkdir(parents=True, exist_ok=True)
    except OSError:
        return work / "cache"
    return preferred if os.access(preferred, os.W_OK) else work / "cache"


async def _readable(
    request: PypiRequest, resolver: Resolver, view: View, workspace: Workspace
) -> tuple[PypiRequest, Pins]:
    """The pins, and the request that they satisfy: without the releases whose sdist cannot be read."""
    while True:
        pins = await _pins(request, resolver, view, workspace)
        # A resolver that has all pages in its own cache may end before the indexes can be read.
        await view.wait_until_served()
        await asyncio.gather(*(view.read_sdist(name, version) for name, version in pins.items()))
        chosen = {(name, Version(version)) for name, version in pins.items()}
        excluded = {release: why for release, why in view.observed().unreadable.items() if release in chosen}
        if not excluded:
            return request, pins
        request = request.with_bounds(excluding(excluded))


async def _pins(request: PypiRequest, resolver: Resolver, view: View, workspace: Workspace) -> Pins:
    """The resolver's pins.

    An index that fails stops the resolver, which could take something older instead, and so does a line that nothing
    satisfies: resolvers may try every release of everything else first.
    """
    running = asyncio.ensure_future(_resolved(request, resolver, view, workspace))
    failing = asyncio.ensure_future(view.wait_for_failure())
    refusing = asyncio.ensure_future(_refused(request, view))
    try:
        await asyncio.wait({running, failing, refusing}, return_when=asyncio.FIRST_COMPLETED)
        if not (running.done() or failing.done()):
            if refused := await refusing:
                raise Unsolvable(", ".join(each.name for each in refused))
            await asyncio.wait({running, failing}, return_when=asyncio.FIRST_COMPLETED)
        view.raise_failure()
        return await running
    except Unsolvable as error:
        raise await no_solution_error(error, request, view) from error
    finally:
        tasks = running, failing, refusing
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _refused(request: PypiRequest, view: View) -> Sequence[RefusedLine]:
    # Resolvers start before the indexes can be read.
    await view.wait_until_served()
    return await refused_lines(request, view)


async def _resolved(request: PypiRequest, resolver: Resolver, view: View, workspace: Workspace) -> Pins:
    """The resolver's pins; with sdists of extensions only if there is no solution without them."""
    shown_line = view.rules.extensions.shown_line
    asked = replace(
        request,
        requirements=tuple(map(shown_line, request.requirements)),
        bounds=tuple(replace(each, line=shown_line(each.line)) for each in request.bounds),
    )
    try:
        pins = await resolver.resolve(asked, workspace)
    except Unsolvable as error:
        if view.show_withheld():
            return await _resolved(request, resolver, view, workspace)
        raise Unsolvable(without_order(error.message)) from error
    return {normalised(name): without_order(version) for name, version in pins.items()}
