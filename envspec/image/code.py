"""The project's own code in an image: files below the working folder, as the last layer.

A function of the lock and of the files' names, contents and executable bits: times, owners and other modes are the same
on every machine. Everything is read once, before it is named by its hash, so that no edit meanwhile gets under it.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.errors import UsageError
from envspec.image.layers.types import Entry, EntryKind, InMemory
from envspec.image.services import in_order, key_of, owner_of, workdir_path
from envspec.io.archives import parents_of, path_problem
from envspec.io.files import project_files, read_untrusted, tree_sha256
from envspec.models import EDITABLE, LOCAL, WHEEL, Lock, Package
from envspec.names import normalised
from envspec.spec.document import PYPROJECT, in_project, project_of
from envspec.spec.owner import adopted_source, find_spec_of, has_lock_called, is_in_project
from envspec.verifier.regular import FileTooLarge

#: Of the code, in bytes, all of which is in memory: code of 10,000 files has less. Data belongs into a volume.
MAX_CODE_BYTES: Final = 256 << 20

#: Names of files with logins, and of ssh's private keys: `id_rsa`, not `id_map.py`.
_SECRET_NAMES: Final = (".env", ".env.*", ".netrc", "_netrc", ".pypirc", ".git-credentials", "id_*")
_TEMPLATES: Final = ("*.example", "*.sample", "*.template", "*.dist", "id_*.*")
_SECRET_FOLDERS: Final = frozenset({".aws", ".ssh", ".gnupg"})
_SECRET_PATHS: Final = ("/.docker/config.json", "/.kube/config")


class CodeSource(Struct, frozen=True):
    """The last layer: the project's code. files: below the image's root, in order, with their folders."""

    title: str
    files: tuple[Entry, ...]

    @property
    def key(self) -> str:
        return key_of("code", self.files)

    def entries(self) -> Iterator[Entry]:
        return iter(self.files)


def project_folder(lock: Lock) -> Path:
    """The folder of the project that a lock's image contains: its spec's, or the one above if that is called `specs`.

    Raises:
        UsageError: the lock does not know its spec, that is not there or not in the lock's project, or it is another's.
    """
    if source := adopted_source(lock.directory):
        return source.parent
    if lock.directory is None or not lock.spec:
        raise UsageError(
            f"the image of {lock.name} contains the project's code, and where that is is not known",
            hint="name the lock's folder, in a copy of the project",
        )
    spec = find_spec_of(lock.spec, lock.directory)
    if spec is None:
        raise UsageError(
            f"the image of {lock.name} contains the code of the project of {lock.directory / lock.spec}, and there is "
            "no such file",
            hint="build it in a copy of the project, or lock again if the spec was moved",
        )
    if not has_lock_called(lock.name, spec):
        raise UsageError(
            f"the image of {lock.name} contains the code of the project of its spec, and {spec} is not a spec of "
            f"{lock.name}",
            hint="lock the spec again, or build the image in a copy of the project as it was locked",
        )
    return Path(project_of(Path(os.path.abspath(spec)).as_posix()))  # noqa: PTH100 (no links are followed)


def code_key(lock: Lock) -> str:
    """A text that changes with everything of the project that its image depends on.

    Raises:
        UsageError: as `read_code`.
    """
    folder = project_folder(lock)
    source = read_code(lock)
    keys = [source.key if source else ""]
    if lock.image.project == WHEEL:
        keys.append(tree_sha256(folder))
    elif lock.image.project == EDITABLE:
        keys.append(tree_sha256(folder / PYPROJECT))
    for part in lock.resolutions:
        for package in part.packages:
            if package.file.index == LOCAL and package.built is None:
                keys.append(tree_sha256(package_folder(lock, package)))
    return " ".join(keys)


def package_folder(lock: Lock, package: Package) -> Path:
    """The folder that a package of another tool's lock is built of.

    Raises:
        UsageError: it is not there, or not in the lock's project: a lock of somebody else must not choose what of this
            machine is in an image.
    """
    project, name = project_folder(lock), (package.file.url or "").partition("#sha256=")[0]
    start = project
    if lock.directory is not None and lock.spec:
        start = Path(os.path.normpath(os.path.join(os.path.abspath(lock.directory), lock.spec))).parent  # noqa: PTH100, PTH118
    folder = start / name
    problem, hint = "", "use a whole copy of the project"
    if not is_in_project(folder, project):
        problem = "leads out of it"
        hint = "use a git repository that has both, or get the package from an index or from git"
    elif not folder.is_dir():
        problem = "is not there"
    if problem:
        raise UsageError(f"{package.name} is the folder {name} of the project in {project}, which {problem}", hint=hint)
    return folder


def read_code(lock: Lock) -> CodeSource | None:
    """The code that an image of the lock contains beside a wheel; None for none.

    Raises:
        UsageError: a path is missing, not in the project, or can't be in an image; too much of it.
    """
    settings = lock.image
    paths = _copied(lock)
    if not paths:
        return None
    workdir = workdir_path(settings.workdir)
    if workdir is None:
        raise UsageError(
            f"[image] workdir: {settings.workdir} is a folder of the system, and the project's code is copied into it",
            hint='use a folder of your own, such as "/workspace"',
        )
    folder = project_folder(lock)
    owner = owner_of(settings)
    found: dict[str, Entry] = {}
    left = MAX_CODE_BYTES
    for path in paths:
        for inner in _files_in(folder, path):
            entry = _entry(folder / inner, posixpath.join(workdir, inner), owner, left)
            found[entry.path] = entry
            left -= entry.size_bytes
    _check_links(found)
    folders = {workdir}
    for path in found:
        folders.update(folder for folder in parents_of(path) if folder.startswith(f"{workdir}/"))
    entries = {each: Entry(each, 0o755, EntryKind.FOLDER, uid=owner[0], gid=owner[1]) for each in folders} | found
    return CodeSource(f"code of {lock.name}: {', '.join(paths)}", tuple(in_order(entries.values())))


def secret_files(lock: Lock) -> tuple[str, ...]:
    """Files that an image of the lock contains and that, by their names, have passwords, tokens or private keys.

    Paths are relative to the project's folder.

    Raises:
        UsageError: as `read_code`.
    """
    paths = _copied(lock)
    if not paths:
        return ()
    folder = project_folder(lock)
    secrets: list[str] = []
    for path in paths:
        secrets += filter(_is_secret, _files_in(folder, path))
    return tuple(secrets)


def _is_secret(path: str) -> bool:
    *folders, name = path.split("/")
    if not _SECRET_FOLDERS.isdisjoint(folders):
        return True
    if f"/{path}".endswith(_SECRET_PATHS):
        return True
    return _matches(name, _SECRET_NAMES) and not _matches(name, _TEMPLATES)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def source_root(folder: Path, name: str, copied: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Where Python finds the modules of a project, from its folder on, and the paths that an image needs for it.

    name: the project's. copied: paths that the spec names. That is `src`, or the project's folder.

    Raises:
        UsageError: neither has a module, as far as names show.
    """
    if (folder / "src").is_dir() and not (folder / "src" / "__init__.py").exists():
        return "src", ("src",)
    module = normalised(name).replace("-", "_")
    own = next((each for each in (module, f"{module}.py") if _is_module(folder / each)), None)
    if own is None and not any("/" not in each and _is_module(folder / each) for each in copied):
        raise UsageError(
            f"[image] project: {folder} has neither src nor {module}, where an editable install would find its modules",
            hint='name the folders of its modules in [image] copy, or write project = "wheel"',
        )
    return "", (own,) if own else ()


