"""The pieces of `envspec.verifier`, on their own."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec.verifier.compare import compare
from envspec.verifier.hashing import ExpectedFile, hash_all, is_bytecode
from envspec.verifier.installed import read_installed
from envspec.verifier.record import BadRecord, from_hex, installed_path, record_entries, wheel_path, wheel_sha256
from envspec.verifier.scan import find_environment, normalised, same_version
from envspec.verifier.types import (
    Drift,
    DriftFinding,
    Expected,
    ExpectedConda,
    ExpectedPackage,
    VerifyCounts,
    VerifyResult,
)
from tests.support.builders.wheels import wheel
from tests.support.builders.zips import member
from tests.support.tries import tries

SITE = "lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("in_wheel", "installed", "place"),
    [
        ("a/b.py", "a/b.py", "a/b.py"),
        ("./a//b.py", "a/./b.py", "a/b.py"),
        ("a-1.data/purelib/a/b.py", "a/b.py", "a/b.py"),
        ("a-1.data/platlib/a.so", "a.so", "a.so"),
        ("a-1.data/data/share/a", "../../../share/a", "<data>/share/a"),
        (f"a-1.data/data/{SITE}/a.pth", "a.pth", "a.pth"),
        ("a-1.data/data/bin/a", "../../../bin/a", None),
        ("a-1.data/data/Scripts/a.exe", "../../Scripts/a.exe", None),
        ("a-1.data/scripts/a", "../../../bin/a", None),
        ("a-1.data/headers/a.h", "../../../include/site/python3.11/a/a.h", None),
        ("a-1.dist-info/RECORD", "a-1.dist-info/RECORD", None),
        ("a-1.dist-info/RECORD.jws", "a-1.dist-info/RECORD.jws", None),
        ("a-1.dist-info/METADATA", "a-1.dist-info/METADATA", "a-1.dist-info/METADATA"),
        ("a-1.dist-info/licenses/INSTALLER", "a-1.dist-info/licenses/INSTALLER", "a-1.dist-info/licenses/INSTALLER"),
        ("a/__pycache__/b.cpython-311.pyc", "a/__pycache__/b.cpython-311.pyc", None),
        ("bin/a", "bin/a", "bin/a"),
    ],
)
def test_a_file_is_at_one_place(in_wheel: str, installed: str, place: str | None) -> None:
    (one,) = record_entries(f"{in_wheel},sha256=x,1\n")
    (other,) = record_entries(f"{installed},sha256=x,1\n")
    depth = 2 if "Scripts" in installed else 3
    assert (wheel_path(one.path), installed_path(other.path, depth)) == (place, place)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("lib/__pycache__/a.cpython-311.pyc", True),
        ("__pycache__/a.cpython-311.pyc", True),
        ("lib/__pycache__/sub/a.pyc", False),
        ("lib/__pycache__/a.py", False),
        ("lib/my__pycache__/a.pyc", False),
        ("a.pyc", False),
    ],
)
def test_bytecode_is_directly_in_its_folder(path: str, is_one: bool) -> None:
    assert is_bytecode(path) is is_one


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../../outside", "../beside"])
def test_what_lies_outside_has_no_place(path: str) -> None:
    assert installed_path(path, 3) is None


@pytest.mark.parametrize("text", ['"open', "a,b\n", "a,b,c,d\n"])
def test_a_record_that_is_none(text: str) -> None:
    with pytest.raises(BadRecord, match="its RECORD"):
        list(record_entries(text))


def test_the_digest_is_of_paths_and_hashes_in_any_order() -> None:
    one = b"a.py,sha256=aa,1\nb.py,sha256=bb,1\na-1.dist-info/RECORD,,\n"
    other = b'"b.py",sha256=bb=,22\na.py,sha256=aa,1\na-1.dist-info/INSTALLER,sha256=cc,1\n'
    assert wheel_sha256(one) == wheel_sha256(other) is not None
    assert wheel_sha256(one.replace(b"=bb", b"=bc")) != wheel_sha256(one)
    assert wheel_sha256(one.replace(b"b.py", b"c.py")) != wheel_sha256(one)
    assert wheel_sha256(one.replace(b"sha256=bb", b"md5=bb")) is None


def test_values_travel_as_json() -> None:
    expected = Expected(
        (ExpectedPackage("a", "1", "ab"), ExpectedPackage("b", "2")),
        (ExpectedConda("c", "1", "h", "d"),),
        wrong_records={"a": {"a.so": "ab", "b.so": None}},
    )
    assert Expected.of(json.loads(json.dumps(asdict(expected)))) == expected
    result = VerifyResult(tuple(DriftFinding("a", drift, "p", "e", "f") for drift in Drift), VerifyCounts(packages=2))
    assert [each["text"] for each in result.as_json()["findings"]] == [each.text for each in result.findings]


def verified(expected: Expected, prefix: Path, *path: Path) -> VerifyResult:
    """path: Python's."""
    return compare(expected, read_installed(find_environment(prefix, list(map(str, path)))))


