"""The index that a running `envspec lock` serves on loopback: other users of the machine, and pages in a browser.

Every user of a machine can connect to a port of its loopback, and can read there which ports listen and the arguments
of every process. A page in a browser can send requests there under a host name of its own (DNS rebinding).
"""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from envspec.structs import replace
from tests.security.test_build_indexes import backend, local_user, mark_of
from tests.support import preloaded
from tests.support.builders import ecosystem
from tests.support.servers.faults import Answer, Fault, Status, Wire
from tests.support.servers.index import IndexServer
from tests.support.user import Running, User, refused, succeeded

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="processes are looked at through /proc: Linux only")

NOBODY: Final = 65534
HOST: Final = "index.envspec.invalid"


@dataclass(frozen=True, slots=True)
class Gate:
    """Holds answers back until it is opened. then: the fault that follows."""

    opened: threading.Event = field(default_factory=threading.Event)
    then: Fault | None = None

    def play(self, wire: Wire) -> Answer | None:
        self.opened.wait(10)
        return self.then.play(wire) if self.then else wire.honest()


@dataclass(frozen=True, slots=True)
class Engine:
    """A resolver that a run has started. environ: its own, which other users cannot read."""

    arguments: str
    environ: Mapping[str, str]

    @property
    def proxy(self) -> str:
        return self.environ["HTTP_PROXY"]

    @property
    def port(self) -> int:
        return urlsplit(self.proxy).port or 0

    @property
    def token(self) -> str:
        return urlsplit(self.proxy).password or ""

    @property
    def path(self) -> str:
        """Of a page that the run has got, which its resolver's arguments lead to."""
        found = re.search(rf"http://{HOST}(/\S+/simple/)", self.arguments)
        assert found, self.arguments
        return f"{found[1]}weekly/"


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def index(gate: Gate) -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.dated(), *ecosystem.diamond()]) as running:
        running.fail(running.page_path("app"), gate)
        yield running
        gate.opened.set()


def engine_of(run: Running) -> Engine:
    """The resolver of a run, once it runs."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                # The parent follows the name, which is in brackets.
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                arguments = (folder / "cmdline").read_text().replace("\0", " ")
                variables = (folder / "environ").read_text().split("\0")
            except OSError:
                continue
            if parent == run.child.pid and HOST in arguments:
                return Engine(arguments, dict(each.split("=", 1) for each in variables if each))
        time.sleep(0.01)
    raise AssertionError(run.ends())


_ATTACK: Final = """
import encodings.idna, json, os, pathlib, socket, sys

