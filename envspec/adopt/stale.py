"""Whether a lock of another tool still belongs to its project: without an interpreter and without a network.

Of uv.lock these are compared with the pyproject.toml files of the workspace, its members and local packages:
dependencies, extras, groups, sources, override-dependencies, constraint-dependencies, requires-python, and the members.
Not compared:
- what is dynamic, or whose pyproject.toml is missing;
- markers where they differ on none of envspec's platforms with none of the Pythons of the lock;
- sources of overrides, constraints and packages that are not members; the version beside a source that is no index;
  whether a folder is editable; whether a git reference is a branch, a tag or a commit; `lfs`;
- indexes of locks without a revision (uv before 0.6); indexes that no source names;
- `environments`, `conflicts`, `exclude-newer`, `build-constraint-dependencies`, `dependency-metadata`, and all else
  that only decides which versions are locked.

Of poetry.lock its own hash is compared, so that only the fact is known. Sources: uv's documentation, "Locking and
syncing" and "Managing dependencies" (uv 0.13); Poetry's locker, `content-hash` (Poetry 1.3 to 2.5).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urldefrag

from msgspec import Struct
from packaging.dependency_groups import DependencyGroupResolver
from packaging.errors import ExceptionGroup
from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.adopt.selected import PYPROJECT, environments, project_beside, read_document
from envspec.credentials import without_credentials
from envspec.documents import list_of, table_of
from envspec.errors import UsageError
from envspec.models import Platform
from envspec.names import normalised
from envspec.structs import replace

Table: TypeAlias = Mapping[str, Any]
#: Pythons that `requires-python` is compared on.
_PYTHONS: Final = ("2.7", *(f"3.{minor}.{patch}" for minor in range(30) for patch in range(30)), "4.0")
_EXTRA: Final = re.compile(r"extra == '([^']+)'")
#: Source.
_UNKNOWN: Final = "?"


class _Entry(Struct, frozen=True):
    """A requirement. source: empty: the default index; _UNKNOWN: not compared; else an index, a URL, a folder or a git
    reference. unless: markers where it does not hold.
    """

    name: str
    extras: frozenset[str]
    specifier: SpecifierSet
    source: str
    marker: str = ""
    unless: tuple[str, ...] = ()

    @property
    def is_direct(self) -> bool:
        """Whether it comes from no index; then the lock has no specifier."""
        return bool(self.source) and not self.source.startswith(("index ", _UNKNOWN))

    @property
    def shown(self) -> str:
        extras = f"[{','.join(sorted(self.extras))}]" if self.extras else ""
        source = "" if self.source in ("", _UNKNOWN) else f" from {self.source}"
        return f"{self.name}{extras}{self.specifier}{source}"


#: Where something is required, `dependencies` and the like -> what is.
Entries: TypeAlias = dict[str, list[_Entry]]


def differences(path: Path) -> list[str] | None:
    """What changed in the project since its lock was written, a sentence each; empty: nothing that is compared. None:
    the lock is of a format that has nothing to compare (pylock.toml, requirements.txt).

    Raises:
        UsageError: a file is malformed.
    """
    if path.name not in ("uv.lock", "poetry.lock"):
        return None
    document = read_document(path)
    try:
        if path.name == "uv.lock":
            return list(dict.fromkeys(_Workspace(path, document).differences()))
        return _of_poetry(path, document)
    except (ExceptionGroup, InvalidMarker, InvalidRequirement, InvalidSpecifier) as error:
        problem = " ".join(str(error).split())
        raise UsageError(f"{path.parent / PYPROJECT} or {path.name} is malformed: {problem}") from None


# Poetry


def _of_poetry(path: Path, document: Table) -> list[str]:
    project = project_beside(path)
    locked = table_of(document, "metadata").get("content-hash")
    # Poetry 2.3 and later; Poetry 2.0 to 2.2; Poetry 1.
    hashes = [_poetry_hash(project, *tables) for tables in (("project", "dependency-groups"), ("project",), ())]
    if not project or locked in (None, *hashes):
        return []
    return [f"{PYPROJECT} has other requirements than when {path.name} was written"]


def _poetry_hash(project: Table, *tables: str) -> str:
    """Poetry's `content-hash`. tables: those that count beside [tool.poetry]."""
    relevant = {name: dict(table_of(project, name)) for name in tables}
    if "project" in relevant:
        keys = ("requires-python", "dependencies", "optional-dependencies")
        relevant["project"] = {key: value for key, value in relevant["project"].items() if key in keys}
    relevant = {name: table for name, table in relevant.items() if table}
    tool = {}
    for key in ("dependencies", "source", "extras", "dev-dependencies", "group"):
        value = table_of(project, "tool", "poetry").get(key)
        # In a project without other tables, Poetry writes null for the first four.
        if value is not None or not (relevant or key == "group"):
            tool[key] = value
    content = {**relevant, "tool": {"poetry": tool}} if relevant else tool
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# uv


