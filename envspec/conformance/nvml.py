"""NVML, NVIDIA's management library, by ctypes, since no package may be added to the tested stack.

Sources: NVML API reference, "Device Queries", "Return values", "nvmlClocksEventReasons". Read 2026-11.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

from envspec.conformance.bounds import SIZES
from envspec.conformance.results import Board

_NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_TEXT_BYTES = 96
#: NVML_NVLINK_MAX_LINKS.
_LINKS = 36
#: The driver's own file; exists while its kernel module is loaded.
DRIVER_FILE = Path("/proc/driver/nvidia/version")
#: PCI's numbers: the vendor NVIDIA, and the class of display controllers (0x0300 VGA, 0x0302 3D).
_NVIDIA, _DISPLAY = "0x10de", "0x03"
#: nvmlReturn_t.
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 2, 3, 4
FUNCTION_NOT_FOUND, LOST, RESET_REQUIRED, NO_DATA = 13, 15, 16, 21
_NO_ECC_ON_VGPU, _OTHER_VERSION, _DEPRECATED = 22, 25, 26
#: What a GPU or a driver lacks, or what a container may not see: WSL 2, virtual GPUs, MIG and GB10 return them for
#: healthy GPUs.
_LACKING = frozenset(
    {NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, _NO_ECC_ON_VGPU, _OTHER_VERSION, _DEPRECATED}
)


class DriverError(Exception):
    """A call of the driver failed. number: its status."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{text} (error {number})")
        self.number = number

    @property
    def is_fault(self) -> bool:
        """Whether it is wrong, rather than a feature that this GPU or driver lacks."""
        return self.number not in _LACKING

    @property
    def is_lost(self) -> bool:
        """Whether the GPU does not answer any more."""
        return self.number in (LOST, RESET_REQUIRED)


def module_version(path: Path = DRIVER_FILE) -> str:
    """The version of the driver's kernel module; empty if it is not loaded.

    Its file has `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build`.
    """
    found = None
    with contextlib.suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return found[1] if found else ""


def pci_gpus(root: Path = Path("/")) -> list[str]:
    """Addresses of NVIDIA's display controllers on the PCI bus. root: of the file system."""
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        with contextlib.suppress(OSError):
            vendor, kind = ((device / name).read_text("ascii", "replace").strip() for name in ("vendor", "class"))
            if vendor == _NVIDIA and kind.startswith(_DISPLAY):
                found.append(device.name)
    return found


def pci_address(text: str) -> str:
    """CUDA writes `0000:01:00.0`, NVML `00000000:01:00.0`: both as the first; the text itself if it is neither."""
    found = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.(\d))?", text)
    if not found:
        return text
    return f"{int(found[1], 16):04x}:{int(found[2], 16):02x}:{int(found[3], 16):02x}.{found[4] or 0}"


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class Nvml:
    """NVIDIA's management library, opened by `open_nvml`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, function: str, *arguments: Any) -> None:
        """Raises DriverError if the driver lacks the function or the call fails."""
        try:
            found = getattr(self._library, function)
        except AttributeError as error:
            raise DriverError(FUNCTION_NOT_FOUND, f"this driver has no {function}") from error
        if status := found(*arguments):
            text = ctypes.c_char_p(ctypes.cast(self._library.nvmlErrorString(status), ctypes.c_char_p).value)
            raise DriverError(status, (text.value or b"unknown").decode(errors="replace"))

    def text(self, function: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(function, *arguments, buffer, _TEXT_BYTES)
        return buffer.value.decode(errors="replace")

    def number(self, function: str, *arguments: Any, kind: type[Any] = ctypes.c_uint) -> int:
        value = kind()
        self.call(function, *arguments, ctypes.byref(value))
        return int(value.value)

    def numbers(self, function: str, handle: Any, count: int, kind: type[Any] = ctypes.c_uint) -> tuple[int, ...]:
        """What a function writes through `count` pointers."""
        values = [kind() for _ in range(count)]
        self.call(function, handle, *map(ctypes.byref, values))
        return tuple(int(each.value) for each in values)

    def handle(self, function: str, which: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.call(function, which, ctypes.byref(handle))
        return handle

    def pci(self, handle: Any) -> str:
        info = _PciInfo()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        return pci_address(info.bus_id.decode(errors="replace"))

    def memory_bytes(self, handle: Any) -> int:
        """In all."""
        sizes = (ctypes.c_ulonglong * 3)()
        self.call("nvmlDeviceGetMemoryInfo", handle, sizes)
        return int(sizes[0])

    def utilization(self, handle: Any) -> int:
        """Percent of the last sample period in which a kernel ran."""
        rates = (ctypes.c_uint * 2)()
        self.call("nvmlDeviceGetUtilizationRates", handle, rates)
        return int(rates[0])

    def link_states(self, handle: Any) -> list[bool]:
        """Whether each of a GPU's NVLinks is active. Raises DriverError without one, or if the GPU is lost."""
        states: list[bool] = []
        for link in range(_LINKS):
            try:
                states.append(bool(self.number("nvmlDeviceGetNvLinkState", handle, link)))
            except DriverError as error:
                if error.is_lost or not states:
                    raise
                # There are no more of them.
                break
        return states

    def links(self, handle: Any) -> list[str]:
        """PCI addresses at the other ends of a GPU's active NVLinks; none without NVLink."""
        try:
            states = self.link_states(handle)
        except DriverError as error:
            if error.is_lost:
                raise
            return []
        found = []
        for link, is_active in enumerate(states):
            if not is_active:
                continue
            remote = _PciInfo()
            # Behind some switches the other end has no address: then it is the switch's.
            with contextlib.suppress(DriverError):
                self.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, ctypes.byref(remote))
            found.append(pci_address(remote.bus_id.decode(errors="replace")))
        return found

    def mig(self, handle: Any) -> bool:
        """Whether a GPU is divided into slices."""
        try:
            return bool(self.numbers("nvmlDeviceGetMigMode", handle, 2)[0])
        except DriverError as error:
            if error.number == NOT_SUPPORTED:
                # Most GPUs can't be.
                return False
            raise


