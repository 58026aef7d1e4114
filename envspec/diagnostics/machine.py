"""The machine that a lock is to run on: its platform, driver and GPUs, as read here or as somebody describes them."""

from __future__ import annotations

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

#: The driver's own file, there as soon as its kernel module is loaded.
DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")

_PLATFORMS: Final = {
    ("linux", "x86_64"): Platform.LINUX_64,
    ("linux", "aarch64"): Platform.LINUX_AARCH64,
    ("darwin", "arm64"): Platform.OSX_ARM64,
    ("win32", "amd64"): Platform.WIN_64,
}


class MachineSource(Enum):
    """How a machine is known: a missing value is absent (READ) or was not given (DESCRIBED)."""

    READ = "read"
    DESCRIBED = "described"


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """name: as NVML or the user says it. capability: None if neither NVML nor the facts have it."""

    name: str
    capability: ComputeCapability | None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Nvml:
    """What NVML says. driver: None where it does not answer; problem then says why."""

    driver: str | None
    gpus: tuple[MachineGpu, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """driver: the Linux driver's version, None without one. problem: why GPUs could not be read; empty if they were."""

    platform: Platform
    driver: str | None
    gpus: tuple[MachineGpu, ...]
    problem: str = ""
    source: MachineSource = MachineSource.READ


def this_platform() -> Platform:
    """This machine's conda subdir.

    Raises:
        UnfitMachine: a system or processor that envspec does not lock for.
    """
    found = _PLATFORMS.get((sys.platform, platform.machine().lower()))
    if found is None:
        raise UnfitMachine(
            f"envspec locks nothing for {sys.platform} on {platform.machine()}",
            hint=f"platforms: {', '.join(each.value for each in Platform)}",
        )
    return found


def ask_nvml() -> Nvml:
    """Driver and GPUs by NVIDIA's management library; a machine without it gives a `problem`, never an exception."""
    import pynvml  # type: ignore[import-untyped]  # nvidia-ml-py ships no types

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Nvml(None, (), f"NVML does not answer: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(
            MachineGpu(
                str(pynvml.nvmlDeviceGetName(handle)),
                ComputeCapability(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
                int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20,
            )
            for handle in handles
        )
        return Nvml(str(pynvml.nvmlSystemGetDriverVersion()), gpus)
    except pynvml.NVMLError as error:
        return Nvml(None, (), f"NVML failed: {error}")
    finally:
        pynvml.nvmlShutdown()


def read_machine(driver_file: Path = DRIVER_FILE, nvml: Callable[[], Nvml] = ask_nvml) -> Machine:
    """This machine. The driver's version is NVML's, else the one in its kernel module's file.

    Raises:
        UnfitMachine: a system or processor that envspec does not lock for.
    """
    answer = nvml()
    return Machine(this_platform(), answer.driver or _driver_of_file(driver_file), answer.gpus, answer.problem)


def described_machine(where: Platform, driver: str | None, gpus: tuple[str, ...], facts: Facts) -> Machine:
    """A machine that somebody describes (`--driver 550.54.15 --gpu H100`); what they leave out is not asked about.

    Raises:
        UnknownGpu: a name that no row has; the hint has the nearest ones.
    """
    rows = [find_gpu(facts, name) for name in gpus]
    described = tuple(MachineGpu(row.name, capability_of(row)) for row in rows)
    return Machine(where, driver, described, source=MachineSource.DESCRIBED)


def _driver_of_file(path: Path) -> str | None:
    """`NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build`"""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return found[1] if found else None
