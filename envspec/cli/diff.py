"""`envspec diff`."""

from __future__ import annotations

from typing import Final

import click

from envspec.cli import terminal
from envspec.report import LOCK_DIFF

#: Exit code when there are differences.
DIFFERENT: Final = 10


@click.command()
@click.argument("old", metavar="OLD", shell_complete=terminal.complete_lock)
@click.argument("new", metavar="NEW", shell_complete=terminal.complete_lock)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(LOCK_DIFF)),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs, Markdown for a pull request.",
)
def command(old: str, new: str, form: str) -> int:
    """Show what differs between two locks: conda packages, wheels, the image, the driver, decisions.

    OLD and NEW are folders, names under locks/, or either of them in a git revision: HEAD~1:locks/pytorch-2.9.

    \b
    What the last commit changed:  envspec diff HEAD~1:locks/NAME HEAD:locks/NAME
    What is not committed yet:     envspec diff HEAD:locks/NAME NAME

    Exit code: 0 if they are equal, 10 if they differ.
    """
    from pathlib import Path

    from envspec.io.process import output_of
    from envspec.lockfile.diff import diff_locks, load_revision

    found = diff_locks(load_revision(old, Path(), output_of), load_revision(new, Path(), output_of))
    terminal.answer_report(form, LOCK_DIFF.render(form, found, terminal.width()))
    return 0 if found.is_empty else DIFFERENT
