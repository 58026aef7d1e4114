"""Where a lock's files may come from, in plain words and values.

On the way of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from envspec.credentials import channel_without_credentials

#: PyTorch's own indexes in locks begin with it: `pytorch-cu128`.
PYTORCH: Final = "pytorch-"
#: PyTorch's own index of one variant. Only the torch family is ever taken from there.
PYTORCH_INDEX: Final = "https://download.pytorch.org/whl/{variant}"
#: What the address of any of its pages begins with; the rest is behind it.
PYTORCH_PAGES: Final = re.compile(r"https?://download\.pytorch\.org/whl\b/?(.*)", re.DOTALL)
#: The origins of the files that its pages list: its own, and its download host. Not read at its source by us; a page
#: that lists another one is refused when it is locked.
PYTORCH_FILES: Final = ("https://download.pytorch.org", "https://download-r2.pytorch.org")
#: What comes from PyTorch's index together with torch. torchdata and PyG's packages do not.
INDEX_FAMILY: Final = ("torch", "torchvision", "torchaudio", "torchtext", "triton", "pytorch-triton")

#: Where channels live that are asked for by name. Source: conda's documentation, setting `channel_alias`.
CHANNEL_ALIAS: Final = "https://conda.anaconda.org"

_PORTS: Final = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, as `https://host` or `https://host:8443`; empty if it has none.

    Two URLs are on one server only if these are equal (RFC 6454, section 4); a user and a password do not count.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if not host:
        return ""
    if ":" in host:
        host = f"[{host}]"
    if port is not None and port != _PORTS.get(parts.scheme):
        host = f"{host}:{port}"
    return f"{parts.scheme}://{host}"


def same_origin(one: str, other: str) -> bool:
    """Whether what was given for one address, such as a login, may be sent to the other.

    `host.` is another name than `host`; an address that can't be read is of no server.
    """
    origin = origin_of(one)
    return origin.startswith(("http://", "https://")) and origin == origin_of(other)


class Bounds:
    """The servers that may answer for one source; `envspec.io.http` checks each hop of a request against them.

    of: the source, as messages name it: `index corp`. urls: addresses on these servers. allow: the hint to a user who
    trusts another server as well; `{}` stands for its origin. hashed: what is requested is checked by a SHA-256 that
    one of these servers gave: the request starts at one of them and may be redirected anywhere.
    """

    __slots__ = ("_allow", "_hashed", "_origins", "of")

    def __init__(self, of: str, urls: Iterable[str], allow: str, *, hashed: bool = False) -> None:
        self.of = of
        self._origins = frozenset(map(origin_of, urls)) - {""}
        self._allow = allow
        self._hashed = hashed

    def allows(self, url: str, *, redirected: bool) -> bool:
        """Whether a request may be sent to this address; redirected: by the answer to another one."""
        return (redirected and self._hashed) or origin_of(url) in self._origins

    def way_out(self, url: str) -> str:
        """The hint for an address that is refused."""
        return self._allow.format(origin_of(url))


def channel_url(text: str) -> str:
    """The address of a conda channel as a spec writes it, without credentials and without a slash at its end."""
    public = channel_without_credentials(text).rstrip("/")
    if "://" not in public:
        return f"{CHANNEL_ALIAS}/{public}"
    scheme, _, rest = public.partition("://")
    host, slash, path = rest.partition("/")
    if scheme.lower() == "file":
        host = ""
    return f"{scheme.lower()}://{host.lower()}{slash}{path}"
