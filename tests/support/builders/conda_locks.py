"""pixi.lock and conda-lock.yml of packages that tests made.

Sources: pixi's documentation, "Lock file" (https://pixi.sh/latest/workspace/lockfile/), for formats 5 to 7;
conda-lock 4.0.3, `conda_lock.lockfile.v1.models`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tests.support.builders.conda_archive import CondaArchive

HASH = "0123456789abcdef" * 4
FORGE = "https://conda.anaconda.org/conda-forge"


@dataclass(frozen=True)
class Conda:
    """An archive in a channel at this address. more: fields of pixi.lock to set instead; None removes one.

    category: of conda-lock.
    """

    archive: CondaArchive
    channel: str = FORGE
    more: Mapping[str, Any] | None = None
    category: str = "main"

    @property
    def url(self) -> str:
        return f"{self.channel}/{self.archive.subdir}/{self.archive.filename}"


@dataclass(frozen=True)
class Wheel:
    """A PyPI package, by what its lock has as its address: a URL, a commit of git, or a folder."""

    name: str
    url: str
    sha256: str = HASH
    version: str = "1.0"
    category: str = "main"


def pixi_lock(
    environments: Mapping[str, Mapping[str, Sequence[Conda | Wheel]]],
    version: int = 6,
    channels: Sequence[str] = (FORGE,),
    platforms: Sequence[Mapping[str, str]] = ({"name": "linux-64"},),
) -> str:
    """environments: of each platform's name the packages, by the environment's name. platforms: of format 7."""
    entries: dict[str, dict[str, Any]] = {}
    listed: dict[str, Any] = {}
    for name, by_platform in environments.items():
        used: dict[str, list[dict[str, str]]] = {}
        for platform, packages in by_platform.items():
            used[platform] = [{_kind(each): each.url} for each in packages]
            entries |= {each.url: _of_pixi(each, version) for each in packages}
        listed[name] = {"channels": [{"url": f"{url}/"} for url in channels], "packages": used}
    document: dict[str, Any] = {"version": version, "environments": listed, "packages": list(entries.values())}
    if version >= 7:
        document["platforms"] = [dict(each) for each in platforms]
    return yaml.safe_dump(document, sort_keys=False)


def _kind(package: Conda | Wheel) -> str:
    return "conda" if isinstance(package, Conda) else "pypi"


def _of_pixi(package: Conda | Wheel, version: int) -> dict[str, Any]:
    if isinstance(package, Wheel):
        is_file = "://" in package.url and not package.url.startswith("git+")
        sha256 = package.sha256 if is_file else None
        fields: dict[str, Any] = {"name": package.name, "version": package.version, "sha256": sha256}
    else:
        row = package.archive.row()
        fields = {
            key: row.get(key) for key in ("sha256", "md5", "depends", "constrains", "license", "size", "timestamp")
        }
        if version < 6:
            fields |= {key: row.get(key) for key in ("name", "version", "build", "subdir", "noarch")}
        fields |= package.more or {}
    address = {_kind(package): package.url}
    if version < 6:
        address = {"kind": _kind(package), "url": package.url}
    return address | {key: value for key, value in fields.items() if value is not None}


def conda_lock(packages: Mapping[str, Sequence[Conda | Wheel]], channels: Sequence[str] = ("conda-forge",)) -> str:
    """packages: of each platform."""
    listed: list[dict[str, Any]] = []
    for platform, of_platform in packages.items():
        listed += [_of_conda_lock(each, platform) for each in of_platform]
    metadata = {
        "content_hash": dict.fromkeys(packages, HASH),
        "channels": [{"url": each, "used_env_vars": []} for each in channels],
        "platforms": list(packages),
        "sources": ["environment.yml"],
    }
    return yaml.safe_dump({"version": 1, "metadata": metadata, "package": listed}, sort_keys=False)


def _of_conda_lock(package: Conda | Wheel, platform: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"platform": platform, "url": package.url, "category": package.category, "optional": False}
    if isinstance(package, Wheel):
        found = {"name": package.name, "version": package.version, "manager": "pip", "dependencies": {}}
        return found | fields | {"hash": {"sha256": package.sha256}}
    row: Any = package.archive.row()
    depends = dict(_parts(text) for text in row["depends"])
    hashes = {key: row[key] for key in ("md5", "sha256")} | dict(package.more or {})
    found = {"name": row["name"], "version": row["version"], "manager": "conda", "dependencies": depends}
    return found | fields | {"hash": {key: value for key, value in hashes.items() if value}}


def _parts(requirement: str) -> tuple[str, str]:
    name, _, version = requirement.partition(" ")
    return name, version
