"""Where processes of several ranks meet: a free port, and the interface that leads to the others.

Source: netdevice(7) for SIOCGIFADDR; /proc/net/if_inet6 in the kernel's `net/ipv6/addrconf.c`. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16
#: Of struct ifreq: the IPv4 address within the sockaddr behind the name.
_ADDRESS = slice(20, 24)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])


def endpoint(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, of `[ADDRESS]:PORT` too.

    Raises:
        ValueError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"the rendezvous {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def interface_towards(host: str, port: int) -> str:
    """The name of the interface from which this machine reaches `host`; empty where that can't be known.

    A name that leads to this machine's own loopback leads no other machine here: nothing is said then.
    """
    with contextlib.suppress(OSError):
        family, kind, protocol, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as one:
            # A datagram socket is connected without a packet: the system only chooses the route.
            one.connect(there)
            address = ipaddress.ip_address(one.getsockname()[0].partition("%")[0])
        if not address.is_loopback:
            return _interface_of(address)
    return ""


def _interface_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if address.version == 6:
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            words = line.split()
            if int(words[0], 16) == int(address):
                return words[-1]
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack(f"{_NAME_BYTES}s{_NAME_BYTES + 8}x", name.encode()[: _NAME_BYTES - 1])
                if fcntl.ioctl(one, _SIOCGIFADDR, asked)[_ADDRESS] == address.packed:
                    return name
    return ""
