"""GPU names, compute capabilities, and which code runs on which GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.conformance.hardware import runs_any
from envspec.errors import UsageError
from envspec.facts.tables import Facts, GpuRow, TorchRelease, at_least, numeric, pep440
from envspec.models import CudaVersion, GpuCodeFound, Platform

#: Packages whose kernels are not in `.nv_fatbin` alone. Read in libcufft.so.11 of nvidia-cufft-cu12 11.3.3.83: that
#: section has 400 bytes, for sm_52, and `.ldata` 270 of the library's 279 MB.
_KERNELS_ELSEWHERE: Final = re.compile(r"nvidia-cufft(-cu\d+)?")

_VENDOR: Final = frozenset({"nvidia", "tesla", "geforce", "gpu", "graphics"})

#: How names of other vendors' GPUs begin; the vendor, and its counterpart of CUDA.
_OTHER_VENDORS: Final = (
    (re.compile(r"amd |radeon|(?:amd )?instinct|mi[2-4]\d{2}[axp]?\b|rx ?\d{4}|gfx\d"), "AMD", "ROCm"),
    (re.compile(r"intel |gaudi|arc |data center gpu max"), "Intel", "XPU"),
)


#: Names in the column "Data Center" of NVIDIA's table of compute capabilities; not T400 to T1200 and GB10.
_DATA_CENTER: Final = re.compile(r"[ABHLMPV]\d{1,3}S?|T4|G[BH]\d{3}")


class Runs(Enum):
    """How a GPU runs a package's code."""

    SASS = "sass"
    PTX = "ptx"
    NOT = "not"


class UnknownGpu(UsageError, code="unknown-gpu"):
    """A GPU name that no row has."""


class ComputeCapability(Struct, frozen=True, order=True):
    """9.0 for sm_90."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> ComputeCapability:
        """Read `9.0`, `sm_90` or `compute_90` (a suffix `a` or `f` is dropped); ValueError for anything else."""
        found = re.fullmatch(r"(\d+)\.(\d)|(?:sm|compute)_(\d+)(\d)[af]?", text)
        if not found:
            raise ValueError(f"not a compute capability: {text!r}")
        return cls(int(found[1] or found[3]), int(found[2] or found[4]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def sm(self) -> str:
        return f"sm_{self.major}{self.minor}"


def runs(capability: ComputeCapability, sm: Iterable[str], ptx: Iterable[str] = ()) -> Runs:
    """How a GPU of this capability runs code that holds these SASS and PTX targets."""
    gpu = (capability.major, capability.minor)
    if runs_any(sm, gpu):
        return Runs.SASS
    if runs_any(ptx, gpu):
        return Runs.PTX
    return Runs.NOT


def runs_all(gpus: Iterable[ComputeCapability], sm: Sequence[str], ptx: Sequence[str] = ()) -> Runs:
    """As `runs`, for several GPUs: NOT if one of them does not run the code, PTX if one runs PTX only."""
    how = {runs(each, sm, ptx) for each in gpus}
    for worst in (Runs.NOT, Runs.PTX):
        if worst in how:
            return worst
    return Runs.SASS


def capabilities_of(facts: Facts, gpus: Iterable[str]) -> dict[str, ComputeCapability]:
    """Name -> compute capability; without names that no row has: a lock may be of a spec with rows of its own."""
    found = {}
    for name in gpus:
        with suppress(UnknownGpu):
            found[name] = capability_of(find_gpu(facts, name))
    return found


def has_other_kernels(package: str) -> bool:
    """Whether a wheel has more GPU code than envspec can read: it does not tell which GPUs can't run it."""
    return _KERNELS_ELSEWHERE.fullmatch(package) is not None


def without_code(gpus: Mapping[str, ComputeCapability], code: GpuCodeFound) -> tuple[str, ...]:
    """The GPUs, by name, that run nothing of a wheel's GPU code; none if it has no GPU code."""
    if not (code.sm or code.ptx):
        return ()
    return tuple(name for name, capability in gpus.items() if runs(capability, code.sm, code.ptx) is Runs.NOT)


