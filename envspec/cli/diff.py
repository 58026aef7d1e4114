"""`envspec diff`."""

from __future__ import annotations

from typing import Final

import click

from envspec.cli import terminal

#: Exit code when there are differences.
DIFFERENT: Final = 10


@click.command()
@click.argument("old", metavar="OLD", shell_complete=terminal.complete_lock)
@click.argument("new", metavar="NEW", shell_complete=terminal.complete_lock)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs, Markdown for a pull request.",
)
def command(old: str, new: str, form: str) -> int:
    """Tell what differs between two locks: conda packages, wheels, the image, the driver, what was decided.

    OLD and NEW are folders, names under locks/, or either of them in a git revision: HEAD~1:locks/pytorch-2.9.

    \b
    What the last commit changed:  envspec diff HEAD~1:locks/NAME HEAD:locks/NAME
    What is not committed yet:     envspec diff HEAD:locks/NAME NAME

    Exit code: 0 when they are equal, 10 when they differ.
    """
    from pathlib import Path

    from envspec.io.process import output_of
    from envspec.lock import diff_text
    from envspec.lock.diff import diff_locks
    from envspec.lock.side import load_side

    found = diff_locks(load_side(old, Path(), output_of), load_side(new, Path(), output_of))
    if form == "json":
        terminal.answer_json(diff_text.as_json(found))
    elif form == "markdown":
        terminal.answer(diff_text.as_markdown(found))
    else:
        terminal.answer_sections(diff_text.as_text(found, terminal.width()))
    return 0 if found.is_empty else DIFFERENT
