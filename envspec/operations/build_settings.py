"""How packages of a lock are built beside its torch: from the spec and the facts into the lock, and from the lock into
a build.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from envspec.errors import NoSolution
from envspec.facts import Facts
from envspec.facts.gpu import ComputeCapability, Runs, capability_of, find_gpu, runs
from envspec.facts.tables import ExtensionRow, GpuRow
from envspec.models import BuildSettings, Package, Platform, Resolution
from envspec.operations.lock_state import find_package
from envspec.resolve.pypi.errors import GPUS_LINES
from envspec.spec import Spec
from envspec.spec.sections import BuildSection
from envspec.structs import replace


def with_builds(resolution: Resolution, spec: Spec, facts: Facts) -> Resolution:
    """The resolution, with the settings of the packages that are built beside others.

    Raises:
        NoSolution: code for GPUs is to be compiled, and the spec names none.
    """
    return replace(resolution, builds=tuple(_settings(resolution, spec, facts)))


def _settings(resolution: Resolution, spec: Spec, facts: Facts) -> Iterator[BuildSettings]:
    torch = ("torch",) if find_package(resolution, "torch") else ()
    for package in resolution.packages:
        if package.file.filename.endswith(".whl"):
            continue
        # Imported only for sdists: it unpacks archives.
        from envspec.build.reproducible import is_pure

        row = facts.extension(package.name, package.version)
        # A wheel that is built without a compiler needs nothing else than its build requires.
        is_alone = package.unbuilt is not None or (package.built is not None and is_pure(package.built.filename))
        if package.name in spec.build or (row and not is_alone):
            _check_torch(resolution, package)
            row = row or ExtensionRow(package=package.name, versions="", module="", source="torch.utils.cpp_extension")
            settings = settings_of(spec, facts, row, resolution.target.platform)
            settings = replace(settings, requires=tuple(dict.fromkeys((*torch, *settings.requires))))
            _check_gpus(settings, resolution, row.arch, package)
            yield settings


def _check_torch(resolution: Resolution, package: Package) -> None:
    """Refuse a build beside a torch that is no wheel of the lock: builds have nothing of a base image or a system.

    Raises:
        NoSolution
    """
    if resolution.on_top_of and any(each.name == "torch" for each in resolution.installed):
        raise NoSolution(
            f"{package.name} {package.version} is compiled beside torch, which is not in the lock but in "
            f"{resolution.on_top_of.source}: envspec does not build beside it",
            hint=f"name a wheel of {package.name} that was built for that torch, by its URL or its [[pip.index]]",
        )


def _check_gpus(settings: BuildSettings, resolution: Resolution, arch: str, package: Package) -> None:
    """Fail if a build beside a torch for CUDA is not limited to GPUs: it would compile for what its sources choose.

    Raises:
        NoSolution: neither [cuda] gpus nor a variable of the build names them.
    """
    from envspec.build.environment import cuda_of, packages_beside

    if dict(settings.env).get(arch) or not cuda_of(packages_beside(resolution, package.name, settings.requires)):
        return
    raise NoSolution(
        f"{package.name} {package.version} on {resolution.target.platform.value} is compiled beside torch for CUDA, "
        "and the spec does not name the GPUs to compile for",
        hint=f"name your own in the spec, such as:\n    {GPUS_LINES}",
    )


def settings_of(spec: Spec, facts: Facts, row: ExtensionRow, platform: Platform) -> BuildSettings:
    """What the spec and a package's row say of its build. The spec's GPUs are its GPU architectures, without PTX: code
    for other GPUs would be compiled by their driver at the first call, where nobody has tested it.

    Raises:
        NoSolution: its sources do not compile for one of the GPUs.
    """
    own = spec.build.get(row.package, BuildSection())
    env: dict[str, str] = {}
    cuda = spec.cuda_on(platform)
    if cuda is not None and cuda.gpus:
        gpus = sorted({_architecture(find_gpu(facts, gpu), row) for gpu in cuda.gpus})
        codes = ";".join(map(str, gpus))
        env[row.arch] = codes if row.arch_form == "8.0" else codes.replace(".", "")
    env |= {**row.env, **own.env}
    return BuildSettings(
        name=row.package,
        requires=tuple(dict.fromkeys([*row.requires, *map(str, own.requires)])),
        env=tuple(sorted(env.items())),
        gpu_code=_architectures(env.get(row.arch, "")),
        limit=row.jobs,
        jobs=1 if row.serial else own.jobs,
        memory_mib=row.memory_mib or None,
        minutes=row.minutes or None,
    )


def _architecture(gpu: GpuRow, row: ExtensionRow) -> ComputeCapability:
    """The GPU's own, or the nearest below it for which the sources compile and whose code the GPU runs."""
    own = capability_of(gpu)
    usable = []
    for arch in row.archs:
        if runs(own, [arch]) is Runs.SASS:
            usable.append(ComputeCapability.parse(arch))
    if row.archs and not usable:
        raise NoSolution(
            f"{row.package} {row.versions} has no code for {gpu.name} ({own.sm}): its sources compile for "
            f"{', '.join(row.archs)}",
            hint=f"remove {gpu.name} from [cuda] gpus, or {row.package} from [pip]",
        )
    return max(usable, default=own)


def _architectures(text: str) -> tuple[str, ...]:
    """`8.0;9.0+PTX` or `80;90`: sm_80, sm_90; empty if it names them otherwise."""
    found: dict[str, None] = {}
    for word in re.split(r"[;, ]+", text.strip()):
        numbers = re.fullmatch(r"(\d+)\.?(\d[af]?)(?:\+PTX)?", word)
        if not numbers:
            return ()
        found[f"sm_{numbers[1]}{numbers[2]}"] = None
    return tuple(found)


def same_build(old: Resolution, new: Resolution, package: Package) -> bool:
    """Whether two resolutions build a package beside the same wheels and in the same way."""
    from envspec.build.environment import packages_beside

    before, after = old.build_of(package.name), new.build_of(package.name)
    if before is None or after is None:
        return before is after

    def inputs(part: Resolution, settings: BuildSettings) -> object:
        packages = packages_beside(part, package.name, settings.requires)
        bytes_of = replace(settings, compiler="", limit="", jobs=None, memory_mib=None, minutes=None)
        return bytes_of, [each.wheel.sha256 for each in packages]

    return inputs(old, before) == inputs(new, after)
