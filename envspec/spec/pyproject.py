"""What a spec takes from pyproject.toml: its table [tool.envspec], and the lines of `dependencies_from`.

These are of the project, of its dependency groups (PEP 735) and of its extras. They count like [pip] dependencies.

Of parsed documents, which need not be valid.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from envspec import documents
from envspec.documents import list_of, table_of
from envspec.names import normalised
from envspec.origins import INDEX_FAMILY, PYTORCH_PAGES
from envspec.spec.document import DEPENDENCIES_FROM, PYPROJECT, root_of, spec_in
from envspec.spec.errors import BadValue, KeyPath, nearest, quoted
from envspec.spec.requirements import local_address

_GROUPS: Final = "dependency-groups"
_INCLUDE: Final = "include-group"
_PROJECT: Final = ("project", "dependencies")
_EXTRAS: Final = ("project", "optional-dependencies")
#: Groups within each other: far beyond any real project.
_DEEPEST: Final = 50
_NAME: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?\s*(@?)")
#: A value of `dependencies_from`: file, and which of its lines.
_FROM: Final = re.compile(rf"(?:(.*/)?{re.escape(PYPROJECT)}:)?(?:project|(group|extra):(.+))")
_FORMS: Final = f'write "project", "group:train" or "extra:gpu", of another folder "../{PYPROJECT}:group:train"'


class Place(NamedTuple):
    """Where a value is written. file: its path from the spec's folder on; empty: the spec."""

    file: str
    path: KeyPath


class WholeSpec(NamedTuple):
    """A spec with what it takes from other files.

    document: with the lines of `dependencies_from` behind the spec's own.
    lines: where these are written, and what else is not the spec's own, by their paths in the document.
    problems: of what is no such line.
    """

    document: dict[str, Any]
    lines: dict[KeyPath, Place]
    problems: list[tuple[Place, BadValue]]


def read_whole(data: Mapping[str, Any], path: Path) -> WholeSpec:
    """Read what a spec and its variants take from pyproject.toml. data: the spec's file, parsed. path: of that file."""
    reader = _Reader(path.parent)
    document = spec_in(data, path)
    if root := root_of(path):
        reader.files[PYPROJECT] = data
        _check_root(data, document, root, reader)
        own = table_of(data, *root, "env")
        for key, source in (("name", "name"), ("python", "requires-python")):
            if key not in own:
                reader.lines["env", key] = Place(PYPROJECT, ("project", source))
    result = reader.extend(document, (), table_of(document, "pip"))
    variants, shared = document.get("variants"), table_of(result, "pip")
    if isinstance(variants, Mapping):
        result["variants"] = {name: reader.extend(own, ("variants", name), shared) for name, own in variants.items()}
    return WholeSpec(result, reader.lines, reader.problems)


def _check_root(data: Mapping[str, Any], document: Mapping[str, Any], root: tuple[str, ...], reader: _Reader) -> None:
    """Refuse a pyproject.toml whose Python is not known, instead of a guess."""
    versions = table_of(data, "project").get("requires-python")
    env = document.get("env", {})
    if isinstance(env, Mapping) and "python" not in env and isinstance(versions, str):
        found = f"{quoted(versions)} is more than one series of Python, and the spec names none"
        reader.refuse(
            Place(PYPROJECT, ("project", "requires-python")),
            found,
            f'add [{".".join(root)}.env] with `python = "3.12"`',
        )


