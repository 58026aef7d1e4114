"""GPU code of the locked builds, and whether the GPUs that a spec names run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from envspec.base_image.cpu_builds import cuda_instead
from envspec.base_image.cuda import CudaPins, CudaRequest, GpuNotServed, PackageSource, TorchBuild
from envspec.facts import Facts
from envspec.facts.gpu import (
    ComputeCapability,
    Runs,
    capability_of,
    find_gpu,
    has_wheel,
    in_time,
    names_text,
    names_with_sm,
    oldest_driver,
    runs,
    runs_all,
)
from envspec.facts.tables import GpuRow, at_least, numeric, ranges_text, rows_with, versions_of
from envspec.facts.torch import BuildChoice
from envspec.models import CpuBuild, CudaVersion, Decision, GpuCode, Platform
from envspec.origins import PYTORCH
from envspec.reasons import reason
from envspec.resolve.pypi.found import is_release


class GpuChecks(Struct, frozen=True):
    """Results for the GPUs of the spec. ptx: names that run only what their driver compiles from PTX."""

    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]
    ptx: tuple[str, ...] = ()


class OtherBuild(Struct, frozen=True):
    """A torch build with code for certain GPUs. default: it is the default index's build on that platform.
    how: PTX where one of the GPUs runs only what its driver compiles. channel: of conda; empty for a wheel.
    """

    torch: str
    variant: str
    default: bool
    how: Runs
    channel: str = ""

    def __str__(self) -> str:
        name = f"{self.channel}'s pytorch" if self.channel else "torch"
        where = "default build" if self.default else f'[cuda] version = "{CudaVersion.parse(self.variant)}"'
        if self.how is Runs.PTX:
            where += ", by PTX"
        return f"{name} {self.torch} {self.variant} ({where})"

    def oldest_driver(self, facts: Facts, gpus: Iterable[ComputeCapability]) -> str | None:
        """The oldest driver that runs it on these GPUs; None if it compiles PTX and the toolkit's own is unknown."""
        return oldest_driver(facts, CudaVersion.parse(self.variant), gpus, self.how)


def code_of(pins: CudaPins, facts: Facts) -> GpuCode | None:
    """GPU code of the locked torch on one platform; None without torch, or if it is unknown."""
    torch = pins.torch
    if torch is None or torch.build is None:
        return None
    own = pins.platform, torch.name, torch.version, torch.build
    if torch.build == "cpu":
        return GpuCode(*own, (), (), "a CPU build")
    if torch.source is PackageSource.FOUND and pins.gpu_code is not None:
        return GpuCode(*own, pins.gpu_code.sm, pins.gpu_code.ptx, f"the libraries of torch in {torch.origin}")
    if torch.source is PackageSource.FOUND and not is_release(torch.version):
        return None
    row = facts.gpu_code_of(torch.version, torch.build, pins.platform, torch.channel)
    if row is None:
        return None
    return GpuCode(*own, row.sm, row.ptx, "; ".join(filter(None, (row.source, row.note))))


def unknown_code(pins: CudaPins, codes: Sequence[GpuCode]) -> str:
    """A warning for a CUDA build from conda whose GPU code is unknown; else empty."""
    torch = pins.torch
    if torch is None or not torch.channel or torch.build == "cpu" or pins.platform in _known(codes):
        return ""
    return ". ".join(_unknown_code(pins.platform, torch))


