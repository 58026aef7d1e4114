"""Pins -> base image, driver and GPU code, and what else the image contains: pure, without a registry."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from envspec.base_image.cpu_builds import cpu_build_warning, cpu_builds
from envspec.base_image.cuda import (
    AUTO,
    FLAVOR_LIBRARIES,
    REPOSITORIES,
    REPOSITORY,
    BaseImagePlan,
    CudaPins,
    CudaRequest,
    DriverTooOld,
    ImageNeeds,
    NoSuchImage,
    Release,
    choose_release,
    flavors_to_try,
    image_needs,
    read_pins,
)
from envspec.base_image.gpus import GpuChecks, check_gpus, code_of, unknown_code
from envspec.base_image.libraries import covered, is_of_system, library_groups
from envspec.base_image.two_cudas import other_cudas, without_libraries
from envspec.errors import UsageError
from envspec.facts import Facts
from envspec.facts.gpu import find_gpu
from envspec.facts.tables import ImageRow, at_least, numeric
from envspec.facts.torch import Machines, newest_build_for, served
from envspec.models import (
    BaseImage,
    CpuBuild,
    CudaVersion,
    Decision,
    Driver,
    GpuCode,
    ImageSettings,
    PinnedDigest,
    Platform,
    PlatformCuda,
    Resolution,
    Service,
    Target,
)
from envspec.reasons import Reason, Why, reason, words
from envspec.spec import Compiler, Libraries, Spec
from envspec.spec.sections import ProjectInImage
from envspec.structs import replace


class ImageChoice(Struct, frozen=True):
    """An image with the reasons for it."""

    image: BaseImage
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()


def choose_image(
    release: Release,
    flavors: Sequence[Decision],
    os: str,
    platforms: Sequence[Platform],
    facts: Facts,
    cudnn: int | None = None,
) -> ImageChoice:
    """The tag: the smallest flavour that exists, in the newest patch of the minor. A patch whose digest is recorded
    for every platform goes before a newer one without: a lock without a digest can't be built until a registry answers.

    Without an image of that minor, the nearest newer minor of the major version takes its place; the newest one if no
    image is as new. Source: NVIDIA, CUDA Compatibility: within a major version, newer libraries run older programs.

    cudnn: the major version that the image's cuDNN must have; None for any.

    Raises:
        NoSuchImage: no image of that major version has such a flavour on that system.
    """
    for cuda in (release.cuda, *_other_minors(release.cuda, facts)):
        for flavor in flavors:
            tagged = _tags(cuda, flavor.value, os, facts, cudnn)
            if tagged:
                return _choice(release.cuda, flavor, tagged, platforms, facts, cudnn)
    raise _no_such_image(release.cuda, flavors[0].value, os, facts)


def _other_minors(cuda: CudaVersion, facts: Facts) -> list[CudaVersion]:
    """The minors to fall back on, nearest first: the newer ones of the major; the others if `cuda` is the newest."""
    cudas = {CudaVersion.parse(row.cuda) for row in facts.images}
    known = sorted(each for each in cudas if each.major == cuda.major)
    newer = [each for each in known if each > cuda]
    if newer or cuda in known:
        return newer
    return known[::-1]


def system_image(os: str, platforms: Sequence[Platform], facts: Facts, why: Why) -> ImageChoice | None:
    """The system's own image, which has no CUDA; None if it is unknown. why: no CUDA is needed."""
    row = facts.system(os)
    if row is None or not row.image:
        return None
    repository, _, tag = row.image.rpartition(":")
    digests = tuple(
        PinnedDigest(platform, None, "unresolved", "", "no digest of it is recorded") for platform in platforms
    )
    decisions = (Decision("image.tag", row.image, why, row.source),)
    return ImageChoice(BaseImage(repository, tag, None, None, os, digests), decisions)


def _tags(
    cuda: CudaVersion, flavor: str, os: str, facts: Facts, cudnn: int | None = None
) -> list[tuple[str, ImageRow]]:
    tagged = []
    for row in facts.images:
        if CudaVersion.parse(row.cuda) != cuda or os not in row.os:
            continue
        found = _tag_flavor(row, flavor)
        if found and cudnn in (None, _cudnn(found)):
            tagged.append((f"{row.cuda}-{found}-{os}", row))
    return tagged


