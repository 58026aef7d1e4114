"""conda's environment.yml, conda-lock.yml and explicit lists of URLs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

from envspec.credentials import channels_without_credentials
from envspec.importers.conda_specs import (
    add_channel,
    add_name,
    add_pinned,
    add_platform,
    add_requirement,
    add_variable,
    archive_parts,
    platforms_of,
    python_marker,
    selected,
    use_channel,
)
from envspec.importers.graph import roots
from envspec.importers.pip import add_index
from envspec.importers.requirements import add_line
from envspec.importers.types import DraftRequirement, Import, Outcome, Source, Unreadable
from envspec.importers.yaml_lines import Value, read_yaml
from envspec.names import normalised

#: `name=version=build`, as `conda env export` and `conda list --export` write it, or without the build.
_PINNED: Final = re.compile(
    r"(?:(?P<channel>[^\s\[\]]+)::)?(?P<name>[\w.-]+)==?(?P<version>[^\s=*,|<>]+)(?:=(?P<build>[^\s=*]+))?"
)
#: Libraries that nobody lists by hand: several of them in a list without builds show that a program wrote it.
_RUNTIME: Final = frozenset(
    {"_libgcc_mutex", "bzip2", "ca-certificates", "libffi", "libgcc", "libgcc-ng", "ncurses", "openssl", "readline"}
    | {"tk", "ucrt", "vc", "xz", "zlib"}
)


def read_environment(path: Path, imported: Import) -> None:
    """environment.yml, written by hand or by `conda env export`, with what conda-lock adds to it.

    Raises:
        Unreadable: it is not YAML, or not an environment of conda.
    """
    top, file = read_yaml(path, imported), imported.shown(path)
    if not {"dependencies", "channels"} & top.keys.keys():
        raise Unreadable(f"{file} is not an environment of conda: it has no `dependencies`")
    # Requirements depend on channels and platforms.
    for key in sorted(top.keys, key=lambda key: (key not in _KEYS, [*_KEYS].index(key) if key in _KEYS else 0)):
        value = top.keys[key]
        source = Source(file, value.line)
        if key in _KEYS:
            _KEYS[key](imported, source, value, path.parent)
        else:
            imported.add(source, f"{key}: {value.shown()}", Outcome.NOT_UNDERSTOOD, "no key of conda's or conda-lock's")
    if not top.get("channels").items and any(item.is_scalar for item in top.get("dependencies").items):
        reason = "it lists no channels: conda would use those of its own configuration, envspec uses conda-forge"
        imported.add(Source(file), "channels", Outcome.TRANSLATED, reason)
        use_channel(imported, "conda-forge")


def _scalars(imported: Import, source: Source, value: Value, key: str) -> Iterator[tuple[Source, Value]]:
    """The items of a list of texts; an entry for what is something else."""
    for item in value.items:
        if item.is_scalar and item.text:
            yield Source(source.file, item.line), item
        else:
            imported.add(Source(source.file, item.line), f"{key}: {item.shown()}", Outcome.NOT_UNDERSTOOD, "not a text")
    if value.keys or value.text:
        imported.add(source, f"{key}: {value.shown()}", Outcome.NOT_UNDERSTOOD, "not a list")


def _name(imported: Import, source: Source, value: Value, _folder: Path) -> None:
    add_name(imported, source, value.text)


def _channels(imported: Import, source: Source, value: Value, _folder: Path) -> None:
    for where, item in _scalars(imported, source, value, "channels"):
        add_channel(imported, where, item.text, item.text)


def _platforms(imported: Import, source: Source, value: Value, _folder: Path) -> None:
    for where, item in _scalars(imported, source, value, "platforms"):
        add_platform(imported, where, item.text)


def _indexes(imported: Import, source: Source, value: Value, _folder: Path) -> None:
    for where, item in _scalars(imported, source, value, "pip-repositories"):
        imported.add(where, item.text, *add_index(item.text, where, imported))


def _variables(imported: Import, source: Source, value: Value, _folder: Path) -> None:
    for name, each in value.keys.items():
        add_variable(imported, Source(source.file, each.line), name, each.text)
    if not value.keys and value.text:
        imported.add(source, f"variables: {value.text}", Outcome.NOT_UNDERSTOOD, "not a mapping")


def _prefix(imported: Import, source: Source, value: Value, _folder: Path) -> None:
    reason = "the folder of one machine's environment: `envspec install --prefix` chooses it"
    imported.add(source, f"prefix: {value.text}", Outcome.TRANSLATED, reason)


def _category(imported: Import, source: Source, value: Value, _folder: Path) -> None:
    outcome, reason = Outcome.TRANSLATED, "the requirements of all categories are in the spec"
    imported.add(source, f"category: {value.text}", outcome, reason)


def _dependencies(imported: Import, source: Source, value: Value, folder: Path) -> None:
    texts = [item.text for item in value.items if item.is_scalar]
    is_exported = _is_exported(texts)
    for item in value.items:
        where = Source(source.file, item.line)
        platforms = _selected(item.comment, imported)
        if platforms is not None and not platforms and item.is_scalar:
            imported.add(where, item.text, Outcome.TRANSLATED, f"{item.comment} is for none of the spec's platforms")
        elif item.is_scalar and is_exported and (pinned := _PINNED.fullmatch(item.text)):
            _exported(imported, where, item.text, pinned)
        elif item.is_scalar:
            add_requirement(imported, where, item.text, platforms or ())
        elif item.keys.keys() == {"pip"}:
            _pip(imported, Source(source.file, item.get("pip").line), item.get("pip"), folder)
        else:
            imported.add(where, item.shown(), Outcome.NOT_UNDERSTOOD, "neither a conda package nor a list for pip")
    if value.keys or value.text:
        imported.add(source, f"dependencies: {value.shown()}", Outcome.NOT_UNDERSTOOD, "not a list")


def _is_exported(specs: list[str]) -> bool:
    """Whether a program wrote the list: nearly all have their build, or all their version and libraries are listed."""
    pinned = [found for found in map(_PINNED.fullmatch, specs) if found]
    if sum(bool(found["build"]) for found in pinned) * 10 >= len(specs) * 9 > 0:
        return True
    return len(pinned) == len(specs) and len({found["name"] for found in pinned} & _RUNTIME) >= 3


def _exported(imported: Import, source: Source, text: str, pinned: re.Match[str]) -> None:
    name, version, build = pinned["name"].lower(), pinned["version"], pinned["build"] or ""
    reason = add_pinned(imported, name, version, build, source)
    if name == "python":
        imported.add(source, text, Outcome.TRANSLATED, f"[env] python, {reason}")
        return
    required = f"{pinned['channel']}::{name}" if pinned["channel"] else name
    if (required, "") not in imported.draft.conda:
        imported.draft.conda.append((required, ""))
    imported.add(source, text, Outcome.TRANSLATED, f"`{required}`, {reason}")


def _selected(comment: str, imported: Import) -> tuple[str, ...] | None:
    """The platforms of a selector behind a line; None if it is for all. conda takes others for comments."""
    found = re.fullmatch(r"\[\s*(\w+)\s*\].*", comment)
    return selected(found[1], platforms_of(imported)) if found else None


def _pip(imported: Import, source: Source, value: Value, folder: Path) -> None:
    """Lines for pip, which conda writes to a requirements file beside environment.yml."""
    for where, item in _scalars(imported, source, value, "pip"):
        platforms = _selected(item.comment, imported)
        if platforms is None:
            add_line(item.text, where, imported, folder)
        elif not platforms:
            imported.add(where, item.text, Outcome.TRANSLATED, f"{item.comment} is for none of the spec's platforms")
        elif ";" in item.text or item.text.startswith("-"):
            imported.add(where, item.text, Outcome.REFUSED, f"{item.comment}: write it as a marker of the requirement")
        else:
            add_line(f"{item.text} ; {python_marker(platforms)}", where, imported, folder)


#: Keys of environment.yml, those first that others depend on. Source: conda's documentation, "Managing environments",
#: and conda-lock 4.0.3, `src_parser/environment_yaml.py`.
_KEYS: Final[Mapping[str, Callable[[Import, Source, Value, Path], None]]] = {
    "name": _name,
    "channels": _channels,
    "platforms": _platforms,
    "pip-repositories": _indexes,
    "dependencies": _dependencies,
    "variables": _variables,
    "prefix": _prefix,
    "category": _category,
}


def read_conda_lock(path: Path, imported: Import) -> None:
    """conda-lock.yml, version 1: its packages are preferred versions. What is required is in the files that it was made
    of; if they are missing, the packages that no other one requires are.

    Raises:
        Unreadable: it is not YAML, or of another version.
    """
    top, file = read_yaml(path, imported), imported.shown(path)
    if top.get("version").text != "1":
        raise Unreadable(f"{file} is not a conda-lock.yml of version 1")
    metadata = top.get("metadata")
    for item in metadata.get("channels").items:
        channel = item.get("url").text or item.text
        add_channel(imported, Source(file, item.line), channel, f"channel: {channel}")
    for item in metadata.get("platforms").items:
        add_platform(imported, Source(file, item.line), item.text)
    is_required = _include_sources(imported, file, path.parent, metadata.get("sources"))
    packages = [each for each in top.get("package").items if each.get("name").text and each.get("version").text]
    rooted = set() if is_required else _rooted(packages)
    _order(packages, imported)
    for package in packages:
        _locked(imported, file, package, rooted)
    for item in top.get("package").items:
        if not (item.get("name").text and item.get("version").text):
            imported.add(Source(file, item.line), item.shown(), Outcome.NOT_UNDERSTOOD, "no name or no version")


def _include_sources(imported: Import, file: str, folder: Path, sources: Value) -> bool:
    """Import the files that a lock was made of. Returns whether all of them were."""
    found = bool(sources.items)
    for item in sources.items:
        source, path = Source(file, item.line), folder / item.text
        if imported.find(path) is None or not path.is_file():
            found = False
            reason = "it is not here: packages that no other one requires are taken for its requirements"
            imported.add(source, f"source: {item.text}", Outcome.TRANSLATED, reason)
        else:
            imported.include(path, source, f"source: {item.text}")
    return found


def _order(packages: list[Value], imported: Import) -> None:
    """The spec's first platform first: its build is the one that is preferred where builds differ."""
    order = {platform: at for at, platform in enumerate(platforms_of(imported))}
    packages.sort(key=lambda package: order.get(package.get("platform").text, len(order)))


