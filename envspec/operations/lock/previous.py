"""What of an existing lock may decide anything in the next one, or in a check of it.

Its cutoffs and versions may: files, hashes and URLs come from indexes and channels in any case. The digests of its base
image and the commits of its git sources are used as they are, so those of a lock of another machine are looked up
first: a lock's own checksum proves nothing, because whoever changes a lock writes another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from envspec.base_image.cuda import REPOSITORY
from envspec.base_image.plan import pinned_digest
from envspec.context import Context
from envspec.facts import Facts
from envspec.fetch.sources import commit_of, is_reachable, unreachable
from envspec.io.tasks import run_interruptible
from envspec.models import BaseImage, Commit, Lock, Package, PinnedDigest, Platform, PlatformCuda, Resolution, WheelFile
from envspec.operations.lock.assemble import read_creation
from envspec.operations.lock_state import BRIEF
from envspec.operations.session import Session
from envspec.registry.client import Registry, resolve_digests
from envspec.registry.errors import ImageNotFound
from envspec.registry.reference import Reference, parse
from envspec.spec import RequirementKind, Spec
from envspec.spec.requirements import read_git
from envspec.structs import replace

_NO_FILE: Final = WheelFile("", "", "", None)


def cutoffs_of(lock: Lock) -> Lock:
    """The lock with only its cutoffs, the base image's digests and the commits of sources."""
    return replace(lock, resolutions=(), decisions=(), overrides=(), system=(), images=())


def versions_of(lock: Lock) -> tuple[Resolution, ...]:
    """The lock's resolutions without a wheel's file, hash or URL.

    A conda package stays whole: it is only compared with the records of its channel.
    """

    def bare(package: Package) -> Package:
        return Package(package.name, package.version, _NO_FILE, ())

    return tuple(replace(part, packages=tuple(map(bare, part.packages))) for part in lock.resolutions)


def check_pins(lock: Lock, spec: Spec, facts: Facts, context: Context) -> tuple[Lock, tuple[str, ...]]:
    """The lock without the digests and commits that do not follow from its tags and branches; what is undecided.

    Raises:
        NetworkError: a registry or a repository can't be read, and no recorded fact decides.
        UnfitMachine: the spec has git sources, and there is no git.
    """
    return run_interruptible(_check_pins(lock, spec, facts, context))


async def _check_pins(lock: Lock, spec: Spec, facts: Facts, context: Context) -> tuple[Lock, tuple[str, ...]]:
    unverified: list[str] = []
    commits = tuple([each async for each in _commits(lock, spec, context.environ, unverified.append)])

    async def verified(base: BaseImage | None) -> BaseImage | None:
        return base and replace(base, digests=tuple(await _digests(base, facts, context, unverified.append)))

    own: list[PlatformCuda] = []
    for each in lock.platform_cuda:
        own.append(replace(each, base_image=await verified(each.base_image)))
    base = await verified(lock.base_image)
    return replace(lock, commits=commits, base_image=base, platform_cuda=tuple(own)), tuple(unverified)


async def _commits(
    lock: Lock, spec: Spec, environ: Mapping[str, str], report: Callable[[str], None]
) -> AsyncIterator[Commit]:
    found = {each.requirement: each for each in lock.commits}
    for requirement in spec.pip.dependencies:
        recorded = found.get(str(requirement))
        if requirement.kind is not RequirementKind.GIT or recorded is None:
            continue
        address = read_git(requirement.url or "")
        locked, now = read_git(recorded.address).ref, await commit_of(address, requirement.name, environ)
        if now == address.ref:
            # The spec's own commit may be one of a fork: a wheel in the cache would hide it.
            if not await is_reachable(address, now, requirement.name, environ):
                raise unreachable(address, now, requirement.name)
            if locked == now:
                yield recorded
        elif locked == now:
            yield recorded
        elif await is_reachable(address, locked, requirement.name, environ):
            branch = address.ref or "its default branch"
            report(
                f"{requirement.name}: {branch} has moved to {now}; the locked commit {locked} is in its history, and "
                "nothing shows that the branch was there when it was locked"
            )
            yield recorded


async def _digests(
    base: BaseImage, facts: Facts, context: Context, report: Callable[[str], None]
) -> list[PinnedDigest]:
    """The digests that are right. Those that are missing are not looked up; of the spec's, their creation is."""
    recorded: dict[Platform, PinnedDigest] = {}
    found: list[PinnedDigest] = []
    doubtful: list[PinnedDigest] = []
    dated: list[PinnedDigest] = []
    for each in base.digests:
        if base.repository == REPOSITORY:
            recorded[each.platform] = pinned_digest(base.tag, each.platform, facts)
        if each.source == "spec" and each.created:
            dated.append(each)
        if each.digest and each == recorded.get(each.platform):
            found.append(each)
        elif each.digest and each.source != "spec":
            doubtful.append(each)
    if not doubtful and not dated:
        return found
    async with Session(context, BRIEF) as session:
        registry = await session.registry()
        for each in dated:
            created = await read_creation(base, each, session, context.now())
            found += [replace(each, created=created)]
        for each in doubtful:
            known = recorded.get(each.platform)
            right = await _digest(base, each, known.digest if known else None, registry, report)
            if right:
                found.append(right)
    return found


async def _digest(
    base: BaseImage, locked: PinnedDigest, recorded: str | None, registry: Registry, report: Callable[[str], None]
) -> PinnedDigest | None:
    where = f"{base.repository}:{base.tag}"
    now = await _pinned(parse(where), locked, registry)
    if now is not None and now.digest == locked.digest:
        return now
    if now is not None and now.digest == recorded:
        # The tag still names the recorded digest.
        return None
    there = await _pinned(parse(f"{base.repository}@{locked.digest}"), locked, registry)
    if there is not None:
        has = f"names {now.digest} now" if now else "is gone"
        report(
            f"{locked.platform.value}: base image {where} {has}; the locked {locked.digest} is in the repository, and "
            "nothing shows that the tag ever named it"
        )
    return there


async def _pinned(reference: Reference, locked: PinnedDigest, registry: Registry) -> PinnedDigest | None:
    """The registry's digest for the platform; None if it has none."""
    try:
        [found] = await resolve_digests(reference, [locked.platform], registry)
    except ImageNotFound:
        return None
    return found