def gpus_without_code(gpus: Iterable[GpuRow], sm: tuple[str, ...], ptx: tuple[str, ...]) -> tuple[str, ...]:
    """As `without_code`: `V100 (sm_70)`."""
    capabilities = {names_with_sm([gpu]): capability_of(gpu) for gpu in gpus}
    return without_code(capabilities, GpuCodeFound(sm, ptx))


def capability_of(gpu: GpuRow) -> ComputeCapability:
    return ComputeCapability.parse(gpu.compute_capability)


def is_for_data_centers(facts: Facts, name: str) -> bool | None:
    """None if it is unknown: no row has the name, or it is a compute capability."""
    gpu = match_gpu(facts, name)
    if gpu is None or gpu.name == f"compute capability {capability_of(gpu)}":
        return None
    return bool(_DATA_CENTER.fullmatch(gpu.name))


class FirstDriver(NamedTuple):
    """The first driver for a GPU. cuda: the toolkit that it came with. source: of both."""

    version: str
    cuda: CudaVersion
    source: str


def first_driver(facts: Facts, capability: ComputeCapability) -> FirstDriver | None:
    """The driver that came with the first toolkit for this capability; None for what is older than the table of
    drivers. An older driver does not support such a GPU (inferred: each toolkit ships with the first driver branch for
    its new GPUs).
    """
    cudas = []
    for gpu in facts.gpus:
        if gpu.first_cuda and capability_of(gpu) == capability:
            cudas.append(CudaVersion.parse(gpu.first_cuda))
    if not cudas:
        return None
    first = min(cudas)
    for row in facts.drivers:
        if row.bundled and CudaVersion.parse(row.cuda) == first:
            return FirstDriver(row.bundled, first, row.source)
    return None


def first_drivers(facts: Facts, gpus: Iterable[ComputeCapability]) -> list[FirstDriver]:
    """Those of these GPUs, the newest first."""
    found = {first_driver(facts, each) for each in gpus}
    return sorted(filter(None, found), key=lambda first: numeric(first.version), reverse=True)


def unsupported(facts: Facts, driver: str, gpus: Iterable[GpuRow]) -> list[tuple[GpuRow, FirstDriver]]:
    """The GPUs that are newer than a driver, each with its first one."""
    newer = []
    for gpu in gpus:
        first = first_driver(facts, capability_of(gpu))
        if first and not at_least(driver, first.version):
            newer.append((gpu, first))
    return newer


def oldest_driver(facts: Facts, cuda: CudaVersion, gpus: Iterable[ComputeCapability], how: Runs) -> str | None:
    """The oldest Linux driver that runs a build for this CUDA on these GPUs; None if it must compile PTX, and the
    toolkit's own driver is unknown. how: PTX if one of them runs only that.
    """
    row = facts.driver_of(str(cuda))
    own = row.bundled if how is Runs.PTX else row.minimum
    return own and newest_driver([own, *(first.version for first in first_drivers(facts, gpus))])


def newest_driver(drivers: Iterable[str]) -> str:
    return max(drivers, key=numeric)


