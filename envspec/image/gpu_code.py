"""GPU code in libraries.

nvcc puts kernels into a section `.nv_fatbin`: containers, each a header of 16 bytes (magic, version, its own length,
the length of all that follows) and entries, each a header (kind, version, its own length, its payload's length, the
architecture, flags) and a payload. NVIDIA documents the tool that shows it, cuobjdump, and not the form; the fields
are where GPU Ocelot and the compilers that write such sections have them. What the flags mean was found by unpacking
entries of torch 2.14.1 and nvidia-cusparselt-cu12 0.8.1 and looking for the architecture's name in them; which there
are in the section is what cuobjdump 12.8 shows of both.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from envspec.errors import NoSolution
from envspec.facts import Facts
from envspec.facts.gpu import Runs, capability_of, find_gpu, runs
from envspec.image.layers.types import Entry, ZipMember
from envspec.models import GpuCode, GpuCodeFound, Lock, Platform

#: Magic 0xBA55ED50, version 1, 16 bytes of header.
_CONTAINER: Final = bytes.fromhex("50ed55ba01001000")
_CONTAINER_BYTES: Final = 16
#: Kind, version, lengths of header and payload, (compressed length, options, version of the code), architecture, flags.
_ENTRY: Final = struct.Struct("<HHIQ12xI8xQ")
_ENTRY_VERSION: Final = 0x101
#: Headers of 64, 80, 96 and 112 bytes have been seen.
_ENTRY_MOST: Final = 1024
_PTX: Final = 1
_CUBIN: Final = 2
#: Code for one architecture and no later one (`sm_90a`), and for one and its family (`sm_100f`).
_SUFFIXES: Final = {0: "", 0x100000: "a", 0x200000: "f"}
_SUFFIX: Final = 0x300000

#: Source: System V ABI, ELF-64 object file format. 64-bit, little-endian.
_ELF: Final = b"\x7fELF\x02\x01"
_ELF_HEADER: Final = struct.Struct("<40xQ10xHHH")
_SECTION: Final = struct.Struct("<I20xQQ24x")
#: The names of sections lie beside their table, closer than this in every library that was looked at.
_BESIDE: Final = 64 << 10
#: What the CUDA runtime loads, and cuobjdump shows. Code for linkers (`__nv_relfatbin`) can't be run, and what
#: libraries keep in sections of their own (`.cask_resource` of cuSPARSELt) is known to them alone.
_FATBIN: Final = b".nv_fatbin"


@dataclass(slots=True)
class _Container:
    """Where one is in the library, in bytes, and what is in it."""

    start: int
    end: int
    sm: set[str] = field(default_factory=set)
    ptx: set[str] = field(default_factory=set)


class FatbinScan:
    """A sink of one file's bytes, in order. Payloads are skipped and not searched, which is most of a CUDA library."""

    def __init__(self) -> None:
        self._seen = 0
        self._rest = b""  # the last bytes that came, where they may begin a header
        self._sections: _SectionTable | None = None
        self._is_library: bool | None = None
        self._next = 0  # where the next header begins, or may begin
        self._in_container = False
        self._containers: list[_Container] = []
        self.found = GpuCodeFound()

    def write(self, data: bytes, /) -> None:
        """The next bytes."""
        if self._is_library is False:
            return
        block = self._rest + data if self._rest else data
        start = self._seen + len(data) - len(block)
        if self._is_library is None:
            if len(block) < _ELF_HEADER.size:
                self._rest, self._seen = block, start + len(block)
                return
            self._is_library = block.startswith(_ELF)
            if not self._is_library:
                return
            self._sections = _SectionTable(block)
            self._sections.show(0, block)
        elif self._sections is not None:
            self._sections.show(self._seen, data)
        self._seen = start + len(block)
        self._rest = block[self._walk(block, start) - start :]

    def close(self) -> None:
        """The file has ended: `found` tells. What only looks like a container, outside of its section, is left out."""
        kept = self._sections.within(self._containers) if self._sections is not None else []
        self.found = GpuCodeFound(
            in_order({name for each in kept for name in each.sm}),
            in_order({name for each in kept for name in each.ptx}),
        )

    def _walk(self, block: bytes, start: int) -> int:
        """Go as far as the bytes allow; the offset in the file from which on they are needed again."""
        at, end = start, start + len(block)
        while True:
            at = max(at, self._next)
            if at >= end:
                return end
            if not self._in_container:
                found = block.find(_CONTAINER, at - start)
                if found < 0:
                    return max(at, end - len(_CONTAINER) + 1)
                at = start + found
                if at + _CONTAINER_BYTES + _ENTRY.size > end:
                    return at
                (size,) = struct.unpack_from("<Q", block, found + 8)
                opened = _Container(at, at + _CONTAINER_BYTES + size)
                at += _CONTAINER_BYTES
                if self._take(opened, block, start, at):
                    self._containers.append(opened)
            elif at + _ENTRY.size > end:
                return at
            else:
                self._take(self._containers[-1], block, start, at)

    def _take(self, container: _Container, block: bytes, start: int, at: int) -> bool:
        """Take note of the entry at `at`, and of where the next one is; False where there is none."""
        kind, version, header, payload, arch, flags = _ENTRY.unpack_from(block, at - start)
        following = at + header + payload
        is_entry: bool = (
            version == _ENTRY_VERSION and _ENTRY.size <= header <= _ENTRY_MOST and following <= container.end
        )
        if is_entry:
            name = f"{arch}{_SUFFIXES.get(flags & _SUFFIX, '')}"
            if kind == _CUBIN:
                container.sm.add(f"sm_{name}")
            elif kind == _PTX:
                container.ptx.add(f"compute_{name}")
        self._next = following if is_entry else at + 1
        self._in_container = is_entry and following + _ENTRY.size <= container.end
        return is_entry


