"""A wheel's contents as bytes that follow from them alone: no clock, no umask, no zlib.

Files are stored, not deflated: builds of zlib differ in the bytes that they make. Order, times and modes are fixed, and
RECORD is written anew.

Sources: binary distribution format and recording installed projects (PyPA specifications).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import zipfile
from contextlib import suppress
from email.parser import BytesParser
from pathlib import Path
from typing import IO, Final

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envspec.build.faults import WrongWheel
from envspec.installed.record import BadRecord, wheel_contents
from envspec.model import Target
from envspec.names import WHEEL
from envspec.target import wheel_tags

_CHUNK: Final = 1 << 20
#: The oldest moment that a zip can hold.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_RECORDS: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")


def normalise(made: Path, into: Path, of: str) -> None:
    """Write the wheel `made` to `into`, in the one form of its contents. of: whose it is, for messages.

    Raises:
        WrongWheel: it is no wheel that could be installed.
    """
    try:
        with zipfile.ZipFile(made) as source, zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as target:
            _rewrite(source, target, of)
    except (zipfile.BadZipFile, EOFError) as fault:
        raise WrongWheel(of, f"the build gave {made.name}, which is no zip: {fault}") from fault


def _rewrite(source: zipfile.ZipFile, target: zipfile.ZipFile, of: str) -> None:
    members = {each.filename: each for each in source.infolist() if not each.is_dir()}
    folders = {name.partition("/")[0] for name in members if name.partition("/")[0].endswith(".dist-info")}
    unsafe = [name for name in members if name.startswith("/") or ".." in name.split("/") or "\\" in name]
    if len(folders) != 1 or unsafe:
        what = f"{unsafe[0]!r}, which leads out of it" if unsafe else f"{len(folders)} .dist-info folders"
        raise WrongWheel(of, f"the build gave a wheel with {what}")
    info = folders.pop()
    dropped = {f"{info}/{name}" for name in _RECORDS}
    names = sorted(members.keys() - dropped, key=lambda name: (name.startswith(f"{info}/"), name))
    rows = [_copy(source, members[name], target) for name in names]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
    target.writestr(_member(f"{info}/RECORD", 0o644), text.getvalue().encode())


def _copy(source: zipfile.ZipFile, old: zipfile.ZipInfo, target: zipfile.ZipFile) -> tuple[str, str, str]:
    """Copy one file; its row in RECORD."""
    mode = 0o755 if (old.external_attr >> 16) & stat.S_IXUSR else 0o644
    new = _member(old.filename, mode)
    new.file_size = old.file_size
    digest = hashlib.sha256()
    with source.open(old) as reader, target.open(new, "w") as writer:
        while data := reader.read(_CHUNK):
            digest.update(data)
            writer.write(data)
    encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return old.filename, f"sha256={encoded}", str(old.file_size)


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
    """The wheel's METADATA.

    Raises:
        WrongWheel: it has none.
    """
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.count("/") == 1 and name.endswith(".dist-info/METADATA"):
                return archive.read(name)
    raise WrongWheel(of, f"the build gave {wheel.name}, which has no METADATA")


def record_of(wheel: Path) -> bytes | None:
    """The wheel's RECORD; None where it has none."""
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith(".dist-info/RECORD")]
        return archive.read(found[0]) if len(found) == 1 else None


def contents_of(wheel: Path) -> str | None:
    """The digest of what the wheel installs (`envspec.installed.record`); None where its RECORD doesn't tell."""
    record = record_of(wheel)
    try:
        return wheel_contents(record) if record is not None else None
    except BadRecord:
        return None


def check_release(wheel: Path, name: str, version: str | None, of: str) -> None:
    """Refuse a wheel of another name or version, by its file name or by what it says of itself.

    version: None where only the build tells it.

    Raises:
        WrongWheel
    """
    try:
        found_name, found_version, *_ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as fault:
        raise WrongWheel(of, f"the build gave {wheel.name!r}, which is no wheel's name") from fault
    # packaging takes other letters than ASCII's, and a backend may add a line to the name.
    if not WHEEL.fits(wheel.name):
        raise WrongWheel(of, f"the build gave {wheel.name!r}, which is not {WHEEL.words}")
    head = BytesParser().parsebytes(metadata_of(wheel, of), headersonly=True)
    inner: tuple[str, Version | None] = (canonicalize_name(head.get("Name", "")), None)
    with suppress(InvalidVersion):
        inner = (inner[0], Version(head.get("Version", "")))
    wanted = (name, found_version if version is None else Version(version))
    if (found_name, found_version) != wanted or inner != wanted:
        told = f"{head.get('Name')} {head.get('Version')}" if inner != wanted else f"{found_name} {found_version}"
        asked = name if version is None else f"{name} {version}"
        raise WrongWheel(
            of, f"the build gave a wheel of {told}, not of {asked}", hint="tell its publisher, or name it as it is"
        )


def is_pure(filename: str) -> bool:
    """Whether a wheel is the same for every platform and ABI."""
    return all(tag.abi == "none" and tag.platform == "any" for tag in _tags(filename))


def is_loaded(filename: str, target: Target) -> bool:
    """Whether the target can load the wheel. One that was built on the target's own system says `linux_x86_64`."""
    own = target.glibc
    names = {
        Tag(tag.interpreter, tag.abi, f"manylinux_{own[0]}_{own[1]}_{tag.platform.removeprefix('linux_')}")
        if own and tag.platform.startswith("linux_")
        else tag
        for tag in _tags(filename)
    }
    return not names.isdisjoint(wheel_tags(target))


def _tags(filename: str) -> frozenset[Tag]:
    return parse_wheel_filename(filename)[3]
