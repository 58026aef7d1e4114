"""Real stacks, installed from their committed locks: what the conformance suite is tried on.

An environment of a torch stack takes 8 GB and a minute. It is made once and kept where tests keep what is costly; a
test that breaks one works on a copy (`copied`), whose files share their bytes with the first until they are replaced.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from bench.workshop import uv
from tests.support.engine import NotRun
from tests.support.standin import cache_folder

ROOT: Final = Path(__file__).parents[2]
#: lock -> the series of its Python.
SERIES: Final = {"pytorch-2.9": "3.11", "pytorch-2.6": "3.10"}
DISK_BYTES: Final = 12_000_000_000
_LIMIT_S: Final = 1200


def stack(name: str) -> Path:
    """The Python of an environment that holds what the lock `name` says. Others use it too: leave it as it is.

    Raises:
        NotRun: no Python of the series, no room, or no index to install from.
    """
    if name not in SERIES or os.uname().machine != "x86_64":
        raise NotRun(f"{name} is for x86-64 Linux")
    requirements = ROOT / "locks" / name / "requirements.linux-64.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / "stacks" / f"{name}-{digest}"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder, SERIES[name], requirements)
    return folder / "bin" / "python"


def copied(python: Path, folder: Path) -> Path:
    """The Python of a copy of an environment, by hard links: replace its files, never write into them."""
    shutil.copytree(python.parents[1], folder, symlinks=True, copy_function=os.link)
    # Python finds its environment by where it was called; the programs in bin/ still name the first.
    return folder / "bin" / "python"


def site_packages(python: Path) -> Path:
    """Where an environment's packages are."""
    (found,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    return found


def replace(path: Path, content: bytes) -> None:
    """Another content for a file that may be linked elsewhere."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(content)
    shutil.copymode(path, beside)
    beside.replace(path)


def install(python: Path, *requirements: str) -> None:
    """Put packages into an environment as they are, whatever they need beside them, from the index.

    Raises:
        NotRun: the index does not give them.
    """
    done = _uv("pip", "install", "--quiet", "--python", str(python), "--no-deps", *requirements)
    if done.returncode:
        raise NotRun(f"{' '.join(requirements)} can't be installed: {done.stderr.strip().splitlines()[-1:]}")


def _uv(*words: str) -> subprocess.CompletedProcess[str]:
    """Run uv as this machine's configuration of pip and uv has no say in."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    environ |= {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    environ |= {key: os.environ[key] for key in ("UV_CACHE_DIR",) if key in os.environ}
    return subprocess.run(
        [str(uv()), *words], env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )


def _install(folder: Path, series: str, requirements: Path) -> None:
    if shutil.disk_usage(folder.parent).free < DISK_BYTES:
        raise NotRun(f"less than {DISK_BYTES / 1e9:.0f} GB are free at {folder.parent}")
    shutil.rmtree(folder, ignore_errors=True)
    python = _interpreter(series)
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=_LIMIT_S)
    words = ["--quiet", "--python", str(folder / "bin" / "python"), "--require-hashes", "--no-deps"]
    done = _uv("pip", "install", *words, "-r", str(requirements))
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise NotRun(f"the stack can't be installed: {done.stderr.strip().splitlines()[-1:]}")
    (folder / "complete").touch()


def _interpreter(series: str) -> str:
    """One on PATH that runs: shims of version managers may lead nowhere."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = Path(folder, f"python{series}")
        ask = [str(found), "-c", "import venv, sys; print('%d.%d' % sys.version_info[:2])"]
        if found.exists() and subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() == series:
            return str(found)
    raise NotRun(f"no Python {series} on PATH")
