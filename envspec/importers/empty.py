"""Sources without a package: where the project's packages may be, and what to write."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from envspec.importers import sources_in
from envspec.importers.types import Import, Outcome, Source
from envspec.spec.document import PYPROJECT
from envspec.spec.pip_lines import project_name
from envspec.spec.setup_py import read_setup_py

#: In a message.
_MOST_SHOWN: Final = 20


def note_empty(imported: Import, sources: Sequence[Path], folder: Path) -> None:
    """Add a lost line to the ledger if no source has a package. folder: of the spec."""
    draft = imported.draft
    is_conda = any(text != "pip" for text, _ in draft.conda)
    if draft.dependencies or is_conda or draft.apt or draft.bases or not sources:
        return
    first = imported.shown(sources[0])
    reason = "; ".join(_elsewhere(imported, sources, folder)) or "add what the project needs to the spec"
    imported.add(Source(first), first, Outcome.REFUSED, f"no package was found: {reason}")


def _elsewhere(imported: Import, sources: Sequence[Path], folder: Path) -> Iterator[str]:
    """What else in the folders of the sources has packages."""
    for place in dict.fromkeys(each.parent for each in sources if each.is_file()):
        setup = read_setup_py(place)
        if setup is not None and setup.requires != ():
            name, path = project_name(place), Path(os.path.relpath(place, folder)).as_posix()
            file = imported.shown(place / "setup.py")
            named = ", ".join((setup.requires or ())[:_MOST_SHOWN])
            yield (
                f'{file} has install_requires{f" ({named})" if named else ""}: write "{name} @ {path}" in [pip] '
                "dependencies"
            )
        for other in sources_in(place):
            if other.resolve() not in imported.done and other.name != PYPROJECT:
                yield f"{imported.shown(other)} is not among the sources: name it too"
