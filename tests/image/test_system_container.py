"""Errors of the container that installs packages, with a program in place of buildah."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from envspec.engine.errors import EngineError
from envspec.errors import EnvspecError
from envspec.image.sources.system_container import (
    ArchiveUnreachable,
    BuildahRunner,
    ContainerJob,
    InstallFailed,
    RegistryTransport,
)
from envspec.image.sources.system_script import NO_APT, NO_SNAPSHOT, NO_UPDATE
from envspec.models import Platform

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script")

_INSTALL = "Reading package lists...\nBuilding dependency tree...\nReading state information...\n"
#: Of apt 2.6. Both commands ran: `apt-get update` ended with 0.
_NOT_REACHED = f"""Err:1 http://packages.example.com/ubuntu noble InRelease
  Could not resolve 'packages.example.com'
Reading package lists...
W: Failed to fetch http://packages.example.com/ubuntu/dists/noble/InRelease  Could not resolve 'packages.example.com'
W: Some index files failed to download. They have been ignored, or old ones used instead.
{_INSTALL}E: Unable to locate package git
"""
_FILE_NOT_REACHED = f"""{_INSTALL}Err:1 http://packages.example.com/ubuntu noble/main amd64 git amd64 1:2.43.0-1
  Connection timed out
E: Failed to fetch http://packages.example.com/ubuntu/pool/git.deb  Connection timed out
E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?
"""


def error_of(folder: Path, command: str, status: int, output: str = "") -> EnvspecError:
    """The error if that command of buildah fails."""
    program = folder / "buildah"
    program.write_text(f'#!/bin/sh\n[ "$1" = {command} ] || exit 0\nprintf %s {shlex.quote(output)}\nexit {status}\n')
    program.chmod(0o755)
    base = f"registry.example.com/base@sha256:{'ab' * 32}"
    job = ContainerJob(base, Platform.LINUX_64, RegistryTransport.TLS, "envspec-test", {"install.sh": b""})
    with pytest.raises(EnvspecError) as caught:
        BuildahRunner(str(program), job, {"PATH": "/usr/bin:/bin"}).run(lambda _: None, lambda _: None)
    return caught.value


@pytest.mark.parametrize(
    ("status", "output", "kind", "words"),
    [
        (100, f"{_INSTALL}E: Unable to locate package libnosuch\n", InstallFailed, "can't be installed in registry"),
        (NO_APT, "", InstallFailed, "has no apt-get"),
        (NO_SNAPSHOT, "", InstallFailed, "has known snapshots"),
        (NO_UPDATE, "E: The repository does not have a Release file.\n", ArchiveUnreachable, "a Release file"),
        (100, _NOT_REACHED, ArchiveUnreachable, "can't read the archive of packages"),
        (100, _FILE_NOT_REACHED, ArchiveUnreachable, "can't read the archive of packages"),
    ],
    ids=["unknown package", "no apt", "no snapshots", "no archive", "archive not reached", "package not reached"],
)
def test_a_failed_installation(tmp_path: Path, status: int, output: str, kind: type[EnvspecError], words: str) -> None:
    error = error_of(tmp_path, "run", status, output)
    assert type(error) is kind and words in error.message
    assert error.exit_code == {InstallFailed: 4, ArchiveUnreachable: 5}[kind]


def test_a_base_that_can_not_be_pulled_is_no_problem_of_apt(tmp_path: Path) -> None:
    error = error_of(tmp_path, "from", 125, "Trying to pull\nError: reading manifest: unauthorized\n")
    assert type(error) is EngineError
    assert "can't pull registry.example.com/base" in error.message and error.message.endswith("unauthorized")
    assert "buildah copy ended with status 1" in error_of(tmp_path, "copy", 1, "no space left\n").message
