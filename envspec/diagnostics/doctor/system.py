"""The system, and settings of pip and uv."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envspec.diagnostics.doctor.types import DoctorContext, DoctorFinding, FindingState

_GIB: Final = 2**30
#: Docker gives a container 64 MB, which NCCL and DataLoader workers use up (NVIDIA/nccl issue 342).
_ENOUGH_SHM: Final = _GIB
#: A torch stack with PyG is 7.8 GB unpacked (measured 2026-11-20), beside its wheels.
_ENOUGH_DISK: Final = 20 * 10**9


def system_findings(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield _shm(context)
    disk = context.space(context.cache)
    if disk is None:
        found = f"the space at {context.cache} can't be read"
        yield DoctorFinding("disk", FindingState.WARNING, found, "name another ENVSPEC_CACHE_DIR")
    else:
        found, is_enough = f"{_size(disk.free_bytes)} free at {context.cache}", disk.free_bytes >= _ENOUGH_DISK
        todo = "a torch stack is 8 GB (locking alone needs less than 1): make room or name another ENVSPEC_CACHE_DIR"
        state = FindingState.OK if is_enough else FindingState.WARNING
        yield DoctorFinding("disk", state, found, "" if is_enough else todo)
    if problem := context.open_cache():
        yield DoctorFinding("cache", FindingState.MISSING, problem.message, problem.hint or "")
    python = context.python
    virtual = ", a virtual environment" if python.virtual else ""
    managed = "its packages belong to the system: install envspec into a virtual environment"
    todo = managed if python.managed and not python.virtual else ""
    yield DoctorFinding("Python", FindingState.OK, f"{python.version}, {python.executable}{virtual}", todo)


def _shm(context: DoctorContext) -> DoctorFinding:
    what = "shared memory"
    if context.system != "linux":
        return DoctorFinding(what, FindingState.NOT_APPLICABLE, "for Linux only")
    todo = "start the container with `--shm-size=8g` or `--ipc=host`: training on several GPUs fails without"
    path = context.root / "dev/shm"
    shm = context.space(path) if path.is_dir() else None
    if shm is None:
        return DoctorFinding(what, FindingState.MISSING, "there is no /dev/shm", todo)
    found = f"{_size(shm.total_bytes)} in /dev/shm"
    if shm.total_bytes < _ENOUGH_SHM:
        return DoctorFinding(what, FindingState.WARNING, found, todo)
    return DoctorFinding(what, FindingState.OK, found)


async def uv_finding(context: DoctorContext) -> DoctorFinding:
    path = context.uv()
    version = await context.version(path) if path else None
    if not version:
        todo = "install envspec again: uv is one of its dependencies"
        return DoctorFinding("uv", FindingState.MISSING, "its program is missing or can't be run", todo)
    return DoctorFinding("uv", FindingState.OK, version)


def _size(size_bytes: int) -> str:
    """`64 MiB`, `23.5 GiB`."""
    return f"{size_bytes / 2**20:.0f} MiB" if size_bytes < _GIB else f"{size_bytes / _GIB:.1f} GiB"


#: Settings that change which packages are found.
_SOURCES: Final = ("index", "index_url", "extra_index_url", "default_index", "find_links", "no_index", "constraint")
#: Variables that change no result.
_HARMLESS: Final = ("PIP_DISABLE_PIP_VERSION_CHECK", "PIP_DEFAULT_TIMEOUT", "PIP_CERT", "PIP_NO_INPUT", "PIP_NO_COLOR")


def configuration_finding(context: DoctorContext) -> DoctorFinding:
    """A warning if the machine names other sources of packages, which need `[[pip.index]]`.

    Only names of settings: their values may contain passwords.
    """
    what, environ = "settings of pip and uv", context.environ
    prefixes = ("PIP_", "UV_")
    variables = sorted(
        each for each in environ if each.startswith(prefixes) and environ[each] and each not in _HARMLESS
    )
    files = {str(path): _settings(path) for path in _files(context) if path.is_file()}
    found = [*variables, *(f"{path} ({', '.join(names)})" if names else path for path, names in files.items())]
    if not found:
        return DoctorFinding(what, FindingState.OK, "none that matters")
    settings = [*variables, *(name for names in files.values() for name in names)]
    if any(_is_source(name) for name in settings):
        todo = "envspec ignores them; packages of these sources need a [[pip.index]] in the spec"
        return DoctorFinding(what, FindingState.WARNING, f"ignored: {'; '.join(found)}", todo)
    return DoctorFinding(what, FindingState.OK, f"ignored: {'; '.join(found)}")


def _is_source(setting: str) -> bool:
    return setting.lower().replace("-", "_").removeprefix("pip_").removeprefix("uv_") in _SOURCES


def _files(context: DoctorContext) -> Iterator[Path]:
    """Configuration files of pip (its user guide, "Configuration files") and uv (its "Configuration files")."""
    environ, home, root = context.environ, context.home, context.root
    for variable in ("PIP_CONFIG_FILE", "UV_CONFIG_FILE"):
        if (named := environ.get(variable)) and named != "/dev/null":
            yield Path(named)
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [Path(folder) for folder in environ.get("XDG_CONFIG_DIRS", "").split(":") if folder]
    for folder in shared or [root / "etc/xdg"]:
        yield from (folder / "pip" / "pip.conf", folder / "uv" / "uv.toml")
    yield from (root / "etc/pip.conf", root / "etc/uv/uv.toml", home / ".pip" / "pip.conf")
    yield from (user / "pip" / "pip.conf", user / "uv" / "uv.toml", context.prefix / "pip.conf")
    yield from (home / "Library" / "Application Support" / "pip" / "pip.conf", home / "pip" / "pip.ini")


def _settings(path: Path) -> tuple[str, ...]:
    """The names of a file's settings; none if it can't be parsed."""
    from envspec import toml

    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            document = toml.loads(text)
            pip = document.get("pip")
            return tuple(sorted({*document, *(pip if isinstance(pip, dict) else {})} - {"pip"}))
        parser = configparser.RawConfigParser()
        parser.read_string(text)
    except (OSError, ValueError, configparser.Error):
        return ()
    return tuple(sorted({name for section in parser.sections() for name in parser.options(section)}))
