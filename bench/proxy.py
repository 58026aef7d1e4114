"""A forward proxy on loopback that counts bytes: the one way of counting that works for every tool alike.

Why a proxy: the counters of the machine's interfaces hold everybody's traffic; a network namespace of its own needs
address translation, so root and a firewall tool; and every tool here obeys HTTPS_PROXY. It runs as a process of its
own, so that none of its CPU time or memory is counted as a tool's. TLS stays end to end: what is counted is what went
over the wire, headers and handshakes too.

`python -m bench.proxy` prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from bench.harness import module

_CHUNK_BYTES = 1 << 18
#: Asked of the proxy itself.
_COUNTS = "/counts"


@dataclass(slots=True)
class Counts:
    """Bytes since the proxy started. received: from the network to the tools."""

    received: int = 0
    sent: int = 0
    connections: int = 0


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> Counts:
        """What went through so far."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", _COUNTS)
            return Counts(**json.loads(connection.getresponse().read()))
        finally:
            connection.close()


@contextmanager
def running() -> Iterator[Proxy]:
    """A proxy in a process of its own, for the length of the block."""
    with module("bench.proxy") as (port, _):
        yield Proxy(port)


class _Relay:
    def __init__(self) -> None:
        self.counts = Counts()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
            if method == "CONNECT":
                await self._tunnel(reader, writer, target)
            elif target.startswith("http://"):
                await self._forward(reader, writer, head, target)
            else:
                await _answer(writer, json.dumps(asdict(self.counts)).encode())
        writer.close()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        host, _, port = target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_CHUNK_BYTES)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self._both(reader, writer, far_reader, far_writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, url: str) -> None:
        """One plain request, its connection closed after it."""
        parts = urlsplit(url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        first, rest = head.split(b"\r\n", 1)
        method, version = first.split(b" ")[0], first.split(b" ")[2]
        fields = [field for field in rest.split(b"\r\n") if not field.lower().startswith((b"connection:", b"proxy-"))]
        far_reader, far_writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=_CHUNK_BYTES)
        request = b"\r\n".join([b" ".join([method, path.encode(), version]), b"Connection: close", *fields])
        far_writer.write(request)
        self.counts.sent += len(request)
        await self._both(reader, writer, far_reader, far_writer)

    async def _both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        self.counts.connections += 1
        up = asyncio.create_task(self._up(reader, far_writer))
        with contextlib.suppress(ConnectionError):
            while data := await far_reader.read(_CHUNK_BYTES):
                self.counts.received += len(data)
                writer.write(data)
                await writer.drain()
        up.cancel()
        far_writer.close()

    async def _up(self, reader: asyncio.StreamReader, far_writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                self.counts.sent += len(data)
                far_writer.write(data)
                await far_writer.drain()
            far_writer.write_eof()


async def _answer(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
    await writer.drain()


async def _main() -> None:
    relay = _Relay()
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=_CHUNK_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_main())
