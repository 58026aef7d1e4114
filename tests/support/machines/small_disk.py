"""Runs of envspec that have a small disk of their own, in a name space of theirs."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import pytest

from tests.support.user import Ran, User, command_line


@cache
def _mounts() -> bool:
    """Whether this user may mount a small disk in a name space of their own."""
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not _mounts(), reason="this user may not mount a small disk (unshare --mount)")


def on_a_disk(user: User, options: str, *words: str, **environ: str) -> tuple[Ran, list[str]]:
    """`envspec WORDS` with a disk at `<user's folder>/disk`, and what is on that disk afterwards.

    options: of a tmpfs, such as `size=2m`.
    """
    disk = user.folder / "disk"
    disk.mkdir(exist_ok=True)
    line = " ".join(f"'{word}'" for word in command_line(words))
    script = (
        f"mount -t tmpfs -o {options} tmpfs '{disk}' || exit 99\n{line}\nstatus=$?\n"
        f"ls -A '{disk}' > '{user.folder}/left'\nexit $status\n"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=user.folder,
        env={**user.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr), (user.folder / "left").read_text().split()
