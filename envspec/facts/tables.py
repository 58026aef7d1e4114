"""Rows of data/*.toml, typed, with their lookups.

The spec's parser has checked keys, types and forms against the row types before; here stays what it can't see, and
what a caller without a spec could get wrong.

A file is read when its table is first asked for, once in a process.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Any, Final, TypeVar

from envspec.data import DATA, facts_version
from envspec.errors import UsageError
from envspec.models import CudaVersion, Platform


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


#: Tables that a spec may add to, as `[[facts.<table>]]`.
ADDABLE: Final[Mapping[str, type[Row]]] = {
    "torch": TorchRelease,
    "gpu_code": GpuCodeRow,
    "edge": EdgeRow,
    "gpu": Gpu,
    "digest": DigestRow,
    "driver": DriverRow,
    "image": ImageRow,
    "parts": PartsRow,
    "python": PythonRow,
    "member": MemberRow,
}


class BadFact(UsageError):
    """A row under a spec's `[facts]` that is not one."""


def build(kind: type[R], raw: Mapping[str, Any]) -> R:
    """A row from its TOML table: arrays become tuples, everything else stays."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    return kind(**values)


def added_rows(table: str, listed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    """The rows of one table of a spec's `[facts]`.

    Raises:
        BadFact: an unknown table or key, a missing key, or GPU code that is none.
    """
    kind = ADDABLE.get(table)
    if kind is None:
        near = get_close_matches(table, ADDABLE, n=1)
        hint = f"did you mean [[facts.{near[0]}]]?" if near else f"tables: {', '.join(sorted(ADDABLE))}"
        raise BadFact(f"[facts] has no table `{table}`", hint=hint)
    return tuple(_row(kind, raw, f"facts.{table}[{number}]") for number, raw in enumerate(listed))


def _row(kind: type[Row], raw: Mapping[str, Any], where: str) -> Row:
    fields = {each.name: each for each in dataclasses.fields(kind)}
    filled = {"source": "the spec's [facts]", **raw}
    for key in filled:
        if key not in fields:
            near = get_close_matches(key, fields, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"keys: {', '.join(sorted(fields))}"
            raise BadFact(f"{where}: unknown key `{key}`", hint=hint)
    for name, each in fields.items():
        if name not in filled and each.default is each.default_factory is dataclasses.MISSING:
            raise BadFact(f"{where}: `{name}` is missing", hint="envspec/data has rows to start from")
    row = build(kind, filled)
    if isinstance(row, TorchRelease):
        for code in (code for held in row.gpu_code.values() for code in held):
            if not re.fullmatch(r"(sm|compute)_\d{2,3}[af]?", code):
                raise BadFact(
                    f"{where}: `{code}` in gpu_code is no GPU code", hint='write it like "sm_90", "compute_120"'
                )
    return row


R = TypeVar("R", bound=Row)


def load_facts(extra: Mapping[str, Any] | None = None) -> Facts:
    """The facts, with the rows of a spec's `[facts]` table before our own.

    extra: table name (`torch`, `edge`, `gpu`, `digest`, ...) -> list of rows with the keys of `envspec/data`;
    `source` may be left out there and is then the spec.

    Raises:
        BadFact: an unknown table or key, a missing key, or a value of the wrong type.
    """
    added = {table: added_rows(table, listed) for table, listed in (extra or {}).items()}
    return Facts(added)


class Facts:
    """Typed rows, table by table, and the questions that several stages ask of them. Rows are in version order."""

    def __init__(self, added: Mapping[str, tuple[Row, ...]]) -> None:
        self._added = added

    @cached_property
    def version(self) -> str:
        return facts_version()

    def _rows(self, file: str, table: str, kind: type[R]) -> tuple[R, ...]:
        own = tuple(build(kind, raw) for raw in _read(file)[table])
        added = self._added.get(table, ())
        return tuple(row for row in added if isinstance(row, kind)) + own

    @cached_property
    def torch(self) -> tuple[TorchRelease, ...]:
        by_version: dict[str, TorchRelease] = {}
        for row in self._rows("torch", "torch", TorchRelease):
            by_version.setdefault(row.version, row)
        return tuple(sorted(by_version.values(), key=lambda row: numeric(row.version)))

    @cached_property
    def gpu_code(self) -> tuple[GpuCodeRow, ...]:
        told = [
            _code(row, variant, platform) for row in self.torch for variant in row.gpu_code for platform in Platform
        ]
        return (*told, *self._rows("gpu_code", "gpu_code", GpuCodeRow))

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        return self._rows("gpus", "gpu", Gpu)

    @cached_property
    def drivers(self) -> tuple[DriverRow, ...]:
        return tuple(sorted(self._rows("drivers", "driver", DriverRow), key=lambda row: numeric(row.cuda)))

    @cached_property
    def driver_families(self) -> tuple[DriverFamily, ...]:
        return self._rows("drivers", "family", DriverFamily)

    @cached_property
    def images(self) -> tuple[ImageRow, ...]:
        return tuple(sorted(self._rows("cuda_images", "image", ImageRow), key=lambda row: numeric(row.cuda)))

    @cached_property
    def parts(self) -> tuple[PartsRow, ...]:
        return tuple(sorted(self._rows("cuda_images", "parts", PartsRow), key=lambda row: numeric(row.cuda)))

    @cached_property
    def policies(self) -> Mapping[str, PolicyRow]:
        return {row.what: row for row in self._rows("cuda_images", "policy", PolicyRow)}

    @cached_property
    def digests(self) -> tuple[DigestRow, ...]:
        return self._rows("digests", "digest", DigestRow)

    @cached_property
    def pythons(self) -> tuple[PythonRow, ...]:
        return tuple(sorted(self._rows("pythons", "python", PythonRow), key=lambda row: numeric(row.version)))

    @cached_property
    def systems(self) -> tuple[SystemRow, ...]:
        return self._rows("systems", "system", SystemRow)

    @cached_property
    def tools(self) -> tuple[ToolRow, ...]:
        return self._rows("tools", "tool", ToolRow)

    @cached_property
    def members(self) -> tuple[MemberRow, ...]:
        return self._rows("family", "member", MemberRow)

    @cached_property
    def edges(self) -> tuple[EdgeRow, ...]:
        return self._rows("family", "edge", EdgeRow)

    @cached_property
    def ended(self) -> Mapping[str, EndedRow]:
        return {row.package: row for row in self._rows("family", "ended", EndedRow)}

    @cached_property
    def rules(self) -> Mapping[str, RuleRow]:
        return {row.package: row for row in self._rows("family", "rule", RuleRow)}

    @cached_property
    def tritons(self) -> Mapping[str, TritonRow]:
        return {row.torch: row for row in self._rows("family", "triton", TritonRow)}

    def torch_release(self, version: str) -> TorchRelease | None:
        """The row of a torch release; a local part (`2.7.0+cu118`) is ignored."""
        public = version.partition("+")[0]
        return next((row for row in self.torch if row.version == public), None)

    def default_variant(self, torch: str, platform: Platform) -> str | None:
        """`cu128`, `cpu`: what the default index holds for the platform; None where nobody looked."""
        row = self.torch_release(torch)
        return row.default.get(platform.value) if row else None

    def family_edges(self, package: str) -> tuple[EdgeRow, ...]:
        """Corrections of one package's metadata (normalised name)."""
        return tuple(row for row in self.edges if row.package == package)

    def without_cuda(self) -> Facts:
        """The same facts for an environment whose torch is no CUDA build: corrections for those are left out."""
        return _WithoutCuda(self._added)

    def gpu_code_of(self, torch: str, variant: str, platform: Platform, channel: str = "") -> GpuCodeRow | None:
        """GPU code of a torch build: a row for that very release (a spec may add one), else its minor version's.

        channel: the conda channel that the build is from; empty for the project's own wheels.
        """
        public = torch.partition("+")[0]
        series = ".".join(public.split(".")[:2])
        build = (variant, platform.value, channel)
        mine = [row for row in self.gpu_code if (row.variant, row.platform, row.channel) == build]
        exact = next((row for row in mine if row.torch == public), None)
        return exact or next((row for row in mine if row.torch == series), None)

    def driver_of(self, release: str) -> DriverRow:
        """The driver row of a CUDA release (`12.8.1`) or minor (`12.8`).

        A release without a row of its own takes the newest row of its minor version; a minor without any takes the
        minimum of its major version, with no bundled driver.

        Raises:
            UsageError: a major version that the data does not know.
        """
        same = [row for row in self.drivers if minor(row.cuda) == minor(release)]
        exact = next((row for row in same if row.cuda == release), None)
        if exact or same:
            return exact or same[-1]
        major = minor(release).major
        family = next((row for row in self.driver_families if row.cuda == major), None)
        if family is None:
            raise UsageError(
                f"no driver is known for CUDA {release}", hint='add a row to the spec: [[facts.driver]] cuda = "..."'
            )
        return DriverRow(
            cuda=release, minimum=family.minimum, source=family.source, read=family.read, confidence=family.confidence
        )

    def releases_of(self, cuda: CudaVersion) -> tuple[str, ...]:
        """CUDA releases (`12.8.0`, `12.8.1`) of a minor version that have an image, oldest first."""
        return tuple(dict.fromkeys(row.cuda for row in self.images if minor(row.cuda) == cuda))

    def digest_of(self, tag: str, platform: Platform) -> DigestRow | None:
        """The recorded digest of a tag on a platform; the manifest list's before one platform's own manifest."""
        mine = [row for row in self.digests if row.tag == tag and platform.value in row.platforms]
        return min(mine, key=lambda row: row.kind != "index", default=None)

    def system(self, os: str) -> SystemRow | None:
        return next((row for row in self.systems if row.os == os), None)

    def tool(self, name: str, platform: Platform) -> ToolRow:
        """The program for a platform; KeyError where none is known."""
        for row in self.tools:
            if (row.name, row.platform) == (name, platform.value):
                return row
        raise KeyError(name, platform.value)

    def standalone_pythons(self, series: str, platform: Platform) -> tuple[PythonRow, ...]:
        """Standalone builds of a Python series (`3.11`), newest patch first."""
        mine = [
            row
            for row in self.pythons
            if row.platform == platform.value and numeric(row.version)[:2] == numeric(series)[:2]
        ]
        return tuple(reversed(mine))


@cache
def _read(file: str) -> dict[str, Any]:
    from envspec.toml import loads

    return loads((DATA / f"{file}.toml").read_text(encoding="utf-8"))


class _WithoutCuda(Facts):
    @cached_property
    def edges(self) -> tuple[EdgeRow, ...]:
        return tuple(row for row in self._rows("family", "edge", EdgeRow) if row.beside != "cuda")


def _code(row: TorchRelease, variant: str, platform: Platform) -> GpuCodeRow:
    held = row.gpu_code[variant]
    return GpuCodeRow(
        torch=row.version,
        variant=variant,
        platform=platform.value,
        sm=tuple(code for code in held if code.startswith("sm_")),
        ptx=tuple(code for code in held if code.startswith("compute_")),
        source=row.source,
    )
