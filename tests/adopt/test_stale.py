"""Whether locks of other tools belong to their projects."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.adopt.stale import differences
from envspec.errors import UsageError
from envspec.io.http_settings import default_index_url
from tests.support.builders.adopted import lock_project
from tests.support.builders.ecosystem import release
from tests.support.servers.index import IndexServer

COMMIT = "a" * 40
PROJECT = """
[project]
name = "App"
version = "1.0"
requires-python = ">=3.10,<4"
dependencies = ["one>=1", "Two[x]~=1.0 ; python_version >= '3.11'", "lib", "other"]
[project.optional-dependencies]
gpu = ["three==1.0 ; sys_platform == 'linux'", "app[web]"]
web = ["four"]
[dependency-groups]
dev = ["five>=1", {include-group = "lint"}]
lint = ["six"]
[tool.uv]
override-dependencies = ["seven==1.0", "eight ; sys_platform == 'never'"]
constraint-dependencies = ["six<2"]
[tool.uv.workspace]
members = ["packages/*"]
exclude = ["packages/no"]
[[tool.uv.index]]
name = "own"
url = "INDEX"
explicit = true
[tool.uv.sources]
lib = {workspace = true}
other = {path = "other"}
three = {index = "own", marker = "platform_machine == 'x86_64'"}
four = [{index = "own", extra = "web"}]
"""
LIB = '[project]\nname = "lib"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["four>=1"]\n'


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a workspace that uv has locked."""
    names = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    with IndexServer([release(name, "1.0") for name in names]) as index:
        folder = tmp_path_factory.mktemp("workspace") / "app"
        for path, text in {
            "pyproject.toml": PROJECT.replace("INDEX", index.url),
            "packages/lib/pyproject.toml": LIB,
            "packages/no/pyproject.toml": LIB.replace("lib", "no"),
            "other/pyproject.toml": '[project]\nname = "other"\nversion = "1"\ndependencies = ["one"]\n',
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        lock_project(folder, index)
        # The lock names the default index by its real address.
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        (folder / "pyproject.toml").write_text(text.replace(index.url, default_index_url({})), encoding="utf-8")
        yield folder


def changed(locked: Path, folder: Path, path: str, old: str, new: str) -> list[str] | None:
    """The differences after a change of a file."""
    shutil.copytree(locked, folder / "app")
    file = folder / "app" / path
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    return differences(folder / "app" / "uv.lock")


def test_nothing_changed(locked: Path) -> None:
    assert differences(locked / "uv.lock") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("one>=1", "ONE >= 1.0"),
        ("python_version >= '3.11'", "python_full_version >= '3.11'"),
        (">=3.10,<4", ">=3.10.0, <4.0"),
        ("[tool.uv.workspace]", "exclude-newer = '2020-01-01T00:00:00Z'\n[tool.uv.workspace]"),
        ('name = "own"', 'name = "own"\ndefault = false'),
        ('"packages/*"', '"packages/lib", "absent/*", "../x", ""'),
        ('"packages/*"', '"pack*/**"'),
        ('{path = "other"}', '{path = "./other", editable = true}'),
    ],
)
def test_the_same_in_other_words(locked: Path, tmp_path: Path, old: str, new: str) -> None:
    assert changed(locked, tmp_path, "pyproject.toml", old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ('"lib", ', "", "dependencies does not have lib from packages/lib, which is in the lock"),
        ('"one>=1"', '"one>=1", "new>2"', "dependencies has new>2, which is not in the lock"),
        ("one>=1", "one>=2", "dependencies has one as one>=2; in the lock it is one>=1"),
        ("Two[x]", "two[y]", "dependencies has two as two[y]~=1.0; in the lock it is two[x]~=1.0"),
        (" ; python_version >= '3.11'", "", "dependencies has two as no marker; in the lock it is "
            "python_full_version >= '3.11'"),
        ('gpu = ["three', 'gpu = ["new", "three', "extra gpu has new, which is not in the lock"),
        ('web = ["four"]', "", "extra web is only in the lock"),
        ('web = ["four"]', 'web = ["four"]\nnone = []', "extra none is not in the lock"),
        ("app[web]", "app", "extra gpu has app as app; in the lock it is app[web]"),
        ('"five>=1", ', "", "group dev does not have five>=1, which is in the lock"),
        ('lint = ["six"]', 'lint = ["six", "new"]', "group dev has new, which is not in the lock"),
        ("seven==1.0", "seven==2", "override-dependencies has seven as seven==2; in the lock it is seven==1.0"),
        (", \"eight ; sys_platform == 'never'\"", "", "override-dependencies does not have eight, which is"),
        ("six<2", "six<3", "constraint-dependencies has six as six<3; in the lock it is six<2"),
        (">=3.10,<4", ">=3.12", "requires-python is >=3.10,>=3.12; in the lock it is <4,>=3.10"),
        ('exclude = ["packages/no"]', "", "no is a member of the workspace, and is not in the lock"),
        ('"packages/*"', '"x/*"', "lib is no member of the workspace, and the lock has it as one"),
        ("'x86_64'\"}", "'aarch64'\"}", "extra gpu has three as "),
        ("lib = {workspace = true}", f"lib = {{git = 'https://example.com/lib.git', rev = '{COMMIT}'}}",
            f"dependencies has lib as lib from git https://example.com/lib@{COMMIT}#; in the lock it is lib from"),
        ("lib = {workspace = true}", "one = {url = 'https://example.com/one.whl'}",
            "dependencies has one as one>=1 from https://example.com/one.whl; in the lock it is one>=1"),
    ],
)  # fmt: skip
def test_what_changed(locked: Path, tmp_path: Path, old: str, new: str, difference: str) -> None:
    found = changed(locked, tmp_path, "pyproject.toml", old, new)
    assert found
    assert any(each.startswith(f"pyproject.toml: {difference}") for each in found), found


