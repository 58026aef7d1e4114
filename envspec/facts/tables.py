"""Rows of data/*.toml, typed, with lookups. The comment at the top of each file describes its keys.

`envspec.spec.fact_rows` checks the keys, types and forms of a spec's rows against the types here.

A file is read when its table is first used, once in a process.

What is listed of a channel was gathered over all its archives, old ones among them. So a name with several PyPI names
is not known for any one archive, except where a `[[held]]` row says what today's hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import cache, cached_property, lru_cache
from typing import Any, Final, TypeVar

from msgspec import Struct, field
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envspec.data import DATA, facts_version
from envspec.documents import parse_own_toml
from envspec.errors import UsageError
from envspec.models import CudaVersion, Platform
from envspec.names import ARCHITECTURES, normalised
from envspec.structs import replace


def numeric(text: str) -> tuple[int, ...]:
    """The numbers of a dotted version, to order releases, drivers and patches by: `570.26` is (570, 26).

    A local part (`+cu128`) and a suffix such as `.post1` are left out; for pre-releases use packaging's Version.
    """
    found = re.match(r"\d+(?:\.\d+)*", text)
    if found is None:
        return ()
    return tuple(map(int, found[0].split(".")))


@lru_cache(maxsize=65536)
def pep440(text: str) -> Version | None:
    """A version as PEP 440 reads it; None if it can't. The pages of an index repeat each version for every file."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def at_least(driver: str, needed: str) -> bool:
    """Whether a driver is `needed` or newer; a branch alone (`535`) stands for its newest driver."""
    numbers = numeric(driver)
    return numbers >= numeric(needed)[: len(numbers)]


class FactRow(Struct, frozen=True, kw_only=True):
    """source: where the fact comes from. read: when. confidence: high, medium or low."""

    source: str
    read: date | None = None
    confidence: str = "high"


class TorchRelease(FactRow, frozen=True, kw_only=True):
    """gpu_code: variant -> GPU code (`sm_90`, `compute_120`), for rows that a spec adds; ours is in its own table."""

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

    def default_on(self, platform: Platform) -> str | None:
        """The variant that the default index holds for a platform; None if it is unknown."""
        return self.default.get(platform.value)

    def is_published(self, variant: str, platform: Platform) -> bool:
        return variant == self.default_on(platform) or variant in self.published


class OldAbiRow(FactRow, frozen=True, kw_only=True):
    """Builds of torch whose C++ strings are those before 2011. torch: a specifier. variants: empty for all."""

    torch: str
    platforms: tuple[str, ...]
    variants: tuple[str, ...] = ()


class GpuCodeRow(FactRow, frozen=True, kw_only=True):
    """torch: a minor version (`2.8`), or one release. channel: of conda; empty for the project's wheels."""

    torch: str
    variant: str
    platform: str
    sm: tuple[str, ...]
    ptx: tuple[str, ...]
    measured: tuple[str, ...] = ()
    note: str | None = None
    channel: str = ""


class GpuRow(FactRow, frozen=True, kw_only=True):
    name: str
    compute_capability: str
    first_cuda: str | None = None
    aliases: tuple[str, ...] = ()
    memory_mib: tuple[int, ...] = ()


class DriverRow(FactRow, frozen=True, kw_only=True):
    """cuda: a release (`12.8.1`) or a minor version."""

    cuda: str
    minimum: str
    bundled: str | None = None


class DriverFamily(FactRow, frozen=True, kw_only=True):
    """cuda: a major version. minimum: oldest Linux driver by minor-version compatibility."""

    cuda: int
    minimum: str


class ImageRow(FactRow, frozen=True, kw_only=True):
    cuda: str
    flavors: tuple[str, ...]
    os: tuple[str, ...]
    status: str = "unknown"


class PartsRow(FactRow, frozen=True, kw_only=True):
    """Versions of the CUDA libraries of one release. os: images they were read in; empty: known from wheels."""

    cuda: str
    cudart: str
    os: tuple[str, ...] = ()
    cublas: str | None = None
    nccl: str | None = None
    cudnn: str | None = None


