"""The GPU code of a layer's wheels, seen while they are unpacked, beside what the lock says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from envspec.errors import NoSolution
from envspec.facts import Facts
from envspec.facts.gpu import Runs, capability_of, find_gpu, runs
from envspec.image.content import Entry, GpuCodeFound, ZipMember
from envspec.image.fatbin import FatbinScan, in_order
from envspec.model import GpuCode, Lock, Platform

#: Names of files that may be libraries or programs.
_MAY_BE_ELF: Final = re.compile(r"\.so(\.[\w.]+)?$|^[^.]+$")


class GpuCodeLacks(NoSolution):
    """A GPU that the spec names runs by what the lock records, and does not by what the wheel holds."""


class _Wheel(Protocol):
    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str: ...


class _Wheels(Protocol):
    @property
    def wheels(self) -> tuple[_Wheel, ...]: ...


class GpuCodeWatch:
    """Looks at what goes into one layer of wheels; see `envspec.image.making.Watch`."""

    def __init__(self, source: _Wheels) -> None:
        self._wheels = {wheel.path: wheel.sha256 for wheel in source.wheels}
        self._scans: dict[str, list[FatbinScan]] = {}

    def __call__(self, entry: Entry, /) -> FatbinScan | None:
        """A scan of the entry, where it may be a library."""
        if not isinstance(entry.data, ZipMember) or not _MAY_BE_ELF.search(entry.path.rpartition("/")[2]):
            return None
        scan = FatbinScan()
        self._scans.setdefault(self._wheels[entry.data.archive], []).append(scan)
        return scan

    def found(self) -> tuple[tuple[str, GpuCodeFound], ...]:
        """The wheels with GPU code, by SHA-256; one that is not among them holds none."""
        every = {sha256: _union(scan.found for scan in scans) for sha256, scans in self._scans.items()}
        return tuple(sorted((sha256, code) for sha256, code in every.items() if code != GpuCodeFound()))


def compare(lock: Lock, platform: Platform, found: Mapping[str, GpuCodeFound], facts: Facts) -> tuple[str, ...]:
    """Warnings: what the lock records of wheels that were looked at, and is not in them.

    found: by the wheel's SHA-256, of every wheel of this platform that holds any. More than is recorded is no fault: a
    library may hold a kernel or two for one more architecture, which do not make the package run there.

    Raises:
        GpuCodeLacks: it is a GPU's of `[cuda] gpus` only way to run.
    """
    resolution = next(each for each in lock.resolutions if each.target.platform is platform)
    wheels = {package.name: (package.built or package.file).sha256 for package in resolution.packages}
    warnings = []
    for code in lock.gpu_code:
        if code.platform is not platform or code.package not in wheels:
            continue
        held = found.get(wheels[code.package], GpuCodeFound())
        missing = [name for name in (*code.sm, *code.ptx) if name not in (*held.sm, *held.ptx)]
        if not missing:
            continue
        what = f"the wheel of {code.package} {code.version} does not hold {', '.join(missing)}, as the lock has it"
        if lost := [name for name in lock.gpus if _is_lost(name, code, held, facts)]:
            raise GpuCodeLacks(
                f"{what}: {', '.join(lost)} can't run it (it holds {_told(held)})",
                hint=f"the record is from: {code.source}; correct it by [[facts.gpu_code]], or take another build",
            )
        warnings.append(f"{what} (it holds {_told(held)}; the record is from: {code.source})")
    return tuple(warnings)


def _is_lost(gpu: str, code: GpuCode, held: GpuCodeFound, facts: Facts) -> bool:
    capability = capability_of(find_gpu(facts, gpu))
    was = runs(capability, code.sm, code.ptx)
    return was is not Runs.NOT and runs(capability, held.sm, held.ptx) is Runs.NOT


def _told(held: GpuCodeFound) -> str:
    return ", ".join((*held.sm, *held.ptx)) or "no GPU code"


def _union(codes: Iterable[GpuCodeFound]) -> GpuCodeFound:
    every = tuple(codes)
    sm = {name for code in every for name in code.sm}
    return GpuCodeFound(in_order(sm), in_order({name for code in every for name in code.ptx}))
