"""What is built, laid out the same on every machine: an sdist unpacked, times and modes fixed."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO

from packaging.requirements import Requirement

from envspec import toml
from envspec.build.faults import BuildFailed
from envspec.credentials import without_credentials
from envspec.effects.archives import bounded_tar, counted, why_refused
from envspec.image.wheel_zip import BadWheel, members, unpacked


def unpack(archive: Path, folder: Path, of: str) -> Path:
    """Unpack an sdist into `folder`, which is not there yet; its one top folder.

    Nothing is written outside of `folder`, nothing is read through a link, and no more than `most_bytes` are unpacked.

    Raises:
        BuildFailed: it can't be read, is a bomb, or is laid out otherwise.
    """
    folder.mkdir(parents=True)
    try:
        if archive.name.endswith(".zip"):
            _unzip(archive, folder, of)
        else:
            _untar(archive, folder, of)
    except BadWheel as fault:
        raise BuildFailed(of, fault.message, hint=fault.hint) from fault
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as fault:
        raise _bad(of, archive, f"holds {_inside(fault, folder)!r}, which is a file and a folder") from fault
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile) as fault:
        raise _bad(of, archive, f"can't be unpacked: {' '.join(str(fault).split())}") from fault
    tops = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    if len(tops) != 1:
        raise _bad(of, archive, f"has {len(tops)} top folders, not one")
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
    links: dict[Path, str] = {}
    with archive.open("rb") as file, bounded_tar(file) as tar:
        for member in counted(tar):
            place = _place(member.name, folder, archive, of)
            if place in links:
                raise _bad(of, archive, f"holds {member.name!r} twice, and once as a link")
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif member.isreg() and not member.issparse() and (source := tar.extractfile(member)):
                _write(place, source, 0o755 if member.mode & 0o100 else 0o644)
            elif member.issym():
                if os.path.lexists(place):
                    raise _bad(of, archive, f"holds {member.name!r} twice, and once as a link")
                links[place] = member.linkname
            elif member.islnk():
                first = _place(member.linkname, folder, archive, of)
                if not first.is_file():
                    raise _bad(of, archive, f"holds {member.name!r}, a hard link to no file before it")
                if first != place:
                    with first.open("rb") as again:
                        _write(place, again, 0o755 if os.access(first, os.X_OK) else 0o644)
            else:
                raise _bad(of, archive, f"holds {member.name!r}, which is no file")
    _link(links, folder, archive, of)


def _unzip(archive: Path, folder: Path, of: str) -> None:
    for member in members(archive):
        place = _place(member.path, folder, archive, of)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as out:
            out.writelines(unpacked(member.data))
        place.chmod(0o755 if member.is_executable else 0o644)


def _write(place: Path, source: IO[bytes], mode: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as out:
        shutil.copyfileobj(source, out)
    place.chmod(mode)


def _link(links: Mapping[Path, str], folder: Path, archive: Path, of: str) -> None:
    """The links of an sdist, made when all its files are written: none is written or read through one.

    Where one leads may depend on the others, so they are looked at together.
    """
    for place, target in links.items():
        if os.path.lexists(place):
            raise _bad(of, archive, f"holds {place.relative_to(folder).as_posix()!r} twice, and once as a link")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    real = Path(os.path.realpath(folder))
    for place, target in links.items():
        if target.startswith("/") or not Path(os.path.realpath(place)).is_relative_to(real):
            for each in links:
                each.unlink()
            raise _bad(of, archive, f"holds a link to {target!r}, out of it")


def _place(name: str, folder: Path, archive: Path, of: str) -> Path:
    if why := why_refused(name):
        raise _bad(of, archive, f"holds {name!r}, which {why}")
    return folder / os.path.normpath(name)


def _inside(fault: OSError, folder: Path) -> str:
    return os.path.relpath(fault.filename, folder)


def _bad(of: str, archive: Path, what: str) -> BuildFailed:
    return BuildFailed(of, f"{archive.name} {what}", hint="take another version of it, and report it to its publisher")
