"""The same source gives the same wheel.

Files are stored, not deflated, since versions of zlib give different bytes. Order, times and modes are fixed, RECORD is
generated.

Sources: binary distribution format and recording installed projects (PyPA specifications).
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from email.parser import BytesParser
from pathlib import Path
from typing import IO, Final

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envspec import documents
from envspec.build.types import OtherPackage, WheelBuildFailed, WrongWheel
from envspec.credentials import without_credentials
from envspec.image.layers.wheel_zip import BadWheel, WheelMember, read_member, unpack_member, wheel_members
from envspec.io.archives import MAX_METADATA_BYTES, bounded_members, bounded_tar, path_problem
from envspec.models import Target
from envspec.names import WHEEL
from envspec.resolve.pypi.metadata import valid
from envspec.spec.targets import wheel_tags
from envspec.verifier.record import BadRecord, wheel_sha256
from envspec.verifier.regular import is_real_folder

_CHUNK: Final = 1 << 20
#: The earliest time in a zip.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_RECORDS: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")


def normalise(made: Path, into: Path, of: str) -> None:
    """Write the wheel `made` to `into`, normalised. of: its package, for messages.

    Raises:
        WrongWheel: it can't be installed.
    """
    with _as_wrong_wheel(of):
        found = {each.path: each for each in wheel_members(made)}
    folders = {path.partition("/")[0] for path in found if path.partition("/")[0].endswith(".dist-info")}
    if len(folders) != 1:
        raise WrongWheel(of, f"the build gave a wheel with {len(folders)} .dist-info folders")
    info = folders.pop()
    dropped = {f"{info}/{name}" for name in _RECORDS}
    paths = sorted(found.keys() - dropped, key=lambda path: (path.startswith(f"{info}/"), path))
    with _as_wrong_wheel(of), zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as target:
        metadata = f"{info}/METADATA"
        changed = {metadata: valid(read_member(found[metadata].data))} if metadata in found else {}
        rows = [_copy(found[path], target, changed.get(path)) for path in paths]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
        target.writestr(_member(f"{info}/RECORD", 0o644), text.getvalue().encode())


@contextmanager
def _as_wrong_wheel(of: str) -> Iterator[None]:
    try:
        yield
    except BadWheel as error:
        raise WrongWheel(of, f"the build gave a wheel that can't be installed: {error.message}") from error


def _copy(old: WheelMember, target: zipfile.ZipFile, changed: bytes | None) -> tuple[str, str, str]:
    """Copy one file; its row for RECORD. changed: its new content; None if it is the old one."""
    new = _member(old.path, _mode(is_executable=old.is_executable))
    new.file_size, pieces = old.data.size_bytes, unpack_member(old.data)
    if changed is not None:
        new.file_size, pieces = len(changed), iter([changed])
    digest = hashlib.sha256()
    with target.open(new, "w") as writer:
        for data in pieces:
            digest.update(data)
            writer.write(data)
    encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return old.path, f"sha256={encoded}", str(new.file_size)


def _mode(*, is_executable: bool) -> int:
    return 0o755 if is_executable else 0o644


def _member(name: str, mode: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _EPOCH)
    member.create_system = 3  # Unix, whatever this machine is
    member.external_attr = (stat.S_IFREG | mode) << 16
    return member


def sha256_of(file: IO[bytes]) -> tuple[str, int]:
    """SHA-256 (hexadecimal) and size in bytes of the rest of a file."""
    digest, size = hashlib.sha256(), 0
    while data := file.read(_CHUNK):
        digest.update(data)
        size += len(data)
    return digest.hexdigest(), size


def metadata_of(wheel: Path, of: str) -> bytes:
    return _dist_info(wheel, of, "METADATA")


def record_of(wheel: Path) -> bytes | None:
    """The wheel's RECORD; None if it has none."""
    try:
        return _dist_info(wheel, wheel.name, "RECORD")
    except WrongWheel:
        return None


def _is_metadata(path: str, name: str) -> bool:
    folder, _, inner = path.partition("/")
    return inner == name and folder.endswith(".dist-info")


