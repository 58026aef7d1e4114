"""Hosts of a company, for pages about private indexes, channels and repositories, and mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.operations.test_build_projects import PROJECT, Repository
from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import write
from tests.support.servers.channel import CondaServer
from tests.support.servers.git import GitServer
from tests.support.servers.index import IndexServer

#: The login of every private host on the pages.
LOGIN: Final = ("ci", "secret")


def kernels() -> dict[str, bytes]:
    """The project `kernels`, which requires nothing."""
    return {
        path.replace("own", "kernels"): content.replace(b"own", b"kernels").replace(b"Requires-Dist: lib>=1\\n", b"")
        for path, content in PROJECT.items()
    }


@contextmanager
def private_hosts(index: IndexServer, pytorch: IndexServer, private: IndexServer) -> Iterator[dict[str, str]]:
    """Text on pages -> text on this machine. private: requires LOGIN."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        # One to solve with, the same everywhere, and one whose environments run.
        pythons = sorted({conda_packages.GOLDEN_PYTHON, conda_packages.running()})
        forge = write(root / "forge", conda_packages.forge(*pythons))
        team = write(root / "team", conda_packages.corp(*pythons))
        Repository(root / "git" / "kernels.git", kernels())
        with (
            CondaServer({"forge": forge}) as conda,
            CondaServer({"team": team}, credentials=LOGIN) as login,
            GitServer(root / "git", login=LOGIN) as git,
        ):
            yield {
                "https://mirror.example.com/simple": index.url.rstrip("/"),
                "https://mirror.example.com/whl/{variant}": pytorch.url.rstrip("/"),
                # A netrc file has no ports.
                "machine private.example.com": "machine 127.0.0.1",
                **{f"https://{login}private.example.com": _with(login, private.root) for login in ("", _VARIABLES)},
                "https://conda.example.com": conda.root,
                '["conda-forge"]': f'["{conda.root}/forge"]',
                f"https://{_VARIABLES}channels.example.com": _with(_VARIABLES, login.root),
                "https://channels.example.com": login.root,
                f"https://{_VARIABLES}git.example.com": _with(_VARIABLES, f"http://{git.host}"),
                "https://git.example.com": f"http://{git.host}",
            }


_VARIABLES: Final = "${TEAM_USER}:${TEAM_TOKEN}@"


def _with(login: str, address: str) -> str:
    return address.replace("://", f"://{login}")
