"""The one form of a wheel: equal contents are equal bytes, and what could not be installed is refused."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installer.sources import WheelFile

from envspec.build.reproducible import (
    check_release,
    fix_times_and_modes,
    is_loaded,
    is_pure,
    metadata_of,
    normalise,
    tar_of,
    unpack,
)
from envspec.build.types import WrongWheel
from envspec.models import Platform, Python, Target
from envspec.resolve.pypi.metadata import declared
from tests.support.builders.wheels import Method, sdist, wheel

LINUX = Target(Platform.LINUX_64, Python("3.11.7", "spec"), glibc=(2, 36))
MAC = Target(Platform.OSX_ARM64, Python("3.11.7", "spec"), macos=(14, 0))
FILES = {"own/__init__.py": b"x = 1\n", "own/a.txt": b"", "own/z/deep.py": b"y\n" * 5000}


def normal(tmp_path: Path, data: bytes, name: str = "own-1.0-py3-none-any.whl") -> bytes:
    made, into = tmp_path / name, tmp_path / f"normal-{name}"
    made.write_bytes(data)
    normalise(made, into, "own 1.0")
    return into.read_bytes()


def test_the_form_is_good_for_installer_and_record_says_what_is_there(tmp_path: Path) -> None:
    data = normal(tmp_path, wheel("own", "1.0", files=FILES, method=Method.DEFLATED).data)
    path = tmp_path / "own-1.0-py3-none-any.whl"
    path.write_bytes(data)
    with WheelFile.open(path) as source:
        source.validate_record()
    with zipfile.ZipFile(path) as archive:
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}
        assert archive.namelist()[-1] == "own-1.0.dist-info/RECORD"
        rows = {row[0]: row[1:] for row in csv.reader(archive.read("own-1.0.dist-info/RECORD").decode().splitlines())}
        for name, content in FILES.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert rows[name] == [f"sha256={digest}", str(len(content))]
    assert normal(tmp_path, data) == data


def shuffled(data: bytes, order: list[int], year: int, mode: int) -> bytes:
    """The same wheel as another zip: other order, times, modes and packing, with entries for folders."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr(zipfile.ZipInfo("own/", (year, 1, 1, 0, 0, 0)), b"")
        names = old.namelist()
        for name in sorted(names, key=lambda name: order[names.index(name) % len(order)]):
            member = zipfile.ZipInfo(name, (year, 5, 6, 7, 8, 10))
            member.external_attr = (0o100000 | mode) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            member.comment = b"made today"
            new.writestr(member, old.read(name))
    return out.getvalue()


@given(
    st.lists(st.integers(0, 9), min_size=6, max_size=6),
    st.integers(1980, 2100),
    st.sampled_from([0o600, 0o644, 0o664, 0o666]),
)
def test_order_times_modes_and_packing_leave_no_trace(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], year: int, mode: int
) -> None:
    folder = tmp_path_factory.mktemp("wheels")
    plain = wheel("own", "1.0", files=FILES).data
    assert normal(folder, shuffled(plain, order, year, mode)) == normal(folder, plain)


def test_requirements_of_old_tools_can_be_read(tmp_path: Path) -> None:
    data = normal(tmp_path, wheel("own", "1.0", metadata=b"Name: own\nVersion: 1.0\nRequires-Dist: cv (>=3.)\n").data)
    path = tmp_path / "own-1.0-py3-none-any.whl"
    path.write_bytes(data)
    with WheelFile.open(path) as source:
        source.validate_record()
    assert declared(metadata_of(path, "own")) == ("cv (>=3)",)


def test_what_runs_stays_so(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, mode in (("own-1.0.data/scripts/go", 0o700), ("own.py", 0o600), ("own-1.0.dist-info/WHEEL", 0o444)):
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100000 | mode) << 16
            archive.writestr(member, b"")
    with zipfile.ZipFile(io.BytesIO(normal(tmp_path, out.getvalue()))) as archive:
        modes = {each.filename: (each.external_attr >> 16) & 0o777 for each in archive.infolist()}
    assert modes["own-1.0.data/scripts/go"] == 0o755
    assert modes["own.py"] == modes["own-1.0.dist-info/WHEEL"] == 0o644


