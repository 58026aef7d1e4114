"""Dependency groups (PEP 735) that a spec names: their lines count like lines of its [pip] dependencies.

Of parsed documents, which need not be valid.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from envspec import documents
from envspec.names import normalised
from envspec.origins import INDEX_FAMILY, PYTORCH_PAGES
from envspec.spec.errors import BadValue, KeyPath, nearest, quoted

#: The only file that has groups.
PYPROJECT: Final = "pyproject.toml"
_GROUPS: Final = "dependency-groups"
_INCLUDE: Final = "include-group"
#: Groups within each other: far beyond any real project.
_DEEPEST: Final = 50
_NAME: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(@?)")


class Place(NamedTuple):
    """Where a value is written. file: its path from the spec's folder on; empty: the spec."""

    file: str
    path: KeyPath


class Grouped(NamedTuple):
    """document: the spec with the lines of its groups behind its own. lines: where these are written, by their paths
    in the document. problems: of what is no such line.
    """

    document: dict[str, Any]
    lines: dict[KeyPath, Place]
    problems: list[tuple[Place, BadValue]]


def read_groups(document: Mapping[str, Any], folder: Path) -> Grouped:
    """Read the groups of a spec and of its variants. folder: the spec's."""
    reader = _Reader(folder)
    result, lines = dict(document), dict[KeyPath, Place]()
    shared = _table(document, "pip")

    def extended(pip: Any, path: KeyPath) -> Any:
        own = pip.get("dependencies", []) if isinstance(pip, Mapping) else None
        groups = pip.get("groups") if isinstance(pip, Mapping) else None
        if not (isinstance(own, list) and isinstance(groups, list)):
            return pip
        found = list(reader.lines_of(groups, (*path, "groups")))
        dependencies = [*own, *(text for text, _ in found)]
        reader.check_sources(found, [shared, {**pip, "dependencies": dependencies}])
        lines.update({(*path, "dependencies", at): place for at, (_, place) in enumerate(found, len(own))})
        return {**pip, "dependencies": dependencies}

    if "pip" in result:
        shared = result["pip"] = extended(document["pip"], ("pip",))
        shared = shared if isinstance(shared, Mapping) else {}
    if isinstance(document.get("variants"), Mapping):
        result["variants"] = {
            name: {**own, "pip": extended(own["pip"], ("variants", name, "pip"))}
            if isinstance(own, Mapping) and "pip" in own
            else own
            for name, own in document["variants"].items()
        }
    return Grouped(result, lines, reader.problems)


def _list(table: Mapping[str, Any], key: str) -> list[Any]:
    """The list of a table; empty if it is none, which the spec's form refuses."""
    return found if isinstance(found := table.get(key), list) else []


def _table(value: Any, *path: str) -> Mapping[str, Any]:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


