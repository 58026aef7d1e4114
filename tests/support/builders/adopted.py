"""Projects with a uv.lock, which uv writes from an index on loopback.

The lock names the default index by its real address, as locks in the wild do: uv is given that of loopback, which is
exchanged afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import uv
from pip._internal.models.index import PyPI

from envspec.io.http_settings import default_index_url
from tests.support.builders.environments import RUNNING
from tests.support.builders.images import BaseMade
from tests.support.servers.index import IndexServer

PROJECT: Final = """
[project]
name = "app"
version = "1.0"
requires-python = ">=3.10"
"""
#: Behind it: a project of alpha and beta, with an extra and a group.
TEXT: Final = """
dependencies = ["beta"]

[project.optional-dependencies]
more = ["gamma"]

[dependency-groups]
dev = ["delta"]
"""
FILES: Final = f"https://{PyPI.file_storage_domain}/packages/"


def settings_of(base: BaseMade) -> str:
    """[tool.envspec] for a base that needs neither a standalone Python nor apt."""
    return (
        f'\n[tool.envspec.env]\npython = "{RUNNING}"\n\n[tool.envspec.image]\n'
        f'base = "docker.io/nvidia/cuda:1@{base.digest}"\nglibc = "2.36"\npython = "{RUNNING}"\n'
    )


def write_project(folder: Path, text: str, index: IndexServer, files: Mapping[str, str] = {}) -> Path:
    """Write a project and lock it by uv; the path of its uv.lock.

    text: of pyproject.toml, behind PROJECT's table. files: more of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT + text)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return lock_project(folder, index)


def lock_project(folder: Path, index: IndexServer) -> Path:
    return lock_from(folder, index.url)


def lock_from(folder: Path, index: str) -> Path:
    """Lock a project with the index at a URL; the path of its uv.lock."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    environ |= {"UV_CACHE_DIR": str(folder.parent / "uv-cache"), "UV_NO_CONFIG": "1"}
    command = [uv.find_uv_bin(), "lock", "--quiet", "--default-index", index, "--python", sys.executable]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lock = folder / "uv.lock"
    text = lock.read_text().replace(index.rstrip("/"), default_index_url({}).rstrip("/"))
    root = index.rstrip("/").removesuffix("/simple")
    lock.write_text(text.replace(f"{root}/files/", FILES).replace(root, FILES.rstrip("/")))
    return lock
