"""Locks of Python projects: those that a spec names by `[pip] from`, and pdm.lock, whose versions are preferred."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Set
from functools import lru_cache
from pathlib import Path
from typing import Final

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.adopt import read_lock
from envspec.adopt.rows import Row, Selection
from envspec.documents import list_of
from envspec.importers.pip import add_cuda, cuda_of, note_build
from envspec.importers.toml_lines import TomlFile, text_of
from envspec.importers.types import PYTHON_SERIES, Clue, Import, Locked, Outcome, PipFrom, Source, Unreadable
from envspec.importers.unsupported import note_unsupported
from envspec.models import DEFAULT_INDEX, Platform, marker_values
from envspec.names import NAME, VERSION, normalised
from envspec.origins import PYTORCH_PAGES
from envspec.spec.document import PYPROJECT
from envspec.structs import replace

#: Exact versions of the series that a spec can have, to evaluate markers with; the preferred series first.
PYTHONS: Final = tuple(f"{series}.0" for series in PYTHON_SERIES)
#: Of uv and pyenv, beside the project: the Python that it is run with.
_PYTHON_FILE: Final = ".python-version"


def read_locked_project(path: Path, imported: Import) -> None:
    """Read a lock that a spec can name by `[pip] from`: with the pyproject.toml beside it if there is one.

    Raises:
        UsageError: as `envspec.adopt.read_lock`.
    """
    project = path.parent / PYPROJECT
    if project.is_file() and (importer := imported.find(project)):
        imported.run(importer, project)
    else:
        selection = Selection(tuple(map(normalised, imported.extras)), tuple(map(normalised, imported.groups)))
        name_lock(path, selection, imported)


def name_lock(path: Path, selection: Selection, imported: Import) -> None:
    """Name a lock in the draft, which then has its packages. Of another lock than before, only an entry.

    Raises:
        UsageError: as `envspec.adopt.read_lock`.
    """
    name, draft = imported.shown(path), imported.draft
    by, before = Source(name, 1), draft.pip_from
    if before is not None and before.path.resolve() != path.resolve():
        reason = f"an environment has one lock: that is {imported.shown(before.path)}"
        imported.add(by, name, Outcome.REFUSED, reason)
        return
    if before is not None:
        selection = _joined(before.selection, selection)
    imported.read(path)
    found = read_lock(path, selection)
    draft.pip_from = PipFrom(path, selection)
    _clue_python(path, found.requires_python, imported)
    lines = _lines_of(path, imported)
    by_name: dict[str, list[Row]] = {}
    for row in found.rows:
        by_name.setdefault(row.name, []).append(row)
    # Poetry's locks have NVIDIA's libraries beside a torch for the CPU: its own build decides.
    for row_name in sorted(by_name, key=lambda each: each != "torch"):
        _note_rows(by_name[row_name], lines.get(row_name, by), imported)
    imported.add(by, name, Outcome.TRANSLATED, f"[pip] from: {len(by_name)} packages, as they are locked")


def _joined(one: Selection, other: Selection) -> Selection:
    """What is selected by either."""
    return replace(
        one,
        extras=tuple(sorted({*one.extras, *other.extras})),
        groups=tuple(sorted({*one.groups, *other.groups})),
        members=tuple(sorted({*one.members, *other.members})),
    )


def _clue_python(path: Path, requires_python: str, imported: Import) -> None:
    if requires_python:
        by = Source(imported.shown(path))
        imported.draft.pythons.append(Clue(requires_python, by, "the Pythons of the lock"))
    file = path.with_name(_PYTHON_FILE)
    if not file.is_file():
        return
    version = imported.read(file).strip()
    by = Source(imported.shown(file), 1)
    if re.fullmatch(r"3\.\d+(\.\d+)?", version):
        imported.draft.pythons.append(Clue(version, by, f"{_PYTHON_FILE} of the project"))
        imported.add(by, version, Outcome.TRANSLATED, f"[env] python = {version}")
    else:
        imported.add(by, version, Outcome.NOT_UNDERSTOOD, "it is not one version of Python")


def _lines_of(path: Path, imported: Import) -> dict[str, Source]:
    """Where the packages of a lock in TOML are written."""
    found: dict[str, Source] = {}
    if path.suffix == ".txt":
        return found
    file = TomlFile(path, imported)
    for key in ("package", "packages"):
        for table, by in file.tables(key):
            found.setdefault(normalised(text_of(table, "name")), by)
    return found


def _note_rows(rows: list[Row], by: Source, imported: Import) -> None:
    """Note the version of a package that linux-64 has, and what it says of CUDA."""
    draft, found = imported.draft, on_linux(rows, imported)
    chosen = next(iter(found.values()), rows[0])
    series = tuple(each for each, row in found.items() if row.version == chosen.version)
    draft.locked[chosen.name] = Locked(series, chosen.index == DEFAULT_INDEX, by)
    if not (series and chosen.version):
        return
    draft.versions[chosen.name] = chosen.version
    if chosen.name == "torch":
        note_unsupported(imported, chosen.index_url, by, name="torch", version=chosen.version)
    note_build(chosen.name, chosen.version, by, imported)
    if PYTORCH_PAGES.match(chosen.index_url) and (cuda := cuda_of(chosen.index_url)):
        add_cuda(cuda, by, imported, "PyTorch's index")


def on_linux(rows: Iterable[Row], imported: Import) -> dict[str, Row]:
    """Which of several rows of a package linux-64 has, by series of Python, the preferred one first."""
    found: dict[str, Row] = {}
    for python in dict.fromkeys((*python_versions(imported), *PYTHONS)):
        for row in rows:
            if holds(row.marker, Platform.LINUX_64, python):
                found.setdefault(python.rpartition(".")[0], row)
    return found


def read_pdm_lock(path: Path, imported: Import, *, extras: Collection[str] = (), groups: Collection[str] = ()) -> None:
    """Read pdm.lock, whose versions the first lock prefers. extras, groups: normalised names of those that are taken.

    Raises:
        Unreadable: there is no pyproject.toml beside it.
    """
    project = path.parent / PYPROJECT
    importer = imported.find(project)
    if not project.is_file() or importer is None:
        raise Unreadable(f"{imported.shown(path)}: there is no {PYPROJECT} beside it, which has the requirements")
    imported.run(importer, project)
    taken = {"default", *extras, *groups}
    by_name: dict[str, list[Row]] = {}
    lines: dict[str, Source] = {}
    for table, by in TomlFile(path, imported).tables("package"):
        name, version = normalised(text_of(table, "name")), text_of(table, "version")
        outcome, reason = Outcome.TRANSLATED, "its version is preferred, if it is the one for linux-64"
        if not (NAME.fits(name) and VERSION.fits(version)):
            outcome, reason = Outcome.NOT_UNDERSTOOD, "it is no name and version of a package"
        elif not table.keys().isdisjoint(("git", "url", "path")):
            reason = "from the address that its requirement names"
        elif taken.isdisjoint(map(normalised, list_of(table, "groups") or taken)):
            reason = "only for extras or groups that are not included"
        else:
            by_name.setdefault(name, []).append(Row(name, version, marker=text_of(table, "marker")))
            lines.setdefault(name, by)
        imported.add(by, f"{name} {version}", outcome, reason)
    for name, rows in by_name.items():
        _note_rows(rows, lines[name], imported)


def python_versions(imported: Import) -> list[str]:
    """Exact versions that all clues allow so far, one of each series; all if they contradict each other."""
    found = list(PYTHONS)
    for clue in imported.draft.pythons:
        if series := re.match(r"3\.\d+(?=\.\d+$|$)", clue.value):
            found = [each for each in found if each.startswith(f"{series[0]}.")]
            continue
        try:
            versions = SpecifierSet(clue.value)
        except InvalidSpecifier:
            continue
        found = [each for each in found if allows(versions, each.rpartition(".")[0])]
    return found or list(PYTHONS)


def allows(bounds: SpecifierSet, series: str) -> bool:
    """Whether a specifier allows an early or a late patch of a series."""
    return bounds.contains(f"{series}.0") or bounds.contains(f"{series}.9")


@lru_cache(maxsize=1 << 14)
def holds(marker: str, platform: Platform, python: str) -> bool:
    """Whether a marker holds on a platform with a Python, an exact version; one that can't be read may."""
    if not marker:
        return True
    values: dict[str, str | Set[str]] = {**marker_values(platform, python), "extra": ""}
    values |= {"extras": frozenset(), "dependency_groups": frozenset()}
    try:
        return Marker(marker).evaluate(values)
    except (InvalidMarker, RecursionError, ValueError):
        return True