class _Workspace:
    """folders: of the members and of local packages, from that of the lock -> their entries in the lock."""

    def __init__(self, path: Path, lock: Table) -> None:
        self.folder = path.parent
        self.lock = lock
        self.root = project_beside(path)
        self.folders: dict[str, Table] = {}
        for package in list_of(lock, "package"):
            for kind in ("editable", "virtual", "directory"):
                if folder := table_of(package, "source").get(kind):
                    self.folders[os.path.normpath(folder)] = package
        self.projects = {folder: project_beside(self.folder / folder / PYPROJECT) for folder in self.folders}
        self.members = set(map(_name, list_of(lock, "manifest", "members")))
        if not self.members and "." in self.folders:
            self.members = {_name(self.folders["."].get("name"))}
        allowed = str(lock.get("requires-python", ""))
        self.environments = list(environments(allowed, list(Platform)))
        self.has_indexes = "revision" in lock

    def differences(self) -> Iterator[str]:
        if not self.root:
            return
        yield from self._members()
        yield from self._requires_python()
        manifest, settings = table_of(self.lock, "manifest"), table_of(self.root, "tool", "uv")
        for key in ("overrides", "constraints"):
            setting = f"{key.removesuffix('s')}-dependencies"
            lines = list_of(settings, setting)
            if all(isinstance(line, str) for line in lines):
                wanted = [_entry(Requirement(line), _UNKNOWN) for line in lines]
                yield from self._compared(PYPROJECT, setting, wanted, _locked(list_of(manifest, key)))
        if "project" not in self.root:
            locked = table_of(manifest, "dependency-groups")
            yield from self._groups(PYPROJECT, ".", self.root, locked)
        for folder, package in self.folders.items():
            project = self.projects[folder]
            file = os.path.normpath(Path(folder, PYPROJECT))
            if _name(table_of(project, "project").get("name")) == _name(package.get("name")):
                yield from self._project(file, folder, project, table_of(package, "metadata"))

    def _members(self) -> Iterator[str]:
        table = table_of(self.root, "tool", "uv", "workspace")
        patterns, excluded = list_of(table, "members"), list_of(table, "exclude")
        found = {_name(table_of(self.root, "project").get("name"))}
        for pattern in patterns:
            for folder in self.folder.glob(str(pattern)) if _is_inner(str(pattern)) else ():
                project = project_beside(folder / PYPROJECT)
                is_managed = table_of(project, "tool", "uv").get("managed") is not False
                if is_managed and not _may_match(folder.relative_to(self.folder), excluded):
                    found.add(_name(table_of(project, "project").get("name")))
        for name in sorted(found - self.members - {""}):
            yield f"{PYPROJECT}: {name} is a member of the workspace, and is not in the lock"
        for path, package in self.folders.items():
            # One that is not there may be a submodule that is not fetched.
            name = _name(package.get("name"))
            if name in self.members - found and not _may_match(Path(path), patterns):
                yield f"{PYPROJECT}: {name} is no member of the workspace, and the lock has it as one"

    def _requires_python(self) -> Iterator[str]:
        stated: list[str] = []
        for folder, package in self.folders.items():
            if _name(package.get("name")) in self.members:
                project = table_of(self.projects[folder], "project")
                if "requires-python" in list_of(project, "dynamic") or not self.projects[folder]:
                    return
                stated += filter(None, [project.get("requires-python")])
        if any(table_of(each, "tool", "uv", "dependency-groups") for each in self.projects.values()) or not stated:
            return
        wanted, locked = (
            SpecifierSet(",".join(filter(None, stated))),
            SpecifierSet(str(self.lock.get("requires-python"))),
        )
        if any(wanted.contains(python) != locked.contains(python) for python in _PYTHONS):
            yield f"{PYPROJECT}: requires-python is {wanted}; in the lock it is {locked}"

    def _project(self, file: str, folder: str, project: Table, metadata: Table) -> Iterator[str]:
        own = table_of(project, "project")
        dynamic = list_of(own, "dynamic")
        locked: Entries = {}
        for entry in _locked(list_of(metadata, "requires-dist")):
            of_extra = _EXTRA.search(entry.marker)
            locked.setdefault(f"extra {of_extra[1]}" if of_extra else "dependencies", []).append(entry)
        wanted: Entries = {"dependencies": self._wanted(list_of(own, "dependencies"), folder, "", "")}
        for extra in table_of(own, "optional-dependencies"):
            lines = list_of(own, "optional-dependencies", extra)
            wanted[f"extra {normalised(extra)}"] = self._wanted(lines, folder, normalised(extra), "")
        name = _name(own.get("name"))
        if not any(entry.name == name for entries in locked.values() for entry in entries):
            # Of a project that is built to know its metadata, uv includes its own extras in each other.
            wanted = {scope: list(_flat(scope, wanted, name, {scope})) for scope in wanted}
        is_static = {"dependencies": "dependencies" not in dynamic, "extra": "optional-dependencies" not in dynamic}
        if table_of(project, "tool", "poetry") and "dependencies" not in own:
            return
        for scope in dict.fromkeys([*wanted, *locked]):
            if is_static[scope.partition(" ")[0]]:
                yield from self._compared(file, scope, wanted.get(scope, []), locked.get(scope, []))
        if is_static["extra"] and "provides-extras" in metadata:
            extras = {f"extra {normalised(str(name))}" for name in list_of(metadata, "provides-extras")}
            for scope in sorted(extras ^ (wanted.keys() - {"dependencies"})):
                yield f"{file}: {scope} is {'not in the lock' if scope in wanted else 'only in the lock'}"
        yield from self._groups(file, folder, project, table_of(metadata, "requires-dev"))

    def _groups(self, file: str, folder: str, project: Table, metadata: Table) -> Iterator[str]:
        tables = table_of(project, "dependency-groups")
        resolver = DependencyGroupResolver(tables)
        lines: dict[str, list[Any]] = {normalised(name): list(resolver.resolve(name)) for name in tables}
        if older := list_of(project, "tool", "uv", "dev-dependencies"):
            lines["dev"] = lines.get("dev", []) + older
        locked = {normalised(name): _locked(list_of(metadata, name)) for name in metadata}
        for name in dict.fromkeys([*lines, *locked]):
            wanted = self._wanted(lines.get(name, []), folder, "", name)
            yield from self._compared(file, f"group {name}", wanted, locked.get(name, []))
            if name not in lines and not locked[name]:
                yield f"{file}: group {name} is only in the lock"

    def _compared(self, file: str, scope: str, wanted: list[_Entry], locked: list[_Entry]) -> Iterator[str]:
        """The differences of what is required in one place."""
        for name in sorted({each.name for each in wanted + locked}):
            own = [each for each in wanted if each.name == name]
            others = [each for each in locked if each.name == name]
            if not others:
                yield f"{file}: {scope} has {own[0].shown}, which is not in the lock"
            elif not own:
                yield f"{file}: {scope} does not have {others[0].shown}, which is in the lock"
            elif self._differ(own, others, scope):
                ours, theirs = (" and ".join(sorted({each.shown for each in side})) for side in (own, others))
                if ours == theirs:
                    ours, theirs = (" and ".join(each.marker or "no marker" for each in side) for side in (own, others))
                yield f"{file}: {scope} has {name} as {ours}; in the lock it is {theirs}"

    def _differ(self, own: list[_Entry], others: list[_Entry], scope: str) -> bool:
        extra = scope.removeprefix("extra ") if scope.startswith("extra ") else ""
        for values in self.environments:
            here = {**values, "extra": extra}
            if _at(own, others, here, has_indexes=self.has_indexes) != _at(
                others, own, here, has_indexes=self.has_indexes
            ):
                return True
        return False

    def _wanted(self, lines: Iterable[Any], folder: str, extra: str, group: str) -> list[_Entry]:
        """Requirements with their sources. extra, group: whose they are; empty: none."""
        project = self.projects.get(folder, self.root)
        is_member = folder == "." or _name(table_of(project, "project").get("name")) in self.members
        found = []
        for line in lines:
            required = Requirement(line) if isinstance(line, str) else line
            if required.url:
                found.append(_entry(required, _address(required.url)))
            elif not is_member:
                found.append(_entry(required, _UNKNOWN))
            else:
                found += self._with_sources(required, folder, project, {"extra": extra, "group": group})
        return found

    def _with_sources(
        self, required: Requirement, folder: str, project: Table, scope: Mapping[str, str]
    ) -> Iterator[_Entry]:
        """A requirement once for each of its sources, and once for the environments that none is for."""
        base, sources = folder, _sources(required.name, project)
        if not sources:
            base, sources = ".", _sources(required.name, self.root)
        markers = []
        for source in sources:
            if any(normalised(str(source.get(key, name))) != name for key, name in scope.items()):
                continue
            markers.append(str(source.get("marker", "")))
            yield _entry(required, self._source(required.name, source, base, project), markers[-1])
        if "" not in markers:
            yield _entry(required, "", unless=tuple(markers))

    def _source(self, name: str, source: Table, base: str, project: Table) -> str:
        """A source of a name as `_locked` has it. base: the folder that paths start from."""
        if git := source.get("git"):
            return _git(str(git), _reference(source), str(source.get("subdirectory", "")))
        if url := source.get("url"):
            return without_credentials(str(url))
        if folder := source.get("path"):
            return os.path.normpath(Path(base, str(folder)))
        for each in (*list_of(project, "tool", "uv", "index"), *list_of(self.root, "tool", "uv", "index")):
            if "index" in source and each.get("name") == source["index"]:
                return _index(str(each.get("url")))
        for member, package in self.folders.items():
            if source.get("workspace") is True and _name(package.get("name")) == normalised(name):
                return member
        # An index that a file outside of the project names; a member that is not in the lock.
        return _UNKNOWN


