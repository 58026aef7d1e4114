"""Machines that tests run on, real ones and ones that they make; a test says why it cannot have what it needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from _pytest.outcomes import Skipped


class NotRun(Skipped):
    """Why a test does not run on this machine, in words for the list of skipped tests.

    pytest's own, since its hooks in a `conftest.py` of a folder do not see fixtures of the session.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"not run: {why}")


def program(name: str) -> str:
    """The path of an installed program. PATH of users is searched, and the folders for administrators."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise NotRun(f"{name} is not installed")
    return found


@cache
def interpreters(series: str) -> dict[str, Path]:
    """Exact version -> a CPython of a series with `venv`: those on PATH, and pyenv's. Shims are not among them."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders: list[str | Path] = [
        *os.environ.get("PATH", "").split(os.pathsep),
        *sorted(root.glob(f"versions/{series}.*/bin")),
    ]
    found: dict[str, Path] = {}
    for folder in folders:
        path = Path(folder, f"python{series}")
        code = "import json, platform, sys, venv; print(json.dumps([platform.python_version(), sys.executable]))"
        if not path.exists():
            continue
        done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            version, executable = json.loads(done.stdout)
            found.setdefault(version, Path(executable))
    return {version: path for version, path in found.items() if version.startswith(f"{series}.")}
