"""A GPU's health by NVML: what it reports before and after the checks, and what happens while they run.

Sources: NVML API reference, "Device Queries", "NvLink Methods", "Event Handling Methods"; NVIDIA, "Xid Errors" and "GPU
Memory Error Management". Read 2026-11. It has run on one GPU, an H200 without NVLink in a virtual machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable

from envspec.conformance import isolation
from envspec.conformance.events import CheckContext
from envspec.conformance.nvml import INVALID_ARGUMENT, DriverError, Nvml, open_nvml, reasons

#: In the folder of the process that watches: what it saw.
FILE = "watch.json"
#: Seconds between two samples.
_PERIOD_S = 1.0
#: nvmlPcieUtilCounter_t: to the GPU, and from it. In kB/s: below this, a GPU may save power by a slower link, as one
#: does that has another link to its CPU (C2C).
_BOTH_WAYS = (0, 1)
_TRAFFIC = 100_000
#: Seconds to wait for the first sample: a GPU that is stuck stops the query of the driver before.
_READY_S = 10.0
#: Seconds to wait for the last one: without it the process that watches is stuck or has ended.
_LATE_S = 5.0
#: nvmlReturn_t.
_TIMEOUT = 10
#: nvmlEventTypeXidCriticalError.
_XID = 8
#: nvmlMemoryErrorType_t, nvmlEccCounterType_t.
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_LOADED, _LIFETIME = 0, 1
#: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, as in nvml.h and in NVIDIA's nvidia-ml-py, and its values.
_RECOVERY_ACTION = 230
RECOVERY_ACTIONS = (
    *("none", "reset the GPU", "restart the node", "drain peers", "drain the node and reset the GPU"),
    *("recover the IMEX domain", "reset the bus", "restart the system"),
)
#: nvmlGpuFabricInfoV_t, second version: its size, and the version in the highest byte.
_FABRIC_VERSION = 36 | 2 << 24
FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
#: Bits of a fabric's health -> fault, if the field is 1. Each field has two bits: 0 not supported, 1 true, 2 false.
_FABRIC_FAULTS = {0: "degraded bandwidth", 2: "a route recovers", 4: "an unhealthy route", 6: "an access timeout"}
#: Four bits: 0 not supported, 1 none, else a wrong configuration.
_FABRIC_CONFIGURATION = 8
#: nvmlNvLinkErrorCounter_t: replays, recoveries, CRC errors of flits and of data.
_LINK_ERRORS = 4
#: nvmlIntNvLinkDeviceType_t.
_SWITCH = 2


class _FabricInfo(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health", ctypes.c_uint),
    )


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("status", ctypes.c_uint),
        # A union of eight bytes, of which all integers begin at its first.
        ("value", ctypes.c_ulonglong),
    )


class _EventData(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def _ecc(nvml: Nvml, handle: Any) -> Sequence[int]:
    counts = []
    for since in (_SINCE_LOADED, _LIFETIME):
        for what in (_CORRECTED, _UNCORRECTED):
            counts.append(nvml.number("nvmlDeviceGetTotalEccErrors", handle, what, since, kind=ctypes.c_ulonglong))
    return counts


def _recovery(nvml: Nvml, handle: Any) -> Sequence[int]:
    value = _FieldValue(id=_RECOVERY_ACTION)
    nvml.call("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(value))
    if value.status:
        raise DriverError(int(value.status), "the recovery action")
    # An unsigned integer of 32 bits, whatever is behind it.
    return [int(value.value) & 0xFFFFFFFF]


def _fabric(nvml: Nvml, handle: Any) -> Sequence[int]:
    info = _FabricInfo(version=_FABRIC_VERSION)
    nvml.call("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
    return [int(info.state), int(info.status), int(info.health)]


def _links(nvml: Nvml, handle: Any) -> Sequence[int]:
    """Links that are active, and links that there are; whether one leads to a switch; errors of each kind."""
    states, switch, errors = nvml.link_states(handle), 0, [0] * _LINK_ERRORS
    for link, is_active in enumerate(states):
        if not is_active:
            continue
        # Neither is known to every driver.
        with contextlib.suppress(DriverError):
            switch |= nvml.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _SWITCH
        with contextlib.suppress(DriverError):
            for what in range(_LINK_ERRORS):
                errors[what] += nvml.number(
                    "nvmlDeviceGetNvLinkErrorCounter", handle, link, what, kind=ctypes.c_ulonglong
                )
    return [sum(states), len(states), int(switch), *errors]


def _number(function: str) -> Callable[[Nvml, Any], Sequence[int]]:
    return lambda nvml, handle: [nvml.number(function, handle)]


#: What is read of a GPU -> how; a function's values belong to its names in this order.
_READ: Mapping[tuple[str, ...], Callable[[Nvml, Any], Sequence[int]]] = {
    ("corrected errors", "uncorrected errors", "corrected errors, lifetime", "uncorrected errors, lifetime"): _ecc,
    ("rows remapped, corrected", "rows remapped, uncorrected", "remapping pending", "remapping failed"): (
        lambda nvml, handle: nvml.numbers("nvmlDeviceGetRemappedRows", handle, 4)
    ),
    ("retirement pending",): _number("nvmlDeviceGetRetiredPagesPendingStatus"),
    ("recovery action",): _recovery,
    ("PCIe replays",): _number("nvmlDeviceGetPcieReplayCounter"),
    ("largest PCIe generation",): _number("nvmlDeviceGetMaxPcieLinkGeneration"),
    ("the GPU's PCIe generation",): _number("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    ("largest PCIe width",): _number("nvmlDeviceGetMaxPcieLinkWidth"),
    ("fabric state", "fabric status", "fabric health"): _fabric,
    ("links", "all links", "switch", "link replays", "link recoveries", "link CRC flit", "link CRC data"): _links,
    ("persistence mode",): _number("nvmlDeviceGetPersistenceMode"),
}


def read(nvml: Nvml, handle: Any) -> tuple[dict[str, int], dict[str, str], dict[str, str]]:
    """A GPU's values, the errors of those that could not be read, and why it lacks others; each by name."""
    values: dict[str, int] = {}
    errors: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for names, function in _READ.items():
        try:
            values.update(zip(names, function(nvml, handle)))
        except DriverError as error:
            # An older driver knows the function, and not what it is asked for: fields, links.
            is_fault = error.is_fault and error.number != INVALID_ARGUMENT
            (errors if is_fault else lacking).update(dict.fromkeys(names, str(error)))
    return values, errors, lacking


