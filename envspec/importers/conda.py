"""conda's environment.yml, and what conda-lock adds to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from envspec.importers.conda_specs import (
    NOT_ON_LINUX,
    WINDOWS,
    add_channel,
    add_name,
    add_pinned,
    add_platform,
    add_requirement,
    check_count,
    is_only_of_windows,
    platforms_of,
    python_marker,
    selected,
    use_channel,
    with_channel,
)
from envspec.importers.pip import add_index
from envspec.importers.requirements import add_line
from envspec.importers.types import Clue, Import, Outcome, Source, Unreadable
from envspec.importers.variables import read_variable
from envspec.importers.yaml_lines import read_yaml
from envspec.io.yaml_lines import Value

#: `name=version=build`, as `conda env export` and `conda list --export` write it, or without the build.
_PINNED: Final = re.compile(
    r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[\w.-]+)==?(?P<version>[^\s=*,|<>]+)(?:=(?P<build>[^\s=*]+))?"
)
#: Packages of one platform, one of which each of its environments with Python has.
_PLATFORM: Final = re.compile(r"ld_impl_(linux-64|linux-aarch64)$|^ucrt$")
#: Of Windows alone, and in each of its environments.
_OF_WINDOWS: Final = re.compile(r"^(?:.*::)?(?:ucrt|vs2015_runtime)=")
#: Libraries that nobody lists by hand: several of them in a list without builds show that a program wrote it.
_RUNTIME: Final = frozenset(
    {"_libgcc_mutex", "bzip2", "ca-certificates", "libffi", "libgcc", "libgcc-ng", "ncurses", "openssl", "readline"}
    | {"tk", "ucrt", "vc", "xz", "zlib"}
)


def read_environment(path: Path, imported: Import) -> None:
    """environment.yml, written by hand or by `conda env export`, with what conda-lock adds to it, and the versions of
    the conda-lock.yml beside it.

    Raises:
        Unreadable: it is not YAML, or not an environment of conda.
    """
    top, file = read_yaml(path, imported), imported.shown(path)
    if not {"dependencies", "channels"} & top.keys.keys():
        raise Unreadable(f"{file} is not an environment of conda: it has no `dependencies`")
    # Requirements depend on channels and platforms.
    for key in filter(top.keys.get, dict.fromkeys(("name", *_LISTS, *top.keys))):
        value = top.keys[key]
        source = Source(file, value.line)
        if key == "name":
            add_name(imported, source, value.text)
        elif key in _LISTS:
            for where, item in _scalars(imported, source, value, key):
                _LISTS[key](imported, where, item.text)
        elif key == "dependencies":
            _dependencies(imported, source, value, path.parent)
        elif key == "variables":
            _variables(imported, source, value)
        elif key in _NOTES:
            imported.add(source, f"{key}: {value.text}", Outcome.TRANSLATED, _NOTES[key])
        else:
            imported.add(source, f"{key}: {value.shown()}", Outcome.NOT_UNDERSTOOD, "no key of conda's or conda-lock's")
    if not top.get("channels").items and any(item.is_scalar for item in top.get("dependencies").items):
        reason = "it lists no channels: conda would use those of its own configuration, envspec uses conda-forge"
        imported.add(Source(file), "channels", Outcome.TRANSLATED, reason)
        use_channel(imported, "conda-forge")
    include_conda_lock(path, imported)


def include_conda_lock(path: Path, imported: Import) -> None:
    """The versions of a conda-lock.yml beside the file, if it was made of it."""
    for name in ("conda-lock.yml", "conda-lock.yaml"):
        lock = path.with_name(name)
        if lock.is_file() and lock.resolve() not in imported.done:
            sources = read_yaml(lock, imported).get("metadata", "sources").items
            if path.resolve() in ((path.parent / item.text).resolve() for item in sources):
                imported.include(lock, Source(imported.shown(path)), f"{name} beside it")


def _scalars(imported: Import, source: Source, value: Value, key: str) -> Iterator[tuple[Source, Value]]:
    """The items of a list of texts; an entry for what is something else."""
    for item in value.items:
        if item.is_scalar and item.text:
            yield Source(source.file, item.line), item
        else:
            imported.add(
                Source(source.file, item.line), f"{key}: {item.shown()}", Outcome.NOT_UNDERSTOOD, "not a string"
            )
    if value.keys or value.text:
        imported.add(source, f"{key}: {value.shown()}", Outcome.NOT_UNDERSTOOD, "not a list")


def _add_index(imported: Import, source: Source, url: str) -> None:
    imported.add(source, url, *add_index(url, source, imported))


def _variables(imported: Import, source: Source, value: Value) -> None:
    for name, each in value.keys.items():
        read_variable(name, each.text, Source(source.file, each.line), f"{name}: {each.text}", imported)
    if not value.keys and value.text:
        imported.add(source, f"variables: {value.text}", Outcome.NOT_UNDERSTOOD, "not a mapping")


def _dependencies(imported: Import, source: Source, value: Value, folder: Path) -> None:
    texts = [item.text for item in value.items if item.is_scalar]
    check_count(source.file, len(value.items))
    is_exported = _is_exported(texts)
    # What was exported on Windows is for Linux, unless the user wants Windows: there is no CUDA image of Windows.
    is_moved = is_exported and WINDOWS not in imported.platforms and any(map(_OF_WINDOWS.search, texts))
    for item in value.items:
        where = Source(source.file, item.line)
        platforms = _selected(item.comment, imported)
        if item.keys.keys() == {"pip"}:
            _pip(imported, Source(source.file, item.get("pip").line), item.get("pip"), folder, is_moved=is_moved)
        elif not item.is_scalar:
            imported.add(where, item.shown(), Outcome.NOT_UNDERSTOOD, "neither a conda package nor a list for pip")
        elif platforms == ():
            imported.add(where, item.text, Outcome.TRANSLATED, f"{item.comment} is for none of the spec's platforms")
        elif is_moved and is_only_of_windows(item.text):
            imported.add(where, item.text, Outcome.TRANSLATED, NOT_ON_LINUX)
        elif is_exported and (pinned := _PINNED.fullmatch(item.text)):
            _exported(imported, where, item.text, pinned, is_moved=is_moved)
        else:
            add_requirement(imported, where, item.text, platforms or ())
    if value.keys or value.text:
        imported.add(source, f"dependencies: {value.shown()}", Outcome.NOT_UNDERSTOOD, "not a list")


def _is_exported(specs: list[str]) -> bool:
    """Whether a program wrote the list: nearly all have their build, or all their version and libraries are listed."""
    pinned = list(filter(None, map(_PINNED.fullmatch, specs)))
    with_build = [found for found in pinned if found["build"]]
    if len(with_build) * 10 >= len(specs) * 9 > 0:
        return True
    names = {found["name"] for found in pinned}
    return len(pinned) == len(specs) and len(names & _RUNTIME) >= 3


def _exported(imported: Import, source: Source, text: str, pinned: re.Match[str], *, is_moved: bool) -> None:
    name, version, build = pinned["name"].lower(), pinned["version"], pinned["build"] or ""
    reason = add_pinned(imported, name, version, build, source, is_moved=is_moved)
    if found := _PLATFORM.search(name):
        platform = found[1] or WINDOWS
        if platform not in (clue.value for clue in imported.draft.platforms):
            imported.draft.platforms.append(Clue(platform, source, f"{name} is for it alone"))
            reason += f"; it was exported on {platform}"
    if name == "python":
        imported.add(source, text, Outcome.TRANSLATED, f"[env] python, {reason}")
        return
    required = with_channel(pinned["channel"], name)
    imported.draft.conda.append((required, ""))
    imported.add(source, text, Outcome.TRANSLATED, f"`{required}`, {reason}")


def _selected(comment: str, imported: Import) -> tuple[str, ...] | None:
    """The platforms of a selector behind a line; None if it is for all. conda takes others for comments."""
    found = re.fullmatch(r"\[\s*(\w+)\s*\].*", comment)
    return selected(found[1], platforms_of(imported)) if found else None


def _pip(imported: Import, source: Source, value: Value, folder: Path, *, is_moved: bool) -> None:
    """Lines for pip, which conda writes to a requirements file beside environment.yml."""
    for where, item in _scalars(imported, source, value, "pip"):
        platforms = _selected(item.comment, imported)
        if is_moved and is_only_of_windows(item.text):
            imported.add(where, item.text, Outcome.TRANSLATED, NOT_ON_LINUX)
        elif platforms is None:
            add_line(item.text, where, imported, folder)
        elif not platforms:
            imported.add(where, item.text, Outcome.TRANSLATED, f"{item.comment} is for none of the spec's platforms")
        elif ";" in item.text or item.text.startswith("-"):
            imported.add(where, item.text, Outcome.REFUSED, f"{item.comment}: write it as a marker of the requirement")
        else:
            add_line(f"{item.text} ; {python_marker(platforms)}", where, imported, folder)


#: Keys of environment.yml: lists that others depend on, and those that decide nothing. Source: conda's documentation,
#: "Managing environments", and conda-lock 4.0.3, `src_parser/environment_yaml.py`.
_LISTS: Final[Mapping[str, Callable[[Import, Source, str], None]]] = {
    "channels": add_channel,
    "platforms": add_platform,
    "pip-repositories": _add_index,
}
_NOTES: Final = {
    "prefix": "the folder of one machine's environment: `envspec install --prefix` chooses it",
    "category": "the requirements of all categories are in the spec",
}
