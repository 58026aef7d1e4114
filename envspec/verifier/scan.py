"""Contents of an environment.

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

from envspec.verifier.record import BadRecord, RecordEntry, from_hex, record_entries
from envspec.verifier.regular import is_real_folder

_RELEASE: Final = re.compile(
    r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)[-_.]?((?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?"
    r"((?:-\d+)|(?:[-_.]?(?:post|rev|r)[-_.]?\d*))?([-_.]?dev[-_.]?\d*)?(?:\+(.+))?",
    re.IGNORECASE,
)
_SPELLINGS: Final = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc", "rev": "post", "r": "post"}


class NoEnvironment(Exception):
    """The folder is no Python environment."""


@dataclass(frozen=True)
class PythonEnvironment:
    """prefix: its real path. sites: its site-packages.

    path: Python's path in order, without its standard library; empty if shadowing is not checked. below: the folders
    of Python's path outside of the environment.
    """

    prefix: Path
    sites: tuple[Path, ...]
    path: tuple[Path, ...] = ()
    below: tuple[Path, ...] = ()

    def relative(self, path: str | Path) -> str:
        """A path relative to the environment, separated by `/`."""
        return os.path.relpath(path, self.prefix).replace(os.sep, "/")

    def inside(self, path: str) -> str:
        """The same of a normal path below the environment, which takes no time."""
        return path[len(str(self.prefix)) + 1 :].replace(os.sep, "/")


def find_environment(prefix: Path, path: Sequence[str] = ()) -> PythonEnvironment:
    """The environment in a folder. path: `sys.path` of its Python.

    Raises:
        NoEnvironment: it has no site-packages.
    """
    real = Path(os.path.realpath(prefix))
    found = [*sorted(real.glob("lib/python3*/site-packages")), real / "Lib" / "site-packages"]
    if not (real / "lib64").is_symlink():
        found = [*sorted(real.glob("lib64/python3*/site-packages")), *found]
    sites = tuple(filter(is_real_folder, found))
    if not sites:
        raise NoEnvironment(f"{prefix} has no lib/python3.*/site-packages")
    # Without this Python's standard library, which is first by design.
    library: set[Path] = set()
    for name in ("stdlib", "platstdlib"):
        folder = Path(os.path.realpath(sysconfig.get_path(name)))
        library |= {folder, folder / "lib-dynload"}
    folders = map(Path, dict.fromkeys(map(os.path.realpath, path)))
    searched = tuple(folder for folder in folders if folder not in library and folder.is_dir())
    return PythonEnvironment(real, sites, searched, outside(real, searched))


def outside(prefix: Path, path: Iterable[str | Path]) -> tuple[Path, ...]:
    """The folders of a Python's path outside of its environment."""
    return tuple(folder for folder in map(Path, path) if not folder.is_relative_to(prefix) and folder.is_dir())


@dataclass(frozen=True)
class Distribution:
    """folder: `<name>.dist-info`. name: normalised (PEP 503). entries: None if RECORD can't be read; see problem."""

    site: Path
    folder: str
    name: str
    version: str
    entries: tuple[RecordEntry, ...] | None
    problem: str = ""


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
    numbers = list(map(int, release.split(".")))
    while numbers and not numbers[-1]:
        numbers.pop()
    if post and re.fullmatch(r"-\d+", post):
        post = f"post{post[1:]}"
    own = tuple(int(part) if part.isdigit() else part for part in re.split(r"[-_.]", (local or "").lower()))
    return (int(epoch or 0), tuple(numbers), *map(_stage, (pre, post, dev)), own)


def _stage(text: str | None) -> tuple[str, int] | None:
    found = re.fullmatch(r"[-_.]?([a-z]+)[-_.]?(\d*)", (text or "").lower())
    if not found:
        return None
    return _SPELLINGS.get(found[1], found[1]), int(found[2] or 0)


def distributions(site: Path) -> Iterator[Distribution]:
    """Every installed distribution of a folder, sorted.

    Raises:
        OSError: the folder can't be read.
    """
    for name in sorted(entry.name for entry in site.iterdir()):
        if name.endswith((".dist-info", ".egg-info", ".egg-link")):
            yield _distribution(site, name)


def _distribution(site: Path, folder: str) -> Distribution:
    name, version = _name_and_version(site / folder)
    entries, problem = None, "it has no RECORD"
    if not folder.endswith(".dist-info"):
        problem = "it has no RECORD: setuptools installed it"
    else:
        try:
            # A link to a device or a pipe has no end.
            if (record := site / folder / "RECORD").is_file():
                text = record.read_text(encoding="utf-8", errors="surrogateescape")
                entries, problem = tuple(record_entries(text)), ""
        except (OSError, BadRecord) as error:
            problem = str(error)
    return Distribution(site, folder, name, version, entries, problem)


