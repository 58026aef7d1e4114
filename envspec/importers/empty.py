"""Sources without a package: where the project's packages may be, and what to write."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from envspec.importers import sources_in
from envspec.importers.types import Import, Outcome, Source
from envspec.spec.document import PYPROJECT
from envspec.spec.pip_lines import project_name, setup_cfg
from envspec.spec.setup_py import read_setup_py

#: In a message.
_MOST_SHOWN: Final = 20


def note_empty(imported: Import, sources: Sequence[Path], folder: Path) -> None:
    """Add a lost line to the ledger if no source has a package. folder: of the spec."""
    draft = imported.draft
    is_conda = bool({*draft.match_specs} - {"pip"})
    if draft.dependencies or is_conda or draft.apt or draft.bases or not sources:
        return
    first = imported.shown(sources[0])
    reason = "; ".join(_elsewhere(imported, sources, folder)) or "add what the project needs to the spec"
    imported.add(Source(first), first, Outcome.REFUSED, f"no package was found: {reason}")


def _setup_files(place: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The files of setuptools that require packages, and which; none if they are computed."""
    setup = read_setup_py(place)
    if setup is not None and setup.requires != ():
        yield "setup.py", setup.requires or ()
    if requires := setup_cfg(place, "options", "install_requires"):
        yield "setup.cfg", tuple(filter(None, map(str.strip, requires.splitlines())))


def _elsewhere(imported: Import, sources: Sequence[Path], folder: Path) -> Iterator[str]:
    """What else in the folders of the sources has packages."""
    for place in dict.fromkeys(each.parent for each in sources if each.is_file()):
        for file, requires in _setup_files(place):
            name, path = project_name(place), Path(os.path.relpath(place, folder)).as_posix()
            named = f" ({', '.join(requires[:_MOST_SHOWN])})" if requires else ""
            shown = imported.shown(place / file)
            yield f'{shown} has install_requires{named}: write "{name} @ {path}" in [pip] dependencies'
        for other in sources_in(place):
            if other.resolve() not in imported.done and other.name != PYPROJECT:
                yield f"{imported.shown(other)} is not among the sources: name it too"
