"""poetry.lock as rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.markers import Marker

from envspec.adopt.poetry import read
from envspec.adopt.rows import ALL, ForeignLock, LeftOut, LockedFile, Row, Selection
from envspec.errors import UsageError
from envspec.models import Platform, marker_values

HASH = "0123456789abcdef" * 4
PLAIN = Selection()
PROJECT = '[tool.poetry]\nname = "Lab"\n'


def package(name: str, version: str = "1.0", more: str = "") -> str:
    filename = f"{name}-{version}-py3-none-any.whl"
    return (
        f'[[package]]\nname = "{name}"\nversion = "{version}"\noptional = false\n'
        f'files = [{{file = "{filename}", hash = "sha256:{HASH}"}}, {{file = "{name}.exe", hash = "md5:1"}}]\n{more}\n'
    )


def locked(
    folder: Path,
    packages: str,
    selection: Selection = PLAIN,
    *,
    project: str = PROJECT,
    python: str = "^3.10",
    version: str = "2.1",
    extras: str = "",
) -> ForeignLock:
    if project:
        (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    head = f'{extras}\n[metadata]\nlock-version = "{version}"\npython-versions = "{python}"\ncontent-hash = "x"\n'
    path = folder / "poetry.lock"
    path.write_text(packages + head, encoding="utf-8")
    return read(path, selection)


def installed(found: ForeignLock, python: str = "3.12.1", platform: Platform = Platform.LINUX_64) -> set[str]:
    values = marker_values(platform, python)
    held = (row for row in found.rows if not row.marker or Marker(row.marker).evaluate(values))
    return {f"{row.name} {row.version}" for row in held}


def test_files_and_sources(tmp_path: Path) -> None:
    commit = "a" * 40
    main = 'groups = ["main"]\n[package.source]\n'
    url = "https://example.com/c-1.0-py3-none-any.whl"
    git = (
        f'{main}type = "git"\nurl = "https://example.com/d.git"\nreference = "HEAD"\nresolved_reference = "{commit}"\n'
    )
    found = locked(
        tmp_path,
        package("Plain_One", more='groups = ["main"]')
        + package("b", "2.7.1+cu126", f'{main}type = "legacy"\nurl = "https://download.pytorch.org/whl/cu126"\n')
        + package("c", more=f'{main}type = "url"\nurl = "{url}"\n')
        + package("d", more=git + 'subdirectory = "py"\n')
        + package("e", more=f'{main}type = "directory"\nurl = "../lib"\n'),
        python="^3.9.10",
    )
    assert (found.name, found.requires_python) == ("lab", ">=3.9.10,<4")
    b, c, d, e, plain = found.rows
    assert plain == Row("plain-one", "1.0", files=(LockedFile("Plain_One-1.0-py3-none-any.whl", None, HASH),))
    assert (b.index, b.index_url) == ("pytorch-cu126", "https://download.pytorch.org/whl/cu126")
    assert (c.index, c.files) == ("url", (LockedFile("c-1.0-py3-none-any.whl", url, HASH),))
    assert d == Row("d", "1.0", "git", source=f"git+https://example.com/d.git@{commit}#subdirectory=py")
    assert e == Row("e", "1.0", "local", source="../lib")


GROUPS = (
    package("a", more='groups = ["main", "dev"]\nmarkers = {main = "os_name == \'nt\'"}')
    + package("b", more="groups = [\"main\"]\nmarkers = \"extra == 'X' and os_name == 'posix'\"")
    + package("c", more='groups = ["dev"]')
    + package("d", more='groups = ["docs"]\nmarkers = "python_version < \'3.11\'"')
)
OPTIONAL = PROJECT + "[tool.poetry.group.docs]\noptional = true\n"


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (PLAIN, {"a": "os_name == 'nt'"}),
        (Selection(extras=("x",)), {"a": "os_name == 'nt'", "b": "os_name == 'posix'"}),
        (Selection(groups=("dev",)), {"a": "", "c": ""}),
        (Selection(default_groups=True), {"a": "", "c": ""}),
        (Selection(groups=(ALL,), without_groups=("dev",)), {"a": "os_name == 'nt'", "d": "python_version < '3.11'"}),
    ],
)
def test_groups_and_extras(tmp_path: Path, selection: Selection, expected: dict[str, str]) -> None:
    found = locked(tmp_path, GROUPS, selection, project=OPTIONAL, extras='[extras]\nX = ["b"]')
    assert {row.name: row.marker for row in found.rows} == expected


def test_what_is_left_out(tmp_path: Path) -> None:
    found = locked(tmp_path, GROUPS, project=OPTIONAL, extras='[extras]\nX = ["b"]')
    assert found.left_out == (
        LeftOut("extra", "x", frozenset({"b"})),
        LeftOut("group", "dev", frozenset({"c"})),
        LeftOut("group", "docs", frozenset({"d"})),
    )


SOURCES = (
    PROJECT
    + """[tool.poetry.dependencies]
