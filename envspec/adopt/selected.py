"""What the readers of locks have in common: the file, the project beside it, the selection, names that are twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from envspec.adopt.rows import ALL, LeftOut, LockedFile, Row, Selection
from envspec.credentials import without_credentials
from envspec.documents import MAX_TOML_BYTES, list_of, parse_toml, table_of
from envspec.errors import UsageError
from envspec.models import Platform, marker_values
from envspec.names import COMMIT, RELEASE_FILE, normalised
from envspec.verifier.regular import read_regular

PYPROJECT: Final = "pyproject.toml"
#: Early and late patches of each series, for markers and specifiers.
_PYTHONS: Final = tuple(f"3.{minor}.{patch}" for minor in range(8, 16) for patch in (0, 12))


class Malformed(ValueError):
    """A part of a lock or a pyproject.toml that is not of its form."""


def tables_of(value: Any, *keys: str) -> list[Mapping[str, Any]]:
    """A list of tables within tables; empty if there is none. Raises Malformed: an item is no table."""
    found = list_of(value, *keys)
    if not all(isinstance(each, Mapping) for each in found):
        raise Malformed(f"{'.'.join(keys)} is no list of tables")
    return found


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Refuse a lock in which something is malformed: versions, markers, requirements, URLs, tables."""
    try:
        yield
    except (KeyError, OSError, ValueError) as error:
        # packaging: KeyError of a marker on something that does not exist.
        problem = " ".join(str(error).split())
        raise UsageError(f"{path} can't be read: {problem}", hint="restore it, or lock again") from None


def text_of_file(path: Path) -> str:
    """A file's text. Raises UsageError: it can't be read, is too large, or is not UTF-8."""
    try:
        return read_regular(path, MAX_TOML_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8") from None


def read_document(path: Path) -> dict[str, Any]:
    """A TOML file, parsed once in a run. Raises UsageError: it can't be read, or is none."""
    return _parsed(path, text_of_file(path))


@lru_cache(maxsize=8)
def _parsed(path: Path, text: str) -> dict[str, Any]:
    # Compiled: a uv.lock of a workspace has megabytes.
    import tomli

    try:
        return parse_toml(text, tomli.loads)
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint="restore it, or lock again") from None


def project_beside(path: Path) -> dict[str, Any]:
    """The pyproject.toml beside a lock; empty if there is none. Raises UsageError: it is not TOML."""
    project = path.parent / PYPROJECT
    return read_document(project) if project.is_file() else {}


def name_of(project: Mapping[str, Any]) -> str:
    """The normalised name in a pyproject.toml; empty if it has none."""
    name = table_of(project, "project").get("name") or table_of(project, "tool", "poetry").get("name")
    return normalised(name) if isinstance(name, str) else ""


def without_project(rows: Iterable[Row], project: Mapping[str, Any]) -> list[Row]:
    """Rows without that of the project beside the lock, if it is one that images have as their last layer."""
    is_built = is_package(project)
    return [row for row in rows if not (is_built and row.source == ".")]


def is_package(project: Mapping[str, Any]) -> bool:
    """Whether the project of a pyproject.toml can be built and installed: uv and Poetry have a key against that."""
    if not name_of(project) or table_of(project, "tool", "poetry").get("package-mode") is False:
        return False
    return table_of(project, "tool", "uv").get("package", "build-system" in project) is True


def chosen(kind: str, wanted: Collection[str], known: Collection[str], path: Path) -> frozenset[str]:
    """The extras or groups of a lock that a selection names. kind: `extra` or `group`. known: normalised.

    Raises:
        UsageError: the lock does not have one of them.
    """
    if ALL in wanted:
        return frozenset(known)
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        hint = f"remove it: {path.name} has no {kind}s"
        if known:
            hint = f"use one of {', '.join(sorted(known))}"
        raise UsageError(f"{path} has no {kind} {unknown[0]}", hint=hint)
    return frozenset(wanted)


