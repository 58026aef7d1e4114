"""Values -> text for people, JSON for programs, Markdown, HTML and JUnit XML: the only renderers.

A renderer is a function in a module of this package and a line in a table below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from envspec.errors import UsageError

if TYPE_CHECKING:
    from envspec.diagnostics.audit.types import AuditReport
    from envspec.diagnostics.doctor.types import DoctorFinding
    from envspec.diagnostics.explain import Explanation, PackageExplanation
    from envspec.diagnostics.fit import FitReport
    from envspec.diagnostics.image_summary import ImageSummary
    from envspec.image.diff import ImageDiff
    from envspec.image.verification import ImageVerification
    from envspec.importers.result import Imported
    from envspec.lockfile.diff import LockDiff
    from envspec.receipts.compare import Comparison
    from envspec.receipts.fleet import Fleet
    from envspec.receipts.model import Receipt

T_contra = TypeVar("T_contra", contravariant=True)


class Formats(Generic[T_contra]):
    """The renderers of a value, as `module:as_<format>`; a module is imported on use."""

    def __init__(self, *renderers: str) -> None:
        self._renderers = {}
        for renderer in renderers:
            _, _, form = renderer.rpartition("as_")
            self._renderers[form] = renderer

    def __iter__(self) -> Iterator[str]:
        return iter(self._renderers)

    def render(self, form: str, value: T_contra, width: int = 100) -> str:
        """The value in a format; ends with a line feed. width: characters on a line of text."""
        module, _, function = self._renderers[form].partition(":")
        render = getattr(import_module(f"envspec.report.{module}"), function)
        rendered: str = render(value, width) if form == "text" else render(value)
        return rendered


RECEIPT: Final[Formats[Receipt]] = Formats(
    "receipt:as_text",
    "receipt:as_json",
    "junit:as_junit",
    "receipt:as_markdown",
    "receipt:as_html",
)
COMPARISON: Final[Formats[Comparison]] = Formats(
    "comparison:as_text", "comparison:as_json", "comparison:as_markdown", "comparison:as_html"
)
FLEET: Final[Formats[Fleet]] = Formats("fleet:as_text", "fleet:as_json", "fleet:as_markdown", "fleet:as_html")
LOCK_DIFF: Final[Formats[LockDiff]] = Formats("diff:as_text", "diff:as_json", "diff:as_markdown")
EXPLANATION: Final[Formats[Explanation | PackageExplanation]] = Formats("explanation:as_text", "explanation:as_json")
FIT: Final[Formats[FitReport]] = Formats("machine:fit_as_text", "machine:fit_as_json")
DOCTOR: Final[Formats[Sequence[DoctorFinding]]] = Formats("machine:doctor_as_text", "machine:doctor_as_json")
AUDIT: Final[Formats[AuditReport]] = Formats("audit:as_text", "audit:as_json", "audit:as_github", "audit:as_sarif")
IMPORT: Final[Formats[Imported]] = Formats("importing:as_text", "importing:as_json")
IMAGE_SUMMARY: Final[Formats[ImageSummary]] = Formats("image_summary:as_text")
IMAGE_DIFF: Final[Formats[ImageDiff]] = Formats("diff:image_as_text", "diff:image_as_json")
IMAGE_VERIFICATION: Final[Formats[ImageVerification]] = Formats("verification:as_text", "verification:as_json")

#: Files of a receipt's folder -> format.
RECEIPT_FILES: Final = {
    "receipt.json": "json",
    "receipt.xml": "junit",
    "receipt.md": "markdown",
    "receipt.html": "html",
}


#: Files of a fleet's folder -> format.
FLEET_FILES: Final = {"fleet.json": "json", "fleet.md": "markdown", "fleet.html": "html"}


def check_writable(folder: Path) -> None:
    """Check that a receipt can be written to a folder before the run; leaves nothing behind.

    Raises:
        UsageError: it can't.
    """
    import tempfile

    created: list[Path] = []
    try:
        created += [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"{folder} can't be written: {error.strerror}", hint="make room, or name another folder"
        ) from error
    finally:
        for each in created:
            with suppress(OSError):
                each.rmdir()


def write_receipt(receipt: Receipt, folder: Path) -> list[Path]:
    """Write RECEIPT_FILES into a folder, created if missing; returns their paths.

    Raises:
        UsageError: the folder can't be written.
    """
    return _write(RECEIPT, RECEIPT_FILES, receipt, folder)


def write_fleet(fleet: Fleet, folder: Path) -> list[Path]:
    """Write FLEET_FILES into a folder; returns their paths. Raises UsageError: as `write_receipt`."""
    return _write(FLEET, FLEET_FILES, fleet, folder)


def _write(formats: Formats[T_contra], files: Mapping[str, str], value: T_contra, folder: Path) -> list[Path]:
    from envspec.io.files import replace_user_file

    written = []
    for name, form in files.items():
        path = folder / name
        replace_user_file(path, formats.render(form, value).encode())
        written.append(path)
    return written
