"""Copies of this repository for its workflows to run on, with a history of their own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.user import ROOT

#: All that is tracked, for steps that look at all of it.
WHOLE: Final = (
    *(".ci", ".github", "bench", "docs", "envspec", "locks", "specs", "tests"),
    *("README.md", "envspec.schema.json", "noxfile.py", "pyproject.toml", "LICENSE"),
)
_AUTHOR: Final = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")


class Repository:
    """A git repository in a new folder. parts: files and folders of this repository that are copied into it."""

    def __init__(self, folder: Path, parts: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for part in parts:
            source = ROOT / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".mypy_cache")
                shutil.copytree(source, folder / part, ignore=ignored, symlinks=True)
            else:
                (folder / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / part)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        """What git prints."""
        command = ["git", *_AUTHOR, *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commits(self, message: str) -> str:
        """The commit of all that there is."""
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD").strip()

    def text(self, path: str) -> str:
        return (self.folder / path).read_text(encoding="utf-8")

    def writes(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")