def _name_and_version(folder: Path) -> tuple[str, str]:
    """From METADATA, else from the folder's name."""
    stem = folder.name.rpartition(".")[0]
    name, _, version = stem.partition("-")
    fields = {"name": name, "version": version}
    for file in ("METADATA", "PKG-INFO"):
        try:
            if not (folder / file).is_file():
                continue
            with (folder / file).open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if not line.strip():
                        break
                    key, colon, value = line.partition(":")
                    if colon and key.lower() in fields:
                        fields[key.lower()] = value.strip()
            break
        except OSError:
            continue
    return normalised(fields["name"]), fields["version"]


@dataclass(frozen=True)
class CondaRecord:
    """A conda package. paths: everything that it owns, relative to the environment.

    files: those with a hash: (path, SHA-256 in RECORD's form, size). channel: its address, which may hold credentials.
    requested: the match specs by which it was requested, if it was. problem: why its list can't be read; then the rest
    is empty.
    """

    file: str
    name: str = ""
    version: str = ""
    build: str = ""
    sha256: str = ""
    paths: frozenset[str] = frozenset()
    files: tuple[tuple[str, str, int], ...] = ()
    channel: str = ""
    subdir: str = ""
    depends: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    problem: str = ""


def conda_records(prefix: Path) -> Iterator[CondaRecord]:
    """Its conda packages, sorted by file name; none if it is not a conda environment."""
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            yield _conda_record(path.name, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            yield CondaRecord(path.name, name=path.stem.rsplit("-", 2)[0], problem=f"{type(error).__name__}: {error}")


def _conda_record(file: str, data: Any) -> CondaRecord:
    listed = data.get("paths_data", {}).get("paths", [])
    paths = set(map(str, data.get("files", [])))
    files = []
    for each in listed:
        paths.add(str(each["_path"]))
        # A file with the environment's path written into it has another hash than in the archive.
        digest = str(each.get("sha256_in_prefix") or each.get("sha256") or "")
        if digest and each.get("path_type") != "softlink":
            files.append((str(each["_path"]), from_hex(digest), int(each.get("size_in_bytes") or 0)))
    channel = str(data.get("url") or "").rpartition("/")[0].rpartition("/")[0]
    requested = data.get("requested_specs") or filter(None, [data.get("requested_spec")])
    return CondaRecord(
        file,
        str(data["name"]),
        str(data["version"]),
        str(data["build"]),
        str(data.get("sha256") or ""),
        frozenset(paths),
        tuple(files),
        channel or str(data.get("channel") or ""),
        str(data.get("subdir") or ""),
        tuple(map(str, data.get("depends") or ())),
        tuple(map(str, requested)),
    )


def walk(folder: str, left_out: frozenset[str] = frozenset()) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """(files, bytecode below `__pycache__`, unreadable folders with the reason), as full paths.

    Links to folders are among the files and not followed. left_out: folders below, as full paths.
    """
    files: list[str] = []
    bytecode: list[str] = []
    unreadable: list[tuple[str, str]] = []
    queue = [folder]
    while queue:
        current = queue.pop()
        is_cache = os.path.basename(current) == "__pycache__"  # noqa: PTH119 (30,000 times)
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path not in left_out:
                            queue.append(entry.path)
                    elif not is_cache or entry.name.endswith((".py", ".so")):
                        files.append(entry.path)
                    elif entry.name.endswith(".pyc"):
                        bytecode.append(entry.path)
        except OSError as error:
            unreadable.append((current, error.strerror or str(error)))
    return files, bytecode, unreadable


def shadows(found: Iterable[Distribution], path: Sequence[Path]) -> Iterator[tuple[Distribution, Path]]:
    """Each distribution with a file or folder that hides a module of it. path: see `PythonEnvironment`."""
    names = {folder: _module_files(folder) for folder in path}
    for each in found:
        if each.site not in names:
            continue
        own = [entry.path for entry in each.entries or () if not entry.path.startswith(("../", "/"))]
        modules = {file.split("/")[0].split(".")[0] for file in own}
        for folder in path[: path.index(each.site)]:
            for module in sorted(modules & names[folder].keys()):
                for name in names[folder][module]:
                    if _hides(folder / name, own):
                        yield each, folder / name


def _module_files(folder: Path) -> dict[str, list[str]]:
    """Module -> the files or folders that may be it: `x`, `x.py`, `x.cpython-311-x86_64-linux-gnu.so`."""
    names: dict[str, list[str]] = {}
    try:
        for entry in sorted(folder.iterdir()):
            if not entry.name.endswith((".dist-info", ".egg-info", ".pth")):
                names.setdefault(entry.name.split(".")[0], []).append(entry.name)
    except OSError:
        # Python can't read it either.
        return {}
    return names


def _hides(candidate: Path, paths: Sequence[str]) -> bool:
    if not candidate.is_dir():
        return candidate.suffix in (".py", ".pyc", ".so", ".pyd")
    if (candidate / "__init__.py").exists() or (candidate / "__init__.pyc").exists():
        return True
    # A folder without __init__ is a part of a namespace package: it hides only files that both parts have.
    top = f"{candidate.name}/"
    if f"{top}__init__.py" in paths:
        return False
    return any(path.startswith(top) and (candidate.parent / path).exists() for path in paths)