def _is_module(path: Path) -> bool:
    return (path / "__init__.py").is_file() or (path.suffix == ".py" and path.is_file())


def project_name(folder: Path) -> str:
    """The name of the project in a folder.

    Raises:
        UsageError: it has no pyproject.toml with one.
    """
    from envspec import documents

    path = folder / PYPROJECT
    try:
        document = documents.read_toml(path)
        poetry = documents.table_of(document, "tool", "poetry")
        # Poetry before 2 has no [project].
        name = document.get("project", poetry)["name"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = getattr(error, "strerror", None) or "it has no [project] name that can be read"
        raise UsageError(f"[image] project: {path}: {why}", hint="add pyproject.toml with [project] to it") from None
    return str(name)


def _copied(lock: Lock) -> tuple[str, ...]:
    """Paths from the project's folder on, without those in others of them."""
    settings = lock.image
    paths = []
    for each in settings.copy:
        path = in_project(lock.spec, each)
        if path.startswith(("/", "..")):
            raise UsageError(
                f"[image] copy: {each} is outside of the project's folder, {project_folder(lock)}",
                hint="move it there; the project of a spec in a folder `specs` is in the folder above",
            )
        paths.append(path)
    if settings.project == EDITABLE:
        folder = project_folder(lock)
        paths += source_root(folder, project_name(folder), paths)[1]
    whole = sorted(set(paths))
    return tuple(each for each in whole if not _is_below_another(each, whole))


def _is_below_another(path: str, paths: Iterable[str]) -> bool:
    return any(_is_in(path, other) for other in paths if other != path)


def _is_in(path: str, folder: str) -> bool:
    return folder == "." or path.startswith(f"{folder}/")


def _files_in(folder: Path, path: str) -> list[str]:
    """The files and links of a copied path, by their paths from the project's folder on."""
    start = folder / path
    if not start.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"[image] copy: {path} leads out of {folder}", hint="copy what is in the project's folder")
    if not start.exists():
        hint = "correct the path: it starts at the folder of the spec"
        raise UsageError(f"[image] copy: there is no {path} in {folder}", hint=hint)
    try:
        names = list(project_files(folder, path)) if start.is_dir() else [path]
    except OSError as error:
        raise _unreadable(Path(error.filename), error) from error
    if not names:
        raise UsageError(f"[image] copy: there is nothing to copy in {start}", hint="remove it from the spec")
    for name in names:
        if why := path_problem(name):
            raise UsageError(f"[image] copy: {name!r} {why}", hint="rename it")
    return names


def _entry(path: Path, target: str, owner: tuple[int, int], left: int) -> Entry:
    """A file or a link. left: how many bytes it may have."""
    uid, gid = owner
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return Entry(target, 0o777, EntryKind.SYMLINK, target=str(path.readlink()), uid=uid, gid=gid)
        content = read_untrusted(path, left)
    except FileTooLarge:
        raise UsageError(
            f"[image] copy: the code has more than {MAX_CODE_BYTES >> 20} MiB, with {path}",
            hint="copy code only, and mount data into the container",
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from error
    return Entry(target, 0o755 if mode & stat.S_IXUSR else 0o644, data=InMemory(content), uid=uid, gid=gid)


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"[image] copy: {path} can't be read: {error.strerror}", hint="copy readable files and folders")


def _check_links(found: dict[str, Entry]) -> None:
    """Refuse links to what is not copied."""
    for path, entry in found.items():
        if entry.kind is not EntryKind.SYMLINK:
            continue
        end = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.target))
        if entry.target.startswith("/") or not any(each == end or each.startswith(f"{end}/") for each in found):
            raise UsageError(
                f"[image] copy: the link {path} leads to {entry.target!r}, which is not copied",
                hint="copy what it leads to as well, by a relative link, or remove the link",
            )