def chosen_groups(selection: Selection, known: Collection[str], default: Collection[str], path: Path) -> frozenset[str]:
    """The groups that are selected. known: normalised names; default: those of them that are included by default.

    Raises:
        UsageError: the lock does not have a group that the selection names.
    """
    groups = chosen("group", selection.groups, known, path)
    if selection.default_groups:
        groups |= frozenset(default)
    return groups - chosen("group", selection.without_groups, known, path)


def left_out(
    names: Callable[[frozenset[str], frozenset[str]], Set[str]],
    extras: tuple[Collection[str], frozenset[str]],
    groups: tuple[Collection[str], frozenset[str]],
) -> tuple[LeftOut, ...]:
    """What is not selected. names: those of the packages that extras and groups select. extras, groups: all, and
    those that are selected.
    """
    selected = names(extras[1], groups[1])
    found = []
    for name in sorted(set(extras[0]) - extras[1]):
        found.append(LeftOut("extra", name, frozenset(names(extras[1] | {name}, groups[1]) - selected)))
    for name in sorted(set(groups[0]) - groups[1]):
        found.append(LeftOut("group", name, frozenset(names(extras[1], groups[1] | {name}) - selected)))
    return tuple(found)


def environments(requires_python: str, platforms: Collection[Platform]) -> Iterator[dict[str, str]]:
    """The values of markers on platforms with the Pythons that a lock allows. Raises InvalidSpecifier."""
    allowed = SpecifierSet(requires_python)
    for platform in platforms:
        for python in _PYTHONS:
            if allowed.contains(python):
                yield marker_values(platform, python)


def check_names(path: Path, rows: Collection[Row], requires_python: str, hint_for: Callable[[str], str]) -> None:
    """Check that no Linux environment has two rows of one name. hint_for: the hint for a name that is twice.

    Raises:
        UsageError: one has. ValueError: a marker, or requires_python, is malformed.
    """
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    linux = [platform for platform in Platform if platform.is_linux]
    everywhere = list(environments(requires_python, linux))
    markers = {row.marker: Marker(row.marker) for row in rows if row.marker}
    for name, several in by_name.items():
        if len(several) == 1:
            continue
        for values in everywhere:
            held = [row for row in several if not row.marker or markers[row.marker].evaluate(values)]
            if len(held) > 1:
                versions = " and ".join(row.version or row.source for row in held)
                where = f"{values['platform_machine']} with Python {values['python_version']}"
                raise UsageError(f"{path} has {name} twice for {where}: {versions}", hint=hint_for(name))


def git_source(path: Path, name: str, url: str, commit: str, subdirectory: str = "") -> str:
    """`Row.source` of a package from git. Raises UsageError: it is not locked to a commit."""
    if not COMMIT.fits(commit):
        raise UsageError(f"{path}: {name} from {url} is not locked to a commit", hint="lock it to a full commit")
    source = f"git+{without_credentials(url)}@{commit}"
    return f"{source}#subdirectory={subdirectory}" if subdirectory else source


def usable(files: Iterable[LockedFile]) -> tuple[LockedFile, ...]:
    """Wheels and sdists; locks may list eggs and installers too."""
    return tuple(file for file in files if RELEASE_FILE.fits(file.filename))


def index_of(files: tuple[LockedFile, ...]) -> str:
    """The index of files that are locked without one: empty for the default one, else the page that has them."""
    # pip defines it here; importing it runs nothing and reads no configuration.
    from pip._internal.models.index import PyPI

    for file in files:
        if file.url and urlsplit(file.url).hostname != PyPI.file_storage_domain:
            return file.url.rpartition("/")[0]
    return ""


def version_in(filename: str) -> str:
    """The version in the name of a wheel or an sdist; empty if it has none."""
    parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
    try:
        return str(parse(filename)[1])
    except ValueError:
        return ""


def normalised_names(names: Collection[Any]) -> list[str]:
    """Names of extras or groups, normalised."""
    return [normalised(str(name)) for name in names]