def _cudnn(flavor: str) -> int:
    """`cudnn8-runtime` has cuDNN 8; `cudnn-runtime`, from CUDA 12.4.1 on, has 9. Source: NVIDIA's tag lists."""
    found = re.match(r"cudnn(\d+)-", flavor)
    return int(found[1]) if found else 9


def _choice(
    requested: CudaVersion,
    flavor: Decision,
    tagged: Sequence[tuple[str, ImageRow]],
    platforms: Sequence[Platform],
    facts: Facts,
    cudnn: int | None,
) -> ImageChoice:
    def rank(candidate: tuple[str, ImageRow]) -> tuple[bool, tuple[int, ...]]:
        has_digests = all(facts.digest_of(candidate[0], each) for each in platforms)
        return has_digests, numeric(candidate[1].cuda)

    tag, row = max(tagged, key=rank)
    cuda, os, newest = CudaVersion.parse(row.cuda), tag.rpartition("-")[2], tagged[-1][1].cuda
    why = [reason("image-newest-patch", cuda=cuda, flavor=flavor.value, os=os)]
    if newest != row.cuda:
        why = [reason("image-recorded-patch", cuda=cuda, flavor=flavor.value, newest=newest)]
    if cuda != requested:
        why.append(_other_minor(requested, cuda, os, cudnn))
    digests = tuple(pinned_digest(tag, platform, facts) for platform in platforms)
    image = BaseImage(REPOSITORY, tag, row.cuda, flavor.value, os, digests)
    why += _end_of_life(row, facts)
    return ImageChoice(image, (flavor, Decision("image.tag", tag, tuple(why), row.source)))


def _other_minor(requested: CudaVersion, used: CudaVersion, os: str, cudnn: int | None) -> Reason:
    """Why the image is of another minor than the packages."""
    code = "image-nearest-minor" if used > requested else "image-newest-minor"
    if cudnn:
        return reason(f"{code}-cudnn", cuda=requested, os=os, cudnn=cudnn)
    return reason(code, cuda=requested, os=os)


def pinned_digest(tag: str, platform: Platform, facts: Facts) -> PinnedDigest:
    """The recorded digest of a tag on a platform, or one that is still to be resolved."""
    row = facts.digest_of(tag, platform)
    if row is None:
        return PinnedDigest(platform, None, "unresolved", "", "no digest of a known kind is recorded for this tag")
    return PinnedDigest(platform, row.digest, "recorded", row.kind, row.source, row.created)


def custom_image(base: str, os: str, platforms: Sequence[Platform], facts: Facts) -> ImageChoice:
    """The user's own base image: `host/name:tag@sha256:...`, its digest as given.

    A tag of NVIDIA's own repository that is in no list of tags gives a warning: without a registry, nothing else would.
    """
    named, _, digest = base.partition("@")
    folder, slash, last = named.rpartition("/")
    name, _, tag = last.partition(":")
    fields: tuple[str | None, str, str, str] = (None, "unresolved", "", "the spec names no digest")
    if digest:
        fields = (digest, "spec", "", "set in the spec; its kind is not known without the registry")
    pinned = tuple(PinnedDigest(platform, *fields) for platform in platforms)
    image = BaseImage(f"{folder}{slash}{name}", tag, None, None, os, pinned)
    decision = Decision("image.tag", base, (reason("image-in-spec"),), "[image] base")
    warnings = () if digest else _unlisted(f"{folder}{slash}{name}", tag, facts)
    return ImageChoice(image, (decision,), warnings)


def _unlisted(repository: str, tag: str, facts: Facts) -> tuple[str, ...]:
    tags: list[str] = []
    systems: set[str] = set()  # of others (rockylinux, ...) no list was read
    for row in facts.images:
        systems.update(row.os)
        for flavor in row.flavors:
            tags += [f"{row.cuda}-{flavor}-{os}" for os in row.os]
    version, _, rest = tag.partition("-")
    if repository not in REPOSITORIES or tag in tags or rest.rpartition("-")[2] not in systems:
        return ()
    alike = [each for each in tags if each.startswith(f"{version}.") and each.endswith(f"-{rest}")]
    nearest = f"; {max(alike, key=numeric)} is" if alike else ""
    return (f"{repository}:{tag} is not in the known lists of NVIDIA's tags{nearest}",)


