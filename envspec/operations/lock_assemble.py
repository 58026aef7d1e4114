"""From resolutions to the lock: base image, digests, driver, GPU code, the image's settings.

Imported while the engines run (see `resolve.stage.World`): nothing before them needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from envspec.base_image.cuda import BaseImagePlan, CudaRequest
from envspec.base_image.plan import digest_decision, plan_base_image
from envspec.base_image.settings import decide_settings
from envspec.context import Context
from envspec.errors import NetworkError
from envspec.facts import Facts
from envspec.io.tasks import run_interruptible
from envspec.lockfile.document import identity, public_indexes
from envspec.lockfile.export.conda import without_md5
from envspec.lockfile.header import FORMAT
from envspec.models import (
    BaseImage,
    BuiltWheel,
    CondaChannel,
    Conformance,
    Decision,
    ImageSettings,
    Lock,
    NamedIndex,
    Package,
    PinnedDigest,
    Platform,
    Resolution,
    Target,
)
from envspec.operations.lock_state import BRIEF
from envspec.resolve.pypi.request import indexes_of
from envspec.spec import Spec

if TYPE_CHECKING:
    from envspec.resolve.pypi.resolve import TargetRequest


@dataclass(frozen=True, slots=True)
class LockInputs:
    """What the stages before have decided. moments: packages with a moment of their own. decisions: of the targets."""

    spec: Spec
    facts: Facts
    as_of: datetime
    moments: Mapping[str, datetime]
    decisions: tuple[Decision, ...]
    composed: tuple[TargetRequest, ...]
    resolutions: tuple[Resolution, ...]
    channels: tuple[CondaChannel, ...] = ()
    conda_as_of: tuple[tuple[str, datetime], ...] = ()


@dataclass(frozen=True, slots=True)
class Assembled:
    """The lock, and what the user should know of it, each once."""

    lock: Lock
    warnings: tuple[str, ...]


def assemble(
    inputs: LockInputs, input_sha256: str, kept: Lock | None, context: Context, before: Lock | None
) -> Assembled:
    """The lock of resolved pins.

    kept: the lock whose digests stay where the tag does. before: the lock
    that stood there, whatever may move: what was built for it holds for all of this one that is the same.

    Raises:
        NoSolution: no image, or a GPU that the wheels hold no code for.
        UsageError: a service whose package is not in the lock.
    """
    spec, indexes = inputs.spec, public_indexes(indexes_of(inputs.spec))
    resolutions = _with_built(inputs.resolutions, _of_builds(before, inputs.as_of, indexes))
    plan = plan_base_image(_cuda_request(spec), resolutions, inputs.facts, spec.image.base)
    base, failure = _with_digests(plan, kept, context)
    settings, reasons = decide_settings(spec, resolutions, inputs.facts) if base else (ImageSettings(), ())
    # Which build of torch it would be is decided before anything is resolved: it may not be in the lock at all.
    holds_torch = any(package.name == "torch" for r in resolutions for package in r.packages)
    decided = inputs.composed if holds_torch else ()
    warnings = [
        *(f"{q.request.target.platform.value}: {text}" for q in decided for text in q.warnings),
        *(f"{r.target.platform.value}: {text}" for r in resolutions for text in r.warnings),
        *plan.warnings,
        *_without_digest(base, failure),
        *_without_image(spec, base),
    ]
    lock = Lock(
        format=FORMAT,
        name=spec.env.name,
        input_sha256=input_sha256,
        as_of=inputs.as_of,
        resolutions=resolutions,
        decisions=(
            *inputs.decisions,
            *(d for q in decided for d in q.decisions),
            *_as_pinned(plan.decisions, base),
            *reasons,
        ),
        base_image=base,
        driver=plan.driver,
        gpu_code=plan.gpu_code,
        gpus=spec.cuda.gpus if spec.cuda else (),
        facts=inputs.facts.version,
        package_as_of=tuple(sorted(inputs.moments.items())),
        conda_as_of=inputs.conda_as_of,
        channels=inputs.channels,
        indexes=indexes,
        image=settings,
        conformance=_conformance(spec),
    )
    lock = _with_images(lock, before)
    if (text := without_md5(lock)) is not None:
        warnings.append(text)
    return Assembled(lock, tuple(dict.fromkeys(warnings)))


def _conformance(spec: Spec) -> Conformance | None:
    requested = spec.conformance
    return Conformance(tuple(check.value for check in requested.checks), requested.world_size) if requested else None


def _of_builds(before: Lock | None, as_of: datetime, indexes: tuple[NamedIndex, ...]) -> Lock | None:
    """The lock whose wheels a build would give again: its requirements have the same indexes and cutoff."""
    return before if before is not None and (before.as_of, before.indexes) == (as_of, indexes) else None


def _with_built(resolutions: tuple[Resolution, ...], before: Lock | None) -> tuple[Resolution, ...]:
    """With the wheels that were built of the same files for the same Python before."""
    built: dict[tuple[Target, str], tuple[BuiltWheel, str | None]] = {
        (resolution.target, package.file.sha256): (package.built, package.record_sha256)
        for resolution in (before.resolutions if before else ())
        for package in resolution.packages
        if package.built
    }
    if not built:
        return resolutions

    def known(package: Package, target: Target) -> Package:
        wheel, contents = built.get((target, package.file.sha256), (None, None))
        return replace(package, built=wheel, record_sha256=contents) if wheel and not package.built else package

    return tuple(replace(r, packages=tuple(known(p, r.target) for p in r.packages)) for r in resolutions)


def _with_images(lock: Lock, before: Lock | None) -> Lock:
    """With what builds have found, if all that an image follows from is unchanged."""
    if before is None or not (before.system or before.images) or identity(before) != identity(lock):
        return lock
    return replace(lock, system=before.system, images=before.images)


def _without_image(spec: Spec, base: BaseImage | None) -> tuple[str, ...]:
    named = [table for table, is_set in (("[system]", spec.system), ("[services]", spec.services)) if is_set]
    if base is not None or not named:
        return ()
    has_linux = any(platform.is_linux for platform in spec.env.platforms)
    why = "no base for one: add [cuda], or [image] base" if has_linux else "no linux platform"
    return (f"only an image has {' and '.join(named)}, and the spec has {why}",)


def is_open(made: Lock) -> bool:
    """Whether a digest is missing that another run may find."""
    return made.base_image is not None and any(pinned.digest is None for pinned in made.base_image.digests)


def _cuda_request(spec: Spec) -> CudaRequest | None:
    if spec.cuda is None:
        return None
    return CudaRequest(spec.cuda.version, spec.cuda.flavor.value, spec.cuda.os.value, spec.cuda.gpus, spec.image.base)


def _with_digests(
    plan: BaseImagePlan, kept: Lock | None, context: Context
) -> tuple[BaseImage | None, NetworkError | None]:
    """The image with the existing lock's digests of the same tag; else the registry's; else the recorded ones.

    With the error of the registry, if it did not answer.
    """
    base = plan.base_image
    if base is None:
        return None, None
    failure: NetworkError | None = None
    known = {d.platform: d for d in base.digests} | {d.platform: d for d in _kept(kept, base)}
    missing = [d.platform for d in base.digests if known[d.platform] is d and d.source != "spec"]
    if missing and not context.is_offline:
        try:
            known |= {d.platform: d for d in run_interruptible(_registry_digests(context, base, missing))}
        except NetworkError as error:
            # A lock must not need a registry: the recorded digests are right, too.
            failure = error
    return replace(base, digests=tuple(known.values())), failure


def _as_pinned(decisions: Sequence[Decision], base: BaseImage | None) -> Iterator[Decision]:
    """The plan's decisions, with the digests of the registry or of the lock before."""
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


async def _registry_digests(
    context: Context, base: BaseImage, platforms: Sequence[Platform]
) -> tuple[PinnedDigest, ...]:
    from envspec.operations.session import Session
    from envspec.registry.client import resolve_digests
    from envspec.registry.reference import parse

    async with Session(context, BRIEF) as session:
        return await resolve_digests(parse(f"{base.repository}:{base.tag}"), platforms, await session.registry())


def _without_digest(base: BaseImage | None, failure: NetworkError | None) -> tuple[str, ...]:
    unknown = [pinned for pinned in base.digests if pinned.digest is None] if base else []
    if base is None or not unknown:
        return ()
    platforms = ", ".join(pinned.platform.value for pinned in unknown)
    from envspec.registry.reference import parse

    why = "; ".join(dict.fromkeys([*(pinned.note for pinned in unknown), *([failure.message] if failure else [])]))
    place = "[[facts.digest]]" if base.cuda_release else "[image] base"
    return (
        f"{platforms}: {base.repository}:{base.tag} is locked without its digest ({why}): lock again where "
        f"{parse(base.repository).registry} answers, or state the digest in the spec ({place})",
    )
