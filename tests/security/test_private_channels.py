"""A private channel that fails or leads elsewhere: none of its packages is taken from the public one in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.builders.conda_archive import archive
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Answer, Body, Drip, Drop, Fault, Stall, Status, Truncate, Wire
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, succeeded

ONCE: Final = {"ENVSPEC_HTTP_ATTEMPTS": "1"}
#: For servers that never come to an end.
HURRIED: Final = {**ONCE, "ENVSPEC_HTTP_STALL_S": "0.5", "ENVSPEC_HTTP_TOTAL_S": "0.8"}
EVERYTHING: Final = "/corp/*"
PLATFORM: Final = "/corp/linux-64/*"
ROWS: Final = "/corp/linux-64/repodata.json"
ELSEWHERE: Final = "redirects to "
NOT_ROWS: Final = "not a channel's repodata"


@dataclass(frozen=True)
class Moved:
    """A redirect to the same file of another channel. to: `{there}` is the public server, host and port."""

    status: int
    to: str = "http://{there}/poison"
    there: str = ""

    def play(self, wire: Wire) -> Answer:
        path = urlsplit(wire.target).path.removeprefix("/corp")
        return Answer(self.status, b"", {"Location": self.to.format(there=self.there) + path})


@dataclass(frozen=True)
class Case:
    """message: parts of the one message, beside the private channel's address."""

    fault: Fault | Moved
    message: str
    path: str = PLATFORM
    environ: Mapping[str, str] | None = None


CASES: Final[dict[str, Case]] = {
    **{f"{status}": Case(Moved(status), ELSEWHERE) for status in (301, 302, 303, 307, 308)},
    "302 of the whole channel": Case(Moved(302), ELSEWHERE, EVERYTHING),
    "302 of the plain rows": Case(Moved(302), ELSEWHERE, ROWS),
    "302 without a scheme": Case(Moved(302, "//{there}/poison"), ELSEWHERE),
    "302 with a login and a token": Case(Moved(302, "http://me:secret@{there}/t/secret/poison"), ELSEWHERE),
    "302 to TLS": Case(Moved(302, "https://{there}/poison"), ELSEWHERE),
    "302 in two hops": Case(Moved(302, "/hop"), ELSEWHERE),
    **{f"{status}": Case(Status(status), f"HTTP {status}") for status in (401, 403, 410, 429, 500, 501, 503)},
    "a platform that is not there": Case(Status(404), "there is no linux-64/repodata.json"),
    "no channel": Case(Status(404), "HTTP 404 (not found): there is no such channel", EVERYTHING),
    "no answer": Case(Stall(), "", ROWS, HURRIED),
    "a slow drip": Case(Drip(), "no complete answer within", ROWS, HURRIED),
    "a connection that breaks": Case(Drop(20), "the response ended early", ROWS),
    "an empty answer": Case(Body(b""), NOT_ROWS, ROWS),
    "a login page": Case(Body(b"<html>please log in</html>", "text/html"), NOT_ROWS, ROWS),
    "a login page as JSON": Case(Body(b'{"error": "please log in"}'), NOT_ROWS, ROWS),
    "a page that leads on": Case(Body(b"<html><meta http-equiv=refresh content='0;url=/x'></html>"), NOT_ROWS, ROWS),
    "half of the rows": Case(Truncate(60), NOT_ROWS, ROWS),
}

SPEC: Final = """
[env]
name = "small"
python = "3.12"
platforms = ["linux-64"]
as_of = 2026-06-01T00:00:00Z

[conda]
channels = [{channels}]
dependencies = ["{asked}"]
{more}
"""


@dataclass(frozen=True)
class World:
    """public: serves `public`, with a higher version of the private package, and `poison`, with that alone."""

    root: Path
    channels: Mapping[str, CondaChannel]
    public: CondaServer
    index: IndexServer

    def private(self, prefix: str = "", credentials: tuple[str, str] | None = None) -> CondaServer:
        return CondaServer({"corp": self.channels["corp"]}, prefix=prefix, credentials=credentials)

    def user(
        self, *channels: str, asked: str = "corp-tool", more: str = "", folder: str = "user", **environ: str
    ) -> User:
        user = User(self.root / folder, self.index.url, **{"NO_PROXY": "127.0.0.1", **ONCE, **environ})
        user.writes(SPEC.format(channels=", ".join(f'"{each}"' for each in channels), asked=asked, more=more))
        return user

    @property
    def taken(self) -> list[str]:
        """What was requested of the public server that is the private package's."""
        return [each.path for each in self.public.requests if "poison" in each.path or "corp-tool" in each.path]


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, CondaChannel]:
    root = tmp_path_factory.mktemp("channels")
    python = archive("python", "3.12.1", subdir="linux-64", built="2025-01-01")
    poison = [archive("corp-tool", "99.0", subdir=each, built="2025-01-01") for each in ("linux-64", "noarch")]
    own = [archive("corp-tool", "1.0", subdir="linux-64", built="2025-01-01")]
    data = archive("corp-data", "1.0", built="2025-01-01")
    held = {"corp": [*own, data], "public": [python, *poison], "poison": poison}
    return {name: write(root / name, archives) for name, archives in held.items()}


@pytest.fixture
def world(tmp_path: Path, channels: Mapping[str, CondaChannel]) -> Iterator[World]:
    shown = {name: channels[name] for name in ("public", "poison")}
    with CondaServer(shown) as public, IndexServer() as index:
        yield World(tmp_path, channels, public, index)


