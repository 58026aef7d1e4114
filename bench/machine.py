"""What the numbers were measured on. No host names, no paths: the results are published."""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime, timezone
from pathlib import Path


def describe() -> dict[str, str]:
    """The machine in words: CPU, cores, memory, system, Python, and the day."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cpu": _field("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": _field("/etc/os-release", r'PRETTY_NAME="?([^"\n]+)') or platform.system(),
        "kernel": re.split(r"[-+]", platform.release())[0],
        "python": platform.python_version(),
        "load at the start": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _field(file: str, pattern: str) -> str | None:
    path = Path(file)
    found = re.search(pattern, path.read_text()) if path.exists() else None
    return found[1].strip() if found else None
