"""Hostile sources with conda packages: each ends with one error that names file and line, or with entries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.importers import new_import
from envspec.importers.conda import read_environment
from envspec.importers.conda_explicit import read_explicit
from envspec.importers.conda_locks import read_conda_lock
from envspec.importers.graph import roots
from envspec.importers.pixi import read_pixi
from envspec.importers.types import Import, Outcome, Unreadable

Read = Callable[[Path, Import], None]

_TEN = ", ".join(["*a{}"] * 10)
#: Ten to the twelfth values in twelve lines.
LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{_TEN.replace('{}', str(n - 1))}]\n" for n in range(1, 13))


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_environment, LAUGHS, r"source:7: more than 500000 values"),
        (read_environment, "a: &a [*a]\n", r"source:1: the alias \*a has no value before it"),
        (read_environment, "[" * 200_000, r"source:1: more than 32 lists and mappings"),
        (read_environment, "name: a\nname: b\n", r"source:2: the key `name` again, after line 1"),
        (read_environment, "? [a]\n: b\n", r"source:1: a key that is not text"),
        (read_environment, "--- 1\n--- 2\n", r"source:2: more than one document"),
        (read_environment, "name: [a\nb: c\n", r"source:2 is not valid YAML"),
        (read_environment, "name: \0\n", r"source is not valid YAML"),
        (read_environment, "", r"source is not an environment of conda"),
        (read_environment, "services:\n  web: {}\n", r"source is not an environment of conda"),
        (read_conda_lock, "version: 2\npackage: []\n", r"not a conda-lock.yml of version 1"),
        (read_explicit, "https://conda.example.com/c/noarch/a-1-0.conda\n", r"it has no @EXPLICIT"),
        (read_explicit, "@EXPLICIT\n" * 20_001, r"more than 20000 packages"),
        (read_environment, f"dependencies: [{'a, ' * 20_001}]\n", r"more than 20000 packages"),
        (read_pixi, "[tool]\n", r"not a manifest of pixi"),
        (read_pixi, "[workspace\n", r"source is not valid TOML"),
        (read_pixi, "a = " + "[" * 100_000, r"source is not valid TOML"),
    ],
)
def test_what_can_not_be_read(tmp_path: Path, read: Read, text: str, message: str) -> None:
    (tmp_path / "source").write_text(text)
    with pytest.raises(Unreadable, match=message):
        read(tmp_path / "source", new_import(tmp_path))


@pytest.mark.parametrize(
    ("read", "text", "lost"),
    [
        (read_environment, "dependencies: numpy\n", ["dependencies: numpy"]),
        (read_environment, "channels: {a: b}\ndependencies:\n- [numpy]\n", ["channels: {a: b}", "[numpy]"]),
        (read_environment, "channels: [c]\nvariables: {1A: x}\n", ["1A: x"]),
        (read_environment, "channels: [c]\ndependencies:\n- pip: numpy\n", ["pip: numpy"]),
        (read_environment, "channels: [c]\ndependencies: ['a\tb', ' ', 'a b c d']\n", ["a b", "", "a b c d"]),
        (read_conda_lock, "version: 1\npackage:\n- x\n- {name: a, version: 1}\n", ["a 1", "x"]),
        (read_pixi, "workspace.channels = [1]\n[dependencies]\na = 1\n", ["1"]),
        (read_pixi, "[workspace]\n[dependencies]\n'a b' = '*'\n[feature]\nx = 1\n", ["a b = '*'"]),
        (read_pixi, "[workspace]\n[pypi-dependencies]\na = { git = 1, odd = 2 }\n", ["a = { git = 1, odd = 2 }"]),
        (read_pixi, "dependencies = 1\nworkspace = {}\ntarget.linux-64.dependencies = 2\n", 2),
        (read_pixi, "[workspace]\n[system-requirements]\ncuda = '99'\n", ["cuda = '99'"]),
    ],
)
def test_what_is_no_part_of_an_environment(tmp_path: Path, read: Read, text: str, lost: list[str] | int) -> None:
    (tmp_path / "source").write_text(text)
    imported = new_import(tmp_path)
    read(tmp_path / "source", imported)
    found = [each.text for each in imported.ledger if each.outcome.is_lost]
    assert (found if isinstance(lost, list) else len(found)) == lost


def test_a_conda_lock_beside_its_source(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text("channels: [conda-forge]\ndependencies: [numpy]\n")
    (tmp_path / "dev-environment.yml").write_text("channels: [conda-forge]\ndependencies: [ruff]\n")
    url = "https://conda.anaconda.org/conda-forge/linux-64/numpy-2.2.6-py312h72c5963_0.conda"
    package = f"{{name: numpy, version: 2.2.6, manager: conda, platform: linux-64, url: '{url}'}}"
    lock = f"version: 1\nmetadata: {{sources: [environment.yml], platforms: [linux-64]}}\npackage: [{package}]\n"
    (tmp_path / "conda-lock.yml").write_text(lock)
    for name, versions in (("environment.yml", {"numpy": "2.2.6 py312h72c5963_0"}), ("dev-environment.yml", {})):
        imported = new_import(tmp_path)
        imported.run(read_environment, tmp_path / name)
        assert imported.draft.conda_versions == versions
        assert not [each for each in imported.ledger if each.outcome.is_lost]


def test_a_pixi_lock_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "pixi.toml").write_text('[workspace]\nchannels = ["conda-forge"]\nplatforms = ["linux-64"]\n')
    (tmp_path / "pixi.lock").write_text("version: 99\n")
    imported = new_import(tmp_path)
    read_pixi(tmp_path / "pixi.toml", imported)
    assert imported.ledger[-1].outcome is Outcome.NOT_UNDERSTOOD
    assert imported.ledger[-1].reason.startswith("py-rattler can't read it")


def required(graph: dict[str, set[str]], names: set[str]) -> set[str]:
    """Names of a graph with all that they require."""
    found = names & graph.keys()
    more = {each for name in found for each in graph[name]} & graph.keys()
    return found if more <= found else required(graph, found | more)


_NAMES = st.sampled_from("abcdefgh")


@given(st.dictionaries(_NAMES, st.sets(_NAMES)), st.sets(_NAMES))
def test_roots_require_everything_and_none_of_them_too_much(graph: dict[str, set[str]], known: set[str]) -> None:
    found = roots(graph, known)
    assert required(graph, {*found, *known}) == graph.keys()
    for name in found:
        assert name not in required(graph, {*found, *known} - {name})
        assert name == min(each for each in required(graph, {name}) if name in required(graph, {each}))