def check_gpus(request: CudaRequest, pins: Sequence[CudaPins], codes: Sequence[GpuCode], facts: Facts) -> GpuChecks:
    """Whether every GPU of the request runs the locked torch: a warning for each platform where it does not.

    Raises:
        UnknownGpu: a name that no row has.
        GpuNotServed: a GPU for which the wheels of no platform have code.
    """
    gpus = [find_gpu(facts, name) for name in request.gpus]
    unchecked = [each for each in pins if each.platform not in _known(codes)]
    decisions: list[Decision] = []
    warnings: list[str] = []
    by_ptx: list[str] = []
    unserved: list[GpuRow] = []
    for gpu in gpus:
        capability = capability_of(gpu)
        found = set()
        for code in codes:
            how = runs(capability, code.sm, code.ptx)
            found.add(how)
            decisions.append(_decision(gpu, capability, code, how))
            # A CPU build has a warning of its own.
            if how is Runs.NOT and code.variant != "cpu":
                where = f"{_named(code)} on {code.platform.value}"
                warnings.append(f"{names_with_sm([gpu])} can't run {where}, which has {_code_text(code)}")
        if found == {Runs.NOT} and not unchecked:
            unserved.append(gpu)
        if found - {Runs.NOT} == {Runs.PTX}:
            by_ptx.append(gpu.name)
    if unserved:
        contents = "; ".join(f"{_named(code)} on {code.platform.value} has {_code_text(code)}" for code in codes)
        hint = _change(request, unserved, gpus, pins, codes[0], facts)
        raise GpuNotServed(f"{names_with_sm(unserved)} can't run this lock: {contents}", hint=hint)
    if gpus:
        # Packages that use no GPU have a warning of their own.
        warnings += [_unchecked(each) for each in unchecked if each.has_cuda or not each.without_cuda]
    return GpuChecks(tuple(decisions), tuple(warnings), tuple(by_ptx))


def check_choice(request: CudaRequest, choice: BuildChoice, platform: Platform, python: str, facts: Facts) -> None:
    """Fail as `check_gpus` for the newest release of a choice that has no code for the GPUs, before it is resolved.

    python: its series.

    Raises:
        GpuNotServed
    """
    if choice.serves_gpus or not choice.versions or choice.variant is None:
        return
    torch = TorchBuild(PackageSource.PYPI, "torch", choice.versions[-1], choice.variant, f"{PYTORCH}{choice.variant}")
    pins = CudaPins(platform, python, (), {}, torch, (), frozenset({PackageSource.PYPI}))
    if code := code_of(pins, facts):
        check_gpus(request, [pins], [code], facts)


def other_builds(
    facts: Facts, capabilities: Sequence[ComputeCapability], platform: Platform, channel: str = ""
) -> Iterator[OtherBuild]:
    """Every known torch build that all of these GPUs run, newest torch first, the default build before the others.

    channel: a conda channel, for builds of that channel; empty for wheels.
    """
    for torch, variant, default in _builds(facts, platform, channel):
        row = facts.gpu_code_of(torch, variant, platform, channel)
        how = runs_all(capabilities, row.sm, row.ptx) if row else Runs.NOT
        if how is not Runs.NOT:
            yield OtherBuild(torch, variant, variant == default, how, channel)


def no_common_build(facts: Facts, gpus: Sequence[GpuRow], platform: Platform) -> str:
    """`no known torch build has code for all of V100 and B200`; empty if a wheel has."""
    return "" if _has_build(facts, gpus, platform) else nothing_for_all(gpus)


def _has_build(facts: Facts, gpus: Iterable[GpuRow], platform: Platform, channel: str = "") -> bool:
    """Whether some build has code for all of them."""
    # Every lock checks this: the first build is enough.
    return next(other_builds(facts, list(map(capability_of, gpus)), platform, channel), None) is not None


def apart(facts: Facts, gpus: Sequence[GpuRow], platform: Platform, channel: str = "") -> str:
    """The hint for GPUs that no build runs together: as few groups as builds allow, the oldest GPUs first.

    channel: as in `other_builds`. GPUs that no build runs are in no group.
    """
    groups: list[list[GpuRow]] = []
    for gpu in sorted(gpus, key=capability_of):
        if groups and _has_build(facts, [*groups[-1], gpu], platform, channel):
            groups[-1].append(gpu)
        elif _has_build(facts, [gpu], platform, channel):
            groups.append([gpu])
    found = ", ".join(f"one for {names_text(group)}" for group in groups)
    return f"lock them apart, as variants ([variants.NAME]): {found}"