def test_a_member_and_a_local_package(locked: Path, tmp_path: Path) -> None:
    assert changed(locked, tmp_path, "packages/lib/pyproject.toml", "four>=1", "four>=2") == [
        "packages/lib/pyproject.toml: dependencies has four as four>=2; in the lock it is four>=1"
    ]
    assert changed(locked, tmp_path / "b", "other/pyproject.toml", '"one"', '"one", "two"') == [
        "other/pyproject.toml: dependencies has two, which is not in the lock"
    ]


def test_what_can_not_be_compared_is_not(locked: Path, tmp_path: Path) -> None:
    shutil.copytree(locked, tmp_path / "app")
    shutil.rmtree(tmp_path / "app" / "packages" / "lib")
    shutil.rmtree(tmp_path / "app" / "other")
    # A submodule that is not fetched.
    assert differences(tmp_path / "app" / "uv.lock") == []
    dynamic = 'dynamic = ["dependencies", "optional-dependencies", "requires-python"]\nold = ["one>=1"'
    assert changed(locked, tmp_path / "b", "pyproject.toml", 'dependencies = ["one>=1"', dynamic) == []
    (tmp_path / "app" / "pyproject.toml").unlink()
    assert differences(tmp_path / "app" / "uv.lock") == []


def test_extras_in_each_other_of_a_project_that_was_built(locked: Path, tmp_path: Path) -> None:
    entry = re.search(r'\n *\{ name = "app", extras = \["web"\].*\n', (locked / "uv.lock").read_text(encoding="utf-8"))
    four = re.search(r'\n *\{ name = "four", marker = .*\n', (locked / "uv.lock").read_text(encoding="utf-8"))
    assert entry and four
    flat = four[0].replace("'web'", "'gpu'")
    assert (
        changed(locked, tmp_path, "uv.lock", entry[0], flat)
        == [
            # The source of `four` is for its extra alone.
        ]
    )


