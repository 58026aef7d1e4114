"""CPU and memory of this machine, and which code a GPU runs.

SASS (`sm_80`) runs on GPUs of its own major compute capability whose minor is equal or higher; not between Tegra parts
and others. PTX (`compute_120`) is compiled by the driver for any GPU that is not older. A suffix `a` is for one
capability alone, `f` for one major. Source: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility".
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """The machine as this process sees it, by the receipt's keys; without its GPUs, and without what can't be read.

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
        "environment": {name: os.environ[name] for name in sorted(os.environ) if _VARIABLES.match(name)},
    }
    return {name: value for name, value in values.items() if value not in (None, "")}


#: Variables that change what CUDA, its libraries, NCCL and torch do.
_VARIABLES = re.compile(r"(CUDA|NCCL|TORCH|PYTORCH|CUBLAS)_|NVIDIA_TF32_OVERRIDE$")


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
#: Integrated GPUs of the Jetson line: their SASS is theirs alone.
TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7)})


def runs_any(architectures: Iterable[str], gpu: tuple[int, int]) -> bool:
    """Whether a GPU runs code for one of these. gpu: its compute capability."""
    return any(_runs(each, gpu) for each in architectures)


def _runs(architecture: str, gpu: tuple[int, int]) -> bool:
    found = _ARCHITECTURE.fullmatch(architecture)
    if not found:
        return False
    built, is_sass, suffix = (int(found[2]), int(found[3])), found[1] == "sm", found[4]
    if suffix == "a" or (is_sass and {built, gpu} & TEGRA):
        return built == gpu
    if is_sass or suffix == "f":
        return built[0] == gpu[0] and built <= gpu
    return built <= gpu
