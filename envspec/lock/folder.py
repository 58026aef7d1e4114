"""The lock's folder: reading it, and writing all of it as one step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from envspec.errors import UsageError
from envspec.io.files import FULL
from envspec.lock import journal, swap
from envspec.lock.disk import CannotWrite, cannot, exclusive, make_directories
from envspec.lock.document import load
from envspec.lock.head import LOCK_FILE, DamagedLock
from envspec.lock.names import read_current
from envspec.lock.plan import Plan, make_plan
from envspec.models import Lock


def read_lock(path: Path) -> Lock:
    """The lock in the folder `path`.

    Raises:
        UsageError: there is none, or it can't be read.
        StaleLock: it is not what envspec wrote, or was written in another format.
    """
    document = path / LOCK_FILE
    try:
        text = read_current(path, LOCK_FILE).decode()
    except UnicodeDecodeError as fault:
        raise DamagedLock(f"{document} is not text", hint="restore it from version control, or lock again") from fault
    except OSError as fault:
        raise UsageError(f"{document} can't be read: {fault.strerror}", hint="`envspec lock SPEC` writes it") from fault
    return load(text, str(document))


def write_folder(
    directory: Path,
    files: Mapping[str, bytes],
    *,
    exchange: swap.Exchange = swap.exchange,
    wait_s: float = 60.0,
) -> tuple[Path, ...]:
    """Make `directory` hold `files` (envspec.lock among them), all at once; the paths that changed, sorted.

    Files of the lock that stood there before and are not in `files` go; files that are someone else's stay. A file
    whose bytes are equal is left untouched, down to its times; if all are, nothing is written at all.

    The step is an exchange of the whole folder with one written beside it. Where that can't be (a mount point, the
    current directory, folders of someone else's inside, a file system without it), the files are written into a folder
    inside, one rename makes them count, and they are moved to their places one by one: a run that is killed while
    moving leaves that to the next, and `names.read_current` shows readers the whole new lock until then.

    exchange: swaps two directories atomically, or raises OSError where it can't.
    wait_s: how long to wait for another run that is writing beside `directory`.
    Raises:
        CannotWrite: not a folder, not allowed, no space, a file there that is not envspec's. The old lock is intact.
    """
    real = Path(os.path.realpath(directory))
    try:
        make_directories(real.parent)
        with exclusive(real.parent, wait_s):
            swap.clean_up(real)
            journal.roll_forward(real)
            work = make_plan(real, files)
            if not work.is_empty:
                _carry_out(real, work, exchange)
    except OSError as fault:
        raise cannot(directory, fault) from fault
    return tuple(directory / name for name in sorted((*work.written, *work.removed)))


def tidy(directory: Path) -> None:
    """Take away what a killed run has left beside a lock that is done; nothing while another run writes there."""
    real = Path(os.path.realpath(directory))
    with suppress(OSError, CannotWrite), exclusive(real.parent, wait_s=0):
        swap.clean_up(real)


def _carry_out(real: Path, work: Plan, exchange: swap.Exchange) -> None:
    try:
        if not real.exists():
            swap.create(real, work)
            return
        if swap.can_replace(real, work):
            swap.replace(real, work, exchange)
            return
    except OSError as fault:
        if fault.errno in FULL or not real.exists():
            raise
    finally:
        swap.clean_up(real)
    journal.write(real, work)
