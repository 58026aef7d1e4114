"""A lock's folder under fire: writers that are killed at any moment, and writers and readers at once.

Runs are real processes, ended by SIGKILL; what is asserted is what lies on the disk.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import pytest

from envspec import documents
from envspec.lockfile.check import CheckResult, StaleCause, check
from envspec.lockfile.document import dump
from envspec.lockfile.export.requirements import requirements_name, requirements_text
from envspec.lockfile.folder import Exchange, read_lock, rename_exchange, write_folder
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Platform
from envspec.spec.identity import input_sha256
from envspec.structs import replace
from tests.lockfile.test_folder import WAYS, no_exchange, on_disk
from tests.support.builders.locks import lock, package, resolution

SPEC: Final = '[env]\nname = "under-fire"\n'
KILLS: Final = 100
SEED: Final = 20261115
#: A loop of writes is under way all of this time after it said that it began.
LONGEST_S: Final = 0.03

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork servers are not Windows's")


def version(number: int, platforms: tuple[Platform, ...]) -> dict[str, bytes]:
    """A whole lock that says `number` in each of its files."""
    made = replace(
        lock(
            *(resolution(platform, package("filelock", f"3.{number}")) for platform in platforms),
            name="under-fire",
            spec="../../spec.toml",
        ),
        input_sha256=input_sha256(documents.parse_toml(SPEC)),
    )
    files = {
        requirements_name(part.target.platform): requirements_text(made.name, part).encode()
        for part in made.resolutions
    }
    files["Dockerfile"] = f"# written by `envspec lock`\nFROM scratch\nLABEL version={number}\n".encode()
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return {**files, LOCK_FILE: dump(made, hashes).encode()}


#: They differ in every file, and in which files there are.
VERSIONS: Final = (
    version(1, (Platform.LINUX_64, Platform.WIN_64)),
    version(2, (Platform.LINUX_64, Platform.LINUX_AARCH64)),
)
README: Final = b"somebody's own\n"


def write_on_and_on(folder: Path, exchange: Exchange, began: Connection) -> None:
    began.send(None)
    for turn in range(1_000_000):
        write_folder(folder, VERSIONS[turn % 2], exchange=exchange)


def write_often(folder: Path, exchange: Exchange, times: int, first: int) -> None:
    for turn in range(times):
        write_folder(folder, VERSIONS[(first + turn) % 2], exchange=exchange)


def start(work: Callable[..., None], *arguments: object) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def is_whole(found: Mapping[str, bytes]) -> bool:
    return found in [{**files, "README": README} for files in VERSIONS]


def prepare(tmp_path: Path) -> tuple[Path, Path]:
    spec, folder = tmp_path / "spec.toml", tmp_path / "locks" / "under-fire"
    spec.write_text(SPEC, encoding="utf-8")
    write_folder(folder, VERSIONS[0])
    (folder / "README").write_bytes(README)
    return spec, folder


def is_one_version(result: CheckResult) -> bool:
    """Whether a check found the files of one version; these locks are of no spec, so their rows follow from none."""
    return {reason.why for reason in result.reasons} <= {StaleCause.ENTRY}


@pytest.mark.parametrize(
    ("exchange", "kills"), [(rename_exchange, KILLS), (no_exchange, KILLS // 4)], ids=["exchange", "renames"]
)
def test_killed_at_any_moment(tmp_path: Path, exchange: Exchange, kills: int) -> None:
    """By exchange, all files are of one version at any moment; by renames, envspec.lock is one of them, whole."""
    spec, folder = prepare(tmp_path)
    moments = random.Random(SEED)
    in_the_middle = 0
    for kill in range(kills):
        reader, writer = multiprocessing.Pipe(duplex=False)
        process = start(write_on_and_on, folder, exchange, writer)
        reader.recv()
        time.sleep(moments.uniform(0, LONGEST_S))
        process.kill()
        process.join()
        assert process.exitcode == -9
        result = check(spec, folder)
        assert read_lock(folder).name == "under-fire"
        assert (folder / "README").read_bytes() == README
        if exchange is rename_exchange:
            assert is_one_version(result), (kill, result)
            assert is_whole(on_disk(folder)), kill
        else:
            assert {reason.why for reason in result.reasons} <= {StaleCause.ENTRY, StaleCause.FILE}, (kill, result)
        beside = len(list(folder.parent.iterdir())) > 1
        inside = any(path.is_dir() for path in folder.iterdir())
        in_the_middle += beside or inside
    # Otherwise the moments prove nothing.
    assert in_the_middle > kills // 5
    write_folder(folder, VERSIONS[0], exchange=exchange)
    write_folder(folder, VERSIONS[1], exchange=exchange)
    assert on_disk(folder) == {**VERSIONS[1], "README": README}
    assert list(folder.parent.iterdir()) == [folder]


@WAYS
def test_two_writers_and_a_reader(tmp_path: Path, exchange: Exchange) -> None:
    """By renames, a reader may see files of two versions, but never half of a file."""
    spec, folder = prepare(tmp_path)
    writers = [start(write_often, folder, exchange, 30, first) for first in (0, 1)]
    looks = 0
    while any(writer.is_alive() for writer in writers):
        result = check(spec, folder)
        assert is_one_version(result) or exchange is no_exchange, result
        assert read_lock(folder).name == "under-fire"
        looks += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert looks > 10
    assert is_whole(on_disk(folder))
    assert is_one_version(check(spec, folder))
    assert list(folder.parent.iterdir()) == [folder]
