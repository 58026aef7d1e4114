"""Locked conda packages: conda-lock.yml."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from envspec.importers.conda_explicit import filename_of
from envspec.importers.conda_specs import (
    add_channel,
    add_pinned,
    add_platform,
    archive_parts,
    check_count,
    order_of_platforms,
)
from envspec.importers.graph import roots
from envspec.importers.pyproject import read_conda_project
from envspec.importers.types import DraftRequirement, Import, Outcome, Source, Unreadable
from envspec.importers.yaml_lines import read_yaml
from envspec.io.yaml_lines import Value
from envspec.names import normalised
from envspec.spec.document import PYPROJECT


def read_conda_lock(path: Path, imported: Import) -> None:
    """conda-lock.yml, version 1: its packages are preferred versions. What is required is in the files that it was made
    of; if they are missing, the packages that no other one requires are.

    Raises:
        Unreadable: it is not YAML, or of another version.
    """
    top, file = read_yaml(path, imported), imported.shown(path)
    if top.get("version").text != "1":
        raise Unreadable(f"{file} is not a conda-lock.yml of version 1")
    metadata = top.get("metadata")
    for item in metadata.get("channels").items:
        channel = item.get("url").text or item.text
        add_channel(imported, Source(file, item.line), channel, f"channel: {channel}")
    for item in metadata.get("platforms").items:
        add_platform(imported, Source(file, item.line), item.text)
    is_required = _include_sources(imported, file, path.parent, metadata.get("sources"))
    check_count(file, len(top.get("package").items))
    packages, unnamed = [], []
    for item in top.get("package").items:
        if item.get("name").text and item.get("version").text:
            packages.append(item)
        else:
            unnamed.append(item)
    rooted: set[str] = set()
    if not is_required:
        rooted = _rooted(packages)
    # The spec's first platform first: its build is the one that is preferred where builds differ.
    order = order_of_platforms(imported)
    for package in sorted(packages, key=lambda each: order(each.get("platform").text)):
        _read_locked(imported, file, package, rooted)
    for item in unnamed:
        imported.add(Source(file, item.line), item.shown(), Outcome.NOT_UNDERSTOOD, "no name or no version")


def _include_sources(imported: Import, file: str, folder: Path, sources: Value) -> bool:
    """Import the files that a lock was made of. Returns whether all of them were."""
    found = bool(sources.items)
    for item in sources.items:
        source, path = Source(file, item.line), folder / item.text
        if imported.find(path) is None or not path.is_file():
            found = False
            reason = "it is not here: packages that no other one requires are used as its requirements"
            imported.add(source, f"source: {item.text}", Outcome.TRANSLATED, reason)
        else:
            importer = read_conda_project if path.name == PYPROJECT else None
            imported.include(path, source, f"source: {item.text}", importer)
    return found


def _rooted(packages: Iterable[Value]) -> set[str]:
    graph: dict[str, set[str]] = {}
    for package in packages:
        required = {name for name in package.get("dependencies").keys if not name.startswith("__")}
        graph.setdefault(package.get("name").text, set()).update(required)
    return set(roots(graph))


def _read_locked(imported: Import, file: str, package: Value, rooted: Collection[str]) -> None:
    name, version, platform = (package.get(key).text for key in ("name", "version", "platform"))
    source, url = Source(file, package.line), package.get("url").text
    is_required = name in rooted and name != "python"
    required = f"`{name}`, " if is_required else ""
    text = f"{name} {version}"
    if platform:
        text += f" on {platform}"
    category = package.get("category").text or "main"
    if category not in ("main", "dev"):
        imported.add(source, text, Outcome.REFUSED, f"of the category {category}, which is not installed by default")
    elif package.get("manager").text == "pip":
        if is_required and normalised(name) not in imported.draft.versions:
            imported.draft.dependencies.append(DraftRequirement(normalised(name), source))
        first = imported.draft.versions.setdefault(normalised(name), version)
        imported.add(source, text, Outcome.TRANSLATED, f"{required}{_preferred(first, version, version)}")
    elif not (parts := archive_parts(filename_of(url))):
        imported.add(source, text, Outcome.NOT_UNDERSTOOD, "the URL has no conda archive")
    else:
        known = imported.draft.conda_versions.get(name.lower())
        if known is None and is_required:
            imported.draft.conda.append((name, ""))
        if known is None:
            reason = add_pinned(imported, name, version, parts[2], source)
        else:
            reason = _preferred(known.partition(" ")[0], version, f"{version} ({parts[2]})")
        imported.add(source, text, Outcome.TRANSLATED, required + reason)


def _preferred(known: str, version: str, shown: str) -> str:
    if known == version:
        return f"preferred version {shown}"
    return f"another platform has {known}, which is preferred: a spec has one preferred version of each package"
