"""Workflows on pages use envspec's action as it is, and the other actions at the commits of this repository's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click
import pytest
import yaml

from envspec.cli.main import cli
from tests.docs.pages import blocks
from tests.docs.test_pages import PAGES
from tests.support.workflows import ACTION, document, jobs

_ACTION: Final = "/envspec/.github/actions/envspec@"
_FOLDER: Final = ".github/workflows/"


def workflows() -> Iterator[object]:
    """The file and its text, of each workflow that a page has whole."""
    for name, path in PAGES.items():
        for block in blocks(path.read_text(encoding="utf-8")):
            file = block.directives.get("file", "")
            if file.startswith(_FOLDER):
                yield pytest.param(block.text, id=f"{name}: {file}")


def accept(words: list[str]) -> None:
    """Raise click.UsageError for words that `envspec` does not accept."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command, context = found, click.Context(found, parent=context)
    command.make_context(command.name, words)


@pytest.mark.parametrize("text", list(workflows()))
def test_a_workflow_fits_the_actions(text: str) -> None:
    pinned = {step.uses for job in jobs() for step in job.steps if step.uses}
    workflow: dict[str, Any] = yaml.safe_load(text)
    assert "permissions" in workflow
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            if _ACTION in step.get("uses", ""):
                given = step.get("with", {})
                assert set(given) <= set(document(ACTION)["inputs"])
                accept(given["command"].split()) if "command" in given else None
            elif "uses" in step:
                assert step["uses"] in pinned