def _tag_flavor(row: ImageRow, flavor: str) -> str | None:
    """The flavour as the tag of that release has it: `cudnn-runtime` is `cudnn8-runtime` up to CUDA 12.2."""
    for name in row.flavors:
        if re.sub(r"^cudnn\d+-", "cudnn-", name) == flavor:
            return name
    return None


def _end_of_life(row: ImageRow, facts: Facts) -> list[Reason]:
    """What a tag's support means for its reason: no warning, since no setting of a spec chooses the patch."""
    successor = ""
    for other in facts.images:
        is_of_minor = CudaVersion.parse(other.cuda) == CudaVersion.parse(row.cuda)
        if is_of_minor and numeric(other.cuda) > numeric(row.cuda) and set(other.os) & set(row.os):
            successor = other.cuda
    if row.status == "supported" or (row.status == "unknown" and not successor):
        return []
    if successor:
        return [reason("image-superseded", newer=successor)]
    return [reason("image-end-of-life")]


def _no_such_image(cuda: CudaVersion, flavor: str, os: str, facts: Facts) -> NoSuchImage:
    # The lists of tags were read up to a day: of newer releases only those tags are known that somebody used.
    known = "there is no known"
    systems: set[str] = set()
    flavors: set[str] = set()
    for row in facts.images:
        if CudaVersion.parse(row.cuda) != cuda:
            continue
        if row.status != "unknown":
            known = "NVIDIA publishes no"
        if _tag_flavor(row, flavor):
            systems.update(row.os)
        if os in row.os:
            flavors.update(name for name in FLAVOR_LIBRARIES if _tag_flavor(row, name))
    hints: list[str] = []
    if systems:
        hints.append(f"{flavor} exists on {', '.join(sorted(systems))} ([cuda] os)")
    if flavors:
        hints.append(f"{os} has {', '.join(name for name in FLAVOR_LIBRARIES if name in flavors)} ([cuda] flavor)")
    return NoSuchImage(
        f"{known} CUDA {cuda} image with flavour {flavor} on {os}",
        hint="; ".join([*hints, 'name an image of your own: [image] base = "..."']),
    )


def plan_base_image(
    request: CudaRequest | None, resolutions: Sequence[Resolution], facts: Facts, base: str | None = None
) -> BaseImagePlan:
    """The base image, the oldest driver and the GPU code for resolved pins.

    request: None for an environment without CUDA. base: the spec's own image if there is no request.

    Raises:
        CudaMismatch, NoSuchImage: as `choose_release` and `choose_image`.
        DriverTooOld: the driver of the request does not run the lock.
        UnknownGpu, GpuNotServed: a GPU of `[cuda] gpus` that is unknown, or for which the wheels have no code.
    """
    pins = [read_pins(resolution, facts) for resolution in resolutions]
    codes = tuple(filter(None, (code_of(each, facts) for each in pins)))
    warnings = list(filter(None, (_newer(each, facts) for each in pins)))
    if request is None:
        return _without_cuda(pins, codes, warnings, base, facts)
    linux = [each for each in pins if each.platform.is_linux]
    able = [each for each in pins if each.platform is not Platform.OSX_ARM64]
    newer = list(_newer_elsewhere(able))
    checks = check_gpus(request, able, [code for code in codes if code.platform is not Platform.OSX_ARM64], facts)
    release = choose_release(request, linux, facts) if linux else None
    warnings += [*_unknown_codes(request, pins, codes), *newer, *_other_cudas(release, linux, facts)]
    without = tuple(_cpu_builds(able, request, release, facts))
    cpu_warnings = map(cpu_build_warning, without)
    if not linux:
        none = Decision("image.tag", "none", (reason("image-only-linux"),), "[env] platforms")
        warnings += [*cpu_warnings, *checks.warnings]
        return BaseImagePlan(None, None, codes, (none, *checks.decisions), tuple(warnings), cpu_builds=without)
    try:
        choice = _image(request, release, linux, facts)
    except NoSuchImage as error:
        error.hint = "; ".join(filter(None, (error.hint, *newer)))
        raise
    decisions = list(choice.decisions)
    driver = None
    if release:
        driver = _oldest_driver(release, choice, checks, facts)
        if request.driver and not at_least(request.driver, driver.minimum):
            raise _driver_too_old(request.driver, request.gpus, driver, release.cuda, linux, facts)
        decisions.insert(0, release.decision)
        decisions.append(Decision("driver.minimum", driver.minimum, driver.why, driver.source))
        if checks.ptx and not driver.bundled:
            gpus = ", ".join(checks.ptx)
            warnings.append(f"{gpus}: PTX needs the driver that CUDA {release.cuda} ships with, which is unknown")
    elif not without and not request.is_implied:
        warnings.append(
            "no locked package states which CUDA it needs: the base image has no CUDA libraries, and the lock names no "
            'driver. If a package needs them, set [cuda] version = "12.8", or add [[facts.cuda_build]] with its source'
        )
    warnings += cpu_warnings
    if release:
        warnings += release.warnings
    warnings += [*choice.warnings, *checks.warnings]
    decisions += checks.decisions
    return BaseImagePlan(choice.image, driver, codes, tuple(decisions), tuple(warnings), cpu_builds=without)


