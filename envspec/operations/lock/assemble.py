"""From resolutions to the lock: base image, digests, driver, GPU code, the image's settings.

Imported while the engines run (`Attempts._import_later`): nothing before them needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from envspec.base_image.apt import follows_base, newest_archive
from envspec.base_image.libraries import library_warnings
from envspec.context import Connectivity, Context
from envspec.errors import NetworkError
from envspec.facts import Facts
from envspec.io.tasks import run_interruptible
from envspec.lockfile.document import identity
from envspec.lockfile.export.conda import without_md5
from envspec.lockfile.header import FORMAT
from envspec.models import BaseImage, Lock, Package, PinnedDigest, Platform, Resolution, Target
from envspec.operations.build_settings import same_build, with_builds
from envspec.operations.lock.complete import complete, installed_on, unknown_digests
from envspec.operations.lock_state import BRIEF, LockState, Resolved, Upgrade, find_package, linux_platforms
from envspec.operations.shared_files import check_owners, conflict_warnings, idle_owners, with_built, with_owners
from envspec.reasons import Reason
from envspec.resolve.pypi.request import overrides_of
from envspec.resolve.upgrade import names_of
from envspec.spec import Spec
from envspec.spec.owner import path_from_lock
from envspec.spec.sections import ProjectInImage
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.operations.session import Session


def assemble(packages: Resolved) -> Lock:
    """The lock of resolved packages; warnings are reported.

    Raises:
        NoSolution: no image, no wheel contains code for a GPU of the spec, or none is named for a build.
        UsageError: a service whose package is not in the lock.
        RefusedValues: a package of `[pip] file_owner` does not have the files that it is to own.
    """
    state, conda, pypi = packages.state, packages.conda, packages.pypi
    spec, facts, context = state.spec, state.facts, state.context
    built = _built_parts(packages)
    check_owners(built, spec)
    resolutions = tuple(with_owners(part, spec) for part in built)
    # The build of torch is decided before anything is resolved: torch may not be in the lock at all.
    with_torch = [part.target for part in resolutions if find_package(part, "torch")]
    decided = [each for each in pypi.requests if each.request.target in with_torch]
    decisions = [*packages.decisions, *conda.decisions]
    for request in decided:
        decisions += request.decisions
    resolved = Lock(
        format=FORMAT,
        name=spec.env.name,
        input_sha256=state.input_sha256,
        as_of=state.as_of,
        resolutions=resolutions,
        decisions=tuple(decisions),
        base_image=None,
        driver=None,
        gpu_code=(),
        package_as_of=tuple(sorted(pypi.cutoffs.items())),
        conda_as_of=tuple(sorted(conda.cutoffs.items())),
        channels=conda.channels,
        base_sha256=state.base_sha256,
        # The cache knows what an adopted lock is made of: see `adopted_source`.
        spec="" if state.request.is_adopted else path_from_lock(state.request.spec_path, state.request.directory),
        package_ages=tuple(state.package_ages().values()),
        overrides=overrides_of(spec) if spec.pip.dependencies else (),
        commits=pypi.commits,
    )
    failures: dict[BaseImage, NetworkError] = {}
    old = None if state.request.upgrade is Upgrade.ALL else state.old

    def pinned(image: BaseImage) -> BaseImage:
        locked = old.on(image.digests[0].platform).base_image if old else None
        # Of another tool's lock, the recorded digests count: the next machine has the same.
        asking = replace(context, connectivity=Connectivity.OFFLINE) if state.request.is_adopted else context
        # A base whose packages were read has the digests by which it was.
        with_all, failure = run_interruptible(with_digests(image, state.beneath.image or locked, asking))
        if follows_base(spec):
            with_all = run_interruptible(_with_creation(with_all, state.started, asking))
        if failure is not None:
            failures[with_all] = failure
        return with_all

    lock, warnings_of_plan = complete(resolved, spec, facts, pinned, partial(_newest_archive, state))
    warnings = list(_on_platforms((each.request.target.platform, each.warnings) for each in decided))
    warnings += _on_platforms(_with_way_out(resolutions, pypi.way_out()))
    warnings += warnings_of_plan
    if not state.request.is_adopted:
        # There, the build of the image finds the digests.
        for image in lock.base_images:
            warnings += _without_digest(image, failures.get(image))
    warnings += _without_image(spec, lock.base_image)
    if lock.base_image:
        warnings += library_warnings(spec, resolutions, facts)
    warnings += _without_build(spec, resolutions)
    warnings += _without_python(resolutions, facts)
    warnings += _on_platforms((part.target.platform, conflict_warnings(part, spec, facts)) for part in resolutions)
    warnings += idle_owners(built, spec)
    lock = _with_images(lock, state.before)
    if (text := without_md5(lock)) is not None:
        warnings.append(text)
    for text in dict.fromkeys(warnings):
        context.reporter.warning(text)
    return lock


def _built_parts(packages: Resolved) -> list[Resolution]:
    """The packages of each target, with what they are installed on top of, their builds and their shared files."""
    state = packages.state
    old_parts = {part.target: part for part in state.before.resolutions} if state.before else {}
    built = state.built_before()
    parts: list[Resolution] = []
    for part in packages.resolutions:
        old = old_parts.get(part.target)
        made = installed_on(part, state.beneath.found.get(part.target.platform))
        made = with_builds(made, state.spec, state.facts)
        if old is not None:
            made = _with_wheels(made, old, built)
        parts.append(run_interruptible(with_built(made, state.store, state.context.cache, old)))
    return parts


def _on_platforms(warnings: Iterable[tuple[Platform, Iterable[str]]]) -> Iterator[str]:
    """Warnings after the platforms to which they apply, each text once."""
    platforms: dict[str, list[str]] = {}
    for platform, texts in warnings:
        for text in texts:
            platforms.setdefault(text, []).append(platform.value)
    for text, names in platforms.items():
        yield f"{', '.join(dict.fromkeys(names))}: {text}"


def _with_way_out(resolutions: Sequence[Resolution], way_out: str) -> Iterator[tuple[Platform, list[str]]]:
    """Warnings; the first about a package that went years back states the constraints with which none does."""
    first = _first_held_back(resolutions)
    for part in resolutions:
        texts: list[str] = []
        for warning in part.warnings:
            text = str(warning)
            if way_out and warning == first:
                text += f". {way_out[0].upper()}{way_out[1:]}"
            texts.append(text)
        yield part.target.platform, texts


def _first_held_back(resolutions: Sequence[Resolution]) -> Reason | None:
    for part in resolutions:
        for each in part.held_back:
            if each.since:
                return each.warning
    return None


def _with_wheels(part: Resolution, before: Resolution, built: Mapping[tuple[Target, str], Package]) -> Resolution:
    """With the wheels that were built of the same files for the same Python, beside the same packages.

    before: the packages in the lock before.
    built: see `LockState.built_before`.
    """
    packages, builds = list(part.packages), {each.name: each for each in part.builds}
    for at, package in enumerate(packages):
        old = built.get((part.target, package.file.sha256))
        if package.built or old is None or not same_build(before, part, package):
            continue
        if package.unbuilt and _required(before, package) != _required(part, package):
            # The lock before followed from its wheel, this one from what its sdist states.
            continue
        packages[at] = replace(package, built=old.built, record_sha256=old.record_sha256, unbuilt=None)
        recorded = before.build_of(package.name)
        if recorded is not None:
            builds[package.name] = replace(builds[package.name], compiler=recorded.compiler)
    return replace(part, packages=tuple(packages), builds=tuple(builds.values()))


def _required(part: Resolution, package: Package) -> set[tuple[str, str]]:
    """What a package requires of the others, by their names, each with its requirement."""
    found: set[tuple[str, str]] = set()
    for each in part.packages:
        found.update((each.name, by.requirement) for by in each.required_by if by.name == package.name)
    return found


def _with_images(lock: Lock, before: Lock | None) -> Lock:
    """With the recorded images of the lock before, if all that an image follows from is unchanged."""
    if before is None or not (before.system or before.images) or identity(before) != identity(lock):
        return lock
    return replace(lock, system=before.system, images=before.images)


def _without_image(spec: Spec, base: BaseImage | None) -> tuple[str, ...]:
    parts = {
        "[system]": spec.system,
        "[services]": spec.services,
        "[image] project": spec.image.project is not ProjectInImage.NONE,
        "[image] copy": spec.image.copied,
    }
    named = [part for part, is_set in parts.items() if is_set]
    if base is not None or not named:
        return ()
    why = "no base for one: add [cuda], or [image] base" if linux_platforms(spec) else "no linux platform"
    return (f"only an image has {' and '.join(named)}, and the spec has {why}",)


def _without_build(spec: Spec, resolutions: Sequence[Resolution]) -> Iterator[str]:
    locked = names_of(resolutions)
    built: set[str] = set()
    for part in resolutions:
        for build in part.builds:
            built.add(build.name)
    for name in sorted(spec.build.keys() - built):
        why = "is locked as a wheel" if name in locked else "is not in the lock"
        yield f"[build.{name}] has no effect: {name} {why}"


def _without_python(resolutions: Sequence[Resolution], facts: Facts) -> Iterator[str]:
    for part in resolutions:
        target, python = part.target, part.target.python
        if target.platform.is_linux and python.source == "spec" and python.series in facts.python_series:
            yield (
                f"{target.platform.value}: no standalone build of Python {python.series} is known: the lock has no "
                "image; install that Python yourself, or set `base` and `python` in [image]"
            )


def _newest_archive(state: LockState, bases: Sequence[BaseImage]) -> datetime:
    """The time that the lock before records, if it was made for the same bases; else that of this run."""
    before = state.before
    if before is None or before.image.snapshot is None or before.as_of != state.as_of:
        return newest_archive(state.started)
    if _digests_of(before.base_images) != _digests_of(bases):
        return newest_archive(state.started)
    return before.image.snapshot


def _digests_of(images: Iterable[BaseImage]) -> set[PinnedDigest]:
    return set[PinnedDigest]().union(*(image.digests for image in images))


async def _with_creation(image: BaseImage, started: datetime, context: Context) -> BaseImage:
    """The image with the time at which it was created, if its registry answers; recorded digests need no registry."""
    from envspec.operations.session import Session

    digests: list[PinnedDigest] = []
    async with Session(context, BRIEF) as session:
        for pinned in image.digests:
            created = pinned.created
            if pinned.digest and created is None and pinned.source != "recorded":
                with suppress(NetworkError):
                    created = await read_creation(image, pinned, session, started)
            digests.append(replace(pinned, created=created))
    return replace(image, digests=tuple(digests))


async def read_creation(image: BaseImage, pinned: PinnedDigest, session: Session, started: datetime) -> datetime | None:
    """When a base was created, as the config that its digest pins states it; None if it states no time, or one after
    `started`.

    Raises:
        NetworkError: it can't be read.
    """
    from envspec.image.base import ManifestCache, base_at
    from envspec.image.config import created_of
    from envspec.image.layers.store import BlobStore

    context = session.context
    documents = ManifestCache(BlobStore(context.cache), session.registry, context.connectivity, lambda: None)
    created = created_of((await base_at(image, pinned, documents)).config)
    return created if created and created <= started else None


async def with_known_digests(lock: Lock, context: Context) -> Lock:
    """The lock with the digests of its base images that it lacks, from their registries.

    Raises:
        NetworkError: a registry did not respond, or has no such image.
    """

    async def known(image: BaseImage | None) -> BaseImage | None:
        if image is None or not unknown_digests(image):
            return image
        found, failure = await with_digests(image, None, context)
        if failure is not None:
            raise failure
        digests: list[PinnedDigest] = []
        for own, other in zip(image.digests, found.digests, strict=True):
            digests.append(own if own.digest else other)
        return replace(image, digests=tuple(digests))

    of_platforms = []
    for each in lock.platform_cuda:
        of_platforms.append(replace(each, base_image=await known(each.base_image)))
    return replace(lock, base_image=await known(lock.base_image), platform_cuda=tuple(of_platforms))


async def with_digests(
    base: BaseImage, before: BaseImage | None, context: Context
) -> tuple[BaseImage, NetworkError | None]:
    """The image with the old lock's digests of the same tag; else the registry's; else the recorded ones.

    With the error of the registry, if it did not respond.
    """
    failure: NetworkError | None = None
    planned = {pinned.platform: pinned for pinned in base.digests}
    found = dict(planned)
    if before is not None and (before.repository, before.tag) == (base.repository, base.tag):
        for locked in before.digests:
            own = planned.get(locked.platform)
            if own is None or locked.digest is None:
                continue
            # Recorded digests are those of today's facts, and a digest in the spec decides.
            is_outdated = locked.source == "recorded" and locked != own
            is_replaced = own.source == "spec" and own.digest != locked.digest
            if not is_outdated and not is_replaced:
                found[locked.platform] = locked
    missing = [each.platform for each in base.digests if found[each.platform] is each and each.source != "spec"]
    if missing and not context.is_offline:
        try:
            for pinned in await _registry_digests(context, base, missing):
                found[pinned.platform] = pinned
        except NetworkError as error:
            # A lock must not need a registry: the recorded digests are right, too.
            failure = error
    return replace(base, digests=tuple(found.values())), failure


async def _registry_digests(
    context: Context, base: BaseImage, platforms: Sequence[Platform]
) -> tuple[PinnedDigest, ...]:
    from envspec.operations.session import Session
    from envspec.registry.client import resolve_digests
    from envspec.registry.reference import parse

    async with Session(context, BRIEF) as session:
        return await resolve_digests(parse(f"{base.repository}:{base.tag}"), platforms, await session.registry())


def _without_digest(base: BaseImage, failure: NetworkError | None) -> Iterator[str]:
    unknown = unknown_digests(base)
    if not unknown:
        return
    platforms = ", ".join(pinned.platform.value for pinned in unknown)
    from envspec.registry.reference import parse

    why = failure.message if failure else "; ".join(dict.fromkeys(pinned.note for pinned in unknown))
    place = "[[facts.digest]]" if base.cuda_release else "[image] base"
    yield (
        f"{platforms}: no image can be built from the lock: the digest of "
        f"{base.repository}:{base.tag} is unknown ({why}). Lock again where {parse(base.repository).registry} can be "
        f"reached, or state the digest in the spec ({place})"
    )
