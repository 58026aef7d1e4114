"""The one form of a wheel: equal contents are equal bytes, and what could not be installed is refused."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import tarfile
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from installer.sources import WheelFile

from envspec.build.reproducible import check_release, fix_times_and_modes, is_loaded, is_pure, normalise, tar_of, unpack
from envspec.build.types import WheelBuildFailed, WrongWheel
from envspec.models import Platform, Python, Target
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
    ("files", "words"),
    [
        ({"../out.py": b""}, "would be put outside of its folder"),
        ({"/etc/out.py": b""}, "would be put outside of its folder"),
        ({"own.py": b"", "other-1.0.dist-info/METADATA": b""}, "2 .dist-info folders"),
    ],
)
def test_no_wheel_leads_out_or_is_two(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    with pytest.raises(WrongWheel, match=words):
        normal(tmp_path, wheel("own", "1.0", files=files).data)


def test_no_zip_is_no_wheel(tmp_path: Path) -> None:
    with pytest.raises(WrongWheel, match="not a readable zip"):
        normal(tmp_path, b"nothing")


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


def tarred(tmp_path: Path, *members: tarfile.TarInfo) -> Path:
    path = tmp_path / "own-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../own")],
        [member("/own")],
        [member("own/a", tarfile.SYMTYPE, "../../x")],
        [member("own/a", tarfile.SYMTYPE, "/etc")],
        [member("own/a", tarfile.LNKTYPE, "../../etc/passwd")],
        [member("own/a", tarfile.SYMTYPE, "b"), member("own/b", tarfile.SYMTYPE, ".."), member("own/a/../../c")],
        [member("own/a", tarfile.FIFOTYPE)],
        [member("own/a"), member("other/a")],
    ],
)
def test_no_sdist_leads_out(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    with pytest.raises(WheelBuildFailed, match=r"^own 1\.0: "):
        unpack(tarred(tmp_path, *members), tmp_path / "out" / "src", "own 1.0")
    assert not (tmp_path / "own").exists() and not (tmp_path / "out" / "c").exists()


def test_no_archive_is_no_sdist(tmp_path: Path) -> None:
    (tmp_path / "own-1.0.tar.gz").write_bytes(b"nothing")
    with pytest.raises(WheelBuildFailed, match="can't be unpacked"):
        unpack(tmp_path / "own-1.0.tar.gz", tmp_path / "out", "own 1.0")


def test_a_zip_is_an_sdist_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "own-1.0.zip", "w") as archive:
        archive.writestr("own-1.0/setup.py", b"")
    assert unpack(tmp_path / "own-1.0.zip", tmp_path / "out", "own 1.0") == tmp_path / "out" / "own-1.0"
