"""What is built, laid out the same on every machine: an sdist unpacked, times and modes fixed."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import zipfile
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import Requirement

from envspec import toml
from envspec.build.faults import BuildFailed
from envspec.spec_hash import without_credentials

#: A member in place of another, below a file, or a link to one that is not there.
_MISFITS: Final = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError)


def unpack(archive: Path, folder: Path, of: str) -> Path:
    """Unpack an sdist into `folder`; its one top folder.

    Raises:
        BuildFailed: it can't be read, or is laid out otherwise.
    """
    folder.mkdir(parents=True)
    try:
        if archive.name.endswith(".zip"):
            _unzip(archive, folder, of)
        else:
            _untar(archive, folder, of)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, *_MISFITS) as fault:
        raise BuildFailed(of, f"{archive.name} can't be unpacked: {fault}", hint="tell its publisher") from fault
    _check_links(folder, archive, of)
    tops = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    if len(tops) != 1:
        raise BuildFailed(of, f"{archive.name} has {len(tops)} top folders, not one", hint="tell its publisher")
    return tops[0]


def check_requirements(project: Path, of: str) -> None:
    """Refuse a project whose build requires what lies at an address: no index has it, and no `as_of` bounds it.

    A pyproject.toml that can't be understood is refused by who builds by it.

    Raises:
        BuildFailed: `build-system.requires` names an address.
    """
    try:
        table = toml.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
        requires = [Requirement(text) for text in table["requires"]]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for requirement in requires:
        if requirement.url is not None:
            raise BuildFailed(
                of,
                f"its build requires {requirement.name} from {without_credentials(requirement.url)}, and builds take "
                "what they require from indexes alone",
                hint=f"require {requirement.name} by its version, and publish it on an index: [[pip.index]] names "
                "your own",
            )


def settle(root: Path, moment: datetime) -> None:
    """Give all below `root` one time, and modes that no umask has touched; links stay what they are."""
    seconds = int(moment.timestamp())
    for path in (*sorted(root.rglob("*")), root):
        if path.is_symlink():
            continue
        runs = path.is_dir() or os.access(path, os.X_OK)
        path.chmod(0o755 if runs else 0o644)
        os.utime(path, (seconds, seconds))


def packed(root: Path) -> bytes:
    """A tar of all below `root`, in order."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            member = tar.gettarinfo(path, path.relative_to(root).as_posix())
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if member.isreg():
                with path.open("rb") as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)
    return whole.getvalue()


def _untar(archive: Path, folder: Path, of: str) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            place = _place(member.name, folder, archive, of)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif member.isreg() and (file := tar.extractfile(member)):
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("wb") as out:
                    shutil.copyfileobj(file, out)
                place.chmod(0o755 if member.mode & 0o100 else 0o644)
            elif member.issym():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(member.linkname)
            elif member.islnk():
                shutil.copy(_place(member.linkname, folder, archive, of), place)
            else:
                raise BuildFailed(
                    of, f"{archive.name} holds {member.name!r}, which is no file", hint="tell its publisher"
                )


def _unzip(archive: Path, folder: Path, of: str) -> None:
    with zipfile.ZipFile(archive) as source:
        for member in source.infolist():
            place = _place(member.filename, folder, archive, of)
            if member.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with source.open(member) as file, place.open("wb") as out:
                shutil.copyfileobj(file, out)
            place.chmod(0o755 if (member.external_attr >> 16) & 0o100 else 0o644)


def _place(name: str, folder: Path, archive: Path, of: str) -> Path:
    """Where a member comes to lie: below the folder, and neither behind a link nor in place of one."""
    parts = PurePosixPath(name).parts
    place = folder.joinpath(*parts)
    inside = bool(parts) and not PurePosixPath(name).is_absolute() and ".." not in parts
    if not inside or os.path.realpath(place) != os.path.join(os.path.realpath(folder), *parts):  # noqa: PTH118
        raise BuildFailed(of, f"{archive.name} holds {name!r}, which leads out of it", hint="tell its publisher")
    return place


def _check_links(folder: Path, archive: Path, of: str) -> None:
    """Refuse links that lead out, once all of them are there: what one leads to may be another."""
    top = os.path.realpath(folder)
    for path in folder.rglob("*"):
        if path.is_symlink() and not os.path.realpath(path).startswith(f"{top}{os.sep}"):
            raise BuildFailed(
                of,
                f"{archive.name} holds a link to {os.readlink(path)!r}, out of it",  # noqa: PTH115
                hint="tell its publisher",
            )
