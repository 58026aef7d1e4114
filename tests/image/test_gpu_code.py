"""The GPU code of wheels on their way into a layer, what is remembered of it, and what the lock says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.errors import NoSolution
from envspec.facts import load_facts
from envspec.image.gpu_code import GpuCodeMissing, GpuCodeObserver, compare
from envspec.image.sources.wheel import Scheme, WheelSource
from envspec.io.cache import read_gpu_code, write_gpu_code
from envspec.models import GpuCode, GpuCodeFound, Lock, Package, Platform, Python, Resolution, Target, WheelFile
from tests.support.builders.cuda_library import CUBIN, PTX, Code, container, library
from tests.support.builders.entries import content as content_of
from tests.support.builders.wheel_trees import locked
from tests.support.builders.zips import FILE, PROGRAM, write_wheel

_KERNELS = library([(".nv_fatbin", container([Code(CUBIN, 80), Code(CUBIN, 90), Code(PTX, 120)]))])
_OTHER = library([(".nv_fatbin", container([Code(CUBIN, 70)]))])
_SHA256 = "5" * 64


def test_a_layer_s_wheels_are_told_apart(tmp_path: Path) -> None:
    kernels = locked(
        write_wheel(tmp_path, "kernels", files=[("k/lib/libk.so.12", _KERNELS, FILE), ("k/_C.abi3.so", _OTHER, FILE)])
    )
    tools = locked(write_wheel(tmp_path, "tools", files=[("t/bin/tool", _OTHER, PROGRAM)]))
    none = locked(write_wheel(tmp_path, "none", files=[("n/a.so", library([]), FILE), ("n/b.py", _KERNELS, FILE)]))
    source = WheelSource((kernels, tools, none), Scheme.of("3.11"), None)
    watch = GpuCodeObserver(source.wheels)
    for entry in source.entries():
        sink = watch(entry)
        if sink is not None:
            content = content_of(entry)
            for start in range(0, len(content), 100):
                sink.write(content[start : start + 100])
            sink.close()
    assert dict(watch.found()) == {
        kernels.sha256: GpuCodeFound(("sm_70", "sm_80", "sm_90"), ("compute_120",)),
        tools.sha256: GpuCodeFound(("sm_70",), ()),
    }


def _lock(code: GpuCode, *gpus: str) -> Lock:
    file = WheelFile("default", "torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl", _SHA256, 9)
    target = Target(Platform.LINUX_64, Python("3.11.16", "standalone"), (2, 39))
    resolution = Resolution(target, (Package("torch", "2.9.1", file, ()),))
    return Lock(
        1, "x", "0" * 64, datetime(2026, 1, 1, tzinfo=timezone.utc), (resolution,), (), None, None, (code,), gpus
    )


_RECORD = GpuCode(Platform.LINUX_64, "torch", "2.9.1", "cu128", ("sm_70", "sm_80", "sm_90"), (), "a table")


def test_only_less_than_the_record_of_this_wheel_counts() -> None:
    held = {_SHA256: GpuCodeFound(("sm_70", "sm_80", "sm_86", "sm_90", "sm_90a"), ("compute_120",))}
    assert compare(_lock(_RECORD, "V100", "H100"), Platform.LINUX_64, held, load_facts()) == ()
    for code in (replace(_RECORD, platform=Platform.LINUX_AARCH64), replace(_RECORD, package="pytorch")):
        assert compare(_lock(code, "H100"), Platform.LINUX_64, {}, load_facts()) == ()


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({_SHA256: GpuCodeFound(("sm_80", "sm_90"), ())}, r"has no sm_70.*: V100 can't run it \(it has sm_80, sm_90\)"),
        ({}, "it has no GPU code"),
    ],
)
def test_less_than_the_record_is_an_error_if_a_gpu_needs_it(held: dict[str, GpuCodeFound], message: str) -> None:
    with pytest.raises(GpuCodeMissing, match=message) as caught:
        compare(_lock(_RECORD, "V100", "H100"), Platform.LINUX_64, held, load_facts())
    assert isinstance(caught.value, NoSolution)


def test_less_than_the_record_is_a_warning_where_no_gpu_needs_it() -> None:
    held = {_SHA256: GpuCodeFound(("sm_80", "sm_90"), ())}
    (warning,) = compare(_lock(_RECORD, "A100"), Platform.LINUX_64, held, load_facts())
    assert warning == (
        "the wheel of torch 2.9.1 has no sm_70, but the lock says so "
        "(it has sm_80, sm_90; source of the record: a table)"
    )


def test_what_was_found_is_remembered(tmp_path: Path) -> None:
    found = GpuCodeFound(("sm_80",), ("compute_90",))
    assert read_gpu_code(tmp_path, _SHA256) is None
    write_gpu_code(tmp_path, _SHA256, found)
    write_gpu_code(tmp_path, _SHA256, found)
    assert read_gpu_code(tmp_path, _SHA256) == found
    write_gpu_code(tmp_path, _SHA256, GpuCodeFound())
    assert read_gpu_code(tmp_path, _SHA256) == GpuCodeFound()
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


@pytest.mark.parametrize(
    "damaged", [b"", b"{}", b"[1]", b'{"sm": ["x"], "ptx": []}', b'{"sm": "sm_80", "ptx": [', b"\xff"]
)
def test_what_was_damaged_is_not_told(damaged: bytes, tmp_path: Path) -> None:
    write_gpu_code(tmp_path, _SHA256, GpuCodeFound(("sm_80",), ()))
    (path,) = (path for path in tmp_path.rglob("*.json"))
    path.write_bytes(damaged)
    assert read_gpu_code(tmp_path, _SHA256) is None
    write_gpu_code(tmp_path, _SHA256, GpuCodeFound(("sm_80",), ()))
    assert read_gpu_code(tmp_path, _SHA256) == GpuCodeFound(("sm_80",), ())


def test_a_hash_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a SHA-256"):
        write_gpu_code(tmp_path, "../../etc", GpuCodeFound())
    assert read_gpu_code(tmp_path, "../../etc") is None
