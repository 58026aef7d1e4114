"""`envspec receipts`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from envspec.cli import terminal
from envspec.errors import UsageError

#: Exit code when there are differences.
DIFFERENT: Final = 10


@click.command()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT RECEIPT...", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "html"]),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs, Markdown for a pull request, a page with plots.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it there.")
def command(receipts: tuple[Path, ...], form: str, output: Path | None) -> int:
    """Tell what differs between receipts: stack, machine, outcome, results; and what is slower than the first one's.

    Each is a receipt.json, or a folder that holds one. A difference of exact results between machines is a fault of one
    of them. Numbers are compared between machines of the same kind, times only told.

    Exit code: 0 when nothing that counts differs, else 10.
    """
    from envspec.receipt.compare import compare
    from envspec.receipt.files import read
    from envspec.report import fleet, fleet_text

    if len(receipts) < 2:
        raise UsageError("one receipt has nothing to differ from", hint="name two receipts or more")
    found = compare(list(zip(_names(receipts), map(read, receipts), strict=True)))
    if output is not None:
        _write(output, fleet.render(form, found))
    elif form == "json":
        terminal.answer_json(fleet.render(form, found))
    elif form == "text":
        terminal.answer_sections(fleet_text.render(found, terminal.width()))
    else:
        terminal.answer(fleet.render(form, found))
    return DIFFERENT if found.differs else 0


def _names(paths: Sequence[Path]) -> list[str]:
    """What receipts are called: their folder or file, the whole path where that names two of them."""
    short = [path.parent.name if path.name == "receipt.json" and path.parent.name else path.name for path in paths]
    names = [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]
    # The same file twice is somebody's mistake, and still has to have two names.
    return [f"{name} ({write_file + 1})" if names.count(name) > 1 else name for write_file, name in enumerate(names)]


def _write(path: Path, text: str) -> None:
    from envspec.io.files import write_file

    try:
        write_file(path, text.encode())
    except OSError as fault:
        raise UsageError(f"{path} can't be written: {fault.strerror}", hint="name another file") from fault
    terminal.tell(f"wrote {path}")
