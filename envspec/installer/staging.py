"""Environments are built in a folder beside the prefix and renamed when complete."""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.errors import EnvspecError, UsageError
from envspec.installer.request import InstallRequest
from envspec.io.file_locks import is_same_file, wait_for_lock
from envspec.io.files import FULL, DiskFull, make_directories, remove_tree, replace_content, sync_directory
from envspec.names import normalised
from envspec.verifier.installed import list_own_files
from envspec.verifier.own_files import LIST
from envspec.verifier.regular import read_regular
from envspec.verifier.scan import find_environment

#: envspec's own folder in an environment.
FOLDER: Final = ".envspec"
_FILE: Final = "installed.json"


def record_of(request: InstallRequest) -> dict[str, str]:
    return {
        "name": request.lock.name,
        "platform": request.platform.value,
        "input_sha256": request.lock.input_sha256,
        "lock_sha256": request.lock_sha256,
        "prefix": str(request.prefix),
    }


def write_record(folder: Path, record: dict[str, str]) -> None:
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / FOLDER / _FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_list(folder: Path) -> None:
    """List the files of a finished environment that are no package's, for `envspec verify`."""
    text = list_own_files(find_environment(folder))
    (folder / LIST).write_text(text, encoding="utf-8", errors="surrogateescape")


def read_record(prefix: Path) -> dict[str, str] | None:
    """The record of the environment in `prefix`; None if there is none that can be read."""
    try:
        data = json.loads(read_regular(prefix / FOLDER / _FILE))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    return {str(key): value for key, value in data.items() if isinstance(value, str)}


_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_POLL_S: Final = 0.1


class StagingFolder(Struct, frozen=True):
    """A folder to build in. descriptor: locks it; programs that write there inherit it."""

    path: Path
    prefix: Path
    descriptor: int

    def finish(self) -> None:
        """Rename the folder to the prefix.

        Raises:
            UsageError: the prefix was filled meanwhile.
        """
        try:
            self.path.rename(self.prefix)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise _occupied(self.prefix, "it is no longer empty") from error
            raise
        sync_directory(self.prefix.parent)


def staging_path(prefix: Path) -> Path:
    """The folder in which the environment of `prefix` is built."""
    return prefix.with_name(f".{prefix.name}.envspec-partial")


def is_installed(prefix: Path, record: dict[str, str]) -> bool:
    """Whether `prefix` has the environment of a record, not nothing.

    Raises:
        UsageError: it has other contents, or is a mount point or the current directory, which a rename can't replace.
    """
    try:
        is_empty = not any(prefix.iterdir())
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ENOTDIR and os.path.lexists(prefix):
            raise _occupied(prefix, "it is a file") from error
        raise creation_error(prefix, error) from error
    if is_empty:
        _refuse_fixed(prefix)
        return False
    existing = read_record(prefix)
    if existing == record:
        return True
    if existing is None:
        raise _occupied(prefix, "it is not empty")
    if existing.get("prefix") != record["prefix"]:
        raise _occupied(prefix, f"its environment was made for {existing.get('prefix')} and moved since")
    if existing.get("lock_sha256") != record["lock_sha256"]:
        raise _occupied(prefix, f"it has the environment of another lock ({existing.get('name')})")
    raise _occupied(prefix, f"it has the environment for {existing.get('platform')}")


def _refuse_fixed(prefix: Path) -> None:
    """Refuse an empty folder that a rename can't replace."""
    if os.path.ismount(prefix):
        raise UsageError(
            f"{prefix} is a mount point, which a finished environment can't replace",
            hint=f"use a folder inside it: --prefix {prefix / 'env'}",
        )
    with contextlib.suppress(OSError):
        if not prefix.samefile(Path.cwd()):
            return
        raise UsageError(
            f"{prefix} is the current directory, which a finished environment can't replace",
            hint="run it from another directory, or use a folder inside: --prefix env",
        )


def _occupied(prefix: Path, why: str) -> UsageError:
    return UsageError(
        f"{prefix}: {why}; nothing was changed",
        hint="use a new folder, or remove this one first: existing environments are never changed",
    )