def nothing_for_all(gpus: Iterable[GpuRow]) -> str:
    return f"no known torch build has code for all of {', '.join(gpu.name for gpu in gpus)}"


def _builds(facts: Facts, platform: Platform, channel: str) -> Iterator[tuple[str, str, str | None]]:
    """(torch, variant, the default variant), newest torch first: wheels by release, a channel's as its rows have it."""
    if channel:
        rows = rows_with(facts.gpu_code, channel=channel, platform=platform.value)
        builds = dict.fromkeys((row.torch, row.variant) for row in rows)
        for torch, variant in sorted(
            builds, key=lambda build: (numeric(build[0]), numeric(build[1][2:])), reverse=True
        ):
            yield torch, variant, None
        return
    for release in reversed(facts.torch):
        default = release.default_on(platform)
        variants = {*release.published, default or "cpu"} - {"cpu"}
        for variant in sorted(variants, key=lambda name: (name != default, name)):
            yield release.version, variant, default


def _change(
    request: CudaRequest,
    unserved: Sequence[GpuRow],
    gpus: Sequence[GpuRow],
    pins: Sequence[CudaPins],
    code: GpuCode,
    facts: Facts,
) -> str:
    """What to change for GPUs that the locked torch has no code for, with builds that all GPUs of the request run.

    code: of the locked torch. What no known build for its platform runs is left out of `gpus`.
    """
    own = next(each for each in pins if each.platform is code.platform)
    if code.variant == "cpu" and not code.platform.is_linux:
        # envspec has no facts about the GPU code of wheels for Windows.
        instead = f"{code.package} * cuda*"
        return cuda_instead(CpuBuild(code.platform, code.package, code.version, instead))
    if own.torch and own.torch.source is PackageSource.FOUND:
        return f"install on top of a torch that has code for {_sm(gpus)}, or remove {_sm(unserved)} from [cuda] gpus"
    channel = own.torch.channel if own.torch else ""

    def builds_of(found: Sequence[GpuRow]) -> tuple[OtherBuild, ...]:
        return tuple(other_builds(facts, list(map(capability_of, found)), code.platform, channel))

    if never := [gpu for gpu in unserved if not builds_of([gpu])]:
        return builds_text((), _sm(never), facts, code.version, channel)
    together = [gpu for gpu in gpus if builds_of([gpu])]
    of_unserved, shared = builds_of(unserved), builds_of(together)
    if not shared:
        return f"{nothing_for_all(together)}: {apart(facts, together, code.platform, channel)}"
    code_for = _sm(unserved)
    if len(shared) < len(of_unserved):
        code_for += " and the other GPUs"
    return _allowed_text(request, own, shared, code_for, code.version, facts)


def _allowed_text(
    request: CudaRequest, pins: CudaPins, builds: Sequence[OtherBuild], code_for: str, torch: str, facts: Facts
) -> str:
    """Those of the builds that the rest of the spec allows; without any, all of them, with what excludes them.

    torch: the locked release.
    """
    limits = list(_limits(request, pins, facts))
    allowed = list(builds)
    for _, is_within in limits:
        allowed = list(filter(is_within, allowed))
    text = builds_text(allowed or builds, code_for, facts, torch)
    if not allowed:
        unmet = [limit for limit, is_within in limits if not any(map(is_within, builds))]
        return f"{text}; none of them {' or '.join(unmet or [limit for limit, _ in limits])}"
    if request.version and any(build.default for build in allowed):
        return f"{text}. For a default build, leave [cuda] version out"
    return text


