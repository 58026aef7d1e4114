"""A git server over HTTP on 127.0.0.1: git's own, behind a login and what else a server may do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.servers.faults import Answer
from tests.support.servers.loopback import basic
from tests.support.servers.threaded import Exchange, Threaded


class GitServer(Threaded):
    """The repositories below `root`, as `URL/name`.

    login: what every request must bring. leads_to: where all requests are redirected. asks: whether it wants a login,
    whatever is sent. seen: path and Authorization of each request.
    """

    def __init__(
        self, root: Path, *, login: tuple[str, str] | None = None, leads_to: str = "", wants_login: bool = False
    ):
        super().__init__()
        self.root, self.login, self.leads_to, self.wants_login = root, login, leads_to, wants_login
        self.seen: list[tuple[str, str]] = []

    def url(self, name: str, login: str = "") -> str:
        return f"http://{login}{'@' if login else ''}{self.host}/{name}"

    def handle(self, request: Exchange) -> None:
        sent = request.headers.get("Authorization", "")
        self.seen.append((request.path, sent))
        body = request.body()
        if self.leads_to:
            request.answer(Answer(302, headers={"Location": self.leads_to + request.path}))
        elif self.wants_login or (self.login and sent != f"Basic {basic(*self.login)}"):
            request.answer(Answer(401, headers={"WWW-Authenticate": 'Basic realm="git"'}))
        else:
            settings = {"safe.directory": "*", "uploadpack.allowFilter": "true"}
            environ = {"GIT_CONFIG_COUNT": str(len(settings))}
            for number, (key, value) in enumerate(settings.items()):
                environ |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
            serve_by_git(request, self.root, body, **environ)


def serve_by_git(request: Exchange, root: Path, body: bytes, **environ: str) -> None:
    """Answer by git's own server program. environ: more for git."""
    path, _, query = request.path.partition("?")
    variables = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "REQUEST_METHOD": request.command,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        "REMOTE_USER": "user",
        **environ,
    }
    done = subprocess.run(["git", "http-backend"], env=variables, input=body, capture_output=True, check=True)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
    status = int(fields.pop("Status", "200").partition(" ")[0])
    request.answer(Answer(status, content, fields))
