"""Stands for GitHub: a repository over HTTP, `gh`, and tokens that are worth what a job's permissions say.

with Forge(tmp_path, repository) as forge:
    token = forge.token({"contents": "write"})
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.servers.faults import Answer
from tests.support.servers.git import serve_by_git
from tests.support.servers.threaded import Exchange, Threaded
from tests.support.workflows import Repository

NAME: Final = "acme/stacks"
#: `gh`, as far as the workflows use it. A token without the right to write pull requests is refused.
_GH: Final = r"""
import os, pathlib, subprocess, sys
folder, words, token = pathlib.Path({folder!r}), sys.argv[1:], os.environ.get("GH_TOKEN", "")
rights = (folder / "tokens" / token).read_text().split() if token.isalnum() else []
def body():
    name = words[words.index("--body-file") + 1]
    return sys.stdin.read() if name == "-" else pathlib.Path(name).read_text(encoding="utf-8")
if words[:2] == ["auth", "setup-git"]:
    subprocess.run(["git", "config", "--global", "credential.helper", "!gh auth git-credential"], check=True)
elif words[:2] == ["auth", "git-credential"]:
    if words[2] == "get":
        print(f"username=x-access-token\npassword={{token}}")
else:
    with open(folder / "calls", "a", encoding="utf-8") as file:
        file.write(" ".join(words) + "\n")
    if words[:2] == ["pr", "list"]:
        print((folder / "open").read_text(), end="")
    elif "pull-requests:write" not in rights:
        sys.exit("HTTP 403: Resource not accessible by integration")
    elif words[:2] in (["pr", "create"], ["pr", "edit"], ["pr", "comment"]):
        (folder / "body").write_text(body(), encoding="utf-8")
    else:
        sys.exit(64)
"""


class Forge(Threaded):
    """open: number of the pull request that is open. folder: holds what was said to it."""

    def __init__(self, folder: Path, repository: Repository) -> None:
        super().__init__()
        self.folder, self.remote = folder, folder / "served" / f"{NAME}.git"
        (folder / "tokens").mkdir(parents=True)
        (folder / "open").touch()
        self.issued: dict[str, Mapping[str, str]] = {}
        self.remote.parent.mkdir(parents=True)
        repository.git("clone", "--quiet", "--bare", ".", str(self.remote))
        repository.git("--git-dir", str(self.remote), "config", "http.receivepack", "true")
        self.repository = repository

    @property
    def url(self) -> str:
        """Where the repository is cloned from, and pushed to."""
        return f"http://{self.host}/{NAME}.git"

    def token(self, permissions: Mapping[str, str]) -> str:
        """A new one, of a job with these permissions."""
        name = f"ghs{len(self.issued):04}{os.urandom(12).hex()}"
        self.issued[name] = permissions
        (self.folder / "tokens" / name).write_text(" ".join(f"{what}:{right}" for what, right in permissions.items()))
        return name

    @property
    def precious(self) -> list[str]:
        """The tokens by which something can be written."""
        return [token for token, permissions in self.issued.items() if "write" in permissions.values()]

    @property
    def gh(self) -> str:
        """`gh`, as a script for bash."""
        path = self.folder / "gh.py"
        path.write_text(_GH.format(folder=str(self.folder)), encoding="utf-8")
        return f'exec "{sys.executable}" "{path}" "$@"'

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def body(self) -> str:
        """What a pull request or a comment was given last."""
        return (self.folder / "body").read_text(encoding="utf-8")

    def git(self, *words: str) -> str:
        """What git prints, in the repository that is served."""
        return self.repository.git("--git-dir", str(self.remote), *words)

    def branches(self) -> dict[str, str]:
        """Branch -> commit."""
        rows = self.git("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").splitlines()
        return {name: commit for name, _, commit in (row.partition(" ") for row in rows)}

    def handle(self, request: Exchange) -> None:
        """By git's own server program, which only lets a token write that may."""
        body = request.body()
        if "git-receive-pack" in request.path:
            login = base64.b64decode(request.headers.get("Authorization", "").partition(" ")[2]).decode()
            if self.issued.get(login.partition(":")[2], {}).get("contents") != "write":
                status = 401 if "Authorization" not in request.headers else 403
                request.answer(Answer(status, headers={"WWW-Authenticate": 'Basic realm="forge"'}))
                return
        serve_by_git(request, self.remote.parent.parent, body)
