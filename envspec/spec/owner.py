"""Which spec a lock was made from: two specs with one `env.name` must not overwrite each other's lock.

On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import json
import os.path
from contextlib import suppress
from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.spec.document import project_of, read_spec
from envspec.spec.variants import variant_called

#: Where a project keeps its locks, each in a folder of its name.
LOCKS: Final = "locks"
#: In the cache: locks of other tools as envspec.lock, each in a folder of its own, with the path of what it is made of.
ADOPTED: Final = "adopted"
SOURCE: Final = "source"
#: What to do about two specs with one name.
TWO_SPECS: Final = "give one of them another `[env] name`, write its lock elsewhere with --output DIR, or delete it"


def path_from_lock(spec: Path, directory: Path) -> str:
    """The spec's path relative to the lock's folder, with `/`: the same in every copy of a project.

    Empty if they have no folder in common: the path would be of this machine alone.
    """
    one, other = os.path.abspath(spec), os.path.abspath(directory)  # noqa: PTH100 (no links are followed)
    try:
        common = os.path.commonpath((one, other))
    except ValueError:
        # Two drives.
        return ""
    if Path(common).parent == Path(common):
        return ""
    return Path(os.path.relpath(one, other)).as_posix()


def adopted_source(directory: Path | None) -> Path | None:
    """The lock of another tool that the lock in a folder of the cache was made of; None for any other one."""
    from envspec.io.cache import cache_path

    if directory is None:
        return None
    place = directory.parent
    if place.parent.name != ADOPTED or place.parent.parent != cache_path(os.environ):
        return None
    with suppress(OSError, ValueError):
        return Path(json.loads((place / f"{SOURCE}.json").read_bytes()))
    return None


def find_spec_of(locked: str, directory: Path) -> Path | None:
    """The spec that a lock names, from the current directory on; None if it names none, or there is no such file.

    A lock of somebody else must not choose what is read on this machine, or copied into an image: its spec, and the
    project of that, are in the lock's own project.

    locked: the path in the lock. directory: the lock's.

    Raises:
        UsageError: the path is absolute, or leads out of the lock's project, by itself or through links.
    """
    if not locked:
        return None
    folder = os.path.abspath(directory)  # noqa: PTH100 (no links are followed)
    path = os.path.normpath(os.path.join(folder, locked))  # noqa: PTH118
    if problem := _why_not_followed(locked, path, _project_around(folder)):
        raise UsageError(
            f"the lock in {directory} names {locked} as its spec, and {problem}",
            hint="use it in the git repository of its spec, or in a folder `locks` of its project, or lock again",
        )
    return Path(os.path.relpath(path)) if os.path.isfile(path) else None  # noqa: PTH113 (a text with NUL is none)


def _why_not_followed(locked: str, path: str, root: str) -> str:
    """Why a spec's path is not followed; empty if it is. root: the folder of the lock's project."""
    if os.path.isabs(locked):  # noqa: PTH117
        return "an absolute path is of one machine"
    project = project_of(Path(path).as_posix())
    if not (_is_inside(path, root) and _is_inside(project, root)):
        return f"that leads out of {root}"
    with suppress(ValueError):
        real = os.path.realpath(root)
        if not (_is_inside(os.path.realpath(path), real) and _is_inside(os.path.realpath(project), real)):
            return f"that leads out of {root} through links"
    return ""


def _project_around(folder: str) -> str:
    """The project that a lock's folder belongs to: the git repository around it, else the folder that contains
    `locks`, else the folder above.
    """
    above = [Path(folder), *Path(folder).parents]
    for each in above:
        if os.path.lexists(each / ".git"):
            return str(each)
    for each in above:
        if each.name == LOCKS:
            return str(each.parent)
    return str(Path(folder).parent)


def is_in_project(path: Path, folder: Path) -> bool:
    """Whether a path is in the project that a folder belongs to, see `_project_around`; links are followed."""
    root = os.path.realpath(_project_around(os.path.abspath(folder)))  # noqa: PTH100 (no links are followed)
    return _is_inside(os.path.realpath(path), root)


def _is_inside(path: str, root: str) -> bool:
    return Path(path).is_relative_to(root)


def other_owner(locked: str, name: str, spec: Path, directory: Path) -> Path | None:
    """Another spec whose lock is in the folder: one that exists and still has the lock's name.

    A spec that was renamed or moved is at its old path no longer. locked, name: the path and the name in the lock.
    """
    if not locked:
        return None
    path = Path(os.path.relpath(os.path.normpath(os.path.join(os.path.abspath(directory), locked))))  # noqa: PTH100, PTH118
    try:
        if not path.is_file() or path.samefile(spec):
            return None
    except (OSError, ValueError):
        return None
    return path if has_lock_called(name, path) else None


def has_lock_called(name: str, spec: Path) -> bool:
    """Whether a lock of a spec, or of one of its variants, has a name; not if the file is no spec."""
    try:
        return variant_called(name, read_spec(spec)) is not None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
