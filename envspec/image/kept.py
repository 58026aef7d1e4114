"""Files in the folder of a layer: new ones get names that nobody else has, and a head tells which of them count.

A head gets its name in one step, after all that it tells of is written. What no head tells of was left by a run that
was killed, and goes when the next one holds the folder.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Final

from envspec.effects.files import is_unfinished

#: Changes whenever the same entries would give other bytes, or the files here have another form. Part of every name, so
#: that two releases of envspec share a cache.
FORM: Final = 1

_BUFFER: Final = 256 * 1024


@contextlib.contextmanager
def new_file(folder: Path, ending: str) -> Iterator[IO[bytes]]:
    """A file to write; it stays unless what is done with it fails. It is flushed by whoever tells of it."""
    path = folder / f"{FORM}.{secrets.token_hex(8)}.{ending}"
    try:
        with path.open("xb", buffering=_BUFFER) as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sweep(folder: Path, named: Collection[str]) -> None:
    """Remove what killed runs left. named: files that a head tells of. The folder is held by the caller."""
    for path in folder.iterdir():
        is_ours = path.name.startswith(f"{FORM}.") and path.suffix != ".json" and path.name not in named
        if is_ours or is_unfinished(path):
            path.unlink(missing_ok=True)
