"""One function a command: its stages, in order. Nothing else joins stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from importlib import import_module
from pathlib import Path

from envspec import toml
from envspec.effects.default_index import default_index_url
from envspec.effects.event_loop import run_to_end
from envspec.effects.http import open_http
from envspec.errors import StaleLock, UsageError
from envspec.facts import Facts, load_facts
from envspec.facts.gpu import find_gpu
from envspec.facts.torch import INDEX_FAMILY, PYTORCH_INDEX
from envspec.lock.folder import read_lock, write_folder
from envspec.lock.head import LOCK_FILE
from envspec.model import Lock, Resolution
from envspec.recall import key_of, remember
from envspec.resolve.compose import Composed, Moments, Places, compose, wheel_urls
from envspec.resolve.direct import fetch_wheel
from envspec.resolve.engine import Unsolvable
from envspec.resolve.engines import ENGINES
from envspec.resolve.index.page import ListedFile
from envspec.resolve.index.store import Store
from envspec.resolve.stage import World, resolve_all
from envspec.resolve.upgrade import keeping, known_names, moved
from envspec.spec import Requirement, Spec, load_spec
from envspec.spec_hash import input_sha256
from envspec.target import targets_of


class Upgrade(Enum):
    """What may move. KEEP: nothing beyond the lock's `as_of`. ALL: everything that the spec's `as_of` allows."""

    KEEP = "keep"
    ALL = "all"


class Network(Enum):
    USE = "use"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class LockRequest:
    """One spec to lock. upgrade_packages: normalised names that may move although the rest stays."""

    spec_path: Path
    directory: Path
    resolver: str = "uv"
    network: Network = Network.USE
    upgrade: Upgrade = Upgrade.KEEP
    upgrade_packages: tuple[str, ...] = ()
    jobs: int = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The effects of a run. warn: told each warning, one line. report: told the progress of each platform."""

    environ: Mapping[str, str]
    home: Path
    cache: Path
    now: Callable[[], datetime]
    warn: Callable[[str], None]
    report: Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Locked:
    """What came of a spec. changed: the paths that were written or removed."""

    lock: Lock
    changed: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """What the stages of one lock share."""

    request: LockRequest
    around: Surroundings
    store: Store
    spec: Spec
    facts: Facts
    old: Lock | None
    moments: Moments
    upgraded: tuple[str, ...] = field(default=())


def lock(request: LockRequest, around: Surroundings) -> Locked:
    """Compile a spec into its lock and write it.

    Raises:
        EnvspecError: every refusal; the old lock is then as it was.
    """
    started = around.now().replace(microsecond=0)
    told: list[str] = []
    around = replace(around, warn=_heard(around.warn, told))
    keeps = request.upgrade is Upgrade.KEEP and not request.upgrade_packages
    facts_at_hand = load_facts().version
    made_from = (request.spec_path, request.directory, request.resolver, facts_at_hand, around.environ)
    key = key_of(*made_from) if keeps else None
    spec = load_spec(request.spec_path, started)
    _refuse_what_is_not_built(spec)
    facts = load_facts(spec.facts.tables())
    for name in spec.cuda.gpus if spec.cuda else ():
        # A name that nobody knows is told at once, not after a resolution.
        find_gpu(facts, name)
    old = _old_lock(request.directory, around)
    upgraded = _upgradable(request, spec, around)
    store = Store(around.cache)
    try:
        work = _Work(request, around, store, spec, facts, old, _moments(spec, old, request, started), upgraded)
        made = _make(work, started)
        from envspec.assemble import files_of, is_open

        files = files_of(made)
        changed = write_folder(request.directory, files)
        if key is not None and not is_open(made):
            remember(store, key, files, told)
    finally:
        store.close()
    return Locked(made, changed)


def _heard(warn: Callable[[str], None], told: list[str]) -> Callable[[str], None]:
    def both(text: str) -> None:
        told.append(text)
        warn(text)

    return both


def _make(work: _Work, started: datetime) -> Lock:
    around = work.around
    targets, decisions = targets_of(work.spec, work.facts, work.moments.as_of)
    wheels = run_to_end(_fetch_wheels(work, wheel_urls(work.spec)))
    places = Places(default_index_url(around.environ), around.environ.get("ENVSPEC_PYTORCH_INDEX") or PYTORCH_INDEX)

    def composed(moments: Moments) -> list[Composed]:
        return [compose(work.spec, target, work.facts, moments, places, wheels) for target in targets]

    questions, moments, resolutions = _resolve(work, composed, started)
    # Not before: by now it was imported while the engines ran.
    from envspec.assemble import Answered, Asker, assemble

    answered = Answered(work.spec, work.facts, moments, decisions, tuple(questions), resolutions)
    asker = Asker(around.environ, around.home, around.warn) if work.request.network is Network.USE else None
    kept = None if work.request.upgrade is Upgrade.ALL else work.old
    made = assemble(answered, _identity(work.request.spec_path), kept, asker)
    for text in made.warnings:
        around.warn(text)
    return made.lock