def _locked(tables: Iterable[Any]) -> list[_Entry]:
    """Requirements as the lock has them."""
    found = []
    for table in tables:
        source = ""
        folders = [str(table[key]) for key in ("editable", "directory", "virtual", "path") if key in table]
        if git := table.get("git"):
            url, _, query = str(git).partition("?")
            values = {key: value[0] for key, value in parse_qs(query).items()}
            source = _git(url, _reference(values), values.get("subdirectory", ""))
        elif url := table.get("url"):
            source = without_credentials(urldefrag(url)[0])
        elif folders:
            source = os.path.normpath(folders[0])
        elif index := table.get("index"):
            source = _index(index)
        specifier = SpecifierSet(str(table.get("specifier", "")))
        extras = frozenset(map(_name, list_of(table, "extras")))
        found.append(_Entry(_name(table.get("name")), extras, specifier, source, str(table.get("marker", ""))))
    return found


def _flat(scope: str, entries: Entries, name: str, seen: Set[str]) -> Iterator[_Entry]:
    """What is required in one place, with the project's own extras that it names replaced by what they require."""
    for entry in entries.get(scope, []):
        if entry.name != name:
            yield entry
            continue
        for inner in {f"extra {extra}" for extra in entry.extras} - seen:
            for each in _flat(inner, entries, name, {*seen, inner}):
                markers = [f"({marker})" for marker in (entry.marker, each.marker) if marker]
                yield replace(each, marker=" and ".join(markers))


