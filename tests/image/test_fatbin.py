"""GPU code in libraries: what is found, however the bytes come, and what only looks like it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.image.gpu_code import FatbinScan
from envspec.models import GpuCodeFound
from tests.support.builders.cuda_library import ACCELERATED, CUBIN, FAMILY, PTX, Code, container, library

_CODES = (
    Code(CUBIN, 80, payload=bytes(3000)),
    Code(CUBIN, 90, ACCELERATED),
    Code(CUBIN, 100, FAMILY, header_bytes=112),
    Code(PTX, 120, payload=b"\n.version 8.7\n" * 40, header_bytes=80),
    Code(8, 75),  # for the linker: neither of both
)
_HELD = GpuCodeFound(("sm_80", "sm_90a", "sm_100f"), ("compute_120",))


def _scan(data: bytes, *cuts: int) -> GpuCodeFound:
    scan = FatbinScan()
    places = [0, *sorted(place % len(data) for place in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        scan.write(data[start:end])
    scan.close()
    return scan.found


def _without_section_table() -> bytes:
    data = bytearray(library([(".nv_fatbin", container(_CODES))]))
    data[40:48] = bytes(8)
    data[60:64] = bytes(4)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        # patchelf puts what it moves behind the section table: libtorch_cuda.so has 4.7 MB there.
        library(
            [(".nv_fatbin", container(_CODES)), (".rodata", container([Code(CUBIN, 35)]))], after_table=bytes(200_000)
        ),
        library([(".nv_fatbin", container(_CODES)), ("big", bytes(100_000))], names_beside=False),
        _without_section_table(),
        library([(".nv_fatbin", container([])[:8] + b"\xff" * 72 + container(_CODES))]),
    ],
    ids=["grown by a tool", "names far from the table", "no section table", "false start"],
)
def test_unusual_libraries(data: bytes) -> None:
    assert _scan(data, 100_000) == _HELD


@given(st.lists(st.integers(0, 20_000), max_size=40))
def test_the_pieces_in_which_it_comes_do_not_matter(cuts: list[int]) -> None:
    codes = container(_CODES) + container([Code(CUBIN, 75)]) + bytes(24) + container([Code(PTX, 50), Code(CUBIN, 121)])
    data = library([(".text", bytes(3000)), (".nv_fatbin", codes), (".rodata", container([Code(CUBIN, 35)]))])
    expected = GpuCodeFound(("sm_75", "sm_80", "sm_90a", "sm_100f", "sm_121"), ("compute_50", "compute_120"))
    assert _scan(data, *cuts) == expected


@pytest.mark.parametrize("section", [".rodata", "__nv_relfatbin", ".cask_resource"])
def test_only_what_the_runtime_loads_counts(section: str) -> None:
    assert _scan(library([(section, container(_CODES))])) == GpuCodeFound()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#!/bin/sh\n" + container(_CODES),
        b"\x7fELF\1\1" + bytes(60) + container(_CODES),  # 32 bits
        library([(".nv_fatbin", b"")]),
        library([(".nv_fatbin", container(_CODES)[:16] + b"\xff" * 300)]),
        library([(".nv_fatbin", container([]))]),
    ],
)
def test_what_holds_none(data: bytes) -> None:
    assert _scan(data or b"x") == GpuCodeFound()


def test_a_library_that_ends_within_its_code_keeps_what_was_read() -> None:
    data = library([(".nv_fatbin", container(_CODES))])
    assert _scan(data[:3400]).sm[:1] == ("sm_80",)


def test_payloads_are_not_looked_into() -> None:
    inner = container([Code(CUBIN, 35)])
    outer = container([Code(CUBIN, 80, payload=inner), Code(PTX, 90, payload=bytes(8) + inner)])
    data = library([(".nv_fatbin", outer + container([Code(CUBIN, 86)]))])
    for place in range(0, len(data), 7):
        assert _scan(data, place) == GpuCodeFound(("sm_80", "sm_86"), ("compute_90",))
