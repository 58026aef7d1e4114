"""The suite's tables fit together: checks by name in the spec, their files, and the rules of the bounds."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import envspec.conformance
import envspec.verifier
from envspec.conformance.bounds import BOUNDS, Relation, limit
from envspec.conformance.checks import CHECKS
from envspec.spec.errors import BadValue
from envspec.spec.sections import ConformanceSection
from envspec.spec.values import OneOf

FOLDERS = [Path(package.__path__[0]) for package in (envspec.conformance, envspec.verifier)]
MODULES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]


def test_a_spec_knows_every_check_in_the_suites_order() -> None:
    assert ConformanceSection.model_validate({"checks": list(CHECKS)}).checks == tuple(CHECKS)
    with pytest.raises(BadValue) as caught:
        OneOf(values=CHECKS).read(str, "matmull")
    assert caught.value.hint == f"did you mean `matmul`? Known: {', '.join(f'`{name}`' for name in CHECKS)}"


def test_every_check_has_a_file_and_every_file_a_line() -> None:
    folder = FOLDERS[0] / "checks"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(CHECKS)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_says_where_it_comes_from(name: str) -> None:
    for k in (0, 64, 16384):
        asked = limit(name, k)
        assert asked.source and asked.formula
        assert asked.value >= 0
        worse = asked.value * 2 + 1 if asked.relation is Relation.AT_MOST else asked.value / 2 - 1
        assert asked.holds(asked.value)
        assert not asked.holds(worse)
        assert not asked.holds(float("nan"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-3:]))
def test_what_runs_inside_is_written_for_python_3_9_and_stands_alone(path: Path) -> None:
    """The verifier needs nothing but the standard library and itself; checks import the tested packages, too."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))))
    names = {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    ours = {name for name in names if name.partition(".")[0] == "envspec"}
    if path.is_relative_to(FOLDERS[1]):
        assert all(name.startswith("envspec.verifier") for name in ours)
        assert {name.partition(".")[0] for name in names - ours} <= set(sys.stdlib_module_names)
    else:
        assert all(name.startswith(("envspec.conformance", "envspec.verifier")) for name in ours)


def test_nothing_is_imported_beside_the_cold_start() -> None:
    assert next(iter(CHECKS)) == "coldstart"
    assert CHECKS["coldstart"].alone
    assert CHECKS["coldstart"].preimports == ()


@pytest.mark.parametrize("name", CHECKS)
def test_torch_is_the_first_to_be_preimported(name: str) -> None:
    assert not CHECKS[name].preimports or CHECKS[name].preimports[0] == "torch"