@pytest.mark.parametrize(
    ("filename", "metadata", "version", "words"),
    [
        ("own-1.0-py3-none-any.whl", b"Name: other\nVersion: 1.0\n", "1.0", "a wheel of other 1.0, not of own 1.0"),
        ("own-1.0-py3-none-any.whl", b"Name: own\nVersion: nine\n", "1.0", "a wheel of own nine, not of own 1.0"),
        ("own-1.1-py3-none-any.whl", b"Name: own\nVersion: 1.1\n", "1.0", "a wheel of own 1.1, not of own 1.0"),
        ("other-1.0-py3-none-any.whl", b"Name: other\nVersion: 1.0\n", None, "a wheel of other 1.0, not of own"),
        ("own.whl", b"Name: own\nVersion: 1.0\n", None, "not a wheel's name"),
    ],
)
def test_the_release_is_the_one_that_is_wanted(
    tmp_path: Path, filename: str, metadata: bytes, version: str | None, words: str
) -> None:
    path = tmp_path / filename
    path.write_bytes(wheel("own", "1.0", metadata=metadata).data)
    with pytest.raises(WrongWheel, match=words):
        check_release(path, "own", version, "own")


def test_names_and_versions_may_be_written_in_other_ways(tmp_path: Path) -> None:
    path = tmp_path / "My_Own-1.0-py3-none-any.whl"
    path.write_bytes(wheel("my-own", "1.0", metadata=b"Name: My.Own\nVersion: 1.0.0\n").data)
    check_release(path, "my-own", "1.0", "my-own 1.0")


@pytest.mark.parametrize(
    ("tag", "pure", "loads"),
    [
        ("py3-none-any", True, (True, True)),
        ("py2.py3-none-any", True, (True, True)),
        ("py2-none-any", True, (False, False)),
        ("cp311-none-any", True, (True, True)),
        ("py3-none-linux_x86_64", False, (True, False)),
        ("cp311-cp311-linux_x86_64", False, (True, False)),
        ("cp312-cp312-linux_x86_64", False, (False, False)),
        ("cp311-cp311-linux_aarch64", False, (False, False)),
        ("cp311-cp311-macosx_11_0_arm64", False, (False, True)),
        ("cp311-abi3-manylinux_2_28_x86_64", False, (True, False)),
    ],
)
def test_who_loads_what_was_built(tag: str, pure: bool, loads: tuple[bool, bool]) -> None:
    filename = f"own-1.0-{tag}.whl"
    assert is_pure(filename) is pure
    assert (is_loaded(filename, LINUX), is_loaded(filename, MAC)) == loads


def test_an_sdist_is_laid_out_the_same_whenever_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "own-1.0.tar.gz"
    archive.write_bytes(sdist("own", "1.0").data)
    moment = datetime(2026, 6, 1, tzinfo=timezone.utc)
    trees = []
    for name, umask in (("a", 0o077), ("b", 0o002)):
        before = os.umask(umask)
        try:
            root = unpack(archive, tmp_path / name, "own 1.0")
        finally:
            os.umask(before)
        fix_times_and_modes(root, moment)
        trees.append(tar_of(root))
    assert trees[0] == trees[1]
    assert (tmp_path / "a" / "own-1.0" / "PKG-INFO").stat().st_mtime == moment.timestamp()


def test_a_zip_is_an_sdist_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "own-1.0.zip", "w") as archive:
        archive.writestr("own-1.0/setup.py", b"")
    assert unpack(tmp_path / "own-1.0.zip", tmp_path / "out", "own 1.0") == tmp_path / "out" / "own-1.0"


def test_an_sdist_without_a_top_folder_is_the_project_itself(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "own-1.0.zip", "w") as archive:
        archive.writestr("pyproject.toml", b"")
        archive.writestr("own/__init__.py", b"")
    assert unpack(tmp_path / "own-1.0.zip", tmp_path / "out", "own 1.0") == tmp_path / "out"
