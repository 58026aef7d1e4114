"""From resolutions to the lock: base image, digests, driver, GPU code, the image's settings.

Imported while the engines run (see `resolve.stage.World`): nothing before them needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from envspec.base_image.cuda import CudaRequest
from envspec.base_image.libraries import library_warnings
from envspec.base_image.plan import decide_settings, digest_decision, plan_platforms
from envspec.context import Context
from envspec.errors import NetworkError
from envspec.facts import Facts
from envspec.io.tasks import run_interruptible
from envspec.lockfile.document import identity, public_indexes
from envspec.lockfile.export.conda import without_md5
from envspec.lockfile.header import FORMAT
from envspec.models import (
    BaseImage,
    Conformance,
    Decision,
    ImageSettings,
    Lock,
    OnTopOf,
    PinnedDigest,
    Platform,
    Resolution,
)
from envspec.operations.build_settings import same_build, with_builds
from envspec.operations.lock_state import BRIEF, Beneath, CondaResult, LockState, PypiResult, Upgrade
from envspec.resolve.pypi.request import indexes_of
from envspec.spec import Spec
from envspec.spec.dates import Age
from envspec.spec.owner import path_from_lock
from envspec.spec.sections import ProjectInImage


def assemble(state: LockState, conda: CondaResult, pypi: PypiResult, decisions: Sequence[Decision]) -> Lock:
    """The lock of resolved packages; warnings are reported. decisions: of the targets.

    Raises:
        NoSolution: no image, no wheel contains code for a GPU of the spec, or none is named for a build.
        UsageError: a service whose package is not in the lock.
    """
    spec, facts, context, before = state.spec, state.facts, state.context, state.before
    indexes = public_indexes(indexes_of(spec))
    resolutions = tuple(replace(r, conda=conda.packages.get(r.target.platform, ())) for r in pypi.resolutions)
    resolutions = _installed_on(resolutions, state.beneath)
    resolutions = tuple(with_builds(each, spec, facts) for each in resolutions)
    resolutions = _with_built(resolutions, state)
    requests = _cuda_requests(spec, pypi.cutoffs.get("torch", state.as_of))
    plan = plan_platforms(requests, resolutions, facts, spec.image.base)
    old = None if state.request.upgrade is Upgrade.ALL else state.old
    # A base whose packages were read has the digests by which it was.
    known = state.beneath.image
    base, failure = _with_digests(plan.base_image, known or (old.base_image if old else None), context)
    own = [
        _with_digests(each.base_image, known or (old.on(each.platform).base_image if old else None), context)
        for each in plan.platform_cuda
    ]
    settings, reasons = decide_settings(spec, resolutions, facts) if base else (ImageSettings(), ())
    # The build of torch is decided before anything is resolved: torch may not be in the lock at all.
    with_torch = {r.target for r in resolutions if any(package.name == "torch" for package in r.packages)}
    decided = [q for q in pypi.requests if q.request.target in with_torch]
    warnings = [
        *(f"{q.request.target.platform.value}: {text}" for q in decided for text in q.warnings),
        *(f"{r.target.platform.value}: {text}" for r in resolutions for text in r.warnings),
        *plan.warnings,
        *(text for pair in ((base, failure), *own) for text in _without_digest(*pair)),
        *_without_image(spec, base),
        *(library_warnings(spec, resolutions, facts) if base else ()),
        *_without_build(spec, resolutions),
        *_without_python(resolutions, facts),
    ]
    conformance = None
    if requested := spec.conformance:
        conformance = Conformance(requested.checks, requested.world_size)
    lock = Lock(
        format=FORMAT,
        name=spec.env.name,
        input_sha256=state.input_sha256,
        as_of=state.as_of,
        resolutions=resolutions,
        decisions=(
            *decisions,
            *conda.decisions,
            *pypi.decisions,
            *_constraints_of(state.beneath),
            *(d for q in decided for d in q.decisions),
            *_as_pinned(plan.decisions, [base, *(image for image, _ in own)]),
            *reasons,
        ),
        base_image=base,
        driver=plan.driver,
        gpu_code=plan.gpu_code,
        cpu_builds=plan.cpu_builds,
        platform_cuda=tuple(
            replace(each, base_image=image) for each, (image, _) in zip(plan.platform_cuda, own, strict=True)
        ),
        gpus=tuple(dict.fromkeys(name for request in requests.values() for name in request.gpus)),
        facts=facts.version,
        package_as_of=tuple(sorted(pypi.cutoffs.items())),
        conda_as_of=tuple(sorted(conda.cutoffs.items())),
        channels=conda.channels,
        indexes=indexes,
        image=settings,
        conformance=conformance,
        base_sha256=state.base_sha256,
        spec=path_from_lock(state.request.spec_path, state.request.directory),
        as_of_spec=str(spec.env.as_of) if isinstance(spec.env.as_of, Age) else "",
        package_ages=tuple(state.package_ages().values()),
    )
    lock = _with_images(lock, before)
    if (text := without_md5(lock)) is not None:
        warnings.append(text)
    for text in dict.fromkeys(warnings):
        context.reporter.warning(text)
    return lock


def _installed_on(resolutions: Sequence[Resolution], beneath: Beneath) -> tuple[Resolution, ...]:
    """The resolutions, each with what it is installed on top of."""

    def on_top(part: Resolution) -> Resolution:
        found = beneath.found.get(part.target.platform)
        if found is None:
            return part
        below = OnTopOf(found.place, found.home, found.site, found.nested, found.torch_build, found.gpu_code)
        installed = part.installed or tuple(each.recorded for _, each in sorted(found.packages.items()))
        return replace(part, on_top_of=below, installed=installed)

    return tuple(map(on_top, resolutions))


def _constraints_of(beneath: Beneath) -> Iterator[Decision]:
    """What the lock records of the constraints that were found."""
    for platform, found in beneath.found.items():
        if found.constraints:
            why = f"{found.place} states them for all that is installed there (PIP_CONSTRAINT)"
            yield Decision("base.constraints", "; ".join(found.constraints), why, found.place, platform)


def _with_built(resolutions: tuple[Resolution, ...], state: LockState) -> tuple[Resolution, ...]:
    """With the wheels that were built of the same files for the same Python, beside the same packages."""
    built = state.built_before()
    before = {part.target: part for part in state.before.resolutions} if built and state.before else {}

    def with_wheels(part: Resolution) -> Resolution:
        packages, builds = list(part.packages), {each.name: each for each in part.builds}
        for at, package in enumerate(packages):
            old = None if package.built else built.get((part.target, package.file.sha256))
            if old is None or not same_build(before[part.target], part, package):
                continue
            packages[at] = replace(package, built=old.built, record_sha256=old.record_sha256)
            recorded = before[part.target].build_of(package.name)
            if recorded is not None:
                builds[package.name] = replace(builds[package.name], compiler=recorded.compiler)
        return replace(part, packages=tuple(packages), builds=tuple(builds.values()))

    return tuple(map(with_wheels, resolutions))


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
    has_linux = any(platform.is_linux for platform in spec.env.platforms)
    why = "no base for one: add [cuda], or [image] base" if has_linux else "no linux platform"
    return (f"only an image has {' and '.join(named)}, and the spec has {why}",)


def _without_build(spec: Spec, resolutions: Sequence[Resolution]) -> Iterator[str]:
    named = {build.name for resolution in resolutions for build in resolution.builds}
    locked = {package.name for resolution in resolutions for package in resolution.packages}
    for name in sorted(spec.build.keys() - named):
        why = "is locked as a wheel" if name in locked else "is not in the lock"
        yield f"[build.{name}] has no effect: {name} {why}"


def _without_python(resolutions: Sequence[Resolution], facts: Facts) -> Iterator[str]:
    for target in (resolution.target for resolution in resolutions):
        python = target.python
        if target.platform.is_linux and python.source == "spec" and python.series in facts.python_series:
            yield (
                f"{target.platform.value}: no standalone build of Python {python.series} is known: the lock has no "
                "Dockerfile and no image; install that Python yourself, or set `base` and `python` in [image]"
            )


def is_open(made: Lock) -> bool:
    """Whether a digest is missing that another run may find."""
    return any(pinned.digest is None for image in made.base_images for pinned in image.digests)


def _cuda_requests(spec: Spec, as_of: datetime) -> dict[Platform, CudaRequest]:
    base = spec.image.base
    return {
        platform: CudaRequest(cuda.version, cuda.flavor.value, cuda.os.value, cuda.gpus, base, cuda.driver, as_of)
        for platform in spec.env.platforms
        if (cuda := spec.cuda_on(platform))
    }


def _with_digests(
    base: BaseImage | None, before: BaseImage | None, context: Context
) -> tuple[BaseImage | None, NetworkError | None]:
    return run_interruptible(with_digests(base, before, context)) if base else (None, None)


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
        found |= {d.platform: d for d in before.digests if d.digest is not None and d.platform in planned}
    missing = [d.platform for d in base.digests if found[d.platform] is d and d.source != "spec"]
    if missing and not context.is_offline:
        try:
            found |= {d.platform: d for d in await _registry_digests(context, base, missing)}
        except NetworkError as error:
            # A lock must not need a registry: the recorded digests are right, too.
            failure = error
    return replace(base, digests=tuple(found.values())), failure


def _as_pinned(decisions: Sequence[Decision], images: Sequence[BaseImage | None]) -> Iterator[Decision]:
    """The plan's decisions, with the digests of the registry or of the old lock."""
    found = {pinned.platform: pinned for image in images if image for pinned in image.digests if pinned.digest}
    for decision in decisions:
        is_open = decision.what == "image.digest" and decision.value == "unresolved"
        pinned = found.get(decision.platform) if is_open and decision.platform else None
        yield digest_decision(pinned) if pinned else decision


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

    why = failure.message if failure else "; ".join(dict.fromkeys(pinned.note for pinned in unknown))
    place = "[[facts.digest]]" if base.cuda_release else "[image] base"
    return (
        f"{platforms}: the lock has no Dockerfile, and no image can be built from it: the digest of "
        f"{base.repository}:{base.tag} is unknown ({why}). Lock again where {parse(base.repository).registry} can be "
        f"reached, or state the digest in the spec ({place})",
    )