port, user, requests = json.loads(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
answers = []
for request in requests:
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(request.encode("latin-1"))
        answer = b""
        while data := client.recv(1 << 16):
            answer += data
    answers.append([int(answer.split()[1]), len(answer.partition(b"\\r\\n\\r\\n")[2])])
arguments = []
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        arguments.append(path.read_bytes().decode("utf-8", "replace"))
    except OSError:
        pass
print(json.dumps([answers, arguments]))
"""


def attack(port: int, *requests: str) -> tuple[list[tuple[int, int]], list[str]]:
    """What another user gets: status and bytes of each answer; and the arguments of all processes."""
    # The interpreter's own folder may be closed to that user: all modules are read before.
    words = [sys.executable, "-I", "-S", "-c", _ATTACK, json.dumps([port, NOBODY, requests])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 0, done.stderr
    answers, arguments = json.loads(done.stdout)
    return [(status, size) for status, size in answers], arguments


def request(target: str, host: str, *lines: str, method: str = "GET") -> str:
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *lines, "", ""])


def login(token: str, kind: str = "Basic", name: str = "Proxy-Authorization", user: str = "envspec") -> str:
    return f"{name}: {kind} {base64.b64encode(f'{user}:{token}'.encode()).decode()}"


def until_served(engine: Engine) -> None:
    """The port listens before anybody answers there."""
    with socket.create_connection(("127.0.0.1", engine.port), 10) as client:
        client.sendall(request("/", "x").encode())
        client.recv(1)


@pytest.mark.parametrize("resolver", ["uv", "pip-tools"])
def test_another_user_gets_nothing(resolver: str, tmp_path: Path, index: IndexServer, gate: Gate) -> None:
    user = User(tmp_path, index.url)
    user.wants("weekly", "app")
    run = user.starts("--resolver", resolver, "--debug")
    engine = engine_of(run)
    until_served(engine)
    whole = f"http://{HOST}{engine.path}"
    answers, arguments = attack(
        engine.port,
        request(whole, HOST),
        request(engine.path, HOST),
        request(engine.path, f"127.0.0.1:{engine.port}"),
        request(whole, HOST, login("")),
        request(whole, HOST, login("x" * 43)),
        request(whole, HOST, login(engine.token[:-1])),
        request(whole, HOST, login(engine.token, name="Authorization")),
        request(whole, HOST, login(engine.token, kind="Bearer")),
        request(whole, HOST, "Proxy-Authorization: \xff\xfe"),
        request(f"{HOST}:80", HOST, method="CONNECT"),
    )
    assert answers == [(407, 0)] * len(answers)
    assert engine.token and not any(engine.token in each for each in arguments)
    assert any(HOST in each for each in arguments)
    gate.opened.set()
    ran = succeeded(run.ends())
    assert set(user.pins()) >= {"app", "weekly"}
    for secret in (engine.token.encode(), base64.b64encode(f"envspec:{engine.token}".encode())):
        assert secret not in user.leaves()
        assert secret not in (ran.stdout + ran.stderr).encode()


def test_a_name_that_leads_here_gets_nothing(tmp_path: Path, index: IndexServer, gate: Gate) -> None:
    """Even with the token: a browser that has seen it once, or a client that sends it to every proxy."""
    user = User(tmp_path, index.url)
    user.wants("weekly", "app")
    run = user.starts()
    engine = engine_of(run)
    until_served(engine)
    known = login(engine.token)
    here, pages = f"127.0.0.1:{engine.port}", engine.path.removesuffix("weekly/")
    answers, _ = attack(
        engine.port,
        request(engine.path, "evil.example", known),
        request(engine.path, here, known),
        request(engine.path, HOST, known),
        request(f"http://evil.example{engine.path}", "evil.example", known),
        request(f"http://{here}{engine.path}", here, known),
        request(f"http://{HOST}{engine.path}", "evil.example", known),
        request(f"http://{HOST}.evil.example{engine.path}", HOST, known),
        request(f"http://{HOST}@evil.example{engine.path}", HOST, known),
        request(f"http://{HOST}{engine.path}", HOST, f"Host: {HOST}", known),
        request(f"http://{HOST}{engine.path}", HOST, known, known),
        request(f"https://{HOST}{engine.path}", HOST, known),
        request(f"HTTP://{HOST}{engine.path}", HOST, known),
        request(f"http://{HOST}{pages}..%2Fweekly/", HOST, known),
        request(f"http://{HOST}{pages}%2E%2E/", HOST, known),
        request(f"http://{HOST}{pages}weekly%3Fa/", HOST, known),
        request(f"http://{HOST}{pages}weekly", HOST, known),
        request(f"http://{HOST}{pages}/", HOST, known),
        request(f"http://{HOST}{pages}", HOST, known),
    )
    assert {status for status, _ in answers} <= {400, 404, 407}
    refused_methods, _ = attack(
        engine.port,
        *[request(f"http://{HOST}{engine.path}", HOST, known, method=method) for method in ("POST", "PUT", "OPTIONS")],
    )
    assert refused_methods == [(405, 0)] * 3
    # The same request, for the address that it has: what is refused above is there.
    served, _ = attack(
        engine.port,
        request(f"http://{HOST}{engine.path}", HOST, known),
        request(f"http://{HOST}{pages}%77eekly/?a=b", HOST, known),
    )
    assert served[0] == served[1]
    assert served[0][0] == 200 and served[0][1] > 1000
    gate.opened.set()
    assert run.ends().status == 0


def test_every_run_has_a_token_of_its_own(tmp_path: Path, index: IndexServer, gate: Gate) -> None:
    users = [User(tmp_path / name, index.url) for name in ("one", "two")]
    tokens = set()
    for user in users:
        user.wants("weekly", "app")
        run = user.starts()
        tokens.add(engine_of(run).token)
        gate.opened.set()
        assert run.ends().status == 0
    assert len(tokens) == 2 and all(len(each) >= 40 for each in tokens)


@pytest.mark.parametrize("resolver", ["uv", "pip-tools"])
def test_no_message_has_the_token(resolver: str, tmp_path: Path, index: IndexServer, gate: Gate) -> None:
    user = User(tmp_path, index.url)
    user.wants("app", "weekly")
    # The page is read beside the resolver, and would end the run before that is seen.
    index.fail(index.page_path("weekly"), replace(gate, then=Status(403)))
    run = user.starts("--resolver", resolver, "--debug")
    engine = engine_of(run)
    gate.opened.set()
    ran = run.ends()
    assert ran.status == 5
    assert "Traceback" in ran.stderr
    assert engine.token not in ran.stderr and engine.token.encode() not in user.leaves()


def test_a_build_that_nothing_confines_reaches_the_index(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    bare = {"PATH": str(tmp_path / "bin"), "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    with IndexServer([backend("1.0")]) as public:
        user = local_user(tmp_path, public, "")
        refused(user.locks(**bare), 6)
        succeeded(user.locks("--no-sandbox", **bare))
        assert mark_of(user) == "1.0"
