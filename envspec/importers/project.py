"""A project's file: what the tables of all tools do with the requirements in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.credentials import shown
from envspec.importers.pip import Use, Verdict, add_index, add_requirement
from envspec.importers.python_locks import PYTHONS, holds
from envspec.importers.toml_lines import TomlFile, list_of, table_of, text_of
from envspec.importers.types import Clue, Import, Outcome
from envspec.models import Platform
from envspec.names import normalised
from envspec.spec.errors import BadValue, KeyPath
from envspec.spec.pip_lines import project_name
from envspec.spec.pyproject import git_address
from envspec.spec.requirements import LONGEST, read_override

#: Of a workspace.
_MOST_MEMBERS: Final = 1000


@dataclass(slots=True)
class Project:
    """A pyproject.toml. extras, groups: those that are taken, normalised.

    used: names of requirements that are taken -> the sources that they took. indexes: of Poetry, by their names -> what
    comes from there.
    """

    file: TomlFile
    imported: Import
    extras: frozenset[str]
    groups: frozenset[str]
    used: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    indexes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the project, normalised."""
        names = (self.file.table("project"), self.file.table("tool", "poetry"))
        return normalised(next(filter(None, (text_of(table, "name") for table in names)), ""))

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
            self.add(path, written_value(text), Verdict(Outcome.NOT_UNDERSTOOD, "it is not a requirement"))
            return
        notes: tuple[str, ...] = (f"as {shown(text)}",) if written else ()
        found = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?[^;]*(;.*)?$", text)
        name = normalised(found[1]) if found else ""
        if name == self.name and name and use is Use.DEPENDENCIES and " @ " not in text:
            self.add(path, text, Verdict(Outcome.REFUSED, "it is the project itself, which no index has"))
            return
        source = self._source_of(name, extra, group) if use is Use.DEPENDENCIES and not written else {}
        if found and use is Use.DEPENDENCIES:
            self.used.setdefault(name, [])
        actual = text
        if found and source:
            self.used[name].append(source)
            if index := text_of(source, "source"):
                self.indexes.setdefault(index, []).append(name)
            if address := self._address_of(name, source):
                actual = f"{found[1]}{found[2] or ''} @ {address}" + (f" {found[3]}" if found[3] else "")
                notes = (*notes, f"from {shown(address)}")
        verdict = add_requirement(actual, by, self.imported, folder, use, notes)
        self.add(path, written or text, verdict)

    def index(
        self,
        row: object,
        path: KeyPath,
        packages: Sequence[str],
        *,
        is_explicit: bool,
        is_links: bool,
        is_default: bool,
    ) -> Verdict:
        """Add an index. row: its table. packages: that come from it. is_explicit: nothing else does."""
        if is_explicit and not packages:
            return Verdict(Outcome.TRANSLATED, "explicit, and no included requirement comes from it")
        return add_index(
            text_of(row, "url"),
            self.file.at(*path),
            self.imported,
            name=re.sub(r"[^a-z0-9-]+", "-", text_of(row, "name").lower()).strip("-"),
            packages=tuple(packages),
            is_links=is_links,
            is_default=is_default,
        )

    def override(self, text: object, path: KeyPath, why: str) -> None:
        """Add an override. why: its reason in the spec."""
        try:
            read_override(str(text))
        except BadValue as error:
            self.add(path, written_value(text), Verdict(Outcome.REFUSED, f"{error}; {error.hint}"))
        else:
            self.imported.draft.overrides.append((str(text), why))
            self.note(path, str(text), "[pip] overrides")

    def python(self, specifier: str, path: KeyPath, why: str) -> None:
        """Note the Pythons that the project supports."""
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier:
            self.add(path, why, Verdict(Outcome.NOT_UNDERSTOOD, f"{specifier} is not a specifier"))
        else:
            self.imported.draft.pythons.append(Clue(specifier, self.file.at(*path), why))
            self.note(path, f"{path[-1]} = {specifier}", "[env] python is in this range")

    def note(self, path: KeyPath, text: object, reason: str) -> None:
        """An entry for what decided something."""
        self.add(path, str(text), Verdict(Outcome.TRANSLATED, reason))

    def add(self, path: KeyPath, text: str, verdict: Verdict) -> None:
        """An entry of the ledger."""
        self.imported.add(self.file.at(*path), text, *verdict)

    def _source_of(self, name: str, extra: str, group: str) -> Mapping[str, Any]:
        """The source of a name in a list of requirements: the first that holds on linux-64. Empty if it has none."""
        for key, value in self.file.table("tool", "uv", "sources").items():
            for source in value if isinstance(value, list) else [value]:
                fits = (text_of(source, "extra") or extra, text_of(source, "group") or group) == (extra, group)
                if normalised(key) == name and isinstance(source, Mapping) and fits and _is_for_linux(source):
                    return source
        # Poetry 2: [project] has the requirement, and the table says where it comes from.
        tables = self.file.table("tool", "poetry", "dependencies") if not (extra or group) else {}
        return next((table_of(value) for key, value in tables.items() if normalised(key) == name), {})

    def _address_of(self, name: str, source: Mapping[str, Any]) -> str:
        """What follows the `@` of a requirement with a source; empty if it comes from an index."""
        if text_of(source, "git"):
            return git_address(source)
        if source.get("workspace") is True:
            member = next((each for each in self._members() if normalised(project_name(each) or "") == name), None)
            return f"./{member.relative_to(self.file.path.parent).as_posix()}" if member else f"./{name}"
        if path := text_of(source, "path"):
            return path if path.startswith((".", "/")) else f"./{path}"
        return text_of(source, "url")

    def _members(self) -> Iterator[Path]:
        """The folders of a workspace."""
        for pattern in list_of(self.file.data, "tool", "uv", "workspace", "members"):
            # A pattern that leads out of the project is none of uv's.
            if not isinstance(pattern, str) or pattern.startswith("/") or ".." in pattern.split("/"):
                continue
            try:
                for folder in islice(self.file.path.parent.glob(pattern), _MOST_MEMBERS):
                    if (folder / "pyproject.toml").is_file():
                        yield folder
            except (ValueError, NotImplementedError):
                continue


def _is_for_linux(source: Mapping[str, Any]) -> bool:
    marker = text_of(source, "marker")
    return not marker or any(holds(marker, Platform.LINUX_64, python) for python in PYTHONS)


def not_included(kind: str, name: str) -> str:
    """The reason in the entry of a line of an extra or a group."""
    return f"{kind} {name}: not included; add --{kind} {name}"


def written_value(value: object) -> str:
    """A value of TOML in one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {written_value(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(written_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