def _unknown_codes(request: CudaRequest, pins: Sequence[CudaPins], codes: Sequence[GpuCode]) -> Iterator[str]:
    for each in pins:
        # If GPUs are required, `check_gpus` warns that they could not be checked.
        if request.gpus and each.platform is not Platform.OSX_ARM64:
            continue
        if text := unknown_code(each, codes):
            yield text


def _other_cudas(release: Release | None, linux: Sequence[CudaPins], facts: Facts) -> Iterator[str]:
    if release is None or release.pinned is None:
        return
    for each in linux:
        yield from other_cudas(each, release.pinned, facts)
        yield from without_libraries(each, release.pinned, facts)


def _newer_elsewhere(pins: Iterable[CudaPins]) -> Iterator[str]:
    """A warning for each package whose newer releases are on another index."""
    rows = dict.fromkeys(pair for each in pins for pair in each.builds)
    for pin, row in rows:
        if row.newer:
            yield f"the default index has no newer {pin.name} than {pin.version}; {row.newer} has one ([[pip.index]])"


def _cpu_builds(
    pins: Sequence[CudaPins], request: CudaRequest, release: Release | None, facts: Facts
) -> Iterator[CpuBuild]:
    for each in pins:
        cuda = release.cuda if release and each.platform.is_linux else request.version
        yield from cpu_builds(each, request, cuda, facts)


def plan_platforms(
    requests: Mapping[Platform, CudaRequest], resolutions: Sequence[Resolution], facts: Facts, base: str | None = None
) -> BaseImagePlan:
    """As `plan_base_image`, with a request for each platform; empty for an environment without CUDA.

    The plan is that of the first linux platform and of those with the same request; `platform_cuda` has the other ones
    of linux. macOS, which has no CUDA, is in the first.
    """
    groups: dict[CudaRequest | None, list[Platform]] = {}
    for resolution in sorted(resolutions, key=lambda each: not each.target.platform.is_linux):
        platform = resolution.target.platform
        if platform is not Platform.OSX_ARM64:
            groups.setdefault(requests.get(platform), []).append(platform)
    if len(groups) < 2:
        request = next(iter(groups), requests.get(resolutions[0].target.platform))
        return plan_base_image(request, resolutions, facts, base)
    (first, main), *others = groups.items()
    rest = [each for each in resolutions if each.target.platform in (*main, Platform.OSX_ARM64)]
    plan = _of_platforms(plan_base_image(first, rest, facts, base), main)
    for request, platforms in others:
        own = [each for each in resolutions if each.target.platform in platforms]
        other = _of_platforms(plan_base_image(request, own, facts, base), platforms)
        linux = [each for each in platforms if each.is_linux]
        cudas = [PlatformCuda(each, _image_on(other.base_image, each), other.driver) for each in linux]
        plan = replace(
            plan,
            gpu_code=(*plan.gpu_code, *other.gpu_code),
            decisions=(*plan.decisions, *other.decisions),
            warnings=(*plan.warnings, *other.warnings),
            platform_cuda=(*plan.platform_cuda, *cudas),
            cpu_builds=(*plan.cpu_builds, *other.cpu_builds),
        )
    return plan


def _of_platforms(plan: BaseImagePlan, platforms: Sequence[Platform]) -> BaseImagePlan:
    """The plan, each of its decisions once for each platform."""
    decisions = []
    for decision in plan.decisions:
        if decision.platform:
            decisions.append(decision)
        else:
            decisions += [replace(decision, platform=platform) for platform in platforms]
    return replace(plan, decisions=tuple(decisions))


def _image_on(image: BaseImage | None, platform: Platform) -> BaseImage | None:
    return image and replace(image, digests=tuple(each for each in image.digests if each.platform is platform))


