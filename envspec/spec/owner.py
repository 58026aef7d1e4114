"""Which spec a lock was made from: two specs with one `env.name` must not overwrite each other's lock.

On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Final

from envspec.spec.document import read_spec
from envspec.spec.variants import all_lock_names

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
    return "" if Path(common).parent == Path(common) else Path(os.path.relpath(one, other)).as_posix()


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
        return path if name in all_lock_names(read_spec(path)) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
