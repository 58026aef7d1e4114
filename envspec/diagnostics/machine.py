"""The machine that a lock is to run on: its platform, driver and GPUs, as read from it or as described by the user."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from envspec.errors import UnfitMachine
from envspec.facts import Facts
from envspec.facts.gpu import ComputeCapability, capability_of, find_gpu
from envspec.models import Platform

#: The driver's own file; exists while its kernel module is loaded.
DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")
_PLATFORMS: Final = {
    ("linux", "x86_64"): Platform.LINUX_64,
    ("linux", "aarch64"): Platform.LINUX_AARCH64,
    ("darwin", "arm64"): Platform.OSX_ARM64,
    ("win32", "amd64"): Platform.WIN_64,
}


class MachineSource(Enum):
    """Whether missing values do not exist (READ), or are unknown (DESCRIBED)."""

    READ = "read"
    DESCRIBED = "described"


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """capability: None if neither NVML nor the facts have it."""

    name: str
    capability: ComputeCapability | None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """driver: None if NVML does not work; problem is the reason then."""

    driver: str | None
    gpus: tuple[MachineGpu, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """driver: version of the Linux driver, None without one. problem: why GPUs could not be read."""

    platform: Platform
    driver: str | None
    gpus: tuple[MachineGpu, ...]
    problem: str = ""
    source: MachineSource = MachineSource.READ

    @property
    def is_described(self) -> bool:
        return self.source is MachineSource.DESCRIBED


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
    """Driver and GPUs; without NVML a reading with a `problem`, never an exception."""
    from envspec.conformance.hardware import NoDriver, open_nvml

    try:
        with open_nvml() as nvml:
            gpus = tuple(
                MachineGpu(gpu.name, ComputeCapability.parse(gpu.compute_capability), gpu.memory_bytes // 2**20)
                for gpu in nvml.gpus()
            )
            return NvmlReading(nvml.driver(), gpus)
    except NoDriver as error:
        return NvmlReading(None, (), str(error))


def read_machine(driver_file: Path = DRIVER_FILE, nvml: Callable[[], NvmlReading] = read_nvml) -> Machine:
    """This machine. The driver's version is NVML's, else that of its kernel module.

    Raises:
        UnfitMachine: envspec does not lock for its system or processor.
    """
    reading = nvml()
    driver = reading.driver
    if driver is None:
        with contextlib.suppress(OSError):
            driver = module_version(driver_file.read_text(encoding="utf-8", errors="replace"))
    return Machine(this_platform(), driver, reading.gpus, reading.problem)


def module_version(text: str) -> str | None:
    """`NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build` -> `570.124.06`."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return found[1] if found else None


def described_machine(where: Platform, driver: str | None, gpus: tuple[str, ...], facts: Facts) -> Machine:
    """A machine as the user describes it (`--driver 550.54.15 --gpu H100`).

    Raises:
        UnknownGpu: a name that is not in the facts; the hint lists the nearest ones.
    """
    rows = [find_gpu(facts, name) for name in gpus]
    described = tuple(MachineGpu(row.name, capability_of(row)) for row in rows)
    return Machine(where, driver, described, source=MachineSource.DESCRIBED)
