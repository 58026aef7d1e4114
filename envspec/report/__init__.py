"""A receipt in the forms in which people and programs read it: one file a form, one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from envspec.effects.files import place
from envspec.errors import UsageError
from envspec.receipt.values import Receipt


@dataclass(frozen=True, slots=True)
class Report:
    """A row of the table. file: its name in the folder. module: what has `render`, imported when it is used."""

    file: str
    module: str

    def render(self, receipt: Receipt) -> str:
        """The text of the file; the same for the same receipt."""
        render: Callable[[Receipt], str] = import_module(self.module).render
        return render(receipt)


REPORTS: Final[Mapping[str, Report]] = {
    "json": Report("receipt.json", "envspec.report.document"),
    "junit": Report("receipt.xml", "envspec.report.junit"),
    "markdown": Report("receipt.md", "envspec.report.markdown"),
    "html": Report("receipt.html", "envspec.report.html"),
}


def write(receipt: Receipt, folder: Path) -> list[Path]:
    """Write every form into a folder, which is made where it is not there; their paths.

    Raises:
        UsageError: the folder can't be written.
    """
    written = []
    for report in REPORTS.values():
        path = folder / report.file
        text = report.render(receipt)
        try:
            place(path, text.encode())
        except OSError as fault:
            raise UsageError(
                f"{path} can't be written: {fault.strerror}", hint="make room there, or name another folder"
            ) from fault
        written.append(path)
    return written
