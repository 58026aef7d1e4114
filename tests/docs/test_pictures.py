"""Pictures of terminals show what envspec prints today; each picture is there for light and dark pages, and is used."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bench.pictures import PAGES, PICTURES, TERMINALS, THEMES
from tests.docs.test_pages import DOCS
from tests.support.user import ROOT

LOCAL = sorted(set(TERMINALS) - {"recording"})


@pytest.mark.skipif(sys.platform == "win32", reason="not run: Windows has no pseudo-terminals of POSIX")
@pytest.mark.parametrize("name", LOCAL)
def test_a_terminal_shows_what_envspec_prints(name: str, tmp_path: Path) -> None:
    for theme, text in TERMINALS[name](tmp_path).items():
        assert (PICTURES / f"{name}-{theme}.svg").read_text(encoding="utf-8") == text, "run `python -m bench.pictures`"


def test_pictures_are_for_both_themes_and_used() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *DOCS.rglob("*.md")])
    used = set(re.findall(r"pictures/([\w-]+)-light\.(?:svg|png)\)", pages))
    assert used == {*TERMINALS, *PAGES}
    found = {path.stem for path in PICTURES.iterdir()}
    assert found == {f"{name}-{theme.name}" for name in used for theme in THEMES}
