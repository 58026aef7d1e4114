"""NVIDIA's driver: what CUDA and NVML report about it and about the GPUs.

Each of the two libraries is queried by a process of its own with a time limit: on a GPU that is stuck a call never
returns, and a process that waits in the kernel gets no signal.
Sources: CUDA driver API, "Initialization", "Version Management", "Device Management". Read 2026-11.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from uuid import UUID

from envspec.conformance import isolation
from envspec.conformance.bounds import SIZES
from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.nvml import (
    DriverError,
    Nvml,
    load_nvml,
    module_version,
    pci_address,
    pci_gpus,
    read_board,
)
from envspec.conformance.request import DRIVER, SuiteRequest
from envspec.conformance.results import Board, Cause, Driver, Gpu

_CUDA = "libcuda.so.1"
_TEXT_BYTES = 96
#: CUdevice_attribute.
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
#: nvmlGpuTopologyLevel_t, by the names of `nvidia-smi topo`.
_TOPOLOGY = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: Device files of the driver: of a GPU, and of all GPUs under WSL 2.
_DEVICE_FILES = ("nvidia[0-9]*", "dxg")
#: The two processes, and names for people.
_NAMES = {"cuda": "CUDA", "nvml": "NVML"}


def query(request: SuiteRequest, request_path: Path, folder: Path) -> tuple[Driver, tuple[str, ...]]:
    """What the driver reports, and processes that cannot be killed.

    request_path: of the request. folder: for the files of the two processes.
    """
    # Without the persistence daemon each GPU is initialised now.
    default_s = SIZES["driver.limit_s"] + SIZES["driver.limit_s_per_gpu"] * len(_device_files())
    limit_s = request.limits.get(DRIVER, default_s) * request.limit_factor
    started = {}
    for library in _NAMES:
        started[library] = isolation.start("--driver", request_path, folder / library, library)
    ended = isolation.wait(started.values(), limit_s)
    values = {}
    for library, process in started.items():
        overrun = ended.overruns.get(process.pid)
        values[library] = _values(_NAMES[library], folder / library, process.returncode, overrun)
    return _driver(values["cuda"], values["nvml"]), ended.unkillable


def _values(library: str, folder: Path, exited: int | None, overrun: isolation.Overrun | None) -> dict[str, Any]:
    """The values that a process has reported. error: why there are no more. is_late: whether it ran out of time."""
    events = ProcessEvents.read(folder / isolation.EVENTS)
    failed = isolation.failure(events, exited, overrun)
    if failed is None:
        return events.values
    # The values first: a process that hangs at one GPU has reported the others.
    is_late = failed[0] is Cause.OUT_OF_TIME
    what = "is too slow" if is_late else "does not work"
    return {**events.values, "error": f"{library} {what}: {failed[1]}", "is_late": is_late}


def _driver(cuda: Mapping[str, Any], nvml: Mapping[str, Any]) -> Driver:
    boards = tuple(Board(**each) for each in nvml.get("boards", ()))
    slices = {each.pci for each in boards if each.mig}
    gpus = []
    for each in cuda.get("gpus", ()):
        # CUDA reports the UUID without its prefix.
        prefix = "MIG" if each["pci"] in slices else "GPU"
        gpus.append(Gpu(**{**each, "uuid": f"{prefix}-{each['uuid']}"}))
    devices = _device_files() or [f"a GPU of NVIDIA at {address}" for address in pci_gpus()]
    error = _cuda_error(cuda, devices)
    nvml_error, nvml_missing = nvml.get("error", ""), nvml.get("missing", "")
    if nvml.get("is_late"):
        # What is only too slow is no fault of a GPU.
        nvml_error, nvml_missing = "", nvml_error
    return Driver(
        version=nvml.get("version") or module_version(),
        cuda=cuda.get("version", ""),
        error=error,
        is_late=bool(error and cuda.get("is_late")),
        is_absent=bool(cuda.get("missing") and nvml.get("missing") and not devices),
        nvml_error=nvml_error,
        nvml_missing=nvml_missing,
        gpus=tuple(gpus),
        boards=boards,
        topology=nvml.get("topology", {}),
    )


def _cuda_error(cuda: Mapping[str, Any], devices: Sequence[str]) -> str:
    """Why CUDA does not work; empty if it does. devices: GPUs that the kernel knows."""
    error = str(cuda.get("error", ""))
    if cuda.get("missing"):
        error = f"NVIDIA's driver is not installed ({cuda['missing']})"
    elif not error and not cuda.get("gpus"):
        error = "CUDA shows no GPU to this process"
    if not error:
        return ""
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        error = f"{error}; CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r}"
    if devices:
        error = f"{error}; this machine has {', '.join(devices)}"
    return error


def _device_files() -> list[str]:
    return sorted(str(each) for pattern in _DEVICE_FILES for each in Path("/dev").glob(pattern))


def work(context: CheckContext, library: str) -> None:
    """The process that queries one library."""
    if library == "cuda":
        _read_cuda(context)
    else:
        read_nvml(context)


def _value(context: CheckContext, name: str, value: object) -> None:
    context.write("values", [name, value])


def _read_cuda(context: CheckContext) -> None:
    """Report `missing`, or `version`, `error` and `gpus`."""
    try:
        library = ctypes.CDLL(_CUDA)
    except OSError as error:
        _value(context, "missing", str(error))
        return
    call = partial(_cuda_call, library)
    try:
        number = ctypes.c_int()
        with context.phase("cuDriverGetVersion"):
            call("cuDriverGetVersion", ctypes.byref(number))
        _value(context, "version", f"{number.value // 1000}.{number.value % 1000 // 10}")
        with context.phase("cuInit"):
            call("cuInit", 0)
            call("cuDeviceGetCount", ctypes.byref(number))
        gpus = []
        for index in range(number.value):
            with context.phase(f"GPU {index}"):
                gpus.append(_cuda_gpu(call, index))
            _value(context, "gpus", gpus)
    except DriverError as error:
        _value(context, "error", f"CUDA cannot be initialised: {error}")


def _cuda_call(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    if status := getattr(library, function)(*arguments):
        text = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(text))
        raise DriverError(status, (text.value or b"unknown").decode())


def _cuda_gpu(call: Callable[..., None], index: int) -> Gpu:
    device, name, pci = ctypes.c_int(), ctypes.create_string_buffer(_TEXT_BYTES), ctypes.create_string_buffer(32)
    uuid, memory = (ctypes.c_ubyte * 16)(), ctypes.c_size_t()
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDeviceGetName", name, _TEXT_BYTES, device)
    # The first one is not in drivers before 470; the second returns a slice's whole GPU.
    try:
        call("cuDeviceGetUuid_v2", uuid, device)
    except AttributeError:
        call("cuDeviceGetUuid", uuid, device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    call("cuDeviceGetPCIBusId", pci, 32, device)
    values = []
    for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS):
        number = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        values.append(number.value)
    return Gpu(
        index=index,
        name=name.value.decode(errors="replace"),
        uuid=str(UUID(bytes=bytes(uuid))),
        compute_capability=f"{values[0]}.{values[1]}",
        memory_bytes=memory.value,
        pci=pci_address(pci.value.decode()),
        multiprocessors=values[2],
    )


def read_nvml(context: CheckContext) -> list[Board]:
    """Report `missing`, or `version`, `error`, `boards` and `topology`: every function once for each GPU."""
    boards: list[Board] = []
    try:
        nvml = load_nvml()
        # Without nvmlShutdown: this process ends after its queries.
        with context.phase("nvmlInit_v2"):
            nvml.call("nvmlInit_v2")
    except OSError as error:
        _value(context, "missing", f"NVML is not installed ({error})")
        return boards
    except DriverError as error:
        _value(context, "error", f"NVML cannot be initialised: {error}")
        return boards
    try:
        with context.phase("nvmlSystemGetDriverVersion"):
            _value(context, "version", nvml.text("nvmlSystemGetDriverVersion"))
        count = nvml.number("nvmlDeviceGetCount_v2")
    except DriverError as error:
        _value(context, "error", f"NVML failed: {error}")
        return boards
    handles: list[Any] = []
    for index in range(count):
        with context.phase(f"GPU {index} by NVML"):
            handle, board = read_board(nvml, index)
        handles.append(handle)
        boards.append(board)
        _value(context, "boards", boards)
    with context.phase("the topology"):
        _value(context, "topology", _topology(nvml, boards, handles))
    return boards


def _topology(nvml: Nvml, boards: Sequence[Board], handles: Sequence[Any]) -> dict[str, str]:
    """`0-1` -> how the two GPUs are connected: `NV4` for four NVLinks, else nvidia-smi's name of their ancestor."""
    addresses = {each.pci for each in boards}
    found = {}
    for one, other in combinations(range(len(boards)), 2):
        # An address that is no GPU's is a switch, which connects every GPU behind it.
        links = [each for each in boards[one].links if each == boards[other].pci or each not in addresses]
        if links:
            found[f"{one}-{other}"] = f"NV{len(links)}"
        elif handles[one] is not None and handles[other] is not None:
            with contextlib.suppress(DriverError):
                level = nvml.number("nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
                found[f"{one}-{other}"] = _TOPOLOGY.get(level, str(level))
    return found
