"""What is read of installed environments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from envspec.importers import importer_of, new_import
from envspec.importers.types import Import, LedgerEntry, Outcome, Unreadable
from tests.support.builders.environments import BASE, RUNNING
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.servers.index import IndexServer


class Environment:
    """A venv, written by hand."""

    def __init__(self, folder: Path, python: str = "3.11.7", config: str = "") -> None:
        self.prefix = folder / "env"
        self.site = self.prefix / "lib" / f"python{'.'.join(python.split('.')[:2])}" / "site-packages"
        self.site.mkdir(parents=True)
        (self.prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {python}\n{config}")

    def add(
        self,
        name: str,
        version: str = "1.0",
        requires: Sequence[str] = (),
        installer: str = "pip",
        *marks: str,
        origin: object = None,
    ) -> Path:
        """A package. marks: other files of its dist-info; REQUESTED: the user named it."""
        folder = self.site / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, "", "Requires-Dist: text\n"]))
        (folder / "INSTALLER").write_text(f"{installer}\n")
        for mark in marks:
            (folder / mark).write_text("")
        if origin is not None:
            (folder / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))
        return folder

    def read(self) -> Import:
        return read(self.prefix)


def read(prefix: Path) -> Import:
    imported = new_import(prefix.parent)
    importer = importer_of(prefix)
    assert importer
    imported.run(importer, prefix)
    return imported


def direct(imported: Import) -> list[str]:
    return [each.text for each in imported.draft.dependencies]


def entry(imported: Import, text: str) -> LedgerEntry:
    """The one entry of a package or a file."""
    found = [each for each in imported.ledger if each.text == text or each.text.startswith(f"{text} ")]
    assert len(found) == 1, (text, imported.ledger)
    return found[0]


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def test_pip_says_what_was_requested(env: Environment) -> None:
    env.add("app", "2.0", ["lib>=1"], "pip", "REQUESTED")
    env.add("lib", "1.4", ["base"])
    env.add("base", "0.1", [], "pip", "REQUESTED")
    env.add("left-over", "3.0")
    imported = env.read()
    assert direct(imported) == ["app", "base", "left-over"]
    assert imported.draft.versions == {"app": "2.0", "lib": "1.4", "base": "0.1", "left-over": "3.0"}
    assert entry(imported, "lib 1.4").reason == "preferred version 1.4, app requires it"
    assert [clue.value for clue in imported.draft.pythons] == ["3.11.7"]


def test_requirements_are_those_of_the_environments_python(env: Environment) -> None:
    requires = [
        "old; python_version < '3.9'",
        "win; sys_platform == 'win32'",
        "server[fast]",
        "dev; extra == 'dev'",
        "?? broken",
    ]
    env.add("app", requires=requires, installer="uv")
    env.add("server", requires=["loop; extra == 'fast'", "dev; extra == 'test'"], installer="uv")
    for name in ("old", "win", "loop", "dev"):
        env.add(name, installer="uv")
    imported = env.read()
    assert direct(imported) == ["app", "dev", "old", "win"]
    assert "its requirement `?? broken` can't be read" in entry(imported, "app 1.0").reason


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_addresses_of_packages(env: Environment, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    git = {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"}
    env.add("of-git", origin={"url": "https://git.example.com/g.git", "vcs_info": git, "subdirectory": "python"})
    env.add("mine", origin={"url": project.as_uri(), "dir_info": {"editable": True}})
    env.add("gone", origin={"url": (tmp_path / "gone").as_uri(), "dir_info": {}})
    url = "https://wheels.example.com/built-1.0-py3-none-any.whl"
    env.add("built", origin={"url": url, "archive_info": {"hashes": {"sha256": "0" * 64}}})
    env.add("odd", origin="[" * 100_000)
    imported = env.read()
    assert direct(imported) == [
        f"built @ {url}#sha256={'0' * 64}",
        "mine @ {path}",
        "odd",
        f"of-git @ git+https://git.example.com/g.git@{COMMIT}#subdirectory=python",
    ]
    assert [each.project for each in imported.draft.dependencies if each.project] == [project]
    assert entry(imported, "gone 1.0").outcome is Outcome.REFUSED
    assert "there is no" in entry(imported, "gone 1.0").reason


@pytest.mark.parametrize(
    ("python", "config", "required"),
    [
        ("3.11.7", "", ["wheel"]),
        ("3.11.7", "virtualenv = 20.30.0\n", []),
        ("3.11.7", "uv = 0.9.0\nseed = true\n", []),
        ("3.12.4", "", ["setuptools", "wheel"]),
    ],
)
def test_what_made_the_environment_is_not_required(
    tmp_path: Path, python: str, config: str, required: list[str]
) -> None:
    env = Environment(tmp_path, python, config)
    for name in ("pip", "setuptools", "wheel"):
        env.add(name, "1.0", [], "pip", "REQUESTED")
    imported = env.read()
    assert direct(imported) == required
    assert "of the tool that made the environment" in entry(imported, "pip 1.0").reason


def test_what_made_the_environment_may_be_required(env: Environment) -> None:
    env.add("setuptools", "80.0", [], "pip", "REQUESTED")
    env.add("triton", "3.5.0", ["setuptools>=40"], "pip", "REQUESTED")
    assert entry(env.read(), "setuptools 80.0").reason == "preferred version 80.0, triton requires it"


@pytest.mark.parametrize(
    ("lines", "cudas"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", ["12.8"]),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n", ["cpu"]),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.4'\n", []),
        ("raise SystemExit\n", []),
    ],
)
def test_cuda_of_torchs_build(env: Environment, lines: str, cudas: list[str]) -> None:
    env.add("torch", "2.9.1")
    (env.site / "torch").mkdir()
    (env.site / "torch" / "version.py").write_text(f"from typing import Optional\n__version__ = '2.9.1'\n{lines}")
    imported = env.read()
    assert [clue.value for clue in imported.draft.cudas] == cudas
    refused = [each.text for each in imported.ledger if each.outcome is Outcome.REFUSED]
    assert refused == (["torch 2.9.1 for hip 6.4.4"] if "6.4.4" in lines else [])


def test_the_platform_of_wheels(env: Environment) -> None:
    folder = env.add("numpy", "2.2.6")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_17_aarch64\n")
    assert [clue.value for clue in env.read().draft.platforms] == ["linux-aarch64"]


def test_what_is_broken_has_an_entry(env: Environment, tmp_path: Path) -> None:
    env.add("numpy", "1.26.4", [], "pip", "REQUESTED")
    env.add("numpy", "2.0.1", [], "pip", "REQUESTED")
    (env.site / "~umpy-1.25.0.dist-info").mkdir()
    (env.site / "torn-1.0.dist-info").mkdir()
    linked = env.add("linked", "1.0")
    (linked / "METADATA").unlink()
    for name in ("METADATA", "RECORD"):
        (linked / name).symlink_to("/dev/zero")
    (env.site / "by_hand.pth").write_text("# a comment\n/opt/code\nimport sys\n")
    project = tmp_path / "developed"
    project.mkdir()
    (project / "setup.py").write_text("raise SystemExit('executed')\n")
    (env.site / "developed.egg-link").write_text(f"{project}\n.\n")
    (env.site / "old-0.9-py3.11.egg-info").write_text("Metadata-Version: 1.0\nName: old\nVersion: 0.9\n")
    egg = env.site / "egg-1.1-py3.11.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 1.2\nName: egg\nVersion: 1.1\n")
    (egg / "requires.txt").write_text("old\n\n[extra]\nmissing\n")
    imported = env.read()
    assert direct(imported) == ["developed @ {path}", "egg", "numpy"]
    assert imported.draft.versions == {"numpy": "2.0.1", "old": "0.9", "egg": "1.1"}
    outcomes = {each.text: each.outcome for each in imported.ledger if each.outcome.is_lost}
    assert outcomes == {
        "numpy 1.26.4": Outcome.NOT_UNDERSTOOD,
        "torn-1.0.dist-info": Outcome.NOT_UNDERSTOOD,
        "linked-1.0.dist-info": Outcome.NOT_UNDERSTOOD,
        "/opt/code": Outcome.REFUSED,
        "import sys": Outcome.REFUSED,
    }
    assert entry(imported, "~umpy-1.25.0.dist-info").outcome is Outcome.TRANSLATED


def test_packages_outside_of_the_environment(tmp_path: Path) -> None:
    env = Environment(tmp_path, config="include-system-site-packages = true\n")
    (env.prefix / "lib" / "python3.10" / "site-packages").mkdir(parents=True)
    lost = [each.text for each in env.read().ledger if each.outcome.is_lost]
    assert lost == ["include-system-site-packages = true", "python3.10"]


def test_a_folder_without_an_environment(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"site-packages"):
        read(tmp_path)


class Prefix:
    """A conda prefix, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "env"
        self.meta = self.prefix / "conda-meta"
        self.meta.mkdir(parents=True)
        self.add("python", "3.12.11", "h9e4cbc7_0_cpython", ["tzdata"])
        self.add("tzdata", "2025b", "h78e105d_0", subdir="noarch")

    def add(
        self,
        name: str,
        version: str,
        build: str,
        depends: Sequence[str] = (),
        requested: Sequence[str] = (),
        channel: str = "conda-forge",
        subdir: str = "linux-64",
        files: Sequence[str] = (),
    ) -> None:
        fn = f"{name}-{version}-{build}"
        record = {
            **{"name": name, "version": version, "build": build, "subdir": subdir, "depends": [*depends]},
            **{"requested_specs": [*requested], "files": [*files]},
            "url": f"https://conda.anaconda.org/{channel}/{subdir}/{fn}.conda",
        }
        (self.meta / f"{fn}.json").write_text(json.dumps(record))

    def read(self) -> Import:
        return read(self.prefix)


