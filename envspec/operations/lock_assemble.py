"""From resolutions to the lock: base image, digests, driver, GPU code, the image's settings.

Imported while the engines run (see `resolve.stage.World`): nothing before them needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.base_image import BaseImagePlan, CudaRequest, plan_base_image
from envspec.base_image.settings import DecidedSettings, decide_settings
from envspec.base_image.tag import digest_decision
from envspec.errors import NetworkError
from envspec.facts import Facts
from envspec.io.tasks import run_interruptible
from envspec.lock.canonical import public_indexes
from envspec.lock.conda_lock_file import without_md5
from envspec.lock.document import identity
from envspec.lock.head import FORMAT
from envspec.models import (
    BaseImage,
    BuiltWheel,
    CondaChannel,
    Conformance,
    Decision,
    Lock,
    NamedIndex,
    Package,
    PinnedDigest,
    Platform,
    Resolution,
    Target,
)
from envspec.resolve.pypi.request import indexes_of
from envspec.spec import Spec

if TYPE_CHECKING:
    from envspec.resolve.pypi.request import Composed


@dataclass(frozen=True, slots=True)
class Answered:
    """What the stages before have decided. moments: packages with a moment of their own. decisions: of the targets."""

    spec: Spec
    facts: Facts
    as_of: datetime
    moments: Mapping[str, datetime]
    decisions: tuple[Decision, ...]
    composed: tuple[Composed, ...]
    resolutions: tuple[Resolution, ...]
    channels: tuple[CondaChannel, ...] = ()
    conda_as_of: tuple[tuple[str, datetime], ...] = ()


@dataclass(frozen=True, slots=True)
class Asker:
    """The effects that a registry needs. environ, home: where logins, proxies and certificates are found."""

    environ: Mapping[str, str]
    home: Path
    warn: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Assembled:
    """The lock, and what the user should know of it, each once."""

    lock: Lock
    warnings: tuple[str, ...]


def assemble(
    answered: Answered, input_sha256: str, kept: Lock | None, asker: Asker | None, before: Lock | None
) -> Assembled:
    """The lock that goes with resolved pins.

    kept: the lock whose digests stay where the tag does. asker: None where no registry may be asked. before: the lock
    that stood there, whatever may move: what was built for it holds for all of this one that is the same.

    Raises:
        NoSolution: no image, or a GPU that the wheels hold no code for.
        UsageError: a service whose package is not in the lock.
    """
    spec, indexes = answered.spec, public_indexes(indexes_of(answered.spec))
    resolutions = _with_built(answered.resolutions, _of_builds(before, answered.as_of, indexes))
    plan = plan_base_image(_cuda_request(spec), resolutions, answered.facts, spec.image.base)
    base = _with_digests(plan, kept, asker, spec.registry.mirrors)
    settings = decide_settings(spec, resolutions, answered.facts) if base else DecidedSettings()
    # Which build of torch it would be is decided before anything is resolved: it may not be in the lock at all.
    holds_torch = any(package.name == "torch" for r in resolutions for package in r.packages)
    decided = answered.composed if holds_torch else ()
    warnings = [
        *(f"{q.question.request.target.platform.value}: {text}" for q in decided for text in q.warnings),
        *(f"{r.target.platform.value}: {text}" for r in resolutions for text in r.warnings),
        *plan.warnings,
        *_without_digest(base),
        *_without_image(spec, base),
    ]
    lock = Lock(
        format=FORMAT,
        name=spec.env.name,
        input_sha256=input_sha256,
        as_of=answered.as_of,
        resolutions=resolutions,
        decisions=(
            *answered.decisions,
            *(d for q in decided for d in q.decisions),
            *_as_pinned(plan.decisions, base),
            *settings.decisions,
        ),
        base_image=base,
        driver=plan.driver,
        gpu_code=plan.gpu_code,
        gpus=spec.cuda.gpus if spec.cuda else (),
        facts=answered.facts.version,
        package_as_of=tuple(sorted(answered.moments.items())),
        conda_as_of=answered.conda_as_of,
        channels=answered.channels,
        indexes=indexes,
        image=settings.image,
        conformance=_conformance(spec),
    )
    lock = _with_images(lock, before)
    if (text := without_md5(lock)) is not None:
        warnings.append(text)
    return Assembled(lock, tuple(dict.fromkeys(warnings)))


def _conformance(spec: Spec) -> Conformance | None:
    asked = spec.conformance
    return Conformance(tuple(check.value for check in asked.checks), asked.world_size) if asked else None


def _of_builds(before: Lock | None, as_of: datetime, indexes: tuple[NamedIndex, ...]) -> Lock | None:
    """The lock whose wheels are still those that a build gives: what builds them comes from the same indexes and is as
    old as the lock.
    """
    return before if before is not None and (before.as_of, before.indexes) == (as_of, indexes) else None


def _with_built(resolutions: tuple[Resolution, ...], before: Lock | None) -> tuple[Resolution, ...]:
    """With the wheels that were built of the same files for the same Python."""
    built: dict[tuple[Target, str], tuple[BuiltWheel, str | None]] = {
        (resolution.target, package.file.sha256): (package.built, package.contents)
        for resolution in (before.resolutions if before else ())
        for package in resolution.packages
        if package.built
    }
    if not built:
        return resolutions

    def known(package: Package, target: Target) -> Package:
        wheel, contents = built.get((target, package.file.sha256), (None, None))
        return replace(package, built=wheel, contents=contents) if wheel and not package.built else package

    return tuple(replace(r, packages=tuple(known(p, r.target) for p in r.packages)) for r in resolutions)


def _with_images(lock: Lock, before: Lock | None) -> Lock:
    """With what builds have found, where all that an image follows from stayed."""
    if before is None or not (before.system or before.images) or identity(before) != identity(lock):
        return lock
    return replace(lock, system=before.system, images=before.images)


def _without_image(spec: Spec, base: BaseImage | None) -> tuple[str, ...]:
    named = [table for table, there in (("[system]", spec.system), ("[services]", spec.services)) if there]
    if base is not None or not named:
        return ()
    has_linux = any(platform.is_linux for platform in spec.env.platforms)
    why = "no base for one: add [cuda], or [image] base" if has_linux else "no linux platform"
    return (f"only an image has {' and '.join(named)}, and the spec has {why}",)


def is_open(made: Lock) -> bool:
    """Whether a digest is missing, which another run may find."""
    return made.base_image is not None and any(pinned.digest is None for pinned in made.base_image.digests)


def _cuda_request(spec: Spec) -> CudaRequest | None:
    if spec.cuda is None:
        return None
    return CudaRequest(spec.cuda.version, spec.cuda.flavor.value, spec.cuda.os.value, spec.cuda.gpus, spec.image.base)


def _with_digests(
    plan: BaseImagePlan, kept: Lock | None, asker: Asker | None, mirrors: Mapping[str, str]
) -> BaseImage | None:
    """The image with the kept digests of the same tag; else the registry's; else what the plan knows."""
    base = plan.base_image
    if base is None:
        return None
    known = {d.platform: d for d in base.digests} | {d.platform: d for d in _kept(kept, base)}
    missing = [d.platform for d in base.digests if known[d.platform] is d and d.source != "spec"]
    if missing and asker is not None:
        try:
            known |= {d.platform: d for d in run_interruptible(_ask_registry(asker, base, missing, mirrors))}
        except NetworkError as error:
            # The registry's answer would be better, but a lock must not need one: what the data records is right, too.
            known |= {p: replace(known[p], note=known[p].note or error.message) for p in missing}
    return replace(base, digests=tuple(known.values()))


