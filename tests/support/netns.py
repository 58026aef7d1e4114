"""Two machines on one: network namespaces that only a pair of virtual links joins."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.engine import NotRun

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
def two() -> Iterator[tuple[Namespace, Namespace]]:
    """Two of them for the time of the block, whatever happens in it.

    Raises:
        NotRun: no iproute2, or not the right to make them.
    """
    if shutil.which("ip") is None:
        raise NotRun("network namespaces need iproute2's ip")
    if os.geteuid():
        raise NotRun("network namespaces need root")
    name = f"envspec-{os.getpid()}"
    both = (Namespace(f"{name}-0", "10.77.0.1", "fd77::1"), Namespace(f"{name}-1", "10.77.0.2", "fd77::2"))
    with contextlib.ExitStack() as stack:
        for each in both:
            made = _ip("netns", "add", each.name)
            if made.returncode:
                raise NotRun(f"no network namespace can be made: {made.stderr.strip()}")
            stack.callback(_ip, "netns", "delete", each.name)
        first, second = (each.name for each in both)
        made = _ip("-n", first, "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", second)
        if made.returncode:
            raise NotRun(f"no virtual link can be made: {made.stderr.strip()}")
        for each in both:
            _ip("-n", each.name, "address", "add", f"{each.address}/24", "dev", LINK)
            # Without `nodad` the address can't be used for a second.
            _ip("-n", each.name, "address", "add", f"{each.address_v6}/64", "dev", LINK, "nodad")
            for link in ("lo", LINK):
                _ip("-n", each.name, "link", "set", link, "up")
        yield both


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
