"""Init and services of an image, laid into a folder and run as processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envspec.image.layers.types import EntryKind, InMemory
from envspec.image.services import ServicesSource
from envspec.models import ImageSettings, Service

#: Gives the process the children that others leave behind, as process 1 has them, then becomes init.
_AS_FIRST = (
    "import ctypes, os, sys; PR_SET_CHILD_SUBREAPER = 36; "
    "assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0; os.execv(sys.argv[1], sys.argv[1:])"
)
#: A server of that program's command line: it notes its arguments, and answers every path below `base_url`.
_SERVER = """#!{python}
import http.server, json, os, signal, sys
given = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
port = int(given.get("--ServerApp.port") or given["--port"])
name = os.path.basename(sys.argv[0])
with open(os.path.join(os.environ["NOTES"], name), "w") as notes:
    json.dump({{"pid": os.getpid(), "argv": sys.argv, "environ": dict(os.environ)}}, notes)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print(name, "serves", flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if os.path.exists(os.path.join(os.environ["NOTES"], "fail")):
            os._exit(9)
        known = self.path.startswith(given.get("--ServerApp.base_url", "/"))
        self.send_response(200 if known else 302); self.end_headers()
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@dataclass(frozen=True, slots=True)
class Place:
    """An image's files below `root`. python: its interpreter, and beside it the programs of the services."""

    root: Path
    python: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def notes(self) -> Path:
        return self.root / "notes"

    def command(self, *words: str) -> list[str]:
        init = [str(self.python), "-I", "-S", str(self.root / "opt/envspec/init.py"), *words]
        return [sys.executable, "-c", _AS_FIRST, *init]

    def run(self, *words: str, environ: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    @contextlib.contextmanager
    def running(self, *words: str, environ: Mapping[str, str] = {}) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            self.command(*words),
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def health(self, **environ: str) -> subprocess.CompletedProcess[str]:
        check = [str(self.python), "-I", "-S", str(self.root / "opt/envspec/health.py")]
        return subprocess.run(check, env=environ, capture_output=True, text=True, timeout=30, check=False)


def lay(root: Path, *services: Service, workdir: str = "/", python: Path | None = None) -> Place:
    """Lay the last layer of an image with these services.

    python: the interpreter of an environment that has them; without one, small stand-ins are laid beside one.
    """
    root.mkdir(parents=True, exist_ok=True)
    for entry in ServicesSource(ImageSettings(workdir=workdir, services=services)).entries():
        path = root / entry.path
        if entry.kind is EntryKind.FOLDER:
            path.mkdir(exist_ok=True)
        elif isinstance(entry.data, InMemory):
            path.write_bytes(entry.data.content)
    # What root starts becomes the image's user, who may not look into root's folders here.
    message = root / "opt/envspec/services.json"
    own = {"uid": os.getuid(), "gid": os.getgid(), "home": str(root / "home/envspec")}
    message.write_text(json.dumps(json.loads(message.read_text()) | own))
    python = python or _stand_ins(root / "bin")
    home = root / "home/envspec"
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "USER": "envspec"}
    place = Place(root, python, environ)
    place.state.mkdir()
    place.notes.mkdir()
    environ |= {"ENVSPEC_STATE_DIR": str(place.state), "NOTES": str(place.notes)}
    return place


def _stand_ins(folder: Path) -> Path:
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(Path(sys.executable).resolve())
    for name in ("jupyter-lab", "tensorboard"):
        (folder / name).write_text(_SERVER.format(python=sys.executable))
        (folder / name).chmod(0o755)
    return python
