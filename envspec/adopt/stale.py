"""Whether a lock of another tool still belongs to its project: without an interpreter and without a network.

Of uv.lock these are compared with the pyproject.toml files of the workspace, its members and local packages:
dependencies, extras, groups, sources, override-dependencies, constraint-dependencies, requires-python, and the members.
Not compared:
- what is dynamic, or whose pyproject.toml is missing;
- extras without lines, if the lock has no extra at all; groups with a `requires-python` of their own;
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
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envspec.adopt.selected import PYPROJECT, environments, project_beside, read_document, tables_of
from envspec.credentials import without_credentials
from envspec.documents import list_of, table_of
from envspec.errors import StaleLock, UsageError
from envspec.models import Platform
from envspec.names import normalised
from envspec.structs import replace

Table: TypeAlias = Mapping[str, Any]
#: Pythons that `requires-python` is compared on.
_PYTHONS: Final = ("2.7", *(f"3.{minor}.{patch}" for minor in range(30) for patch in range(30)), "4.0")
_EXTRA: Final = re.compile(r"""extra == ['"]([^'"]+)['"]""")
#: How other tools write their locks again.
_LOCKING: Final = {"uv.lock": "`uv lock`", "poetry.lock": "`poetry lock`"}
#: Differences in a message.
_MOST: Final = 8
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

    def holds(self, values: Mapping[str, str]) -> bool:
        """Whether it is required in an environment."""
        if self.marker and not _parsed(self.marker).evaluate(values):
            return False
        return not any(_parsed(marker).evaluate(values) for marker in self.unless)


#: Where something is required, such as `extra gpu` -> what is.
Scopes: TypeAlias = dict[str, list[_Entry]]


def check_is_current(path: Path, instead: str = "") -> None:
    """Refuse a lock that is older than changes of its project, as far as that can be known without resolving.

    instead: the end of the hint, another way out.

    Raises:
        StaleLock: names the first changes.
    """
    found = differences(path)
    if not found:
        return
    shown = "".join(f"\n  {text}" for text in found[:_MOST])
    more = f"\n  and {len(found) - _MOST} more" if len(found) > _MOST else ""
    raise StaleLock(
        f"{path} is older than its project:{shown}{more}",
        hint=f"lock it again with the tool that wrote it, {_LOCKING.get(path.name, 'as its first lines say')}{instead}",
    )


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
    except (ExceptionGroup, KeyError, ValueError) as error:
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
        for package in tables_of(lock, "package"):
            for kind in ("editable", "virtual", "directory"):
                if folder := table_of(package, "source").get(kind):
                    self.folders[os.path.normpath(str(folder))] = package
        self.projects = {folder: project_beside(self.folder / folder / PYPROJECT) for folder in self.folders}
        self.members = set(map(_name, list_of(lock, "manifest", "members")))
        if not self.members and "." in self.folders:
            self.members = {_name_of(self.folders["."])}
        self.environments = list(environments(str(lock.get("requires-python", "")), list(Platform)))

    def differences(self) -> Iterator[str]:
        if not self.root:
            return
        yield from self._members()
        yield from self._requires_python()
        manifest = table_of(self.lock, "manifest")
        for key, setting in (("overrides", "override-dependencies"), ("constraints", "constraint-dependencies")):
            lines = list_of(self.root, "tool", "uv", setting)
            wanted = [_entry(Requirement(line), _UNKNOWN) for line in lines if isinstance(line, str)]
            if len(wanted) == len(lines):
                yield from self._compared(PYPROJECT, {setting: wanted}, {setting: _locked(tables_of(manifest, key))})
        if "project" not in self.root:
            locked = table_of(manifest, "dependency-groups")
            yield from self._compared(PYPROJECT, *self._groups(".", self.root, locked))
        for folder, package in self.folders.items():
            project = self.projects[folder]
            if _name_of(table_of(project, "project")) == _name_of(package):
                file, metadata = os.path.normpath(Path(folder, PYPROJECT)), table_of(package, "metadata")
                yield from self._compared(file, *self._required(folder, project, metadata))
                yield from self._compared(file, *self._groups(folder, project, table_of(metadata, "requires-dev")))

    def _members(self) -> Iterator[str]:
        table = table_of(self.root, "tool", "uv", "workspace")
        patterns, excluded = list_of(table, "members"), list_of(table, "exclude")
        found = {_name_of(table_of(self.root, "project"))}
        for pattern in filter(_is_inner, map(str, patterns)):
            for folder in self.folder.glob(pattern):
                project = project_beside(folder / PYPROJECT)
                is_managed = table_of(project, "tool", "uv").get("managed") is not False
                if is_managed and not _may_match(folder.relative_to(self.folder), excluded):
                    found.add(_name_of(table_of(project, "project")))
        for name in sorted(found - self.members - {""}):
            yield f"{PYPROJECT}: {name} is a member of the workspace, and is not in the lock"
        for path, package in self.folders.items():
            # One that is not there may be a submodule that is not fetched.
            if _name_of(package) in self.members - found and not _may_match(Path(path), patterns):
                yield f"{PYPROJECT}: {_name_of(package)} is no member of the workspace, and the lock has it as one"

    def _requires_python(self) -> Iterator[str]:
        projects = [self.projects[path] for path, package in self.folders.items() if _name_of(package) in self.members]
        tables = [table_of(project, "project") for project in projects]
        stated = [str(table["requires-python"]) for table in tables if "requires-python" in table]
        is_dynamic = any("requires-python" in list_of(table, "dynamic") for table in tables)
        has_more = any(table_of(project, "tool", "uv", "dependency-groups") for project in projects)
        if is_dynamic or has_more or not (all(tables) and stated):
            return
        wanted, locked = SpecifierSet(",".join(stated)), SpecifierSet(str(self.lock.get("requires-python", "")))
        if any(wanted.contains(python) != locked.contains(python) for python in _PYTHONS):
            yield f"{PYPROJECT}: requires-python is {wanted}; in the lock it is {locked}"

    def _required(self, folder: str, project: Table, metadata: Table) -> tuple[Scopes, Scopes]:
        """The dependencies and extras of a project, and those in the lock, without what is not compared."""
        own = table_of(project, "project")
        entries = self._wanted(list_of(own, "dependencies"), folder, {})
        extras = table_of(own, "optional-dependencies")
        for name in extras:
            extra = normalised(name)
            entries += self._wanted(list_of(extras, name), folder, {"extra": extra}, f"extra == '{extra}'")
        wanted, locked = _by_extra(entries), _by_extra(_locked(tables_of(metadata, "requires-dist")))
        if "provides-extras" in metadata:
            for scopes, names in ((wanted, extras), (locked, list_of(metadata, "provides-extras"))):
                for name in names:
                    scopes.setdefault(f"extra {_name(name)}", [])
        name = _name_of(own)
        if not any(entry.name == name for several in locked.values() for entry in several):
            # Of a project that is built to know its metadata, uv includes its own extras in each other.
            wanted = {scope: list(_flat(scope, wanted, name, {scope})) for scope in wanted}
        is_of_poetry = "dependencies" not in own and bool(table_of(project, "tool", "poetry"))
        for scope in {*wanted, *locked}:
            key = "dependencies" if scope == "dependencies" else "optional-dependencies"
            if is_of_poetry or key in list_of(own, "dynamic"):
                wanted.pop(scope, None)
                locked.pop(scope, None)
        return wanted, locked

    def _groups(self, folder: str, project: Table, metadata: Table) -> tuple[Scopes, Scopes]:
        """The groups of a project, and those in the lock, without what is not compared."""
        tables = table_of(project, "dependency-groups")
        resolver = DependencyGroupResolver(tables)
        lines: dict[str, list[Any]] = {normalised(name): list(resolver.resolve(name)) for name in tables}
        if older := list_of(project, "tool", "uv", "dev-dependencies"):
            lines["dev"] = lines.get("dev", []) + older
        locked = {normalised(name): _locked(tables_of(metadata, name)) for name in metadata}
        for name in table_of(project, "tool", "uv", "dependency-groups"):
            lines.pop(normalised(name), None)
            locked.pop(normalised(name), None)
        wanted = {}
        for name, own in lines.items():
            if own or name in locked:
                wanted[f"group {name}"] = self._wanted(own, folder, {"group": name})
        return wanted, {f"group {name}": entries for name, entries in locked.items()}

    def _compared(self, file: str, wanted: Scopes, locked: Scopes) -> Iterator[str]:
        """The differences of what a file requires, and of what the lock has of it."""
        for scope in dict.fromkeys([*wanted, *locked]):
            ours, theirs = wanted.get(scope, []), locked.get(scope, [])
            if " " in scope and (scope in wanted) != (scope in locked):
                yield f"{file}: {scope} is {'not in the lock' if scope in wanted else 'only in the lock'}"
                continue
            for name in sorted({each.name for each in ours + theirs}):
                own = [each for each in ours if each.name == name]
                others = [each for each in theirs if each.name == name]
                if not others:
                    yield f"{file}: {scope} has {own[0].shown}, which is not in the lock"
                elif not own:
                    yield f"{file}: {scope} does not have {others[0].shown}, which is in the lock"
                elif self._differ(own, others, scope):
                    texts = [" and ".join(sorted({each.shown for each in side})) for side in (own, others)]
                    if texts[0] == texts[1]:
                        texts = [" and ".join(each.marker or "no marker" for each in side) for side in (own, others)]
                    yield f"{file}: {scope} has {name} as {texts[0]}; in the lock it is {texts[1]}"

    def _differ(self, own: list[_Entry], others: list[_Entry], scope: str) -> bool:
        """Whether entries of one name differ in an environment, as far as they can be compared."""
        is_direct = any(each.is_direct for each in own + others)
        is_known = all(each.source != _UNKNOWN for each in own + others) and (is_direct or "revision" in self.lock)

        def required(entries: list[_Entry], values: Mapping[str, str]) -> set[object]:
            held = [each for each in entries if each.holds(values)]
            return {(each.extras, is_direct or each.specifier, is_known and each.source) for each in held}

        for values in self.environments:
            here = {**values, "extra": scope.removeprefix("extra ")}
            if required(own, here) != required(others, here):
                return True
        return False

    def _wanted(self, lines: Iterable[Any], folder: str, of: Mapping[str, str], marker: str = "") -> list[_Entry]:
        """Requirements with their sources. of: whose they are, by the keys of sources. marker: of all of them."""
        project = self.projects.get(folder, self.root)
        is_member = folder == "." or _name_of(table_of(project, "project")) in self.members
        found = []
        for line in lines:
            required = line if isinstance(line, Requirement) else Requirement(str(line))
            if required.url or not is_member:
                found.append(_entry(required, _address(required.url or ""), marker))
                continue
            base, sources = folder, _sources(required.name, project)
            if not sources:
                base, sources = ".", _sources(required.name, self.root)
            markers = []
            for source in sources:
                if all(key not in source or _name(source[key]) == of.get(key) for key in ("extra", "group")):
                    markers.append(str(source.get("marker", "")))
                    address = self._source(required.name, source, base, project)
                    found.append(_entry(required, address, marker, markers[-1]))
            if "" not in markers:
                found.append(replace(_entry(required, "", marker), unless=tuple(markers)))
        return found

    def _source(self, name: str, source: Table, base: str, project: Table) -> str:
        """A source of a name as `_locked` has it. base: the folder that paths start from."""
        if "git" in source:
            return _git(str(source["git"]), source)
        if "url" in source:
            return without_credentials(str(source["url"]))
        if "path" in source:
            return os.path.normpath(Path(base, str(source["path"])))
        for each in (*tables_of(project, "tool", "uv", "index"), *tables_of(self.root, "tool", "uv", "index")):
            if "index" in source and each.get("name") == source["index"]:
                return _index(str(each.get("url")))
        for member, package in self.folders.items():
            if "workspace" in source and _name_of(package) == normalised(name):
                return member
        # An index that a file outside of the project names; a member that is not in the lock.
        return _UNKNOWN


def _locked(tables: Iterable[Any]) -> list[_Entry]:
    """Requirements as the lock has them."""
    found = []
    for table in tables:
        source = ""
        folders = [str(table[key]) for key in ("editable", "directory", "virtual", "path") if key in table]
        if "git" in table:
            url, _, query = str(table["git"]).partition("?")
            source = _git(url, {key: value[0] for key, value in parse_qs(query).items()})
        elif "url" in table:
            source = without_credentials(urldefrag(str(table["url"]))[0])
        elif folders:
            source = os.path.normpath(folders[0])
        elif "index" in table:
            source = _index(str(table["index"]))
        specifier = SpecifierSet(str(table.get("specifier", "")))
        extras = frozenset(map(_name, list_of(table, "extras")))
        found.append(_Entry(_name_of(table), extras, specifier, source, str(table.get("marker", ""))))
    return found


def _entry(required: Requirement, source: str, *markers: str) -> _Entry:
    """markers: more of them."""
    marker = " and ".join(f"({each})" for each in (str(required.marker or ""), *markers) if each)
    return _Entry(_name(required.name), frozenset(map(_name, required.extras)), required.specifier, source, marker)


def _by_extra(entries: Iterable[_Entry]) -> Scopes:
    scopes: Scopes = {}
    for entry in entries:
        of_extra = _EXTRA.search(entry.marker)
        scopes.setdefault(f"extra {_name(of_extra[1])}" if of_extra else "dependencies", []).append(entry)
    return scopes


def _flat(scope: str, scopes: Scopes, name: str, seen: Set[str]) -> Iterator[_Entry]:
    """What is required in one place, with the project's own extras that it names replaced by what they require."""
    for entry in scopes.get(scope, []):
        if entry.name != name:
            yield entry
            continue
        for inner in {f"extra {extra}" for extra in entry.extras} - seen:
            for each in _flat(inner, scopes, name, {*seen, inner}):
                marker = _EXTRA.sub(f"extra == '{scope.removeprefix('extra ')}'", each.marker)
                yield replace(each, marker=f"({entry.marker}) and ({marker})")