def _as_pinned(decisions: Sequence[Decision], base: BaseImage | None) -> Iterator[Decision]:
    """The plan's decisions; a digest that it did not know, and the registry or the lock before did, as it is now."""
    found = {pinned.platform: pinned for pinned in base.digests if pinned.digest} if base else {}
    for decision in decisions:
        is_open = decision.what == "image.digest" and decision.value == "unresolved"
        pinned = found.get(decision.platform) if is_open and decision.platform else None
        yield digest_decision(pinned) if pinned else decision


def _kept(old: Lock | None, base: BaseImage) -> tuple[PinnedDigest, ...]:
    image = old.base_image if old else None
    if image is None or (image.repository, image.tag) != (base.repository, base.tag):
        return ()
    wanted = {pinned.platform for pinned in base.digests}
    return tuple(d for d in image.digests if d.digest is not None and d.platform in wanted)


async def _ask_registry(
    asker: Asker, base: BaseImage, platforms: Sequence[Platform], mirrors: Mapping[str, str]
) -> tuple[PinnedDigest, ...]:
    from envspec.io.http import open_http
    from envspec.io.http_types import Timeouts
    from envspec.registry.auth import Keychain
    from envspec.registry.client import Registry, resolve_digests
    from envspec.registry.reference import parse

    # A lock does not depend on the registry: one that does not answer is not waited for like an index.
    timeouts = Timeouts(connect_s=5, stall_s=10, attempts=2)
    async with open_http(asker.environ, timeouts=timeouts) as http:
        registry = Registry(http, Keychain(asker.environ, asker.home, asker.warn), mirrors)
        return await resolve_digests(parse(f"{base.repository}:{base.tag}"), platforms, registry)


def _without_digest(base: BaseImage | None) -> tuple[str, ...]:
    unknown = [pinned for pinned in base.digests if pinned.digest is None] if base else []
    if base is None or not unknown:
        return ()
    platforms = ", ".join(pinned.platform.value for pinned in unknown)
    why = "; ".join(dict.fromkeys(pinned.note for pinned in unknown))
    place = "[[facts.digest]]" if base.cuda_release else "[image] base"
    return (
        f"{platforms}: {base.repository}:{base.tag} is locked without its digest ({why}): lock again where "
        f"{base.repository.partition('/')[0]} answers, or state the digest in the spec ({place})",
    )