def site_of(prefix: Path) -> Path:
    site = prefix / SITE
    site.mkdir(parents=True, exist_ok=True)
    return site


def lay(site: Path, name: str, files: dict[str, bytes]) -> ExpectedPackage:
    """Unpack a wheel of these files."""
    made = wheel(name, "1.0", files=files)
    with zipfile.ZipFile(io.BytesIO(made.data)) as archive:
        archive.extractall(site)
    return ExpectedPackage(name, "1.0", wheel_sha256(member(made.data, ".dist-info/RECORD")))


@pytest.mark.parametrize(
    ("files", "earlier", "hides"),
    [
        ({"mod/__init__.py": b""}, "mod/__init__.py", "mod"),
        ({"mod/__init__.py": b""}, "mod.py", "mod.py"),
        ({"mod.py": b""}, "mod/__init__.py", "mod"),
        ({"mod.py": b""}, "mod.cpython-311-x86_64-linux-gnu.so", "mod.cpython-311-x86_64-linux-gnu.so"),
        ({"space/part/__init__.py": b""}, "space/part/__init__.py", "space"),
        # A part of a namespace beside ours hides nothing, nor does a folder beside a package of its name.
        ({"space/part/__init__.py": b""}, "space/other/__init__.py", ""),
        ({"mod/__init__.py": b"", "mod/a.py": b""}, "mod/a.py", ""),
        ({"mod.py": b""}, "mod/notes.txt", ""),
        ({"mod.py": b""}, "mod.txt", ""),
    ],
)
def test_what_hides_a_module(tmp_path: Path, files: dict[str, bytes], earlier: str, hides: str) -> None:
    prefix, before = (tmp_path / "env").resolve(), (tmp_path / "before").resolve()
    package = lay(site_of(prefix), "thing", files)
    (before / earlier).parent.mkdir(parents=True)
    (before / earlier).write_bytes(b"")
    wanted = (DriftFinding("thing", Drift.SHADOWED, str(before / hides)),) if hides else ()
    assert verified(Expected((package,)), prefix, before, prefix / SITE).findings == wanted
    assert verified(Expected((package,)), prefix, prefix / SITE, before).is_same


def test_the_library_of_python_comes_first_by_design() -> None:
    left = {str(folder) for folder in find_environment(Path(sys.prefix), sys.path).path}
    assert not any(
        folder.endswith(("lib-dynload", f"python{sys.version_info[0]}.{sys.version_info[1]}")) for folder in left
    )
    assert any(folder.endswith("site-packages") for folder in left)


