"""GPUs and drivers of a spec against the facts, before any request: what no resolution changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from packaging.specifiers import SpecifierSet

from envspec.base_image.cuda import CudaRequest, GpuNotServed
from envspec.base_image.gpus import apart, check_choice, no_common_build
from envspec.facts import Facts, load_facts
from envspec.facts.gpu import (
    UnknownGpu,
    capability_of,
    find_gpu,
    first_drivers,
    match_gpu,
    newest_driver,
    unsupported,
    versions_outside,
)
from envspec.facts.tables import GpuRow, TorchRelease, at_least
from envspec.facts.torch import CudaChoice, Machines, NoSuchBuild, choose_build, easiest_build, served, split_label
from envspec.models import Platform
from envspec.operations.lock_state import linux_platforms
from envspec.spec import Spec
from envspec.spec.errors import KeyPath
from envspec.spec.load import load_spec, spec_error
from envspec.spec.sections import BasePackages, CudaTarget


def check_spec(path: Path, variant: str, now: datetime) -> None:
    """Fail if a spec is not valid, or if nothing locks it.

    Raises:
        SpecError, GpuNotServed: as `check_cuda`.
    """
    spec = load_spec(path, now).variant(variant)
    check_cuda(spec, load_facts(spec.facts.tables()), path, variant)


def check_cuda(spec: Spec, facts: Facts, path: Path, variant: str, text: str | None = None) -> None:
    """Fail on what no resolution changes. text: of the spec, if it is not that of its file.

    Raises:
        SpecError: unknown GPUs, and a driver that is too old for [cuda] version or a GPU: every problem, with its line.
        GpuNotServed: no torch build has code for all GPUs.
    """
    found: dict[tuple[KeyPath, str, str], None] = {}
    for platform in spec.env.platforms:
        found |= dict.fromkeys(_problems(spec, platform, facts))
    if found:
        raise spec_error(path, found, variant, text)
    _check_builds(spec, facts)


def _problems(spec: Spec, platform: Platform, facts: Facts) -> Iterator[tuple[KeyPath, str, str]]:
    keys = spec.cuda_on(platform)
    if keys is None:
        return
    gpus = []
    for at, name in enumerate(keys.gpus):
        try:
            gpus.append(find_gpu(facts, name))
        except UnknownGpu as error:
            yield (*_path(spec, platform, "gpus"), at), error.message, error.hint or ""
    if keys.driver is not None:
        yield from _driver_problems(spec, platform, keys, gpus, facts)


def _path(spec: Spec, platform: Platform, key: str) -> KeyPath:
    """A key of [cuda], or of its table for the platform if that has it."""
    own = spec.cuda.platform.get(platform) if spec.cuda is not None else None
    if own is not None and key in own.model_fields_set:
        return ("cuda", "platform", platform.value, key)
    return ("cuda", key)


def _driver_problems(
    spec: Spec, platform: Platform, keys: CudaTarget, gpus: Sequence[GpuRow], facts: Facts
) -> Iterator[tuple[KeyPath, str, str]]:
    """What the driver of a platform is too old for, as one problem. keys: of the platform."""
    version, driver = keys.version, keys.driver or ""
    too_old_for: list[str] = []
    fixes: list[str] = []
    minimum = facts.driver_of(str(version)).minimum if version else ""
    if minimum and not at_least(driver, minimum):
        too_old_for.append(f"CUDA {version} (needs {minimum} or newer)")
        fixes.append("leave `version` out")
    newer = unsupported(facts, driver, gpus)
    names: list[str] = []
    for gpu, first in newer:
        names.append(gpu.name)
        too_old_for.append(f"{gpu.name} (needs {first.version} or newer)")
    if names:
        fixes.append(f"remove {' and '.join(names)} from `gpus`")
    if not too_old_for:
        return
    needed: list[str] = []
    for each in spec.env.platforms:
        keys_there = spec.cuda_on(each)
        if keys_there and keys_there.driver == driver:
            needed += _drivers_needed(spec, each, keys_there, facts)
    hint = f'set `driver` to "{newest_driver(needed)}" or newer, or {" and ".join(fixes)}'
    if not newer:
        hint += ": the newest build that the driver runs is locked"
    if together := _no_common_build(spec, platform, gpus, facts):
        hint += f"; {together}: {apart(facts, gpus, platform)}"
    yield _path(spec, platform, "driver"), f"driver {driver} is too old for {' and '.join(too_old_for)}", hint


def _drivers_needed(spec: Spec, platform: Platform, keys: CudaTarget, facts: Facts) -> Iterator[str]:
    """The first drivers of the known GPUs, and the oldest drivers for [cuda] version and for torch."""
    gpus = [row for name in keys.gpus if (row := match_gpu(facts, name))]
    for first in first_drivers(facts, map(capability_of, gpus)):
        yield first.version
    if keys.version:
        yield facts.driver_of(str(keys.version)).minimum
    if build := easiest_build(facts, _torch_releases(spec, facts), platform, served(facts, gpus, platform)):
        yield build.driver


def _check_builds(spec: Spec, facts: Facts) -> None:
    """Fail before any request if no torch build has code for all GPUs of the only Linux platform, or if the build that
    driver, CUDA version and requirements select lacks code for one: its index may be one that can't be reached.

    Raises:
        GpuNotServed: there is none, and the spec requires releases of torch that are in the facts.
    """
    linux = linux_platforms(spec)
    if len(linux) != 1:
        return
    [platform] = linux
    cuda = spec.cuda_on(platform)
    allowed = _torch_allowed(spec, facts)
    if cuda is None or not cuda.gpus or allowed is None:
        return
    gpus = tuple(find_gpu(facts, name) for name in cuda.gpus)
    if text := _no_common_build(spec, platform, gpus, facts):
        raise GpuNotServed(text, hint=apart(facts, gpus, platform))
    as_of = spec.env.as_of if isinstance(spec.env.as_of, datetime) else None
    python = spec.env.python_series
    with suppress(NoSuchBuild):
        machines = Machines(cuda.driver, gpus, python)
        choice = choose_build(facts, allowed, cuda.version or CudaChoice.ANY, platform, as_of, machines)
        request = CudaRequest(cuda.version, gpus=cuda.gpus, driver=cuda.driver, as_of=as_of)
        check_choice(request, choice, platform, python, facts)


def _no_common_build(spec: Spec, platform: Platform, gpus: Sequence[GpuRow], facts: Facts) -> str:
    """As `no_common_build`, for the GPUs that some build runs; empty also if torch is not in the facts."""
    if not _torch_releases(spec, facts):
        return ""
    return no_common_build(facts, served(facts, gpus, platform), platform)


def _torch_releases(spec: Spec, facts: Facts) -> list[TorchRelease]:
    """The releases of torch that the spec allows; none if `_torch_allowed` is None."""
    allowed = _torch_allowed(spec, facts)
    if allowed is None:
        return []
    return [row for row in facts.torch if allowed.contains(row.version, prereleases=True)]


def _torch_allowed(spec: Spec, facts: Facts) -> SpecifierSet | None:
    """The versions of torch that the spec allows, without a build's label; None if it does not bound torch to releases
    in the facts, or if torch may come from elsewhere than the default index and PyTorch's.
    """
    pip = spec.pip
    if spec.conda or pip.index_for("torch") or pip.on_top_of or spec.image.packages is BasePackages.KEEP:
        return None
    if any(each.requirement.name == "torch" for each in pip.overrides):
        return None
    bounds: list[str] = []
    for each in (*pip.dependencies, *pip.constraints):
        if each.name != "torch":
            continue
        if each.url or each.marker:
            return None
        bounds.append(str(each.specifier))
    if not bounds:
        return None
    allowed, _ = split_label(SpecifierSet(",".join(filter(None, bounds))))
    return None if versions_outside(facts, allowed) else allowed
