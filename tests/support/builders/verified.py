"""An environment that `envspec install` made, to change and to verify; restored for each test where it was made.

made = make(tmp_path_factory.mktemp("made"))
scene = made.restored(tmp_path)
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.models import Package, Python
from envspec.structs import replace
from envspec.verifier.record import wheel_sha256
from tests.support.builders.environments import BASE, SERIES, installs, make_lock, pin, write_lock
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, wheel
from tests.support.builders.zips import member
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User

SITE: Final = f"lib/python{SERIES}/site-packages"
TOOL: Final = wheel(
    "tool",
    "1.0",
    files={
        "tool/__init__.py": b"def main():\n    print('tool')\n",
        "tool/data.bin": bytes(range(256)) * 20,
        "tool-1.0.data/data/share/tool/notes.txt": b"notes\n",
        "tool-1.0.data/scripts/script": b"#!python\nprint('script')\n",
        "tool-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntool = tool:main\n",
    },
)
#: As numpy 1.26.4 brings one.
COMPILED: Final = "other/__pycache__/inner.cpython-{}{}.pyc".format(*sys.version_info[:2])
OTHER: Final = wheel(
    "other", "2.0", files={"other/__init__.py": b"", "other/inner.py": b"a = 1\n", COMPILED: b"wheel's"}
)
RECORD: Final = "tool-1.0.dist-info/RECORD"


def anchored(artifact: Artifact) -> Package:
    record = member(artifact.data, ".dist-info/RECORD")
    return replace(pin(artifact), record_sha256=wheel_sha256(record))


@dataclass(frozen=True)
class Scene:
    """A user with an environment and its lock, which may be verified again and again."""

    user: User
    prefix: Path
    lock: Path

    @property
    def site(self) -> Path:
        return self.prefix / SITE

    def verify(self, *words: str | Path, **environ: str) -> Ran:
        return self.user.runs("verify", self.lock, "--prefix", self.prefix, *words, environ=environ)

    def found(self, *words: str) -> set[tuple[str, str, str]]:
        """(package, drift, path) of all that differs."""
        ran = self.verify("--format", "json", *words)
        assert ran.status == 8, ran
        message = json.loads(ran.stdout)
        assert not message["same"]
        return {(each["package"], each["drift"], each["path"]) for each in message["findings"]}


@dataclass(frozen=True)
class Made:
    """An environment and its lock. folder: has both, and a copy of the environment."""

    folder: Path

    def restored(self, folder: Path) -> Scene:
        """The environment as it was installed: its programs name the folder where that was. folder: empty."""
        shutil.rmtree(self.folder / "env", ignore_errors=True)
        shutil.copytree(self.folder / "kept", self.folder / "env", symlinks=True)
        shutil.copytree(self.folder / "lock", folder / "lock")
        return Scene(User(folder, "http://127.0.0.1:9/"), self.folder / "env", folder / "lock")


def make(folder: Path, *more: Artifact, python: Python | None = None) -> Made:
    """Install the two packages. more: of the index only. python: a standalone build, else the one behind the tests'."""
    with IndexServer([File(TOOL), File(OTHER), *map(File, more)]) as index:
        user = User(folder, index.url)
        lock = write_lock(folder / "lock", make_lock(wheels=[anchored(TOOL), anchored(OTHER)], python=python))
        ran = installs(user, lock, *(() if python else ("--python", BASE)))
        assert ran.status == 0, ran.stderr
    shutil.copytree(folder / "env", folder / "kept", symlinks=True)
    return Made(folder)


def hashed(path: Path) -> list[str]:
    """Hash and size of a file, as RECORD has them."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return [f"sha256={digest}", str(path.stat().st_size)]


def rewrite(record: Path, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
    """Change the rows of a RECORD."""
    rows = list(csv.reader(io.StringIO(record.read_text())))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(change(rows))
    record.write_text(text.getvalue())
