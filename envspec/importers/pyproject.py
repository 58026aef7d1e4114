"""pyproject.toml: a project's requirements (PEP 621, PEP 735), and what uv, Poetry, PDM and setuptools add to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.credentials import shown
from envspec.importers import pixi, poetry
from envspec.importers.pip import Use, Verdict, add_index, add_requirement
from envspec.importers.python_locks import PYTHONS, holds, read_pdm_lock, read_poetry_lock, read_pylock, read_uv_lock
from envspec.importers.toml_lines import TomlFile, list_of, table_of, text_of
from envspec.importers.types import Clue, Import, Outcome, Source
from envspec.lockfile.toml_writer import time_text
from envspec.models import Platform
from envspec.names import normalised
from envspec.spec.dates import Age, read_as_of
from envspec.spec.document import DEPENDENCIES_FROM
from envspec.spec.errors import BadValue, KeyPath
from envspec.spec.pip_lines import project_name
from envspec.spec.pyproject import read_whole
from envspec.spec.requirements import read_override

#: Beside the project, the first that there is.
_LOCKS: Final = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml")
#: Of a workspace.
_MOST_MEMBERS: Final = 1000
#: Extras of the project that name each other.
_DEEPEST: Final = 50


def read_pyproject(path: Path, imported: Import, *, extras: Collection[str] = (), groups: Collection[str] = ()) -> None:
    """Read a project's requirements, and the lock beside it.

    extras, groups: which of the project's are taken beside its own requirements; Poetry's groups and PDM's, and the
    dev-dependencies of uv (`dev`) are groups too. Neither of them is taken by default.
    """
    project = _Project(TomlFile(path, imported), imported, frozenset(map(normalised, extras)), list(groups))
    project.read()
    locks = [path.parent / name for name in _LOCKS if (path.parent / name).is_file()]
    for lock in locks[:1]:
        imported.run(project.reader_of(lock), lock)
    for lock in locks[1:]:
        name = imported.shown(lock)
        note = f"not read: the versions are those of {imported.shown(locks[0])}"
        imported.add(Source(name), name, Outcome.TRANSLATED, note)


@dataclass(slots=True)
class _Project:
    file: TomlFile
    imported: Import
    extras: frozenset[str]
    groups: list[str]
    #: Names that a requirement which is taken has -> the sources that it took.
    used: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the project, normalised."""
        names = (self.file.table("project"), self.file.table("tool", "poetry"))
        return normalised(next(filter(None, (text_of(table, "name") for table in names)), ""))

    @property
    def taken_groups(self) -> frozenset[str]:
        return frozenset(map(normalised, self.groups))

    def reader_of(self, lock: Path) -> Callable[[Path, Import], None]:
        """The importer of a lock beside the project."""
        if lock.name == "poetry.lock":
            return partial(read_poetry_lock, groups=self.taken_groups)
        if lock.name == "pylock.toml":
            return read_pylock
        read = read_uv_lock if lock.name == "uv.lock" else read_pdm_lock
        return partial(read, extras=self.extras, groups=self.taken_groups)

    def read(self) -> None:
        self._metadata()
        self._dependency_groups()
        self._uv()
        self._poetry()
        self._pdm()
        self._others()

    # [project] and [dependency-groups]

    def _metadata(self) -> None:
        project = self.file.table("project")
        if "build-system" in self.file.data:
            self.note(("build-system",), "[build-system]", "not part of the environment: builds of the project read it")
        if name := text_of(project, "name"):
            self.imported.draft.name = self.imported.draft.name or name
            self.note(("project", "name"), f"name = {name}", "the environment's name")
        if python := text_of(project, "requires-python"):
            self.python(python, ("project", "requires-python"), "requires-python")
        for at, text in enumerate(list_of(project, "dependencies")):
            if self._own_extras(text):
                self.note(("project", "dependencies", at), text, "the lines of these extras")
            else:
                self.requirement(text, ("project", "dependencies", at))
        self._extras()
        self._dynamic()

    def _extras(self) -> None:
        project = self.file.table("project")
        own = (self._own_extras(text) for text in list_of(project, "dependencies"))
        taken = self._with_named(self.extras.union(*own))
        optional = table_of(project, "optional-dependencies")
        for extra, listed in optional.items():
            for at, text in enumerate(listed if isinstance(listed, list) else ()):
                path = ("project", "optional-dependencies", extra, at)
                if normalised(extra) not in taken:
                    self.note(path, text, _not_taken("extra", extra))
                elif not self._own_extras(text):
                    self.requirement(text, path, extra=normalised(extra))
                else:
                    self.note(path, text, "the lines of these extras")
        others = (("tool", "poetry", "extras"), ("tool", "setuptools", "dynamic", "optional-dependencies"))
        known = {*map(normalised, optional), *(normalised(key) for path in others for key in self.file.table(*path))}
        for extra in sorted(self.extras - known):
            self.add(("project",), f"extra {extra}", Verdict(Outcome.REFUSED, f"the project has no extra {extra}"))

    def _with_named(self, extras: frozenset[str]) -> frozenset[str]:
        """Extras, and those that they name: `all = ["project[gpu]"]`."""
        optional = {
            normalised(key): value for key, value in self.file.table("project", "optional-dependencies").items()
        }
        found = extras
        for _ in range(_DEEPEST):
            lines = [text for extra in found for text in list_of(optional, extra)]
            more = found.union(*(self._own_extras(text) for text in lines))
            if more == found:
                break
            found = more
        return found

    def _own_extras(self, text: object) -> frozenset[str]:
        """The extras of the project itself that a requirement names."""
        try:
            requirement = Pep508(text) if isinstance(text, str) else None
        except (InvalidRequirement, RecursionError):
            return frozenset()
        is_own = requirement is not None and normalised(requirement.name) == self.name
        return frozenset(map(normalised, requirement.extras)) if requirement and is_own else frozenset()

    def _dynamic(self) -> None:
        """Requirements that the build computes: setuptools can read them from files."""
        read = self.file.table("tool", "setuptools", "dynamic")
        extras = table_of(read, "optional-dependencies")
        for at, key in enumerate(list_of(self.file.data, "project", "dynamic")):
            path: KeyPath = ("project", "dynamic", at)
            if (key == "dependencies" and key in read) or (key == "optional-dependencies" and extras):
                self.note(path, key, "read from the files that [tool.setuptools.dynamic] names")
            elif key in ("dependencies", "optional-dependencies", "requires-python"):
                reason = f'its build computes them: write "{self.name or "name"} @ ." in [pip] dependencies'
                self.add(path, key, Verdict(Outcome.REFUSED, reason))
        base: KeyPath = ("tool", "setuptools", "dynamic")
        self._files(table_of(read, "dependencies"), (*base, "dependencies"))
        for extra, table in extras.items():
            path = (*base, "optional-dependencies", extra)
            if normalised(extra) in self.extras:
                self._files(table, path)
            else:
                self.note(path, f"extra {extra}", _not_taken("extra", extra))

    def _files(self, table: Any, path: KeyPath) -> None:
        named = table_of(table).get("file", [])
        for name in [named] if isinstance(named, str) else named if isinstance(named, list) else []:
            self.imported.include(self.file.path.parent / str(name), self.file.at(*path), f"file = {name}")

    def _dependency_groups(self) -> None:
        groups = self._known_groups()
        found = read_whole(
            {DEPENDENCIES_FROM: [f"group:{each}" for each in groups]}, self.file.path.with_name("spec.toml")
        )
        taken = {place.path for place in found.lines.values()}
        for place, problem in found.problems:
            if place.path not in taken:
                path = place.path if place.file else ("dependency-groups",)
                text = f"group {place.path[1] if place.file else groups[int(place.path[-1])]}"
                self.add(path, text, Verdict(Outcome.REFUSED, f"{problem}; {problem.hint}"))
        for group, listed in self.file.table("dependency-groups").items():
            for at, item in enumerate(listed if isinstance(listed, list) else ()):
                path = ("dependency-groups", group, at)
                if path in taken:
                    self.requirement(item, path, group=normalised(group))
                elif isinstance(item, Mapping) and normalised(group) in self.taken_groups:
                    self.note(path, _written(item), "the lines of this group")
                else:
                    self.note(path, _written(item), _not_taken("group", group))

    def _known_groups(self) -> list[str]:
        """The groups to take from [dependency-groups]: the others are those of a tool."""
        tools = {"dev"} if list_of(self.file.data, "tool", "uv", "dev-dependencies") else set[str]()
        tools |= set(map(normalised, self.file.table("tool", "poetry", "group")))
        tools |= {"dev"} if self.file.table("tool", "poetry", "dev-dependencies") else set()
        tools |= set(map(normalised, self.file.table("tool", "pdm", "dev-dependencies")))
        own = set(map(normalised, self.file.table("dependency-groups")))
        return [group for group in self.groups if normalised(group) in own or normalised(group) not in tools]

    # [tool.uv]

    def _uv(self) -> None:
        uv = self.file.table("tool", "uv")
        for at, text in enumerate(list_of(uv, "dev-dependencies")):
            path = ("tool", "uv", "dev-dependencies", at)
            if "dev" in self.taken_groups:
                self.requirement(text, path, group="dev")
            else:
                self.note(path, text, _not_taken("group", "dev"))
        for at, text in enumerate(list_of(uv, "constraint-dependencies")):
            self.requirement(text, ("tool", "uv", "constraint-dependencies", at), use=Use.CONSTRAINTS)
        for at, text in enumerate(list_of(uv, "override-dependencies")):
            self.override(text, ("tool", "uv", "override-dependencies", at), "override-dependencies of uv")
        self._uv_sources(table_of(uv, "sources"))
        for key in ("environments", "required-environments"):
            listed = uv.get(key, [])
            for at, text in enumerate(
                [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else ()
            ):
                self._platforms(text, ("tool", "uv", key, at) if isinstance(listed, list) else ("tool", "uv", key))
        for key, value in uv.items():
            if key not in _UV_READ:
                self.add(("tool", "uv", key), f"{key} = {_written(value)}", self._uv_key(key, value))

    def _uv_key(self, key: str, value: Any) -> Verdict:
        by = self.file.at("tool", "uv", key)
        if key in ("index-url", "extra-index-url", "find-links", "default-index"):
            is_links, is_default = key == "find-links", key in ("index-url", "default-index")
            urls = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
            return _joined(add_index(url, by, self.imported, is_links=is_links, is_default=is_default) for url in urls)
        if key == "exclude-newer" and isinstance(value, str):
            return self._exclude_newer(value, by)
        if key in ("no-binary-package", "no-build-isolation-package") and isinstance(value, list):
            self.imported.draft.allow_sdist += [each for each in value if isinstance(each, str)]
            return Verdict(Outcome.TRANSLATED, "[pip] allow_sdist: built if a release has no wheel")
        if key == "default-groups":
            listed = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            return Verdict(Outcome.TRANSLATED, f"taken if named: --group {listed}")
        return _UV_KEYS.get(key, Verdict(Outcome.NOT_UNDERSTOOD, "it is not a setting of uv that is read"))

    def _exclude_newer(self, value: str, by: Source) -> Verdict:
        # A date includes its day: of 2026-01-05, uv 0.13.8 writes 2026-01-06T00:00:00Z into uv.lock.
        is_date = re.fullmatch(r"\d{4}-\d\d-\d\d", value)
        try:
            bound = read_as_of(f"{value} ago" if re.fullmatch(r"\d+ [a-z]+", value) else value)
            time = str(bound) if isinstance(bound, Age) else time_text(bound + timedelta(days=bool(is_date)))
        except (ValueError, OverflowError):
            return Verdict(Outcome.NOT_UNDERSTOOD, "it is neither a time nor an age such as 7 days")
        self.imported.draft.as_ofs.append(Clue(time, by, "exclude-newer of uv"))
        return Verdict(Outcome.TRANSLATED, f"[env] as_of = {time}")

    def _platforms(self, text: object, path: KeyPath) -> None:
        """The platforms on which a marker of `environments` can hold."""
        found = [each.value for each in Platform if any(holds(str(text), each, python) for python in PYTHONS)]
        draft = self.imported.draft
        draft.platforms += [Clue(each, self.file.at(*path), str(path[2])) for each in found]
        verdict = (
            Verdict(Outcome.TRANSLATED, f"[env] platforms: {', '.join(found)}")
            if found
            else Verdict(Outcome.REFUSED, "it holds on none of the platforms that a spec can have")
        )
        self.add(path, str(text), verdict)

    def _uv_sources(self, sources: Mapping[str, Any]) -> None:
        """Entries for sources and indexes: requirements have added what they took."""
        by_index: dict[str, list[str]] = {}
        for name, value in sources.items():
            several = isinstance(value, list)
            for at, source in enumerate(value if isinstance(value, list) else [value]):
                path: KeyPath = ("tool", "uv", "sources", name, *((at,) if several else ()))
                used = source in self.used.get(normalised(name), [])
                if used and text_of(source, "index"):
                    by_index.setdefault(text_of(source, "index"), []).append(name)
                self.note(path, f"{name} = {_written(source)}", self._source_reason(name, source, used=used))
        for at, index in enumerate(list_of(self.file.data, "tool", "uv", "index")):
            path = ("tool", "uv", "index", at)
            name, url = text_of(index, "name"), text_of(index, "url")
            packages = tuple(by_index.get(name, ()))
            if table_of(index).get("explicit") is True and not packages:
                verdict = Verdict(Outcome.TRANSLATED, "explicit, and no requirement that is taken comes from it")
            else:
                verdict = add_index(
                    url,
                    self.file.at(*path),
                    self.imported,
                    name=re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-"),
                    packages=packages,
                    is_links=text_of(index, "format") == "flat",
                    is_default=table_of(index).get("default") is True,
                )
            self.add(path, f"[[tool.uv.index]] {name} {url}", verdict)

    def _source_reason(self, name: str, source: Any, *, used: bool) -> str:
        if used:
            return f"{name} comes from there"
        for kind, taken in (("extra", self.extras), ("group", self.taken_groups)):
            if (key := text_of(source, kind)) and normalised(key) not in taken:
                return _not_taken(kind, key)
        if normalised(name) in self.used:
            return "not for linux-64, for which the first source is taken whose marker holds"
        return f"no requirement that is taken names {name}"

    def _source_of(self, name: str, extra: str, group: str) -> Mapping[str, Any]:
        """The source of a name in a list of requirements: the first that holds on linux-64. Empty if it has none."""
        for key, value in self.file.table("tool", "uv", "sources").items():
            for source in value if isinstance(value, list) else [value]:
                fits = (text_of(source, "extra") or extra, text_of(source, "group") or group) == (extra, group)
                if normalised(key) == name and isinstance(source, Mapping) and fits and self._is_for_linux(source):
                    return source
        # Poetry 2: [project] has the requirement, and the table says where it comes from.
        tables = self.file.table("tool", "poetry", "dependencies") if not (extra or group) else {}
        return next((table_of(value) for key, value in tables.items() if normalised(key) == name), {})

    def _is_for_linux(self, source: Mapping[str, Any]) -> bool:
        marker = text_of(source, "marker")
        return not marker or any(holds(marker, Platform.LINUX_64, python) for python in PYTHONS)

    def _address_of(self, name: str, source: Mapping[str, Any]) -> str:
        """What follows the `@` of a requirement with a source; empty if it comes from an index."""
        if text_of(source, "git"):
            return poetry.git_address(source)
        if source.get("workspace") is True:
            member = next((each for each in self._members() if normalised(project_name(each) or "") == name), None)
            return f"./{member.relative_to(self.file.path.parent).as_posix()}" if member else f"./{name}"
        if path := text_of(source, "path"):
            return path if path.startswith((".", "/")) else f"./{path}"
        return text_of(source, "url")

    def _members(self) -> Iterator[Path]:
        """The folders of a workspace."""
        count = 0
        for pattern in list_of(self.file.data, "tool", "uv", "workspace", "members"):
            # A pattern that leads out of the project is none of uv's.
            if not isinstance(pattern, str) or pattern.startswith("/") or ".." in pattern.split("/"):
                continue
            for folder in self.file.path.parent.glob(pattern):
                count += 1
                if count > _MOST_MEMBERS:
                    return
                if (folder / "pyproject.toml").is_file():
                    yield folder

    # Poetry, PDM and others

    def _poetry(self) -> None:
        tool = self.file.table("tool", "poetry")
        if name := text_of(tool, "name"):
            self.imported.draft.name = self.imported.draft.name or name
            self.note(("tool", "poetry", "name"), f"name = {name}", "the environment's name")
        tables: list[tuple[KeyPath, str]] = [(("tool", "poetry", "dependencies"), "")]
        tables += [(("tool", "poetry", "group", group, "dependencies"), group) for group in table_of(tool, "group")]
        tables.append((("tool", "poetry", "dev-dependencies"), "dev"))
        for path, group in tables:
            for name, value in self.file.table(*map(str, path)).items():
                self._poetry_item(name, value, (*path, name), group)
        for extra, names in table_of(tool, "extras").items():
            taken = "taken" if normalised(extra) in self.extras else _not_taken("extra", extra)
            self.note(("tool", "poetry", "extras", extra), f"{extra} = {_written(names)}", taken)
        for at, source in enumerate(list_of(tool, "source")):
            self._index_of_tool(source, ("tool", "poetry", "source", at), by_name=True)

    def _poetry_item(self, name: str, value: Any, path: KeyPath, group: str) -> None:
        if name == "python":
            try:
                self.python(poetry.specifier_of(str(value)), path, f'python = "{value}"')
            except BadValue as error:
                self.add(path, f"python = {_written(value)}", Verdict(Outcome.REFUSED, f"{error}; {error.hint}"))
            return
        written = f"{name} = {_written(value)}"
        tool = self.file.table("tool", "poetry")
        items = value if isinstance(value, list) else [value]
        optional = any(table_of(item).get("optional") is True for item in items)
        of = [extra for extra, names in table_of(tool, "extras").items() if isinstance(names, list) and name in names]
        if group and normalised(group) not in self.taken_groups:
            self.note(path, written, _not_taken("group", group))
        elif optional and not self.extras.intersection(map(normalised, of)):
            self.note(path, written, _not_taken("extra", of[0]) if of else "optional, and of no extra: not taken")
        elif not group and self._is_of_project(name):
            self.note(path, written, "the requirement is in [project] dependencies")
        else:
            for at, item in enumerate(items):
                place = (*path, at) if isinstance(value, list) else path
                try:
                    text = poetry.requirement_of(name, item)
                except BadValue as error:
                    self.add(place, written, Verdict(Outcome.REFUSED, f"{error}; {error.hint}"))
                    continue
                if source := text_of(item, "source"):
                    self.used.setdefault(f"source {source}", []).append({"name": name})
                self.requirement(text, place, written=f"{name} = {_written(item)}")

    def _is_of_project(self, name: str) -> bool:
        lines = list_of(self.file.data, "project", "dependencies")
        return any(normalised(name) == normalised(re.split(r"[^\w.-]", str(line), maxsplit=1)[0]) for line in lines)

    def _index_of_tool(self, source: Any, path: KeyPath, *, by_name: bool) -> None:
        """An index of Poetry or PDM. by_name: requirements name it."""
        name, url = text_of(source, "name"), text_of(source, "url")
        listed = self.used.get(f"source {name}", []) if by_name else []
        packages = [text_of(each, "name") for each in listed]
        packages += [each for each in list_of(table_of(source), "include_packages") if isinstance(each, str)]
        priority = text_of(source, "priority")
        if not url:
            verdict = Verdict(Outcome.TRANSLATED, "it is the default index")
        elif priority == "explicit" and not packages:
            verdict = Verdict(Outcome.TRANSLATED, "explicit, and no requirement that is taken comes from it")
        else:
            verdict = add_index(
                url,
                self.file.at(*path),
                self.imported,
                name=re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-"),
                packages=tuple(packages),
                is_links=text_of(source, "type") == "find_links",
                is_default=priority in ("primary", "default") and not by_name,
            )
        self.add(path, f"[[{'.'.join(map(str, path[:3]))}]] {name} {url}", verdict)

    def _pdm(self) -> None:
        tool = self.file.table("tool", "pdm")
        for group, listed in table_of(tool, "dev-dependencies").items():
            for at, text in enumerate(listed if isinstance(listed, list) else ()):
                path = ("tool", "pdm", "dev-dependencies", group, at)
                if normalised(group) in self.taken_groups:
                    self.requirement(text, path, group=normalised(group))
                else:
                    self.note(path, text, _not_taken("group", group))
        for name, version in table_of(tool, "resolution", "overrides").items():
            operator = "" if re.match(r"[=<>!~]", str(version)) else " @ " if "://" in str(version) else "=="
            text = f"{name}{operator}{version}"
            self.override(text, ("tool", "pdm", "resolution", "overrides", name), "resolution.overrides of PDM")
        for at, source in enumerate(list_of(tool, "source")):
            self._index_of_tool(source, ("tool", "pdm", "source", at), by_name=False)

    def _others(self) -> None:
        for name in self.file.table("tool", "hatch", "envs"):
            reason = "an environment of Hatch: not taken; copy what is needed into [pip] dependencies"
            self.note(("tool", "hatch", "envs", name), f"[tool.hatch.envs.{name}]", reason)
        if self.file.table("tool", "pixi"):
            pixi.read_tables(self.file, self.imported, "tool", "pixi")

    # What all of them do

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
        if not isinstance(text, str):
            self.add(path, _written(text), Verdict(Outcome.NOT_UNDERSTOOD, "it is not a requirement"))
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
                self.used.setdefault(f"source {index}", []).append({"name": name})
            if address := self._address_of(name, source):
                actual = f"{found[1]}{found[2] or ''} @ {address}" + (f" {found[3]}" if found[3] else "")
                notes = (*notes, f"from {shown(address)}")
        verdict = add_requirement(actual, by, self.imported, folder, use, notes)
        self.add(path, written or text, verdict)

    def override(self, text: object, path: KeyPath, why: str) -> None:
        """Add an override. why: its reason in the spec."""
        try:
            read_override(str(text))
        except BadValue as error:
            self.add(path, _written(text), Verdict(Outcome.REFUSED, f"{error}; {error.hint}"))
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
            self.note(path, f"{path[-1]} = {specifier}", "[env] python is one of them")

    def note(self, path: KeyPath, text: object, reason: str) -> None:
        """An entry for what decided something."""
        self.add(path, str(text), Verdict(Outcome.TRANSLATED, reason))

    def add(self, path: KeyPath, text: str, verdict: Verdict) -> None:
        """An entry of the ledger."""
        self.imported.add(self.file.at(*path), text, *verdict)


def _not_taken(kind: str, name: str) -> str:
    return f"{kind} {name}: not taken; --{kind} {name} takes it"


def _joined(verdicts: Iterator[Verdict]) -> Verdict:
    """One verdict for a line with several values: the worst, and all reasons."""
    found = list(verdicts) or [Verdict(Outcome.NOT_UNDERSTOOD, "it has no value that can be read")]
    worst = next((each.outcome for each in found if each.outcome.is_lost), found[0].outcome)
    return Verdict(worst, "; ".join(dict.fromkeys(each.reason for each in found if each.reason)))


def _written(value: object) -> str:
    """A value of TOML in one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_written(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


#: Keys of [tool.uv] that have entries of their own.
_UV_READ: Final = (
    "dev-dependencies",
    "constraint-dependencies",
    "override-dependencies",
    "sources",
    "index",
    "environments",
    "required-environments",
)
_NO_EFFECT: Final = Verdict(Outcome.TRANSLATED, "a setting of uv's own, which does not decide what is installed")
_BUILDS: Final = Verdict(Outcome.REFUSED, "what a package's build imports is [build.NAME] requires")
#: Source: uv's documentation, "Settings" (uv 0.9).
_UV_KEYS: Final = {
    **dict.fromkeys(
        (
            "package",
            "managed",
            "workspace",
            "cache-keys",
            "cache-dir",
            "build-backend",
            "required-version",
            "link-mode",
            "compile-bytecode",
            "preview",
            "native-tls",
            "offline",
            "no-cache",
            "python-downloads",
            "python-preference",
            "concurrent-builds",
            "concurrent-downloads",
            "concurrent-installs",
            "publish-url",
            "check-url",
            "trusted-publishing",
            "reinstall",
            "reinstall-package",
            "upgrade",
            "upgrade-package",
            "keyring-provider",
            "http-proxy",
            "https-proxy",
            "no-proxy",
            "add-bounds",
            "pip",
            "index-strategy",
            "fork-strategy",
        ),
        _NO_EFFECT,
    ),
    "conflicts": Verdict(Outcome.TRANSLATED, "an environment takes one of them; [variants] has the others"),
    "prerelease": Verdict(Outcome.REFUSED, 'name each pre-release instead: "torch>=2.10.0rc1"'),
    "resolution": Verdict(Outcome.REFUSED, "the newest versions are locked, or the preferred ones"),
    "no-build": Verdict(Outcome.REFUSED, 'write sdists = "none" in [pip]'),
    "no-binary": Verdict(Outcome.REFUSED, "a wheel is built only if a release has none: name the packages"),
    "no-index": Verdict(Outcome.REFUSED, "an index is always read: ENVSPEC_DEFAULT_INDEX names another default one"),
    "no-build-package": Verdict(Outcome.TRANSLATED, "only sdists without compiled code are built, when locking"),
    "no-build-isolation": _BUILDS,
    "extra-build-dependencies": _BUILDS,
    "build-constraint-dependencies": _BUILDS,
    "extra-build-variables": Verdict(Outcome.REFUSED, "the variables of a package's build are [build.NAME] env"),
    "config-settings": _BUILDS,
    "config-settings-package": _BUILDS,
    "dependency-metadata": Verdict(Outcome.REFUSED, "[pip] overrides replace what a package requires"),
    "exclude-newer-package": Verdict(Outcome.REFUSED, "later dates of single packages are [env] package_as_of"),
    "allow-insecure-host": Verdict(Outcome.REFUSED, "certificates are those of this machine (SSL_CERT_FILE)"),
    "torch-backend": Verdict(Outcome.REFUSED, "write [cuda] version"),
}
