"""A side of `envspec diff`: a lock's folder, or a lock as a git revision has it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from envspec.errors import UsageError
from envspec.lockfile.document import load
from envspec.lockfile.folder import LOCKS, find_lock, read_lock
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Lock

#: Runs a command in a folder and gives its standard output, as `effects.process.output_of` does: FileNotFoundError
#: without the program, CalledProcessError when it fails.
Run: TypeAlias = Callable[[Sequence[str], Path], bytes]


def load_side(argument: str, cwd: Path, git: Run) -> Lock:
    """The lock that OLD or NEW names: a folder, its envspec.lock, a name under `locks/`, or `REV:` before any of them.

    After `REV:` a path counts from the repository's root, as git has it, or from `cwd` when it begins with `./`.

    Raises:
        UsageError: there is no such lock, revision or repository, or no git.
        StaleLock: what is there is not what envspec wrote.
    """
    revision, colon, path = argument.partition(":")
    # One letter before a colon and a backslash after it is a Windows drive.
    if not colon or (cwd / argument).exists() or path.startswith("\\"):
        return read_lock(find_lock(argument, cwd))
    if not revision or not path or revision.startswith("-"):
        raise UsageError(
            f"{argument} is not a revision and a lock", hint="write it as REV:locks/NAME, such as HEAD:locks/cpu"
        )
    return _at_revision(revision, path, cwd, git)


def _at_revision(revision: str, path: str, cwd: Path, git: Run) -> Lock:
    said = ""
    for candidate in _candidates(path):
        where = f"{revision}:{candidate}"
        try:
            text = git(["git", "show", where], cwd)
        except FileNotFoundError as fault:
            raise UsageError("git is not installed", hint="name two folders, or install git") from fault
        except subprocess.CalledProcessError as fault:
            said = said or _words(fault)
            continue
        return load(text.decode("utf-8", "replace"), where)
    raise UsageError(f"{revision}:{path} holds no {LOCK_FILE}: {said}", hint=f"see `git ls-tree -r {revision} {LOCKS}`")


def _candidates(path: str) -> list[str]:
    given = path.rstrip("/")
    if PurePosixPath(given).name == LOCK_FILE:
        return [given]
    under_locks = [] if "/" in given else [f"{LOCKS}/{given}/{LOCK_FILE}"]
    return [f"{given}/{LOCK_FILE}", *under_locks]


def _words(fault: subprocess.CalledProcessError) -> str:
    output = fault.stderr or b""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else str(output)
    return (text.strip().splitlines() or [f"git ended with status {fault.returncode}"])[0]
