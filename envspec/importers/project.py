"""A project's file: what the tables of all tools do with the requirements in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.adopt.markers import without_extras
from envspec.credentials import shown
from envspec.documents import list_of
from envspec.importers.conda_specs import platforms_of, python_marker, with_markers
from envspec.importers.pip import LineVerdict, Use, add_index, add_requirement
from envspec.importers.python_locks import holds, python_versions
from envspec.importers.toml_lines import TomlFile, several_of, text_of
from envspec.importers.types import Clue, Import, Outcome
from envspec.models import Platform
from envspec.names import normalised
from envspec.spec.document import PYPROJECT
from envspec.spec.errors import BadValue, KeyPath
from envspec.spec.pip_lines import project_name
from envspec.spec.pyproject import git_address
from envspec.spec.requirements import LONGEST, local_address, read_override

#: Of a workspace.
MOST_MEMBERS: Final = 1000


class _RequirementParts(NamedTuple):
    """A requirement without an address.

    written: its name as it is written.
    extras: in brackets, or empty.
    marker: without its semicolon, or empty.
    """

    written: str
    extras: str
    marker: str

    @property
    def name(self) -> str:
        return normalised(self.written)


class Project(Struct):
    """A pyproject.toml.

    extras, groups: those that are taken, normalised.
    workspace: that of uv to which it belongs, None for a project of its own.
    is_required: another project requires its wheel, which states its requirements.
    used: names of requirements that are taken -> the sources that they took.
    indexes: of Poetry, by their names -> what comes from there; of uv, by theirs.
    locals: folders of local projects that are required, with the extras.
    required: those that were read.
    """

    file: TomlFile
    imported: Import
    extras: frozenset[str]
    groups: frozenset[str]
    workspace: Project | None = None
    is_required: bool = False
    used: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    indexes: dict[str, list[str]] = field(default_factory=dict)
    locals: list[tuple[Path, frozenset[str]]] = field(default_factory=list)
    required: list[Project] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the project, normalised."""
        own = text_of(self.file.table("project"), "name")
        return normalised(own or text_of(self.file.table("tool", "poetry"), "name"))

    @property
    def platforms(self) -> tuple[str, ...]:
        """Those of the spec, as far as sources say."""
        return platforms_of(self.imported)

    def requirement(
        self,
        text: object,
        path: KeyPath,
        *,
        extra: str = "",
        group: str = "",
        use: Use = Use.DEPENDENCIES,
        written: str = "",
    ) -> None:
        """Add a requirement, from the source that [tool.uv.sources] names. extra, group: in whose list it is."""
        by, folder = self.file.at(*path), self.file.path.parent
        if not isinstance(text, str) or len(text) > LONGEST:
            self.add(path, written_value(text), LineVerdict(Outcome.NOT_UNDERSTOOD, "it is not a requirement"))
            return
        notes: tuple[str, ...] = (f"as {shown(text)}",) if written else ()
        found = _parts_of(text)
        if found and found.name == self.name and use is Use.DEPENDENCIES and " @ " not in text:
            self.add(path, text, LineVerdict(Outcome.REFUSED, "it is the project itself, which no index has"))
            return
        lines: list[tuple[str, tuple[str, ...]]] = []
        if found and use is Use.DEPENDENCIES:
            self.used.setdefault(found.name, [])
            if not written:
                lines = list(self._from_sources(found, text, extra, group))
        for line, more in lines or [(text, ())]:
            verdict = add_requirement(line, by, self.imported, folder, use, (*notes, *more))
            self.add(path, written or text, verdict)

    def required_by_wheel(self, text: object, path: KeyPath, *, extra: str = "") -> None:
        """Read a requirement that the project's wheel states: only its source is not in the wheel."""
        if not isinstance(text, str) or " @ " in text:
            return
        found = _parts_of(text)
        if found is None or found.name == self.name:
            return
        self.used.setdefault(found.name, [])
        by, folder = self.file.at(*path), self.file.path.parent
        for line, why in self._from_sources(found, "", extra, ""):
            if line:
                self.add(path, text, add_requirement(line, by, self.imported, folder, notes=why))

    def required_by_path(self, text: str, path: KeyPath) -> None:
        """Add a member of the workspace."""
        name, _, address = text.partition(" @ ")
        self.add(path, text, add_requirement(text, self.file.at(*path), self.imported, self.file.path.parent))
        self._note_local({}, _RequirementParts(name, "", ""), address)

    def _from_sources(
        self, found: _RequirementParts, text: str, extra: str, group: str
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The requirement from each address that a source names, with notes; `text` where there is none.

        A source for some platforms keeps its marker.
        """
        sources = self._sources_of(found.name, extra, group)
        addressed: list[str] = []
        for source, owner in sources:
            address = self._address_of(found.name, source, owner)
            if not address:
                continue
            owner.used.setdefault(found.name, []).append(source)
            marker = text_of(source, "marker")
            addressed.append(marker)
            line = f"{found.written}{found.extras} @ {address}"
            yield with_markers(line, found.marker, marker), (f"from {shown(address)}",)
            self._note_local(source, found, address)
        for source, owner in sources:
            if self._address_of(found.name, source, owner):
                continue
            owner.used.setdefault(found.name, []).append(source)
            if index := text_of(source, "source"):
                self.indexes.setdefault(index, []).append(found.name)
            break
        others = self.platforms
        for marker in addressed:
            others = tuple(each for each in others if not self.holds_on(marker, each))
        if others and text and not addressed:
            yield text, ()
        elif others and text:
            bare = text.partition(";")[0].strip()
            yield with_markers(bare, found.marker, python_marker(others)), (f"on {', '.join(others)}",)

    def _note_local(self, source: Mapping[str, Any], found: _RequirementParts, address: str) -> None:
        folder = self.file.path.parent / address
        if "git" not in source and "://" not in address and (folder / PYPROJECT).is_file():
            extras = map(normalised, re.findall(r"[\w.-]+", found.extras))
            self.locals.append((folder, frozenset(extras)))

    def index(
        self,
        row: object,
        path: KeyPath,
        packages: Sequence[str],
        *,
        is_explicit: bool,
        is_links: bool,
        is_default: bool,
    ) -> LineVerdict:
        """Add an index. row: its table. packages: that come from it. is_explicit: nothing else does."""
        if is_explicit and not packages:
            return LineVerdict(Outcome.TRANSLATED, "explicit, and no included requirement comes from it")
        return add_index(
            text_of(row, "url"),
            self.file.at(*path),
            self.imported,
            name=re.sub(r"[^a-z0-9-]+", "-", text_of(row, "name").lower()).strip("-"),
            packages=tuple(dict.fromkeys(packages)),
            is_links=is_links,
            is_default=is_default,
        )

    def override(self, text: object, path: KeyPath, why: str) -> None:
        """Add an override. why: its reason in the spec."""
        try:
            read_override(str(text))
        except BadValue as error:
            self.add(path, written_value(text), LineVerdict(Outcome.REFUSED, f"{error}; {error.hint}"))
        else:
            self.imported.draft.overrides.append((str(text), why))
            self.note(path, str(text), "[pip] overrides")

    def python(self, specifier: str, path: KeyPath, why: str) -> None:
        """Note the Pythons that the project supports."""
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier:
            self.add(path, why, LineVerdict(Outcome.NOT_UNDERSTOOD, f"{specifier} is not a specifier"))
        else:
            self.imported.draft.pythons.append(Clue(specifier, self.file.at(*path), why))
            self.note(path, f"{path[-1]} = {specifier}", "[env] python is in this range")

    def note(self, path: KeyPath, text: object, reason: str) -> None:
        """An entry for what decided something."""
        self.add(path, str(text), LineVerdict(Outcome.TRANSLATED, reason))

    def add(self, path: KeyPath, text: str, verdict: LineVerdict) -> None:
        """An entry of the ledger."""
        self.imported.add(self.file.at(*path), text, *verdict)

    def _sources_of(self, name: str, extra: str, group: str) -> list[tuple[Mapping[str, Any], Project]]:
        """The sources of a name in a list of requirements that hold on a platform, those of the first platform first,
        each with the project whose table has it.
        """
        owner = self
        found = self._own_sources(name, extra, group)
        if not found and self.workspace is not None:
            owner = self.workspace
            found = owner._own_sources(name, extra, group)
        if not found and not group:
            owner, found = self, list(self._sources_of_poetry(name))
        by_platform: dict[int, tuple[Mapping[str, Any], Project]] = {}
        for platform in self.platforms:
            for source in found:
                if self.holds_on(text_of(source, "marker"), platform):
                    by_platform.setdefault(id(source), (source, owner))
        return list(by_platform.values())

    def _own_sources(self, name: str, extra: str, group: str) -> list[Mapping[str, Any]]:
        """The rows of [tool.uv.sources] for a normalised name in the list of an extra or a group."""
        found = []
        for key, value in self.file.table("tool", "uv", "sources").items():
            for each in several_of(value):
                if normalised(key) == name and isinstance(each, Mapping) and _is_of(each, extra, group):
                    found.append(each)
        return found

    def _sources_of_poetry(self, name: str) -> Iterator[Mapping[str, Any]]:
        """Of Poetry 2, if [project] has the requirement: tables that say where it comes from."""
        for key, value in self.file.table("tool", "poetry", "dependencies").items():
            if normalised(key) != name:
                continue
            for table in several_of(value):
                marker = without_extras(text_of(table, "markers"), self.extras)
                if isinstance(table, Mapping) and marker is not None:
                    yield {**table, "marker": marker}

    def holds_on(self, marker: str, platform: str) -> bool:
        """Whether a marker holds on a platform with a Python that the project can have."""
        if not marker:
            return True
        return any(holds(marker, Platform(platform), python) for python in python_versions(self.imported))

    def _address_of(self, name: str, source: Mapping[str, Any], owner: Project) -> str:
        """What follows the `@` of a requirement with a source; empty if it comes from an index.

        owner: the project whose table has the source: paths start from its folder.
        """
        if text_of(source, "git"):
            return git_address(source)
        if source.get("workspace") is True:
            for member in (self.workspace or self).members():
                if normalised(project_name(member) or "") == name:
                    return self._path_to(member)
            return f"./{name}"
        if path := text_of(source, "path"):
            if owner is not self and not path.startswith("/"):
                return self._path_to(owner.file.path.parent / path)
            return local_address(path)
        return text_of(source, "url")

    def _path_to(self, other: Path) -> str:
        """From the project's folder to another."""
        return local_address(Path(os.path.relpath(other, self.file.path.parent)).as_posix())

    def members(self) -> list[Path]:
        """The folders of a workspace."""
        excluded = set(self._matched("exclude"))
        found = [each for each in self._matched("members") if each not in excluded]
        return [each for each in found if (each / PYPROJECT).is_file()]

    def _matched(self, key: str) -> Iterator[Path]:
        """The folders that a list of patterns of a workspace names, sorted."""
        for pattern in list_of(self.file.data, "tool", "uv", "workspace", key):
            # A pattern that leads out of the project is none of uv's.
            if not isinstance(pattern, str) or pattern.startswith("/") or ".." in pattern.split("/"):
                continue
            try:
                yield from sorted(islice(self.file.path.parent.glob(pattern), MOST_MEMBERS))
            except (ValueError, NotImplementedError):
                continue


def workspace_of(path: Path, imported: Import) -> Project | None:
    """The workspace of uv that has a project as a member; None if there is none in the folders above."""
    for folder in list(path.resolve().parents)[1:]:
        file = folder / PYPROJECT
        if not any(folder.is_relative_to(top) for top in imported.tops):
            return None
        if file.is_file():
            found = Project(TomlFile(file, imported), imported, frozenset(), frozenset())
            if path.resolve().parent in [each.resolve() for each in found.members()]:
                return found
    return None


def _parts_of(text: str) -> _RequirementParts | None:
    """A requirement without an address, in parts; None if it is none."""
    found = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?[^;]*(?:;\s*(.*))?$", text)
    if found is None:
        return None
    name, extras, marker = found.groups(default="")
    return _RequirementParts(name, extras, marker.strip())


def _is_of(source: Mapping[str, Any], extra: str, group: str) -> bool:
    """Whether a source is for the requirements in the list of an extra or a group."""
    return (text_of(source, "extra") or extra, text_of(source, "group") or group) == (extra, group)


def not_included(kind: str, name: str) -> str:
    """The reason in the entry of a line of an extra or a group."""
    return f"{kind} {name}: not included; add --{kind} {name}"


def written_value(value: object) -> str:
    """A value of TOML in one line."""
    if isinstance(value, Mapping):
        pairs = [f"{key} = {written_value(inner)}" for key, inner in value.items()]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(written_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
