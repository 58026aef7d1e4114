"""Locks that `envspec install` makes environments from, written by hand: of archives, wheels and a Python.

user = User(tmp_path, index.url)
lock = write_lock(user.folder / "lock", conda=(channel.find("greet"), ...), channel=channel.url, wheels=(tool,))
assert user.runs("install", lock, "--prefix", "env").status == 0
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envspec.diagnostics.machine import this_platform
from envspec.lockfile.document import dump
from envspec.lockfile.folder import write_folder
from envspec.lockfile.header import FORMAT, LOCK_FILE
from envspec.models import (
    DEFAULT_INDEX,
    DIRECT_URL,
    CondaPackage,
    Dependent,
    Lock,
    Package,
    Platform,
    Python,
    Resolution,
    Target,
    WheelFile,
)
from tests.support.builders.conda_archive import CondaArchive
from tests.support.builders.wheels import Artifact
from tests.support.builders.zips import record_digest
from tests.support.user import Ran, Running, User

#: The interpreter behind the one that runs the tests, and its version: what venvs and test channels stand on.
RUNNING = platform.python_version()
SERIES = ".".join(RUNNING.split(".")[:2])
BASE = Path(sys.base_prefix, "bin", f"python{SERIES}")


def conda_row(archive: CondaArchive, channel: str, **others: Any) -> CondaPackage:
    """The row of an archive in a channel at that address. others: fields to set instead."""
    row: Any = archive.row()
    fields: dict[str, Any] = {
        **{name: row[name] for name in ("name", "version", "build", "build_number", "subdir", "sha256", "md5")},
        "channel": "forge",
        "filename": archive.filename,
        "url": f"{channel}/{archive.subdir}/{archive.filename}",
        "size_bytes": row["size"],
        "timestamp_ms": row.get("timestamp"),
        "depends": tuple(row["depends"]),
        "constrains": tuple(row["constrains"]),
        "noarch": row.get("noarch", ""),
        "license": row.get("license"),
        "required_by": (Dependent("spec", archive.name),),
    }
    return CondaPackage(**{**fields, **others})


def pin(wheel: Artifact, *, url: str | None = None, **others: Any) -> Package:
    """A pinned wheel of the default index, or of a URL. others: fields of its file to set instead."""
    file: dict[str, Any] = {
        "index": DIRECT_URL if url else DEFAULT_INDEX,
        "filename": wheel.filename,
        "sha256": wheel.sha256,
        "size_bytes": wheel.size_bytes,
        "url": url,
        **others,
    }
    return Package(wheel.name, wheel.version, WheelFile(**file), (Dependent("spec", wheel.name),))


def make_lock(
    *,
    conda: Sequence[CondaPackage] = (),
    wheels: Sequence[Package] = (),
    python: Python | None = None,
    where: Platform | None = None,
    name: str = "small",
) -> Lock:
    """A lock for one platform: this machine's where none is named. python: the running one, by default."""
    python = python or Python(RUNNING, "conda" if conda else "spec")
    target = Target(where or this_platform(), python, glibc=(2, 17))
    sorted_wheels = tuple(sorted(wheels, key=lambda each: each.name))
    sorted_conda = tuple(sorted(conda, key=lambda each: each.name))
    return Lock(
        format=FORMAT,
        name=name,
        input_sha256=hashlib.sha256(name.encode()).hexdigest(),
        as_of=datetime(2026, 11, 15, tzinfo=timezone.utc),
        resolutions=(Resolution(target, sorted_wheels, conda=sorted_conda),),
        decisions=(),
        base_image=None,
        driver=None,
        gpu_code=(),
    )


def write_lock(folder: Path, lock: Lock) -> Path:
    write_folder(folder, {LOCK_FILE: dump(lock, {}).encode()})
    return folder


def starts(user: User, lock: Path, *words: str | Path, prefix: str = "env", **environ: str) -> Running:
    """`envspec install lock --prefix PREFIX WORDS`, without waiting for its end."""
    return user.in_background(("install", lock, "--prefix", prefix, *words), {**user.environ, **environ})


def installs(user: User, lock: Path, *words: str | Path, prefix: str = "env", **environ: str) -> Ran:
    """The same, to its end."""
    return user.runs("install", lock, "--prefix", prefix, *words, environ=environ)


def run_in(prefix: Path, *words: str) -> str:
    """What a program of the environment writes, started with nothing but its own path."""
    done = subprocess.run(
        [str(prefix / "bin" / words[0]), *words[1:]], capture_output=True, text=True, check=False, env={}, cwd="/"
    )
    assert done.returncode == 0, done
    return done.stdout.strip()


def tree(prefix: Path) -> dict[str, str]:
    """Every file and link of an environment: its hash, or where it leads."""
    found = {}
    for path in sorted(prefix.rglob("*")):
        name = str(path.relative_to(prefix))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def names_of_site(prefix: Path) -> list[str]:
    """Files and links of an environment that still name the folder where it was built."""
    mark = b".envspec-partial"
    return [
        str(path.relative_to(prefix))
        for path in sorted(prefix.rglob("*"))
        if (path.is_symlink() and mark in os.fsencode(path.readlink()))
        or (path.is_file() and not path.is_symlink() and mark in path.read_bytes())
    ]


def wrong_rows(prefix: Path) -> list[str]:
    """Rows of RECORD files that do not fit the files they are of."""
    wrong = []
    for record in sorted(prefix.rglob("*.dist-info/RECORD")):
        for row in csv.reader(io.StringIO(record.read_text(encoding="utf-8"))):
            if not row or not row[1]:
                continue
            data = (record.parent.parent / row[0]).read_bytes()
            if row[1:] != [record_digest(data), str(len(data))]:
                wrong.append(row[0])
    return wrong


def left_beside(prefix: Path) -> list[str]:
    """What an installation left in the environment's parent folder, of names that it makes up."""
    return sorted(path.name for path in prefix.parent.iterdir() if ".envspec-" in path.name)


def pip_check(prefix: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`uv pip check` on an environment."""
    from uv import find_uv_bin

    return subprocess.run(
        [find_uv_bin(), "pip", "check", "--no-config", "--python", str(prefix / "bin" / "python")],
        capture_output=True,
        text=True,
        check=False,
        env=dict(environ),
    )