def fabric_faults(health: int) -> list[str]:
    """What a fabric's health says is wrong."""
    found = [name for shift, name in _FABRIC_FAULTS.items() if health >> shift & 3 == 1]
    configuration = health >> _FABRIC_CONFIGURATION & 15
    if configuration > 1:
        found.append(f"a wrong configuration ({configuration})")
    return found


@dataclass
class Watched:
    """What was seen of a GPU while checks ran.

    before: its values before the first check.
    samples: how many there are.
    busy: in how many of them a kernel ran.
    reasons: why clocks were lowered -> in how many busy samples.
    generation: the largest PCIe generation of samples with traffic; None without one.
    width: the smallest PCIe width of samples with traffic; None without one.
    xids: numbers of its Xid errors, in order.
    problems: what could not be sampled -> why.
    at: time of the last sample, in seconds of the monotonic clock.
    """

    before: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    busy: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    generation: int | None = None
    width: int | None = None
    xids: list[int] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    at: float = 0.0

    def sample(self, nvml: Nvml, handle: Any) -> None:
        """Sample it now."""
        self.samples += 1
        self.at = time.monotonic()
        # Copies are no kernels: they leave a GPU idle.
        with self.problem("PCIe"):
            if max(nvml.number("nvmlDeviceGetPcieThroughput", handle, way) for way in _BOTH_WAYS) >= _TRAFFIC:
                generation = nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", handle)
                width = nvml.number("nvmlDeviceGetCurrPcieLinkWidth", handle)
                self.generation = max(generation, self.generation or generation)
                self.width = min(width, self.width or width)
        with self.problem("clocks"):
            if nvml.utilization(handle):
                self.busy += 1
                for reason in reasons(nvml, handle):
                    self.reasons[reason] = self.reasons.get(reason, 0) + 1

    @contextlib.contextmanager
    def problem(self, what: str) -> Iterator[None]:
        """Record why something can't be sampled."""
        try:
            yield
        except DriverError as error:
            self.problems[what] = str(error)