def _dist_info(wheel: Path, of: str, name: str) -> bytes:
    with _as_wrong_wheel(of):
        members = wheel_members(wheel)
        found = [each for each in members if _is_metadata(each.path, name)]
        if len(found) != 1 or found[0].data.size_bytes > MAX_METADATA_BYTES:
            what = f"{found[0].data.size_bytes} bytes of" if len(found) == 1 else str(len(found) or "no")
            raise WrongWheel(of, f"the build gave {wheel.name}, which has {what} {name}")
        return read_member(found[0].data)


def record_digest(wheel: Path) -> str | None:
    """The digest of the wheel's contents (`envspec.verifier.record`); None without a valid RECORD."""
    record = record_of(wheel)
    if record is None:
        return None
    try:
        return wheel_sha256(record)
    except BadRecord:
        return None


def check_release(wheel: Path, name: str, version: str | None, of: str) -> None:
    """Raises WrongWheel for another name or version in the file name or METADATA. version: None: any."""
    try:
        found_name, found_version, *_ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise WrongWheel(of, f"the build gave {wheel.name!r}, which is not a wheel's name") from error
    # packaging accepts non-ASCII letters, and a backend may add a line to the name.
    if not WHEEL.fits(wheel.name):
        raise WrongWheel(of, f"the build gave {wheel.name!r}, which is not {WHEEL.words}")
    head = BytesParser().parsebytes(metadata_of(wheel, of), headersonly=True)
    inner: tuple[str, Version | None] = (canonicalize_name(head.get("Name", "")), None)
    with suppress(InvalidVersion):
        inner = (inner[0], Version(head.get("Version", "")))
    expected = (name, found_version if version is None else Version(version))
    if (found_name, found_version) != expected or inner != expected:
        of_metadata = (str(head.get("Name")), str(head.get("Version")))
        found = (str(found_name), str(found_version))
        if inner != expected:
            found = of_metadata
        raise OtherPackage(of, (name, version or ""), found)


def is_pure(filename: str) -> bool:
    """Whether a wheel is the same for every platform and ABI."""
    return all(tag.abi == "none" and tag.platform == "any" for tag in _tags(filename))


def is_loaded(filename: str, target: Target) -> bool:
    """Whether the target can load the wheel; `linux_x86_64` counts as built on the target's own system."""
    own = target.glibc
    tags = set()
    for tag in _tags(filename):
        platform = tag.platform
        if own and platform.startswith("linux_"):
            platform = f"manylinux_{own[0]}_{own[1]}_{platform.removeprefix('linux_')}"
        tags.add(Tag(tag.interpreter, tag.abi, platform))
    return not tags.isdisjoint(wheel_tags(target))


def _tags(filename: str) -> frozenset[Tag]:
    return parse_wheel_filename(filename)[3]


def unpack(archive: Path, folder: Path, of: str) -> Path:
    """Unpack an sdist into the new `folder`; the project's folder: its only top folder, or itself.

    Writes only below `folder`, reads through no link, and unpacks no more than `max_unpacked_bytes`.

    Raises:
        WheelBuildFailed: it can't be read, is a bomb, or has another layout.
    """
    folder.mkdir(parents=True)
    try:
        if archive.name.endswith(".zip"):
            _unzip(archive, folder, of)
        else:
            _untar(archive, folder, of)
    except BadWheel as error:
        raise WheelBuildFailed(of, error.message, hint=error.hint) from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise _bad(
            of, archive, f"contains {os.path.relpath(error.filename, folder)!r}, which is a file and a folder"
        ) from error
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
        raise _bad(of, archive, f"can't be unpacked: {' '.join(str(error).split())}") from error
    tops = [path for path in folder.iterdir() if is_real_folder(path)]
    # NVIDIA's placeholders (nvidia-stub) have no top folder.
    if _is_project(folder) and not (len(tops) == 1 and _is_project(tops[0])):
        return folder
    if len(tops) != 1:
        raise _bad(of, archive, f"has {len(tops)} top folders, not one")
    return tops[0]


def _is_project(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("pyproject.toml", "setup.py"))


