"""The rows of `envspec/data/*.toml` as frozen types. Every row says where it comes from and when that was read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from envspec.model import CudaVersion


def numeric(text: str) -> tuple[int, ...]:
    """The numbers of a dotted version, to order releases, drivers and patches by: `570.26` is (570, 26).

    A local part (`+cu128`) and a suffix such as `.post1` are left out; for pre-releases use packaging's Version.
    """
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """source: where the fact comes from. read: when. confidence: high, medium or low."""

    source: str
    read: date | None = None
    confidence: str = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRelease(Row):
    """A torch release.

    default: conda subdir -> variant of the build on the default index. variants: published on PyTorch's own indexes;
    unsure: reported there, but in no build matrix. cudart, cudnn, nccl: versions that the default linux build pins.
    gpu_code: variant -> GPU code (`sm_90`, `compute_120`), for rows that a spec adds; ours is in a table of its own.
    """

    version: str
    default: Mapping[str, str]
    variants: tuple[str, ...]
    unsure: tuple[str, ...] = ()
    uploaded: datetime | None = None
    requires_python: str = ""
    pythons: tuple[str, ...] = ()
    cudart: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    gpu_code: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def published(self) -> tuple[str, ...]:
        """Every variant that was published, oldest CUDA first, `cpu` before them."""
        return tuple(sorted({*self.variants, *self.unsure}, key=lambda v: (v != "cpu", numeric(v[2:]), v)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCodeRow(Row):
    """GPU code in a build of torch. torch: a minor version (`2.8`), or one release. measured: releases whose files were
    asked. channel: the conda channel of the build (`conda-forge`); empty for the project's wheels.
    """

    torch: str
    variant: str
    platform: str
    sm: tuple[str, ...]
    ptx: tuple[str, ...]
    measured: tuple[str, ...] = ()
    note: str | None = None
    channel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Row):
    """A GPU by its usual name. compute_capability: `9.0`. memory_mib: nvidia-smi's totals, one per size sold."""

    name: str
    compute_capability: str
    first_cuda: str | None = None
    aliases: tuple[str, ...] = ()
    memory_mib: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRow(Row):
    """cuda: a release (`12.8.1`) or a minor. minimum, bundled: Linux driver versions."""

    cuda: str
    minimum: str
    bundled: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFamily(Row):
    """cuda: a major version. minimum: oldest Linux driver by minor-version compatibility."""

    cuda: int
    minimum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRow(Row):
    """Tags of docker.io/nvidia/cuda that exist. status: `supported`, `ended` or `unknown`."""

    cuda: str
    flavors: tuple[str, ...]
    os: tuple[str, ...]
    status: str = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsRow(Row):
    """Versions of the CUDA libraries of one release. os: images they were read in; empty: known from wheels."""

    cuda: str
    cudart: str
    os: tuple[str, ...] = ()
    cublas: str | None = None
    nccl: str | None = None
    cudnn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow(Row):
    """What NVIDIA says of its tags."""

    what: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestRow(Row):
    """A recorded manifest digest. kind: `index` (manifest list) or `manifest` (one platform's)."""

    tag: str
    digest: str
    kind: str
    platforms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRow(Row):
    """A standalone CPython build. build: its release as YYYYMMDD."""

    version: str
    platform: str
    build: str
    url: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRow(Row):
    """A program that a Dockerfile fetches: one executable for a platform."""

    name: str
    version: str
    platform: str
    url: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRow(Row):
    """A base image's system. python: series of its own package; python_patch: exact patch, where it was seen."""

    os: str
    glibc: str
    python: str | None = None
    python_patch: str | None = None
    packages: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow(Row):
    """What one release of a family member asks of torch in its own metadata (`==2.9.1`; empty: nothing)."""

    package: str
    version: str
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRow(Row):
    """A correction: `requires` lines are added to the metadata of the package's `versions` (a specifier set).

    beside: `cuda` where it holds beside a torch that is built for CUDA only; empty: everywhere.
    """

    package: str
    versions: str
    requires: tuple[str, ...]
    reason: str
    beside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRow(Row):
    """No release of the package follows `last`."""

    package: str
    last: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow(Row):
    """A package that the default index can't give: why, and what to do."""

    package: str
    reason: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonRow(Row):
    """The triton that a torch release pins on linux, as a specifier."""

    torch: str
    triton: str


def minor(release: str) -> CudaVersion:
    """`12.8.1` -> 12.8."""
    return CudaVersion.parse(release)


def spoken_ranges(versions: Sequence[str], known: Sequence[str]) -> str:
    """`2.8.0 to 2.10.0, 2.12.0`: neighbours among the known releases are told as one range."""
    spans: list[list[str]] = []
    for version in sorted(versions, key=known.index):
        if spans and known.index(version) == known.index(spans[-1][-1]) + 1:
            spans[-1].append(version)
        else:
            spans.append([version])
    return ", ".join(span[0] if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans)
