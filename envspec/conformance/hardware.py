"""Driver, GPUs, CPU and memory.

By ctypes, since no package may be added to the tested stack.
Sources: NVML API reference, "Device Queries"; CUDA driver API, "Initialization", "Device Management". Read 2026-11.

SASS (`sm_80`) runs on GPUs of its own major compute capability whose minor is equal or higher; not between Tegra parts
and others. PTX (`compute_120`) is compiled by the driver for any GPU that is not older. A suffix `a` is for one
capability alone, `f` for one major. Source: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility".
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from envspec.conformance.results import Validated

_NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_CUDA = "libcuda.so.1"
_TEXT_BYTES = 96
#: nvmlGpuTopologyLevel_t, by the names of `nvidia-smi topo`.
_TOPOLOGY = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_LINKS = 18


class NoDriver(Exception):
    """The driver or its library does not work, and why."""


@dataclass(frozen=True)
class Gpu(Validated):
    """A GPU as NVML reports it."""

    index: int
    name: str
    uuid: str
    compute_capability: str
    memory_bytes: int


def devices() -> int:
    """How many GPUs CUDA shows to this process: at least 1.

    Raises:
        NoDriver: none, or CUDA can't be initialised.
    """
    try:
        cuda = ctypes.CDLL(_CUDA)
    except OSError as error:
        raise NoDriver(f"NVIDIA's driver is not installed ({error})") from error
    count = ctypes.c_int()
    if status := cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(status, ctypes.byref(text))
        raise NoDriver(f"CUDA cannot be initialised: {(text.value or b'unknown').decode()} (error {status})")
    if not count.value:
        raise NoDriver("NVIDIA's driver shows no GPU to this process")
    return count.value


class Nvml:
    """NVIDIA's management library, opened by `open_nvml`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def driver(self) -> str:
        """Its version, as `570.124.06`."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call("nvmlSystemGetDriverVersion", text, _TEXT_BYTES)
        return text.value.decode()

    def gpus(self) -> list[Gpu]:
        """Every GPU of the machine, also those that CUDA_VISIBLE_DEVICES hides."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def utilization(self, index: int) -> int:
        """Percent of the last sample period in which a kernel ran on a GPU."""
        rates = (ctypes.c_uint * 2)()
        self.call("nvmlDeviceGetUtilizationRates", self._handle(index), rates)
        return int(rates[0])

    def topology(self) -> dict[str, str]:
        """`0-1` -> how the two GPUs are connected: `NV4` for four NVLinks, else nvidia-smi's name of their ancestor."""
        handles = [self._handle(gpu.index) for gpu in self.gpus()]
        addresses = [self._address(handle) for handle in handles]
        found = {}
        for one, other in combinations(range(len(handles)), 2):
            # An address that is no GPU's is a switch, which connects every GPU behind it.
            links = [each for each in self._links(handles[one]) if each == addresses[other] or each not in addresses]
            level = ctypes.c_uint()
            if not links:
                self.call("nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other], ctypes.byref(level))
            found[f"{one}-{other}"] = f"NV{len(links)}" if links else _TOPOLOGY.get(level.value, str(level.value))
        return found

    def _links(self, handle: ctypes.c_void_p) -> Iterator[bytes]:
        """PCI addresses at the other ends of a GPU's active NVLinks."""
        for link in range(_LINKS):
            state, remote = ctypes.c_uint(), _Pci()
            if (
                not self._library.nvmlDeviceGetNvLinkState(handle, link, ctypes.byref(state))
                and state.value
                and not self._library.nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, ctypes.byref(remote))
            ):
                yield remote.bus_id

    def _address(self, handle: ctypes.c_void_p) -> bytes:
        info = _Pci()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        return bytes(info.bus_id)

    def _gpu(self, index: int) -> Gpu:
        handle = self._handle(index)
        name, uuid = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.create_string_buffer(_TEXT_BYTES)
        major, minor = ctypes.c_int(), ctypes.c_int()
        memory = (ctypes.c_ulonglong * 3)()
        self.call("nvmlDeviceGetName", handle, name, _TEXT_BYTES)
        self.call("nvmlDeviceGetUUID", handle, uuid, _TEXT_BYTES)
        self.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        self.call("nvmlDeviceGetMemoryInfo", handle, memory)
        return Gpu(index, name.value.decode(), uuid.value.decode(), f"{major.value}.{minor.value}", int(memory[0]))

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        return handle

    def call(self, function: str, *arguments: Any) -> None:
        """Raises NoDriver if the call fails."""
        if status := getattr(self._library, function)(*arguments):
            text = ctypes.c_char_p(ctypes.cast(self._library.nvmlErrorString(status), ctypes.c_char_p).value)
            raise NoDriver(f"NVML failed: {(text.value or b'unknown').decode()} (error {status})")


class _Pci(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


@contextlib.contextmanager
def open_nvml() -> Iterator[Nvml]:
    """NVML, opened within the block.

    Raises:
        NoDriver: it is not installed, or a call fails.
    """
    try:
        library = ctypes.CDLL(_NVML)
    except OSError as error:
        raise NoDriver(f"NVML is not installed ({error})") from error
    library.nvmlErrorString.restype = ctypes.c_void_p
    nvml = Nvml(library)
    nvml.call("nvmlInit_v2")
    try:
        yield nvml
    finally:
        library.nvmlShutdown()


def describe() -> dict[str, Any]:
    """The machine as this process sees it, by the receipt's keys; without what can't be read.

    cpus: those that this process may run on.
    """
    shm = None
    with contextlib.suppress(OSError):
        shm = shutil.disk_usage("/dev/shm").total  # noqa: S108 (only its size is read)
    values: dict[str, Any] = {
        "system": _match(r'^PRETTY_NAME="?([^"\n]*)', "/etc/os-release") or platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _match(r"^model name\s*:\s*(.*)$", "/proc/cpuinfo"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes(),
        "shm_bytes": shm,
        "python": platform.python_version(),
        "executable": sys.executable,
        "libc": " ".join(platform.libc_ver()),
    }
    with contextlib.suppress(NoDriver), open_nvml() as nvml:
        values["driver"] = nvml.driver()
        values["gpus"] = [asdict(gpu) for gpu in nvml.gpus()]
        values["topology"] = nvml.topology()
    return {name: value for name, value in values.items() if value not in (None, "")}


def _match(pattern: str, path: str) -> str:
    with contextlib.suppress(OSError):
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else ""
    return ""


def memory_bytes() -> int | None:
    """Bytes that this process may use: the system's memory, or a control group's limit if that is less."""
    sizes = []
    with contextlib.suppress(OSError, ValueError):
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(Path(path).read_text(encoding="utf-8")))
    return min(sizes, default=None)


_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7)})


def runs_any(architectures: Iterable[str], gpu: tuple[int, int]) -> bool:
    """Whether a GPU runs code for one of these. gpu: its compute capability."""
    return any(_runs(each, gpu) for each in architectures)


def _runs(architecture: str, gpu: tuple[int, int]) -> bool:
    found = _ARCHITECTURE.fullmatch(architecture)
    if not found:
        return False
    built, is_sass, suffix = (int(found[2]), int(found[3])), found[1] == "sm", found[4]
    if suffix == "a" or (is_sass and {built, gpu} & _TEGRA):
        return built == gpu
    if is_sass or suffix == "f":
        return built[0] == gpu[0] and built <= gpu
    return built <= gpu
