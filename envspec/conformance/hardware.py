"""Driver, GPUs, CPU and memory.

By ctypes and not by a package, since nothing may be added to the stack that is tested.
Sources: NVML API reference, "Device Queries"; CUDA driver API, "Initialization", "Device Management". Read 2026-11.

SASS (`sm_80`) runs on cards of its own major compute capability whose minor is equal or higher; Tegra parts and others
don't exchange it. PTX (`compute_120`) is compiled by the driver for any card that is not older. A suffix `a` is for one
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
from pathlib import Path
from typing import Any

_NVML = "libnvidia-ml.so.1"
_CUDA = "libcuda.so.1"
_TEXT_BYTES = 96
#: nvmlGpuTopologyLevel_t, in `nvidia-smi topo`'s words.
_TOPOLOGY = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_LINKS = 18


class NoDriver(Exception):
    """The driver, or its library, is not to be had; why."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML tells of it. compute_capability: as `9.0`. memory_bytes: all of it."""

    index: int
    name: str
    uuid: str
    compute_capability: str
    memory_bytes: int


def devices() -> int:
    """How many GPUs CUDA shows to this process: at least 1.

    Raises:
        NoDriver: none, or CUDA does not come up; why, in the driver's own words.
    """
    try:
        cuda = ctypes.CDLL(_CUDA)
    except OSError as fault:
        raise NoDriver(f"NVIDIA's driver is not there ({fault})") from fault
    _ask_cuda(cuda, cuda.cuInit(0))
    count = ctypes.c_int()
    _ask_cuda(cuda, cuda.cuDeviceGetCount(ctypes.byref(count)))
    if not count.value:
        raise NoDriver("NVIDIA's driver shows no GPU to this process")
    return count.value


def _ask_cuda(cuda: ctypes.CDLL, status: int) -> None:
    if not status:
        return
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(status, ctypes.byref(text))
    raise NoDriver(f"CUDA does not come up: {(text.value or b'unknown').decode()} (error {status})")


