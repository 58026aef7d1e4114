"""The committed specs and locks: what is said in two places is the same in both."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from envspec import documents

ROOT = Path(__file__).parents[2]
DEVELOPMENT = sorted((ROOT / "specs").glob("dev-*.toml"))


def _read(path: Path) -> dict[str, dict[str, object]]:
    return documents.parse_toml(path.read_text(encoding="utf-8"))


def _names() -> list[str]:
    return sorted(path.stem for path in (ROOT / "specs").glob("*.toml"))


def test_every_python_that_is_tested_has_a_development_spec() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    matrix = re.search(r"python: \[(.*)\]", workflow)
    assert matrix
    assert [f"dev-{series}" for series in re.findall(r"[\d.]+", matrix[1])] == [path.stem for path in DEVELOPMENT]


@pytest.mark.parametrize("path", DEVELOPMENT, ids=lambda path: path.stem)
def test_a_development_spec_asks_for_what_pyproject_names(path: Path) -> None:
    project = _read(ROOT / "pyproject.toml")
    named = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]  # type: ignore[misc]
    assert _read(path)["pip"] == {"dependencies": sorted(named)}


@pytest.mark.parametrize("path", DEVELOPMENT, ids=lambda path: path.stem)
def test_a_development_spec_holds_for_every_patch_of_its_series(path: Path) -> None:
    env = _read(path)["env"]
    assert env["name"] == path.stem
    assert env["python"] == f"{path.stem.removeprefix('dev-')}.0"


@pytest.mark.parametrize("name", _names())
def test_a_spec_has_its_lock_under_the_same_name(name: str) -> None:
    assert _read(ROOT / "specs" / f"{name}.toml")["env"]["name"] == name
    assert (ROOT / "locks" / name / "envspec.lock").is_file(), f"run `envspec lock {name}` and commit locks/{name}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "locks").glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_a_lock_names_no_address_of_the_default_index(path: Path) -> None:
    from pip._internal.models.index import PyPI

    text = path.read_text(encoding="utf-8")
    for host in (PyPI.netloc, PyPI.file_storage_domain):
        assert host not in text


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout of git's")
def test_no_file_names_the_default_index() -> None:
    """Its addresses are pip's: examples and tests have others in their place."""
    from pip._internal.models.index import PyPI

    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    addresses = (f"//{PyPI.netloc}/".encode(), PyPI.file_storage_domain.encode())
    named = []
    for path in listed.splitlines():
        file = ROOT / path
        if file.is_file() and any(address in file.read_bytes() for address in addresses):
            named.append(path)
    assert named == []
