"""docs/claims.md says what envspec says, and leaves no claim out."""

from __future__ import annotations

import re
from pathlib import Path

from bench.claims import PAGE, SPECS, By, names, rewritten

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_envspec_says_where_no_network_is_needed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, (By.FACTS,)) == page, "run `python -m bench.claims`"


def test_every_claim_is_on_the_page_once() -> None:
    assert sorted(names(PAGE.read_text(encoding="utf-8"))) == sorted(path.stem for path in SPECS.glob("*.toml"))


def test_the_page_shows_the_specs_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for path in SPECS.glob("*.toml"):
        _, _, spec = path.read_text(encoding="utf-8").partition("\n")
        assert f"```toml\n{spec}```\n" in page, f"{path.name}: run `python -m bench.claims`"


def test_the_specs_that_work_are_there() -> None:
    named = re.findall(r"\]\(\.\./(\S+)\)", PAGE.read_text(encoding="utf-8"))
    assert named
    assert all((ROOT / path).is_file() for path in named)