class _SectionTable:
    """A library's sections: where its header says that they are, the bytes are kept as they pass by."""

    def __init__(self, head: bytes) -> None:
        self._table, self._each, self._count, self._names = _ELF_HEADER.unpack_from(head)
        self._start = max(0, self._table - _BESIDE)
        self._end = self._table + self._each * self._count + _BESIDE
        self._kept = bytearray()

    def show(self, at: int, data: bytes) -> None:
        """Bytes of the library, which are at `at` in it."""
        if at < self._end and at + len(data) > self._start:
            self._kept += data[max(0, self._start - at) : self._end - at]

    def within(self, containers: Sequence[_Container]) -> list[_Container]:
        """Those of the containers that begin in the section for GPU code; all, where the library names no sections."""
        sections = self._rows()
        if not any(name for name, _, _ in sections):
            return list(containers)
        places = [(start, start + size) for name, start, size in sections if name == _FATBIN]
        return [each for each in containers if any(start <= each.start < end for start, end in places)]

    def _rows(self) -> list[tuple[bytes, int, int]]:
        """Name, offset and size in bytes of each section; no name where it was not kept."""
        first = self._table - self._start
        if self._each != _SECTION.size or len(self._kept) < first + self._each * self._count:
            return []
        rows = [_SECTION.unpack_from(self._kept, first + self._each * number) for number in range(self._count)]
        names = rows[self._names][1] - self._start if self._names < len(rows) else -1
        return [(self._name(names + name) if names >= 0 else b"", start, size) for name, start, size in rows]

    def _name(self, at: int) -> bytes:
        return bytes(self._kept[at : max(at, self._kept.find(b"\0", at))])


def in_order(names: set[str]) -> tuple[str, ...]:
    """Architectures by number, then by suffix: `sm_90`, `sm_90a`, `sm_100`."""

    def key(name: str) -> tuple[int, str]:
        number = name.partition("_")[2].rstrip("af")
        return int(number), name

    return tuple(sorted(names, key=key))


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
    """Looks at what goes into one layer of wheels; see `envspec.image.layers.store.Watch`."""

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
