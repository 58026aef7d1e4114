"""`envspec doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from envspec.cli import terminal
from envspec.errors import UnfitMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diagnostics.doctor.types import Finding


@click.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON for programs.",
)
def command(form: str) -> int:
    """Look over this machine: driver, GPUs, container engine, NVIDIA's toolkit, /dev/shm, disk, Python, network.

    Each with what to do about it. Nothing is changed. The package index and docker.io are asked whether they answer:
    some 15 seconds where a network swallows packets.

    Exit code: 0 when nothing is missing for locking, building and running here (warnings don't count), else 6. For
    whether this machine runs a certain lock, see `envspec fit`.
    """
    import os

    from envspec.cli.progress import waiting
    from envspec.diagnostics.doctor.run import examine
    from envspec.diagnostics.doctor.types import State, as_json, render_text, this_place
    from envspec.io.cache import cache_path
    from envspec.io.http_settings import default_index_url
    from envspec.io.tasks import run_interruptible

    place = this_place(os.environ, cache_path(os.environ))
    with waiting("looking over this machine"):
        findings = run_interruptible(examine(place, index_url=default_index_url(os.environ)))
    if form == "json":
        terminal.answer_json(as_json(findings) + "\n")
    elif terminal.is_terminal(sys.stdout):
        _print_table(findings)
    else:
        terminal.answer(render_text(findings) + "\n")
    return UnfitMachine.exit_code if any(finding.state is State.MISSING for finding in findings) else 0


def _print_table(findings: Sequence[Finding]) -> None:
    """What is there, and what to do below it; the states in colour."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from envspec.diagnostics.doctor.types import State

    colours = {State.OK: "green", State.WARNING: "yellow", State.MISSING: "bold red", State.NOT_APPLICABLE: "dim"}
    coloured = terminal.wants_colours(sys.stdout)
    words = {State.NOT_APPLICABLE: "-"}
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        state = Text(words.get(finding.state, finding.state.value), style=colours[finding.state] if coloured else "")
        table.add_row(state, terminal.rich_text(finding.what), terminal.rich_text(finding.found))
        if finding.todo:
            todo = Table.grid(padding=(0, 1))
            shown = terminal.rich_text(finding.todo)
            shown.overflow = "fold"
            todo.add_row("->", shown)
            table.add_row("", "", todo)
    Console(highlight=False, width=terminal.width()).print(table)
