"""One function a command: its stages, in order. Nothing else joins stages."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path

from envspec import toml
from envspec.base_image import BaseImagePlan, CudaRequest, plan_base_image
from envspec.effects.default_index import default_index_url
from envspec.effects.event_loop import run_to_end
from envspec.effects.http import Patience, open_http
from envspec.errors import NetworkError, StaleLock, UsageError
from envspec.facts import Facts, load_facts
from envspec.facts.torch import PYTORCH_INDEX
from envspec.lock.document import dump
from envspec.lock.folder import read_lock, write_folder
from envspec.lock.head import FORMAT, LOCK_FILE
from envspec.lock.requirements import requirements_name, requirements_text
from envspec.model import BaseImage, Lock, PinnedDigest, Platform, Resolution
from envspec.recall import key_of, remember
from envspec.resolve.compose import Composed, Moments, Places, compose, wheel_urls
from envspec.resolve.direct import fetch_wheel
from envspec.resolve.engine import Unsolvable
from envspec.resolve.engines import ENGINES
from envspec.resolve.index.page import ListedFile
from envspec.resolve.index.store import Store
from envspec.resolve.stage import World, resolve_all
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
    key = key_of(request.spec_path, request.directory, request.resolver, facts_at_hand) if keeps else None
    spec = load_spec(request.spec_path, started)
    _refuse_what_is_not_built(spec)
    facts = load_facts(spec.facts.tables())
    old = _old_lock(request.directory, around)
    upgraded = _upgradable(request, spec, around)
    store = Store(around.cache)
    try:
        work = _Work(request, around, store, spec, facts, old, _moments(spec, old, request, started), upgraded)
        made = _make(work, started)
        files = files_of(made)
        changed = write_folder(request.directory, files)
        if key is not None and not _is_open(made):
            remember(store, key, files, told)
    finally:
        store.close()
    return Locked(made, changed)


def _heard(warn: Callable[[str], None], told: list[str]) -> Callable[[str], None]:
    def both(text: str) -> None:
        told.append(text)
        warn(text)

    return both


def _is_open(made: Lock) -> bool:
    """Whether a digest is missing, which another run may find."""
    return made.base_image is not None and any(pinned.digest is None for pinned in made.base_image.digests)


def files_of(made: Lock) -> dict[str, bytes]:
    """The lock's folder: file name -> bytes."""
    files = {
        requirements_name(resolution.target.platform): requirements_text(made, resolution.target.platform).encode()
        for resolution in made.resolutions
    }
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return files | {LOCK_FILE: dump(made, hashes).encode()}


def _make(work: _Work, started: datetime) -> Lock:
    targets, decisions = targets_of(work.spec, work.facts, work.moments.as_of)
    wheels = run_to_end(_fetch_wheels(work, wheel_urls(work.spec)))
    places = Places(
        default_index_url(work.around.environ), work.around.environ.get("ENVSPEC_PYTORCH_INDEX") or PYTORCH_INDEX
    )

    def composed(moments: Moments) -> list[Composed]:
        return [compose(work.spec, target, work.facts, moments, places, wheels) for target in targets]

    questions, moments, resolutions = _resolve(work, composed, started)
    plan = plan_base_image(_cuda_request(work.spec), resolutions, work.facts)
    digests = _digests(work, plan)
    base = replace(plan.base_image, digests=digests) if plan.base_image else None
    # Which build of torch it would be is decided before anything is resolved: it may not be in the lock at all.
    holds_torch = any(package.name == "torch" for r in resolutions for package in r.packages)
    decided = questions if holds_torch else []
    warnings = [
        *(f"{q.question.request.target.platform.value}: {text}" for q in decided for text in q.warnings),
        *(f"{r.target.platform.value}: {text}" for r in resolutions for text in r.warnings),
        *plan.warnings,
        *_without_digest(base, digests),
    ]
    for text in dict.fromkeys(warnings):
        work.around.warn(text)
    return Lock(
        format=FORMAT,
        name=work.spec.env.name,
        input_sha256=input_sha256(toml.loads(work.request.spec_path.read_text(encoding="utf-8"))),
        as_of=moments.as_of,
        resolutions=resolutions,
        decisions=(*decisions, *(d for q in decided for d in q.decisions), *plan.decisions),
        base_image=base,
        driver=plan.driver,
        gpu_code=plan.gpu_code,
        gpus=work.spec.cuda.gpus if work.spec.cuda else (),
        facts=work.facts.version,
        package_as_of=tuple(sorted(moments.names.items())),
    )


