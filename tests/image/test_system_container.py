"""What the output of the container that installs packages means."""

from __future__ import annotations

from typing import IO, cast

import pytest

from envspec.errors import EnvspecError
from envspec.image.layers.contents import Chunks
from envspec.image.sources.system_container import (
    ArchiveUnreachable,
    ContainerJob,
    InstallFailed,
    check_status,
    pack_files,
    tar_files,
)
from envspec.image.sources.system_script import NO_APT, NO_SNAPSHOT, NO_UPDATE
from envspec.models import Platform

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


JOB = ContainerJob(f"registry.example.com/base@sha256:{'ab' * 32}", Platform.LINUX_64, "envspec-test", {})


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
def test_a_failed_installation(status: int, output: str, kind: type[EnvspecError], words: str) -> None:
    with pytest.raises(EnvspecError, match=words) as caught:
        check_status(status, output.splitlines(), JOB)
    assert type(caught.value) is kind
    assert caught.value.exit_code == {InstallFailed: 4, ArchiveUnreachable: 5}[kind]


@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_what_a_container_returns_however_it_is_cut(size: int) -> None:
    files = {"changed": b"a\0b", "empty": b"", "layer.tar": bytes(range(256)) * 100}
    data = pack_files(files)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    stream = cast("IO[bytes]", Chunks([b"", *pieces]))
    assert {name: file.read() for name, file in tar_files(stream)} == files