def start_watch(request_path: Path, folder: Path) -> int:
    """Start the process that watches all GPUs until it is ended, and wait for its first sample; returns its PID.

    request_path: of the request as the checks read it. folder: for its files; FILE is what it reports.
    Raises:
        OSError: it can't be started.
    """
    process = isolation.start("--watch", request_path, folder)
    deadline = time.monotonic() + _READY_S
    while not (folder / FILE).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.pid


def work(context: CheckContext) -> None:
    """The process that watches: until it is ended, write what it sees."""
    path = context.scratch.with_name(FILE)
    boards = context.request.driver.boards if context.request.driver else ()
    with open_nvml() as nvml:
        handles = {}
        for board in boards:
            # A lost GPU has been reported.
            with contextlib.suppress(DriverError):
                handles[board.index] = nvml.handle("nvmlDeviceGetHandleByIndex_v2", board.index)
        watched = {index: Watched(before=read(nvml, handle)[0]) for index, handle in handles.items()}
        events = ctypes.c_void_p()
        nvml.call("nvmlEventSetCreate", ctypes.byref(events))
        for index, handle in handles.items():
            with watched[index].problem("Xid"):
                nvml.call("nvmlDeviceRegisterEvents", handle, ctypes.c_ulonglong(_XID), events)
        by_handle = {handle.value: watched[index] for index, handle in handles.items()}
        due = 0.0
        while handles:
            if time.monotonic() >= due:
                for index, handle in handles.items():
                    watched[index].sample(nvml, handle)
                due = time.monotonic() + _PERIOD_S
            _write(path, watched)
            left_s = max(0.0, due - time.monotonic())
            if all("Xid" in each.problems for each in watched.values()):
                # Without a GPU in it, the wait for the set's next event may end at once.
                time.sleep(left_s)
            else:
                _wait(nvml, events, by_handle, left_s)


def _wait(nvml: Nvml, events: ctypes.c_void_p, by_handle: Mapping[Any, Watched], seconds: float) -> None:
    """Wait for one Xid error, and record it."""
    data = _EventData()
    try:
        nvml.call("nvmlEventSetWait_v2", events, ctypes.byref(data), int(1000 * seconds))
    except DriverError as error:
        if error.number != _TIMEOUT:
            for each in by_handle.values():
                each.problems["Xid"] = str(error)
            time.sleep(seconds)
        return
    if data.type == _XID and data.device in by_handle:
        by_handle[data.device].xids.append(int(data.data))


def _write(path: Path, watched: Mapping[int, Watched]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps({index: asdict(each) for index, each in watched.items()}), encoding="utf-8")
    part.replace(path)


def read_watch(path: Path) -> dict[int, Watched]:
    """What was seen until now, by a GPU's number in NVML; empty without a report. Waits for a last sample."""
    began = time.monotonic()
    watched: dict[int, Watched] = {}
    while path.exists() and time.monotonic() < began + _LATE_S:
        with contextlib.suppress(OSError, ValueError):
            rows = json.loads(path.read_text(encoding="utf-8"))
            watched = {int(index): Watched(**each) for index, each in rows.items()}
            if all(each.at > began for each in watched.values()):
                return watched
        time.sleep(_PERIOD_S / 20)
    for each in watched.values():
        problem = f"NVML has answered nothing for the last {time.monotonic() - each.at:.0f} s"
        each.problems.update(dict.fromkeys(("Xid", "PCIe", "clocks"), problem))
    return watched