def _rooted(packages: Iterable[Value]) -> set[str]:
    graph: dict[str, set[str]] = {}
    for package in packages:
        required = {name for name in package.get("dependencies").keys if not name.startswith("__")}
        graph.setdefault(package.get("name").text, set()).update(required)
    return set(roots(graph))


def _locked(imported: Import, file: str, package: Value, rooted: Collection[str]) -> None:
    name, version, platform = (package.get(key).text for key in ("name", "version", "platform"))
    source, url = Source(file, package.line), package.get("url").text
    is_required = name in rooted and name != "python"
    required = f"`{name}`, " if is_required else ""
    text = f"{name} {version}{f' on {platform}' if platform else ''}"
    category = package.get("category").text or "main"
    if category not in ("main", "dev"):
        imported.add(source, text, Outcome.REFUSED, f"of the category {category}, which is not installed by default")
    elif package.get("manager").text == "pip":
        first = imported.draft.versions.setdefault(normalised(name), version)
        if is_required:
            _require_wheel(imported, source, name)
        imported.add(source, text, Outcome.TRANSLATED, f"{required}{_preferred(first, version, version)}")
    elif not (parts := archive_parts(_filename(url))):
        imported.add(source, text, Outcome.NOT_UNDERSTOOD, "the URL has no conda archive")
    else:
        known = imported.draft.conda_versions.get(name.lower())
        if known is None:
            reason = add_pinned(imported, name, version, parts[2], source)
        else:
            reason = _preferred(known.partition(" ")[0], version, f"{version} ({parts[2]})")
        if is_required and (name, "") not in imported.draft.conda:
            imported.draft.conda.append((name, ""))
        imported.add(source, text, Outcome.TRANSLATED, required + reason)


