"""A Docker engine of the benchmark's own: the machine's is not touched, and memory and disk are its alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.workshop import NotHere

_STARTING_S: Final = 60.0
_STOPPING_S: Final = 30.0
#: Debian's own client has BuildKit; a newer one without buildx, which may stand before it on PATH, has not.
_CLIENT: Final = "/usr/bin/docker"
_ADMIN: Final = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(slots=True)
class Engine:
    """dockerd with data, socket and containerd of its own, and without a network: containers use the namespace's."""

    folder: Path
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"unix://{self.folder / 'docker.sock'}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start_empty(self, environ: Mapping[str, str]) -> None:
        """Stop it, forget all images and caches, start it again.

        Raises:
            NotHere: not root, no dockerd, or it does not come up (with the end of its log).
        """
        self.remove()
        self.folder.mkdir(parents=True)
        if os.geteuid() != 0:
            raise NotHere("an engine of one's own needs root")
        dockerd = shutil.which("dockerd", path=f"{environ.get('PATH', '')}:{_ADMIN}")
        if dockerd is None or not Path(_CLIENT).exists():
            raise NotHere("dockerd and its client are not installed (Debian's package docker.io)")
        (self.folder / "daemon.json").write_text("{}")  # else /etc/docker/daemon.json counts
        files = {"config-file": "daemon.json", "data-root": "data", "exec-root": "run", "pidfile": "pid"}
        command = [
            dockerd,
            *(f"--{option}={self.folder / name}" for option, name in files.items()),
            f"--host={self.url}",
            # Containers use the namespace's own network, where registry and index are.
            *("--bridge=none", "--iptables=false", "--ip6tables=false"),
            *("--containerd-namespace=envspec-bench", "--containerd-plugins-namespace=envspec-bench-plugins"),
        ]
        path = {"PATH": f"{environ.get('PATH', '')}:{_ADMIN}"}
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**environ, **path}
            )
        self._wait(environ)

    def remove(self) -> None:
        """Stop it, and take away all that it had."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOPPING_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words: str | Path) -> list[str | Path]:
        """A command of its client."""
        return [_CLIENT, "--host", self.url, *words]

    def tell(self, environ: Mapping[str, str], *words: str | Path) -> str:
        """Run a command of its client that must not fail; what it prints."""
        done = subprocess.run(
            [str(word) for word in self.command(*words)], env=dict(environ), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NotHere(f"docker {words[0]}: {done.stderr.strip()[-400:]}")
        return done.stdout.strip()

    def _wait(self, environ: Mapping[str, str]) -> None:
        until = time.monotonic() + _STARTING_S
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            try:
                self.tell(environ, "version")
            except NotHere:
                time.sleep(0.1)
            else:
                return
        raise NotHere(f"dockerd does not come up: {(self.folder / 'log').read_text(errors='replace')[-400:]}")
