"""The spec in a file: all of a spec.toml, or the table [tool.envspec] of a pyproject.toml.

On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from envspec import documents
from envspec.names import normalised

#: The file whose table [tool.envspec] is a spec, and what stands in it.
PYPROJECT: Final = "pyproject.toml"
#: A key of specs: lines of a pyproject.toml that count like [pip] dependencies.
DEPENDENCIES_FROM: Final = "dependencies_from"
#: Keys of [pip] that say which packages of another tool's lock are meant.
SELECTED: Final = ("extras", "groups", "without_groups", "default_groups", "members")
#: Of `requires-python`, if all that it allows is one series or one patch. `==3.11` is 3.11.0, which nobody means.
_ONE_PYTHON: Final = re.compile(
    r"==(?P<patch>\d+\.\d+\.\d+)|==(?P<any>\d+\.\d+)\.\*|~=(?P<from>\d+\.\d+)\.0"
    r"|>=(?P<least>3\.\d+)(?:\.0)?,<3\.(?P<next>\d+)"
)

_MACOS: Final = "osx-arm64"
#: The folder of specs, whose project is the folder above.
_SPECS: Final = "specs"


def root_of(path: Path) -> tuple[str, ...]:
    """The table of a file that is the spec; empty: all of it."""
    return ("tool", "envspec") if path.name == PYPROJECT else ()


def spec_in(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The spec in a file, parsed; empty if there is none.

    That in a pyproject.toml has the project's name, normalised, and the Python that is the only one `requires-python`
    allows, unless it has its own. One whose packages are those of another tool's lock has [cuda], except on macOS
    alone: the packages decide whether they need CUDA.
    """
    root = root_of(path)
    spec = dict(documents.table_of(data, *root))
    if "from" in documents.table_of(spec, "pip") and documents.list_of(spec, "env", "platforms") != [_MACOS]:
        spec.setdefault("cuda", {})
    project, env = data.get("project"), spec.get("env", {})
    if not root or not spec or not isinstance(project, Mapping) or not isinstance(env, Mapping):
        return spec
    defaults = {}
    name, versions = project.get("name"), project.get("requires-python")
    if isinstance(name, str):
        defaults["name"] = normalised(name)
    if isinstance(versions, str) and (python := _only_python(versions)):
        defaults["python"] = python
    return {**spec, "env": {**defaults, **env}}


def _only_python(versions: str) -> str | None:
    """The Python that `requires-python` names, if it is one series or one patch."""
    found = _ONE_PYTHON.fullmatch(re.sub(r"\s", "", versions))
    if found is None:
        return None
    if found["least"] and int(found["next"]) != int(found["least"][2:]) + 1:
        return None
    return found["patch"] or found["any"] or found["from"] or found["least"]


def project_of(spec: str) -> str:
    """The folder of a spec's project, by its path: the spec's own, or the one above if that is called `specs`."""
    folder = posixpath.dirname(spec)
    return posixpath.normpath(posixpath.join(folder, "..")) if _is_in_specs(spec) else folder


def in_project(spec: str, path: str) -> str:
    """A path from a spec's folder on, from its project's on: begins with `/` or `..` if it is outside of that."""
    if _is_in_specs(spec):
        path = posixpath.join(_SPECS, path)
    return posixpath.normpath(path)


def _is_in_specs(spec: str) -> bool:
    return posixpath.basename(posixpath.dirname(spec)) == _SPECS


def read_spec(path: Path) -> dict[str, Any]:
    """A spec's file, whether or not it is a valid spec, without the lines of `dependencies_from`.

    Raises:
        OSError: it can't be read. ValueError: it is not TOML, or has more than `documents.MAX_SPEC_BYTES`.
    """
    return spec_in(documents.read_toml(path), path)