def _resolve(
    work: _Work, composed: Callable[[Moments], list[Composed]], started: datetime
) -> tuple[list[Composed], Moments, tuple[Resolution, ...]]:
    """Resolve; for `--upgrade-package` first with nothing else moved, then with what its new release must move."""
    questions = composed(work.moments)
    try:
        return questions, work.moments, _ask(work, questions)
    except Unsolvable:
        if not work.upgraded or work.old is None:
            raise
    names = {package.name for resolution in work.old.resolutions for package in resolution.packages}
    moments = replace(work.moments, names=dict.fromkeys(names, started))
    questions = composed(moments)
    resolutions = _ask(work, questions, prefer=_pins(work.old, work.upgraded))
    moved = _moved(work.old, resolutions)
    moments = replace(work.moments, names={**work.moments.names, **dict.fromkeys(moved, started)})
    return composed(moments), moments, resolutions


def _ask(work: _Work, questions: Sequence[Composed], prefer: Mapping[str, str] | None = None) -> tuple[Resolution, ...]:
    around = work.around
    world = World(work.store, around.cache, around.environ, around.now, around.report)
    asked = [q.question for q in questions]
    if prefer:
        asked = [replace(q, request=replace(q.request, preferences=tuple(sorted(prefer.items())))) for q in asked]
    engine = ENGINES[work.request.resolver]
    offline = work.request.network is Network.OFFLINE
    return run_to_end(resolve_all(asked, engine, world, offline=offline, jobs=work.request.jobs))


def _pins(old: Lock, moving: Sequence[str]) -> dict[str, str]:
    return {p.name: p.version for r in old.resolutions for p in r.packages if p.name not in moving}


def _moved(old: Lock, new: Sequence[Resolution]) -> set[str]:
    before = {(r.target.platform, p.name, p.version) for r in old.resolutions for p in r.packages}
    return {p.name for r in new for p in r.packages if (r.target.platform, p.name, p.version) not in before}


def _moments(spec: Spec, old: Lock | None, request: LockRequest, started: datetime) -> Moments:
    """The spec's own `as_of`; else the old lock's, until `--upgrade`; else this moment."""
    if spec.env.as_of is not None:
        return Moments(spec.env.as_of, {})
    if old is None or request.upgrade is Upgrade.ALL:
        return Moments(started, {})
    return Moments(old.as_of, {**dict(old.package_as_of), **dict.fromkeys(request.upgrade_packages, started)})


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


def _cuda_request(spec: Spec) -> CudaRequest | None:
    if spec.cuda is None:
        return None
    return CudaRequest(spec.cuda.version, spec.cuda.flavor.value, spec.cuda.os.value, spec.cuda.gpus, spec.image.base)


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


def _without_digest(base: BaseImage | None, digests: Sequence[PinnedDigest]) -> tuple[str, ...]:
    unknown = [pinned for pinned in digests if pinned.digest is None]
    if base is None or not unknown:
        return ()
    platforms = ", ".join(pinned.platform.value for pinned in unknown)
    why = "; ".join(dict.fromkeys(pinned.note for pinned in unknown))
    place = "[[facts.digest]]" if base.cuda_release else "[image] base"
    return (
        f"{platforms}: {base.repository}:{base.tag} is locked without its digest ({why}): lock again where "
        f"{base.repository.partition('/')[0]} answers, or state the digest in the spec ({place})",
    )


def _digests(work: _Work, plan: BaseImagePlan) -> tuple[PinnedDigest, ...]:
    """The old lock's digests for the same tag, until `--upgrade`; else the registry's; else what the plan knows."""
    base = plan.base_image
    if base is None:
        return ()
    kept = {d.platform: d for d in _kept(work, base)}
    planned = {d.platform: kept.get(d.platform, d) for d in base.digests}
    open_ones = [p for p, d in planned.items() if p not in kept and d.source != "spec"]
    if open_ones and work.request.network is Network.USE:
        try:
            asked = run_to_end(_ask_registry(work, base, open_ones))
            planned |= {d.platform: d for d in asked}
        except NetworkError as error:
            # The registry's answer would be better, but a lock must not need one: what the data records is right, too.
            planned |= {p: replace(planned[p], note=planned[p].note or error.message) for p in open_ones}
    return tuple(planned.values())


def _kept(work: _Work, base: BaseImage) -> tuple[PinnedDigest, ...]:
    old = work.old.base_image if work.old else None
    if old is None or work.request.upgrade is Upgrade.ALL or (old.repository, old.tag) != (base.repository, base.tag):
        return ()
    return tuple(d for d in old.digests if d.digest is not None)


async def _ask_registry(work: _Work, base: BaseImage, platforms: Sequence[Platform]) -> tuple[PinnedDigest, ...]:
    from envspec.image.credentials import Keychain
    from envspec.image.reference import parse
    from envspec.image.registry import Registry, resolve_digests

    around = work.around
    async with open_http(around.environ, patience=Patience(connect_s=5, stall_s=10, attempts=2)) as http:
        registry = Registry(http, Keychain(around.environ, around.home, around.warn), work.spec.registry.mirrors)
        return await resolve_digests(parse(f"{base.repository}:{base.tag}"), platforms, registry)
