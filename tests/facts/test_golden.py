"""Every folder of golden/torch_build and golden/family: a request in, the choice or its refusal out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from envspec.documents import parse_toml
from envspec.errors import EnvspecError
from envspec.facts import load_facts
from envspec.facts.torch import CudaChoice, choose_build, family_mismatch
from envspec.models import CudaVersion, Platform

GOLDEN = Path(__file__).parent / "golden"
BUILDS = sorted(path.parent for path in (GOLDEN / "torch_build").glob("*/case.toml"))
FAMILIES = sorted(path.parent for path in (GOLDEN / "family").glob("*/case.toml"))


def told_build(case: Mapping[str, Any]) -> str:
    """torch: a specifier. cuda: a version, `any` or `cpu`. platforms, as_of, [[facts.torch]]."""
    facts = load_facts(case.get("facts"))
    cuda = CudaChoice(case["cuda"]) if case["cuda"] in ("any", "cpu") else CudaVersion.parse(case["cuda"])
    as_of: datetime | None = case.get("as_of")
    lines = []
    for name in case["platforms"]:
        try:
            build = choose_build(facts, SpecifierSet(case["torch"]), cuda, Platform(name), as_of)
        except EnvspecError as error:
            lines += [f"{name}: refused: {type(error).__name__}, exit code {error.exit_code}", str(error)]
            continue
        lines.append(f"{name}: {f'pytorch {build.url}' if build.url else 'default'}")
        lines.append(f"  variant {build.variant}, torch {build.constraint or 'as asked'}")
        lines.append(f"  {build.why}")
        lines += [f"  warning: {build.warning}"] if build.warning else []
    return "\n".join(lines) + "\n"


def told_family(case: Mapping[str, Any]) -> str:
    """[requests]: name = specifier."""
    requests = {name: SpecifierSet(specifier) for name, specifier in case["requests"].items()}
    return f"{family_mismatch(load_facts(case.get('facts')), requests) or 'nothing is known against it'}\n"


def test_there_are_cases() -> None:
    assert BUILDS
    assert FAMILIES


@pytest.mark.parametrize("case", BUILDS, ids=lambda case: case.name)
def test_torch_build(case: Path) -> None:
    told = told_build(parse_toml((case / "case.toml").read_text(encoding="utf-8")))
    assert told == (case / "expected.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_family(case: Path) -> None:
    told = told_family(parse_toml((case / "case.toml").read_text(encoding="utf-8")))
    assert told == (case / "expected.txt").read_text(encoding="utf-8")