def _at(entries: list[_Entry], others: list[_Entry], values: Mapping[str, str], *, has_indexes: bool) -> set[object]:
    """What holds in an environment of what is required, as far as it can be compared with others of its name."""
    both = entries + others
    is_direct = any(each.is_direct for each in both)
    is_known = all(each.source != _UNKNOWN for each in both) and (is_direct or has_indexes)
    found: set[object] = set()
    for each in entries:
        if _holds(each.marker, values) and not any(_holds(marker, values) for marker in each.unless):
            specifier = "" if is_direct else each.specifier
            found.add((each.extras, specifier, each.source if is_known else ""))
    return found


def _holds(marker: str, values: Mapping[str, str]) -> bool:
    return not marker or _parsed(marker).evaluate(values)


_parsed = lru_cache(Marker)


def _is_inner(pattern: str) -> bool:
    return pattern != "" and not Path(pattern).is_absolute() and ".." not in Path(pattern).parts


def _may_match(folder: Path, patterns: list[Any]) -> bool:
    """Whether a pattern of members matches a folder, or might."""
    for pattern in patterns:
        parts = Path(str(pattern)).parts
        if "**" in parts or (len(parts) == len(folder.parts) and all(map(fnmatchcase, folder.parts, parts))):
            return True
    return False


def _name(name: object) -> str:
    return normalised(str(name or ""))


