"""Spec, platform and facts -> request for a conda solver: which packages from where, for which machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envspec.credentials import channel_without_credentials, filled, unset
from envspec.errors import UsageError
from envspec.facts import Facts
from envspec.facts.gpu import capability_of, find_gpu
from envspec.models import CondaPackage, CudaVersion, Decision, Platform
from envspec.origins import channel_url
from envspec.reasons import reason
from envspec.resolve.types import Channel, CondaRequest, Cutoffs, VirtualPackage
from envspec.spec import Spec, UndatedFiles
from envspec.spec.conda import ARCHSPEC, CUDA, CUDA_ARCH, preferred_record, version_and_build
from envspec.spec.targets import bounds_of, has_cuda

#: The oldest supported kernel; conda-lock assumes the same.
#: Source: conda-lock 4.0.3, default-virtual-packages.yaml.
LINUX: Final = "5.10"

# The microarchitecture that every machine of a platform has, by archspec's name for it. Source: rattler's
# rattler_virtual_packages, Archspec::from_platform (x86_64, aarch64, and m1, the first of Apple's). conda-lock says
# arm64 on a Mac, as conda does for a platform that is not its own; a Mac's own conda says m1; archspec has no arm64.
_MICROARCHITECTURE: Final = {
    Platform.LINUX_64: "x86_64",
    Platform.LINUX_AARCH64: "aarch64",
    Platform.OSX_ARM64: "m1",
    Platform.WIN_64: "x86_64",
}


def channels_of(spec: Spec, environ: Mapping[str, str], repodata: Mapping[str, Path]) -> tuple[Channel, ...]:
    """The spec's channels in its order, with credentials in their addresses; none without [conda].

    environ: has the values of `${VARIABLE}`, not percent-encoded.
    repodata: folders that replace a channel's repodata, by the channel's name or address.

    Raises:
        UsageError: a variable is not set, or the spec does not have a channel of `repodata`.
    """
    folders = {channel_url(name): folder for name, folder in repodata.items()}
    found: list[Channel] = []
    if spec.conda:
        only = {channel_url(name): subdirs for name, subdirs in spec.conda.only.items()}
        for text in spec.conda.channels:
            url = channel_url(text)
            found.append(_channel(text, environ, folders.pop(url, None), only.get(url, ())))
    for name in repodata:
        if channel_url(name) in folders:
            hint = "add [conda] to the spec"
            if found:
                hint = f"use one of its channels: {', '.join(channel.name for channel in found)}"
            shown = channel_without_credentials(name)
            raise UsageError(f"--channel-repodata: the spec has no channel {shown}", hint=hint)
    return tuple(found)


def _channel(text: str, environ: Mapping[str, str], repodata: Path | None, only: tuple[str, ...]) -> Channel:
    public = channel_without_credentials(text)
    url = channel_url(text)
    address = text if url.startswith("http") and "://" in text else url
    if name := unset(address, environ):
        raise UsageError(
            f"conda.channels: {public} needs credentials from {name}, which is not set",
            hint=f"set {name} in the environment, or remove it from the channel's address",
        )
    return Channel(name=public, url=url, address=filled(address, environ), repodata=repodata, only=only)


def conda_request(
    spec: Spec,
    platform: Platform,
    facts: Facts,
    cutoffs: Cutoffs,
    locked: tuple[CondaPackage, ...],
    channels: tuple[Channel, ...],
) -> CondaRequest:
    """The request for one platform of a spec with [conda]. locked: packages to keep if the spec allows them."""
    conda = spec.conda
    required = conda.dependencies_on(platform) if conda else ()
    python = f"python {spec.env.python_series}.*"
    if exact := spec.env.exact_python:
        python = f"python =={exact}"
    return CondaRequest(
        platform=platform,
        channels=channels,
        requirements=(python, *required),
        virtual_packages=tuple(package for package, _ in _virtual_packages(spec, facts, platform)),
        as_of=cutoffs.others or cutoffs.as_of,
        constraints=_caps(spec, platform),
        of_platform=frozenset(required) - frozenset(conda.dependencies if conda else ()),
        cuda=_cuda(spec, facts, platform),
        undated=conda is not None and conda.undated is UndatedFiles.ACCEPT,
        cutoffs=cutoffs.names,
        locked=locked,
        preferred=tuple(map(preferred_record, conda.prefer if conda else ())),
    )


def decisions_of(spec: Spec, facts: Facts, platform: Platform) -> tuple[Decision, ...]:
    """The decisions before solving: the machine that the packages are for, and the cap on CUDA."""
    chosen = _virtual_packages(spec, facts, platform)
    packages, every_source = zip(*chosen, strict=True)
    value, sources = ", ".join(map(str, packages)), dict.fromkeys(every_source)
    why = (reason("conda-machine"),)
    found = [Decision("conda.virtual_packages", value, why, "; ".join(sources), platform)]
    if (cuda := _capped(spec, platform)) is not None:
        why = (reason("conda-newer-driver"),)
        found.append(Decision("conda.cuda_version", f"<={cuda}", why, "the spec: cuda.version", platform))
    return tuple(found)


def _capped(spec: Spec, platform: Platform) -> CudaVersion | None:
    cuda = spec.cuda_on(platform)
    return cuda.version if cuda and has_cuda(spec, platform) else None


def _caps(spec: Spec, platform: Platform) -> tuple[str, ...]:
    """`cuda-version` has releases of two parts, 12.8; `cudatoolkit`'s have patches: 11.7.1 is within 11.7."""
    cuda = _capped(spec, platform)
    if cuda is None:
        return ()
    return f"cuda-version <={cuda}", f"cudatoolkit <{cuda.major}.{cuda.minor + 1}"


