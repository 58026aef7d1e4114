"""Where envspec keeps what it can make or fetch again, and what is said when it can't be kept there."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envspec.effects.files import FULL
from envspec.errors import EnvspecError

_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})


class CannotKeep(EnvspecError):
    """The cache can't be written: no space, no permission, a disk that fails. folder: the part of it."""

    exit_code = 6

    def __init__(self, folder: Path, fault: OSError) -> None:
        if fault.errno in FULL:
            super().__init__(
                f"no space left in envspec's cache, {folder}: {fault.strerror}",
                hint="make room, or name another place by ENVSPEC_CACHE_DIR; what was made so far is kept",
            )
            return
        super().__init__(
            f"envspec's cache can't be used: {fault.filename or folder}: {fault.strerror or fault}",
            hint="make it readable and writable, or name another place by ENVSPEC_CACHE_DIR",
        )


@contextlib.contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Turns what the system says of a full disk or of missing rights, while `folder` is written, into CannotKeep.

    Other faults come as they are: what reads and writes much beside the cache meets some that are not the cache's.
    """
    try:
        yield
    except OSError as fault:
        if fault.errno in FULL | _FORBIDDEN:
            raise CannotKeep(folder, fault) from fault
        raise


def cache_root(environ: Mapping[str, str]) -> Path:
    """The folder of envspec's caches: `ENVSPEC_CACHE_DIR`, else the system's own place for caches."""
    named = environ.get("ENVSPEC_CACHE_DIR")
    if named:
        return Path(named)
    # 20 ms that most commands need not spend
    import platformdirs

    return Path(platformdirs.user_cache_dir("envspec", appauthor=False))