def _identity(path: Path) -> str:
    return input_sha256(toml.loads(path.read_text(encoding="utf-8")))


def _resolve(
    work: _Work, composed: Callable[[Moments], list[Composed]], started: datetime
) -> tuple[list[Composed], Moments, tuple[Resolution, ...]]:
    """Resolve: what the moments allow, or, for `--upgrade-package`, what its names must move and nothing else."""
    pinned, moments = work.old, work.moments
    if pinned is not None and work.upgraded:
        pinned, moments = _upgrade(work, composed, pinned, started)
    questions = composed(moments)
    # Where single packages have moved, the moments alone don't tell what the others were kept at.
    asked = questions if pinned is None or not moments.names else [keeping(q, pinned) for q in questions]
    return questions, moments, _ask(work, asked)


def _upgrade(
    work: _Work, composed: Callable[[Moments], list[Composed]], old: Lock, started: datetime
) -> tuple[Lock, Moments]:
    """The lock with the pins that `--upgrade-package` leads to, and the moments of those that moved.

    Everything may move as far as to this moment, and nothing does that can be kept.
    """
    names = work.upgraded
    asked = {requirement.name for requirement in work.spec.pip.dependencies}
    known_names(names, old, asked)
    before = {package.name for resolution in old.resolutions for package in resolution.packages}
    # What the spec asks for since is no part of the upgrade, and torch's build is chosen anew only for its family.
    still = dict.fromkeys(asked - before - set(names), work.moments.as_of)
    family = {"torch": started} if set(names) & set(INDEX_FAMILY) else {}
    free = composed(Moments(work.moments.as_of, {**still, **family}, others=started))

    def moving(newer: Sequence[str]) -> tuple[Resolution, ...]:
        return _ask(work, [keeping(q, old, but=names, newer=newer) for q in free])

    # An engine keeps a package that another one's kept pin holds back, where it could have moved both.
    newer: list[str] = []
    for tried in (names, *((name,) for name in names if len(names) > 1)):
        with suppress(Unsolvable):
            moving([*newer, *tried])
            newer += tried
            if tried == names:
                break
    new = moving(newer)
    moments = {**work.moments.names, **dict.fromkeys(moved(old, new), started), **still}
    locked = {package.name for resolution in new for package in resolution.packages}
    names_moments = {name: at for name, at in moments.items() if name in locked and at != work.moments.as_of}
    return replace(old, resolutions=new), replace(work.moments, names=names_moments)


def _ask(work: _Work, questions: Sequence[Composed]) -> tuple[Resolution, ...]:
    around = work.around
    world = World(
        work.store, around.cache, around.environ, around.now, around.report, lambda: import_module("envspec.assemble")
    )
    engine = ENGINES[work.request.resolver]
    offline = work.request.network is Network.OFFLINE
    asked = [q.question for q in questions]
    return run_to_end(resolve_all(asked, engine, world, offline=offline, jobs=work.request.jobs))


def _moments(spec: Spec, old: Lock | None, request: LockRequest, started: datetime) -> Moments:
    """The spec's own `as_of`; else the old lock's, until `--upgrade`; else this moment."""
    if spec.env.as_of is not None:
        return Moments(spec.env.as_of, {})
    if old is None or request.upgrade is Upgrade.ALL:
        return Moments(started, {})
    return Moments(old.as_of, dict(old.package_as_of))


def _upgradable(request: LockRequest, spec: Spec, around: Surroundings) -> tuple[str, ...]:
    """The names that `--upgrade-package` may move: with an `as_of` in the spec, nothing moves until that does."""
    if spec.env.as_of is not None and (request.upgrade_packages or request.upgrade is Upgrade.ALL):
        around.warn(
            f"{request.spec_path}: as_of = {spec.env.as_of.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ} bounds "
            f"every release: nothing newer is taken until it moves (envspec lock --as-of now {request.spec_path})"
        )
        return ()
    return request.upgrade_packages


def _old_lock(directory: Path, around: Surroundings) -> Lock | None:
    if not (directory / LOCK_FILE).exists():
        return None
    try:
        return read_lock(directory)
    except StaleLock as error:
        around.warn(f"{error.message}: it is written anew")
        return None


def _refuse_what_is_not_built(spec: Spec) -> None:
    if spec.conda is not None and spec.conda.dependencies:
        raise UsageError(
            "[conda] dependencies can't be locked yet", hint="leave [conda] out, or take what it asks for from [pip]"
        )


async def _fetch_wheels(work: _Work, requirements: Sequence[Requirement]) -> dict[str, ListedFile]:
    """The wheels that the spec names, by their URL without credentials."""
    if not requirements:
        return {}
    async with AsyncExitStack() as stack:
        offline = work.request.network is Network.OFFLINE
        http = None if offline else await stack.enter_async_context(open_http(work.around.environ))
        fetched = await asyncio.gather(
            *(fetch_wheel(r, work.moments.as_of, http, work.store, work.around.now) for r in requirements)
        )
    return {str(r.without_credentials().url): file for r, file in zip(requirements, fetched, strict=True)}
