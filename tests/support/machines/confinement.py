"""Foreign code that tries what it must not reach, and what it would reach: files, processes and sockets of the user.

with prey(tmp_path) as victim:
    source = victim.backend()      # of an sdist: builds a wheel whose module holds what it got
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from envspec.io.confine import NoConfinement, bubblewrap
from envspec.io.confine_types import Unconfined
from tests.support.builders.wheels import Artifact, sdist

#: What unconfined code reaches, in the order in which it tries.
ALL: Final = ["netrc", "environ", "loopback", "unix", "abstract", "home", "cache"]

_PROBE: Final = r'''
import glob, json, os, socket

TARGETS = json.loads(%r)


def _reads(path):
    with open(path, "rb") as file:
        return file.read()


def _connects(family, address):
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)
        return client.recv(5) == b"hello"


def _environs():
    found = b""
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            found += _reads(path)
        except OSError:
            pass
    return TARGETS["secret"].encode() in found


def _writes(path):
    with open(path, "w") as file:
        file.write("owned")
    return True


def _descends():
    if os.fork() == 0:
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(0, 2)
        os.execv("/bin/sleep", ["sleep", TARGETS["sleep"]])
    return True


_TRIES = {
    "netrc": lambda: b"hunter2" in _reads(TARGETS["netrc"]),
    "environ": _environs,
    "loopback": lambda: _connects(socket.AF_INET, ("127.0.0.1", TARGETS["port"])),
    "unix": lambda: _connects(socket.AF_UNIX, TARGETS["unix"]),
    "abstract": lambda: _connects(socket.AF_UNIX, "\0" + TARGETS["abstract"]),
    "home": lambda: _writes(TARGETS["home"]),
    "cache": lambda: _writes(TARGETS["cache"]),
}


def probe():
    """The names of what could be reached."""
    got = []
    for name, attempt in _TRIES.items():
        try:
            if attempt():
                got.append(name)
        except OSError:
            pass
    _descends()
    return got
'''

#: Says what it got in the wheel that it makes.
_TELLING: Final = """
import pathlib
pathlib.Path("own", "__init__.py").write_text(f"GOT = {probe()!r}\\n")
"""
#: Says what it got by failing, which a resolver repeats.
_FAILING: Final = """
raise SystemExit("GOT(" + "+".join(probe()) + ")")
"""


@cache
def why_not() -> str | None:
    """Why nothing confines foreign code here; None where bubblewrap does."""
    try:
        asyncio.run(bubblewrap({"PATH": os.defpath}, Unconfined.REFUSED, "this test"))
    except NoConfinement as fault:
        return fault.message
    return None


#: For tests that build, or resolve with builds: without bubblewrap they are skipped, and the reason is shown.
confined: Final = pytest.mark.skipif(why_not() is not None, reason=f"not run: {why_not()}")


def path_with_bubblewrap(folder: Path) -> str:
    """A PATH on which bubblewrap is, and no engine."""
    folder.mkdir(exist_ok=True)
    (folder / "bwrap").symlink_to(str(shutil.which("bwrap", path=os.defpath)))
    return str(folder)


def running(word: str) -> list[int]:
    """The processes of this machine with such a word in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Prey:
    """home: of a user whose secrets these are. secret: in the environment of envspec. sleep: names a process."""

    home: Path
    cache: Path
    secret: str
    port: int
    unix: str
    abstract: str
    sleep: str

    def probe(self) -> str:
        """Python that defines `probe()`, which gives the names of what it reached."""
        targets = {
            "netrc": str(self.home / ".netrc"),
            "secret": self.secret,
            "port": self.port,
            "unix": self.unix,
            "abstract": self.abstract,
            "home": str(self.home / "owned"),
            "cache": str(self.cache / "engines/uv/owned"),
            "sleep": self.sleep,
        }
        return _PROBE % json.dumps(targets)

    def source(self, first: str = "") -> Artifact:
        """An sdist whose wheel holds what its build reached; no resolver has to build it. first: runs before."""
        return sdist("own", "1.0.0", on_build=f"import os\n{first}{self.probe()}{_TELLING}", metadata_version="2.2")

    def unresolved(self) -> Artifact:
        """An sdist that states no metadata: only its build, which says what it reached and fails, would show it."""
        return sdist("own", "1.0.0", on_build=self.probe() + _FAILING, metadata_version="1.0")

    @property
    def environ(self) -> dict[str, str]:
        return {"CORP_TOKEN": self.secret}

    def is_unharmed(self) -> bool:
        """Whether nothing was written, and nothing runs any more."""
        written = [self.home / "owned", self.cache / "engines/uv/owned"]
        return not any(path.exists() for path in written) and not running(self.sleep)


@contextmanager
def prey(home: Path, cache: Path) -> Iterator[Prey]:
    """A user with a login, and servers that greet whoever connects."""
    for folder in (home, cache / "engines/uv"):
        folder.mkdir(parents=True, exist_ok=True)
    (home / ".netrc").write_text("machine corp login me password hunter2\n")
    number = str(uuid.uuid4().int)
    with ExitStack() as stack:
        # The path of a socket is short: pytest's folders are not.
        unix = f"{stack.enter_context(tempfile.TemporaryDirectory(dir='/tmp'))}/socket"
        listeners = [socket.create_server(("127.0.0.1", 0))]
        for address in (unix, f"\0envspec-test-{number}"):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen()
            listeners.append(listener)
        for listener in listeners:
            stack.enter_context(listener)
            # A thread that waits in accept() ends by this, and not by a close.
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=_greet, args=(listener,), daemon=True).start()
        port = listeners[0].getsockname()[1]
        found = Prey(home, cache, f"secret-{number}", port, unix, f"envspec-test-{number}", f"98.{number}")
        try:
            yield found
        finally:
            for process in running(found.sleep):
                os.kill(process, 9)


def _greet(listener: socket.socket) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client:
            client.sendall(b"hello")
