"""The suite's files in a folder of their own, as they are mounted into an image: nothing else of envspec is there."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.conformance.order import Order
from envspec.errors import UnfitMachine
from envspec.proof.request import suite_folders, text_of

#: Where the suite is in a container, read-only, and where its results go.
INSIDE: Final = "/run/envspec/suite"
RESULTS_INSIDE: Final = "/run/envspec/results"


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder with the suite and its order, and one for its results."""

    folder: Path

    @property
    def suite(self) -> Path:
        return self.folder / "suite"

    @property
    def run(self) -> Path:
        return self.suite / RUN

    @property
    def order(self) -> Path:
        return self.suite / ORDER

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def document(self) -> Path:
        return self.results / DOCUMENT


#: Below the suite's folder, and below that of its results.
RUN: Final = "envspec/conformance/run.py"
ORDER: Final = "order.json"
DOCUMENT: Final = "results.json"


@contextlib.contextmanager
def staged(order: Order) -> Iterator[Stage]:
    """The suite and its order, laid out; gone when the block is left.

    Raises:
        UnfitMachine: the folder for temporary files can't be written.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="envspec-suite-"))
        stage = Stage(folder)
        package = stage.suite / "envspec"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        for source in suite_folders():
            shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        stage.order.write_text(text_of(order), encoding="utf-8")
        stage.results.mkdir()
    except OSError as fault:
        raise UnfitMachine(
            f"the suite can't be laid out in {tempfile.gettempdir()}: {fault.strerror}",
            hint="make room there, or name another folder by TMPDIR",
        ) from fault
    try:
        yield stage
    finally:
        shutil.rmtree(folder, ignore_errors=True)