class _Reader:
    """Reads the files in a spec's folder, and in others that it names.

    files: those that were read, parsed, by their paths from the folder on.
    lines, problems: as in WholeSpec.
    """

    def __init__(self, folder: Path) -> None:
        self.problems: list[tuple[Place, BadValue]] = []
        self.lines: dict[KeyPath, Place] = {}
        self.files: dict[str, Mapping[str, Any]] = {}
        self._folder = folder

    def extend(self, table: Any, path: KeyPath, shared: Mapping[str, Any]) -> Any:
        """A spec or a variant with the lines of its `dependencies_from`; as it is if it can't have any.

        path: of the table in the spec.
        shared: [pip] of the spec itself, whose addresses and indexes count as well.
        """
        sources = table_of(table).get(DEPENDENCIES_FROM)
        pip = table_of(table).get("pip", {})
        if not isinstance(sources, list) or not isinstance(pip, Mapping):
            return table
        own = pip.get("dependencies", [])
        if not isinstance(own, list):
            return table
        found = list(self.lines_of(sources, (*path, DEPENDENCIES_FROM)))
        dependencies = (*path, "pip", "dependencies")
        for at, (_, place) in enumerate(found, len(own)):
            self.lines[dependencies + (at,)] = place  # noqa: RUF005
        pip = {**pip, "dependencies": own + [text for text, _ in found]}
        self.check_sources(found, [shared, pip])
        return {**table, "pip": pip}

    def lines_of(self, sources: list[Any], path: KeyPath) -> Iterator[tuple[str, Place]]:
        """The lines of `dependencies_from`, those of each group and of each extra once."""
        seen = set[tuple[str, str]]()
        for at, text in enumerate(sources):
            place = Place("", (*path, at))
            if not isinstance(text, str):
                continue
            if not (found := _FROM.fullmatch(text)):
                self.refuse(place, f"{quoted(text)} names no lines of a {PYPROJECT}", _FORMS)
                continue
            folder, kind, name = found.groups()
            file = _file_in(folder)
            if not self._has(file, text, place):
                continue
            if kind == "group":
                yield from self._group(file, name, place, (), seen)
            elif kind == "extra":
                yield from self._extra(file, name, place, seen)
            elif (file, "") not in seen:
                seen.add((file, ""))
                yield from self._listed(file, _PROJECT, place)

    def _has(self, file: str, text: str, place: Place) -> bool:
        """Whether the file is one that can be read."""
        if file not in self.files:
            try:
                content = documents.spec_bytes(self._folder / file)
                self.files[file] = documents.parse_toml(content.decode("utf-8"))
            except FileNotFoundError:
                hint = "correct its path"
                if file == PYPROJECT and (self._folder / f"../{file}").is_file():
                    hint = f"write {quoted(f'../{file}:{text}')}"
                return self.refuse(place, f"there is no {quoted(file)} in the spec's folder", hint)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                return self.refuse(place, f"{quoted(file)} can't be read: {why}", "correct it")
        return True

    def _listed(self, file: str, path: tuple[str, ...], place: Place) -> Iterator[tuple[str, Place]]:
        """The requirements of a list in [project]. place: where it is named."""
        if path[1] in list_of(table_of(self.files[file], "project"), "dynamic"):
            found = f"{file} has no {path[1]}: they are dynamic, and only a build of the project determines them"
            self.refuse(place, found, "copy the lines that the spec needs into [pip] dependencies")
            return
        items = table_of(self.files[file], *path[:-1]).get(path[-1], [])
        if not isinstance(items, list):
            self.refuse(Place(file, path), "not a list", f'write {path[-1]} = ["numpy>=2"]')
            return
        for at, item in enumerate(items):
            if isinstance(item, str):
                yield item, Place(file, (*path, at))
            else:
                self.refuse(Place(file, (*path, at)), "not a requirement", 'write "numpy>=2"')

    def _extra(self, file: str, name: str, place: Place, seen: set[tuple[str, str]]) -> Iterator[tuple[str, Place]]:
        """The lines of an extra, and of those that it includes by the project's own name: `my-project[gpu]`."""
        if (file, f"[{normalised(name)}]") in seen:
            return
        seen.add((file, f"[{normalised(name)}]"))
        project = table_of(self.files[file], "project")
        extras = table_of(project, "optional-dependencies")
        if found := _spellings(name, extras):
            name = found[0]
        elif _EXTRAS[1] not in list_of(project, "dynamic"):
            self.refuse(place, f"{file} has no extra {quoted(name)}", _nearest_of("extras", name, extras))
            return
        for text, inner in self._listed(file, (*_EXTRAS, name), place):
            own = _NAME.fullmatch(text)
            if own and own[2] and normalised(own[1]) == normalised(str(project.get("name", ""))):
                for each in own[2].split(","):
                    yield from self._extra(file, each.strip(), inner, seen)
            else:
                yield text, inner

    def _group(
        self, file: str, name: str, place: Place, within: tuple[str, ...], seen: set[tuple[str, str]]
    ) -> Iterator[tuple[str, Place]]:
        """The lines of a group.

        place: where it is named.
        within: the groups that include it.
        seen: the groups and extras that were read.
        """
        groups = table_of(self.files[file], _GROUPS)
        found = _spellings(name, groups)
        if not found:
            self.refuse(place, *self._unknown(file, name))
            return
        if len(found) > 1:
            self.refuse(place, f"{file} has two groups of one name: {', '.join(found)}", "rename one of them")
            return
        name = found[0]
        if name in within or len(within) == _DEEPEST:
            start = within.index(name) if name in within else 0
            chain = " -> ".join((*within[start:], name))
            self.refuse(place, f"groups include each other: {chain}", f"remove this {_INCLUDE}")
            return
        if (file, name) in seen:
            return
        seen.add((file, name))
        items = groups[name]
        if not isinstance(items, list):
            self.refuse(Place(file, (_GROUPS, name)), "not a list", f'write {name} = ["numpy>=2"]')
            return
        for at, item in enumerate(items):
            inner = Place(file, (_GROUPS, name, at))
            included = table_of(item).get(_INCLUDE)
            if isinstance(item, str):
                yield item, inner
            elif isinstance(included, str) and len(item) == 1:
                yield from self._group(file, included, inner, (*within, name), seen)
            else:
                hint = f'write "numpy>=2" or {{ {_INCLUDE} = "test" }}'
                self.refuse(inner, f"neither a requirement nor {_INCLUDE}", hint)

    def _unknown(self, file: str, name: str) -> tuple[str, str]:
        data = self.files[file]
        extras = _spellings(name, table_of(data, *_EXTRAS))
        if not extras:
            hint = _nearest_of("groups", name, table_of(data, _GROUPS))
            return f"{file} has no dependency group {quoted(name)}", hint
        wanted = f"extra:{extras[0]}"
        if file != PYPROJECT:
            wanted = f"{file}:{wanted}"
        return f"{quoted(name)} is an extra in {file}, not a group", f"write {quoted(wanted)}"

    def check_sources(self, lines: list[tuple[str, Place]], tables: list[Mapping[str, Any]]) -> None:
        """Refuse names that uv does not take from an index, or from another one, unless the spec says where they come
        from: the project itself, and those in [tool.uv.sources].

        tables: [pip], with the lines.
        """
        placed = _names_with_address(tables)
        indexes = [index for pip in tables for index in list_of(pip, "index")]
        patterns = [normalised(str(each)) for index in indexes for each in list_of(index, "packages")]
        for text, place in lines:
            found, data = _NAME.match(text), self.files[place.file]
            name = normalised(found[1]) if found else ""
            if name in placed or any(fnmatchcase(name, pattern) for pattern in patterns):
                continue
            folder = posixpath.dirname(place.file) or "."
            if name == normalised(str(table_of(data, "project").get("name", ""))):
                hint = f"add {quoted(f'{name} @ {folder}')} to [pip] dependencies"
                self.refuse(place, f"{quoted(text)} is the project of {place.file} itself", hint)
                continue
            uv = table_of(data, "tool", "uv")
            for source in _sources_of(name, uv):
                # A spec takes the torch family from PyTorch's index as [cuda] requires.
                is_pytorch = name in INDEX_FAMILY and PYTORCH_PAGES.match(_url_of(source, uv))
                if _applies(source, place) and not is_pytorch:
                    why = f"uv gets {name} from elsewhere ([tool.uv.sources]), and a spec has to list that itself"
                    self.refuse(place, why, _instead(name, source, uv, folder))

    def refuse(self, place: Place, found: str, hint: str) -> bool:
        self.problems.append((place, BadValue(found, hint)))
        return False