def _driver_too_old(
    driver: str, gpus: Sequence[str], needed: Driver, cuda: CudaVersion, linux: Sequence[CudaPins], facts: Facts
) -> DriverTooOld:
    """The error with the smallest changes: a newer driver, or the newest torch with a build that this one and the GPUs
    run.
    """
    changes = [f"set [cuda] driver to {needed.minimum} and run it on machines that have it"]
    # Otherwise it is PTX that needs more: other builds may have none for that GPU.
    if not facts.runs_cuda(driver, cuda):
        platform = linux[0].platform
        machines = Machines(driver, served(facts, [find_gpu(facts, name) for name in gpus], platform))
        newest = newest_build_for(facts, facts.torch, platform, machines)
        majors = [row.cuda for row in facts.driver_families if at_least(driver, row.minimum)]
        if newest and any(each.torch for each in linux):
            changes.append(f'require torch {newest[0].version}, with [cuda] version = "{newest[1]}"')
        elif majors:
            changes.append(f"require releases for CUDA {max(majors)}")
    return DriverTooOld(
        f"[cuda] driver is {driver}, and the lock needs {needed.minimum} or newer: {words(needed.why)}",
        hint="; or ".join(changes),
    )


def _image(request: CudaRequest, release: Release | None, linux: Sequence[CudaPins], facts: Facts) -> ImageChoice:
    """The base image: the spec's own, else one of NVIDIA's, else the system's if the packages bring all CUDA libraries.

    Raises:
        NoSuchImage: none of them is known.
    """
    platforms = [each.platform for each in linux]
    if request.base:
        return custom_image(request.base, request.os, platforms, facts)
    if release is not None:
        return _nvidia_image(request, release, image_needs(release, linux), platforms, facts)
    why = (reason("no-cuda-stated"), reason("image-without-cuda"))
    if plain := system_image(request.os, platforms, facts, why):
        return plain
    raise NoSuchImage(
        f"no locked package states which CUDA it needs, and no image of {request.os} without CUDA is known",
        hint='set [cuda] version = "12.8", or remove [cuda] for a CPU environment',
    )


def _nvidia_image(
    request: CudaRequest, release: Release, needs: ImageNeeds, platforms: Sequence[Platform], facts: Facts
) -> ImageChoice:
    """One of NVIDIA's images; the system's if none is known, the spec requires no flavour and none is needed."""
    try:
        choice = choose_image(release, flavors_to_try(request, needs), request.os, platforms, facts, needs.cudnn)
    except NoSuchImage:
        why = (reason("image-unknown", major=release.cuda.major, os=request.os), *needs.why)
        plain = system_image(request.os, platforms, facts, why)
        if request.flavor != AUTO or needs.libraries or plain is None:
            raise
        return plain
    found = CudaVersion.parse(str(choice.image.cuda_release))
    if found == release.cuda or (request.flavor == AUTO and (found > release.cuda or not needs.libraries)):
        return choice
    if request.flavor != AUTO and request.version is not None:
        raise _no_such_image(release.cuda, request.flavor, request.os, facts)
    warning = (
        f"no image of CUDA {release.cuda} with flavour {choice.image.flavor} is known for {request.os}: "
        f"{choice.image.tag} is used instead. Another one: [image] base"
    )
    return replace(choice, warnings=(warning, *choice.warnings))


def _oldest_driver(release: Release, choice: ImageChoice, checks: GpuChecks, facts: Facts) -> Driver:
    """The oldest driver that runs the lock: the major's first by minor-version compatibility; the toolkit's own for
    PTX.
    """
    cuda, of_image = str(release.cuda), choice.image.cuda_release
    if of_image and CudaVersion.parse(of_image) == release.cuda:
        cuda = of_image
    row = facts.driver_of(release.exact or cuda)
    if checks.ptx and row.bundled:
        of_ptx = reason("driver-of-ptx", gpus=", ".join(checks.ptx))
        return Driver(row.bundled, row.bundled, (of_ptx,), row.source)
    if release.cuda.major < 11:
        return Driver(row.minimum, row.bundled, (reason("driver-of-release", cuda=row.cuda),), row.source)
    why = [reason("driver-of-minor", major=release.cuda.major, minimum=row.minimum)]
    if row.bundled:
        why.append(reason("driver-shipped", cuda=release.exact or row.cuda, driver=row.bundled))
    return Driver(row.minimum, row.bundled, tuple(why), row.source)


