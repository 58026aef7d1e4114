"""A git server over HTTP on 127.0.0.1: git's own, behind a login and what else a server may do."""

from __future__ import annotations

import os
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

from tests.support.servers.loopback import Threaded, basic


class GitServer(Threaded):
    """The repositories below `root`, as `URL/name`.

    login: what every request must bring. leads_to: where all requests are redirected. asks: whether it wants a login,
    whatever is sent. seen: path and Authorization of each request.
    """

    def __init__(self, root: Path, *, login: tuple[str, str] | None = None, leads_to: str = "", asks: bool = False):
        self.root, self.login, self.leads_to, self.asks = root, login, leads_to, asks
        self.seen: list[tuple[str, str]] = []
        super().__init__(type("Bound", (_Handler,), {"owner": self}))

    def url(self, name: str, login: str = "") -> str:
        return f"http://{login}{'@' if login else ''}{self.host}/{name}"


class _Handler(BaseHTTPRequestHandler):
    owner: ClassVar[GitServer]

    def do_GET(self) -> None:
        owner = self.owner
        sent = self.headers.get("Authorization", "")
        owner.seen.append((self.path, sent))
        if owner.leads_to:
            self.send_response(302)
            self.send_header("Location", owner.leads_to + self.path)
            self.end_headers()
        elif owner.asks or (owner.login and sent != f"Basic {basic(*owner.login)}"):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            serve_by_git(
                self,
                owner.root,
                GIT_CONFIG_COUNT="2",
                GIT_CONFIG_KEY_0="safe.directory",
                GIT_CONFIG_VALUE_0="*",
                GIT_CONFIG_KEY_1="uploadpack.allowFilter",
                GIT_CONFIG_VALUE_1="true",
            )

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `GitServer.seen`."""


def body_of(request: BaseHTTPRequestHandler) -> bytes:
    """What a request brings, in pieces or not."""
    body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
    if request.headers.get("Transfer-Encoding") == "chunked":
        while size := int(request.rfile.readline(), 16):
            body += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
    return body


def serve_by_git(request: BaseHTTPRequestHandler, root: Path, body: bytes | None = None, **environ: str) -> None:
    """Answer by git's own server program. body: of the request, where it has been read. environ: more for git."""
    sent = body_of(request) if body is None else body
    path, _, query = request.path.partition("?")
    variables = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "REQUEST_METHOD": request.command,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(sent)),
        "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        "REMOTE_USER": "user",
        **environ,
    }
    done = subprocess.run(["git", "http-backend"], env=variables, input=sent, capture_output=True, check=True)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
    request.send_response(int(fields.pop("Status", "200").partition(" ")[0]))
    for name, value in fields.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)
