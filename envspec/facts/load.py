"""Read the facts: rows of `envspec/data/*.toml`, and those that a spec adds under `[facts]`.

A file is read when its table is first asked for, once in a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, TypeVar

from envspec.data import DATA, facts_version
from envspec.errors import UsageError
from envspec.facts import rows
from envspec.facts.added import added_rows, build
from envspec.facts.rows import numeric
from envspec.model import CudaVersion, Platform

R = TypeVar("R", bound=rows.Row)


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

    def __init__(self, added: Mapping[str, tuple[rows.Row, ...]]) -> None:
        self._added = added

    @cached_property
    def version(self) -> str:
        return facts_version()

    def _rows(self, file: str, table: str, kind: type[R]) -> tuple[R, ...]:
        own = tuple(build(kind, raw) for raw in _read(file)[table])
        added = self._added.get(table, ())
        return tuple(row for row in added if isinstance(row, kind)) + own

    @cached_property
    def torch(self) -> tuple[rows.TorchRelease, ...]:
        by_version: dict[str, rows.TorchRelease] = {}
        for row in self._rows("torch", "torch", rows.TorchRelease):
            by_version.setdefault(row.version, row)
        return tuple(sorted(by_version.values(), key=lambda row: numeric(row.version)))

    @cached_property
    def gpu_code(self) -> tuple[rows.GpuCodeRow, ...]:
        told = [
            _code(row, variant, platform) for row in self.torch for variant in row.gpu_code for platform in Platform
        ]
        return (*told, *self._rows("gpu_code", "gpu_code", rows.GpuCodeRow))

    @cached_property
    def gpus(self) -> tuple[rows.Gpu, ...]:
        return self._rows("gpus", "gpu", rows.Gpu)

    @cached_property
    def drivers(self) -> tuple[rows.DriverRow, ...]:
        return tuple(sorted(self._rows("drivers", "driver", rows.DriverRow), key=lambda row: numeric(row.cuda)))

    @cached_property
    def driver_families(self) -> tuple[rows.DriverFamily, ...]:
        return self._rows("drivers", "family", rows.DriverFamily)

    @cached_property
    def images(self) -> tuple[rows.ImageRow, ...]:
        return tuple(sorted(self._rows("cuda_images", "image", rows.ImageRow), key=lambda row: numeric(row.cuda)))

    @cached_property
    def parts(self) -> tuple[rows.PartsRow, ...]:
        return tuple(sorted(self._rows("cuda_images", "parts", rows.PartsRow), key=lambda row: numeric(row.cuda)))

    @cached_property
    def policies(self) -> Mapping[str, rows.PolicyRow]:
        return {row.what: row for row in self._rows("cuda_images", "policy", rows.PolicyRow)}

    @cached_property
    def digests(self) -> tuple[rows.DigestRow, ...]:
        return self._rows("digests", "digest", rows.DigestRow)

    @cached_property
    def pythons(self) -> tuple[rows.PythonRow, ...]:
        return tuple(sorted(self._rows("pythons", "python", rows.PythonRow), key=lambda row: numeric(row.version)))

    @cached_property
    def systems(self) -> tuple[rows.SystemRow, ...]:
        return self._rows("systems", "system", rows.SystemRow)

    @cached_property
    def tools(self) -> tuple[rows.ToolRow, ...]:
        return self._rows("tools", "tool", rows.ToolRow)

    @cached_property
    def members(self) -> tuple[rows.MemberRow, ...]:
        return self._rows("family", "member", rows.MemberRow)

    @cached_property
    def edges(self) -> tuple[rows.EdgeRow, ...]:
        return self._rows("family", "edge", rows.EdgeRow)

    @cached_property
    def ended(self) -> Mapping[str, rows.EndedRow]:
        return {row.package: row for row in self._rows("family", "ended", rows.EndedRow)}

    @cached_property
    def rules(self) -> Mapping[str, rows.RuleRow]:
        return {row.package: row for row in self._rows("family", "rule", rows.RuleRow)}

    @cached_property
    def tritons(self) -> Mapping[str, rows.TritonRow]:
        return {row.torch: row for row in self._rows("family", "triton", rows.TritonRow)}

    def torch_release(self, version: str) -> rows.TorchRelease | None:
        """The row of a torch release; a local part (`2.7.0+cu118`) is ignored."""
        public = version.partition("+")[0]
        return next((row for row in self.torch if row.version == public), None)

    def default_variant(self, torch: str, platform: Platform) -> str | None:
        """`cu128`, `cpu`: what the default index holds for the platform; None where nobody looked."""
        row = self.torch_release(torch)
        return row.default.get(platform.value) if row else None

    def published_variants(self, torch: str) -> tuple[str, ...]:
        """Every variant of the release on PyTorch's own indexes, oldest CUDA first; empty for an unknown release."""
        row = self.torch_release(torch)
        return row.published if row else ()

    def family_edges(self, package: str) -> tuple[rows.EdgeRow, ...]:
        """Corrections of one package's metadata (normalised name)."""
        return tuple(row for row in self.edges if row.package == package)

    def without_cuda(self) -> Facts:
        """The same facts for an environment whose torch is no CUDA build: corrections for those are left out."""
        return _WithoutCuda(self._added)

    def gpu_code_of(self, torch: str, variant: str, platform: Platform, channel: str = "") -> rows.GpuCodeRow | None:
        """GPU code of a torch build: a row for that very release (a spec may add one), else its minor version's.

        channel: the conda channel that the build is from; empty for the project's own wheels.
        """
        public = torch.partition("+")[0]
        series = ".".join(public.split(".")[:2])
        build = (variant, platform.value, channel)
        mine = [row for row in self.gpu_code if (row.variant, row.platform, row.channel) == build]
        exact = next((row for row in mine if row.torch == public), None)
        return exact or next((row for row in mine if row.torch == series), None)

    def driver_of(self, release: str) -> rows.DriverRow:
        """The driver row of a CUDA release (`12.8.1`) or minor (`12.8`).

        A release without a row of its own takes the newest row of its minor version; a minor without any takes the
        minimum of its major version, with no bundled driver.

        Raises:
            UsageError: a major version that the data does not know.
        """
        same = [row for row in self.drivers if rows.minor(row.cuda) == rows.minor(release)]
        exact = next((row for row in same if row.cuda == release), None)
        if exact or same:
            return exact or same[-1]
        major = rows.minor(release).major
        family = next((row for row in self.driver_families if row.cuda == major), None)
        if family is None:
            raise UsageError(
                f"no driver is known for CUDA {release}", hint='add a row to the spec: [[facts.driver]] cuda = "..."'
            )
        return rows.DriverRow(
            cuda=release, minimum=family.minimum, source=family.source, read=family.read, confidence=family.confidence
        )

    def releases_of(self, cuda: CudaVersion) -> tuple[str, ...]:
        """CUDA releases (`12.8.0`, `12.8.1`) of a minor version that have an image, oldest first."""
        return tuple(dict.fromkeys(row.cuda for row in self.images if rows.minor(row.cuda) == cuda))

    def image_of(self, release: str, flavor: str, os: str) -> rows.ImageRow | None:
        """The row that says that the tag exists."""
        return next(
            (row for row in self.images if row.cuda == release and flavor in row.flavors and os in row.os), None
        )

    def digest_of(self, tag: str, platform: Platform) -> rows.DigestRow | None:
        """The recorded digest of a tag on a platform; the manifest list's before one platform's own manifest."""
        mine = [row for row in self.digests if row.tag == tag and platform.value in row.platforms]
        return min(mine, key=lambda row: row.kind != "index", default=None)

    def system(self, os: str) -> rows.SystemRow | None:
        return next((row for row in self.systems if row.os == os), None)

    def tool(self, name: str, platform: Platform) -> rows.ToolRow:
        """The program for a platform; KeyError where none is known."""
        for row in self.tools:
            if (row.name, row.platform) == (name, platform.value):
                return row
        raise KeyError(name, platform.value)

    def standalone_pythons(self, series: str, platform: Platform) -> tuple[rows.PythonRow, ...]:
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
    def edges(self) -> tuple[rows.EdgeRow, ...]:
        return tuple(row for row in self._rows("family", "edge", rows.EdgeRow) if row.beside != "cuda")


def _code(row: rows.TorchRelease, variant: str, platform: Platform) -> rows.GpuCodeRow:
    held = row.gpu_code[variant]
    return rows.GpuCodeRow(
        torch=row.version,
        variant=variant,
        platform=platform.value,
        sm=tuple(code for code in held if code.startswith("sm_")),
        ptx=tuple(code for code in held if code.startswith("compute_")),
        source=row.source,
    )
