"""Servers on loopback for the programs that a command starts.

Every user of the machine can connect to the port, and so can a page in a browser. So each run has a token, which its
child processes find in their environment, in the URL of their proxy: other users can read the arguments of a process,
but not its environment.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from envspec.errors import UnfitMachine

#: How many connections wait until they are accepted.
BACKLOG: Final = 256
_USER: Final = "envspec"


@dataclass(frozen=True, slots=True)
class Loopback:
    """A listening socket, and the token that requests need, new in each run."""

    socket: socket.socket
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def proxy(self) -> str:
        """The proxy's URL with the token: for environments of child processes only."""
        return f"http://{_USER}:{self.token}@127.0.0.1:{self.socket.getsockname()[1]}"

    def admits(self, authorization: str) -> bool:
        """Whether a `Proxy-Authorization` header has the token."""
        expected = b"Basic " + base64.b64encode(f"{_USER}:{self.token}".encode())
        return hmac.compare_digest(expected, authorization.encode("utf-8", "surrogateescape"))


@contextmanager
def listening() -> Iterator[Loopback]:
    """A socket on loopback, at a free port; connections wait until something is served there.

    Raises:
        UnfitMachine: this machine has no loopback network.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        # A container's network may be without: resolvers report that they cannot reach an index, and not which.
        try:
            socket.create_connection(listener.getsockname()).close()
        except OSError as error:
            raise UnfitMachine(
                f"no connection to 127.0.0.1, where envspec serves resolvers: {error.strerror}",
                hint="start the loopback network of this machine or container: `ip link set lo up`",
            ) from error
        yield Loopback(listener)