torch = [
  {markers = "extra == 'cpu' and extra != 'cuda' and sys_platform == 'linux'", source = "pytorch-cpu"},
  {markers = "extra == 'cuda' and extra != 'cpu' and sys_platform == 'linux'", source = "pytorch-cuda"},
]
"""
)


def torch(project: str = SOURCES, selection: Selection = PLAIN, *, folder: Path) -> ForeignLock:
    more = 'groups = ["main"]\nmarkers = "sys_platform == \'linux\'"\n[package.source]\ntype = "legacy"\n'
    index = "url = 'https://download.pytorch.org/whl/{0}'\nreference = 'pytorch-{1}'\n"
    packages = package("torch", "2.7.1", 'groups = ["main"]\nmarkers = "sys_platform != \'linux\'"')
    packages += package("torch", "2.7.1+cpu", more + index.format("cpu", "cpu"))
    packages += package("torch", "2.7.1+cu126", more + index.format("cu126", "cuda"))
    extras = '[extras]\ncpu = ["torch"]\ncuda = ["torch (==2.7.1+cu126)"]\nweb = ["httpx"]'
    return locked(folder, packages, selection, project=project, extras=extras)


@pytest.mark.parametrize(("extra", "version"), [("cpu", "2.7.1+cpu"), ("cuda", "2.7.1+cu126")])
def test_extras_that_exclude_each_other(tmp_path: Path, extra: str, version: str) -> None:
    found = torch(selection=Selection(extras=(extra,)), folder=tmp_path)
    assert installed(found) == {f"torch {version}"}
    assert installed(found, platform=Platform.OSX_ARM64) == {"torch 2.7.1"}
    lines = PROJECT + "[project.optional-dependencies]\ncpu = ['torch==2.7.1+cpu']\ncuda = ['torch==2.7.1+cu126']\n"
    assert installed(torch(lines, Selection(extras=(extra,)), folder=tmp_path)) == {f"torch {version}"}


def test_a_name_twice(tmp_path: Path) -> None:
    problem = r"has torch twice for x86_64 with Python 3.10: 2.7.1\+cpu and 2.7.1\+cu126\n"
    with pytest.raises(UsageError, match=problem + ".* extras that have it: --extra cpu, --extra cuda"):
        torch(folder=tmp_path)
    with pytest.raises(UsageError, match="run `poetry lock` with Poetry 2"):
        locked(tmp_path, package("a", more='groups = ["main"]') + package("a", "2", more='groups = ["main"]'))


@pytest.mark.parametrize(
    ("packages", "options", "message"),
    [
        (package("a"), {"version": "3.0"}, r"has the format 3.0; 2.1 is the oldest"),
        (package("a"), {"version": "2.0"}, r"has the format 2.0"),
        (package("a"), {"version": "1.1"}, r"has the format 1.1"),
        (package("a", more='groups = ["main"]\nmarkers = "os_name ="'), {}, "can't be read: Expected marker operator"),
        (package("a b", more='groups = ["main"]'), {}, "a b 1.0 is no name and version"),
        (package("a", more='[package.source]\ntype = "file"\nurl = "x.whl"'), {}, "a is from x.whl, a file source"),
        (package("a", more='[package.source]\ntype = "git"\nurl = "x"'), {}, "not locked to a commit"),
        ("[[package]", {}, "is not TOML"),
        ("package = [3]\n", {}, "can't be read: package is no list of tables"),
        ("package = [{name = 'a', version = '1', files = [3]}]\n", {}, "can't be read: files is no list of tables"),
        (package("a", more='groups = ["main"]'), {"python": "3.x"}, "can't be read: .*3.x"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, packages: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        locked(tmp_path, packages, **options)  # type: ignore[arg-type]


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no extra gpu\n  hint: use one of x"):
        locked(tmp_path, GROUPS, Selection(extras=("gpu",)), extras='[extras]\nX = ["b"]')
    with pytest.raises(UsageError, match=r"has no group test\n  hint: use one of dev, docs"):
        locked(tmp_path, GROUPS, Selection(groups=("test",)))
