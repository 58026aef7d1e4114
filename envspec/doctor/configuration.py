"""The machine's settings for pip and uv, which envspec leaves aside: noticed, so that nobody wonders."""

from __future__ import annotations

import configparser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.doctor.finding import Finding, State
from envspec.doctor.place import Place

#: Settings that would change which packages are found, by their last words.
_SOURCES: Final = ("index", "index_url", "extra_index_url", "default_index", "find_links", "no_index", "constraint")
#: Variables that name a place or a way of talking and change no answer.
_HARMLESS: Final = ("PIP_DISABLE_PIP_VERSION_CHECK", "PIP_DEFAULT_TIMEOUT", "PIP_CERT", "PIP_NO_INPUT", "PIP_NO_COLOR")


@dataclass(frozen=True, slots=True)
class ConfigurationFacts:
    """variables: names of PIP_* and UV_* that are set. files: those that exist, to the names of their settings."""

    variables: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]


def look(place: Place) -> ConfigurationFacts:
    """Names only: values may hold passwords."""
    variables = sorted(name for name in place.environ if name.startswith(("PIP_", "UV_")) and place.environ[name])
    files = {str(path): _settings(path) for path in _files(place) if path.is_file()}
    return ConfigurationFacts(tuple(variables), files)


def judge(facts: ConfigurationFacts) -> tuple[Finding, ...]:
    """A warning where the machine names other sources of packages: what is there needs `[[pip.index]]`."""
    what = "settings of pip and uv"
    told = [name for name in facts.variables if name not in _HARMLESS]
    found = [*told, *(f"{path} ({', '.join(names)})" if names else path for path, names in facts.files.items())]
    if not found:
        return (Finding(what, State.OK, "none that matters"),)
    settings = [*told, *(name for names in facts.files.values() for name in names)]
    if any(_is_source(name) for name in settings):
        todo = "envspec ignores them; packages that come from there need a [[pip.index]] in the spec"
        return (Finding(what, State.WARNING, f"ignored: {'; '.join(found)}", todo),)
    return (Finding(what, State.OK, f"ignored: {'; '.join(found)}"),)


def _is_source(setting: str) -> bool:
    name = setting.lower().replace("-", "_").removeprefix("pip_").removeprefix("uv_")
    return name in _SOURCES


def _files(place: Place) -> Iterator[Path]:
    """Where pip (its user guide, "Configuration files") and uv (its "Configuration files") look."""
    environ, home = place.environ, place.home
    for variable in ("PIP_CONFIG_FILE", "UV_CONFIG_FILE"):
        if (named := environ.get(variable)) and named != "/dev/null":
            yield Path(named)
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [Path(folder) for folder in environ.get("XDG_CONFIG_DIRS", "").split(":") if folder]
    for folder in shared or [place.root / "etc/xdg"]:
        yield folder / "pip" / "pip.conf"
        yield folder / "uv" / "uv.toml"
    yield from (place.root / "etc/pip.conf", place.root / "etc/uv/uv.toml", home / ".pip" / "pip.conf")
    yield from (user / "pip" / "pip.conf", user / "uv" / "uv.toml", place.prefix / "pip.conf")
    yield from (home / "Library" / "Application Support" / "pip" / "pip.conf", home / "pip" / "pip.ini")


def _settings(path: Path) -> tuple[str, ...]:
    """The names of a file's settings; none where it isn't of a form that we know."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    if path.suffix == ".toml":
        return _toml_settings(text)
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        return ()
    return tuple(sorted({name for section in parser.sections() for name in parser.options(section)}))


def _toml_settings(text: str) -> tuple[str, ...]:
    from envspec import toml

    try:
        document = toml.loads(text)
    except ValueError:
        return ()
    below = document.get("pip")
    return tuple(sorted({*document, *(below if isinstance(below, dict) else {})} - {"pip"}))