def load_nvml() -> Nvml:
    """NVML, before `nvmlInit_v2`.

    Raises:
        OSError: it is not installed.
    """
    library = ctypes.CDLL(_NVML)
    library.nvmlErrorString.restype = ctypes.c_void_p
    return Nvml(library)


@contextlib.contextmanager
def open_nvml() -> Iterator[Nvml]:
    """NVML, opened within the block.

    Raises:
        OSError: it is not installed.
        DriverError: it can't be initialised.
    """
    nvml = load_nvml()
    nvml.call("nvmlInit_v2")
    try:
        yield nvml
    finally:
        # A GPU that was lost meanwhile has been reported.
        with contextlib.suppress(DriverError):
            nvml.call("nvmlShutdown")


#: Field of `Board` -> how it is read from a handle.
_FIELDS: Mapping[str, Callable[[Nvml, Any], Any]] = {
    "pci": Nvml.pci,
    "name": lambda nvml, handle: nvml.text("nvmlDeviceGetName", handle),
    "uuid": lambda nvml, handle: nvml.text("nvmlDeviceGetUUID", handle),
    "compute_capability": lambda nvml, handle: "{}.{}".format(
        *nvml.numbers("nvmlDeviceGetCudaComputeCapability", handle, 2, ctypes.c_int)
    ),
    "memory_bytes": Nvml.memory_bytes,
    "mig": Nvml.mig,
    "links": Nvml.links,
}


def read_board(nvml: Nvml, index: int) -> tuple[Any, Board]:
    """A GPU and its handle, None if there is none: every function once."""
    board = Board(index)
    try:
        handle = nvml.handle("nvmlDeviceGetHandleByIndex_v2", index)
    except DriverError as error:
        if error.number == NO_PERMISSION:
            return None, replace(board, hidden=True)
        return None, replace(board, errors={"handle": str(error)})
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for name, read in _FIELDS.items():
        try:
            values[name] = read(nvml, handle)
        except DriverError as error:
            (errors if error.is_fault else lacking)[name] = str(error)
    return handle, replace(board, **values, errors=errors, lacking=lacking)


#: Bit -> why a GPU's clocks are lower than requested.
REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def reasons(nvml: Nvml, handle: Any) -> tuple[str, ...]:
    """Why a GPU's clocks are lowered now: values of REASONS."""
    try:
        bits = nvml.number("nvmlDeviceGetCurrentClocksEventReasons", handle, kind=ctypes.c_ulonglong)
    except DriverError as error:
        if error.number != FUNCTION_NOT_FOUND:
            raise
        # Its name before driver 535.
        bits = nvml.number("nvmlDeviceGetCurrentClocksThrottleReasons", handle, kind=ctypes.c_ulonglong)
    return tuple(name for bit, name in REASONS.items() if bits & bit)


#: Name -> unit, and how it is read. 1 and 2: nvmlClockType_t of multiprocessors and memory; 0: the GPU's own sensor.
_SENSORS: Mapping[str, tuple[str, Callable[[Nvml, Any], float]]] = {
    "busy": ("%", Nvml.utilization),
    "SM clock": ("MHz", lambda nvml, handle: nvml.number("nvmlDeviceGetClockInfo", handle, 1)),
    "memory clock": ("MHz", lambda nvml, handle: nvml.number("nvmlDeviceGetClockInfo", handle, 2)),
    "power": ("W", lambda nvml, handle: nvml.number("nvmlDeviceGetPowerUsage", handle) / 1000),
    "temperature": ("°C", lambda nvml, handle: nvml.number("nvmlDeviceGetTemperature", handle, 0)),
}


@dataclass(eq=False)
class Sensors(threading.Thread):
    """Samples a GPU's sensors until its block ends.

    pci: address of the GPU; a slice of a GPU (MIG) has that of the whole.
    period_s: between samples.
    samples: name of `UNITS` -> values.
    reasons: why clocks were lowered -> in how many samples.
    problems: name -> why it has none.
    """

    pci: str
    period_s: float = 1.0
    samples: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()

    def problem(self, name: str) -> str:
        """Why a sensor has no samples."""
        return self.problems.get(name, "NVML returns no sample")

    def run(self) -> None:
        try:
            with open_nvml() as nvml:
                handle = nvml.handle("nvmlDeviceGetHandleByPciBusId_v2", self.pci.encode())
                is_over = False
                while not is_over:
                    # Once more at the end: NVML's sample period may be longer than the work.
                    is_over = self._ended.wait(self.period_s)
                    self._sample(nvml, handle)
        except (OSError, DriverError) as error:
            self.problems.update(dict.fromkeys(UNITS, str(error)))

    def _sample(self, nvml: Nvml, handle: Any) -> None:
        for name, (_, read) in _SENSORS.items():
            try:
                self.samples.setdefault(name, []).append(read(nvml, handle))
            except DriverError as error:
                self.problems[name] = str(error)
        try:
            for reason in reasons(nvml, handle):
                self.reasons[reason] = self.reasons.get(reason, 0) + 1
        except DriverError as error:
            self.problems["reasons"] = str(error)

    def __enter__(self) -> Sensors:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        # NVML may be stuck: the check's own limit is not for its sensors.
        self.join(SIZES["driver.limit_s"])


#: Name of a sensor -> its unit.
UNITS = {name: unit for name, (unit, _) in _SENSORS.items()}