class CudaBuildRow(FactRow, frozen=True, kw_only=True):
    """The CUDA for which a package's wheels on the default index are built, if nothing in their metadata names it.

    versions: a specifier. cuda: a minor version. cudnn: the major version of cuDNN that they load; None for none.
    newer: an index that has newer releases than the default one; empty if there is none.
    """

    package: str
    versions: str
    cuda: str
    cudnn: int | None = None
    platforms: tuple[str, ...] = ("linux-64",)
    newer: str = ""


class CpuBuildRow(FactRow, frozen=True, kw_only=True):
    """A package whose wheels on the default index contain no CUDA.

    versions: a specifier, empty for all. with_cuda: patterns of the packages that bring CUDA to it. instead: what to
    require for CUDA, empty if nothing is known. cuda: a version of the major that `instead` is for, empty for any.
    compute_capability: of the oldest GPUs that `instead` has code for. index: its URL, empty for the default index.
    """

    package: str
    platforms: tuple[str, ...]
    versions: str = ""
    with_cuda: tuple[str, ...] = ()
    instead: str = ""
    cuda: str = ""
    compute_capability: str = ""
    index: str = ""


class ExtensionRow(FactRow, frozen=True, kw_only=True):
    """A package whose compiled code fits one build of torch; see data/extensions.toml.

    versions: a specifier. sm, ptx: empty if unknown. archs: empty if its sources compile for any GPU. memory_mib,
    minutes: what one compiler takes, and all of them for one GPU architecture; 0 if unknown.
    confidence: may also be `unverified`.
    """

    package: str
    versions: str
    module: str
    label: str = ""
    pages: tuple[str, ...] = ()
    format: str = "links"
    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sm: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    arch: str = ARCHITECTURES
    arch_form: str = "8.0"
    archs: tuple[str, ...] = ()
    jobs: str = "MAX_JOBS"
    serial: bool = False
    memory_mib: int = 0
    minutes: int = 0
    note: str = ""


class DigestRow(FactRow, frozen=True, kw_only=True):
    """A recorded manifest digest. kind: `index` (manifest list) or `manifest` (one platform's).

    created: when the image was made, as its config states it.
    """

    tag: str
    digest: str
    kind: str
    platforms: tuple[str, ...]
    created: datetime | None = None


class BaseImageRow(FactRow, frozen=True, kw_only=True):
    """What an image of a project contains; see data/base_images.toml.

    releases: a specifier. python: a series. cudnn: the major version in its tags. requires: with `{release}` in it.
    """

    repository: str
    releases: str
    python: str = ""
    cudnn: str = ""
    requires: str = ""


class PythonRow(FactRow, frozen=True, kw_only=True):
    """build: its release as YYYYMMDD."""

    version: str
    platform: str
    build: str
    url: str
    sha256: str


class SeriesRow(FactRow, frozen=True, kw_only=True):
    """A Python series without a known standalone build. newest: its newest patch."""

    series: str
    newest: str


class ReleasedRow(FactRow, frozen=True, kw_only=True):
    """When the first release of a Python series was."""

    series: str
    date: date


class ToolRow(FactRow, frozen=True, kw_only=True):
    name: str
    version: str
    platform: str
    url: str
    sha256: str


class SystemRow(FactRow, frozen=True, kw_only=True):
    """python: series of the system's own package. image: the system itself, without CUDA: `host/name:tag`.

    snapshots: the first day of which its archive has a snapshot.
    """

    os: str
    glibc: str
    python: str | None = None
    python_patch: str | None = None
    packages: str = ""
    image: str = ""
    snapshots: date | None = None


class LibraryNeedRow(FactRow, frozen=True, kw_only=True):
    """What a package's wheels load from the system; see data/system_libraries.toml.

    versions: a specifier. libraries: SONAMEs; `a | b` is any one of them. optional: what some of its modules need,
    and the package does without.
    """

    package: str
    versions: str
    libraries: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


class SystemLibrariesRow(FactRow, frozen=True, kw_only=True):
    """Libraries of a release of Debian or Ubuntu.

    base: those of its smallest installation. packages: SONAME -> package. contains: package -> packages of `packages`
    that come with it.
    """

    os: str
    base: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    contains: Mapping[str, Sequence[str]] = field(default_factory=dict)


class MemberRow(FactRow, frozen=True, kw_only=True):
    """torch: a specifier, in the release's own metadata; empty: any."""

    package: str
    version: str
    torch: str