def test_groups_of_a_workspace_that_is_no_project(tmp_path: Path) -> None:
    text = "version = 1\nrevision = 3\nrequires-python = '>=3.10'\n[manifest.dependency-groups]\n"
    (tmp_path / "uv.lock").write_text(text + "dev = [{name = 'one', specifier = '>=1'}]\nnone = []\n", encoding="utf-8")
    project = tmp_path / "pyproject.toml"
    project.write_text("[dependency-groups]\ndev = ['one>=1']\nnone = []\n", encoding="utf-8")
    assert differences(tmp_path / "uv.lock") == []
    project.write_text("[tool.uv]\ndev-dependencies = ['one>=2']\n", encoding="utf-8")
    assert differences(tmp_path / "uv.lock") == [
        "pyproject.toml: group dev has one as one>=2; in the lock it is one>=1",
        "pyproject.toml: group none is only in the lock",
    ]


POETRY = """[tool.poetry]
name = "x"
[tool.poetry.dependencies]
python = ">=3.9"
a = {version = "*", optional = true}
[tool.poetry.extras]
e = ["a"]
[tool.poetry.group.g.dependencies]
b = "^1"
"""
STANDARD = """[project]
name = "x"
requires-python = ">=3.9"
dependencies = ["a>=1"]
[project.optional-dependencies]
e = ["é"]
[dependency-groups]
dev = ["c"]
[tool.poetry.dependencies]
a = {source = "s"}
"""


@pytest.mark.parametrize(
    ("project", "digest"),
    [
        # Poetry 1.8.5 and 2.5.1.
        (POETRY, "b35898b8ba28ff2c2c9150c47aa12eb4bdb8b636601c8676c6ade05cb4e5c727"),
        ('[tool.poetry]\nname = "x"\n', "115cf985d932e9bf5f540555bbdd75decbb62cac81e399375fc19f6277f8c1d8"),
        # Poetry 2.5.1, and 1.8.5, which does not read [project].
        (STANDARD, "d50bc830ee5c9a78cdb343b502ec12d1b9db6e23dcf68dedb3dcc18856d17ba7"),
        (STANDARD, "49f5b1776738a2b0c3beb55360edcfca9fb2a8e32a10cc5652f2027fcda15a43"),
        (
            '[project]\nname = "x"\n[dependency-groups]\ndev = ["c"]\n',
            "5f6bbcbee24b9db68db390143a77e101df2e85a85601c12c1fcd0c4afcb70bf0",
        ),
    ],
)
def test_the_hash_of_poetry(tmp_path: Path, project: str, digest: str) -> None:
    (tmp_path / "poetry.lock").write_text(f"[metadata]\ncontent-hash = '{digest}'\n", encoding="utf-8")
    assert differences(tmp_path / "poetry.lock") == []
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    assert differences(tmp_path / "poetry.lock") == []
    (tmp_path / "pyproject.toml").write_text(
        project + "z = '*'\n[tool.poetry.group.h]\noptional = true\n", encoding="utf-8"
    )
    assert differences(tmp_path / "poetry.lock") == [
        "pyproject.toml has other requirements than when poetry.lock was written"
    ]


@pytest.mark.parametrize("name", ["pylock.toml", "requirements.txt"])
def test_formats_with_nothing_to_compare(tmp_path: Path, name: str) -> None:
    assert differences(tmp_path / name) is None


@pytest.mark.parametrize(
    ("lock", "project", "problem"),
    [
        ("", "dependencies = ['b=1']", "Expected semicolon .* b=1"),
        ("", "dependencies = ['b']\n[tool.uv.sources]\nb = 3", "b is no list of tables"),
        ("", "[dependency-groups]\na = [{include-group = 'b'}]", "dependency-groups"),
        ("[manifest]\noverrides = [3]", "", "overrides is no list of tables"),
        ("[package.metadata]\nrequires-dist = [{name = 'b', specifier = '1'}]", "", "Invalid specifier"),
        ("[package.metadata]\nrequires-dist = [{name = 'b', marker = '1'}]", "dependencies = ['b']", "marker"),
    ],
)
def test_malformed(tmp_path: Path, lock: str, project: str, problem: str) -> None:
    text = "version = 1\n[[package]]\nname = 'a'\nsource = {editable = '.'}\n"
    (tmp_path / "uv.lock").write_text(text + lock, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'a'\n{project}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=f"is malformed: .*{problem}"):
        differences(tmp_path / "uv.lock")
