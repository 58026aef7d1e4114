"""A wheel that makes a folder of the image importable: an editable install, without running a build backend.

What pip makes of a backend's `build_editable` (PEP 660) has the paths of the machine that built it. This one has the
image's, and follows from pyproject.toml alone, so the layer with it stays the same when code changes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from envspec import documents
from envspec.errors import UsageError
from envspec.fetch.sources import copy_to_cache
from envspec.fetch.types import archive_path
from envspec.models import BuiltWheel
from envspec.names import normalised
from envspec.spec.document import PYPROJECT

#: Of [project]: what only a build knows if it is dynamic, and an installed project must have.
_NEEDED: Final = ("version", "dependencies", "optional-dependencies", "scripts", "gui-scripts", "entry-points")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def write_editable(project: Path, modules: str, cache: Path) -> tuple[BuiltWheel, Path]:
    """Write the wheel of an editable project into the cache. modules: the folder of its modules in the image.

    Raises:
        UsageError: pyproject.toml does not state what the metadata has to have.
    """
    table = _project(project / PYPROJECT)
    name = normalised(table["name"]).replace("-", "_")
    version = str(Version(table["version"]))
    info = f"{name}-{version}.dist-info"
    files = {
        f"__editable__.{name}-{version}.pth": f"{modules}\n",
        f"{info}/METADATA": "".join(f"{line}\n" for line in _metadata(table)),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: envspec\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/direct_url.json": json.dumps({"dir_info": {"editable": True}, "url": f"file://{quote(modules)}"}),
        f"{info}/entry_points.txt": _entry_points(table),
    }
    rows = [f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items() if text]
    files[f"{info}/RECORD"] = "".join((*rows, f"{info}/RECORD,,\n"))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            if text:
                archive.writestr(zipfile.ZipInfo(path, _EPOCH), text.encode())
    data = content.getvalue()
    wheel = BuiltWheel(f"{name}-{version}-py3-none-any.whl", hashlib.sha256(data).hexdigest(), len(data))
    cached = archive_path(cache, f"{name} {version}", wheel.sha256, wheel.filename)
    copy_to_cache(io.BytesIO(data), cached)
    return wheel, cached


def _project(path: Path) -> Mapping[str, Any]:
    """[project] with what an installed project needs, all of it on single lines."""
    try:
        table: Any = documents.read_toml(path).get("project", {})
        dynamic = [key for key in _NEEDED if key in table.get("dynamic", ())]
        Version(table.get("version", "0"))
        list(_metadata({"name": "x", "version": "0", **table}))
        is_plain = "".join(_texts({key: table.get(key) for key in ("name", *_NEEDED, "requires-python")})).isprintable()
    except (OSError, ValueError, TypeError, AttributeError, InvalidRequirement, InvalidVersion) as error:
        raise UsageError(f"[image] project: {path}: {error}", hint="correct its [project]") from None
    if dynamic or "version" not in table:
        raise UsageError(
            f"[image] project: {path} leaves {', '.join(dynamic) or 'version'} to its build backend, and an editable "
            "install of envspec runs none",
            hint='write project = "wheel", or state it in [project]',
        )
    if not is_plain:
        raise UsageError(f"[image] project: {path}: a value in [project] has a control character", hint="remove it")
    return dict(table)


def _texts(value: object) -> Iterator[str]:
    """Every text in a value, keys as well."""
    inner: list[Any] = []
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    elif isinstance(value, list):
        inner = value
    for each in inner:
        yield from _texts(each)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _metadata(table: Mapping[str, Any]) -> Iterator[str]:
    yield "Metadata-Version: 2.1"
    yield f"Name: {table['name']}"
    yield f"Version: {table['version']}"
    if "requires-python" in table:
        yield f"Requires-Python: {table['requires-python']}"
    for text in table.get("dependencies", ()):
        yield f"Requires-Dist: {Requirement(text)}"
    for extra, lines in table.get("optional-dependencies", {}).items():
        yield f"Provides-Extra: {normalised(extra)}"
        for text in lines:
            found = Requirement(text)
            bare, marker = Requirement(text), found.marker
            bare.marker = None
            condition = f'extra == "{normalised(extra)}"'
            if marker:
                condition = f"({marker}) and {condition}"
            yield f"Requires-Dist: {bare}; {condition}"


def _entry_points(table: Mapping[str, Any]) -> str:
    groups = {"console_scripts": table.get("scripts", {}), "gui_scripts": table.get("gui-scripts", {})}
    groups |= table.get("entry-points", {})
    sections: list[str] = []
    for group, entries in groups.items():
        if entries:
            lines = [f"{name} = {target}" for name, target in entries.items()]
            sections.append("\n".join([f"[{group}]", *lines, ""]))
    return "\n".join(sections)