@lru_cache(maxsize=1 << 12)
def _parsed(marker: str) -> Marker:
    return Marker(marker)


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


def _name_of(table: Table) -> str:
    return _name(table.get("name"))


def _sources(name: str, project: Table) -> list[Table]:
    """What [tool.uv.sources] has for a name."""
    for each, value in table_of(project, "tool", "uv", "sources").items():
        if normalised(each) == normalised(name):
            return tables_of({name: value if isinstance(value, list) else [value]}, name)
    return []


def _index(url: str) -> str:
    return f"index {without_credentials(url).rstrip('/')}"


def _git(url: str, words: Table) -> str:
    """words: the branch, tag or commit, and the subdirectory, as sources have them."""
    if "://" not in url:
        return _UNKNOWN
    reference = next((words[key] for key in ("rev", "tag", "branch") if words.get(key)), "")
    public = without_credentials(url).rstrip("/").removesuffix(".git")
    return f"git {public}@{reference}#{words.get('subdirectory', '')}"


def _address(url: str) -> str:
    """The source of `name @ url`."""
    bare, fragment = urldefrag(url)
    if bare.startswith("git+") or bare.endswith(".git"):
        scheme, _, rest = bare.removeprefix("git+").partition("://")
        host, _, path = rest.partition("/")
        path, _, reference = path.partition("@")
        words = {"rev": reference, "subdirectory": parse_qs(fragment).get("subdirectory", [""])[0]}
        return _git(f"{scheme}://{host}/{path}", words)
    return without_credentials(bare) if bare.startswith(("http://", "https://")) else _UNKNOWN
