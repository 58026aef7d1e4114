"""The GPU code of wheels on their way into a layer, what is remembered of it, and what the lock says."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.errors import NoSolution
from envspec.facts import load_facts
from envspec.image.gpu_code import GpuCodeMissing, compare
from envspec.image.libraries import LibraryObserver
from envspec.image.sources.wheel import Scheme, WheelSource
from envspec.models import (
    GpuCode,
    GpuCodeFound,
    Lock,
    Package,
    Platform,
    Python,
    Resolution,
    Target,
    WheelContent,
    WheelFile,
)
from envspec.structs import replace
from tests.support.builders.cuda_library import CUBIN, PTX, Code, container, library
from tests.support.builders.entries import content as content_of
from tests.support.builders.wheel_trees import locked
from tests.support.builders.zips import FILE, PROGRAM, write_wheel

_KERNELS = library([(".nv_fatbin", container([Code(CUBIN, 80), Code(CUBIN, 90), Code(PTX, 120)]))])
_OTHER = library([(".nv_fatbin", container([Code(CUBIN, 70)]))])
_SHA256 = "5" * 64
_OTHER_SHA256 = "6" * 64


def test_a_layer_s_wheels_are_told_apart(tmp_path: Path) -> None:
    kernels = locked(
        write_wheel(tmp_path, "kernels", files=[("k/lib/libk.so.12", _KERNELS, FILE), ("k/_C.abi3.so", _OTHER, FILE)])
    )
    tools = locked(write_wheel(tmp_path, "tools", files=[("t/bin/tool", _OTHER, PROGRAM)]))
    none = locked(write_wheel(tmp_path, "none", files=[("n/a.so", library([]), FILE), ("n/b.py", _KERNELS, FILE)]))
    source = WheelSource((kernels, tools, none), Scheme.of("3.11"), None)
    watch = LibraryObserver(source.wheels)
    for entry in source.entries():
        sink = watch(entry)
        if sink is not None:
            content = content_of(entry)
            for start in range(0, len(content), 100):
                sink.write(content[start : start + 100])
            sink.close()
    assert dict(watch.found()) == {
        kernels.sha256: WheelContent(GpuCodeFound(("sm_70", "sm_80", "sm_90"), ("compute_120",))),
        tools.sha256: WheelContent(GpuCodeFound(("sm_70",), ())),
    }


def _held(*sm: str, ptx: tuple[str, ...] = (), sha256: str = _SHA256) -> dict[str, WheelContent]:
    return {sha256: WheelContent(GpuCodeFound(sm, ptx))}


def _lock(code: GpuCode, *gpus: str, beside: str = "") -> Lock:
    file = WheelFile("default", "torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl", _SHA256, 9)
    target = Target(Platform.LINUX_64, Python("3.11.16", "standalone"), (2, 39))
    other = replace(file, filename=f"{beside}-1.2-py3-none-any.whl", sha256=_OTHER_SHA256)
    packages = [Package("torch", "2.9.1", file, ()), *([Package(beside, "1.2", other, ())] if beside else [])]
    resolution = Resolution(target, tuple(packages))
    return Lock(
        1, "x", "0" * 64, datetime(2026, 1, 1, tzinfo=timezone.utc), (resolution,), (), None, None, (code,), gpus
    )


_RECORD = GpuCode(Platform.LINUX_64, "torch", "2.9.1", "cu128", ("sm_70", "sm_80", "sm_90"), (), "a table")


def test_only_less_than_the_record_of_this_wheel_counts() -> None:
    held = _held("sm_70", "sm_80", "sm_86", "sm_90", "sm_90a", ptx=("compute_120",))
    assert compare(_lock(_RECORD, "V100", "H100"), Platform.LINUX_64, held, load_facts()) == ()
    for code in (replace(_RECORD, platform=Platform.LINUX_AARCH64), replace(_RECORD, package="pytorch")):
        assert compare(_lock(code, "H100"), Platform.LINUX_64, {}, load_facts()) == ()


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (_held("sm_80", "sm_90"), r"has no sm_70.*: V100 can't run it \(it has code for sm_80, sm_90\)"),
        ({}, "it has no GPU code"),
    ],
)
def test_less_than_the_record_is_an_error_if_a_gpu_needs_it(held: dict[str, WheelContent], message: str) -> None:
    with pytest.raises(GpuCodeMissing, match=message) as caught:
        compare(_lock(_RECORD, "V100", "H100"), Platform.LINUX_64, held, load_facts())
    assert isinstance(caught.value, NoSolution)


def test_less_than_the_record_is_a_warning_where_no_gpu_needs_it() -> None:
    held = _held("sm_80", "sm_90")
    (warning,) = compare(_lock(_RECORD, "A100"), Platform.LINUX_64, held, load_facts())
    assert warning == (
        "the wheel of torch 2.9.1 has no sm_70, but the lock lists it "
        "(it has code for sm_80, sm_90; source of the record: a table)"
    )


def test_a_wheel_beside_torch_without_code_for_a_gpu() -> None:
    """An extension is an error, another library's few kernels a warning; PTX runs on newer GPUs, not on older ones."""
    lock = _lock(_RECORD, "V100", "H100", beside="nvidia-cusparselt-cu12")
    held = _held("sm_70", "sm_80", "sm_90")
    assert compare(lock, Platform.LINUX_64, held, load_facts()) == ()
    all_gpus = held | _held("sm_70", ptx=("compute_70",), sha256=_OTHER_SHA256)
    assert compare(lock, Platform.LINUX_64, all_gpus, load_facts()) == ()
    newer = held | _held("sm_80", ptx=("compute_80",), sha256=_OTHER_SHA256)
    (warning,) = compare(lock, Platform.LINUX_64, newer, load_facts())
    assert warning.startswith("nvidia-cusparselt-cu12 1.2 has no GPU code for V100 (it has code for sm_80, compute_80)")
    # Its kernels are not where those of others are.
    assert compare(_lock(_RECORD, "V100", beside="nvidia-cufft-cu12"), Platform.LINUX_64, newer, load_facts()) == ()
    with pytest.raises(
        GpuCodeMissing, match=r"flash-attn 1.2 has no GPU code for V100 \(it has code for sm_80, compute_80\)"
    ):
        compare(_lock(_RECORD, "V100", "H100", beside="flash-attn"), Platform.LINUX_64, newer, load_facts())


def test_a_gpu_of_the_spec_s_own_rows_is_not_judged() -> None:
    held = _held("sm_70", "sm_80", "sm_90") | _held("sm_80", sha256=_OTHER_SHA256)
    lock = _lock(_RECORD, "Z900", beside="flash-attn")
    assert compare(lock, Platform.LINUX_64, held, load_facts()) == ()
