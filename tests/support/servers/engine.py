"""A container engine's API on a socket of its own, as far as a client asks which engine it is."""

from __future__ import annotations

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

#: As Podman 4.3.1 and Docker 20.10.24 answer.
_VERSIONS = {
    "Podman Engine": {"Version": "4.3.1", "ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"},
    "Engine": {"Version": "20.10.24", "ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"},
}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    component = ""


class _Exchange(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        component = self.server.component
        document: dict[str, Any] = {"MemTotal": 1 << 30, "ServerVersion": _VERSIONS[component]["Version"]}
        if self.path.endswith("/version"):
            document = {**_VERSIONS[component], "Components": [{"Name": component}]}
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Api-Version", "1.41")
        if component.startswith("Podman"):
            self.send_header("Libpod-API-Version", "4.3.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "socket"

    def log_message(self, format: str, *args: object) -> None:
        """The client's outcome is what tests read."""


@contextmanager
def engine_at(socket: Path, component: str) -> Iterator[None]:
    """An engine at a socket. component: `Podman Engine`, or `Engine` for Docker's."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    with _Server(str(socket), _Exchange) as server:
        server.component = component
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            socket.unlink()