class EdgeRow(FactRow, frozen=True, kw_only=True):
    """beside: `cuda` if it holds beside a CUDA build of torch only."""

    package: str
    versions: str
    requires: tuple[str, ...]
    reason: str
    beside: str = ""


class CompanionRow(FactRow, frozen=True, kw_only=True):
    """A package that works only beside another one, `of`, of the same version."""

    package: str
    of: str
    reason: str


class CudaMajorRow(FactRow, frozen=True, kw_only=True):
    """A package whose major version is that of the CUDA that it is for."""

    package: str


class EndedRow(FactRow, frozen=True, kw_only=True):
    package: str
    last: str
    reason: str


class MisnamedRow(FactRow, frozen=True, kw_only=True):
    """A name that is written for another package; see data/names.toml."""

    package: str
    reason: str
    instead: str = ""
    same_versions: bool = False
    hint: str = ""
    placeholder: str = ""
    sdists: bool = False


class LinksRow(FactRow, frozen=True, kw_only=True):
    """url: what the addresses of pages of links begin with, or of an index. packages: what they list. format: `links`
    or `simple`. now: what the addresses begin with today, if it is something else.
    """

    url: str
    packages: tuple[str, ...]
    format: str = "links"
    now: str = ""


class OnTorchRow(FactRow, frozen=True, kw_only=True):
    """Packages whose metadata requires torch."""

    packages: tuple[str, ...]


class TritonRow(FactRow, frozen=True, kw_only=True):
    """triton: a specifier."""

    torch: str
    triton: str


R = TypeVar("R", bound=FactRow)
_OfRelease = TypeVar("_OfRelease", CudaBuildRow, CpuBuildRow, ExtensionRow, LibraryNeedRow)
_OfPackage = TypeVar("_OfPackage", MemberRow, EdgeRow)
_OfPlatforms = TypeVar("_OfPlatforms", OldAbiRow, CudaBuildRow, CpuBuildRow, DigestRow)
_Versioned = TypeVar("_Versioned", TorchRelease, MemberRow)


def rows_with(rows: Iterable[R], **values: object) -> Iterator[R]:
    """The rows whose fields have these values: `rows_with(facts.members, package="torchaudio")`."""
    for row in rows:
        if all(getattr(row, name) == value for name, value in values.items()):
            yield row


def rows_on(rows: Iterable[_OfPlatforms], platform: Platform) -> Iterator[_OfPlatforms]:
    """The rows that are for a platform."""
    for row in rows:
        if platform.value in row.platforms:
            yield row


def matching_rows(rows: Iterable[_Versioned], specifier: SpecifierSet) -> list[_Versioned]:
    """The rows of the releases that a specifier allows."""
    return [row for row in rows if specifier.contains(row.version, prereleases=True)]


def versions_of(rows: Iterable[TorchRelease]) -> tuple[str, ...]:
    return tuple(row.version for row in rows)


def ranges_text(versions: Sequence[str], known: Sequence[str]) -> str:
    """`2.8.0 to 2.10.0, 2.12.0`: neighbours among the known releases are one range."""
    spans: list[list[str]] = []
    for version in sorted(versions, key=known.index):
        if spans and known.index(version) == known.index(spans[-1][-1]) + 1:
            spans[-1].append(version)
        else:
            spans.append([version])
    return ", ".join(map(span_text, spans))


