"""A lock of another tool as LOCK of any command: an envspec.lock in the cache, made of it as `envspec lock` makes one.

Nothing is resolved. No network is used, unless the lock has neither names nor addresses of its files. The spec is the
project's [tool.envspec], if there is one, with `[pip] from` and what the command line names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec import documents
from envspec.adopt import is_foreign, read_lock, selection_of
from envspec.adopt.rows import ForeignLock, Selection
from envspec.adopt.selected import is_package, name_of, text_of_file
from envspec.adopt.stale import check_is_current
from envspec.context import Context, ReporterOf
from envspec.data import facts_version
from envspec.documents import list_of, table_of
from envspec.errors import StaleLock, UsageError
from envspec.lockfile import toml_writer
from envspec.lockfile.folder import write_folder
from envspec.lockfile.header import FORMAT, LOCK_FILE, verify_checksum
from envspec.models import Platform
from envspec.names import normalised
from envspec.operations.lock_state import LockRequest
from envspec.spec.document import PYPROJECT
from envspec.spec.errors import Problem, SpecError
from envspec.spec.owner import ADOPTED, SOURCE
from envspec.structs import replace
from envspec.version import VERSION

#: Tables of [tool.envspec] that count beside another tool's lock; of [pip], these keys.
_TABLES: Final = ("env", "cuda", "system", "services", "image", "build", "registry", "conformance", "facts")
_PIP: Final = ("build", "file_owner")
#: Tables and keys that choose packages, or more specs than one.
_RESOLVING: Final = ("pip", "conda", "dependencies_from", "variants")
#: torch, by its names on PyPI and in conda channels.
_TORCH: Final = frozenset({"torch", "pytorch", "pytorch-gpu"})
#: With one of them, an environment may do without torch.
_FRAMEWORKS: Final = frozenset({"torch", "jax", "tensorflow", *_TORCH})
#: Series of Python to choose from, the preferred one first.
_PYTHONS: Final = ("3.12", "3.11", "3.10", "3.13", "3.14")
#: In the folder of an adopted lock, beside SOURCE: what to warn of.
_WARNINGS: Final = "warnings"


class Adopted(NamedTuple):
    """folder: of the envspec.lock. found: the lock that it was made of. warnings: of its making, however long ago.
    unwritten: what selects it and is not in [tool.envspec], by table.
    """

    folder: Path
    found: ForeignLock
    warnings: tuple[str, ...]
    unwritten: Mapping[str, Mapping[str, Any]]


def is_lock_of_another_tool(path: Path) -> bool:
    """Whether a path is a file that `adopt_lock` takes."""
    return is_foreign(path) and path.is_file()


def adopt_lock(path: Path, words: Mapping[str, Any], context: Context, platforms: Iterable[str] = ()) -> Adopted:
    """The envspec.lock of another tool's lock, made if it is not in the cache.

    words: keys of a spec by table, which replace those of [tool.envspec].
    platforms: to lock for; by default those of [tool.envspec], else linux-64.

    Raises:
        UsageError: the lock is not of its form; what is selected of it does not exist; torch is in nothing selected.
        UnusableLock: packages of it can't be installed.
        SpecError: [tool.envspec] is not valid.
    """
    from envspec.io.cache import JsonCache, cache_root

    # `link/../uv.lock` is beside what the link leads to.
    path = Path(os.path.realpath(path.parent), path.name)
    project = _project(path)
    own = table_of(project, "tool", "envspec")
    _check_tables(own, path)
    pip = _pip(path, own, words)
    selection = Selection()
    # What is of another type is refused below, with all else that is wrong with the settings.
    with suppress(TypeError, ValueError):
        selection = selection_of(pip)
    found = read_lock(path, selection)
    if not words.get("lock", {}).get("frozen"):
        check_is_current(path, ", or use it as it is with `--frozen`")
    _check_torch(found)
    document = _document(path, own, words, found)
    if name_of(project) == found.name and is_package(project):
        document.setdefault("image", {}).setdefault("project", "wheel")
    document["pip"] = pip
    locked = list_of(document, "env", "platforms") or [Platform.LINUX_64.value]
    # Of a lock for several platforms, one of them is chosen later.
    if any(each not in locked for each in platforms):
        locked = document["env"]["platforms"] = sorted(platforms)
    if locked == [Platform.OSX_ARM64.value]:
        document.pop("cuda", None)
    text = "".join(toml_writer.table(name, values) for name, values in document.items() if isinstance(values, Mapping))
    place = cache_root(context.environ) / ADOPTED / _key(path, text, found)
    folder = place / "lock"
    kept = JsonCache(place)
    warnings = kept.read_as(_WARNINGS, list[str])
    if warnings is None or not _is_whole(folder):
        from envspec.operations.lock.stages import compile_lock

        warnings = []
        reporting = replace(context, reporter=ReporterOf(context.reporter, warning=warnings.append))
        request = LockRequest(path, folder, text=text, is_adopted=True)
        try:
            files = compile_lock(request, None, reporting, None, None).files
        except SpecError as error:
            # Lines would be those of the text that was made here.
            raise SpecError(_relocated(error.problems, path, words)) from None
        _check_readable(files, path)
        kept.write(SOURCE, str(path))
        kept.write(_WARNINGS, warnings)
        write_folder(folder, files)
    return Adopted(folder, found, tuple(warnings), _unwritten(path, own, words, document))


def _check_readable(files: Mapping[str, bytes], path: Path) -> None:
    """Refuse a lock with values that no envspec.lock has, such as a hash of another form."""
    from envspec.lockfile.document import load

    try:
        load(files[LOCK_FILE].decode(), path.name)
    except StaleLock as error:
        raise UsageError(error.message, hint="restore it, or lock again with the tool that wrote it") from None


def _is_whole(folder: Path) -> bool:
    """Whether the cache has a lock in a folder, without damage."""
    try:
        verify_checksum((folder / LOCK_FILE).read_bytes(), LOCK_FILE)
    except (OSError, StaleLock):
        return False
    return True


def _relocated(problems: Iterable[Problem], path: Path, words: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of settings, with the place where a user has them: the command line, or [tool.envspec]."""
    where = str(path.with_name(PYPROJECT)) if path.with_name(PYPROJECT).is_file() else str(path)
    for each in problems:
        table, _, key = each.key.partition(".")
        if key.partition("[")[0] in words.get(table, {}):
            yield each._replace(where="the command line", line=None)
        else:
            yield Problem(where, None, f"[tool.envspec] {each.key}" if each.key else "", each.found, each.hint)