def _entry(required: Requirement, source: str, marker: str = "", unless: tuple[str, ...] = ()) -> _Entry:
    markers = [f"({each})" for each in (str(required.marker or ""), marker) if each]
    extras = frozenset(map(normalised, required.extras))
    return _Entry(normalised(required.name), extras, required.specifier, source, " and ".join(markers), unless)


def _sources(name: str, project: Table) -> list[Table]:
    """What [tool.uv.sources] has for a name."""
    for each, value in table_of(project, "tool", "uv", "sources").items():
        if normalised(each) == normalised(name):
            return value if isinstance(value, list) else [value]
    return []


def _index(url: str) -> str:
    return f"index {without_credentials(url).rstrip('/')}"


def _reference(table: Table) -> str:
    """The branch, tag or commit of a source; empty if it names none."""
    return next((str(table[key]) for key in ("rev", "tag", "branch") if key in table), "")


def _git(url: str, reference: str, subdirectory: str) -> str:
    if "://" not in url:
        return _UNKNOWN
    return f"git {without_credentials(url).rstrip('/').removesuffix('.git')}@{reference}#{subdirectory}"


def _address(url: str) -> str:
    """The source of `name @ url`."""
    bare, fragment = urldefrag(url)
    if bare.startswith("git+") or bare.endswith(".git"):
        scheme, _, rest = bare.removeprefix("git+").partition("://")
        host, _, path = rest.partition("/")
        path, _, reference = path.partition("@")
        return _git(f"{scheme}://{host}/{path}", reference, parse_qs(fragment).get("subdirectory", [""])[0])
    if bare.startswith(("http://", "https://")):
        return without_credentials(bare)
    return _UNKNOWN
