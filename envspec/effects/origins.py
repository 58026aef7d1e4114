"""Whether two addresses are of one server: what was given for the one may then be sent to the other."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}


def same_origin(one: str, other: str) -> bool:
    """Whether scheme, host and port are the same, of http or https addresses; whoever's name is in them.

    The letters' case makes no difference, nor does a port that is the scheme's own. `host.` is another name than
    `host`. What can't be read is of no server.
    """
    found = _origin(one)
    return found is not None and found == _origin(other)


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host:
        return None
    return parts.scheme, host, _PORTS[parts.scheme] if port is None else port
