"""uv.lock, poetry.lock, pdm.lock and pylock.toml: the locked versions, which the first lock prefers.

A lock beside a pyproject.toml is read with it, whose lines are the requirements. Without one, the requirements are
those of the lock's own project, or the packages that no other package requires.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from msgspec import Struct
from packaging.markers import InvalidMarker, Marker
from packaging.pylock import Package as Entry
from packaging.pylock import Pylock, PylockValidationError
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from envspec.adopt.markers import without_extras
from envspec.credentials import without_credentials
from envspec.documents import list_of, table_of
from envspec.facts.tables import pep440
from envspec.importers.graph import roots
from envspec.importers.pip import (
    add_cuda,
    add_index,
    add_requirement,
    bracketed,
    cuda_of,
    is_required_by_torch,
    note_build,
)
from envspec.importers.toml_lines import TomlFile, text_of, texts_of
from envspec.importers.types import PYTHON_SERIES, Clue, Import, Locked, Outcome, Source, Unreadable
from envspec.importers.unsupported import SUPPORTED, note_unsupported
from envspec.io.http_settings import default_index_url
from envspec.models import Platform, marker_values
from envspec.names import COMMIT, NAME, VERSION, normalised
from envspec.origins import INDEX_FAMILY, PYTORCH_PAGES
from envspec.spec import pip_lines
from envspec.spec.document import PYPROJECT
from envspec.spec.requirements import local_address
from envspec.structs import replace

#: Name, extras, address, its fragment, marker.
_REQUIRED: Final = re.compile(rf"\s*({pip_lines.NAME})\s*(\[[^\]]*\])?\s*(?:@\s*([^\s;#]+)(#\S*)?|[^@;]*?)\s*(;.*)?")
#: A marker that holds nowhere.
_NEVER: Final = "python_version < '0'"
#: Version and index of a package in a lock.
Release: TypeAlias = tuple[str, str]
#: Exact versions of the series that a spec can have, to evaluate markers with; the preferred series first.
PYTHONS: Final = tuple(f"{series}.0" for series in PYTHON_SERIES)


class LockedPackage(Struct, frozen=True):
    """A package of a lock, or a pin of a compiled requirements file.

    name: normalised.
    version: empty for projects whose version their build computes.
    by: where it is written.
    markers: it is locked where one of them holds; none: everywhere.
    index: the URL of the index that it comes from.
    url: what follows `@` if it comes from no index.
    requires: normalised names.
    is_local: a project's folder.
    """

    name: str
    version: str
    by: Source
    markers: tuple[str, ...] = ()
    index: str = ""
    url: str = ""
    requires: tuple[str, ...] = ()
    is_local: bool = False


def read_uv_lock(
    path: Path,
    imported: Import,
    *,
    extras: Collection[str] = (),
    groups: Collection[str] = (),
    member: str = "",
    members: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> None:
    """Read uv.lock.

    extras, groups: normalised names of those of the project that are taken. member: the project, if it is not the
    workspace itself. members: other members -> their extras that are taken.
    """
    file = TomlFile(path, imported)
    if not _has_project(path, imported):
        _clue_python(file, imported, text_of(file.data, "requires-python"))
        for table, by in file.tables("package"):
            if _is_root(table_of(table, "source")):
                _requires_dist(table, by, path.parent, imported)
    projects = [member] if member else []
    for table, _ in file.tables("package"):
        if not member and _is_root(table_of(table, "source")):
            projects.append(text_of(table, "name"))
    exclusive = _exclusive_extras({**members, **dict.fromkeys(projects, extras)}, projects, groups)
    packages = _packages(file, lambda table, by: _uv_package(table, by, imported, exclusive))
    if not projects:
        _add(packages, imported)
        return
    everywhere = _reached(file, projects, extras, groups, lambda _marker: True)
    installed: dict[str, Mapping[str, Set[Release]]] = {}
    for python in PYTHONS:
        holds_here = partial(_holds_of_extras, extras=exclusive, python=python)
        installed[python] = _reached(file, projects, extras, groups, holds_here)
    others = {each.name for each in packages} - everywhere.keys() - set(map(normalised, projects))
    _add(packages, imported, others, installed, installed[python_versions(imported)[0]])


def _exclusive_extras(
    extras: Mapping[str, Collection[str]], projects: Collection[str], groups: Collection[str]
) -> frozenset[str]:
    """The names that markers in a uv.lock have for extras and groups that exclude others. extras: of each project."""
    found: set[str] = set()
    for name, own in extras.items():
        found.update(f"extra-{len(name)}-{name}-{each}" for each in own)
    for name in projects:
        found.update(f"group-{len(name)}-{name}-{each}" for each in groups)
    return frozenset(found)


def read_poetry_lock(
    path: Path,
    imported: Import,
    *,
    extras: Collection[str] = (),
    groups: Collection[str] = (),
    sources: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Read poetry.lock, of Poetry 1 and 2.

    extras, groups: normalised names of those that are taken. sources: normalised names -> the index from which the
    project takes a package.
    """
    file, named = TomlFile(path, imported), frozenset(extras)
    packages = _packages(file, lambda table, by: _poetry_package(table, by, imported, named))
    taken: dict[str, set[Release]] = {}
    for each in packages:
        if each.index and each.index == sources.get(each.name):
            taken.setdefault(each.name, set()).add((each.version, each.index))
    # Poetry 2 writes the groups of each package.
    others = _of_other_groups(file, {"main", *groups})
    _add_locked(file, packages, imported, [text_of(file.table("metadata"), "python-versions")], others, taken)


