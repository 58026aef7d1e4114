"""NVIDIA's driver by its own libraries: which GPUs it shows, how they are joined, how busy they are.

By ctypes and not by a package, since nothing may be added to the stack that is tested.
Sources: NVML API reference, "Device Queries"; CUDA driver API, "Initialization", "Device Management". Read 2026-11.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

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
def nvml() -> Iterator[Nvml]:
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