def build_requirements(project: Path, of: str) -> tuple[Requirement, ...]:
    """`build-system.requires`; none if that is invalid, which the build refuses.

    Raises:
        WheelBuildFailed: it has a URL, which `as_of` does not limit.
    """
    try:
        table = documents.read_toml(project / "pyproject.toml")["build-system"]
        requires = tuple(Requirement(text) for text in table["requires"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    for requirement in requires:
        if requirement.url is not None:
            raise WheelBuildFailed(
                of,
                f"its build requires {requirement.name} from {without_credentials(requirement.url)}, but builds "
                "get their requirements from indexes only",
                hint=f"require {requirement.name} by version, and publish it on your own index ([[pip.index]])",
            )
    return requires


def fix_times_and_modes(root: Path, time: datetime) -> datetime:
    """Set one time, and modes independent of the umask, on all files below `root`; links are unchanged.

    Returns the time of the newest file before.
    """
    seconds, newest = int(time.timestamp()), 0
    for path in (*sorted(root.rglob("*")), root):
        if path.is_symlink():
            continue
        if path.is_file():
            newest = max(newest, int(path.stat().st_mtime))
        path.chmod(_mode(is_executable=path.is_dir() or os.access(path, os.X_OK)))
        os.utime(path, (seconds, seconds))
    return datetime.fromtimestamp(newest, timezone.utc)


def tar_of(root: Path) -> bytes:
    """A tar of all files below `root`, in order."""
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
        for member in bounded_members(tar):
            path = _path_of(member.name, folder, archive, of)
            if path in links:
                raise _bad(of, archive, f"contains {member.name!r} twice, once as a link")
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isreg() and not member.issparse() and (source := tar.extractfile(member)):
                _write(path, source, _mode(is_executable=bool(member.mode & 0o100)), member.mtime)
            elif member.issym():
                if os.path.lexists(path):
                    raise _bad(of, archive, f"contains {member.name!r} twice, once as a link")
                links[path] = member.linkname
            elif member.islnk():
                first = _path_of(member.linkname, folder, archive, of)
                if not first.is_file():
                    raise _bad(of, archive, f"contains {member.name!r}, a hard link without an earlier file")
                if first != path:
                    with first.open("rb") as again:
                        _write(path, again, _mode(is_executable=os.access(first, os.X_OK)), member.mtime)
            else:
                raise _bad(of, archive, f"contains {member.name!r}, which is not a file")
    _link(links, folder, archive, of)


def _unzip(archive: Path, folder: Path, of: str) -> None:
    for member in wheel_members(archive):
        path = _path_of(member.path, folder, archive, of)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            out.writelines(unpack_member(member.data))
        path.chmod(_mode(is_executable=member.is_executable))


#: The last second that every file system can hold.
_LATEST: Final = 2**31 - 1


def _write(path: Path, source: IO[bytes], mode: int, time: float) -> None:
    """time: as the sdist states it, in seconds since 1970; ignored if it is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        shutil.copyfileobj(source, out)
    path.chmod(mode)
    if 0 <= time <= _LATEST:
        os.utime(path, (time, time))


def _link(links: Mapping[Path, str], folder: Path, archive: Path, of: str) -> None:
    """Create the links of an sdist, after all its files, so that no file is written or read through one.

    Their targets may depend on each other, so they are checked together.
    """
    for path, target in links.items():
        if os.path.lexists(path):
            raise _bad(of, archive, f"contains {path.relative_to(folder).as_posix()!r} twice, once as a link")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    real = Path(os.path.realpath(folder))
    for path, target in links.items():
        if target.startswith("/") or not Path(os.path.realpath(path)).is_relative_to(real):
            for each in links:
                each.unlink()
            raise _bad(of, archive, f"contains a link to {target!r}, outside of it")


def _path_of(name: str, folder: Path, archive: Path, of: str) -> Path:
    if why := path_problem(name):
        raise _bad(of, archive, f"contains {name!r}, which {why}")
    return folder / os.path.normpath(name)


def _bad(of: str, archive: Path, what: str) -> WheelBuildFailed:
    return WheelBuildFailed(
        of, f"{archive.name} {what}", hint="use another version of it, and report it to its publisher"
    )
