"""A channel that misbehaves, while a lock is there: one clear message, exit code 5, and the old lock untouched.

After each fault the channel is well again, and so is the next run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.builders.ecosystem import release
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Body, Corrupt, Drip, Drop, Fault, Redirects, Stall, Status, Truncate
from tests.support.servers.index import IndexServer
from tests.support.user import SHORT_TIMEOUTS, Ran, User, refused

ROWS: Final = "/forge/*/repodata.json*"
#: rattler asks for the headers of `.zst` first, and these faults have no answer without a body.
PLAIN_ROWS: Final = "/forge/*/repodata.json"
#: rattler waits between its attempts as long as it likes: where a fault lasts, there is one.
ONCE: Final = {"ENVSPEC_HTTP_ATTEMPTS": "1"}


@dataclass(frozen=True)
class Case:
    """fault: on every path of `path`, `times` or always. expected_message: parts of the message; empty: it locks."""

    fault: Fault
    expected_message: tuple[str, ...] = ()
    path: str = "/forge/*"
    times: int | None = None


CASES: Final[dict[str, Case]] = {
    "500": Case(Status(500), ("/forge", "HTTP 500 (the server failed)", "try again later")),
    "503-once": Case(Status(503), times=1),
    "404": Case(Status(404), ("/forge", "HTTP 404 (not found): there is no such channel", "[conda] channels")),
    "403": Case(Status(403), ("/forge", "HTTP 403")),
    "401": Case(Status(401), ("/forge", "HTTP 401", "credentials")),
    "drops": Case(Drop(100), ("/forge", "the response ended early"), PLAIN_ROWS),
    "drops-before-a-byte": Case(Drop(0), ("/forge", "the response ended early"), PLAIN_ROWS),
    "stalls": Case(Stall(), ("/forge", "no complete answer within 3 s", "ENVSPEC_HTTP_TOTAL_S"), ROWS),
    "drips": Case(Drip(), ("/forge", "no complete answer within 3 s"), PLAIN_ROWS),
    "truncated": Case(Truncate(300), ("/forge", "not a channel's repodata"), ROWS),
    "corrupt": Case(Corrupt(), ("/forge", "not a channel's repodata"), ROWS),
    "empty": Case(Truncate(0), ("/forge", "not a channel's repodata"), ROWS),
    "login-page": Case(Body(b"<html>please log in</html>", "text/html"), ("/forge", "not a channel's repodata"), ROWS),
    "large-login-page": Case(
        Body(b"<html>" + b"please log in " * 1000 + b"</html>", "text/html"),
        ("/forge", "not a channel's repodata"),
        ROWS,
    ),
    "large-message-in-json": Case(
        Body(b'{"message": "' + b"back in an hour " * 1000 + b'"}', "application/json"),
        ("/forge", "not a channel's repodata"),
        ROWS,
    ),
    "redirects-without-end": Case(Redirects(), ("/forge",), ROWS),
    "no-zst": Case(Status(404), path="/forge/*/repodata.json.zst"),
    "no-shards": Case(Status(404), path="*shards*"),
}

SPEC: Final = """
[env]
name = "small"
python = "3.12"
platforms = ["linux-64", "linux-aarch64"]
as_of = 2026-06-01T00:00:00Z

[conda]
channels = ["{forge}"]
dependencies = ["ffmpeg", "numpy"]

[pip]
dependencies = ["stats"]
"""


@dataclass(frozen=True)
class Played:
    """A run against the fault; the lock's files after it; the next run if it failed; and the server's address."""

    user: User
    ran: Ran
    files: dict[str, bytes]
    healed: Ran | None
    address: str


@dataclass(frozen=True)
class Shared:
    root: Path
    channel: CondaChannel
    index: IndexServer

    def user(self, name: str, address: str) -> User:
        user = User(self.root / name, self.index.url, NO_PROXY="127.0.0.1", **ONCE)
        user.writes(SPEC.format(forge=address))
        return user

    def play(self, name: str, before: dict[str, bytes]) -> Played:
        """A run over an older lock, and another one if the first failed."""
        case = CASES[name]
        with CondaServer({"forge": self.channel}) as server:
            if case.path == PLAIN_ROWS:
                server.fail("*.zst", Status(404))
            server.fail(case.path, case.fault, case.times)
            user = self.user(name, server.channel_url("forge"))
            user.lock.mkdir(parents=True)
            for file, data in before.items():
                (user.lock / file).write_bytes(data)
            slow = isinstance(case.fault, (Stall, Drip))
            timeouts = {} if case.expected_message else {"ENVSPEC_HTTP_ATTEMPTS": "2"}
            # The whole time is over first, whatever the machine does.
            patience = {**SHORT_TIMEOUTS, "ENVSPEC_HTTP_STALL_S": "60"} if slow else {}
            ran, files = user.locks(**timeouts, **patience), user.files()
            server.heal()
            return Played(user, ran, files, user.locks() if ran.status else None, server.root)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    root = tmp_path_factory.mktemp("conda faults")
    with IndexServer([release("stats", "1.0.0", requires=["numpy"])]) as index:
        yield Shared(root, write(root / "channels" / "forge", conda_packages.forge(GOLDEN_PYTHON)), index)


@pytest.fixture(scope="module")
def before(shared: Shared) -> dict[str, bytes]:
    user = shared.user("first", shared.channel.url)
    user.locked()
    return user.files()


@pytest.mark.parametrize("case", CASES)
def test_fault(shared: Shared, before: dict[str, bytes], case: str) -> None:
    messages, played = CASES[case].expected_message, shared.play(case, before)
    user = played.user
    if not messages:
        assert played.ran.status == 0, played.ran.stderr
        assert user.document()["resolution"][0]["conda"]
        return
    error = refused(played.ran, 5)
    assert not [words for words in messages if words not in error], error
    assert error.startswith(played.address) and str(user.folder.parent) not in error
    assert played.files == before
    assert played.healed is not None and played.healed.status == 0, played.healed
    assert [path.name for path in user.lock.parent.iterdir()] == ["small"]


def test_a_server_that_is_down(shared: Shared) -> None:
    with CondaServer({}) as server:
        gone = server.channel_url("forge")
    user = shared.user("down", gone)
    error = refused(user.locks(), 5)
    assert gone in error and "no connection (Connection refused)" in error and "check that the server runs" in error


def test_a_proxy_that_is_down(shared: Shared) -> None:
    user = shared.user("proxy", "http://conda.example.com/forge")
    error = refused(user.locks(NO_PROXY=""), 5)
    assert "conda.example.com/forge" in error and "HTTPS_PROXY" in error


def test_a_folder_that_is_no_channel(shared: Shared) -> None:
    nowhere = shared.root / "nowhere"
    user = shared.user("folder", nowhere.as_uri())
    error = refused(user.locks(), 5)
    assert str(nowhere) in error and "no such file, so no channel" in error
    (nowhere / "noarch").mkdir(parents=True)
    for text in ("{", '{"packages": []}', ""):
        (nowhere / "noarch" / "repodata.json").write_text(text)
        error = refused(user.locks(), 5)
        assert nowhere.as_uri() in error and "not a channel's repodata" in error


def test_offline(shared: Shared) -> None:
    with CondaServer({"forge": shared.channel}) as server:
        user = shared.user("offline", server.channel_url("forge"))
        error = refused(user.locks("--offline"), 5)
        assert error.startswith("offline, and channel http") and "run once with a network" in error
        assert server.requests == []
        assert user.locks().status == 0
        server.forget()
        before = user.files()
        user.locked("--offline", "--upgrade")
        assert server.requests == []
        assert user.files() == before