@contextlib.contextmanager
def staging(prefix: Path, on_wait: Callable[[], None]) -> Iterator[StagingFolder]:
    """A folder to build the environment of `prefix` in, locked against other runs, empty, and removed if not finished.

    on_wait: called once if another run has the folder locked; its lock ends with it, however it ends.

    Raises:
        UsageError: the folder can't be created, or is another user's. DiskFull.
    """
    path = staging_path(prefix)
    created = [folder for folder in prefix.parents if not folder.exists()]
    try:
        make_directories(prefix.parent)
        descriptor = wait_for_lock(path, lambda: _open_own(path), _POLL_S, on_wait)
    except OSError as error:
        _remove_empty(created)
        raise creation_error(prefix, error) from error
    try:
        _empty(path)
        yield StagingFolder(path, prefix, descriptor)
    except OSError as error:
        raise creation_error(prefix, error) from error
    finally:
        # After the rename, the name is free or another run's, whose folder must not be removed.
        if is_same_file(path, descriptor):
            _empty(path)
            _remove_empty([path, *created])
        os.close(descriptor)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders that this run created, innermost first, if they are still empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _open_own(path: Path) -> int:
    while True:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o755)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            # Another run renamed or removed it meanwhile.
            continue
        if os.fstat(descriptor).st_uid != os.geteuid():
            os.close(descriptor)
            raise UsageError(
                f"{path}, where the environment is built, belongs to another user",
                hint="have it removed, or choose a folder of your own by --prefix",
            )
        return descriptor


def _empty(folder: Path) -> None:
    for item in folder.iterdir():
        remove_tree(item)


def creation_error(prefix: Path, error: OSError) -> EnvspecError:
    """The system's error during the creation of `prefix` as envspec's own."""
    if error.errno in FULL:
        return DiskFull(
            f"no space left while {prefix} was created: {error.strerror}",
            hint="free space and run the same command again; only fetched files are kept",
        )
    why, hint = f"{error.filename or prefix}: {error.strerror or error}", "choose another folder by --prefix"
    if error.errno in _FORBIDDEN:
        hint = f"make {prefix.parent} writable, or {hint}"
    elif error.errno in {errno.ENOTDIR, errno.EEXIST}:
        why = "a part of that path is a file"
    return UsageError(f"{prefix} can't be created: {why}", hint=hint)


# The folder's name between slashes, in any quoting of a shell or a script.
_PARTIAL: Final = re.compile(rb"/\.([^/\n\0]{1,400}?)\.envspec-partial")
_MARK: Final = b".envspec-partial"


def relocate(site: Path) -> tuple[Path, ...]:
    """Replace the staging path by the final one in scripts, links and pyvenv.cfg of `site`; the changed files.

    Hashes and sizes in RECORD are corrected. Files are replaced, never written to: they may be hard links into a cache.

    Raises:
        EnvspecError: a binary program contains the staging path.
    """
    changed = tuple(path for path in _candidates(site) if _rewrite(path, site))
    for folder in site_packages(site):
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            _correct(record, folder, frozenset(map(os.path.normpath, changed)))
    return changed


def unlink_metadata(site: Path, names: Collection[str]) -> None:
    """Replace hard links in `*.dist-info` by copies: uv links files to its cache, reads these there, and does not
    check them.

    names: normalised, of the packages that uv has installed. Those of conda are not uv's.
    """
    for folder in site_packages(site):
        for metadata in folder.glob("*.dist-info"):
            if normalised(metadata.name.partition("-")[0]) in names:
                _copy_links(metadata)


def _copy_links(folder: Path) -> None:
    for path in folder.glob("**/*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink > 1:
            replace_content(path, path.read_bytes())


def site_packages(site: Path) -> tuple[Path, ...]:
    """The folders that wheels are installed into."""
    return tuple(sorted(path for path in site.glob("lib/python3.*/site-packages") if path.is_dir()))


def _candidates(site: Path) -> Iterator[Path]:
    if (site / "pyvenv.cfg").is_file():
        yield site / "pyvenv.cfg"
    if (site / "bin").is_dir():
        yield from sorted((site / "bin").iterdir())


def _rewrite(path: Path, site: Path) -> bool:
    if path.is_symlink():
        target = path.readlink()
        if target.is_absolute() and target.is_relative_to(site):
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))
        return False
    if not path.is_file():
        return False
    data = path.read_bytes()
    if _MARK not in data:
        return False
    if b"\0" in data:
        raise EnvspecError(
            f"bin/{path.name} is binary and contains the folder where it was built",
            hint="report this with the package's name and version",
        )
    replace_content(path, _PARTIAL.sub(rb"/\1", data))
    return True


def _correct(record: Path, folder: Path, changed: frozenset[str]) -> None:
    rows = list(csv.reader(io.StringIO(record.read_text(encoding="utf-8"))))
    outdated = [row for row in filter(None, rows) if os.path.normpath(folder / row[0]) in changed]
    if not outdated:
        return
    for row in outdated:
        data = (folder / row[0]).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        row[1:] = [f"sha256={digest}", str(len(data))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    replace_content(record, text.getvalue().encode())
