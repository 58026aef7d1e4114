"""A receipt in the forms in which people and programs read it: one file a form, one table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.io.files import write_file
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


def try_folder(folder: Path) -> None:
    """Whether a receipt could be written there, asked before the run that it is of; nothing stays.

    Raises:
        UsageError: it could not.
    """
    made: list[Path] = []
    try:
        made += [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as fault:
        raise _unwritable(folder, fault) from fault
    finally:
        for each in made:
            with suppress(OSError):
                each.rmdir()


def _unwritable(path: Path, fault: OSError) -> UsageError:
    return UsageError(f"{path} can't be written: {fault.strerror}", hint="make room there, or name another folder")


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
            write_file(path, text.encode())
        except OSError as fault:
            raise _unwritable(path, fault) from fault
        written.append(path)
    return written
