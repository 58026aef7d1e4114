"""Changing several files of a folder in place, so that one rename decides and a killed run can be finished.

The new files are written into a hidden folder inside. The rename of that folder to `.envspec-commit` is the step: from
then on the new lock is the lock (`names.read_current` finds it there). Moving the files out is tidying up, which the
next run does when this one is killed.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Final

from envspec.lock.disk import sync_directory, write_synced
from envspec.lock.names import COMMITTED, STAGED
from envspec.lock.plan import Plan
from envspec.names import FILE_NAME

#: Names of files that go, one a line, inside the hidden folder. No file of a lock begins with a dot.
_REMOVED: Final = ".removed"


def write(directory: Path, work: Plan) -> None:
    """Carry out `work` in `directory`, which exists. OSError before the step leaves everything as it was."""
    stage = Path(tempfile.mkdtemp(prefix=STAGED, dir=directory))
    try:
        stage.chmod(0o755)
        for name, data in work.written.items():
            write_synced(stage / name, data)
        write_synced(stage / _REMOVED, "\n".join(sorted(work.removed)).encode())
        sync_directory(stage)
        stage.rename(directory / COMMITTED)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    sync_directory(directory)
    roll_forward(directory)


def roll_forward(directory: Path) -> None:
    """Finish what a killed run decided, and take away what it had not; nothing where there is nothing of the kind."""
    if not directory.is_dir():
        return
    committed = directory / COMMITTED
    if committed.is_dir():
        _move_out(committed, directory)
    for item in directory.glob(f"{STAGED}*"):
        shutil.rmtree(item, ignore_errors=True)


def _move_out(committed: Path, directory: Path) -> None:
    removed = committed / _REMOVED
    if removed.exists():
        for name in filter(FILE_NAME.fits, removed.read_text(encoding="utf-8").splitlines()):
            (directory / name).unlink(missing_ok=True)
    for item in sorted(committed.iterdir()):
        if item.name != _REMOVED:
            item.replace(directory / item.name)
    sync_directory(directory)
    removed.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        committed.rmdir()
