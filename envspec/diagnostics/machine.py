"""The machine that a lock is to run on: its platform, driver and GPUs, as read from it or as described by the user."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.conformance.nvml import DRIVER_FILE, module_version
from envspec.errors import UnfitMachine
from envspec.facts import Facts
from envspec.facts.gpu import ComputeCapability, capability_of, find_gpu
from envspec.models import Platform

#: For NVML to report all GPUs.
_NVML_S: Final = 60.0
_PLATFORMS: Final = {
    ("linux", "x86_64"): Platform.LINUX_64,
    ("linux", "aarch64"): Platform.LINUX_AARCH64,
    ("darwin", "arm64"): Platform.OSX_ARM64,
    ("win32", "amd64"): Platform.WIN_64,
}


class MachineGpu(Struct, frozen=True):
    """capability: None if neither NVML nor the facts have it."""

    name: str
    capability: ComputeCapability | None
    memory_mib: int | None = None


class NvmlReading(Struct, frozen=True):
    """driver: None if NVML does not work; problem is the reason then."""

    driver: str | None
    gpus: tuple[MachineGpu, ...]
    problem: str = ""


class Machine(Struct, frozen=True):
    """driver: version of the Linux driver, None without one. problem: why GPUs could not be read.

    is_described: whether what is missing is unknown, and not known to be missing.
    """

    platform: Platform
    driver: str | None
    gpus: tuple[MachineGpu, ...]
    problem: str = ""
    is_described: bool = False

    @property
    def gpu_names(self) -> str:
        """As a list for messages."""
        return ", ".join(gpu.name for gpu in self.gpus)


def this_platform() -> Platform:
    """This machine's conda subdir.

    Raises:
        UnfitMachine: envspec does not lock for its system or processor.
    """
    found = _PLATFORMS.get((sys.platform, platform.machine().lower()))
    if found is None:
        raise UnfitMachine(
            f"envspec locks nothing for {sys.platform} on {platform.machine()}",
            hint=f"platforms: {', '.join(each.value for each in Platform)}",
        )
    return found


def read_nvml() -> NvmlReading:
    """Driver and GPUs; without NVML, or if it does not respond, a reading with a `problem`, never an exception."""
    readings: list[NvmlReading] = []
    # A call to a GPU that is stuck never returns.
    thread = threading.Thread(target=lambda: readings.append(_read_nvml()), daemon=True)
    thread.start()
    thread.join(_NVML_S)
    return readings[0] if readings else NvmlReading(None, (), f"NVML does not respond within {_NVML_S:g} s")


def _read_nvml() -> NvmlReading:
    from envspec.conformance.nvml import DriverError, open_nvml, read_board

    try:
        with open_nvml() as nvml:
            boards = [read_board(nvml, index)[1] for index in range(nvml.number("nvmlDeviceGetCount_v2"))]
            version = nvml.text("nvmlSystemGetDriverVersion")
    except OSError as error:
        return NvmlReading(None, (), f"NVML is not installed ({error})")
    except DriverError as error:
        return NvmlReading(None, (), f"NVML failed: {error}")
    gpus, faults = [], []
    for board in boards:
        if board.errors:
            faults.append(f"GPU {board.index}: {', '.join(board.errors.values())}")
        if board.name:
            capability = None
            if board.compute_capability:
                capability = ComputeCapability.parse(board.compute_capability)
            gpus.append(MachineGpu(board.name, capability, board.memory_bytes and board.memory_bytes // 2**20))
    return NvmlReading(version, tuple(gpus), "; ".join(faults))


def read_machine(driver_file: Path = DRIVER_FILE, nvml: Callable[[], NvmlReading] = read_nvml) -> Machine:
    """This machine. The driver's version is NVML's, else that of its kernel module.

    Raises:
        UnfitMachine: envspec does not lock for its system or processor.
    """
    reading = nvml()
    driver = reading.driver or module_version(driver_file) or None
    return Machine(this_platform(), driver, reading.gpus, reading.problem)


def described_machine(where: Platform, driver: str | None, gpus: tuple[str, ...], facts: Facts) -> Machine:
    """A machine as the user describes it (`--driver 550.54.15 --gpu H100`).

    Raises:
        UnknownGpu: a name that is not in the facts; the hint lists the nearest ones.
    """
    described = []
    for name in gpus:
        row = find_gpu(facts, name)
        described.append(MachineGpu(row.name, capability_of(row)))
    return Machine(where, driver, tuple(described), is_described=True)