class _Reader:
    def __init__(self, folder: Path) -> None:
        self.problems: list[tuple[Place, BadValue]] = []
        self._folder = folder
        self._files: dict[str, Mapping[str, Any]] = {}

    def lines_of(self, groups: list[Any], path: KeyPath) -> Iterator[tuple[str, Place]]:
        """The lines of `[pip] groups`, each group's once."""
        seen = set[tuple[str, str]]()
        for at, text in enumerate(groups):
            if isinstance(text, str):
                file, _, name = text.rpartition(":")
                place = Place("", (*path, at))
                file = posixpath.normpath(file) if file else PYPROJECT
                if self._has(file, name, text, place):
                    yield from self._group(file, name, place, (), seen)

    def _has(self, file: str, name: str, text: str, place: Place) -> bool:
        """Whether the file is one that can be read."""
        if file not in self._files:
            if Path(file).name != PYPROJECT or not name:
                hint = f'write "train", or "../{PYPROJECT}:train" for one of another folder'
                return self._refuse(place, f"{quoted(text)} is not the name of a dependency group", hint)
            try:
                self._files[file] = documents.read_spec(self._folder / file)
            except FileNotFoundError:
                above = f"../{PYPROJECT}"
                is_above = file == PYPROJECT and (self._folder / above).is_file()
                hint = f"write {quoted(f'{above}:{name}')}" if is_above else "correct its path"
                return self._refuse(place, f"there is no {file} in the spec's folder", hint)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                return self._refuse(place, f"{file} can't be read: {why}", "correct it")
        return True

    def _group(
        self, file: str, name: str, place: Place, within: tuple[str, ...], seen: set[tuple[str, str]]
    ) -> Iterator[tuple[str, Place]]:
        """The lines of a group. place: where it is named. within: the groups that include it. seen: those read."""
        groups = _table(self._files[file], _GROUPS)
        found = [each for each in groups if normalised(each) == normalised(name)]
        if len(found) != 1:
            self._refuse(place, *(self._unknown(file, name) if not found else _two(file, found)))
            return
        if found[0] in within or len(within) == _DEEPEST:
            chain = " -> ".join((*within[within.index(found[0]) if found[0] in within else 0 :], found[0]))
            self._refuse(place, f"groups include each other: {chain}", f"remove this {_INCLUDE}")
            return
        if (file, found[0]) in seen:
            return
        seen.add((file, found[0]))
        items = groups[found[0]]
        if not isinstance(items, list):
            self._refuse(Place(file, (_GROUPS, found[0])), "not a list", f'write {found[0]} = ["numpy>=2"]')
            return
        for at, item in enumerate(items):
            inner = Place(file, (_GROUPS, found[0], at))
            included = item.get(_INCLUDE) if isinstance(item, Mapping) and len(item) == 1 else None
            if isinstance(item, str):
                yield item, inner
            elif isinstance(included, str):
                yield from self._group(file, included, inner, (*within, found[0]), seen)
            else:
                hint = f'write "numpy>=2" or {{ {_INCLUDE} = "test" }}'
                self._refuse(inner, f"neither a requirement nor {_INCLUDE}", hint)

    def _unknown(self, file: str, name: str) -> tuple[str, str]:
        data = self._files[file]
        names, project = list(_table(data, _GROUPS)), _table(data, "project")
        extras = [each for each in _table(project, "optional-dependencies") if normalised(each) == normalised(name)]
        if extras:
            address = posixpath.dirname(file) or "."
            wanted = quoted(f"{project.get('name', 'name')}[{extras[0]}] @ {address}")
            return f"{quoted(name)} is an extra in {file}, not a group", f"write {wanted} in [pip] dependencies"
        if not names:
            return f"{file} has no [{_GROUPS}]", "copy the lines that the spec needs into [pip] dependencies"
        close = nearest(name, names)
        listed = f"its groups: {', '.join(names)}"
        return (
            f"{file} has no dependency group {quoted(name)}",
            f"did you mean {quoted(close)}? {listed[0].upper()}{listed[1:]}" if close else listed,
        )

    def check_sources(self, lines: list[tuple[str, Place]], tables: list[Mapping[str, Any]]) -> None:
        """Refuse names that uv does not take from an index, or from another one, unless the spec says where they come
        from: the project itself, and those in [tool.uv.sources].

        tables: [pip], with the lines.
        """
        own = [text for pip in tables for text in _list(pip, "dependencies") if isinstance(text, str)]
        placed = {normalised(found[1]) for text in own if (found := _NAME.match(text)) and found[2]}
        indexes = [each for pip in tables for each in _list(pip, "index") if isinstance(each, Mapping)]
        patterns = [normalised(str(each)) for index in indexes for each in _list(index, "packages")]
        for text, place in lines:
            found, data = _NAME.match(text), self._files[place.file]
            name = normalised(found[1]) if found else ""
            if name in placed or any(fnmatchcase(name, each) for each in patterns):
                continue
            folder = posixpath.dirname(place.file) or "."
            if name == normalised(str(_table(data, "project").get("name", ""))):
                hint = f"add {quoted(f'{name} @ {folder}')} to [pip] dependencies"
                self._refuse(place, f"{quoted(text)} is the project of {place.file} itself", hint)
                continue
            uv = _table(data, "tool", "uv")
            for key, listed in _table(uv, "sources").items():
                for source in listed if isinstance(listed, list) else [listed]:
                    if normalised(key) == name and _applies(source, place) and not _is_pytorch(source, uv, name):
                        why = f"uv takes {name} from elsewhere ([tool.uv.sources]), and a spec has to say so itself"
                        self._refuse(place, why, _instead(name, source, uv, folder))

    def _refuse(self, place: Place, found: str, hint: str) -> bool:
        self.problems.append((place, BadValue(found, hint)))
        return False


def _two(file: str, found: list[str]) -> tuple[str, str]:
    return f"{file} has two groups of one name: {', '.join(found)}", "rename one of them"


def _applies(source: object, place: Place) -> bool:
    group = source.get("group") if isinstance(source, Mapping) else None
    return isinstance(source, Mapping) and (group is None or normalised(str(group)) == normalised(str(place.path[1])))


def _url_of(source: Mapping[str, Any], uv: Mapping[str, Any]) -> str:
    """The URL of the index that a source names; empty if it names none."""
    indexes = uv.get("index", ())
    named = (each for each in indexes if isinstance(each, Mapping) and each.get("name") == source.get("index"))
    return str(next(named, {}).get("url", "")) if "index" in source else ""


def _is_pytorch(source: Mapping[str, Any], uv: Mapping[str, Any], name: str) -> bool:
    """Whether it is PyTorch's index, which a spec takes the torch family from as [cuda] requires."""
    return name in INDEX_FAMILY and bool(PYTORCH_PAGES.match(_url_of(source, uv)))


def _instead(name: str, source: Mapping[str, Any], uv: Mapping[str, Any], folder: str) -> str:
    """What to write into a spec. folder: of the source's file, from the spec's on."""
    if "index" in source:
        url = _url_of(source, uv) or "https://..."
        named = quoted(str(source["index"]))
        return f'add [[pip.index]] with name = {named}, url = {quoted(url, 500)} and packages = ["{name}"]'
    address = source.get("url", "./FOLDER")
    if "git" in source:
        ref = next((f"@{source[key]}" for key in ("rev", "tag", "branch") if key in source), "")
        inner = f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
        address = f"git+{source['git']}{ref}{inner}"
    elif "path" in source:
        address = posixpath.normpath(posixpath.join(folder, str(source["path"])))
        address = address if address.startswith((".", "/")) else f"./{address}"
    return f"add {quoted(f'{name} @ {address}', 500)} to [pip] dependencies"
