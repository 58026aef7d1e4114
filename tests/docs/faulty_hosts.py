"""Hosts that misbehave, for the pages about errors: indexes, registries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.support.builders import ecosystem
from tests.support.builders.images import RegistryInThread
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, core_metadata, wheel
from tests.support.builders.zips import FILE, wheel_members, zipped
from tests.support.servers.faults import Answer, Body, Drop, Fault, Stall, Status, Truncate, Wire
from tests.support.servers.index import IndexServer
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import OCI_MANIFEST, PushRegistry, Say


@dataclass(frozen=True, slots=True)
class Announce:
    """The head of a response of so many bytes, then nothing."""

    size_bytes: int

    def play(self, wire: Wire) -> Answer | None:
        wire.start(200, {"Content-Type": "text/html", "Content-Length": str(self.size_bytes)})
        return None


_PAGES: Final = "/simple/*"
_WHEELS: Final = "/files/*.whl"
#: No server listens there.
_CLOSED: Final = "127.0.0.1:9"
_ELSEWHERE: Final = {"Location": f"http://{_CLOSED}/simple/acme-models/"}
#: Host -> paths and how the index fails there.
_INDEXES: Final[dict[str, tuple[str, Fault]]] = {
    "slow": (_PAGES, Stall()),
    "broken": (_PAGES, Drop(after_bytes=100)),
    "endless": (_PAGES, Announce(10_000_000_000)),
    "moved": (_PAGES, Status(302, _ELSEWHERE)),
    "failing": (_PAGES, Status(503)),
    "wiki": (_PAGES, Body(b"Packages of the team", "text/plain")),
    "changed": (_WHEELS, Body(wheel("acme-models", "1.1.0", files={"acme_models/__init__.py": b"# other\n"}).data)),
    "short": (_WHEELS, Truncate(300)),
}
#: Host -> how the registry fails there.
_REGISTRIES: Final[dict[str, Say]] = {
    "limited": Say(429, {"Retry-After": "3600", "ratelimit-limit": "100;w=21600"}),
    "members": Say(401, {"WWW-Authenticate": 'Basic realm="registry"'}),
    "refusing": Say(400, {}, b'{"errors": [{"code": "UNSUPPORTED", "message": "no such operation"}]}'),
    "altered": Say(200, {"Content-Type": OCI_MANIFEST, "Docker-Content-Digest": f"sha256:{'0' * 64}"}, b"{}"),
    "portal": Say(200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"),
}


def _escaping_wheel() -> Artifact:
    """A wheel that was published with a path out of its folder."""
    name, version = "acme-models", "1.2.0"
    members = wheel_members(name, version, [("../../../etc/profile", b"export ACME=1\n", FILE)])
    metadata = core_metadata(name, version)
    return Artifact(name, version, f"acme_models-{version}-py3-none-any.whl", zipped(members), metadata)


def _always(answer: Say) -> Callable[[Asked], Say]:
    return lambda _asked: answer


@contextmanager
def faulty_hosts() -> Iterator[dict[str, str]]:
    """Text on pages -> text on this machine."""
    files = ecosystem.releases("acme-models 1.0.0 2025-01-10\nacme-models 1.1.0 2025-06-10")
    names = {
        "https://nowhere.example.com": f"http://{_CLOSED}",
        # Loopback, but not by a name of it: for envspec another machine.
        "tcp://gpu1.example.com:2376": "tcp://0.0.0.0:9",
    }
    with ExitStack() as running:
        for host, (path, fault) in _INDEXES.items():
            index = running.enter_context(IndexServer(files))
            index.fail(path, fault)
            names[f"https://{host}.example.com"] = index.root
        names["https://escaping.example.com"] = running.enter_context(IndexServer([File(_escaping_wheel())])).root
        names["https://http-only.example.com"] = f"https://{running.enter_context(IndexServer(files)).host}"
        for host, answer in _REGISTRIES.items():
            registry = PushRegistry(fault=_always(answer))
            names[f"{host}.example.com"] = running.enter_context(RegistryInThread(registry)).host
        yield names
