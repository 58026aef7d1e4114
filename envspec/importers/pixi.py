"""pixi.toml, the same tables in pyproject.toml, and the pixi.lock beside them.

Source: pixi's documentation, "Pixi manifest" (0.81).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from envspec.documents import table_of
from envspec.escaping import cut
from envspec.facts import load_facts
from envspec.facts.tables import numeric
from envspec.importers.conda_specs import (
    add_channel,
    add_name,
    add_pinned,
    add_platform,
    add_requirement,
    order_of_platforms,
    platforms_of,
    python_marker,
    selected,
    with_channel,
    with_markers,
)
from envspec.importers.pip import add_index
from envspec.importers.pip import add_requirement as add_pip_requirement
from envspec.importers.poetry import requirement_of
from envspec.importers.toml_lines import TomlFile, items_of, text_of
from envspec.importers.types import Clue, Import, Outcome, Source, Unreadable
from envspec.importers.variables import READ, read_variable
from envspec.models import CudaVersion
from envspec.names import normalised
from envspec.spec.dates import read_as_of
from envspec.spec.errors import BadValue, KeyPath

_WORKSPACES: Final = ("workspace", "project")
_DEPENDENCIES: Final = ("dependencies", "host-dependencies", "build-dependencies")
_UNITS: Final = {"h": "hour", "d": "day", "w": "week"}
_NOT_DEFAULT: Final = "not in pixi's default environment, which is the one that is imported"
#: Keys of a dependency -> those of a match spec.
_MATCH_SPEC_KEYS: Final = {
    **{"version": "version", "build": "build", "build-number": "build_number"},
    **{"md5": "md5", "sha256": "sha256", "file-name": "fn"},
}
#: What becomes of tables and keys that are not read.
_NOT_READ: Final = {
    "tasks": (Outcome.OUTSIDE, "a task is not part of an environment: run it with `envspec run`"),
    "constraints": (Outcome.REFUSED, "[conda] has no constraints: require the package with its versions"),
    "dev": (Outcome.REFUSED, "source dependencies of packages that pixi builds are not supported"),
    "package": (Outcome.REFUSED, "packages that pixi builds are not supported: require the published package"),
    "$schema": (Outcome.TRANSLATED, "it is for editors"),
    **dict.fromkeys(
        (
            *("version", "description", "authors", "license", "license-file", "readme", "homepage", "repository"),
            *("documentation", "preview", "requires-pixi", "conda-pypi-map", "s3-options", "pinning-strategy"),
        ),
        (Outcome.TRANSLATED, "it is about the project, not its environment"),
    ),
}
#: In characters, of an entry's text.
_LONGEST: Final = 200
_UNKNOWN: Final = (Outcome.NOT_UNDERSTOOD, "no key of pixi's manifests that is known")


class _Manifest(Struct, frozen=True):
    """The tables of pixi, where they are.

    prefix: `("tool", "pixi")` in pyproject.toml.
    """

    imported: Import
    file: TomlFile
    prefix: KeyPath

    def at(self, *keys: str | int) -> Source:
        return self.file.at(*self.prefix, *keys)

    def text(self, *keys: str | int) -> str:
        """A key and its value as they are written, or an item of a list."""
        written = self.file.written(*self.prefix, *keys)
        if isinstance(keys[-1], int):
            return written
        return f"{keys[-1]} = {written}"

    def add(self, keys: Iterable[str | int], outcome: Outcome, reason: str = "") -> None:
        self.imported.add(self.at(*keys), cut(self.text(*keys), _LONGEST), outcome, reason)

    def not_read(self, value: object, keys: tuple[str | int, ...]) -> None:
        """Entries for a table or a key that is not read."""
        self.add_all(value, keys, *_NOT_READ.get(str(keys[-1]), _UNKNOWN))

    def add_all(self, value: object, keys: tuple[str | int, ...], outcome: Outcome, reason: str) -> None:
        """One entry for each line of a table that is not in the spec."""
        if isinstance(value, dict) and value and not self.text(*keys).partition("= ")[2].startswith("{"):
            for key, each in value.items():
                self.add_all(each, (*keys, key), outcome, reason)
        else:
            self.add(keys, outcome, reason)


def read_pixi(path: Path, imported: Import) -> None:
    """pixi.toml: its default environment, and the versions in pixi.lock.

    Raises:
        Unreadable: it is not TOML, or has no workspace.
    """
    file = TomlFile(path, imported)
    if not any(isinstance(file.data.get(name), dict) for name in (*_WORKSPACES, "package")):
        raise Unreadable(f"{imported.shown(path)} is not a manifest of pixi: it has no [workspace]")
    read_tables(file, imported)


def read_tables(file: TomlFile, imported: Import, *prefix: str) -> None:
    """The tables of a manifest. prefix: `tool`, `pixi` for those of a pyproject.toml."""
    manifest, tables = _Manifest(imported, file, prefix), file.table(*prefix)
    for name in _WORKSPACES:
        _read_workspace(manifest, table_of(tables, name), name)
    default = _features(manifest, table_of(tables, "environments"))
    _read_feature(manifest, tables, ())
    for name, feature in table_of(tables, "feature").items():
        if name in default and isinstance(feature, dict):
            _read_feature(manifest, feature, ("feature", name))
        else:
            manifest.add_all(feature, ("feature", name), Outcome.TRANSLATED, f"the feature {name} is {_NOT_DEFAULT}")
    for key in tables:
        if key not in (*_WORKSPACES, *_FEATURE_KEYS, "feature", "environments", "target"):
            manifest.not_read(tables[key], (key,))
    if (lock := file.path.with_name("pixi.lock")).is_file():
        _read_lock(imported, lock)


def _read_workspace(manifest: _Manifest, workspace: Mapping[str, Any], table: str) -> None:
    imported = manifest.imported
    # Requirements of a platform depend on the list of platforms.
    for key, value in workspace.items():
        source = manifest.at(table, key)
        if key == "name" and isinstance(value, str):
            add_name(imported, source, value)
        elif key == "channels" and isinstance(value, list):
            _read_channels(manifest, value, (table, key))
        elif key == "platforms" and isinstance(value, list):
            for at, platform in enumerate(value):
                if isinstance(platform, str):
                    add_platform(imported, manifest.at(table, key, at), platform)
                else:
                    manifest.add((table, key, at), Outcome.NOT_UNDERSTOOD, "a platform is a name here")
        elif key == "channel-priority":
            outcome = Outcome.TRANSLATED if value == "strict" else Outcome.REFUSED
            manifest.add((table, key), outcome, "channels have strict priority, in their order")
        elif key == "exclude-newer" and (time := _as_of(value)):
            imported.draft.as_ofs.append(Clue(time, source, "exclude-newer of pixi"))
            manifest.add((table, key), Outcome.TRANSLATED, f"[env] as_of = {time}")
        else:
            manifest.not_read(value, (table, key))


def _as_of(value: object) -> str:
    """pixi's date, time or age as [env] as_of has it; empty if it can't."""
    if isinstance(value, (date, datetime)):
        value = value.isoformat()
    text = str(value)
    if age := re.fullmatch(r"(\d{1,4}) ?(h|d|w|hour|day|week)s?", text):
        text = f"{age[1]} {_UNITS.get(age[2], age[2])}s ago"
    try:
        read_as_of(text)
    except (ValueError, OverflowError):
        return ""
    return text


def _features(manifest: _Manifest, environments: Mapping[str, Any]) -> set[str]:
    """The features of the default environment; entries for all environments."""
    found: set[str] = set()
    for name, value in environments.items():
        features = value.get("features", []) if isinstance(value, dict) else value
        if name == "default" and isinstance(features, list):
            found = {each for each in features if isinstance(each, str)}
            manifest.add_all(value, ("environments", name), Outcome.TRANSLATED, "with these features")
        else:
            manifest.add_all(value, ("environments", name), Outcome.TRANSLATED, f"it is {_NOT_DEFAULT}")
    return found


def _read_feature(manifest: _Manifest, tables: Mapping[str, Any], at: tuple[str, ...]) -> None:
    """The tables that a feature can have, which the manifest has itself too, for all platforms and for some.

    at: `("feature", NAME)`; empty for the manifest itself, whose other keys its workspace has.
    """
    for key, read in _FEATURE_KEYS.items():
        if key in tables and (at or key not in ("channels", "platforms")):
            read(manifest, tables[key], (*at, key), ())
    for target in table_of(tables, "target"):
        _read_target(manifest, table_of(tables, "target", target), (*at, "target", target))
    for key, value in tables.items():
        if at and key not in (*_FEATURE_KEYS, "target"):
            manifest.not_read(value, (*at, key))


def _read_target(manifest: _Manifest, tables: Mapping[str, Any], at: tuple[str, ...]) -> None:
    """The tables of a feature for one platform or for several, by the last word of `at`."""
    platforms = selected(at[-1], platforms_of(manifest.imported))
    for key, value in tables.items():
        if key not in _FEATURE_KEYS:
            manifest.not_read(value, (*at, key))
        elif platforms == ():
            manifest.add_all(value, (*at, key), Outcome.TRANSLATED, f"{at[-1]} is none of the spec's platforms")
        else:
            _FEATURE_KEYS[key](manifest, value, (*at, key), platforms or ())


Keys = tuple[str | int, ...]


def _read_channels(manifest: _Manifest, value: object, keys: Keys, _platforms: tuple[str, ...] = ()) -> None:
    """By priority: that of a table first, then the order."""
    channels = items_of(value)
    for at in sorted(range(len(channels)), key=lambda at: -_priority(channels[at])):
        channel, where = channels[at], (*keys, at)
        if isinstance(channel, dict):
            channel = channel.get("channel")
        if isinstance(channel, str):
            add_channel(manifest.imported, manifest.at(*where), channel, manifest.text(*where).strip("'\""))
        else:
            manifest.add(where, Outcome.NOT_UNDERSTOOD, "not a channel")


def _priority(channel: object) -> int:
    value = table_of(channel).get("priority")
    return value if isinstance(value, int) else 0


def _read_conda(manifest: _Manifest, value: object, keys: Keys, platforms: tuple[str, ...]) -> None:
    for name, each in _entries(manifest, value, keys):
        where = (*keys, name)
        spec = _match_spec(name, each)
        if spec is None:
            reason = "packages by URL, path or repository are not supported: require a package of a channel"
            manifest.add(where, Outcome.REFUSED, reason)
        else:
            text = cut(manifest.text(*where), _LONGEST)
            add_requirement(manifest.imported, manifest.at(*where), spec, platforms, text)


def _entries(manifest: _Manifest, value: object, keys: Keys) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    else:
        manifest.add(keys, Outcome.NOT_UNDERSTOOD, "not a table")


def _match_spec(name: str, value: object) -> str | None:
    """A dependency as a match spec; None if it is from nowhere that a spec can name."""
    table = _table_with_version(value)
    if not table.keys() <= {*_MATCH_SPEC_KEYS, "channel", "subdir"}:
        return None
    spec = with_channel(table.get("channel"), name)
    pairs: dict[str, str] = {}
    for key, of_spec in _MATCH_SPEC_KEYS.items():
        if table.get(key, "*") != "*":
            pairs[of_spec] = f"{of_spec}='{table[key]}'"
    if not pairs:
        return spec
    if pairs.keys() == {"version"}:
        return f"{spec} {table['version']}"
    return f"{spec}[{','.join(pairs.values())}]"


def _table_with_version(value: object) -> dict[str, Any]:
    """The table of a dependency, which may be written as its version alone."""
    return dict(value) if isinstance(value, dict) else {"version": value}


def _read_pypi(manifest: _Manifest, value: object, keys: Keys, platforms: tuple[str, ...]) -> None:
    folder = manifest.file.path.parent
    for name, each in _entries(manifest, value, keys):
        where = (*keys, name)
        table = _table_with_version(each)
        is_editable, index = table.pop("editable", False), table.pop("index", None)
        marker = text_of(table, "env-markers")
        table.pop("env-markers", None)
        try:
            text = requirement_of(name, table)
        except BadValue as error:
            manifest.add(where, Outcome.NOT_UNDERSTOOD, f"{error}; {error.hint}")
            continue
        text = with_markers(text, marker, python_marker(platforms))
        source = manifest.at(*where)
        notes: tuple[str, ...] = ()
        if is_editable:
            notes += ("not editable: a wheel is built of it",)
        if isinstance(index, str):
            verdict = add_index(index, source, manifest.imported, packages=(normalised(name),))
            notes += (f"its index: {verdict.reason}",)
        outcome, reason = add_pip_requirement(text, source, manifest.imported, folder, notes=notes)
        if not outcome.is_lost:
            outcome, reason = Outcome.TRANSLATED, "; ".join(filter(None, (f"`{text}`", reason)))
        manifest.add(where, outcome, reason)


def _read_pypi_options(manifest: _Manifest, value: object, keys: Keys, _platforms: tuple[str, ...]) -> None:
    imported = manifest.imported
    for name, each in _entries(manifest, value, keys):
        where = (*keys, name)
        if name == "index-url" and isinstance(each, str):
            manifest.add(where, *add_index(each, manifest.at(*where), imported, is_default=True))
        elif name == "extra-index-urls" and isinstance(each, list):
            for at, url in enumerate(each):
                manifest.add((*where, at), *add_index(str(url), manifest.at(*where, at), imported))
        elif name == "find-links" and isinstance(each, list):
            for at, links in enumerate(each):
                table = table_of(links)
                address = str(table.get("url", table.get("path", "")))
                manifest.add((*where, at), *add_index(address, manifest.at(*where, at), imported, is_links=True))
        elif name == "index-strategy":
            manifest.add(where, Outcome.TRANSLATED, "each package comes from one index: [[pip.index]] packages")
        else:
            manifest.add_all(each, where, Outcome.NOT_UNDERSTOOD, "no option of a spec does the same")


def _read_system(manifest: _Manifest, value: object, keys: Keys, _platforms: tuple[str, ...]) -> None:
    for name, each in _entries(manifest, value, keys):
        where, source = (*keys, name), manifest.at(*keys, name)
        version = str(_table_with_version(each).get("version", ""))
        if name == "cuda" and (driver := _driver_of(version)):
            why = f"{driver} is the oldest with CUDA {version}"
            manifest.imported.draft.drivers.append(Clue(driver, source, why))
            manifest.add(where, Outcome.TRANSLATED, f"[cuda] driver: {why}")
        elif name == "cuda":
            manifest.add(where, Outcome.NOT_UNDERSTOOD, "no driver of this CUDA is known: set [cuda] driver")
        elif name == "libc":
            reason = "[cuda] os decides the glibc of the image"
            for system in load_facts().systems:
                if system.glibc == version and "ubuntu" in system.os:
                    manifest.imported.draft.systems.append(Clue(system.os, source, f"its glibc is {version}"))
                    reason = f"[cuda] os: {system.os} has this glibc"
                    break
            manifest.add(where, Outcome.TRANSLATED, reason)
        else:
            reason = f'write it as [conda.virtual_packages] __{name.replace("macos", "osx")} = "{version}"'
            manifest.add_all(each, where, Outcome.REFUSED, reason)


def _driver_of(version: str) -> str:
    """The oldest driver whose newest CUDA is `version` or later; empty if none is known.

    pixi's `__cuda` is the newest CUDA of the machine's driver, not the one of its packages.
    """
    facts, series = load_facts(), ".".join(version.split(".")[:2])
    for family in facts.driver_families:
        if str(family.cuda) == version:
            return family.minimum
    bundled = [row.bundled for row in facts.drivers if str(CudaVersion.parse(row.cuda)) == series]
    return min(filter(None, bundled), key=numeric, default="")


def _read_activation(manifest: _Manifest, value: object, keys: Keys, platforms: tuple[str, ...]) -> None:
    for name, each in _entries(manifest, value, keys):
        if name != "env" or not isinstance(each, dict):
            reason = "scripts of an activation do not run: set what they set in [image] env"
            manifest.add_all(each, (*keys, name), Outcome.REFUSED, reason)
            continue
        for variable, text in each.items():
            where = (*keys, name, variable)
            if platforms:
                manifest.add(where, Outcome.REFUSED, "[image] env is for all platforms")
            elif "$" in str(text) and variable not in READ:
                manifest.add(where, Outcome.REFUSED, "variables in values are not replaced: write the value")
            else:
                line = f'{variable} = "{text}"'
                read_variable(variable, str(text), manifest.at(*where), line, manifest.imported)


def _note_platforms(manifest: _Manifest, _value: object, keys: Keys, _platforms: tuple[str, ...]) -> None:
    manifest.add(keys, Outcome.TRANSLATED, "the spec is for the platforms of the workspace")


_FEATURE_KEYS: Final[Mapping[str, Callable[[_Manifest, object, Keys, tuple[str, ...]], None]]] = {
    "channels": _read_channels,
    "platforms": _note_platforms,
    **dict.fromkeys(_DEPENDENCIES, _read_conda),
    "pypi-options": _read_pypi_options,
    "pypi-dependencies": _read_pypi,
    "system-requirements": _read_system,
    "activation": _read_activation,
}


def _read_lock(imported: Import, path: Path) -> None:
    """The versions of pixi.lock's default environment."""
    file, text = imported.shown(path), imported.read(path)
    # The library of all conda work is large, and few folders have a pixi.lock.
    from rattler.lock import LockFile

    try:
        environment = LockFile.from_path(path).default_environment()
        packages = environment.packages_by_platform() if environment else {}
    # The errors of rattler have no class in common.
    except Exception as error:
        reason = f"py-rattler can't read it: {' '.join(str(error).split())[:200]}"
        imported.add(Source(file), "pixi.lock", Outcome.NOT_UNDERSTOOD, reason)
        return
    lines = {line.strip().partition(": ")[2]: number for number, line in enumerate(text.splitlines(), 1)}
    order = order_of_platforms(imported)
    for platform in sorted(packages, key=lambda each: order(each.name)):
        for package in packages[platform]:
            source = Source(file, lines.get(package.location, 0))
            record = getattr(package, "package_record", None)
            if record is not None:
                reason = add_pinned(imported, record.name.normalized, str(record.version), str(record.build), source)
            else:
                version = str(getattr(package, "version", "") or "")
                imported.draft.versions.setdefault(normalised(package.name), version)
                reason = f"preferred version {version}"
            imported.add(source, f"{package.name} on {platform.name}", Outcome.TRANSLATED, reason)
