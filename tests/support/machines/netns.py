"""Two machines on one: network namespaces that only a pair of virtual links joins."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.machines import NotRun, program

LINK = "link0"


@dataclass(frozen=True)
class Namespace:
    """One of the two. address, address_v6: by which the other one reaches it."""

    name: str
    address: str
    address_v6: str

    @property
    def words(self) -> list[str]:
        """What starts a command in it, as the same process."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Take its link down: what is sent to it is lost without a word."""
        _ip("-n", self.name, "link", "set", LINK, "down")


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    """A network namespace with nothing but a loopback interface; its name.

    Raises:
        NotRun: no iproute2, or not the right to make one.
    """
    program("ip")
    if os.geteuid():
        raise NotRun("network namespaces need root")
    name = f"envspec-{uuid.uuid4().hex[:8]}"
    made = _ip("netns", "add", name)
    if made.returncode:
        raise NotRun(f"no network namespace can be made: {made.stderr.strip()}")
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _ip("netns", "delete", name)


@contextlib.contextmanager
def two() -> Iterator[tuple[Namespace, Namespace]]:
    """Two of them, joined, for the time of the block, whatever happens in it.

    Raises:
        NotRun: no iproute2, or not the right to make them.
    """
    with namespace() as first, namespace() as second:
        made = _ip("-n", first, "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", second)
        if made.returncode:
            raise NotRun(f"no virtual link can be made: {made.stderr.strip()}")
        both = (Namespace(first, "10.77.0.1", "fd77::1"), Namespace(second, "10.77.0.2", "fd77::2"))
        for each in both:
            _ip("-n", each.name, "address", "add", f"{each.address}/24", "dev", LINK)
            # Without `nodad` the address can't be used for a second.
            _ip("-n", each.name, "address", "add", f"{each.address_v6}/64", "dev", LINK, "nodad")
            _ip("-n", each.name, "link", "set", LINK, "up")
        yield both


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("ip"), *words], capture_output=True, text=True, timeout=30, check=False)
