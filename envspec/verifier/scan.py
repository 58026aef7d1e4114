"""What is in an environment.

Source: conda's `PrefixRecord` and `paths.json` version 1.
"""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envspec.verifier.hashing import Wanted, from_hex
from envspec.verifier.record import BadRecord, Row, rows

_RELEASE: Final = re.compile(
    r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)[-_.]?((?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?"
    r"((?:-\d+)|(?:[-_.]?(?:post|rev|r)[-_.]?\d*))?([-_.]?dev[-_.]?\d*)?(?:\+(.+))?",
    re.IGNORECASE,
)
_SPELLINGS: Final = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc", "rev": "post", "r": "post"}


@dataclass(frozen=True)
class Distribution:
    """folder: `<name>.dist-info`. name: in PEP 503's form. rows: None where its RECORD is missing or can't be read;
    fault says why.
    """

    site: Path
    folder: str
    name: str
    version: str
    rows: tuple[Row, ...] | None
    fault: str = ""


def normalised(name: str) -> str:
    """PEP 503's form of a name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def same_version(one: str, other: str) -> bool:
    """Whether two spellings are one version by PEP 440: `1.0` and `1.0.0`, `1.0-1` and `1.0.post1`."""
    return one == other or _version_key(one) == _version_key(other)


def _version_key(text: str) -> tuple[object, ...]:
    found = _RELEASE.fullmatch(text.strip())
    if not found:
        return (text.strip().lower(),)
    epoch, release, pre, post, dev, local = found.groups()
    numbers = [int(number) for number in release.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    post = f"post{post[1:]}" if post and re.fullmatch(r"-\d+", post) else post
    own = tuple(int(part) if part.isdigit() else part for part in re.split(r"[-_.]", (local or "").lower()))
    return (int(epoch or 0), tuple(numbers), *map(_stage, (pre, post, dev)), own)


def _stage(text: str | None) -> tuple[str, int] | None:
    found = re.fullmatch(r"[-_.]?([a-z]+)[-_.]?(\d*)", text.lower()) if text else None
    return (_SPELLINGS.get(found[1], found[1]), int(found[2] or 0)) if found else None


def distributions(site: Path) -> Iterator[Distribution]:
    """Everything that calls itself installed in a folder, sorted.

    Raises:
        OSError: the folder can't be read.
    """
    for name in sorted(entry.name for entry in site.iterdir()):
        if name.endswith((".dist-info", ".egg-info", ".egg-link")):
            yield _distribution(site, name)


def _distribution(site: Path, folder: str) -> Distribution:
    name, version = _named(site / folder)
    if not folder.endswith(".dist-info"):
        return Distribution(site, folder, name, version, None, "it has no RECORD, as what setuptools installs itself")
    try:
        text = (site / folder / "RECORD").read_text(encoding="utf-8", errors="surrogateescape")
        return Distribution(site, folder, name, version, tuple(rows(text)))
    except FileNotFoundError:
        return Distribution(site, folder, name, version, None, "it has no RECORD")
    except (OSError, BadRecord) as fault:
        return Distribution(site, folder, name, version, None, str(fault))


def _named(folder: Path) -> tuple[str, str]:
    """Name and version from METADATA, else from the folder's name."""
    stem = folder.name.rpartition(".")[0]
    name, _, version = stem.partition("-")
    told = {"name": name, "version": version}
    for file in ("METADATA", "PKG-INFO"):
        try:
            with (folder / file).open(encoding="utf-8", errors="replace") as lines:
                told.update(_head(lines))
            break
        except OSError:
            continue
    return normalised(told["name"]), told["version"]


def _head(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if not line.strip():
            return
        key, colon, value = line.partition(":")
        if colon and key.lower() in ("name", "version"):
            yield key.lower(), value.strip()


@dataclass(frozen=True)
class CondaRecord:
    """One package. paths: everything that it owns, from the environment's folder on. files: those with a hash.

    fault: why its list can't be read; then all else is empty.
    """

    file: str
    name: str = ""
    version: str = ""
    build: str = ""
    sha256: str = ""
    paths: frozenset[str] = frozenset()
    files: tuple[Wanted, ...] = ()
    fault: str = ""


def conda_records(prefix: Path) -> Iterator[CondaRecord]:
    """The packages of an environment, sorted by their files' names; none where it is not conda's."""
    folder = prefix / "conda-meta"
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("*.json")):
        try:
            yield _record(path.name, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
            yield CondaRecord(path.name, name=path.stem.rsplit("-", 2)[0], fault=f"{type(fault).__name__}: {fault}")


def _record(file: str, data: Any) -> CondaRecord:
    listed = data.get("paths_data", {}).get("paths", [])
    paths = {str(each["_path"]) for each in listed} | {str(each) for each in data.get("files", [])}
    return CondaRecord(
        file,
        str(data["name"]),
        str(data["version"]),
        str(data["build"]),
        str(data.get("sha256") or ""),
        frozenset(paths),
        tuple(_wanted(each) for each in listed if _hash(each) and each.get("path_type") != "softlink"),
    )


def _hash(listed: Any) -> str:
    # With the environment's path written into it, a file has another hash than in the archive.
    return str(listed.get("sha256_in_prefix") or listed.get("sha256") or "")


def _wanted(listed: Any) -> Wanted:
    return Wanted(str(listed["_path"]), (("sha256", from_hex(_hash(listed))),), int(listed.get("size_in_bytes") or 0))


class NoEnvironment(Exception):
    """The folder is no Python environment."""


@dataclass(frozen=True)
class Place:
    """prefix: the environment's folder, without links on its way. sites: its site-packages.

    path: Python's path in order, without its own library, where somebody asks what comes before what.
    """

    prefix: Path
    sites: tuple[Path, ...]
    path: tuple[Path, ...] = ()


def place_of(prefix: Path, path: Sequence[str] = ()) -> Place:
    """The environment in a folder. path: a Python's `sys.path`, of the environment itself.

    Raises:
        NoEnvironment: there is no site-packages in it.
    """
    real = Path(os.path.realpath(prefix))
    found = [*sorted(real.glob("lib/python3*/site-packages")), real / "Lib" / "site-packages"]
    sites = tuple(folder for folder in found if folder.is_dir() and not folder.is_symlink())
    if not sites:
        raise NoEnvironment(f"{prefix} holds no lib/python3.*/site-packages")
    return Place(real, sites, search_path(path))


def search_path(path: Sequence[str]) -> tuple[Path, ...]:
    """`sys.path` as real folders, without this Python's own library: it comes first by design."""
    library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    library |= {os.path.join(folder, "lib-dynload") for folder in library}  # noqa: PTH118 (texts are compared)
    folders = dict.fromkeys(os.path.realpath(each) for each in path)
    return tuple(Path(each) for each in folders if each not in library and Path(each).is_dir())


@dataclass(frozen=True)
class Walked:
    """Paths, each with the environment's folder before it.

    files: all but bytecode below `__pycache__`, and links to folders, which are not gone into. bytecode: the rest.
    unreadable: folders, with why.
    """

    files: tuple[str, ...]
    bytecode: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...]


def walk(folder: str) -> Walked:
    files: list[str] = []
    bytecode: list[str] = []
    unreadable: list[tuple[str, str]] = []
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        cached = os.path.basename(here) == "__pycache__"  # noqa: PTH119 (30,000 times)
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif cached and entry.name.endswith(".pyc"):
                        bytecode.append(entry.path)
                    elif not cached:
                        files.append(entry.path)
        except OSError as fault:
            unreadable.append((here, fault.strerror or str(fault)))
    return Walked(tuple(files), tuple(bytecode), tuple(unreadable))


def shadows(found: Iterable[Distribution], path: Sequence[Path]) -> Iterator[tuple[Distribution, Path]]:
    """Each distribution with what hides a module of it. path: Python's, in its order, without its own library."""
    held = {folder: _names(folder) for folder in path}
    for each in found:
        if each.site not in held:
            continue
        for folder in path[: path.index(each.site)]:
            for hiding in _hiding(each, folder, held[folder]):
                yield each, hiding


def _names(folder: Path) -> dict[str, list[str]]:
    """Module -> the files or folders that may be it: `x`, `x.py`, `x.cpython-311-x86_64-linux-gnu.so`."""
    names: dict[str, list[str]] = {}
    try:
        for entry in folder.iterdir():
            if not entry.name.endswith((".dist-info", ".egg-info", ".pth")):
                names.setdefault(entry.name.split(".")[0], []).append(entry.name)
    except OSError:
        # Python can't look into it either.
        return {}
    return names


def _hiding(each: Distribution, folder: Path, names: dict[str, list[str]]) -> Iterator[Path]:
    inside = [row.path for row in each.rows or () if not row.path.startswith(("../", "/"))]
    for module in sorted({path.split("/")[0].split(".")[0] for path in inside} & names.keys()):
        for name in sorted(names[module]):
            if _hides(folder / name, inside):
                yield folder / name


def _hides(hiding: Path, paths: Sequence[str]) -> bool:
    if not hiding.is_dir():
        return hiding.suffix in (".py", ".pyc", ".so", ".pyd")
    if any((hiding / f"__init__{end}").exists() for end in (".py", ".pyc")):
        return True
    # A folder without it is a part of a namespace: it hides what it holds itself, and only where the locked one is a
    # part of that namespace too.
    top = f"{hiding.name}/"
    if f"{top}__init__.py" in paths:
        return False
    return any(path.startswith(top) and (hiding.parent / path).exists() for path in paths)