def test_a_file_of_two_packages_is_whole_by_either_hash(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    expected = (lay(site, "one", {"space/__init__.py": b"1"}), lay(site, "two", {"space/__init__.py": b"2"}))
    assert verified(Expected(expected), tmp_path).is_same
    (site / "space/__init__.py").write_bytes(b"3")
    (finding,) = verified(Expected(expected), tmp_path).findings
    assert finding.drift is Drift.CHANGED


def conda_record(prefix: Path, **others: Any) -> Path:
    (prefix / "conda-meta").mkdir(exist_ok=True)
    (prefix / "lib/libx.so").write_bytes(b"library")
    digest = hashlib.sha256(b"library").hexdigest()
    path = {"_path": "lib/libx.so", "path_type": "hardlink", "sha256": "0" * 64, "sha256_in_prefix": digest}
    record = {
        "name": "libx",
        "version": "1.0",
        "build": "h0_0",
        "sha256": "ab" * 32,
        "files": ["lib/libx.so"],
        "paths_data": {"paths": [path], "paths_version": 1},
        **others,
    }
    file = prefix / "conda-meta/libx-1.0-h0_0.json"
    file.write_text(json.dumps(record))
    return file


LIBX = ExpectedConda("libx", "1.0", "h0_0", "ab" * 32)


def conda_findings(prefix: Path, *expected: ExpectedConda) -> list[tuple[str, Drift]]:
    return [(each.package, each.drift) for each in verified(Expected((), expected), prefix).findings]


def test_conda_packages(tmp_path: Path) -> None:
    site_of(tmp_path)
    file = conda_record(tmp_path)
    assert conda_findings(tmp_path, LIBX) == []
    assert conda_findings(tmp_path) == [("libx", Drift.EXTRA)]
    assert conda_findings(tmp_path, LIBX, ExpectedConda("liby", "1", "h", "")) == [("liby", Drift.MISSING)]
    assert conda_findings(tmp_path, ExpectedConda("libx", "1.0", "h1_1", "ab" * 32)) == [("libx", Drift.VERSION)]
    assert conda_findings(tmp_path, ExpectedConda("libx", "1.0", "h0_0", "cd" * 32)) == [("libx", Drift.ARCHIVE)]
    (tmp_path / "lib/libx.so").write_bytes(b"librarY")
    assert conda_findings(tmp_path, LIBX) == [("libx", Drift.CHANGED)]
    (tmp_path / "lib/libx.so").unlink()
    assert conda_findings(tmp_path, LIBX) == [("libx", Drift.FILE_MISSING)]
    file.write_text("{")
    assert conda_findings(tmp_path, LIBX) == [("libx", Drift.UNREADABLE)]


def test_a_distribution_of_condas_is_no_wheel(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    lay(site, "numpy", {"numpy/__init__.py": b""})
    paths = [
        f"{SITE}/numpy/__init__.py",
        *(f"{SITE}/numpy-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")),
    ]
    conda_record(tmp_path, files=[*paths, "lib/libx.so"])
    assert conda_findings(tmp_path, LIBX) == []
    (site / "numpy/added.py").write_text("")
    assert conda_findings(tmp_path, LIBX) == [("", Drift.UNOWNED)]


def test_many_files_are_each_looked_at(tmp_path: Path) -> None:
    """More than are taken one by one."""
    wanted = []
    for number in range(2500):
        data = str(number).encode()
        (tmp_path / str(number)).write_bytes(data)
        message = hashlib.sha256(data if number % 100 else b"other").hexdigest()
        wanted.append(ExpectedFile(str(number), {("sha256", from_hex(message)): None}, number))
    hashed = hash_all(wanted, str(tmp_path.resolve()))
    assert sorted(int(each.path) for each in hashed) == list(range(2500))
    assert {int(each.path) for each in hashed if each.drift} == set(range(0, 2500, 100))


# Spellings of a version and of a name, without `packaging`, which images need not have

NUMBERS = st.integers(0, 12).map(str) | st.sampled_from(["00", "01", "2024"])
SEPARATORS = st.sampled_from(["", ".", "-", "_"])


def stage(*words: str) -> st.SearchStrategy[str]:
    return st.builds("".join, st.tuples(SEPARATORS, st.sampled_from(words), SEPARATORS, NUMBERS | st.just("")))


VERSIONS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "v", "V"]),
        st.sampled_from(["", "0!", "1!"]),
        st.lists(NUMBERS, min_size=1, max_size=4).map(".".join),
        st.just("") | stage("a", "b", "c", "rc", "alpha", "beta", "pre", "preview", "RC"),
        st.just("") | stage("post", "rev", "r", "POST") | NUMBERS.map("-{}".format),
        st.just("") | stage("dev", "Dev"),
        st.just("") | st.sampled_from(["+cu128", "+CU128", "+cu.1", "+cu_01", "+1.2"]),
    ),
)


def is_version(text: str) -> bool:
    try:
        Version(text)
    except ValueError:
        return False
    # A separator at its end, as in `1.0a.`, is read in more than one way.
    return text[-1].isalnum()


@settings(max_examples=tries(500))
@given(VERSIONS.filter(is_version), VERSIONS.filter(is_version))
def test_versions(one: str, other: str) -> None:
    assert same_version(one, other) == (Version(one) == Version(other))
    assert same_version(one, str(Version(one)))


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "1"), ("1.0-1", "1.0.post1"), ("2.9.1+cu.128", "2.9.1+CU-128"), ("01.2", "1.2")]
)
def test_spellings_of_a_version(one: str, other: str) -> None:
    assert same_version(one, other)
    assert not same_version(one, f"{other}.1") and not same_version(one, "x")


@given(st.text("aB-_.1", min_size=1, max_size=8))
def test_names(name: str) -> None:
    assert normalised(name) == canonicalize_name(name)
