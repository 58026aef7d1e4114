"""`envspec receipts`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from envspec.cli import terminal
from envspec.errors import UsageError
from envspec.report import COMPARISON

#: Exit code when there are differences.
DIFFERENT: Final = 10


@click.command()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT RECEIPT...", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(list(COMPARISON)),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs, Markdown for a pull request, or an HTML page with plots.",
)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the report to FILE."
)
def command(receipts: tuple[Path, ...], form: str, output: Path | None) -> int:
    """Compare receipts: stack, machine, outcome, results; and list what is slower than in the first one.

    Each is a receipt.json, or a folder that contains one. If exact results differ, one of the machines computes wrong
    results. Numbers are compared between machines of the same kind; times are shown but do not count.

    Exit code: 0 if nothing that counts differs, else 10.
    """
    from envspec.receipts.compare import compare
    from envspec.receipts.model import read

    if len(receipts) < 2:
        raise UsageError("one receipt can't be compared", hint="name two receipts or more")
    found = compare(list(zip(_names(receipts), map(read, receipts), strict=True)))
    if output is not None:
        _write(output, COMPARISON.render(form, found))
    else:
        terminal.answer_report(form, COMPARISON.render(form, found, terminal.width()))
    return DIFFERENT if found.differs else 0


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of receipts: their folder or file, or the whole path if that is not unique."""
    short = [path.parent.name if path.name == "receipt.json" and path.parent.name else path.name for path in paths]
    names = [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]
    # The same file twice needs two names as well.
    return [f"{name} ({place + 1})" if names.count(name) > 1 else name for place, name in enumerate(names)]


def _write(path: Path, text: str) -> None:
    from envspec.io.files import place

    try:
        place(path, text.encode())
    except OSError as fault:
        raise UsageError(f"{path} can't be written: {fault.strerror}", hint="name another file") from fault
    terminal.tell(f"wrote {path}")
