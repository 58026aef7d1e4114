"""What this machine is, as far as a receipt tells of it: GPUs and how they are joined, driver, kernel, CPU, memory."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envspec.conformance import nvidia


def no_gpu() -> str:
    """Why no GPU can be tested here; empty where one can."""
    try:
        nvidia.devices()
    except nvidia.NoDriver as reason:
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
    with contextlib.suppress(nvidia.NoDriver), nvidia.nvml() as nvml:
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
