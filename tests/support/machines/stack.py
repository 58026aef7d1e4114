"""Real stacks, installed from their committed locks, and stacks that compute wrongly.

An environment of a torch stack takes 8 GB and a minute. It is made once and kept where tests keep what is costly; a
test that breaks one works on a copy (`copied`), whose files share their bytes with the first until they are replaced.

A fault comes with Python's start, since the suite itself has no place for one: a folder on PYTHONPATH has a
`sitecustomize.py` that waits for a module and replaces one of its functions once it is loaded. Every process of the
suite that uses that Python is hit, a rank of torchrun's too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import textwrap
import urllib.request
from pathlib import Path
from typing import Final

from packaging.version import Version
from uv import find_uv_bin

from tests.support.machines import NotRun, interpreters
from tests.support.machines.standin import cache_folder

ROOT: Final = Path(__file__).parents[3]
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
    copy = folder / "bin" / "python"
    _run_programs_with(python, copy)
    return copy


def _run_programs_with(python: Path, copy: Path) -> None:
    """Let the programs beside a copied Python name it and no longer the first one."""
    for program in copy.parent.iterdir():
        if program.is_symlink() or not program.is_file():
            continue
        content = program.read_bytes()
        if content.startswith(b"#!") and bytes(python) in content:
            replace(program, content.replace(bytes(python), bytes(copy)))


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
    _install_into(python, *requirements, "--no-deps")


def cpu_torch(folder: Path) -> Path:
    """The Python of a new environment with a torch for the CPU.

    Raises:
        NotRun: not x86-64 Linux, no wheel and no index of PyTorch's, or the index does not give the rest.
    """
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        raise NotRun("the index's torch is built for CUDA on x86-64 Linux alone")
    words = _cpu_torch()
    python = folder / "bin" / "python"
    subprocess.run([interpreter("3.11"), "-m", "venv", "--without-pip", str(folder)], check=True, timeout=_LIMIT_S)
    _install_into(python, *words)
    return python


def _install_into(python: Path, *words: str) -> None:
    done = run_uv("pip", "install", "--quiet", "--python", str(python), *words)
    if done.returncode:
        raise NotRun(f"{' '.join(words)} can't be installed: {done.stderr.strip().splitlines()[-1:]}")


def _cpu_torch() -> tuple[str, ...]:
    """uv's words for it."""
    if named := os.environ.get(CPU_TORCH):
        return (str(Path(named).absolute()),)
    try:
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=_REACH_S).close()
    except OSError as fault:
        raise NotRun(f"{CPU_INDEX} can't be reached ({fault}), and {CPU_TORCH} names no wheel") from fault
    return f"torch=={_CPU_RELEASE}+cpu", "--index", CPU_INDEX


def run_uv(*words: str) -> subprocess.CompletedProcess[str]:
    """Run uv as this machine's configuration of pip and uv has no say in."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    environ |= {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    environ |= {key: os.environ[key] for key in ("UV_CACHE_DIR",) if key in os.environ}
    return subprocess.run(
        [find_uv_bin(), *words], env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )


def _install(folder: Path, series: str, requirements: Path) -> None:
    if shutil.disk_usage(folder.parent).free < DISK_BYTES:
        raise NotRun(f"less than {DISK_BYTES / 1e9:.0f} GB are free at {folder.parent}")
    shutil.rmtree(folder, ignore_errors=True)
    python = interpreter(series)
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=_LIMIT_S)
    words = ["--quiet", "--python", str(folder / "bin" / "python"), "--require-hashes", "--no-deps"]
    # Once for all the processes that import it, none of which writes into it.
    words.append("--compile-bytecode")
    done = run_uv("pip", "install", *words, "-r", str(requirements))
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise NotRun(f"the stack can't be installed: {done.stderr.strip().splitlines()[-1:]}")
    (folder / "complete").touch()


def interpreter(series: str) -> str:
    """The newest CPython of a series: some packages exclude early patches. Raises NotRun if there is none."""
    if not (found := interpreters(series)):
        raise NotRun(f"no Python {series} on PATH")
    return str(found[max(found, key=Version)])


_HOOK: Final = """
import importlib.abc
import importlib.util
import sys


def spoil({name}):
{body}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "{module}":
            return None
        # Who only asks whether it is there gets the fault all the same when it imports.
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if found is None or found.loader is None:
            return found
        load = found.loader.exec_module

        def exec_module(module):
            load(module)
            spoil(module)

        found.loader.exec_module = exec_module
        return found


sys.meta_path.insert(0, Finder())
"""


def spoiled(folder: Path, body: str, module: str = "torch") -> dict[str, str]:
    """The variables under which every Python has a fault in a module.

    folder: made, for what Python finds first. body: statements that run when the module was imported, which they know
    by its last name (`torch.distributed` as `distributed`).
    """
    folder.mkdir(parents=True)
    hook = _HOOK.format(
        name=module.rpartition(".")[2], module=module, body=textwrap.indent(textwrap.dedent(body).strip(), "    ")
    )
    (folder / "sitecustomize.py").write_text(hook, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def spoiled_product(folder: Path, body: str) -> dict[str, str]:
    """The variables under which `torch.matmul` and `@` of matrices in anything but fp64 are wrong.

    body: statements that know `left`, `right` and the true `product(left, right)`, and return a matrix.
    """
    return spoiled(
        folder,
        f"""
        product = torch.Tensor.__matmul__

        def spoil(left, right):
{textwrap.indent(textwrap.dedent(body).strip(), " " * 12)}

        def wrong(left, right):
            is_hit = left.dim() == right.dim() == 2 and left.dtype != torch.float64
            return spoil(left, right) if is_hit else product(left, right)

        torch.Tensor.__matmul__ = torch.matmul = wrong
        """,
    )


def at_loss(folder: Path, body: str, *, rank: int = 1, step: int = 2) -> dict[str, str]:
    """The variables under which one rank of a distributed check does something before the loss of a step.

    body: statements, which know `torch` and `input`, the outputs of the model.
    """
    return spoiled(
        folder,
        f"""
        import os
        loss, steps = torch.nn.functional.mse_loss, []

        def act(input):
{textwrap.indent(textwrap.dedent(body).strip(), " " * 12)}

        def wrong(input, *others, **named):
            steps.append(None)
            if os.environ.get("RANK") == "{rank}" and len(steps) == {step}:
                act(input)
            return loss(input, *others, **named)

        torch.nn.functional.mse_loss = wrong
        """,
    )


def spoiled_ddp(folder: Path, body: str) -> dict[str, str]:
    """The variables under which DistributedDataParallel has a fault.

    body: statements after its `__init__`, which know it as `replica`, and `dist`, that is `torch.distributed`.
    """
    return spoiled(
        folder,
        f"""
        import torch.distributed as dist
        begin = distributed.DistributedDataParallel.__init__

        def spoil(replica):
{textwrap.indent(textwrap.dedent(body).strip(), " " * 12)}

        def wrong(replica, *given, **named):
            begin(replica, *given, **named)
            spoil(replica)

        distributed.DistributedDataParallel.__init__ = wrong
        """,
        "torch.nn.parallel.distributed",
    )
