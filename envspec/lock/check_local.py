"""Whether the folders that a lock's wheels were built of are still what they were. Read only where a lock has any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envspec.io.files import local_path, tree_sha256


def changed(lock: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """Name and address of every package whose folder or file is another now. folder: the spec's.

    What is not there is not told: elsewhere, the lock's wheel stands for it.
    """
    told: set[str] = set()
    for resolution in lock.get("resolution", ()):
        for package in resolution.get("package", ()):
            file = package["file"]
            address, _, sha256 = file.get("url", "").partition("#sha256=")
            if file["index"] != "local" or package["name"] in told:
                continue
            path = local_path(address, folder)
            if path.exists() and tree_sha256(path) != sha256:
                told.add(package["name"])
                yield package["name"], address
