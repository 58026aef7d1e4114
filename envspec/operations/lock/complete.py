"""From resolved packages to the whole lock and its files: pure, and the same for `envspec lock` and for the check of an
existing lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from envspec.base_image.apt import date_apt
from envspec.base_image.cuda import CudaRequest
from envspec.base_image.plan import decide_settings, plan_platforms
from envspec.facts import Facts
from envspec.lockfile.document import public_indexes
from envspec.lockfile.export import files_of
from envspec.lockfile.export.types import ContainerConfig, File
from envspec.models import (
    BaseImage,
    Conformance,
    Decision,
    ExportedFiles,
    ImageSettings,
    Lock,
    OnTopOf,
    PinnedDigest,
    Platform,
    PlatformCuda,
    Resolution,
)
from envspec.resolve.pypi.request import indexes_of
from envspec.spec import Spec
from envspec.spec.dates import Age
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.resolve.types import FoundEnvironment


def complete(
    resolved: Lock,
    spec: Spec,
    facts: Facts,
    with_digests: Callable[[BaseImage], BaseImage],
    newest_archive: Callable[[Sequence[BaseImage]], datetime],
) -> tuple[Lock, tuple[str, ...]]:
    """A lock with all that follows from its packages, and the warnings of the plan of its images.

    resolved: has the packages with their build settings, the decisions about them, the dates, the channels and the
    spec's path; the rest of it is replaced.
    with_digests: the image, each of its digests as the lock is to record it.
    newest_archive: see `newest` of `envspec.base_image.apt.archive_time`, for the base images of all platforms.

    Raises:
        NoSolution: no image, or no wheel contains code for a GPU of the spec.
        UsageError: a service whose package is not in the lock.
    """
    torch_as_of = dict(resolved.package_as_of).get("torch", resolved.as_of)
    requests = _cuda_requests(spec, torch_as_of)
    plan = plan_platforms(requests, resolved.resolutions, facts, spec.image.base)
    base = plan.base_image and with_digests(plan.base_image)
    images = [base] if base else []
    own: list[PlatformCuda] = []
    for each in plan.platform_cuda:
        image = each.base_image and with_digests(each.base_image)
        own.append(replace(each, base_image=image))
        if image:
            images.append(image)
    settings, reasons = decide_settings(spec, resolved.resolutions, facts) if base else (ImageSettings(), ())
    settings, dated = date_apt(settings, spec, resolved.as_of, images, facts, newest_archive(images))
    conformance = None
    if requested := spec.conformance:
        conformance = Conformance(requested.checks, requested.world_size)
    export = ExportedFiles(spec.export.dockerfile) if spec.export else None
    gpus: dict[str, None] = {}
    for request in requests.values():
        gpus |= dict.fromkeys(request.gpus)
    lock = replace(
        resolved,
        name=spec.env.name,
        decisions=(*resolved.decisions, *plan.decisions, *reasons, *dated),
        base_image=base,
        driver=plan.driver,
        gpu_code=plan.gpu_code,
        cpu_builds=plan.cpu_builds,
        platform_cuda=tuple(own),
        gpus=tuple(gpus),
        facts=facts.version,
        indexes=public_indexes(indexes_of(spec)),
        image=settings,
        conformance=conformance,
        export=export,
        as_of_spec=str(spec.env.as_of) if isinstance(spec.env.as_of, Age) else "",
    )
    return lock, plan.warnings


def _cuda_requests(spec: Spec, as_of: datetime) -> dict[Platform, CudaRequest]:
    requests: dict[Platform, CudaRequest] = {}
    for platform in spec.env.platforms:
        cuda = spec.cuda_on(platform)
        if cuda:
            flavor, system = cuda.flavor.value, spec.os_on(platform)
            # Beside the lock of another tool, an empty [cuda] means an image, and no GPU.
            is_implied = spec.pip.source is not None and not (cuda.version or cuda.gpus or cuda.driver)
            requests[platform] = CudaRequest(
                cuda.version, flavor, system, cuda.gpus, spec.image.base, cuda.driver, as_of, is_implied
            )
    return requests


def unknown_digests(image: BaseImage) -> list[PinnedDigest]:
    return [pinned for pinned in image.digests if pinned.digest is None]


def conda_decisions(spec: Spec, facts: Facts) -> list[Decision]:
    """The decisions about every platform before its conda packages are solved."""
    decisions: list[Decision] = []
    if spec.conda is None:
        return decisions
    from envspec.resolve.conda.request import decisions_of

    for platform in spec.env.platforms:
        decisions += decisions_of(spec, facts, platform)
    return decisions


def installed_on(part: Resolution, found: FoundEnvironment | None) -> Resolution:
    """A platform's packages, with what they are installed on top of."""
    if found is None:
        return part
    below = OnTopOf(
        found.place, found.home, found.site, found.nested, found.torch_build, found.gpu_code, found.constraints
    )
    installed = part.installed or tuple(each.recorded for _, each in sorted(found.packages.items()))
    return replace(part, on_top_of=below, installed=installed)


def lock_files(lock: Lock) -> dict[str, bytes]:
    """Every file of the lock's folder.

    Raises:
        UsageError: settings that no image can have: a working folder that is the system's, a token for everybody; or
        content of the image that no Dockerfile can have, if the spec requires one.
    """
    if not lock.base_images:
        return files_of(lock)
    if lock.export is not None and lock.export.dockerfile:
        return files_of(lock, container_config(lock))
    if lock.image.services or lock.image.workdir != ImageSettings().workdir:
        # Takes 8 ms to import; without them, nothing can be refused.
        from envspec.image.services import services_config

        services_config(lock.image)
    return files_of(lock)


def container_config(lock: Lock) -> ContainerConfig:
    """How a container of a lock's image starts. Raises UsageError: as `lock_files`."""
    from envspec.image.layers.types import EntryKind, InMemory
    from envspec.image.services import USER, ServicesSource, has_pip, services_config

    config = services_config(lock.image)
    linux = [part for part in lock.resolutions if part.target.platform.is_linux]
    folders: list[str] = []
    files: list[File] = []
    for entry in ServicesSource(lock.image, pip=all(map(has_pip, linux))).entries():
        path = f"/{entry.path}"
        if entry.kind is EntryKind.FOLDER and entry.mode & 0o002:
            folders.append(path)
        elif isinstance(entry.data, InMemory):
            files.append(File(path, entry.mode, entry.data.content.decode()))
    return ContainerConfig(
        user=config.user or "",
        name=USER if config.user else "",
        env=config.env,
        folders=tuple(folders),
        files=tuple(files),
    )
