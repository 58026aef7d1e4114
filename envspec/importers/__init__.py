"""Importers: what a project has today -> the draft of a spec, and a ledger in which no line is missing."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Final

from envspec.adopt import is_foreign
from envspec.errors import UsageError
from envspec.importers.types import Import, Importer

#: Names of files -> module and function of their importer, the first that matches; and the name that messages show.
IMPORTERS: Final[tuple[tuple[str, str, str], ...]] = (
    (r"pyproject\.toml", "envspec.importers.pyproject:read_pyproject", "pyproject.toml"),
    (r"uv\.lock", "envspec.importers.python_locks:read_locked_project", "uv.lock"),
    (r"poetry\.lock", "envspec.importers.python_locks:read_locked_project", "poetry.lock"),
    (r"pylock(?:\.[^.]+)?\.toml", "envspec.importers.python_locks:read_locked_project", "pylock.toml"),
    (r"pdm\.lock", "envspec.importers.python_locks:read_pdm_lock", "pdm.lock"),
    (r"pixi\.toml", "envspec.importers.pixi:read_pixi", "pixi.toml"),
    (r"conda-lock\.ya?ml", "envspec.importers.conda_locks:read_conda_lock", "conda-lock.yml"),
    (r"conda(?:-.+)?\.lock", "envspec.importers.conda_explicit:read_explicit", "conda-linux-64.lock"),
    (
        r"(?:.*[-_.])?(?:environment|env|conda)(?:[-_.].*)?\.ya?ml",
        "envspec.importers.conda:read_environment",
        "environment.yml",
    ),
    (r"cog\.ya?ml", "envspec.importers.cog:read_cog", "cog.yaml"),
    (r"\.?devcontainer\.json", "envspec.importers.devcontainer:read_devcontainer", "devcontainer.json"),
    (
        r"(?i:.*(?:docker|container)file|(?:docker|container)file(?!.*\.(?:dockerignore|md|sh|py)$).*)",
        "envspec.importers.dockerfile:read_dockerfile",
        "Dockerfile",
    ),
    (r".*\.(?:txt|in|pip)", "envspec.importers.requirements:read_requirements", "requirements.txt"),
    # Environments have other names too: `conda/all_cuda-129_arch-x86_64.yaml`.
    (r"(?!meta\.).*\.ya?ml", "envspec.importers.conda:read_environment", "environment.yml"),
)

#: What a file of another name can be: beginnings of the names that messages show.
KINDS: Final = ("requirements", "dockerfile", "environment", "pyproject", "pixi", "cog", "devcontainer")

#: Where a project keeps them: patterns of paths in its folder, those that decide most first.
_FOLDER_SOURCES: Final = (
    *("pyproject.toml", "requirements*.txt", "requirements/*.txt"),
    *("environment*.y*ml", "conda*.y*ml", "pixi.toml", "cog.y*ml"),
    *("Dockerfile", "docker/Dockerfile", ".devcontainer/devcontainer.json"),
)

#: Locks that a spec can name by `[pip] from`; of several in a folder, the first.
ADOPTED: Final = ("uv.lock", "poetry.lock", "pylock.toml")

#: In names of files, of which no spec can be made.
_OTHER_GPUS: Final = re.compile(r"rocm|xpu|ipex|directml", re.IGNORECASE)


def importer_of(path: Path) -> Importer | None:
    """The importer of a file, by its name; of a folder with an environment, by what is in it. None if there is none."""
    if path.is_dir():
        # A venv, a conda prefix, or a folder with a Python of its own.
        named = "envspec.importers.prefix:read_prefix"
    else:
        named = next((target for form, target, _ in IMPORTERS if re.fullmatch(form, path.name)), "")
    if not named:
        return None
    module, _, function = named.partition(":")
    found: Importer = getattr(import_module(module), function)
    return found


def known_importer(path: Path, kind: str = "") -> Importer:
    """The importer of a source. kind: one of `KINDS`, whatever the source's name is.

    Raises:
        UsageError: it does not exist, or nothing reads files of its name.
    """
    if not path.exists():
        raise UsageError(f"there is no {path}", hint="name a file such as requirements.txt, or the folder of a venv")
    if kind and path.is_file():
        path = Path(next(name for *_, name in IMPORTERS if name.lower().startswith(kind)))
    if (importer := importer_of(path)) is None:
        known = ", ".join(dict.fromkeys(name for *_, name in IMPORTERS))
        raise UsageError(
            f"{path}: no importer reads files of this name",
            hint=f"state what it is with `envspec init --as`; known: {known}, and folders of environments",
        )
    return importer


def sources_in(folder: Path) -> tuple[Path, ...]:
    """The sources that a project's folder may have, those that decide most first: some include others.

    Files whose names say that they are for other GPUs (`requirements_rocm.txt`) are not among them.
    """
    found: dict[Path, None] = {}
    for pattern in _FOLDER_SOURCES:
        for path in sorted(folder.glob(pattern)):
            is_usable = path.is_file() and not _OTHER_GPUS.search(path.name)
            if is_usable and importer_of(path):
                found[path] = None
    return tuple(found)


def project_sources(folder: Path) -> tuple[Path, ...]:
    """The sources of a project's folder for one spec: all of `sources_in`, but beside a lock that has all packages only
    the project, or the lock alone, and what else an image has.
    """
    found = sources_in(folder)
    lock = next((path for name in ADOPTED if is_foreign(path := folder / name) and path.is_file()), None)
    if lock is None:
        return found
    project = folder / "pyproject.toml"
    named = project if project in found else lock
    return (named, *(path for path in found if re.fullmatch(r"(?i:dockerfile|devcontainer\.json)", path.name)))


def new_import(root: Path, extras: tuple[str, ...] = (), groups: tuple[str, ...] = (), target: str = "") -> Import:
    """An import without a source yet.

    root: the folder from which messages name files. extras, groups: that are taken of every project that is read.
    target: the stage of Dockerfiles.
    """
    return Import(root, importer_of, extras, groups, target)