def _without_cuda(
    pins: Sequence[CudaPins], codes: tuple[GpuCode, ...], warnings: Sequence[str], base: str | None, facts: Facts
) -> BaseImagePlan:
    brought: list[str] = []
    for each in pins:
        brought += [f"{found.pin} on {each.platform.value}" for found in each.cudas]
    if brought:
        warnings = [*warnings, f"the spec has no [cuda] table, and {', '.join(brought)} is in the lock all the same"]
    linux = [each.platform for each in pins if each.platform.is_linux]
    if base and linux:
        # Which system it is nobody has said: without [cuda] there is no `os`.
        choice = custom_image(base, "", linux, facts)
        return BaseImagePlan(choice.image, None, codes, choice.decisions, (*warnings, *choice.warnings))
    none = Decision("image.tag", "none", (reason("image-of-cpu"),), "the spec")
    return BaseImagePlan(None, None, codes, (none,), tuple(warnings))


def _newer(pins: CudaPins, facts: Facts) -> str:
    """A warning for a torch that is newer than the facts; a conda channel's solver keeps its family together."""
    torch = pins.torch
    if torch is None or torch.channel or facts.torch_release(torch.version):
        return ""
    if numeric(torch.version) <= numeric(facts.torch[-1].version):
        return ""
    return (
        f"torch {torch.version} on {pins.platform.value} is newer than the facts (up to {facts.torch[-1].version}): "
        "its family and its GPU code could not be checked. Add it to the spec, with its source: [[facts.torch]]"
    )


#: What torch.compile needs to build its C and C++ code: Triton's launcher is C, inductor's code for the CPU is C++.
#: `gcc` alone only recommends libc's headers.
COMPILER: Final = ("g++", "gcc", "libc6-dev")

#: Service -> the Python package that it runs, as PyPI and conda call it.
_RUNS: Final = {"jupyter": "jupyterlab", "tensorboard": "tensorboard"}
_SSHD: Final = "openssh-server"

_TRITON: Final = frozenset({"triton", "pytorch-triton"})
#: conda packages that put a compiler on PATH under a name that Triton looks for. Those of a platform (`gcc_linux-64`)
#: do so only when the environment is activated, which an image is not. Source: triton/runtime/build.py.
_CONDA_COMPILERS: Final = frozenset({"gcc", "clang", "c-compiler", "compilers"})


def decide_settings(
    spec: Spec, resolutions: Sequence[Resolution], facts: Facts
) -> tuple[ImageSettings, tuple[Decision, ...]]:
    """The image's settings from `[image]`, `[system]`, `[services]` and the lock, with reasons; defaults off Linux.

    Raises:
        UsageError: a service whose package is not in the lock.
    """
    linux = [resolution for resolution in resolutions if resolution.target.platform.is_linux]
    if not linux:
        return ImageSettings(), ()
    services = _services(spec, linux)
    compiler, compiler_decisions = _compiler(spec, linux)
    groups = _apt(spec, services, compiler, linux, facts)
    apt: set[str] = set()
    reasons = []
    for packages, why in groups:
        apt.update(packages)
        reasons.append(why)
    project = "" if spec.image.project is ProjectInImage.NONE else spec.image.project.value
    image = ImageSettings(
        workdir=spec.image.workdir,
        env=tuple(sorted(spec.image.env.items())),
        compiler=compiler,
        apt=tuple(sorted(apt)),
        services=services,
        project=project,
        copy=spec.image.copied,
        entrypoint=spec.image.entrypoint,
        command=spec.image.command,
    )
    decisions = [*compiler_decisions]
    if image.apt:
        decisions.append(Decision("image.apt", " ".join(image.apt), tuple(reasons), "the spec"))
    if services:
        value = " ".join(f"{service.name}:{service.port}" for service in services)
        decisions.append(Decision("image.services", value, (reason("services"),), "the spec: [services]"))
    return image, tuple(decisions)


def _services(spec: Spec, linux: Sequence[Resolution]) -> tuple[Service, ...]:
    groups = spec.services
    if groups is None:
        return ()
    services = []
    if groups.jupyter:
        services.append(Service("jupyter", groups.jupyter.port))
    if groups.ssh:
        services.append(Service("ssh", groups.ssh.port))
    if groups.tensorboard:
        services.append(Service("tensorboard", groups.tensorboard.port, groups.tensorboard.logdir))
    for service in services:
        if package := _RUNS.get(service.name):
            _require_package(package, service.name, linux)
    return tuple(services)


