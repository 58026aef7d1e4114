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
from envspec.effects.archives import LARGEST_METADATA
from envspec.image.wheel_zip import BadWheel, Member, members, read, unpacked
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
    found = {each.path: each for each in _members(made, of)}
    folders = {path.partition("/")[0] for path in found if path.partition("/")[0].endswith(".dist-info")}
    if len(folders) != 1:
        raise WrongWheel(of, f"the build gave a wheel with {len(folders)} .dist-info folders")
    info = folders.pop()
    dropped = {f"{info}/{name}" for name in _RECORDS}
    paths = sorted(found.keys() - dropped, key=lambda path: (path.startswith(f"{info}/"), path))
    try:
        with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as target:
            rows = [_copy(found[path], target) for path in paths]
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
            target.writestr(_member(f"{info}/RECORD", 0o644), text.getvalue().encode())
    except BadWheel as fault:
        raise _wrong(of, fault) from fault


def _members(wheel: Path, of: str) -> tuple[Member, ...]:
    """The files of a wheel that a build gave.

    Raises:
        WrongWheel: it is no zip that could be installed.
    """
    try:
        return members(wheel)
    except BadWheel as fault:
        raise _wrong(of, fault) from fault


def _wrong(of: str, fault: BadWheel) -> WrongWheel:
    return WrongWheel(of, f"the build gave a wheel that can't be installed: {fault.message}")


def _copy(old: Member, target: zipfile.ZipFile) -> tuple[str, str, str]:
    """Copy one file; its row in RECORD."""
    new = _member(old.path, 0o755 if old.is_executable else 0o644)
    new.file_size = old.data.size_bytes
    digest = hashlib.sha256()
    with target.open(new, "w") as writer:
        for data in unpacked(old.data):
            digest.update(data)
            writer.write(data)
    encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return old.path, f"sha256={encoded}", str(old.data.size_bytes)


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
    return _dist_info(wheel, of, "METADATA")


def record_of(wheel: Path) -> bytes | None:
    """The wheel's RECORD; None where it has none."""
    try:
        return _dist_info(wheel, wheel.name, "RECORD")
    except WrongWheel:
        return None


def _dist_info(wheel: Path, of: str, name: str) -> bytes:
    found = [
        each for each in _members(wheel, of) if each.path.count("/") == 1 and each.path.endswith(f".dist-info/{name}")
    ]
    if len(found) != 1 or found[0].data.size_bytes > LARGEST_METADATA:
        what = f"{found[0].data.size_bytes} bytes of" if len(found) == 1 else str(len(found) or "no")
        raise WrongWheel(of, f"the build gave {wheel.name}, which has {what} {name}")
    try:
        return read(found[0].data)
    except BadWheel as fault:
        raise _wrong(of, fault) from fault


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