def read_pdm_lock(path: Path, imported: Import, *, extras: Collection[str] = (), groups: Collection[str] = ()) -> None:
    """Read pdm.lock. extras, groups: normalised names of those of the project that are taken."""
    file = TomlFile(path, imported)
    packages = _packages(file, lambda table, by: _pdm_package(table, by, imported))
    pythons = [text_of(target, "requires_python") for target in list_of(file.data, "metadata", "targets")]
    _add_locked(file, packages, imported, pythons, _of_other_groups(file, {"default", *extras, *groups}))


def _add_locked(
    file: TomlFile,
    packages: list[LockedPackage],
    imported: Import,
    pythons: Iterable[str],
    others: Set[str] = frozenset(),
    taken: Mapping[str, Set[Release]] = MappingProxyType({}),
) -> None:
    """Add the packages of a lock that does not say what the project itself requires; without a project beside it, those
    that no other one requires are required. pythons: of the lock. others, taken: as in `_add`.
    """
    if not _has_project(file.path, imported):
        for python in pythons:
            _clue_python(file, imported, python)
        _add_roots(packages, file, imported, others)
    _add(packages, imported, others, taken=taken)


def _packages(
    file: TomlFile, read: Callable[[Mapping[str, Any], Source], LockedPackage | None], key: str = "package"
) -> list[LockedPackage]:
    """The packages of a lock, without those that can't be read."""
    found = []
    for table, by in file.tables(key):
        package = read(table, by)
        if package is not None:
            found.append(package)
    return found


def _of_other_groups(file: TomlFile, taken: Set[str]) -> Set[str]:
    """Normalised names of packages whose groups are all not taken."""
    groups: dict[str, set[str]] = {}
    for table, _ in file.tables("package"):
        own = {normalised(str(each)) for each in list_of(table, "groups")} or {*taken}
        groups.setdefault(normalised(text_of(table, "name")), set()).update(own)
    return {name for name, own in groups.items() if own.isdisjoint(taken)}


def read_pylock(path: Path, imported: Import) -> None:
    """Read pylock.toml (PEP 751).

    Raises:
        Unreadable: it is not of this form.
    """
    file = TomlFile(path, imported)
    try:
        lock = Pylock.from_dict(file.data)
    except PylockValidationError as error:
        raise Unreadable(f"{file.shown} is not a pylock.toml: {error}") from None
    entries = iter(lock.packages)
    packages = _packages(file, lambda table, by: _pylock_package(next(entries), table, by, imported), "packages")
    _add_locked(file, packages, imported, [str(lock.requires_python or "")])


