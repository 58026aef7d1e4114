"""Sets up what is measured: interpreters, each tool in an environment of its own, and a job's folders."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.environment import clean
from bench.peers import Interpreter, Job, Peer
from bench.stacks import Stack


class NotHere(Exception):
    """What a tool needs is not on this machine; the message says what."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """Everything lies under `root`; tools are kept between runs, homes and caches are not."""

    root: Path

    def job(self, peer: Peer, stack: Stack) -> Job:
        """A fresh folder and an installed tool.

        Raises:
            NotHere: no interpreter of the stack's series, or the tool does not install.
        """
        python = own_python() if peer.interpreter is Interpreter.ANY else self.python(stack.python)
        folder = self.root / "jobs" / _slug(f"{stack.name}-{peer.name}")
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("project", "home"):
            (folder / part).mkdir(parents=True)
        tools = self._tool(peer, python)
        return Job(stack, folder / "project", folder / "home" / "cache", python, tools, default_index())

    def environ(self, peer: Peer, job: Job, proxy: str | None) -> Mapping[str, str]:
        """Variables of a measured command. proxy: URL of the counting proxy, None for the direct way."""
        base = clean(os.environ, home=job.folder.parent / "home", proxy=proxy)
        path = os.pathsep.join([str(job.bin), base.get("PATH", os.defpath)])
        return {**base, "PATH": path, "VIRTUAL_ENV": str(job.bin.parent), **peer.environ(job)}

    def python(self, series: str) -> Path:
        """An interpreter of this series that is on the machine already.

        Raises:
            NotHere: there is none.
        """
        if series == ".".join(map(str, sys.version_info[:2])):
            return own_python()
        found = self._run([uv(), "python", "find", "--no-python-downloads", "--system", "--no-project", series])
        if found.returncode != 0:
            raise NotHere(f"no interpreter of Python {series} on this machine")
        return Path(found.stdout.strip())

    def _tool(self, peer: Peer, python: Path) -> Path:
        """The folder of the tool's commands; envspec's is that of the environment that runs this."""
        if not peer.packages:
            return Path(sys.executable).parent
        key = hashlib.sha256(f"{python}{peer.packages}".encode()).hexdigest()[:8]
        place = self.root / "tools" / _slug(f"{peer.packages[0]}-{key}")
        if not (place / "ready").exists():
            self._must([uv(), "venv", "--quiet", "--clear", "--seed", "--python", python, place], peer)
            packages = [*peer.packages, "pip"]
            self._must(
                [
                    uv(),
                    "pip",
                    "install",
                    "--quiet",
                    "--compile-bytecode",
                    "--upgrade",
                    "--python",
                    place / "bin" / "python",
                    *packages,
                ],
                peer,
            )
            (place / "ready").touch()
        return place / "bin"

    def _must(self, command: list[str | Path], peer: Peer) -> None:
        done = self._run(command)
        if done.returncode != 0:
            raise NotHere(f"{peer.name} does not install: {done.stderr.strip()}")

    def _run(self, command: list[str | Path]) -> subprocess.CompletedProcess[str]:
        home = self.root / "home"
        home.mkdir(parents=True, exist_ok=True)
        environ = clean(os.environ, home=home, proxy=None)
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)

    def version(self, peer: Peer, bin_folder: Path) -> str:
        """What the tool's package says of its version."""
        name = peer.packages[0].split("[")[0] if peer.packages else "envspec"
        code = f"from importlib.metadata import version; print(version({name!r}))"
        return self._run([bin_folder / "python", "-c", code]).stdout.strip()


def own_python() -> Path:
    """The interpreter behind this environment: a virtual environment is a poor base for others."""
    return Path(getattr(sys, "_base_executable", sys.executable))


def uv() -> Path:
    """The uv of this environment."""
    from uv import find_uv_bin

    return Path(find_uv_bin())


def default_index() -> str:
    """The default index's simple pages, as pip names them: the address is not written down here."""
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/") + "/"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