def _require_package(package: str, service: str, linux: Sequence[Resolution]) -> None:
    """Fail if a service's package is missing on a platform."""
    without = []
    for resolution in linux:
        if package not in resolution.names and package not in {each.name for each in resolution.installed}:
            without.append(resolution)
    if without:
        where = ", ".join(resolution.target.platform.value for resolution in without)
        section = "conda" if all(resolution.conda for resolution in without) else "pip"
        raise UsageError(
            f"[services] {service} runs {package}, which is not in the lock for {where}",
            hint=f'add "{package}" to [{section}] dependencies, or remove {service} from [services]',
        )


def _compiler(spec: Spec, linux: Sequence[Resolution]) -> tuple[str, Iterable[Decision]]:
    """The compiler, with the reason for it if there is one."""
    requested = spec.image.compiler
    needing = [resolution for resolution in linux if _TRITON & resolution.names]
    if requested is Compiler.APT:
        why = [reason("compiler-in-spec"), *_of_base(linux)]
        return "apt", [Decision("image.compiler", "apt", tuple(why), "the spec: image.compiler")]
    if requested is Compiler.NONE:
        why = [reason("compiler-none")]
        if needing:
            why.append(reason("compiler-missing"))
        return "none", [Decision("image.compiler", "none", tuple(why), "the spec: image.compiler")]
    if not needing:
        return "none", []
    brought = []
    for resolution in needing:
        brought.append(sorted(_CONDA_COMPILERS & {record.name for record in resolution.conda}))
    why = [reason("compiler-for-triton")]
    if all(brought):
        why.append(reason("compiler-of-conda", package=brought[0][0]))
        return "conda", [Decision("image.compiler", "conda", tuple(why), "the lock contains triton")]
    why += _of_base(linux)
    return "apt", [Decision("image.compiler", "apt", tuple(why), "the lock contains triton")]


def _of_base(linux: Sequence[Resolution]) -> list[Reason]:
    if all(resolution.target.python.source != "base" for resolution in linux):
        return []
    return [reason("compiler-headers")]


def _apt(
    spec: Spec, services: Sequence[Service], compiler: str, linux: Sequence[Resolution], facts: Facts
) -> list[tuple[Sequence[str], Reason]]:
    """The system's packages in groups, each with its reason. One that the spec names, with a version or not, is its."""
    own = spec.system.apt if spec.system else ()
    pythons = {resolution.target.python.series: resolution.target for resolution in linux}
    of_system = [f"python{series}" for series, target in pythons.items() if target.python.source == "system"]
    groups: list[tuple[Sequence[str], str, Mapping[str, str]]] = [(of_system, "apt-python", {})]
    if any(service.name == "ssh" for service in services):
        groups.append(([_SSHD], "apt-ssh", {}))
    if compiler == "apt":
        groups.append((COMPILER, "apt-compiler", {}))
    if compiler != "none":
        groups.append((_headers(spec, pythons, facts), "apt-headers", {}))
    if spec.system and spec.system.libraries is Libraries.AUTO:
        for each in library_groups(spec.os_on, linux, facts):
            loads = {"package": f"{each.package} {each.version}", "libraries": ", ".join(each.loads)}
            groups.append((_without(each.apt, covered(own, each.os, facts)), "apt-libraries", loads))
    named = {package.partition("=")[0] for package in own}
    found: list[tuple[Sequence[str], Reason]] = []
    if own:
        found.append((own, reason("apt-in-spec", packages=" ".join(own))))
    for packages, code, values in groups:
        added = _without(packages, named)
        of_group = (added, reason(code, **values, packages=" ".join(added)))
        if added and of_group not in found:
            found.append(of_group)
    return found


def _without(packages: Iterable[str], others: Collection[str]) -> list[str]:
    return [package for package in packages if package not in others]


def _headers(spec: Spec, pythons: Mapping[str, Target], facts: Facts) -> list[str]:
    """Of Pythons that the system's package manager has; other sources bring their headers along."""
    headers = []
    for series, target in pythons.items():
        if is_of_system(target.python, facts.system(spec.os_on(target.platform))):
            headers.append(f"libpython{series}-dev")
    return headers