@pytest.fixture
def conda(tmp_path: Path) -> Prefix:
    return Prefix(tmp_path)


def test_conda_says_what_was_requested(conda: Prefix) -> None:
    conda.add("numpy", "2.2.6", "py312h72c5963_0", ["python"], ["numpy=2.2"])
    conda.add("libblas", "3.9.0", "31_h59b9bed_openblas")
    conda.add("scipy", "1.16.0", "py312hf734454_0", ["numpy"])
    history = [
        "==> 2025-08-01 10:00:00 <==",
        "# update specs: ['scipy[version=\">=1.15\"]', 'removed', 'numpy']",
        "# remove specs: ['removed']",
        "# update specs: [",
        "# update specs: __import__('os').abort()",
    ]
    (conda.meta / "history").write_text("\n".join(history))
    conda.add("removed", "1.0", "h1_0")
    imported = conda.read()
    assert imported.draft.conda == [("numpy=2.2", ""), ("scipy", "")]
    assert imported.draft.conda_versions["numpy"] == "2.2.6 py312h72c5963_0"
    assert len(imported.draft.conda_versions) == 6
    assert entry(imported, "numpy 2.2.6 py312h72c5963_0").reason == (
        "`numpy=2.2`, preferred version 2.2.6 (py312h72c5963_0)"
    )
    assert [clue.value for clue in imported.draft.pythons] == ["3.12.11"]
    assert [clue.value for clue in imported.draft.platforms] == ["linux-64"]