def _has_project(path: Path, imported: Import) -> bool:
    """Read the pyproject.toml beside a lock; whether there is one."""
    project = path.parent / PYPROJECT
    if not project.is_file():
        return False
    importer = imported.find(project)
    if importer is None:
        return False
    imported.run(importer, project)
    return True


def _clue_python(file: TomlFile, imported: Import, python: str) -> None:
    if python and python != "*":
        imported.draft.pythons.append(Clue(python, Source(file.shown), "the Pythons of the lock"))


# uv


def _is_root(source: Mapping[str, Any]) -> bool:
    return "." in (source.get("editable"), source.get("virtual"), source.get("directory"))


def _reached(
    file: TomlFile,
    projects: Collection[str],
    extras: Collection[str],
    groups: Collection[str],
    holds_here: Callable[[str], bool],
) -> dict[str, set[Release]]:
    """What projects in a uv.lock require with extras and groups, directly or not: names -> releases. With extras that
    exclude each other, only these edges show which release belongs to which extra.

    holds_here: whether the marker of an edge does.
    """
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for table, _ in file.tables("package"):
        tables.setdefault(normalised(text_of(table, "name")), []).append(table)
    waiting: list[Any] = []
    for project in projects:
        for table in tables.get(normalised(project), []):
            waiting += _edges_of(table, extras, groups)
    found: dict[str, set[Release]] = {}
    seen: set[tuple[int, str]] = set()
    while waiting:
        edge = waiting.pop()
        if not holds_here(text_of(edge, "marker")):
            continue
        for table in _targets(edge, tables.get(normalised(text_of(edge, "name")), [])):
            release = text_of(table, "version"), text_of(table_of(table, "source"), "registry")
            found.setdefault(normalised(text_of(table, "name")), set()).add(release)
            for extra in ("", *texts_of(edge, "extra")):
                if (id(table), extra) not in seen:
                    seen.add((id(table), extra))
                    keys = ("optional-dependencies", extra) if extra else ("dependencies",)
                    waiting += list_of(table, *keys)
    return found


def _edges_of(table: Mapping[str, Any], extras: Collection[str], groups: Collection[str]) -> list[Any]:
    """What a package of a uv.lock requires itself, with extras and groups."""
    found = list_of(table, "dependencies")[:]
    for kind, names in (("optional-dependencies", extras), ("dev-dependencies", groups)):
        for name in table_of(table, kind):
            if normalised(name) in names:
                found += list_of(table, kind, name)
    return found


