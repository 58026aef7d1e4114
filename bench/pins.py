"""Reads which versions a tool locked, from each tool's own file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from envspec.toml import loads

FAMILY: Final = ("torch", "torchvision", "torchaudio", "torchtext")


def read(result: Path) -> dict[str, str]:
    """Name -> version; a universal lock's several versions of one name come joined with `|`.

    result: a requirements file, a TOML lock (`[[package]]` or `[[packages]]`), or envspec's folder (linux-64's file).
    """
    if result.is_dir():
        return _requirements(result / "requirements.linux-64.txt")
    return _requirements(result) if result.suffix == ".txt" else _toml(result)


def family_of(pins: dict[str, str]) -> dict[str, str]:
    return {name: pins[name] for name in FAMILY if name in pins}


def _requirements(file: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", file.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def _toml(file: Path) -> dict[str, str]:
    document = loads(file.read_text())
    versions: dict[str, set[str]] = {}
    for row in document.get("package") or document.get("packages") or []:
        # uv.lock lists the project itself as a package; only its source says so.
        if "version" in row and not {"virtual", "editable"} & set(row.get("source", {})):
            versions.setdefault(canonicalize_name(row["name"]), set()).add(row["version"])
    return {name: "|".join(sorted(found)) for name, found in versions.items()}
