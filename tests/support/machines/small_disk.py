"""Runs of envspec on a machine of another state: with a small disk, without a network, in name spaces of their own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Final

import pytest

from tests.support.user import Ran, User, command_line

_OWN: Final = ("unshare", "--user", "--map-root-user", "--mount")


@cache
def _mounts() -> bool:
    """Whether this user may mount a small disk in a name space of their own."""
    if shutil.which("unshare") is None:
        return False
    tried = [*_OWN, "--net", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not _mounts(), reason="this user may not mount a small disk (unshare --mount)")


def in_namespace(user: User, script: str, *words: str, environ: Mapping[str, str] = {}, network: bool = True) -> Ran:
    """`envspec WORDS` after a script of the shell that changes mounts and limits, for this run alone.

    script: `"$@"` in it is the run. environ: added to the user's own. network: whether it has one; without, not even
    loopback is up.
    """
    done = subprocess.run(
        [*_OWN, *([] if network else ["--net"]), "sh", "-c", script, "sh", *command_line(words)],
        cwd=user.folder,
        env={**user.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def on_a_disk(user: User, options: str, *words: str, **environ: str) -> tuple[Ran, list[str]]:
    """`envspec WORDS` with a disk at `<user's folder>/disk`, and what is on that disk afterwards.

    options: of a tmpfs, such as `size=2m`.
    """
    disk = user.folder / "disk"
    disk.mkdir(exist_ok=True)
    script = (
        f"mount -t tmpfs -o {options} tmpfs '{disk}' || exit 99\n\"$@\"\nstatus=$?\n"
        f"ls -A '{disk}' > '{user.folder}/left'\nexit $status\n"
    )
    return in_namespace(user, script, *words, environ=environ), (user.folder / "left").read_text().split()