def _cuda(spec: Spec, facts: Facts, platform: Platform) -> CudaVersion | None:
    """The newest CUDA for the machine's driver: [cuda] version, else the newest that `driver` or any other supports.

    Raises:
        UsageError: no CUDA in the facts is as old as the driver.
    """
    cuda = spec.cuda_on(platform)
    if cuda is None or not has_cuda(spec, platform):
        return None
    found = cuda.version or facts.newest_cuda(cuda.driver)
    if found is None:
        raise UsageError(
            f"[cuda] driver is {cuda.driver}: no CUDA that it supports is known", hint="set [cuda] version as well"
        )
    return found


def _virtual_packages(spec: Spec, facts: Facts, platform: Platform) -> list[tuple[VirtualPackage, str]]:
    """The platform's virtual packages, sorted by name, each with its source.

    Raises:
        UsageError: the glibc of the base's system is unknown.
    """
    found: dict[str, tuple[VirtualPackage, str]] = {}

    def has(name: str, version: str, source: str, build: str = "0") -> None:
        found[name] = VirtualPackage(name, version, build), source

    target = spec.cuda_on(platform)
    (glibc, macos), bounds = bounds_of(spec, facts, platform)
    bound = bounds[0].source if bounds else ""
    own = "envspec's default"
    has("__win" if platform is Platform.WIN_64 else "__unix", "0", own)
    if platform.is_linux:
        has("__linux", LINUX, own)
    if glibc is not None:
        has("__glibc", f"{glibc[0]}.{glibc[1]}", bound)
    if macos is not None:
        has("__osx", f"{macos[0]}.{macos[1]}", bound)
    has(ARCHSPEC, "1", own, _MICROARCHITECTURE[platform])
    if (cuda := _cuda(spec, facts, platform)) is not None:
        source = "the spec: cuda.version"
        if _capped(spec, platform) is None:
            newest = next((row.source for row in facts.drivers if CudaVersion.parse(row.cuda) == cuda), "")
            of_driver = "that the spec's driver supports" if target and target.driver else "with a driver in the facts"
            source = f"the newest CUDA {of_driver}: {newest}"
        has(CUDA, str(cuda), source)
        if target and target.gpus:
            smallest = min((find_gpu(facts, name) for name in target.gpus), key=capability_of)
            has(CUDA_ARCH, str(capability_of(smallest)), f"the spec: cuda.gpus; {smallest.name}: {smallest.source}")
    if spec.conda:
        for name, value in spec.conda.virtual_packages_on(platform).items():
            version, build = version_and_build(name, value)
            has(name, version, "the spec: conda.virtual_packages", build)
    return [found[name] for name in sorted(found)]
