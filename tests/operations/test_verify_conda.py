"""`envspec verify` of an environment of conda's packages with wheels on top, as `envspec install` makes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.diagnostics.machine import this_platform
from envspec.importers import new_import
from envspec.importers.prefix import read_prefix
from envspec.models import CondaPackage
from envspec.structs import replace
from envspec.verifier.record import wheel_sha256
from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.environments import RUNNING, SERIES, conda_row, installs, make_lock, pin, write_lock
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.builders.zips import member
from tests.support.servers.index import IndexServer
from tests.support.user import User

pytestmark = pytest.mark.skipif(not this_platform().is_linux, reason="the test channel's programs are Linux's")

NAMES = ("tzdata", "python_abi", "python", "numpy", "greet", "pathwise", "libpathwise")
TOOL = wheel(
    "tool", "1.0", files={"tool/__init__.py": b"", "tool-1.0.data/scripts/script": b"#!python\n"}, requires=["numpy>=2"]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment where it was made: its files name it."""
    folder = tmp_path_factory.mktemp("made")
    channel = write(folder / "forge", conda_packages.forge())
    with IndexServer([File(TOOL)]) as index:
        user = User(folder, index.url, NO_PROXY="127.0.0.1")
        contents = wheel_sha256(member(TOOL.data, ".dist-info/RECORD"))
        lock = make_lock(conda=rows(channel), wheels=[replace(pin(TOOL), record_sha256=contents)])
        ran = installs(user, write_lock(folder / "lock", lock))
        assert ran.status == 0, ran.stderr
    yield folder


def rows(channel: CondaChannel) -> list[CondaPackage]:
    here = (this_platform().value, "noarch")
    held = [one for one in channel.archives if one.subdir in here]
    newest = {name: next(one for one in reversed(held) if one.name == name) for name in NAMES}
    return [conda_row(one, channel.url) for one in newest.values()]


def verify(folder: Path, prefix: Path) -> tuple[int, dict[str, object]]:
    user = User(folder, "http://127.0.0.1:9/")
    ran = user.runs("verify", "lock", "--prefix", prefix, "--format", "json")
    assert ran.stdout, ran.stderr
    return ran.status, json.loads(ran.stdout)


def test_it_is_what_the_lock_says(made: Path) -> None:
    status, message = verify(made, made / "env")
    assert (status, message["findings"]) == (0, [])
    counts = message["counts"]
    assert isinstance(counts, dict)
    assert (counts["conda"], counts["packages"], counts["against_lock"]) == (len(NAMES), 1, 1)


def test_it_is_imported_with_what_it_has(made: Path) -> None:
    imported = new_import(made)
    read_prefix(made / "env", imported)
    draft = imported.draft
    installed = {name: version.partition(" ")[0] for name, version in draft.conda_versions.items()}
    assert installed.keys() == set(NAMES)
    assert installed["python"] == RUNNING
    assert (draft.versions, [each.text for each in draft.dependencies]) == ({"tool": "1.0"}, ["tool"])
    assert draft.conda == [("greet", ""), ("numpy", ""), ("pathwise", "")]
    assert draft.channels == [(made / "forge").as_uri()]
    assert not [each for each in imported.ledger if each.outcome.is_lost]


def test_files_of_both_halves(made: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    shutil.copytree(made / "env", prefix, symlinks=True)
    site = prefix / f"lib/python{SERIES}/site-packages"
    conf = prefix / "etc/pathwise.conf"
    conf.write_text(conf.read_text() + "changed\n")
    (site / "tool/__init__.py").write_text("changed = True\n")
    (prefix / "conda-meta" / next((prefix / "conda-meta").glob("greet-*.json")).name).unlink()
    status, message = verify(made, prefix)
    assert status == 8
    findings = message["findings"]
    assert isinstance(findings, list)
    found = {(each["package"], each["drift"], each["path"]) for each in findings}
    assert {
        ("pathwise", "changed", "etc/pathwise.conf"),
        ("tool", "changed", f"lib/python{SERIES}/site-packages/tool/__init__.py"),
        ("greet", "missing", ""),
    } <= found


@pytest.mark.parametrize(
    ("path", "drift"),
    [
        ("bin/ls", "unowned"),
        ("bin/pyvenv.cfg", "unowned"),
        (f"lib/python{SERIES}/sitecustomize.py", "unowned"),
        ("bin/script", "changed"),
    ],
)
def test_files_of_no_package(made: Path, tmp_path: Path, path: str, drift: str) -> None:
    """Python reads its settings and modules there; scripts of wheels are in the list that `install` wrote."""
    prefix = tmp_path / "env"
    shutil.copytree(made / "env", prefix, symlinks=True)
    (prefix / path).write_text("#!/bin/sh\n")
    _, message = verify(made, prefix)
    findings = message["findings"]
    assert isinstance(findings, list)
    assert (drift, path) in [(each["drift"], each["path"]) for each in findings]
