"""pylock.toml as rows."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.markers import Marker
from pip._internal.models.index import PyPI

from envspec.adopt.markers import without_extras
from envspec.adopt.pylock import read
from envspec.adopt.rows import ALL, ForeignLock, LeftOut, LockedFile, Row, Selection
from envspec.errors import UsageError
from envspec.io.http_settings import default_index_url
from envspec.models import Platform, marker_values
from tests.support.tries import tries

HASH = "0123456789abcdef" * 4
PLAIN = Selection()
FILES = f"https://{PyPI.file_storage_domain}/packages"


def wheel(name: str, url: str = "", version: str = "1.0") -> str:
    filename = f"{name}-{version}-py3-none-any.whl"
    return f'wheels = [{{url = "{url or FILES}/{filename}", hashes = {{sha256 = "{HASH}"}}}}]\n'


def package(name: str, more: str = "", *, marker: str = "", version: str = "1.0") -> str:
    text = f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
    if marker:
        text += f"marker = {json.dumps(marker)}\n"
    return text + (more or wheel(name, version=version))


def locked(folder: Path, packages: str, *, head: str = "", selection: Selection = PLAIN) -> ForeignLock:
    path = folder / "pylock.gpu.toml"
    path.write_text(f'lock-version = "1.0"\ncreated-by = "test"\n{head}\n{packages}', encoding="utf-8")
    return read(path, selection)


def versions(found: ForeignLock) -> dict[str, str]:
    return {row.name: row.marker for row in found.rows}


def test_files_and_indexes(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "Lab"\n', encoding="utf-8")
    found = locked(
        tmp_path,
        package("b", f'index = "{default_index_url({}).rstrip("/")}"\n' + wheel("b", "https://mirror.example.com"))
        + package(
            "a",
            f'sdist = {{name = "a-1.0.tar.gz", url = "{FILES}/a-1.0.tar.gz", size = 7, '
            f"upload-time = 2026-01-02T03:04:05Z, "
            f'hashes = {{sha256 = "{HASH}"}}}}\n' + wheel("a"),
        )
        + package("c", 'index = "https://me:secret@corp.example.com/team/simple/"\n' + wheel("c"))
        + package(
            "torch", wheel("torch", "https://download.pytorch.org/whl/cu128", "2.7.1%2Bcu128"), version="2.7.1+cu128"
        ),
        head='requires-python = ">=3.11"',
    )
    a, b, c, torch = found.rows
    assert (found.name, found.requires_python) == ("lab", ">=3.11")
    assert a.files == (
        LockedFile("a-1.0-py3-none-any.whl", f"{FILES}/a-1.0-py3-none-any.whl", HASH),
        LockedFile(
            "a-1.0.tar.gz", f"{FILES}/a-1.0.tar.gz", HASH, 7, datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
        ),
    )
    assert [(row.index, row.index_url) for row in (a, b, c, torch)] == [
        ("default", ""),
        ("default", ""),
        ("corp-example-com-team", "https://corp.example.com/team/simple/"),
        ("pytorch-cu128", "https://download.pytorch.org/whl/cu128"),
    ]
    assert torch.files[0].filename == "torch-2.7.1+cu128-py3-none-any.whl"


def test_sources_without_an_index(tmp_path: Path) -> None:
    commit = "1" * 40
    git = f'vcs = {{type = "git", url = "https://example.com/a.git", commit-id = "{commit}", subdirectory = "py"}}\n'
    archive = f'archive = {{url = "https://example.com/b-2.zip#egg=b", hashes = {{sha256 = "{HASH}"}}}}\n'
    folder = 'directory = {path = "../lib", subdirectory = "c", editable = true}\n'
    a, b, c = locked(tmp_path, package("a", git) + package("b", archive) + package("c", folder)).rows
    assert a == Row("a", "1.0", "git", source=f"git+https://example.com/a.git@{commit}#subdirectory=py")
    assert b == Row("b", "1.0", "url", files=(LockedFile("b-2.zip", "https://example.com/b-2.zip", HASH),))
    assert c == Row("c", "1.0", "local", source="../lib/c")


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (PLAIN, {"a": "", "b": 'os_name == "posix"'}),
        (Selection(extras=("x",)), {"a": "", "b": 'os_name == "posix"', "c": 'os_name == "nt"'}),
        (Selection(groups=("dev-tools",)), {"a": "", "b": "", "d": ""}),
        (Selection(groups=(ALL,), without_groups=("dev-tools",)), {"a": "", "b": 'os_name == "posix"'}),
        (Selection(extras=(ALL,), groups=(ALL,)), {"a": "", "b": "", "c": 'os_name == "nt"', "d": ""}),
    ],
)
def test_extras_and_groups(tmp_path: Path, selection: Selection, expected: dict[str, str]) -> None:
    found = locked(
        tmp_path,
        package("a", marker="'default' in dependency_groups")
        + package("b", marker="os_name == 'posix' or 'dev_tools' in dependency_groups")
        + package("c", marker="'x' in extras and os_name == 'nt'")
        + package("d", marker="'dev-tools' in dependency_groups"),
        head='extras = ["x"]\ndependency-groups = ["Dev.Tools"]\ndefault-groups = ["default"]',
        selection=selection,
    )
    assert versions(found) == expected
    if selection == PLAIN:
        assert found.left_out == (
            LeftOut("extra", "x", frozenset({"c"})),
            LeftOut("group", "dev-tools", frozenset({"d"})),
        )


@pytest.mark.parametrize(
    ("packages", "head", "selection", "message"),
    [
        ("", "", Selection(extras=("x",)), r"has no extra x\n  hint: remove it: .* has no extras"),
        ("", 'dependency-groups = ["dev"]', Selection(groups=("x",)), r"has no group x\n  hint: use one of dev"),
        (
            package("a", marker="os_name == 'posix'") + package("a", version="2.0"),
            "",
            PLAIN,
            r"has a twice for x86_64 with Python 3.8: 1.0 and 2.0\n  hint: export it again",
        ),
        (
            package("a", marker="'x' in extras") + package("a", version="2.0"),
            'extras = ["x"]',
            Selection(extras=("x",)),
            r"1.0 and 2.0\n  hint: select other extras or groups: --extra x$",
        ),
        (package("a", marker="extras == 'x'"), "", PLAIN, "the marker of a can't be evaluated"),
        (package("a", marker="extra == 'x' and ("), "", PLAIN, "is not a pylock.toml of version 1"),
        (package("a", 'directory = {}\n'), "", PLAIN, "version 1: .*path"),
        (package("a", 'vcs = {type = "hg", url = "x", commit-id = "1"}\n'), "", PLAIN, "a is from hg at x, which"),
        (package("a", 'vcs = {type = "git", url = "x", commit-id = "1"}\n'), "", PLAIN, "not locked to a commit"),
        (package("a", wheel("a").replace("url =", "path =")), "", PLAIN, "a is a file of this machine"),
        (package("a", wheel("a", version="1.0") + "["), "", PLAIN, "is not TOML"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, packages: str, head: str, selection: Selection, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        locked(tmp_path, packages or package("z"), head=head, selection=selection)


def test_what_uv_writes(tmp_path: Path) -> None:
    renamed = wheel("Big_Name").replace("{url", '{name = "big_name-1.0-py3-none-any.whl", url')
    # Of an override, without files.
    excluded = '[[packages]]\nname = "torch"\nversion = "1"\nmarker = "sys_platform == \'never\'"\n'
    found = locked(tmp_path, package("big-name", renamed) + excluded)
    assert [file.filename for row in found.rows for file in row.files] == ["Big_Name-1.0-py3-none-any.whl"]
    with pytest.raises(UsageError, match="Exactly one of vcs, directory, archive must be set"):
        locked(tmp_path, package("big-name", renamed) + excluded.replace("never", "linux"))
    with pytest.raises(UsageError, match="Exactly one of vcs, directory, archive must be set"):
        locked(tmp_path, package("big-name", renamed) + excluded.replace("sys_platform == 'never'", "'x' in extras"))


def test_the_project_itself_is_no_row_if_images_install_it(tmp_path: Path) -> None:
    project = '[project]\nname = "app"\n[build-system]\nrequires = []\n'
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    found = locked(tmp_path, package("app", 'directory = {path = ".", editable = true}\n') + package("a"))
    assert (found.name, [row.name for row in found.rows]) == ("app", ["a"])


def test_another_version_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "pylock.toml"
    path.write_text('lock-version = "2.0"\ncreated-by = "x"\npackages = []\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"version 2\.0 is not supported"):
        read(path, PLAIN)


def test_a_name_twice_on_other_systems_or_pythons_is_no_fault(tmp_path: Path) -> None:
    packages = package("a", marker="python_version < '3.11'") + package("a", version="2.0")
    found = locked(tmp_path, packages, head='requires-python = ">=3.11"')
    assert len(found.rows) == 2
    windows = package("a", marker="os_name == 'nt'") + package("a", version="2.0", marker="sys_platform == 'win32'")
    assert len(locked(tmp_path, windows).rows) == 2


ATOMS = st.sampled_from(
    [
        *("'x' in extras", "'y' not in extras", "'Y' in extras", "'g' in dependency_groups"),
        *("'h' not in dependency_groups", "os_name == 'posix'", "sys_platform != 'linux'", "python_version < '3.12'"),
        *("python_full_version ~= '3.11'", "platform_machine in 'x86_64 aarch64'", "'a\\\\b or c' == os_name"),
    ]
)
MARKERS = st.recursive(
    ATOMS,
    lambda inner: st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner) | inner.map("({})".format),
    max_leaves=8,
)
NAMES = st.frozensets(st.sampled_from(["x", "y", "g", "h"]))


@settings(max_examples=tries(600), deadline=None)
@given(MARKERS, NAMES, NAMES, st.sampled_from(list(Platform)), st.sampled_from(["3.10.1", "3.12.0"]))
def test_what_is_left_of_a_marker_holds_where_it_held(
    marker: str, extras: frozenset[str], groups: frozenset[str], platform: Platform, python: str
) -> None:
    values = marker_values(platform, python)
    rest = without_extras(marker, extras, groups)
    expected = Marker(marker).evaluate({**values, "extras": extras, "dependency_groups": groups}, context="lock_file")
    assert (rest is not None and (not rest or Marker(rest).evaluate(values, context="requirement"))) == expected
    assert not re.search(r"extras|dependency_groups", rest or "")
