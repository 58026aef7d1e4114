"""The system and envspec's configuration."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.diagnostics.doctor.types import Finding, Interpreter, Place, Space, State
from envspec.io.cache import UnsafeCache

_GIB: Final = 2**30
#: Docker gives a container 64 MB, which NCCL and DataLoader workers use up (NVIDIA/nccl issue 342).
_ENOUGH_SHM: Final = _GIB
#: A torch stack with PyG is 7.8 GB unpacked (measured 2026-11-20), and wheels and installation stand side by side.
_ENOUGH_DISK: Final = 20 * 10**9


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """shm: of `/dev/shm`, None where the system has none. disk: of the cache's file system. uv: its version.

    open_cache: why the cache is not safe from other users.
    """

    system: str
    shm: Space | None
    cache: Path
    open_cache: UnsafeCache | None
    disk: Space | None
    python: Interpreter
    uv: str | None


async def observe_system(place: Place) -> SystemFacts:
    """Ask the file systems, and uv for its version."""
    shm = place.root / "dev/shm"
    return SystemFacts(
        system=place.system,
        shm=place.space(shm) if place.system == "linux" and shm.is_dir() else None,
        cache=place.cache,
        open_cache=place.open_cache(),
        disk=place.space(place.cache),
        python=place.python,
        uv=await _uv(place),
    )


def judge_system(facts: SystemFacts) -> tuple[Finding, ...]:
    """One finding for each; of the cache, where something is wrong with it."""
    return (_shm(facts), _disk(facts), *_cache(facts), _python(facts.python), _uv_finding(facts.uv))


def _shm(facts: SystemFacts) -> Finding:
    what = "shared memory"
    if facts.system != "linux":
        return Finding(what, State.NOT_APPLICABLE, "Linux alone has it")
    todo = "start the container with `--shm-size=8g` or `--ipc=host`: training on several GPUs breaks without"
    if facts.shm is None:
        return Finding(what, State.MISSING, "there is no /dev/shm", todo)
    found = f"{size(facts.shm.total_bytes)} in /dev/shm"
    if facts.shm.total_bytes < _ENOUGH_SHM:
        return Finding(what, State.WARNING, found, todo)
    return Finding(what, State.OK, found)


def _disk(facts: SystemFacts) -> Finding:
    what = "disk"
    if facts.disk is None:
        return Finding(what, State.WARNING, f"{facts.cache} can't be looked at", "name another ENVSPEC_CACHE_DIR")
    found = f"{size(facts.disk.free_bytes)} free at {facts.cache}"
    if facts.disk.free_bytes < _ENOUGH_DISK:
        todo = "a torch stack is 8 GB (locking alone needs less than 1): make room or name another ENVSPEC_CACHE_DIR"
        return Finding(what, State.WARNING, found, todo)
    return Finding(what, State.OK, found)


def _cache(facts: SystemFacts) -> tuple[Finding, ...]:
    if facts.open_cache is None:
        return ()
    return (Finding("cache", State.MISSING, facts.open_cache.message, facts.open_cache.hint or ""),)


def _python(python: Interpreter) -> Finding:
    found = f"{python.version}, {python.executable}"
    if python.virtual:
        return Finding("Python", State.OK, f"{found}, a virtual environment")
    todo = "its packages belong to the system: install envspec into a virtual environment" if python.managed else ""
    return Finding("Python", State.OK, found, todo)


def _uv_finding(version: str | None) -> Finding:
    if version is None:
        todo = "install envspec again: uv, a dependency of envspec's, brings its program"
        return Finding("uv", State.MISSING, "its program isn't there or can't be run", todo)
    return Finding("uv", State.OK, version)


async def _uv(place: Place) -> str | None:
    path = place.uv()
    done = await place.ask((path, "--version")) if path else None
    found = re.search(r"\d+(?:\.\d+)+", done.stdout) if done and done.status == 0 else None
    return found[0] if found else None


def size(size_bytes: int) -> str:
    """`64 MiB`, `23.5 GiB`."""
    if size_bytes < _GIB:
        return f"{size_bytes / 2**20:.0f} MiB"
    return f"{size_bytes / _GIB:.1f} GiB"


#: Settings that would change which packages are found, by their last words.
_SOURCES: Final = ("index", "index_url", "extra_index_url", "default_index", "find_links", "no_index", "constraint")
#: Variables that name a place or a way of talking and change no answer.
_HARMLESS: Final = ("PIP_DISABLE_PIP_VERSION_CHECK", "PIP_DEFAULT_TIMEOUT", "PIP_CERT", "PIP_NO_INPUT", "PIP_NO_COLOR")


@dataclass(frozen=True, slots=True)
class ConfigurationFacts:
    """variables: names of PIP_* and UV_* that are set. files: those that exist, to the names of their settings."""

    variables: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]


def observe_configuration(place: Place) -> ConfigurationFacts:
    """Names only: values may hold passwords."""
    variables = sorted(name for name in place.environ if name.startswith(("PIP_", "UV_")) and place.environ[name])
    files = {str(path): _settings(path) for path in _files(place) if path.is_file()}
    return ConfigurationFacts(tuple(variables), files)


def judge_configuration(facts: ConfigurationFacts) -> tuple[Finding, ...]:
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