def _limits(request: CudaRequest, pins: CudaPins, facts: Facts) -> Iterator[tuple[str, Callable[[OtherBuild], bool]]]:
    """What else in the spec decides which builds can be locked."""
    if as_of := request.as_of:
        yield (
            f"was uploaded by {as_of:%Y-%m-%d} (as_of)",
            lambda build: (row := facts.torch_release(build.torch)) is None or in_time(row, as_of),
        )
    yield (
        f"has a wheel for Python {pins.python}",
        lambda build: (row := facts.torch_release(build.torch)) is None or has_wheel(row, pins.platform, pins.python),
    )
    if driver := request.driver:
        yield (
            f"runs with driver {driver}",
            lambda build: (oldest := build.oldest_driver(facts, ())) is not None and at_least(driver, oldest),
        )


def builds_text(builds: Sequence[OtherBuild], code_for: str, facts: Facts, torch: str, channel: str = "") -> str:
    """The builds to turn to: those of the same torch, then the default builds of others; the newest of a channel."""
    public = torch.partition("+")[0]
    builds_shown, others = [], []
    for build in builds:
        if build.torch == public:
            builds_shown.append(str(build))
        elif build.default:
            others.append(build.torch)
    if others:
        builds_shown.append(f"the default build of torch {ranges_text(others, versions_of(facts.torch))}")
    elif not builds_shown:
        builds_shown = list(map(str, builds[:3]))
    if not builds_shown:
        of_channel = f"of {channel} " if channel else ""
        return f"no known torch build {of_channel}has code for {code_for}"
    return f"builds with code for {code_for}: {'; '.join(builds_shown)}"


def _decision(gpu: GpuRow, capability: ComputeCapability, code: GpuCode, how: Runs) -> Decision:
    why = [reason("gpu-is", gpu=gpu.name, sm=capability.sm)]
    if how is Runs.PTX:
        why.append(reason("gpu-ptx", ptx=", ".join(code.ptx)))
    elif code.sm or code.ptx:
        why.append(reason("gpu-code", package=_named(code), sm=" ".join((*code.sm, *code.ptx))))
    else:
        why.append(reason("gpu-no-code", package=_named(code)))
    return Decision(f"gpu.{gpu.name}", how.value, tuple(why), code.source, code.platform)


def _unchecked(pins: CudaPins) -> str:
    torch = pins.torch
    if torch is None:
        reason = "no package of the lock has GPU code that envspec knows"
        return f"{pins.platform.value}: {reason}, so [cuda] gpus can't be checked"
    unknown, change = _unknown_code(pins.platform, torch)
    return f"{unknown}, so [cuda] gpus could not be checked. {change}"


def _known(codes: Sequence[GpuCode]) -> set[Platform]:
    return {code.platform for code in codes}


def _unknown_code(platform: Platform, torch: TorchBuild) -> tuple[str, str]:
    """`linux-64: the GPU code of conda-forge's pytorch 2.7.1 (cu129) is unknown`, and what to do about it."""
    variant = f" ({torch.build})" if torch.build else ""
    unknown = f"{platform.value}: the GPU code of {torch}{variant} is unknown"
    if torch.source is PackageSource.FOUND and not is_release(torch.version):
        return unknown, "It is no release of PyTorch's, and its libraries were not read"
    keys = {
        "torch": torch.version.partition("+")[0],
        "variant": torch.build,
        "platform": platform.value,
        "channel": torch.channel,
    }
    named = ", ".join(f'{key} = "{value}"' for key, value in keys.items() if value)
    return unknown, f"Add it to the spec: [[facts.gpu_code]] with {named}, and its sm, ptx and source"


def _named(code: GpuCode) -> str:
    local = "" if "+" in code.version or code.variant == "cpu" else f" {code.variant}"
    return f"{code.package} {code.version}{local}"


def _sm(gpus: Iterable[GpuRow]) -> str:
    return ", ".join(dict.fromkeys(capability_of(gpu).sm for gpu in gpus))


def _code_text(code: GpuCode) -> str:
    names = " ".join((*code.sm, *code.ptx))
    return f"code for {names}" if names else "no GPU code (a CPU build)"
