"""Reference pages are complete: variables, commands, options and checks that exist are on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from envspec.cli.main import cli
from envspec.conformance.checks import CHECKS
from tests.support.user import ROOT


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
    assert used - set(re.findall(r"`(ENVSPEC_\w+)`", page("configuration.md"))) == set()


def test_every_command_is_on_the_commands_page() -> None:
    named = set(re.findall(r"`envspec (\w+)", page("commands.md")))
    assert set(cli.list_commands(click.Context(cli))) - named == set()


def test_every_option_is_on_a_page() -> None:
    named = set(re.findall(r"--[a-z][a-z-]*", page("commands.md") + page("conformance.md")))
    assert set(options(cli)) - named - {"--version"} == set()


def test_every_check_is_on_the_conformance_page_in_its_order() -> None:
    _, _, table = page("conformance.md").partition("\n## Checks\n")
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(CHECKS)