def _targets(edge: object, tables: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The packages that an edge can lead to: it has version and source where there are several of the name."""
    version, source = text_of(edge, "version"), table_of(edge, "source")
    if version:
        tables = [each for each in tables if text_of(each, "version") == version]
    if source:
        tables = [each for each in tables if table_of(each, "source") == source]
    return tables


def _holds_of_extras(marker: str, extras: frozenset[str], python: str) -> bool:
    """Whether a marker holds on linux-64 with extras and a Python."""
    rest = without_extras(marker, extras)
    return rest is not None and holds(rest, Platform.LINUX_64, python)


def _requires_dist(table: Mapping[str, Any], by: Source, folder: Path, imported: Import) -> None:
    """The project's own requirements, as uv keeps them in the lock."""
    for item in list_of(table, "metadata", "requires-dist"):
        name, marker = text_of(item, "name"), text_of(item, "marker")
        text = name + bracketed(texts_of(item, "extras"))
        if address := _address_of(item):
            text += f" @ {address}"
        else:
            text += text_of(item, "specifier")
        if marker:
            text += f" ; {marker}"
        if "extra ==" in marker:
            imported.add(by, text, Outcome.TRANSLATED, "of an extra: not included")
        else:
            imported.add(by, text, *add_requirement(text, by, imported, folder))


def _address_of(item: object) -> str:
    """What follows the `@` of a requirement in a uv.lock; empty if it comes from an index."""
    if git := text_of(item, "git"):
        url, _, query = git.partition("?")
        if query:
            url += f"@{query.partition('=')[2]}"
        return f"git+{url}"
    for key in ("url", "editable", "directory", "path"):
        if address := text_of(item, key):
            return address if "://" in address else local_address(address)
    return ""


def _uv_package(table: Mapping[str, Any], by: Source, imported: Import, extras: frozenset[str]) -> LockedPackage | None:
    source = table_of(table, "source")
    address = text_of(source, "url")
    if git := text_of(source, "git"):
        where, _, commit = git.partition("#")
        address = f"git+{where.partition('?')[0]}@{commit}"
    registry = text_of(source, "registry")
    is_local = not source.keys().isdisjoint(("editable", "virtual", "directory", "path"))
    markers = _of_extras(texts_of(table, "resolution-markers"), extras)
    return _package(table, by, imported, markers, registry, address, is_local=is_local)


# Poetry


def _poetry_package(
    table: Mapping[str, Any], by: Source, imported: Import, extras: frozenset[str]
) -> LockedPackage | None:
    source = table_of(table, "source")
    kind, url = text_of(source, "type"), text_of(source, "url")
    index = address = ""
    if kind == "git":
        address = f"git+{url}@{text_of(source, 'resolved_reference') or text_of(source, 'reference')}"
    elif kind == "url":
        address = url
    elif kind == "legacy":
        index = url
    # One marker, or one for each group.
    markers = {"": text_of(table, "markers"), **table_of(table, "markers")}
    texts = [each for each in markers.values() if isinstance(each, str) and each]
    return _package(
        table, by, imported, _of_extras(texts, extras), index, address, is_local=kind in ("directory", "file")
    )


# PDM


def _pdm_package(table: Mapping[str, Any], by: Source, imported: Import) -> LockedPackage | None:
    address = text_of(table, "url")
    if git := text_of(table, "git"):
        address = f"git+{git}@{text_of(table, 'revision') or text_of(table, 'ref')}"
    return _package(table, by, imported, [text_of(table, "marker")], "", address, is_local="path" in table)


# PEP 751


def _pylock_package(each: Entry, table: Mapping[str, Any], by: Source, imported: Import) -> LockedPackage | None:
    address = ""
    if each.vcs:
        address = f"git+{each.vcs.url}@{each.vcs.commit_id}"
    elif each.archive:
        address = each.archive.url or ""
    # uv writes no index for the default one; files of PyTorch's say it by their URL.
    urls = [wheel.url or "" for wheel in each.wheels or ()]
    index = each.index or next(filter(PYTORCH_PAGES.match, urls), "")
    markers = [str(each.marker)] if each.marker else []
    return _package(table, by, imported, markers, index, address, is_local=each.directory is not None)


# What all of them have


def _of_extras(markers: Iterable[str], extras: frozenset[str]) -> list[str]:
    """Markers without their conditions on extras."""
    found = []
    for each in markers:
        rest = without_extras(each, extras)
        found.append(_NEVER if rest is None else rest)
    return found


def _package(  # noqa: PLR0913
    table: Mapping[str, Any],
    by: Source,
    imported: Import,
    markers: list[str],
    index: str,
    url: str,
    *,
    is_local: bool,
) -> LockedPackage | None:
    """A package; None, with an entry, if its name or version is none."""
    name, version = text_of(table, "name"), text_of(table, "version")
    has_version = VERSION.fits(version) or (not version and (is_local or url != ""))
    if not (NAME.fits(name) and has_version):
        imported.add(by, f"{name} {version}", Outcome.NOT_UNDERSTOOD, "it is no name and version of a package")
        return None
    names = list(table_of(table, "dependencies"))
    for each in list_of(table, "dependencies"):
        if isinstance(each, str):
            # PDM's are requirements.
            names.append(re.split(r"[^\w.-]", each, maxsplit=1)[0])
        else:
            names.append(text_of(each, "name"))
    requires = tuple(map(normalised, names))
    return LockedPackage(normalised(name), version, by, tuple(markers), index, url, requires, is_local)


def _add_roots(packages: list[LockedPackage], file: TomlFile, imported: Import, others: Set[str]) -> None:
    """Require the packages that no other one requires; all of them if the lock does not say what requires what."""
    packages = [each for each in packages if each.name not in others]
    by_name: dict[str, LockedPackage] = {}
    for each in packages:
        if not each.is_local and _is_for(Platform.LINUX_64, each, PYTHONS):
            by_name[each.name] = each
    has_graph = any(each.requires for each in packages)
    note = "the requirements are the packages that no other one requires"
    if not has_graph:
        note = "the file does not list which packages are required by others: all are dependencies"
    imported.add(Source(file.shown), file.shown, Outcome.TRANSLATED, note)
    if not has_graph and not by_name.keys().isdisjoint(INDEX_FAMILY):
        by_name = {name: each for name, each in by_name.items() if not is_required_by_torch(name)}
    for root in roots({name: each.requires for name, each in by_name.items()}):
        package = by_name[root]
        text = f"{package.name} @ {package.url}" if package.url else package.name
        add_requirement(text, package.by, imported, file.path.parent)


def _add(
    packages: list[LockedPackage],
    imported: Import,
    others: Set[str] = frozenset(),
    installed: Mapping[str, Mapping[str, Set[Release]]] = MappingProxyType({}),
    taken: Mapping[str, Set[Release]] = MappingProxyType({}),
) -> None:
    """The versions of a lock, and an entry for each of its packages.

    others: packages of extras and groups that are not taken.
    installed: of each Python, what linux-64 has of the lock; empty: the packages' own markers decide.
    taken: of what the project requires, if that is known: names -> releases.
    """
    mirror = _mirror(packages)
    if mirror:
        why = f"the default index is that of ENVSPEC_DEFAULT_INDEX: set it to {without_credentials(mirror)}"
        imported.add(Source(packages[0].by.file), mirror, Outcome.TRANSLATED, why)
        imported.draft.unread_indexes.append(mirror)
        packages = [replace(each, index="") if each.index == mirror else each for each in packages]
    pythons = python_versions(imported)
    by_name: dict[str, list[LockedPackage]] = {}
    for each in packages:
        by_name.setdefault(each.name, []).append(each)
    for name, several in by_name.items():
        releases = taken.get(name, ())
        required = [each for each in several if (each.version, each.index or mirror) in releases]
        chosen, why = choice(several, pythons)
        if required and chosen not in required:
            chosen, why = choice(required, pythons)[0], ": it is the one for linux-64"
        for package in several:
            outcome = Outcome.TRANSLATED
            if package.is_local:
                reason = "a local project: its version is that of its folder"
            elif package.name in others:
                reason = "only for extras or groups that are not included"
            elif (
                len(several) == 1
                and name == "torch"
                and note_unsupported(imported, package.index, package.by, name=name, version=package.version)
            ):
                outcome, reason = Outcome.REFUSED, SUPPORTED
            elif package is not chosen:
                reason = f"not preferred: {chosen.version} is{why}"
            else:
                note_locked(package, imported, installed)
                reason = _prefer(package, imported) + why
            imported.add(package.by, f"{package.name} {package.version}".strip(), outcome, reason)


def note_locked(
    package: LockedPackage, imported: Import, installed: Mapping[str, Mapping[str, Set[Release]]] = MappingProxyType({})
) -> None:
    """Note a package that linux-64 does not have with every Python, or that is not from the default index.

    installed: as in `_add`.
    """
    pythons = []
    for python in PYTHONS:
        if installed:
            is_here = package.version in dict(installed[python].get(package.name, ()))
        else:
            is_here = _is_for(Platform.LINUX_64, package, (python,))
        if is_here:
            pythons.append(python)
    index = package.index.rstrip("/")
    is_default = not package.url and index in ("", default_index_url({}).rstrip("/"))
    if len(pythons) < len(PYTHONS) or not is_default:
        series = tuple(each.rpartition(".")[0] for each in pythons)
        imported.draft.locked.setdefault(package.name, Locked(series, is_default))


def _mirror(packages: list[LockedPackage]) -> str:
    """The index from which most packages are, if none is from the default one; empty otherwise."""
    counts: Counter[str] = Counter()
    for each in packages:
        if not (each.index or each.url or each.is_local):
            return ""
        if each.index.rstrip("/") == default_index_url({}).rstrip("/"):
            return ""
        if each.index and not PYTORCH_PAGES.match(each.index):
            counts[each.index] += 1
    return counts.most_common(1)[0][0] if counts else ""


def _prefer(package: LockedPackage, imported: Import) -> str:
    """Prefer a package's version, and note what it says of CUDA and of indexes. The entry's reason."""
    draft = imported.draft
    if package.url:
        return _pin_url(package, imported)
    if (existing := draft.versions.setdefault(package.name, package.version)) != package.version:
        return f"not preferred: {existing} is, of a source that was read before"
    is_pytorch = PYTORCH_PAGES.match(package.index)
    note_build(package.name, package.version, package.by, imported)
    if is_pytorch and (cuda := cuda_of(package.index)):
        add_cuda(cuda, package.by, imported, "PyTorch's index")
    if package.index and not is_pytorch:
        add_index(package.index, package.by, imported, packages=(package.name,))
    return "its version is preferred"


def _pin_url(package: LockedPackage, imported: Import) -> str:
    """Require a package from where it was locked, at its commit, if a requirement names it. The entry's reason."""
    commit = package.url.rpartition("@")[2]
    is_commit = package.url.startswith("git+") and COMMIT.fits(commit)
    for at, line in enumerate(imported.draft.dependencies):
        found = _REQUIRED.fullmatch(line.text)
        if line.project is not None or found is None or normalised(found[1]) != package.name:
            continue
        name, extras, where, fragment, marker = found.groups(default="")
        address = package.url
        if where:
            if not is_commit:
                return "from the address that the requirement names"
            head, slash, last = where.rpartition("/")
            address = f"{head}{slash}{last.partition('@')[0]}@{commit}{fragment}"
        text = f"{name}{extras} @ {address} {marker}".rstrip()
        imported.draft.dependencies[at] = line._replace(text=text)
        if is_commit:
            return f"the requirement names its commit, {commit[:12]}"
        return "the requirement names its address"
    return f"from {without_credentials(package.url.partition('#')[0])}, as the package that requires it states"


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


def choice(several: list[LockedPackage], pythons: Iterable[str]) -> tuple[LockedPackage, str]:
    """Which of several packages of one name is preferred, and what to say of it: the one for linux-64.

    pythons: exact versions, the preferred one first.
    """
    if len(several) == 1:
        return several[0], ""
    by_python: dict[str, list[LockedPackage]] = {}
    for python in pythons:
        fitting = [each for each in several if _is_for(Platform.LINUX_64, each, (python,))]
        if fitting:
            by_python[python] = fitting
    if not by_python:
        return _newest(several), ": the newest, and none is for linux-64"
    python, fitting = next(iter(by_python.items()))
    if len(fitting) > 1:
        return _newest(fitting), ": the newest of those for linux-64"
    if all(each == fitting for each in by_python.values()):
        return fitting[0], ": it is the one for linux-64"
    return fitting[0], f": it is the one for Python {python.rpartition('.')[0]}"


def _newest(packages: Iterable[LockedPackage]) -> LockedPackage:
    return max(packages, key=lambda each: pep440(each.version) or Version("0"))


def _is_for(platform: Platform, package: LockedPackage, pythons: Iterable[str]) -> bool:
    if not package.markers:
        return True
    return any(holds(marker, platform, python) for python in pythons for marker in package.markers)


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
