"""What lies under a folder after a wheel was installed there: by pip, or from the entries of a layer."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import posixpath
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envspec.image.layers.types import Entry, EntryKind
from envspec.image.sources.wheel import LockedWheel, Scheme
from envspec.structs import replace
from tests.support.builders.entries import content

#: Python that runs the tests and pip, so that pip installs for it.
SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Found:
    """A file as it lies there."""

    mode: int
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def locked(path: Path, *, direct_url: str | None = None) -> LockedWheel:
    """A wheel as the lock names it."""
    name, version = path.name.split("-")[:2]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return LockedWheel(name.replace("_", "-").lower(), version, path.name, sha256, path, direct_url)


def scheme_of_pip(prefix: str = "env") -> Scheme:
    """Where the pip of the tests puts things: headers apart, as in each virtual environment."""
    made = Scheme.of_venv(SERIES, prefix) if sys.prefix != sys.base_prefix else Scheme.of(SERIES, prefix)
    return replace(made, interpreter=sys.executable)


def tree_of(entries: Iterable[Entry]) -> dict[str, Found]:
    """The files of a layer; each folder has to come before what is in it, and nothing twice."""
    files: dict[str, Found] = {}
    folders: set[str] = {""}
    for entry in entries:
        assert entry.path not in files
        assert entry.path not in folders
        assert posixpath.dirname(entry.path) in folders, f"{entry.path} comes before its folder"
        if entry.kind is EntryKind.FOLDER:
            folders.add(entry.path)
        else:
            files[entry.path] = Found(entry.mode, content(entry))
    return files


def pip_tree(folder: Path, requirements: Sequence[str], *words: str, prefix: str = "env") -> dict[str, Found]:
    """The files after `pip install --require-hashes --no-deps --no-compile` of these lines, by path below `folder`."""
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes"),
        *("--ignore-installed", "--no-warn-script-location", "--prefix", str(folder / prefix)),
        *("--requirement", str(listed), *words),
    ]
    subprocess.run(command, check=True, env=pip_environ(), umask=0o022, capture_output=True, text=True)
    root = folder / prefix
    return {
        str(path.relative_to(folder)): Found(path.stat().st_mode & 0o7777, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def pip_environ() -> dict[str, str]:
    """This process's environment without what would lead pip to other files than the ones that are asked for."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PIP_FIND_LINKS", "PIP_NO_INDEX"}}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


def hashed(wheel: LockedWheel) -> str:
    """The line of a requirements file."""
    return f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}"


def rows_of(record: bytes) -> list[tuple[str, str, str]]:
    """RECORD's rows, without those of files that are known to differ."""
    rows = [(path, digest, size) for path, digest, size in csv.reader(io.StringIO(record.decode("utf-8"), newline=""))]
    known = ("/INSTALLER", "/REQUESTED", "/direct_url.json")
    return sorted(
        (path, "", "") if "/bin/" in path else (path, digest, size)
        for path, digest, size in rows
        if not path.endswith(known)
    )


def differences(ours: Mapping[str, Found], pips: Mapping[str, Found]) -> list[str]:
    """What differs, but for what is known to, each with its reason:

    INSTALLER says `envspec`; REQUESTED is pip's mark of what was named on the command line, which for a lock is all;
    RECORD has rows for these, and its lines end as `installer` ends them; programs made from entry points are
    `installer`'s text, but for the first line and what they call the same as pip's; direct_url.json has the
    hash, which pip leaves out before 23.1.
    """
    wrong = [f"only pip has {path}" for path in pips if path not in ours and not path.endswith("/REQUESTED")]
    wrong += [f"only the layer has {path}" for path in ours if path not in pips]
    for path in sorted(set(ours) & set(pips)):
        here, there = ours[path], pips[path]
        if here.mode != there.mode:
            wrong.append(f"{path} has mode {here.mode:o}, pip's {there.mode:o}")
        if path.endswith("/RECORD"):
            wrong += [f"{path}: {row}" for row in sorted(set(rows_of(here.content)) ^ set(rows_of(there.content)))]
        elif "/bin/" in path and here.content.startswith(b"#!") and b"sys.exit(" in here.content:
            wrong += [f"{path} calls something else"] if _calls(here.content) != _calls(there.content) else []
        elif path.endswith("/direct_url.json"):
            wrong += [] if _is_same_origin(here.content, there.content) else [f"{path} tells of something else"]
        elif here.content != there.content and not path.endswith(".dist-info/INSTALLER"):
            wrong.append(f"{path} has other bytes")
    return wrong


def _is_same_origin(ours: bytes, pips: bytes) -> bool:
    here, there = json.loads(ours), json.loads(pips)
    return here["url"] == there["url"] and there["archive_info"] in ({}, here["archive_info"])


def _calls(script: bytes) -> list[str]:
    lines = script.decode("utf-8").splitlines()
    return [lines[0], *(line.strip() for line in lines if line.startswith("from ") or "sys.exit(" in line)]
