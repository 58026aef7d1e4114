"""pixi.lock and conda-lock.yml as rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.markers import Marker
from pip._internal.models.index import PyPI

from envspec.adopt import read_lock
from envspec.adopt.rows import ALL, ForeignLock, LeftOut, Selection, newest_file, packages_sha256
from envspec.errors import UsageError
from envspec.models import CondaChannel, Platform, marker_values
from tests.support.builders.conda_archive import archive, milliseconds
from tests.support.builders.conda_locks import FORGE, HASH, Conda, Wheel, conda_lock, pixi_lock

PLAIN = Selection()
LINUX, ARM = Platform.LINUX_64, Platform.LINUX_AARCH64
PYTHON = archive(
    "python", "3.12.11", subdir="linux-64", build="h1234567_cpython_3", depends=("tzdata",), built="2026-01-02"
)
TZDATA = archive("tzdata", "2024a", build="h0c530f3_0", built="2024-02-02")
GREET = archive("greet", "1.0", build="pyhd8ed1ab_1", depends=("python >=3.9",), python="noarch", built="2024-02-02")
BASE = (Conda(PYTHON), Conda(TZDATA), Conda(GREET))
FILES = f"https://{PyPI.file_storage_domain}/packages"
TQDM = Wheel("tqdm", f"{FILES}/tqdm-4.67.1-py3-none-any.whl", version="4.67.1")
COMMIT = "0123456789" * 4


def written(folder: Path, name: str, text: str, selection: Selection = PLAIN) -> ForeignLock:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_lock(path, selection)


def pixi(folder: Path, text: str, *groups: str) -> ForeignLock:
    return written(folder, "pixi.lock", text, Selection(groups=groups))


@pytest.mark.parametrize("version", [5, 6, 7])
def test_pixi_lock(tmp_path: Path, version: int) -> None:
    found = pixi(tmp_path, pixi_lock({"default": {"linux-64": (*BASE, TQDM)}}, version))
    greet, python, tzdata = found.conda[LINUX].packages
    assert found.conda[LINUX].problems == ()
    assert (python.name, python.version, python.build, python.build_number) == (
        *("python", "3.12.11", "h1234567_cpython_3"),
        3,
    )
    assert (python.channel, python.subdir, python.url) == ("conda-forge", "linux-64", BASE[0].url)
    assert (python.filename, python.sha256, python.md5) == (PYTHON.filename, PYTHON.sha256, PYTHON.md5)
    assert (python.size_bytes, python.timestamp_ms) == (len(PYTHON.data), milliseconds("2026-01-02"))
    assert (python.depends, python.license, python.noarch) == (("tzdata",), "Apache-2.0", "")
    assert (greet.noarch, tzdata.noarch) == ("python", "generic")
    assert found.channels == (CondaChannel("conda-forge", FORGE),)
    (row,) = found.rows
    assert (row.name, row.version, row.index) == ("tqdm", "4.67.1", "default")
    assert [(file.filename, file.sha256) for file in row.files] == [("tqdm-4.67.1-py3-none-any.whl", HASH)]
    assert Marker(row.marker).evaluate(marker_values(LINUX, "3.12.1"))
    assert not Marker(row.marker).evaluate(marker_values(ARM, "3.12.1"))
    newest = newest_file(found)
    assert newest is not None
    assert newest.isoformat() == "2026-01-02T00:00:00+00:00"


def test_an_environment_of_pixi_is_a_group(tmp_path: Path) -> None:
    torch = Conda(archive("pytorch", "2.8.0", subdir="linux-64", build="cuda129_py312_h1_0", depends=("python",)))
    text = pixi_lock({"default": {"linux-64": BASE}, "gpu": {"linux-64": (*BASE, torch, TQDM)}})
    plain, gpu = pixi(tmp_path, text), pixi(tmp_path, text, "gpu")
    assert plain.left_out == (LeftOut("group", "gpu", frozenset({"pytorch", "tqdm"})),)
    assert [each.name for each in gpu.conda[LINUX].packages] == ["greet", "python", "pytorch", "tzdata"]
    assert gpu.left_out == (LeftOut("group", "default"),)
    assert packages_sha256(plain) != packages_sha256(gpu)


@pytest.mark.parametrize(
    ("selection", "problem", "hint"),
    [
        (Selection(groups=("nope",)), "has no group nope", "use one of default, gpu"),
        (Selection(groups=("default", "gpu")), "selected whole, and alone", "--group default or --group gpu"),
        (Selection(groups=(ALL,)), "selected whole, and alone", "--group default or --group gpu"),
        (Selection(without_groups=("gpu",)), "selected whole, and alone", "--group default or --group gpu"),
        (Selection(extras=("gpu",)), "has no extra gpu", "has no extras"),
        (Selection(), "the environment default has no packages", "--group gpu"),
    ],
)
def test_what_pixi_can_not_select(tmp_path: Path, selection: Selection, problem: str, hint: str) -> None:
    text = pixi_lock({"default": {"osx-64": ()}, "gpu": {"linux-64": BASE}})
    with pytest.raises(UsageError, match=problem) as caught:
        written(tmp_path, "pixi.lock", text, selection)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["version: 99\nenvironments: {}\npackages: []\n", "[", "", "version: 6\n"])
def test_a_pixi_lock_that_can_not_be_read(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"can't be read by py-rattler") as caught:
        pixi(tmp_path, text)
    assert caught.value.hint == "run `pixi lock`"


def test_two_platforms_for_one(tmp_path: Path) -> None:
    platforms = ({"name": "plain", "subdir": "linux-64"}, {"name": "cuda", "subdir": "linux-64"})
    one = pixi_lock({"default": {"cuda": BASE}}, 7, platforms=platforms)
    assert list(pixi(tmp_path, one).conda) == [LINUX]
    with pytest.raises(UsageError, match="several platforms for linux-64"):
        pixi(tmp_path, pixi_lock({"default": {"plain": BASE, "cuda": BASE}}, 7, platforms=platforms))


def test_commits_and_folders_of_pixi(tmp_path: Path) -> None:
    repository = "https://git.example.com/lab/tool.git"
    own = (
        Wheel("tool", f"git+{repository}?rev=main&subdirectory=sub#{COMMIT}"),
        Wheel("lib", "./packages/lib"),
        Wheel("app", "./"),
    )
    text = pixi_lock({"default": {"linux-64": (*BASE, *own)}})
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "app"\n')
    found = pixi(tmp_path, text)
    assert {row.name: (row.index, row.source) for row in found.rows} == {
        "tool": ("git", f"git+{repository}@{COMMIT}#subdirectory=sub"),
        "lib": ("local", "packages/lib"),
    }
    assert found.name == "app"
    assert not pixi(tmp_path, pixi_lock({"default": {"linux-64": BASE}})).name


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        (Wheel("tool", "git+https://git.example.com/tool.git?rev=main"), "is not locked to a commit"),
        (Wheel("tool", "./wheels/tool-1.0-py3-none-any.whl"), "which no other machine has"),
        (Wheel("tool", "file:///srv/tool-1.0-py3-none-any.whl"), "which no other machine has"),
    ],
)
def test_sources_of_pixi_that_are_refused(tmp_path: Path, package: Wheel, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        pixi(tmp_path, pixi_lock({"default": {"linux-64": (*BASE, package)}}))


def test_problems_are_those_of_one_platform(tmp_path: Path) -> None:
    bare = Conda(archive("bare", "1.0", subdir="linux-aarch64"), more={"sha256": None})
    found = pixi(tmp_path, pixi_lock({"default": {"linux-64": BASE, "linux-aarch64": (bare,)}}))
    assert found.conda[LINUX].problems == ()
    assert found.conda[ARM].packages == ()
    assert found.conda[ARM].problems == ("bare 1.0: it has no SHA-256 of bare-1.0-0.conda",)


def test_packages_of_conda_that_can_not_be_installed(tmp_path: Path) -> None:
    other = archive("tzdata", "2025b", build="h0_0")
    foreign = archive("native", "1.0", subdir="osx-arm64")
    local = Conda(archive("own", "1.0"), "./channel", {"subdir": "noarch", "build": "0"})
    text = pixi_lock({"default": {"linux-64": (*BASE, Conda(other), Conda(foreign), local)}})
    problems = "\n".join(pixi(tmp_path, text).conda[LINUX].problems)
    assert "native 1.0: it is for osx-arm64" in problems
    assert re.search(r"tzdata 202\w+: 202\w+ \(h0\w*_0\) is locked beside it", problems)
    assert "own 1.0: it is the file" in problems


def test_sources_that_pixi_builds(tmp_path: Path) -> None:
    text = pixi_lock({"default": {"linux-64": BASE}}, 7)
    key = "conda_source: 'own[1234abcd] @ ./own'"
    text = text.replace(
        "packages:\n- conda", f"packages:\n- {key}\n  version: '1.0'\n  build: h1_0\n  subdir: linux-64\n- conda"
    )
    text = text.replace("      linux-64:\n", f"      linux-64:\n      - {key}\n")
    (problem,) = pixi(tmp_path, text).conda[LINUX].problems
    assert problem.startswith("own: pixi builds it of ./own")


def test_credentials_of_channels_are_left_out(tmp_path: Path) -> None:
    private = "https://me:secret@conda.example.com/t/token/lab"
    package = Conda(TZDATA, private)
    found = pixi(tmp_path, pixi_lock({"default": {"linux-64": (package,)}}, channels=[private]))
    (tzdata,) = found.conda[LINUX].packages
    assert tzdata.url == f"https://conda.example.com/lab/noarch/{TZDATA.filename}"
    assert found.channels == (CondaChannel("https://conda.example.com/lab", "https://conda.example.com/lab"),)


DEV = Conda(archive("pytest", "8.0", build="pyh_0", depends=("python",), python="noarch"), category="dev")
PLOT = Conda(
    archive("plot", "1.0", subdir="linux-64", build="py312_7"), "https://conda.anaconda.org/lab", category="plot"
)
CONDA_LOCK = conda_lock(
    {"linux-64": (*BASE, TQDM, DEV, PLOT), "linux-aarch64": (Conda(TZDATA),), "win-32": (Conda(TZDATA),)}
)


def test_conda_lock(tmp_path: Path) -> None:
    found = written(tmp_path, "conda-lock.yml", CONDA_LOCK)
    greet, python, tzdata = found.conda[LINUX].packages
    assert (python.build, python.build_number, python.depends) == ("h1234567_cpython_3", 3, ("tzdata",))
    assert (python.sha256, python.md5, python.url) == (PYTHON.sha256, PYTHON.md5, BASE[0].url)
    assert (greet.build, greet.build_number, greet.depends) == ("pyhd8ed1ab_1", 1, ("python >=3.9",))
    assert (greet.noarch, tzdata.noarch, tzdata.channel) == ("python", "generic", "conda-forge")
    assert list(found.conda) == [LINUX, ARM]
    (row,) = found.rows
    assert (row.name, row.version, row.index, row.files[0].sha256) == ("tqdm", "4.67.1", "default", HASH)
    assert found.left_out == (
        LeftOut("extra", "plot", frozenset({"plot"})),
        LeftOut("group", "dev", frozenset({"pytest"})),
    )
    assert newest_file(found) is None


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(groups=("dev",)), {"pytest"}),
        (Selection(default_groups=True), {"pytest"}),
        (Selection(extras=("plot",)), {"plot"}),
        (Selection(extras=(ALL,), groups=(ALL,)), {"plot", "pytest"}),
        (Selection(groups=(ALL,), without_groups=("dev",)), set()),
    ],
)
def test_categories_of_conda_lock(tmp_path: Path, selection: Selection, names: set[str]) -> None:
    found = written(tmp_path, "gpu.conda-lock.yml", CONDA_LOCK, selection)
    assert {each.name for each in found.conda[LINUX].packages} == {"greet", "python", "tzdata", *names}
    if "plot" in names:
        assert [channel.name for channel in found.channels] == ["conda-forge", "lab"]


def test_a_package_in_several_categories(tmp_path: Path) -> None:
    twice = Conda(GREET, category="dev")
    text = conda_lock({"linux-64": (*BASE, twice, TQDM, Wheel(TQDM.name, TQDM.url, version="4.67.1", category="dev"))})
    found = written(tmp_path, "conda-lock.yml", text, Selection(groups=("dev",)))
    assert found.conda[LINUX].problems == ()
    assert (len(found.conda[LINUX].packages), len(found.rows)) == (3, 1)


@pytest.mark.parametrize(
    ("selection", "problem"),
    [(Selection(extras=("nope",)), "has no extra nope"), (Selection(groups=("plot",)), "has no group plot")],
)
def test_categories_that_are_not_there(tmp_path: Path, selection: Selection, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        written(tmp_path, "conda-lock.yml", CONDA_LOCK, selection)


def test_a_commit_of_conda_lock(tmp_path: Path) -> None:
    tool = Wheel("tool", f"git+https://git.example.com/tool.git@{COMMIT}")
    found = written(tmp_path, "conda-lock.yml", conda_lock({"linux-64": (*BASE, tool)}))
    assert [row.source for row in found.rows] == [tool.url]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version: 2\n", "is not a conda-lock.yml of version 1"),
        ("version: [", "is not valid YAML"),
        ("", "is not a conda-lock.yml of version 1"),
        ("version: 1\npackage: []\n", "has no packages for linux-64"),
        ("version: 1\npackage:\n- name: a\n  version: '1'\n", "yml:3: a package without url"),
        (conda_lock({"linux-64": [Wheel("own", "./own")]}), "own is ./own, which no other machine has"),
        (conda_lock({"linux-64": [Wheel("own", "file:///own.whl")]}), "own is file:///own.whl, which no other machine"),
    ],
)
def test_a_conda_lock_that_can_not_be_read(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        written(tmp_path, "conda-lock.yml", text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"noarch/{GREET.filename}", "noarch/python-3.12.11-h0_0.conda"),
        (f"noarch/{GREET.filename}", "noarch/greet-1.1-pyhd8ed1ab_1.conda"),
        ("name: greet", "name: other"),
        ("name: greet", "name: ../greet"),
        ("/noarch/greet", "/linux-aarch64/greet"),
    ],
)
def test_a_conda_package_by_another_archive(tmp_path: Path, old: str, new: str) -> None:
    text = conda_lock({"linux-64": (Conda(GREET),)})
    assert old in text
    found = written(tmp_path, "conda-lock.yml", text.replace(old, new))
    assert found.conda[LINUX].packages == ()
    assert len(found.conda[LINUX].problems) == 1


def test_a_conda_lock_without_sha256(tmp_path: Path) -> None:
    bare = Conda(GREET, more={"sha256": None})
    found = written(tmp_path, "conda-lock.yml", conda_lock({"linux-64": (bare,)}))
    assert found.conda[LINUX].problems == (f"greet 1.0: it has no SHA-256 of {GREET.filename}",)
