"""Every target resolved against the loopback index."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from socket import socket
from typing import Final

from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec.context import Context, Step
from envspec.errors import NoSolution, UsageError
from envspec.io.confine import PROXY, Listen, Sandbox, bubblewrap
from envspec.io.http import open_http
from envspec.io.store import Store
from envspec.models import Resolution
from envspec.resolve import cache
from envspec.resolve.pypi import packages
from envspec.resolve.pypi.errors import needed_by_builds, refusal, refuse_sdists
from envspec.resolve.pypi.index.client import Upstream, without_digest
from envspec.resolve.pypi.index.routing import Rules
from envspec.resolve.pypi.index.server import Entry, listening, serve, simple_url
from envspec.resolve.pypi.index.view import Pages, View, normalised
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.resolver import BuildFailed, Engine, Pins, Place, Request, Unsolvable

#: How many releases of one package are named.
_NAMED = 3


class LeftOut:
    """What the targets of one run left out, told once for a package."""

    def __init__(self) -> None:
        self._releases: dict[str, set[Version]] = {}

    def add(self, late: Mapping[str, Sequence[str]], pins: Mapping[str, str | None]) -> None:
        """Count what a target would have taken, or named as its newest: releases newer than its pin.

        late: versions by package. pins: what was taken; None where nothing could be. As everywhere, a pre-release
        counts beside a pre-release only.
        """
        for name, versions in late.items():
            if name not in pins:
                continue
            pin = Version(taken) if (taken := pins[name]) is not None else None
            newer = {version for version in map(Version, versions) if _counts(version, pin)}
            self._releases.setdefault(name, set()).update(newer)

    def texts(self) -> Iterator[str]:
        """A warning for each package, in the order of their names."""
        for name, releases in sorted(self._releases.items()):
            if releases:
                newest = [str(version) for version in sorted(releases)[-_NAMED:]]
                more = f" (and {len(releases) - _NAMED} older)" if len(releases) > _NAMED else ""
                has = "have" if len(releases) > 1 else "has"
                yield (
                    f"{name} {', '.join(newest)}{more} {has} no upload time yet: left out; "
                    "once the index tells it, `envspec lock --upgrade` counts it"
                )


def asked_names(request: Request) -> dict[str, None]:
    """The names that the spec asks for, without pins: what to tell where there is no solution."""
    found = filter(None, map(parsed, request.requirements))
    return dict.fromkeys(str(canonicalize_name(requirement.name)) for requirement in found)


def _counts(version: Version, pin: Version | None) -> bool:
    if pin is None:
        return True
    return version > pin and (not version.is_prerelease or pin.is_prerelease)


#: What may be built before a lock is there.
_WHAT: Final = "resolving with [pip] allow_sdist"
_BUILD_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Question:
    """One target, whole: what is asked, by which rules, in which marker environment.

    identity: JSON of all that decides the rules (indexes, `as_of`, facts, ...), without credentials: rules hold
    functions, which cannot be compared. walked: names of which an engine will try one release after another.
    """

    request: Request
    rules: Rules
    environment: Mapping[str, str]
    identity: object
    walked: tuple[str, ...] = ()

    @property
    def view_key(self) -> str:
        """Names what the target may see, whatever is asked."""
        target = self.request.target
        return cache.key_of([self.identity, target.platform.value, target.python.version, target.glibc, target.macos])[
            :20
        ]


async def resolve_all(
    questions: Sequence[Question],
    engine: Engine,
    store: Store,
    context: Context,
    meanwhile: Callable[[], object] = bool,
) -> tuple[Resolution, ...]:
    """Resolve every question, in their order; those asked before are answered from memory.

    meanwhile: called in a thread once engines run, for what would otherwise be done after them.

    Raises:
        UsageError: the engine can't resolve for one of the targets on this machine.
        NoSolution: no set of releases satisfies a question, or the one that does holds sdists that may not be built.
        NoConfinement: sdists may be built, and nothing here confines that.
        NetworkError: an index failed, or offline and not in memory.
    """
    keys = [_answer_key(question, engine) for question in questions]
    asked = dict(zip(keys, questions, strict=True))
    targets = {key: question.request.target for key, question in asked.items()}
    known = {key: found for key in asked if (found := cache.recall(store, key, targets[key])) is not None}
    fresh = {key: question for key, question in asked.items() if key not in known}
    for target in (targets[key] for key in fresh):
        if why := engine.unable(target):
            raise UsageError(f"{engine.version.partition(' ')[0]}: {why}", hint="use --resolver uv")
    if fresh:
        known |= await _resolve_fresh(fresh, engine, store, context, meanwhile)
    refuse_sdists([(question.request, known[key]) for key, question in zip(keys, questions, strict=True)])
    return tuple(known[key] for key in keys)


async def _resolve_fresh(
    questions: Mapping[str, Question],
    engine: Engine,
    store: Store,
    context: Context,
    meanwhile: Callable[[], object],
) -> dict[str, Resolution]:
    """Answers by their keys; each is remembered as soon as it is there, unless it rests on what may yet change."""
    upstream = Upstream(store, context.now, environ=context.environ)
    rules = {q.view_key: q.rules for q in questions.values()}
    pages = Pages(upstream, rules)
    views = {key: View(upstream, pages, each, key) for key, each in rules.items()}
    turn = asyncio.Semaphore(context.jobs)
    left_out = LeftOut()

    served: asyncio.Future[Listen] = asyncio.get_running_loop().create_future()

    async def listen(listener: socket) -> None:
        await (await asyncio.shield(served))(listener)

    async def one(key: str, question: Question, entry: Entry) -> Resolution:
        view = views[question.view_key]
        try:
            async with turn:
                resolution = await _resolve(question, engine, view, context, entry, listen)
        except NoSolution:
            left_out.add(view.late, asked_names(question.request))
            raise
        left_out.add(view.late, {package.name: package.version for package in resolution.packages})
        if not view.late and not view.wheels.may_come:
            cache.remember(store, key, resolution)
        return resolution

    async with AsyncExitStack() as stack:
        entry = stack.enter_context(listening())
        # Engines start before there is anybody to answer them: they need 0.1 s until they ask, and HTTP as long to be
        # imported. Their first requests wait at the socket.
        tasks = [asyncio.ensure_future(one(key, q, entry)) for key, q in questions.items()]
        guesses: list[asyncio.Task[None]] = []
        try:
            await asyncio.to_thread(import_module, "aiohttp.web")
            upstream.http = None if context.is_offline else await stack.enter_async_context(open_http(context.environ))
            served.set_result(await stack.enter_async_context(serve(views, entry)))
            guesses += [
                asyncio.ensure_future(views[q.view_key].foresee(name)) for q in questions.values() for name in q.walked
            ]
            await asyncio.to_thread(meanwhile)
            return dict(zip(questions, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in (*tasks, *guesses):
                task.cancel()
            await asyncio.gather(*tasks, *guesses, return_exceptions=True)
            await upstream.close()
            store.is_settled &= not any(view.late or view.wheels.may_come for view in views.values())
            if text := without_digest(view.wheels for view in views.values()):
                context.reporter.warning(text)
            for text in left_out.texts():
                context.reporter.warning(text)


async def _resolve(
    question: Question, engine: Engine, view: View, context: Context, entry: Entry, listen: Listen
) -> Resolution:
    platform = question.request.target.platform.value
    builds = bool(question.request.sdists)
    program = await bubblewrap(context.environ, context.unconfined, _WHAT) if builds else None
    context.reporter.progress(Step("resolving", of=platform))
    with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
        work = Path(folder)
        place = Place(
            simple_url(view.key, engine.bodies(question.request)),
            PROXY if program else entry.proxy,
            # What a build writes into an engine's cache would be in the next lock.
            work / "cache" if builds else _cache_folder(context.cache / "engines", work),
            work,
            _BUILD_PATH if builds else "",
            Sandbox(program, folder=work) if program else None,
            listen,
        )
        request, pins = await _buildable(question.request, engine, view, place)
    context.reporter.progress(Step(f"reading the requirements of {len(pins)} packages", of=platform))
    resolution = await packages.build(request, question.environment, pins, view)
    context.reporter.progress(Step(f"{len(resolution.packages)} packages", of=platform))
    return resolution


def _cache_folder(wanted: Path, work: Path) -> Path:
    """`wanted`; where nothing can be written there, a folder that goes with the run."""
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError:
        return work / "cache"
    return wanted if os.access(wanted, os.W_OK) else work / "cache"


async def _buildable(request: Request, engine: Engine, view: View, place: Place) -> tuple[Request, Pins]:
    """The engine's answer, and the request that it answers: without the releases that can't be built for the target.

    Raises:
        BuildFailed: a build fails for another reason.
    """
    while True:
        try:
            pins = await _pins(request, engine, view, place)
        except BuildFailed as fault:
            if fault.release is None or fault.of_python is None or fault.release in request.excluded:
                raise
            series = request.target.python.series
            excluded = {fault.release: f"can't be built for Python {series} (its build says: {fault.of_python})"}
        else:
            await asyncio.gather(*(view.read_sdist(name, version) for name, version in pins.items()))
            chosen = ((name, Version(version)) for name, version in pins.items())
            excluded = {release: view.unreadable[release] for release in chosen if release in view.unreadable}
            if not excluded:
                return request, pins
        request = request.without(excluded)


async def _pins(request: Request, engine: Engine, view: View, place: Place) -> Pins:
    """The engine's answer. An index that fails ends the engine: it may go round by taking something older."""
    running = asyncio.ensure_future(engine.resolve(request, place))
    failing = asyncio.ensure_future(view.failed.wait())
    try:
        await asyncio.wait({running, failing}, return_when=asyncio.FIRST_COMPLETED)
        if view.faults:
            raise view.faults[0]
        pins = {normalised(name): version for name, version in (await running).items()}
        if empty := sorted(view.hollow - pins.keys()):
            raise needed_by_builds(empty, request)
        return pins
    except BuildFailed as error:
        # What was there for the build in its place was empty.
        raise (needed_by_builds(sorted(view.hollow), request) if view.hollow else error) from error
    except Unsolvable as error:
        raise await refusal(error, request, view) from error
    finally:
        running.cancel()
        failing.cancel()
        await asyncio.gather(running, failing, return_exceptions=True)


def _answer_key(question: Question, engine: Engine) -> str:
    request = question.request
    return cache.key_of(
        [
            question.view_key,
            engine.version,
            sorted(request.requirements),
            sorted(request.constraints),
            sorted(request.sdists),
            request.preferences,
        ]
    )
