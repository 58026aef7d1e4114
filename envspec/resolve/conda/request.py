"""Spec, platform and facts -> the question for a conda solver: which packages from where, for which machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from envspec.credentials import channel_without_credentials, filled, unset
from envspec.errors import UsageError
from envspec.facts import Facts
from envspec.facts.tables import minor
from envspec.models import CondaPackage, CudaVersion, Decision, Platform
from envspec.origins import channel_url
from envspec.resolve.types import Channel, CondaRequest, VirtualPackage
from envspec.spec import Spec, UndatedFiles
from envspec.spec.conda import ARCHSPEC, CUDA, version_and_build
from envspec.spec.targets import bounds_of, has_cuda

#: The kernel that an environment runs on at least; conda-lock assumes the same.
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


@dataclass(frozen=True, slots=True)
class CondaMoments:
    """Up to when packages are considered.

    names: packages with a moment of their own, by `--upgrade-package`. others: the moment of all other names, while it
    is not yet known which of them must move too; None: `as_of`.
    """

    as_of: datetime
    names: Mapping[str, datetime]
    others: datetime | None = None


def channels_of(spec: Spec, environ: Mapping[str, str], rows: Mapping[str, Path]) -> tuple[Channel, ...]:
    """The spec's channels in its order, credentials in their addresses filled in; none where it has no [conda].

    environ: where `${VARIABLE}` is looked up; a value is what it is, not yet percent-encoded.
    rows: folders of rows that stand for channels, by a channel's name or address.

    Raises:
        UsageError: a variable that is not set, or rows for a channel that the spec does not have.
    """
    texts = spec.conda.channels if spec.conda else ()
    folders = {channel_url(name): folder for name, folder in rows.items()}
    only = {channel_url(name): subdirs for name, subdirs in spec.conda.only.items()} if spec.conda else {}
    found = tuple(
        _channel(text, environ, folders.pop(channel_url(text), None), only.get(channel_url(text), ())) for text in texts
    )
    if folders:
        name = next(name for name in rows if channel_url(name) in folders)
        known = ", ".join(channel.name for channel in found)
        raise UsageError(
            f"--channel-repodata: the spec has no channel {channel_without_credentials(name)}",
            hint=f"it has {known}" if known else "it has no [conda] at all",
        )
    return found


def _channel(text: str, environ: Mapping[str, str], rows: Path | None, only: tuple[str, ...]) -> Channel:
    public = channel_without_credentials(text)
    url = channel_url(text)
    address = text if url.startswith("http") and "://" in text else url
    if name := unset(address, environ):
        raise UsageError(
            f"conda.channels: {public} takes its credentials from {name}, which is not set",
            hint=f"set {name} in the environment, or take it out of the channel's address",
        )
    return Channel(name=public, url=url, address=filled(address, environ), rows=rows, only=only)


def compose_conda(
    spec: Spec,
    platform: Platform,
    facts: Facts,
    moments: CondaMoments,
    locked: tuple[CondaPackage, ...],
    channels: tuple[Channel, ...],
) -> CondaRequest:
    """The question for one platform of a spec with [conda].

    locked: the platform's rows of the lock, to keep where the spec allows it. channels: see `channels_of`.

    Raises:
        UsageError: the glibc of the base's system is not known.
    """
    conda = spec.conda
    asked = conda.dependencies_on(platform) if conda else ()
    return CondaRequest(
        platform=platform,
        channels=channels,
        requirements=(python_requirement(spec), *asked),
        virtual_packages=tuple(package for package, _ in _virtual_packages(spec, facts, platform)),
        as_of=moments.others or moments.as_of,
        constraints=_cap(spec, platform),
        of_platform=frozenset(asked) - frozenset(conda.dependencies if conda else ()),
        cuda=_cuda(spec, facts, platform),
        undated=conda is not None and conda.undated is UndatedFiles.ACCEPT,
        cuts=moments.names,
        locked=locked,
    )


def decisions_of(spec: Spec, facts: Facts, platform: Platform) -> tuple[Decision, ...]:
    """What is decided before anything is solved: the machine that the packages are for, and the cap on CUDA.

    Raises:
        UsageError: the glibc of the base's system is not known.
    """
    chosen = _virtual_packages(spec, facts, platform)
    sources = dict.fromkeys(source for _, source in chosen)
    found = [
        Decision(
            "conda.virtual_packages",
            ", ".join(str(package) for package, _ in chosen),
            "what the environment's machine has, whatever the machine that locks",
            "; ".join(sources),
            platform,
        )
    ]
    if (cuda := _capped(spec, platform)) is not None:
        why = "packages for a newer CUDA ask for a newer driver than [cuda] version does"
        found.append(Decision("conda.cuda_version", f"<={cuda}", why, "the spec: cuda.version", platform))
    return tuple(found)


def python_requirement(spec: Spec) -> str:
    """What the spec's Python asks of the channels: `python 3.13.*`, or `python ==3.13.5` where it names the patch."""
    exact = spec.env.exact_python
    return f"python =={exact}" if exact else f"python {spec.env.python_series}.*"


def _capped(spec: Spec, platform: Platform) -> CudaVersion | None:
    return spec.cuda.version if spec.cuda and has_cuda(spec, platform) else None


def _cap(spec: Spec, platform: Platform) -> tuple[str, ...]:
    """`cuda-version` has releases of two parts, 12.8; `cudatoolkit`'s have patches: 11.7.1 is within 11.7."""
    cuda = _capped(spec, platform)
    if cuda is None:
        return ()
    return f"cuda-version <={cuda}", f"cudatoolkit <{cuda.major}.{cuda.minor + 1}"


def _cuda(spec: Spec, facts: Facts, platform: Platform) -> CudaVersion | None:
    """The newest CUDA that the machine's driver runs: [cuda] version, else the newest with a driver in the facts."""
    if spec.cuda is None or not has_cuda(spec, platform):
        return None
    return spec.cuda.version or max(minor(row.cuda) for row in facts.drivers)


def _virtual_packages(spec: Spec, facts: Facts, platform: Platform) -> list[tuple[VirtualPackage, str]]:
    """The platform's virtual packages by name, each with where it comes from."""
    found: dict[str, tuple[VirtualPackage, str]] = {}

    def has(name: str, version: str, source: str, build: str = "0") -> None:
        found[name] = VirtualPackage(name, version, build), source

    (glibc, macos), bounds = bounds_of(spec, facts, platform)
    bound = bounds[0].source if bounds else ""
    own = "envspec's default"
    if platform is Platform.WIN_64:
        has("__win", "0", own)
    else:
        has("__unix", "0", own)
    if platform.is_linux:
        has("__linux", LINUX, own)
    if glibc is not None:
        has("__glibc", f"{glibc[0]}.{glibc[1]}", bound)
    if macos is not None:
        has("__osx", f"{macos[0]}.{macos[1]}", bound)
    has(ARCHSPEC, "1", own, _MICROARCHITECTURE[platform])
    if (cuda := _cuda(spec, facts, platform)) is not None:
        has(CUDA, str(cuda), "the spec: cuda.version" if _capped(spec, platform) else _newest_source(facts, cuda))
    for name, value in (spec.conda.virtual_packages_on(platform) if spec.conda else {}).items():
        version, build = version_and_build(name, value)
        has(name, version, "the spec: conda.virtual_packages", build)
    return [found[name] for name in sorted(found)]


def _newest_source(facts: Facts, cuda: CudaVersion) -> str:
    row = next(row for row in facts.drivers if minor(row.cuda) == cuda)
    return f"the newest CUDA with a driver in the facts: {row.source}"