def source_file(source: object) -> str | None:
    """The file that a value of `dependencies_from` names, from the spec's folder on; None if it names none."""
    found = _FROM.fullmatch(str(source))
    return _file_in(found[1]) if found else None


def _file_in(folder: str | None) -> str:
    return posixpath.normpath(f"{folder or ''}{PYPROJECT}")


def _nearest_of(what: str, name: str, names: Iterable[str]) -> str:
    listed = ", ".join(names)
    if not listed:
        return "copy the lines that the spec needs into [pip] dependencies"
    if close := nearest(name, names):
        return f"did you mean {quoted(close)}? Its {what}: {listed}"
    return f"its {what}: {listed}"


def _spellings(name: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that are the same when normalised."""
    return [each for each in names if normalised(each) == normalised(name)]


def _names_with_address(tables: list[Mapping[str, Any]]) -> set[str]:
    """The normalised names that [pip] requires by an address."""
    names = set[str]()
    for pip in tables:
        for text in list_of(pip, "dependencies"):
            if isinstance(text, str) and (found := _NAME.match(text)) and found[3]:
                names.add(normalised(found[1]))
    return names


def _sources_of(name: str, uv: Mapping[str, Any]) -> Iterator[Any]:
    """What [tool.uv.sources] has for a normalised name: one source, or a list of them."""
    for key, listed in table_of(uv, "sources").items():
        if normalised(key) == name:
            yield from listed if isinstance(listed, list) else [listed]


def _applies(source: object, place: Place) -> bool:
    """Whether a source counts for a line: one may be for an extra or for a group only."""
    if not isinstance(source, Mapping):
        return False
    for key, table, at in (("extra", _EXTRAS[0], 2), ("group", _GROUPS, 1)):
        if key not in source:
            continue
        if place.path[0] != table or normalised(str(source[key])) != normalised(str(place.path[at])):
            return False
    return True


def _url_of(source: object, uv: Mapping[str, Any]) -> str:
    """The URL of the index that a source names; empty if it names none."""
    name = table_of(source).get("index")
    for index in list_of(uv, "index"):
        if name is not None and table_of(index).get("name") == name:
            return str(index.get("url", ""))
    return ""


def git_address(source: Mapping[str, Any]) -> str:
    """The repository, its commit and its folder in a table of uv's or Poetry's, as pip writes them."""
    ref = next((f"@{source[key]}" for key in ("rev", "tag", "branch") if source.get(key)), "")
    inner = f"#subdirectory={quote(str(source['subdirectory']))}" if source.get("subdirectory") else ""
    # Poetry takes git's short form of SSH.
    url = re.sub(r"^git@([^:/]+):", r"ssh://git@\1/", str(source["git"]))
    return f"git+{url}{ref}{inner}"


def _instead(name: str, source: Mapping[str, Any], uv: Mapping[str, Any], folder: str) -> str:
    """What to write into a spec. folder: of the source's file, from the spec's on."""
    if "index" in source:
        url = _url_of(source, uv) or "https://..."
        named = quoted(str(source["index"]))
        return f'add [[pip.index]] with name = {named}, url = {quoted(url, 500)} and packages = ["{name}"]'
    address = source.get("url", "./FOLDER")
    if "git" in source:
        address = git_address(source)
    elif "path" in source:
        address = posixpath.normpath(posixpath.join(folder, str(source["path"])))
        address = local_address(address)
    return f"add {quoted(f'{name} @ {address}', 500)} to [pip] dependencies"
