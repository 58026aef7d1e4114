"""The documents: links lead somewhere, reference pages are complete, claims.md is the output of envspec."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from bench.claims import PAGE, SPECS, By, names, rewritten
from envspec.cli.main import cli
from envspec.conformance.checks import CHECKS
from tests.support.user import ROOT

DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.md")])
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The names that a forge gives to a document's headings."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE.sub("", document.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (option for option in parameter.opts if option.startswith("--"))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below)


def test_every_variable_is_on_the_configuration_page() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "envspec").rglob("*.py"))
    # The last two are set for git's helper and read by nobody else.
    used = set(re.findall(r"\bENVSPEC_[A-Z]+_[A-Z_]*[A-Z]\b", sources)) - {"ENVSPEC_GIT_USER", "ENVSPEC_GIT_PASSWORD"}
    assert used
    assert used - set(re.findall(r"`(ENVSPEC_\w+)`", page("reference/configuration.md"))) == set()


def test_every_command_and_option_is_on_its_page() -> None:
    assert set(cli.list_commands(click.Context(cli))) <= set(
        re.findall(r"`envspec ([\w-]+)", page("reference/commands.md"))
    )
    named = set(
        re.findall(
            r"--[a-z][a-z-]*",
            page("reference/commands.md") + page("reference/conformance.md") + page("reference/init.md"),
        )
    )
    assert "--channel-repodata" in set(options(cli)) and set(options(cli)) - named - {"--version"} == set()


def test_every_check_is_on_its_page() -> None:
    _, _, table = page("reference/conformance.md").partition("\n## Checks\n")
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(CHECKS)


def test_the_claims_page_says_what_envspec_says_where_no_network_is_needed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert rewritten(text, (By.FACTS,)) == text, "run `python -m bench.claims`"
    assert sorted(names(text)) == sorted(path.stem for path in SPECS.glob("*.toml"))
    for path in SPECS.glob("*.toml"):
        _, _, spec = path.read_text(encoding="utf-8").partition("\n")
        assert f"```toml\n{spec}```\n" in text, f"{path.name}: run `python -m bench.claims`"