def span_text(versions: Sequence[str]) -> str:
    """`2.8.0 to 2.10.0`, or `2.8.0` for a single version."""
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def load_facts(extra: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> Facts:
    """The facts, with the rows of a spec's `[facts]`, as `Spec.facts.tables()` gives them, before our own."""
    added = {}
    for table, rows in (extra or {}).items():
        added[table] = [{"source": "the spec's [facts]", **row} for row in rows]
    return Facts(added)


def _row(kind: type[R], table: Mapping[str, Any]) -> R:
    """Arrays become tuples, everything else stays."""
    values = dict(table)
    for key, value in table.items():
        if isinstance(value, list):
            values[key] = tuple(value)
    return kind(**values)


def _table(file: str, table: str, kind: type[R], *, by: str = "") -> cached_property[tuple[R, ...]]:
    """The rows of a table. by: the field with the version that orders them; by default they are in the file's order."""

    def rows(facts: Facts) -> tuple[R, ...]:
        found = facts.rows(file, table, kind)
        if not by:
            return found
        return tuple(sorted(found, key=lambda row: numeric(getattr(row, by))))

    return cached_property(rows)


def _by_package(rows: Iterable[_OfPackage]) -> Mapping[str, Sequence[_OfPackage]]:
    found: dict[str, list[_OfPackage]] = {}
    for row in rows:
        found.setdefault(row.package, []).append(row)
    return found


def _keyed(file: str, table: str, kind: type[R], key: str) -> cached_property[Mapping[str, R]]:
    return cached_property(lambda facts: {getattr(row, key): row for row in facts.rows(file, table, kind)})


class Facts:
    """Typed rows, table by table, and lookups that several stages need. Rows are in version order."""

    def __init__(self, added: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._added = added

    @cached_property
    def version(self) -> str:
        return facts_version()

    def rows(self, file: str, table: str, kind: type[R]) -> tuple[R, ...]:
        return tuple(_row(kind, row) for row in (*self._added.get(table, ()), *_read(file)[table]))

    @cached_property
    def torch(self) -> tuple[TorchRelease, ...]:
        by_version: dict[str, TorchRelease] = {}
        for row in self.rows("torch", "torch", TorchRelease):
            by_version.setdefault(row.version, row)
        return tuple(sorted(by_version.values(), key=lambda row: numeric(row.version)))

    @cached_property
    def gpu_code(self) -> tuple[GpuCodeRow, ...]:
        of_releases = []
        for release in self.torch:
            for variant in release.gpu_code:
                of_releases += [_code(release, variant, platform) for platform in Platform]
        return (*of_releases, *self.rows("gpu_code", "gpu_code", GpuCodeRow))

    gpus = _table("gpus", "gpu", GpuRow)
    drivers = _table("drivers", "driver", DriverRow, by="cuda")
    driver_families = _table("drivers", "family", DriverFamily)
    cuda_builds = _table("cuda_builds", "cuda_build", CudaBuildRow)
    cpu_builds = _table("cpu_builds", "cpu_build", CpuBuildRow)
    extensions = _table("extensions", "extension", ExtensionRow)
    old_abis = _table("torch", "old_abi", OldAbiRow)
    images = _table("cuda_images", "image", ImageRow, by="cuda")
    parts = _table("cuda_images", "parts", PartsRow, by="cuda")
    digests = _table("digests", "digest", DigestRow)
    base_images = _table("base_images", "base_image", BaseImageRow)
    pythons = _table("pythons", "python", PythonRow, by="version")
    python_series = _keyed("pythons", "python_series", SeriesRow, "series")
    released = _keyed("pythons", "released", ReleasedRow, "series")
    systems = _table("systems", "system", SystemRow)
    tools = _table("tools", "tool", ToolRow)
    library_needs = _table("system_libraries", "library_need", LibraryNeedRow)
    system_libraries = _table("system_libraries", "system_libraries", SystemLibrariesRow)
    members = _table("family", "member", MemberRow)
    edges = _table("family", "edge", EdgeRow)
    companions = _table("family", "companion", CompanionRow)
    cuda_majors = _table("family", "cuda_major", CudaMajorRow)
    ended = _keyed("family", "ended", EndedRow, "package")
    tritons = _keyed("family", "triton", TritonRow, "torch")
    misnamed = _keyed("names", "misnamed", MisnamedRow, "package")
    links = _table("names", "links", LinksRow)
    on_torch = _table("names", "on_torch", OnTorchRow)

    def torch_release(self, version: str) -> TorchRelease | None:
        """The row of a torch release; a local part (`2.7.0+cu118`) is ignored."""
        return next(rows_with(self.torch, version=version.partition("+")[0]), None)

    def default_variant(self, torch: str, platform: Platform) -> str | None:
        """`cu128`, `cpu`: what the default index holds for the platform; None if it is unknown."""
        row = self.torch_release(torch)
        return row.default_on(platform) if row else None

    def cuda_build(self, package: str, version: str, platform: Platform) -> CudaBuildRow | None:
        """The CUDA of a package's release on the default index; None if no row states it."""
        return _of_release(rows_on(self.cuda_builds, platform), package, version)

    def cpu_builds_of(self, package: str, version: str, platform: Platform) -> tuple[CpuBuildRow, ...]:
        """What is known of a release on the default index that contains no CUDA; empty if no row states it."""
        return tuple(_all_of_release(rows_on(self.cpu_builds, platform), package, version))

    def extension(self, package: str, version: str = "") -> ExtensionRow | None:
        """The row of a package's release, of its newest ones if no version is given; None if it is no extension."""
        if version:
            return _of_release(self.extensions, package, version)
        # Of every name in a resolution, several times.
        for row in reversed(self.extensions):
            if row.package == package:
                return row
        return None

    def library_need(self, package: str, version: str) -> LibraryNeedRow | None:
        """What a package's release loads from the system; None if no row states it."""
        return _of_release(self.library_needs, package, version)

    def libraries_of(self, os: str) -> SystemLibrariesRow | None:
        """The libraries of a release, all of its rows as one; None if it has none."""
        rows = list(rows_with(reversed(self.system_libraries), os=os))
        if not rows:
            return None
        base: list[str] = []
        packages: dict[str, str] = {}
        contains: dict[str, Sequence[str]] = {}
        for row in rows:
            base += row.base
            packages.update(row.packages)
            contains.update(row.contains)
        return replace(rows[0], base=tuple(base), packages=packages, contains=contains)

    def family_edges(self, package: str) -> Sequence[EdgeRow]:
        """Corrections of one package's metadata (normalised name)."""
        return self._edges_by_package.get(package, ())

    @cached_property
    def _edges_by_package(self) -> Mapping[str, Sequence[EdgeRow]]:
        return _by_package(self.edges)

    @cached_property
    def members_by_package(self) -> Mapping[str, Sequence[MemberRow]]:
        return _by_package(self.members)

    def without_cuda(self) -> Facts:
        """The same facts for an environment whose torch is no CUDA build: corrections for those are left out."""
        facts = Facts(self._added)
        facts.edges = tuple(row for row in self.edges if row.beside != "cuda")
        return facts

    def gpu_code_of(self, torch: str, variant: str, platform: Platform, channel: str = "") -> GpuCodeRow | None:
        """GPU code of a torch build: a row for that very release (a spec may add one), else its minor version's.

        channel: the conda channel that the build is from; empty for the project's own wheels.
        """
        public = torch.partition("+")[0]
        series = ".".join(public.split(".")[:2])
        matching = list(rows_with(self.gpu_code, variant=variant, platform=platform.value, channel=channel))
        exact = next(rows_with(matching, torch=public), None)
        return exact or next(rows_with(matching, torch=series), None)

    def driver_of(self, release: str) -> DriverRow:
        """The driver row of a CUDA release (`12.8.1`) or minor (`12.8`).

        A release without a row of its own takes the newest row of its minor version; a minor without any takes the
        minimum of its major version, with no bundled driver.

        Raises:
            UsageError: a major version that the data does not know.
        """
        same = [row for row in self.drivers if CudaVersion.parse(row.cuda) == CudaVersion.parse(release)]
        if same:
            return next(rows_with(same, cuda=release), same[-1])
        family = next(rows_with(self.driver_families, cuda=CudaVersion.parse(release).major), None)
        if family is None:
            raise UsageError(
                f"no driver is known for CUDA {release}", hint='add a row to the spec: [[facts.driver]] cuda = "..."'
            )
        return DriverRow(
            cuda=release, minimum=family.minimum, source=family.source, read=family.read, confidence=family.confidence
        )

    def runs_cuda(self, driver: str, cuda: CudaVersion) -> bool:
        """Whether a driver runs programs built for a CUDA, without PTX.

        Raises:
            UsageError: a major version that the data does not know.
        """
        return at_least(driver, self.driver_of(str(cuda)).minimum)

    def newest_cuda(self, driver: str | None) -> CudaVersion | None:
        """The newest CUDA that a driver supports in whole, as nvidia-smi shows it; without a driver, of all known."""
        cudas = []
        for row in self.drivers:
            if driver is None or (row.bundled and at_least(driver, row.bundled)):
                cudas.append(CudaVersion.parse(row.cuda))
        return max(cudas, default=None)

    def releases_of(self, cuda: CudaVersion) -> tuple[str, ...]:
        """CUDA releases (`12.8.0`, `12.8.1`) of a minor version that have an image, oldest first."""
        return tuple(dict.fromkeys(row.cuda for row in self.images if CudaVersion.parse(row.cuda) == cuda))

    def digest_of(self, tag: str, platform: Platform) -> DigestRow | None:
        """The recorded digest of a tag on a platform; the manifest list's before one platform's own manifest."""
        matching = rows_on(rows_with(self.digests, tag=tag), platform)
        return min(matching, key=lambda row: row.kind != "index", default=None)

    def base_image(self, repository: str, release: str) -> BaseImageRow | None:
        """What an image contains whose tag names a release; None if no row states it."""
        for row in rows_with(self.base_images, repository=repository):
            if SpecifierSet(row.releases).contains(release, prereleases=True):
                return row
        return None

    def system(self, os: str) -> SystemRow | None:
        return next(rows_with(self.systems, os=os), None)

    def tool(self, name: str, platform: Platform) -> ToolRow:
        """The program for a platform; KeyError where none is known."""
        row = next(rows_with(self.tools, name=name, platform=platform.value), None)
        if row is None:
            raise KeyError(name, platform.value)
        return row

    def standalone_pythons(self, series: str, platform: Platform) -> tuple[PythonRow, ...]:
        """Standalone builds of a Python series (`3.11`), newest patch first."""
        return tuple(reversed([*rows_with(self._pythons_of(series), platform=platform.value)]))

    def newest_python(self, series: str) -> str | None:
        """The newest known patch of a Python series; None if the series is unknown."""
        patches = [row.version for row in self._pythons_of(series)]
        if ended := self.python_series.get(series):
            patches.append(ended.newest)
        return max(patches, key=numeric, default=None)

    def _pythons_of(self, series: str) -> Iterator[PythonRow]:
        for row in self.pythons:
            if numeric(row.version)[:2] == numeric(series)[:2]:
                yield row


@cache
def _read(file: str) -> dict[str, Any]:
    return parse_own_toml((DATA / f"{file}.toml").read_text(encoding="utf-8"))


def _code(row: TorchRelease, variant: str, platform: Platform) -> GpuCodeRow:
    codes = row.gpu_code[variant]
    return GpuCodeRow(
        torch=row.version,
        variant=variant,
        platform=platform.value,
        sm=tuple(code for code in codes if code.startswith("sm_")),
        ptx=tuple(code for code in codes if code.startswith("compute_")),
        source=row.source,
    )


#: The channel whose names other channels follow.
_MODEL: Final = "conda-forge"


class CondaNames(Struct, frozen=True):
    """channels: channel -> conda name -> the PyPI names (PEP 503) that its archives had: several if archives differ or
    contain several, none if they contain no Python package. contained: conda name -> the PyPI names that its archives
    contain today, all of them with conda's version.
    """

    channels: Mapping[str, Mapping[str, tuple[str, ...]]]
    contained: Mapping[str, tuple[str, ...]]

    def listed(self, name: str, channel: str | None) -> tuple[str, ...] | None:
        """The PyPI names that archives of a conda package had; None if it is unknown.

        channel: a listed one, None for any other. That a name contains no Python package counts for its own channel
        only: another one's package of that name is another package.
        """
        own = self.channels.get(channel or "", {})
        if name in own:
            return own[name]
        return self.channels[_MODEL].get(name) or None


def _of_release(rows: Iterable[_OfRelease], package: str, version: str) -> _OfRelease | None:
    return next(_all_of_release(rows, package, version), None)


def _all_of_release(rows: Iterable[_OfRelease], package: str, version: str) -> Iterator[_OfRelease]:
    for row in rows:
        if row.package == package and SpecifierSet(row.versions).contains(version, prereleases=True):
            yield row


@cache
def conda_names() -> CondaNames:
    """The table, read on first use."""
    tables = _read("conda_names")
    return CondaNames(
        channels={row["channel"]: _conda_table_names(row) for row in tables["channel"]},
        contained={row["conda"]: tuple(row["pypi"]) for row in tables["contained"]},
    )


def _conda_table_names(row: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {name: (normalised(name),) for name in row["same"].split()}
    names |= dict.fromkeys(row["none"].split(), ())
    for line in filter(None, row["named"].splitlines()):
        name, *pypi = line.split()
        names[name] = tuple(pypi)
    return names