def _require_wheel(imported: Import, source: Source, name: str) -> None:
    if not any(normalised(name) == each.text for each in imported.draft.dependencies):
        imported.draft.dependencies.append(DraftRequirement(normalised(name), source))


def _preferred(known: str, version: str, shown: str) -> str:
    if known == version:
        return f"preferred version {shown}"
    return f"another platform has {known}, which is preferred: a spec has one preferred version of each package"


def read_explicit(path: Path, imported: Import) -> None:
    """A list of URLs under `@EXPLICIT`, as `conda list --explicit` and conda-lock write it.

    Raises:
        Unreadable: it is not text, or has no `@EXPLICIT`.
    """
    file, lines = imported.shown(path), imported.read(path).splitlines()
    if "@EXPLICIT" not in (line.strip() for line in lines):
        raise Unreadable(f"{file} is not an explicit list of conda packages: it has no @EXPLICIT")
    for number, line in enumerate(lines, 1):
        source, text = Source(file, number), line.strip()
        if found := re.fullmatch(r"#\s*platform:\s*(\S+)", text):
            add_platform(imported, source, found[1])
        elif found := re.fullmatch(r"#\s*pip\s+(\S+)\s*@\s*(\S+?)(?:#\S*)?", text):
            _explicit_wheel(imported, source, text, normalised(found[1]), found[2])
        elif text and text != "@EXPLICIT" and not text.startswith("#"):
            _explicit(imported, source, text)


def _explicit_wheel(imported: Import, source: Source, text: str, name: str, url: str) -> None:
    _require_wheel(imported, source, name)
    filename = _filename(url)
    try:
        parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
        version = str(parse(filename)[1])
    except (InvalidWheelFilename, InvalidSdistFilename):
        imported.add(source, text, Outcome.TRANSLATED, f"`{name}`: the URL does not say its version")
        return
    imported.draft.versions.setdefault(name, version)
    imported.add(source, text, Outcome.TRANSLATED, f"`{name}`, preferred version {version}")


def _filename(url: str) -> str:
    """The file that a URL is of; URLs of broken files too, which `urlsplit` refuses."""
    return unquote(re.split(r"[?#]", url, maxsplit=1)[0].rpartition("/")[2])


def _explicit(imported: Import, source: Source, text: str) -> None:
    url = text.partition("#")[0].strip()
    channel = url.rpartition("/")[0].rpartition("/")[0]
    parts = archive_parts(_filename(url))
    if parts is None or not channel:
        imported.add(source, text, Outcome.NOT_UNDERSTOOD, "not the URL of a conda archive")
        return
    name, version, build = parts
    use_channel(imported, channels_without_credentials(channel))
    reason = add_pinned(imported, name, version, build, source)
    if name != "python" and (name, "") not in imported.draft.conda:
        imported.draft.conda.append((name, ""))
    required = "[env] python" if name == "python" else f"`{name}`"
    imported.add(source, channels_without_credentials(text), Outcome.TRANSLATED, f"{required}, {reason}")