class Nvml:
    """An open NVML."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def driver(self) -> str:
        """The driver's version, as `570.124.06`."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._ask(self._library.nvmlSystemGetDriverVersion(text, _TEXT_BYTES))
        return text.value.decode()

    def gpus(self) -> list[Gpu]:
        """Every GPU of the machine, also those that CUDA_VISIBLE_DEVICES hides."""
        count = ctypes.c_uint()
        self._ask(self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        return [self._gpu(index) for index in range(count.value)]

    def busy(self, index: int) -> int:
        """Percent of the last sample period in which a kernel ran on a GPU."""
        rates = (ctypes.c_uint * 2)()
        self._ask(self._library.nvmlDeviceGetUtilizationRates(self._handle(index), rates))
        return int(rates[0])

    def joined(self, one: int, other: int) -> str:
        """How two GPUs are joined: `NV4` for four NVLinks, else the common ancestor in nvidia-smi's words."""
        links = sum(self._leads_to(one, link, other) for link in range(_LINKS))
        if links:
            return f"NV{links}"
        level = ctypes.c_uint()
        self._ask(
            self._library.nvmlDeviceGetTopologyCommonAncestor(
                self._handle(one), self._handle(other), ctypes.byref(level)
            )
        )
        return _TOPOLOGY.get(level.value, str(level.value))

    def _leads_to(self, one: int, link: int, other: int) -> bool:
        state = ctypes.c_uint()
        if self._library.nvmlDeviceGetNvLinkState(self._handle(one), link, ctypes.byref(state)) or not state.value:
            return False
        far, mine = _Pci(), _Pci()
        if self._library.nvmlDeviceGetNvLinkRemotePciInfo_v2(self._handle(one), link, ctypes.byref(far)):
            return False
        # A switch stands for every other GPU behind it: NVSwitch's are no GPUs of the machine.
        addresses = {self._pci(index).bus_id for index in range(len(self.gpus()))}
        mine = self._pci(other)
        return far.bus_id == mine.bus_id or far.bus_id not in addresses

    def _pci(self, index: int) -> _Pci:
        info = _Pci()
        self._ask(self._library.nvmlDeviceGetPciInfo_v3(self._handle(index), ctypes.byref(info)))
        return info

    def _gpu(self, index: int) -> Gpu:
        handle = self._handle(index)
        name, uuid = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.create_string_buffer(_TEXT_BYTES)
        major, minor = ctypes.c_int(), ctypes.c_int()
        memory = (ctypes.c_ulonglong * 3)()
        self._ask(self._library.nvmlDeviceGetName(handle, name, _TEXT_BYTES))
        self._ask(self._library.nvmlDeviceGetUUID(handle, uuid, _TEXT_BYTES))
        self._ask(self._library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)))
        self._ask(self._library.nvmlDeviceGetMemoryInfo(handle, memory))
        return Gpu(index, name.value.decode(), uuid.value.decode(), f"{major.value}.{minor.value}", int(memory[0]))

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._ask(self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
        return handle

    def _ask(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p(ctypes.cast(self._library.nvmlErrorString(status), ctypes.c_char_p).value)
            raise NoDriver(f"NVML: {(text.value or b'unknown').decode()} (error {status})")


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
    """NVML, opened for the time of the block.

    Raises:
        NoDriver: it is not there, or a question to it fails.
    """
    try:
        library = ctypes.CDLL(_NVML)
    except OSError as fault:
        raise NoDriver(f"NVML is not there ({fault})") from fault
    library.nvmlErrorString.restype = ctypes.c_void_p
    opened = Nvml(library)
    opened._ask(library.nvmlInit_v2())
    try:
        yield opened
    finally:
        library.nvmlShutdown()


def no_gpu() -> str:
    """Why no GPU can be tested here; empty where one can."""
    try:
        devices()
    except NoDriver as reason:
        return str(reason)
    return ""


def describe() -> dict[str, Any]:
    """The machine as this process sees it, in the receipt's words; what can't be known is left out.

    memory_bytes, shm_bytes: bytes. cpus: those that this process may run on.
    """
    told: dict[str, Any] = {
        "system": _os(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes(),
        "shm_bytes": _total("/dev/shm"),  # noqa: S108 (its size is what is asked)
        "python": platform.python_version(),
        "executable": sys.executable,
        "libc": " ".join(platform.libc_ver()),
        **_nvidia(),
    }
    return {name: value for name, value in told.items() if value not in (None, "")}


def _nvidia() -> dict[str, Any]:
    told: dict[str, Any] = {}
    with contextlib.suppress(NoDriver), open_nvml() as nvml:
        told["driver"] = nvml.driver()
        gpus = nvml.gpus()
        told["gpus"] = [asdict(gpu) for gpu in gpus]
        told["topology"] = {
            f"{one.index}-{other.index}": nvml.joined(one.index, other.index)
            for one in gpus
            for other in gpus
            if one.index < other.index
        }
    return told


def _os() -> str:
    with contextlib.suppress(OSError):
        text = Path("/etc/os-release").read_text(encoding="utf-8")
        found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE)
        return found[1] if found else ""
    return platform.system()


def _cpu() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else ""
    return ""


def memory_bytes() -> int | None:
    """Bytes that this process may use: the system's memory, or less where a control group bounds it."""
    sizes = []
    with contextlib.suppress(OSError, ValueError):
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(Path(path).read_text(encoding="utf-8")))
    return min(sizes, default=None)


def _total(path: str) -> int | None:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path).total
    return None


_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7)})


def runs_any(architectures: Iterable[str], card: tuple[int, int]) -> bool:
    """Whether a card runs code for one of these. card: its compute capability."""
    return any(_runs(each, card) for each in architectures)


def _runs(architecture: str, card: tuple[int, int]) -> bool:
    found = _ARCHITECTURE.fullmatch(architecture)
    if not found:
        return False
    built, is_sass, suffix = (int(found[2]), int(found[3])), found[1] == "sm", found[4]
    if suffix == "a" or (is_sass and {built, card} & _TEGRA):
        return built == card
    if is_sass or suffix == "f":
        return built[0] == card[0] and built <= card
    return built <= card