def _project(path: Path) -> dict[str, Any]:
    """The pyproject.toml beside a lock, parsed; empty if there is none."""
    beside = path.with_name(PYPROJECT)
    if not beside.is_file():
        return {}
    try:
        return documents.read_toml(beside)
    except ValueError as error:
        raise UsageError(f"{beside}: {error}", hint="correct it") from error


def _check_tables(own: Mapping[str, Any], path: Path) -> None:
    """Refuse [tool.envspec] in which something else stands for a table."""
    wrong = []
    for name in ("pip", *_TABLES):
        if not isinstance(own.get(name, {}), Mapping):
            hint = f"write [tool.envspec.{name}]"
            wrong.append(Problem(str(path.with_name(PYPROJECT)), None, f"[tool.envspec] {name}", "is no table", hint))
    if wrong:
        raise SpecError(wrong)


def _pip(path: Path, own: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    pip: dict[str, Any] = {"from": path.name}
    written = table_of(own, "pip")
    for key in _PIP:
        if key in written:
            pip[key] = written[key]
    if written.get("from") == path.name:
        # All of it: keys that choose packages are refused beside `from`.
        pip |= written
    return pip | dict(words.get("pip", {}))


def _unwritten(
    path: Path, own: Mapping[str, Any], words: Mapping[str, Any], document: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """What selects a lock and is not in [tool.envspec]; nothing if the command line selects nothing.

    document: the whole spec.
    """
    # `lock` is of one run, and no table of a spec.
    selected = {name: values for name, values in words.items() if name != "lock"}
    if not selected:
        return {}
    selected["pip"] = {"from": path.name, **selected.get("pip", {})}
    # Chosen here, but not by `envspec lock`, which gives the same image with them.
    selected["env"] = {"python": document["env"]["python"], **selected.get("env", {})}
    if "project" in document.get("image", {}):
        selected["image"] = {"project": document["image"]["project"], **selected.get("image", {})}
    found: dict[str, Mapping[str, Any]] = {}
    for name in ("pip", *_TABLES):
        values, written = selected.get(name, {}), table_of(own, name)
        if missing := {key: value for key, value in values.items() if written.get(key) != value}:
            found[name] = missing
    return found


def _document(
    path: Path, own: Mapping[str, Any], words: Mapping[str, Any], found: ForeignLock
) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = {"env": {}, "pip": {}}
    # Also one that no spec has, so that it is refused.
    for name in dict.fromkeys((*_TABLES, *own)):
        if name in _RESOLVING:
            continue
        table = {**table_of(own, name), **words.get(name, {})}
        if table:
            document[name] = table
    env = document["env"]
    env.setdefault("name", _name(found, path))
    env.setdefault("python", _python(found, path))
    if table_of(own, "pip").get("from") != path.name:
        # They are for the packages of that spec.
        for key in ("as_of", "package_as_of"):
            env.pop(key, None)
    return document


def _name(found: ForeignLock, path: Path) -> str:
    name = re.sub(r"[^a-z0-9.-]+", "-", normalised(found.name or path.parent.name)).strip("-.")
    return name[:64] or "project"


def _python(found: ForeignLock, path: Path) -> str:
    """The series of conda's Python, the Python of `.python-version`, else the preferred series that the lock allows."""
    for rows in found.conda.values():
        for package in rows.packages:
            if package.name == "python":
                return ".".join(package.version.split(".")[:2])
    with suppress(UsageError):
        text = text_of_file(path.with_name(".python-version"))
        pinned = re.match(r"\s*(?:cpython-|python)?(3\.\d+(?:\.\d+)?)\s*$", text)
        if pinned:
            return pinned[1]
    try:
        allowed = SpecifierSet(found.requires_python)
    except InvalidSpecifier as error:
        raise UsageError(f"{path}: requires-python: {error}", hint="correct it with the tool that wrote it") from error
    series = []
    for each in _PYTHONS:
        if any(allowed.contains(f"{each}.{patch}") for patch in range(30)):
            series.append(each)
    if series:
        return _with_most_wheels(found, series)
    raise UsageError(
        f"{path} requires Python {allowed}, and envspec has {', '.join(sorted(_PYTHONS))}",
        hint="lock it for one of these",
    )


def _with_most_wheels(found: ForeignLock, series: Sequence[str]) -> str:
    """The first series for which the fewest packages have only wheels that it can't load."""
    from envspec.operations.lock.adopted import without_wheel

    lacking: dict[str, int] = {}
    for each in series:
        lacking[each] = without_wheel(found, each)
        if not lacking[each]:
            return each
    return min(lacking, key=lambda name: lacking[name])


def _check_torch(found: ForeignLock) -> None:
    """Refuse a selection of nothing if torch is in something that could be selected: nobody means that image."""
    names = {row.name for row in found.rows}
    for rows in found.conda.values():
        names.update(package.name for package in rows.packages)
    if names & _FRAMEWORKS:
        return
    with_torch = [each for each in found.left_out if each.packages & _TORCH]
    if with_torch and found.is_plain:
        words = " or ".join(each.words for each in with_torch)
        raise UsageError(
            f"{found.path}: torch is only in {_described(with_torch)}, and none is selected", hint=f"add {words}"
        )


def _described(left_out: Iterable[Any]) -> str:
    return ", ".join(f"{each.kind} {each.name}" for each in left_out)


def _key(path: Path, text: str, found: ForeignLock) -> str:
    """Names all that the lock follows from: the files, settings, and what makes locks of them."""
    # Requirements files include others, and a pyproject.toml may have the Pythons.
    read = msgspec.json.encode([found.rows, found.indexes, found.links, found.requires_python], order="deterministic")
    digests = [hashlib.sha256(each).hexdigest() for each in (path.read_bytes(), read)]
    values = [VERSION, FORMAT, facts_version(), str(path), text, *digests]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
