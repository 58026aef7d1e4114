"""GPU code in libraries.

nvcc writes kernels into a section `.nv_fatbin`: containers, each with a header of 16 bytes (magic, version, its own
length, length of the entries) and entries, each with a header (kind, version, its own length, its payload's length, the
architecture, flags) and a payload. NVIDIA documents the tool that prints it, cuobjdump, not the format; the fields are
those of GPU Ocelot and of compilers that write such sections. The flags' meaning was found by unpacking entries of
torch 2.14.1 and nvidia-cusparselt-cu12 0.8.1, whose payloads contain the architecture's name; the result matches
cuobjdump 12.8 for both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from envspec.errors import NoSolution
from envspec.facts import Facts
from envspec.facts.gpu import Runs, capabilities_of, capability_of, find_gpu, has_other_kernels, runs, without_code
from envspec.image.elf import MAGIC, KeptBytes
from envspec.models import GpuCode, GpuCodeFound, Lock, Platform, WheelContent

#: Magic 0xBA55ED50, version 1, 16 bytes of header.
_CONTAINER: Final = bytes.fromhex("50ed55ba01001000")
_CONTAINER_BYTES: Final = 16
#: Kind, version, lengths of header and payload, (compressed length, options, version of the code), architecture, flags.
_ENTRY: Final = struct.Struct("<HHIQ12xI8xQ")
_ENTRY_VERSION: Final = 0x101
#: Headers of 64, 80, 96 and 112 bytes are in use.
_MAX_ENTRY_HEADER: Final = 1024
_PTX: Final = 1
_CUBIN: Final = 2
#: Code for exactly one architecture (`sm_90a`), and for one and its family (`sm_100f`).
_SUFFIXES: Final = {0: "", 0x100000: "a", 0x200000: "f"}
_SUFFIX: Final = 0x300000

#: Source: System V ABI, ELF-64 object file format.
_ELF_HEADER: Final = struct.Struct("<40xQ10xHHH")
_SECTION: Final = struct.Struct("<I20xQQ24x")
#: The names of sections are near their table, closer than this in every library that was examined.
_NEAR_BYTES: Final = 64 << 10
#: What the CUDA runtime loads and cuobjdump prints. Code for linkers (`__nv_relfatbin`) can't run, and sections of a
#: library's own (`.cask_resource` of cuSPARSELt) are undocumented.
_FATBIN: Final = b".nv_fatbin"


class _Container(Struct):
    """start, end: offsets in the library, in bytes."""

    start: int
    end: int
    sm: set[str] = field(default_factory=set)
    ptx: set[str] = field(default_factory=set)


class FatbinScan:
    """Receives one file's bytes, in order. Payloads, most of a CUDA library, are skipped.

    is_library: None until the file's header has been seen.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._rest = b""  # the last bytes, if a header may begin in them
        self._sections: _SectionTable | None = None
        self.is_library: bool | None = None
        self._next = 0  # where the next header begins, or may begin
        self._in_container = False
        self._containers: list[_Container] = []
        self.found = GpuCodeFound()

    def write(self, data: bytes, /) -> None:
        if self.is_library is False:
            return
        block = self._rest + data if self._rest else data
        start = self._seen + len(data) - len(block)
        if self.is_library is None:
            if len(block) < _ELF_HEADER.size:
                self._rest, self._seen = block, start + len(block)
                return
            self.is_library = block.startswith(MAGIC)
            if not self.is_library:
                return
            self._sections = _SectionTable(block)
            self._sections.kept.add(0, block)
        elif self._sections is not None:
            self._sections.kept.add(self._seen, data)
        self._seen = start + len(block)
        self._rest = block[self._walk(block, start) - start :]

    def close(self) -> None:
        """Set `found`, without what only looks like a container outside of its section."""
        if self._sections is not None:
            self.found = union(self._sections.within(self._containers))

    def _walk(self, block: bytes, start: int) -> int:
        """Parse as far as possible; returns the offset in the file from which bytes are still needed."""
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
                if self._add_entry(opened, block, start, at):
                    self._containers.append(opened)
            elif at + _ENTRY.size > end:
                return at
            else:
                self._add_entry(self._containers[-1], block, start, at)

    def _add_entry(self, container: _Container, block: bytes, start: int, at: int) -> bool:
        """Add the entry at `at`, and find the next one; False if there is none."""
        kind, version, header, payload, arch, flags = _ENTRY.unpack_from(block, at - start)
        following = at + header + payload
        is_entry: bool = (
            version == _ENTRY_VERSION and _ENTRY.size <= header <= _MAX_ENTRY_HEADER and following <= container.end
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
    """A library's sections, from the bytes at the offsets in its header."""

    def __init__(self, head: bytes) -> None:
        self._table, self._each, self._count, self._names = _ELF_HEADER.unpack_from(head)
        end = self._table + self._each * self._count + _NEAR_BYTES
        self.kept = KeptBytes(max(0, self._table - _NEAR_BYTES), end)

    def within(self, containers: Sequence[_Container]) -> list[_Container]:
        """The containers in the section for GPU code; all if the library has no section names."""
        sections = self._parsed()
        if not any(name for name, _, _ in sections):
            return list(containers)
        ranges = [range(start, start + size) for name, start, size in sections if name == _FATBIN]
        inside: list[_Container] = []
        for container in containers:
            if any(container.start in section for section in ranges):
                inside.append(container)
        return inside

    def _parsed(self) -> list[tuple[bytes, int, int]]:
        """Name, offset and size in bytes of each section; an empty name if it is too far from the table."""
        first = self._table - self.kept.start
        if self._each != _SECTION.size or len(self.kept.data) < first + self._each * self._count:
            return []
        rows = [_SECTION.unpack_from(self.kept.data, first + self._each * number) for number in range(self._count)]
        names = rows[self._names][1] - self.kept.start if self._names < len(rows) else -1
        return [(self._name(names + name) if names >= 0 else b"", start, size) for name, start, size in rows]

    def _name(self, at: int) -> bytes:
        return bytes(self.kept.data[at : max(at, self.kept.data.find(b"\0", at))])


def union(codes: Iterable[_Container | GpuCodeFound]) -> GpuCodeFound:
    """All architectures, by number, then by suffix: `sm_90`, `sm_90a`, `sm_100`."""
    sm, ptx = set[str](), set[str]()
    for code in codes:
        sm.update(code.sm)
        ptx.update(code.ptx)

    def key(name: str) -> tuple[int, str]:
        return int(name.partition("_")[2].rstrip("af")), name

    return GpuCodeFound(tuple(sorted(sm, key=key)), tuple(sorted(ptx, key=key)))


class GpuCodeMissing(NoSolution, code="gpu-code-missing"):
    """A GPU of the spec runs the recorded GPU code, but not the wheel's."""


def compare(lock: Lock, platform: Platform, found: Mapping[str, WheelContent], facts: Facts) -> tuple[str, ...]:
    """Warnings about GPU code that is in the lock, but not in the wheel, and about GPUs that a wheel has no code for.

    More code than in the lock is fine: a library may have a few kernels for one more architecture, which do not make
    the package run there. found: by the wheel's SHA-256, of every wheel of this platform with libraries.

    Raises:
        GpuCodeMissing: a GPU of `[cuda] gpus` can't run without it, or an extension of torch has no code for it.
    """
    resolution = next(each for each in lock.resolutions if each.target.platform is platform)
    wheels = {package.name: package.wheel.sha256 for package in resolution.packages}
    warnings = []
    for code in lock.gpu_code:
        if code.platform is not platform or code.package not in wheels:
            continue
        actual = found.get(wheels[code.package], WheelContent()).gpu_code
        missing = [name for name in (*code.sm, *code.ptx) if name not in (*actual.sm, *actual.ptx)]
        if not missing:
            continue
        what = f"the wheel of {code.package} {code.version} has no {', '.join(missing)}, but the lock lists it"
        if lost := [name for name in lock.gpus if _is_lost(name, code, actual, facts)]:
            raise GpuCodeMissing(
                f"{what}: {', '.join(lost)} can't run it (it has {_code_text(actual)})",
                hint=f"correct the record with [[facts.gpu_code]], or select another build; its source: {code.source}",
            )
        warnings.append(f"{what} (it has {_code_text(actual)}; source of the record: {code.source})")
    gpus = capabilities_of(facts, lock.gpus)
    recorded = {code.package for code in lock.gpu_code if code.platform is platform}
    for package in resolution.packages:
        actual = found.get(wheels[package.name], WheelContent()).gpu_code
        if package.name in recorded or has_other_kernels(package.name):
            continue
        if not (unserved := without_code(gpus, actual)):
            continue
        what = (
            f"{package.name} {package.version} has no GPU code for {', '.join(unserved)} (it has {_code_text(actual)})"
        )
        if facts.extension(package.name):
            raise GpuCodeMissing(
                what,
                hint=f"require another release of {package.name}, build it for them, or remove them from [cuda] gpus",
            )
        warnings.append(f"{what}: what it computes on these GPUs fails, or is left to other libraries")
    return tuple(warnings)


def _is_lost(gpu: str, code: GpuCode, actual: GpuCodeFound, facts: Facts) -> bool:
    capability = capability_of(find_gpu(facts, gpu))
    recorded = runs(capability, code.sm, code.ptx)
    return recorded is not Runs.NOT and runs(capability, actual.sm, actual.ptx) is Runs.NOT


def _code_text(code: GpuCodeFound) -> str:
    names = ", ".join((*code.sm, *code.ptx))
    return f"code for {names}" if names else "no GPU code"
