"""All targets, resolved against the loopback index."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from itertools import chain
from pathlib import Path
from typing import Final

from packaging.version import Version

from envspec.conformance.text import counted
from envspec.context import Context, Step
from envspec.errors import NoSolution
from envspec.facts.extensions import without_order
from envspec.io.lazy_http import open_lazy_http
from envspec.io.loopback import Loopback, listening
from envspec.io.store import Store
from envspec.models import Resolution
from envspec.names import normalised
from envspec.resolve import cache
from envspec.resolve.pypi.index.client import IndexClient, missing_digests
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.pages import Pages
from envspec.resolve.pypi.index.server import serve, simple_url
from envspec.resolve.pypi.index.view import View
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.no_solution import no_solution_error
from envspec.resolve.pypi.refused_lines import refused_lines
from envspec.resolve.pypi.resolver import Pins, Resolver, Unsolvable, Workspace
from envspec.resolve.pypi.types import PypiRequest, TargetRequest, exclusions_of
from envspec.resolve.types import RefusedLine, RefusedLines, Release
from envspec.structs import replace

#: How many releases of one package a warning names.
_NAMED: Final = 3


async def resolve_all(
    requests: Sequence[TargetRequest],
    resolver: Resolver,
    store: Store,
    context: Context,
    meanwhile: Callable[[], object] = bool,
    expected: Sequence[Resolution] = (),
) -> tuple[Resolution, ...]:
    """Resolve every request, in their order; cached resolutions are used.

    meanwhile: called in a thread while resolvers run, for later work.
    expected: what resolvers will probably choose, from the lock before: they are faster with it.

    Raises:
        NoSolution: no set of releases satisfies a request, or only with torch, which has no build for its CUDA.
        NetworkError: an index failed, or offline and not in the cache.
    """
    keys = [request.answer_key(resolver.version) for request in requests]
    by_key = dict(zip(keys, requests, strict=True))
    resolved: dict[str, Resolution] = {}
    fresh: dict[str, TargetRequest] = {}
    for key, each in by_key.items():
        if (answer := cache.get(store, key, each.request.target)) is not None:
            resolved[key] = answer
        else:
            fresh[key] = each
    if fresh:
        resolved |= await _resolve_fresh(fresh, resolver, store, context, meanwhile, expected)
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
    expected: Sequence[Resolution],
) -> dict[str, Resolution]:
    """Resolutions by their keys; each is cached at once, unless it depends on what may still change."""
    client = IndexClient(store, context.now, environ=context.environ)
    pages = Pages(client, {each.view_key: each.rules for each in requests.values()})
    views = {key: View(pages, key) for key in pages.rules}
    turn = asyncio.Semaphore(context.jobs)
    undated: dict[str, set[Version]] = {}

    def note_undated(view: View, pins: Mapping[str, str | None]) -> None:
        pending = view.pending
        for name in pending.keys() & pins.keys():
            undated.setdefault(name, set()).update(_newer_versions(pending[name], pins[name]))

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
        if view.is_final:
            cache.put(store, key, resolution)
        return resolution

    async with AsyncExitStack() as stack:
        loopback = stack.enter_context(listening())
        opening = nullcontext() if context.is_offline else open_lazy_http(context.environ)
        client.http = await stack.enter_async_context(opening)
        # Resolvers start before the server: their first requests wait at the socket.
        tasks = [asyncio.ensure_future(one(key, each, loopback)) for key, each in requests.items()]
        try:
            for each in requests.values():
                views[each.view_key].ahead.expect(each.request.requirements, each.request.constraints)
            await stack.enter_async_context(serve(views, loopback))
            await _read_ahead(views, requests.values(), expected)
            await asyncio.to_thread(meanwhile)
            return dict(zip(requests, await asyncio.gather(*tasks), strict=True))
        except RefusedLines as error:
            # Those of every target at once.
            refusals = [refused_lines(each.request, views[each.view_key]) for each in requests.values()]
            found = await asyncio.gather(*refusals)
            raise RefusedLines([*error.found, *chain.from_iterable(found)]) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
            store.is_settled &= all(view.is_final for view in views.values())
            for text in _warnings(views.values(), undated):
                context.reporter.warning(text)


async def _read_ahead(
    views: Mapping[str, View], requests: Iterable[TargetRequest], expected: Sequence[Resolution]
) -> None:
    """Read what the cache has of expected releases while the resolvers run, or wait for the network."""
    packages = {part.target.platform: part.packages for part in expected}
    for each in requests:
        view, files = views[each.view_key], dict[str, ListedFile]()
        for package in packages.get(each.request.target.platform, ()):
            if (file := view.read_ahead(package.name, package.version)) is not None:
                files[package.name] = file
            # Requests go first.
            await asyncio.sleep(0)
        view.overlaps(files)


def _newer_versions(versions: Iterable[str], pinned: str | None) -> set[Version]:
    """The versions above a pin; pre-releases only if the pin is one. None: all."""
    found = set(map(Version, versions))
    if pinned is None:
        return found
    pin = Version(pinned)
    if not pin.is_prerelease:
        found = {each for each in found if not each.is_prerelease}
    return {each for each in found if each > pin}


def _warnings(views: Iterable[View], undated: Mapping[str, set[Version]]) -> Iterator[str]:
    """One for all digests that are missing, and one for each package in `undated`.

    undated: the releases without an upload time that the targets of one run left out.
    """
    if missing := missing_digests(view.digests for view in views):
        yield missing
    for name, releases in sorted(undated.items()):
        if releases:
            newest = ", ".join(map(str, sorted(releases)[-_NAMED:]))
            if len(releases) > _NAMED:
                newest += f" (and {len(releases) - _NAMED} older)"
            have = "have" if len(releases) > 1 else "has"
            yield (
                f"{name} {newest} {have} no upload time yet: left out; "
                "once the index gives it, `envspec lock --upgrade` includes it"
            )


async def _resolve(
    target: TargetRequest, resolver: Resolver, view: View, context: Context, loopback: Loopback, *, reuses_pages: bool
) -> Resolution:
    """reuses_pages: whether the resolver may use what its own cache has of the view's pages."""
    platform = target.request.target.platform.value
    context.reporter.progress(Step("resolving", of=platform))
    with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
        work = Path(folder)
        cached = work / "cache"
        if reuses_pages:
            cached = _cache_folder(context.cache / "engines", cached)
        workspace = Workspace(simple_url(view.key, resolver.bodies), loopback.proxy, cached, work)
        request, pins = await _readable_pins(target.request, resolver, view, workspace)
    context.reporter.progress(Step(f"reading the metadata of {counted(len(pins), 'package')}", of=platform))
    # Not needed before, and imported while the resolver ran.
    from envspec.resolve.pypi import packages

    resolution = await packages.build(request, pins, view)
    context.reporter.progress(Step(counted(len(resolution.packages), "package"), of=platform))
    return resolution