@pytest.mark.parametrize("name", CASES)
def test_a_fault(world: World, name: str) -> None:
    case = CASES[name]
    there = f"127.0.0.1:{world.public.port}"
    with world.private() as private:
        if isinstance(case.fault, Moved):
            private.fail("/hop/*", Status(302, {"Location": f"http://{there}/poison/linux-64/repodata.json"}))
            private.fail(case.path, Moved(case.fault.status, case.fault.to, there))
        else:
            private.fail(case.path, case.fault)
        if case.path == ROWS:
            private.fail("*.zst", Status(404))
        corp = private.channel_url("corp")
        user = world.user(corp, world.public.channel_url("public"), **(case.environ or {}))
        error = refused(user.locks(), 5)
    assert corp in error and case.message in error, error
    assert "secret" not in error
    assert world.taken == []
    assert user.files() == {}


def test_without_a_fault_its_own_package_is_locked(world: World) -> None:
    """The tests above would pass with any channel that can't be read."""
    with world.private() as private:
        user = world.user(private.channel_url("corp"), world.public.channel_url("public"))
        succeeded(user.locks())
        url = f"{private.channel_url('corp')}/linux-64/corp-tool-1.0-0.conda"
        assert [row["url"] for row in user.document()["resolution"][0]["conda"] if row["name"] == "corp-tool"] == [url]
    assert world.taken == []


def test_a_channel_that_is_down(world: World) -> None:
    with world.private() as private:
        corp = private.channel_url("corp")
    user = world.user(corp, world.public.channel_url("public"))
    error = refused(user.locks(), 5)
    assert corp in error and "no connection (Connection refused)" in error
    assert world.taken == []


@pytest.mark.parametrize("asked", ["corp-tool >=50", "corp-tool ==99.0", "Corp-Tool 99.*", "corp-tool >1"])
def test_versions_that_the_public_channel_alone_has(world: World, asked: str) -> None:
    with world.private() as private:
        user = world.user(private.channel_url("corp"), world.public.channel_url("public"), asked=asked)
        refused(user.locks(), 4)
    assert world.taken == [] and user.files() == {}


def test_a_platform_that_a_folder_lacks(world: World, channels: Mapping[str, CondaChannel], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, channels["corp"].archives)
    (folder / "linux-64" / "repodata.json").unlink()
    user = world.user(folder.as_uri(), world.public.channel_url("public"))
    assert "there is no linux-64/repodata.json" in refused(user.locks(), 5)
    assert world.taken == [] and user.files() == {}


def test_a_channel_that_the_spec_says_has_noarch_alone(world: World) -> None:
    """What the message of a missing platform says to do; that platform is not requested there at all."""
    with world.private() as private:
        private.fail(PLATFORM, Status(404))
        corp, public = private.channel_url("corp"), world.public.channel_url("public")
        error = refused(world.user(corp, public, asked="corp-data").locks(), 5)
        wanted = f'only = {{ "{corp}" = ["noarch"] }}'
        assert wanted in error
        private.forget()
        user = world.user(corp, public, asked="corp-data", more=wanted, folder="another")
        succeeded(user.locks())
        assert private.requests_for(PLATFORM) == []
        assert user.locks("--check").status == 0
        unlisted = world.user(public, asked="python", more=wanted, folder="third")
        assert "conda.only" in refused(unlisted.locks(), 2)


def test_a_login_stays_at_its_port(world: World, channels: Mapping[str, CondaChannel]) -> None:
    """Two channels of one host and one path: rattler tells neither the scheme nor the port of a request."""
    other = CondaServer({"corp": channels["public"]})
    with world.private(credentials=("me", "secret")) as private, other:
        user = world.user(private.channel_url_with_credentials("corp"), other.channel_url("corp"))
        succeeded(user.locks())
        assert all("authorization" in each.headers for each in private.requests)
        assert [each.path for each in other.requests if "authorization" in each.headers] == []


def test_a_login_of_netrc_is_sent_to_a_channel_over_tls_or_loopback_only(world: World) -> None:
    with world.private(credentials=("me", "secret")) as private:
        user = world.user(private.channel_url("corp"), world.public.channel_url("public"))
        (user.home / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
        (user.home / ".netrc").chmod(0o600)
        succeeded(user.locks())
    # Not over plain http: the channel's host is reached through a proxy, which sees what is sent in the clear.
    with world.private() as proxy:
        public = world.public.channel_url("public")
        user = world.user("http://conda.corp/corp", public, HTTP_PROXY=proxy.root, folder="another")
        (user.home / ".netrc").write_text("machine conda.corp login me password secret\n")
        (user.home / ".netrc").chmod(0o600)
        succeeded(user.locks())
        assert proxy.requests
        assert [each.path for each in proxy.requests if "authorization" in each.headers] == []


def test_a_token_is_in_no_message(world: World) -> None:
    with world.private(prefix="/t/secret") as private:
        private.fail(PLATFORM, Moved(302, "http://{there}/t/secret/poison", f"127.0.0.1:{world.public.port}"))
        user = world.user(private.channel_url("corp"), world.public.channel_url("public"))
        error = refused(user.locks(), 5)
    assert ELSEWHERE in error and "secret" not in error
