"""Real stacks, installed from their committed locks: what the conformance suite is tried on.

An environment of a torch stack takes 8 GB and a minute. It is made once and kept where tests keep what is costly; a
test that breaks one works on a copy (`copied`), whose files share their bytes with the first until they are replaced.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Final

from bench.workshop import uv
from tests.support.engine import NotRun
from tests.support.standin import cache_folder

ROOT: Final = Path(__file__).parents[2]
#: lock -> the series of its Python.
SERIES: Final = {"pytorch-2.9": "3.11", "pytorch-2.6": "3.10"}
DISK_BYTES: Final = 12_000_000_000
#: Names the wheel of a torch without CUDA, where PyTorch's own index can't be reached.
CPU_TORCH: Final = "ENVSPEC_TEST_CPU_TORCH"
CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
#: What is taken from that index: any release shows the same.
_CPU_RELEASE: Final = "2.9.1"
_LIMIT_S: Final = 1200
#: For an index that does not answer.
_REACH_S: Final = 5


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


def cpu_torch_beside_the_indexs_torchvision(folder: Path) -> Path:
    """The Python of a new environment, as it comes of two commands: torch from CPU builds, then torchvision.

    torchvision's release is that of torch, and torch's `==2.9.1` takes `2.9.1+cpu` as well: no resolver sees a fault.

    Raises:
        NotRun: not x86-64 Linux (elsewhere the index's builds are for the CPU), no wheel and no index of PyTorch's, or
            the index does not give the rest.
    """
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        raise NotRun("the index's torchvision is built for CUDA on x86-64 Linux alone")
    release, *words = _cpu_torch()
    python = folder / "bin" / "python"
    subprocess.run([_interpreter("3.11"), "-m", "venv", "--without-pip", str(folder)], check=True, timeout=_LIMIT_S)
    # From 2.0 on torchvision's minor number is torch's and 15.
    for each in (words, [f"torchvision==0.{int(release.split('.')[1]) + 15}.*"]):
        done = _uv("pip", "install", "--quiet", "--python", str(python), *each)
        if done.returncode:
            raise NotRun(f"{each[0]} can't be installed: {done.stderr.strip().splitlines()[-1:]}")
    return python


def _cpu_torch() -> tuple[str, ...]:
    """Its release, and uv's words for it."""
    if named := os.environ.get(CPU_TORCH):
        found = re.fullmatch(r"torch-(2\.[0-9.]+)\+cpu-.*\.whl", Path(named).name)
        if found is None or not Path(named).is_file():
            raise NotRun(f"{CPU_TORCH} has to name a file torch-2.*+cpu-*.whl")
        return found[1], str(Path(named).absolute())
    try:
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=_REACH_S).close()
    except OSError as fault:
        raise NotRun(f"{CPU_INDEX} can't be reached ({fault}), and {CPU_TORCH} names no wheel") from fault
    return _CPU_RELEASE, f"torch=={_CPU_RELEASE}+cpu", "--index", CPU_INDEX


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
    # Once for all the processes that import it, none of which writes into it.
    words.append("--compile-bytecode")
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