def _cache_folder(preferred: Path, other: Path) -> Path:
    """`preferred` if it is writable, else the other one, of this run."""
    try:
        preferred.mkdir(parents=True, exist_ok=True)
    except OSError:
        return other
    return preferred if os.access(preferred, os.W_OK) else other


async def _readable_pins(
    request: PypiRequest, resolver: Resolver, view: View, workspace: Workspace
) -> tuple[PypiRequest, Pins]:
    """The pins, and the request that they satisfy: without the releases whose sdist cannot be read."""
    while True:
        pins = await _pins(request, resolver, view, workspace)
        # A resolver that has all pages in its own cache may end before the indexes can be read.
        await view.served.wait()
        await asyncio.gather(*(view.read_sdist(name, version) for name, version in pins.items()))
        unreadable = view.unreadable
        excluded: dict[Release, str] = {}
        for name, version in pins.items():
            release = name, Version(version)
            if release in unreadable:
                excluded[release] = unreadable[release]
        if not excluded:
            return request, pins
        request = request.with_bounds(exclusions_of(excluded))


async def _pins(request: PypiRequest, resolver: Resolver, view: View, workspace: Workspace) -> Pins:
    """The resolver's pins.

    An index that fails stops the resolver, which could take something older instead, and so does a line that nothing
    satisfies: resolvers may try every release of everything else first.
    """
    running = asyncio.ensure_future(_run_resolver(request, resolver, view, workspace))
    failing = asyncio.ensure_future(view.failed.wait())
    refusing = asyncio.ensure_future(_refused_lines(request, view))
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


async def _refused_lines(request: PypiRequest, view: View) -> Sequence[RefusedLine]:
    # Resolvers start before the indexes can be read.
    await view.served.wait()
    return await refused_lines(request, view)


async def _run_resolver(request: PypiRequest, resolver: Resolver, view: View, workspace: Workspace) -> Pins:
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
            return await _run_resolver(request, resolver, view, workspace)
        raise Unsolvable(without_order(error.message)) from error
    return {normalised(name): without_order(version) for name, version in pins.items()}