def find_gpu(facts: Facts, name: str) -> GpuRow:
    """The row that a name means: as people write it (`h100`, `RTX4090`), as NVML gives it (`NVIDIA H100 80GB HBM3`),
    or a compute capability itself (`9.0`, `sm_90`).

    Raises:
        UnknownGpu: no row; the hint has the nearest names.
    """
    found = match_gpu(facts, name)
    if found:
        return found
    for pattern, vendor, platform in _OTHER_VENDORS:
        if pattern.match(name.strip().lower()):
            raise UnknownGpu(
                f"`{name}` is a GPU of {vendor}, and {platform} is not supported: envspec locks builds for CUDA "
                "and for the CPU",
                hint="name GPUs of NVIDIA; without [cuda], a spec locks CPU builds",
            )
    by_squeezed = {}
    for row in facts.gpus:
        for text in (row.name, *row.aliases):
            by_squeezed[_squeezed(text)] = row.name
    matches = get_close_matches(_squeezed(name), by_squeezed, 3, 0.6)
    known = "if NVIDIA makes it"
    if matches:
        near = dict.fromkeys(by_squeezed[match] for match in matches)
        known = f"did you mean {' or '.join(near)}? If it is missing"
    raise UnknownGpu(
        f"unknown GPU `{name}`",
        hint=f'{known}, write its compute capability ("9.0", as `nvidia-smi --query-gpu=compute_cap --format=csv` '
        "prints it), or add a [[facts.gpu]] row",
    )


def match_gpu(facts: Facts, name: str) -> GpuRow | None:
    """As `find_gpu`, with None for a name that no row has."""
    try:
        capability = ComputeCapability.parse(name.strip().lower())
    except ValueError:
        pass
    else:
        return GpuRow(name=f"compute capability {capability}", compute_capability=str(capability), source="as given")
    words = _words(name)
    squeezed = "".join(words)
    best, longest = None, 0
    for row in facts.gpus:
        for text in (row.name, *row.aliases):
            known = _words(text)
            # Words after the name are memory size, form factor and the like: `A100-SXM4-80GB`.
            same = words[: len(known)] == known or "".join(known) == squeezed
            if same and len(known) > longest:
                best, longest = row, len(known)
    return best


def names_text(gpus: Iterable[GpuRow]) -> str:
    """`V100 and A100`."""
    return " and ".join(gpu.name for gpu in gpus)


def names_with_sm(gpus: Iterable[GpuRow]) -> str:
    """`V100 (sm_70) and A100 (sm_80)`."""
    return " and ".join(f"{gpu.name} ({capability_of(gpu).sm})" for gpu in gpus)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and word not in _VENDOR]


def _squeezed(name: str) -> str:
    return "".join(_words(name))


def versions_outside(facts: Facts, torch: SpecifierSet) -> list[Version]:
    """Versions of torch that a specifier allows and the data does not have, older than its first row or newer.

    Found by trying versions: a specifier has no bounds of its own.
    """
    first, last = Version(facts.torch[0].version), Version(facts.torch[-1].version)
    tried = ["1.0.0", "1.8.0", "1.13.1", f"{last.major + 1}.0.0"]
    for minor in range(first.minor):
        tried += [f"{first.major}.{minor}.{patch}" for patch in range(3)]
    tried += [f"{last.major}.{last.minor + step}.0" for step in range(1, 10)]
    tried += [f"{last.major}.{last.minor}.{last.micro + step}" for step in range(1, 5)]
    for version in named_versions(torch):
        series = f"{version.major}.{version.minor}"
        tried += [str(version), f"{series}.{version.micro}", f"{series}.{version.micro + 1}"]
    outside = [version for version in map(Version, tried) if not first <= version <= last]
    return list(torch.filter(outside, prereleases=True))


def named_versions(specifiers: SpecifierSet) -> list[Version]:
    """The versions that the clauses name; those of `===` that are none are left out."""
    named = []
    for clause in specifiers:
        version = pep440(clause.version.removesuffix(".*"))
        if version:
            named.append(version)
    return named


def in_time(row: TorchRelease, as_of: datetime | None) -> bool:
    """Was it out by then? A release without an upload time counts as out."""
    return as_of is None or row.uploaded is None or row.uploaded <= as_of


def has_wheel(row: TorchRelease, platform: Platform, python: str) -> bool:
    """May it have a wheel for a series of Python? Known for linux x86-64 alone."""
    return platform is not Platform.LINUX_64 or not row.pythons or python in ("", *row.pythons)
