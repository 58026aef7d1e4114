"""What it costs to start: `--help` and `lock --check` run on every change and every key that completes a word.

A lock that was made on this machine is checked by its hashes; what another one says is computed again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from shutil import copyfile, copytree
from typing import Final

import pytest

from envspec.io.store import Store
from envspec.operations.lock.cache import remember_ours
from tests.support.user import ROOT, command_line, environment

#: A program of the least that is needed, and how many times its CPU envspec may take: what the project promises.
STARTS: Final = ("pass", 8.0)
#: Parsing depends on the machine in another way than starting.
PARSES: Final = ("from envspec import documents; documents.parse_toml(open(LOCK).read())", 3.0)
#: Of a check that computes a lock again: it imports pydantic, packaging and what decides a lock.
COMPUTES: Final = ("pass", 60.0)
RUNS: Final = 7
ROUNDS: Final = 3
HEAVY: Final = ("pydantic", "aiohttp", "packaging", "rich", "asyncio", "uv", "tomlkit", "platformdirs")
_COMMANDS: Final = [("--help",), ("--version",), ("lock", "--check", "pytorch-2.9")]
#: Runs the command line and tells on stderr which of the heavy modules are there when it ends.
_TELL: Final = f"""
import os, sys
from envspec.cli.main import main
def leave(code, end=os._exit):
    print("heavy:", *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
    end(code)
os._exit = leave
main()
"""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "wait4"), reason="wait4, which reports the CPU of one child, is POSIX's"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed spec and its lock, as if it had been made here."""
    cwd = tmp_path_factory.mktemp("startup")
    (cwd / "specs").mkdir()
    copyfile(ROOT / "specs/pytorch-2.9.toml", cwd / "specs/pytorch-2.9.toml")
    copytree(ROOT / "locks/pytorch-2.9", cwd / "locks/pytorch-2.9")
    cache = Path(environment(cwd)["ENVSPEC_CACHE_DIR"])
    cache.mkdir(mode=0o700)
    with closing(Store(cache)) as store:
        remember_ours(store, (cwd / "locks/pytorch-2.9/envspec.lock").read_bytes())
    return cwd


def cpu_s(command: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> float:
    """User and system time of one run, in seconds."""
    process = subprocess.Popen(command, cwd=cwd, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return float(usage.ru_utime + usage.ru_stime)


def ratio(words: Sequence[str], least: str, cwd: Path, **more: str) -> float:
    """CPU of envspec over that of an interpreter that runs `least`: medians of runs that take turns."""
    environ = {**environment(cwd), **more}
    program = least.replace("LOCK", repr("locks/pytorch-2.9/envspec.lock"))
    pairs = [
        (cpu_s([sys.executable, "-c", program], cwd, environ), cpu_s(command_line(words), cwd, environ))
        for _ in range(RUNS)
    ]
    return statistics.median(ours for _, ours in pairs) / statistics.median(nothing for nothing, _ in pairs)


@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_cpu_is_within_the_budget(project: Path, words: tuple[str, ...]) -> None:
    within(PARSES if "--check" in words else STARTS, words, project)


def test_cpu_of_a_lock_of_another_machine_is_within_the_budget(project: Path, tmp_path: Path) -> None:
    # Without a cache no run knows of the one before.
    within(COMPUTES, ("lock", "--check", "pytorch-2.9"), project, ENVSPEC_CACHE_DIR=str(tmp_path / "none"))


def within(budget: tuple[str, float], words: Sequence[str], project: Path, **more: str) -> None:
    """Best of a few rounds: a neighbour on the same core can spoil one, and cannot make one better."""
    cpu_s(command_line(words), project, {**environment(project), **more})  # writes the .pyc files
    measured: list[float] = []
    least, most = budget
    while len(measured) < ROUNDS and (not measured or min(measured) > most):
        measured.append(ratio(words, least, project, **more))
    assert min(measured) <= most, f"`python -X importtime -m envspec {' '.join(words)}` shows where it goes"


@pytest.mark.parametrize("words", [*_COMMANDS, ("lock", "--help"), ("explain", "--help")], ids=" ".join)
def test_nothing_heavy_is_imported(project: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TELL, *words],
        cwd=project,
        env=environment(project),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1].split() == ["heavy:"]