def test_conda_packages_of_a_list_of_urls(conda: Prefix) -> None:
    for path in sorted(conda.meta.iterdir()):
        record = json.loads(path.read_text())
        spec = f"conda-forge/{record['subdir']}::{record['name']}=={record['version']}={record['build']}"
        path.write_text(json.dumps({**record, "requested_specs": [spec]}))
    spec = "conda-forge/linux-64::numpy==2.2.6=py312h72c5963_0"
    conda.add("numpy", "2.2.6", "py312h72c5963_0", ["python"], [spec])
    assert conda.read().draft.conda == [("numpy", "")]


def test_python_packages_of_conda_are_not_pypis(conda: Prefix) -> None:
    site = "lib/python3.12/site-packages"
    conda.add("numpy", "2.2.6", "py312h72c5963_0", ["python"], files=[f"{site}/numpy-2.2.6.dist-info/METADATA"])
    conda.add("cuda-version", "12.9", "h4f385c5_3")
    env = Environment(conda.prefix.parent / "other", "3.12.11")
    (conda.prefix / site).parent.mkdir(parents=True)
    env.add("numpy", "2.2.6", [], "conda")
    env.add("torchmetrics", "1.8.0", ["numpy"])
    env.site.rename(conda.prefix / site)
    imported = conda.read()
    assert direct(imported) == ["torchmetrics"]
    assert imported.draft.versions == {"torchmetrics": "1.8.0"}
    assert imported.draft.conda == [("cuda-version", ""), ("numpy", "")]
    assert [clue.value for clue in imported.draft.cudas] == ["12.9"]


def test_channels_are_in_the_order_of_their_packages(conda: Prefix) -> None:
    conda.add("samtools", "1.21", "h50ea8bc_0", channel="t/tk-0123456789abcdef/bioconda")
    (conda.meta / "torn-1.0-h1_0.json").write_text("{")
    imported = conda.read()
    assert imported.draft.channels == ["conda-forge", "bioconda"]
    assert "the order of channels is not recorded" in imported.ledger[1].reason
    assert entry(imported, "torn-1.0-h1_0.json").outcome is Outcome.NOT_UNDERSTOOD
    assert not [each for each in imported.ledger if "tk-" in each.text + each.reason]


def test_what_uv_installs(tmp_path: Path) -> None:
    """A real venv, of generated wheels."""
    import subprocess

    from uv import find_uv_bin

    wheels = [
        wheel("app", "1.2", requires=["lib>=1", "tests-only; extra == 'test'"]),
        wheel("lib", "1.4"),
        wheel("tests-only", "0.3"),
    ]
    with IndexServer([File(each) for each in wheels]) as index:
        uv, cache = find_uv_bin(), tmp_path / "cache"
        common = ("--no-config", "--cache-dir", str(cache), "--python")
        subprocess.run([uv, "venv", *common, str(BASE), tmp_path / "env"], check=True, capture_output=True)
        python = str(tmp_path / "env" / "bin" / "python")
        install = [uv, "pip", "install", *common, python, "--index-url", index.url, "app[test]"]
        subprocess.run(install, check=True, capture_output=True)
    imported = read(tmp_path / "env")
    assert direct(imported) == ["app", "tests-only"]
    assert imported.draft.versions == {"app": "1.2", "lib": "1.4", "tests-only": "0.3"}
    assert [clue.value for clue in imported.draft.pythons] == [RUNNING]
    assert not [each for each in imported.ledger if each.outcome.is_lost]
