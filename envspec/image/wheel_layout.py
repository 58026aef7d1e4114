"""Where the files of a wheel go in the image, as pip puts them; pure but for what it reads from the wheel itself.

Sources: PyPA's "Binary distribution format" and "Recording installed projects"; how pip 23 to 26 lays what those leave
open: scripts that setuptools made of entry points are made anew, every folder that ends in `.data` is one.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Final

from installer.records import Hash, InvalidRecordEntry, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.utils import Scheme as InstallerScheme
from installer.utils import construct_record_file

from envspec.effects.archives import LARGEST_METADATA, why_refused
from envspec.image.content import PREFIX, Entry, InMemory
from envspec.image.scripts import entry_points, for_interpreter, generated, has_placeholder, replaces
from envspec.image.wheel_zip import BadWheel, Member, members, read, unpacked
from envspec.link.extracted import RESERVED
from envspec.names import normalised

#: Who installed it, as a distribution's INSTALLER tells.
INSTALLER: Final = "envspec"
_FILE: Final = 0o644
_PROGRAM: Final = 0o755


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """A wheel of the lock. path: where its file is, or will be, in the cache. name: in PEP 503's form.

    direct_url: of a wheel that the spec names by URL, without credentials; it is told in `direct_url.json`.
    """

    name: str
    version: str
    filename: str
    sha256: str
    path: Path
    direct_url: str | None = None


@dataclass(frozen=True, slots=True)
class Scheme:
    """The folders of an environment, relative to the image's root. headers: gets a folder for each distribution.

    series: Python's, such as `3.11`. interpreter: what scripts are run by, absolute.
    """

    series: str
    purelib: str
    platlib: str
    scripts: str
    data: str
    headers: str
    interpreter: str

    @classmethod
    def of(cls, series: str, prefix: str = PREFIX) -> Scheme:
        """A Python that has the prefix for itself: standalone or conda's."""
        library = f"{prefix}/lib/python{series}/site-packages"
        headers = f"{prefix}/include/python{series}"
        return cls(series, library, library, f"{prefix}/bin", prefix, headers, f"/{prefix}/bin/python")

    @classmethod
    def of_venv(cls, series: str, prefix: str = PREFIX) -> Scheme:
        """A virtual environment, where pip keeps headers apart from Python's own."""
        library = f"{prefix}/lib/python{series}/site-packages"
        headers = f"{prefix}/include/site/python{series}"
        return cls(series, library, library, f"{prefix}/bin", prefix, headers, f"/{prefix}/bin/python")


@dataclass(frozen=True, slots=True)
class Laid:
    """A wheel in its place. files: all but RECORD, by path. sources: the modules among them, sorted. rows: RECORD's."""

    files: Mapping[str, Entry]
    sources: tuple[str, ...]
    library: str
    record_path: str
    rows: tuple[RecordEntry, ...]


def lay(wheel: LockedWheel, scheme: Scheme) -> Laid:
    """Read a wheel's directory and decide where each of its files goes.

    Raises:
        BadWheel: it is no wheel, not this one, or must not be unpacked. OSError: it can't be read.
    """
    found = members(wheel.path)
    info = _dist_info(wheel, found)
    library = scheme.purelib if _is_pure(wheel, info) else scheme.platlib
    scripts = _scripts(wheel, info, scheme)
    laying = _Laying(wheel, scheme, library, scripts)
    for member in found:
        if member is not info.get("RECORD"):
            laying.put(member)
    folder = f"{library}/{posixpath.dirname(info['WHEEL'].path)}"
    for script in scripts:
        laying.make(f"{scheme.scripts}/{script.name}", generated(script, scheme.interpreter), _PROGRAM)
    laying.make(f"{folder}/INSTALLER", f"{INSTALLER}\n".encode(), _FILE)
    if wheel.direct_url is not None:
        laying.make(f"{folder}/direct_url.json", _direct_url(wheel.direct_url, wheel.sha256), _FILE)
    inside = (path for path in laying.files if path.startswith(f"{library}/") and path.endswith(".py"))
    return Laid(laying.files, tuple(sorted(inside)), library, f"{folder}/RECORD", laying.rows(_record_of(wheel, info)))


def record(laid: Laid, compiled: Iterable[str]) -> Entry:
    """RECORD with the bytecode that was made: listed without a hash, as pip does."""
    rows = {row.path: row for row in laid.rows}
    for path in compiled:
        inside = _relative(path, laid.library)
        rows[inside] = RecordEntry(inside, None, None)
    with construct_record_file((InstallerScheme("platlib"), rows[path]) for path in sorted(rows)) as text:
        return Entry(laid.record_path, _FILE, data=InMemory(text.read()))


class _Laying:
    """The files of one wheel on their way: what the image gets, and which rows of RECORD change."""

    def __init__(self, wheel: LockedWheel, scheme: Scheme, library: str, scripts: tuple[Script, ...]) -> None:
        self.files: dict[str, Entry] = {}
        self._wheel, self._scheme, self._library, self._scripts = wheel, scheme, library, scripts
        self._moved: dict[str, str] = {}
        self._made: dict[str, bytes] = {}

    def put(self, member: Member) -> None:
        """One file of the wheel."""
        top, _, rest = member.path.partition("/")
        mode = _PROGRAM if member.is_executable else _FILE
        if not top.endswith(".data"):
            self._place(member, f"{self._library}/{member.path}", mode)
            return
        part, _, inner = rest.partition("/")
        if not inner or part not in {"purelib", "platlib", "scripts", "data", "headers"}:
            raise BadWheel(self._wheel.filename, f"{member.raw!r} is in no folder of {top} that has a meaning")
        if part == "scripts" and replaces(posixpath.basename(inner), self._scripts):
            return
        if part == "scripts" and has_placeholder(next(unpacked(member.data), b"")):
            path = f"{self._scheme.scripts}/{inner}"
            self._moved[member.raw] = path
            self.make(path, for_interpreter(read(member.data), self._scheme.interpreter), mode)
            return
        folders = {
            "purelib": self._scheme.purelib,
            "platlib": self._scheme.platlib,
            "scripts": self._scheme.scripts,
            "data": self._scheme.data,
            "headers": f"{self._scheme.headers}/{self._wheel.name}",
        }
        self._place(member, f"{folders[part]}/{inner}", mode)

    def make(self, path: str, content: bytes, mode: int) -> None:
        """A file that is made here; pip writes those last, over what the wheel may bring there."""
        self.files[path] = Entry(path, mode, data=InMemory(content))
        self._made[path] = content

    def rows(self, told: Sequence[RecordEntry]) -> tuple[RecordEntry, ...]:
        """RECORD's rows with paths as installed: hashes are the wheel's own, but for what was made here."""
        rows: dict[str, RecordEntry] = {}
        for row in told:
            path = self._relative(self._moved.get(row.path, posixpath.join(self._library, row.path)))
            rows[path] = RecordEntry(path, row.hash_, row.size)
        for place in self._moved.values():
            path = self._relative(place)
            rows.setdefault(path, RecordEntry(path, None, None))
        for place, content in self._made.items():
            path = self._relative(place)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            rows[path] = RecordEntry(path, Hash("sha256", digest), len(content))
        return tuple(rows.values())

    def _relative(self, place: str) -> str:
        return _relative(place, self._library)

    def _place(self, member: Member, path: str, mode: int) -> None:
        if path in self.files:
            raise BadWheel(self._wheel.filename, f"two files of it would be {path}")
        if posixpath.relpath(path, self._scheme.data).split("/", 1)[0] in RESERVED:
            raise BadWheel(self._wheel.filename, f"{member.raw!r} is in it, which only conda and envspec write")
        self._moved[member.raw] = path
        self.files[path] = Entry(path, mode, data=member.data)


def _relative(place: str, library: str) -> str:
    inside = place.removeprefix(f"{library}/")
    return inside if inside != place else posixpath.relpath(f"/{place}", f"/{library}")


def _dist_info(wheel: LockedWheel, found: Sequence[Member]) -> Mapping[str, Member]:
    """The files of the one `.dist-info`, by name, after a look at whose it is."""
    folders = {member.path.split("/", 1)[0] for member in found if "/" in member.path}
    infos = sorted(folder for folder in folders if folder.endswith(".dist-info"))
    if len(infos) != 1:
        raise BadWheel(wheel.filename, f"{len(infos)} folders end in .dist-info ({', '.join(infos)}), not one")
    info = {member.path[len(infos[0]) + 1 :]: member for member in found if member.path.startswith(f"{infos[0]}/")}
    if missing := [name for name in ("METADATA", "RECORD", "WHEEL") if name not in info]:
        raise BadWheel(wheel.filename, f"no {' and no '.join(missing)} in {infos[0]}")
    folder_name, _, folder_version = infos[0].removesuffix(".dist-info").rpartition("-")
    metadata = BytesHeaderParser().parsebytes(_text(wheel, info["METADATA"]))
    for where, name, version in (
        (infos[0], folder_name, folder_version),
        ("METADATA", str(metadata["Name"]), str(metadata["Version"])),
    ):
        if normalised(name) != normalised(wheel.name) or not _is_same(version, wheel.version):
            raise BadWheel(wheel.filename, f"{where} is of {name} {version}, not of {wheel.name} {wheel.version}")
    return info


def _is_pure(wheel: LockedWheel, info: Mapping[str, Member]) -> bool:
    told = BytesHeaderParser().parsebytes(_text(wheel, info["WHEEL"]))
    if not str(told["Wheel-Version"]).startswith("1."):
        raise BadWheel(wheel.filename, f"its format is {told['Wheel-Version']}, known is 1")
    return str(told["Root-Is-Purelib"]).lower() == "true"


def _scripts(wheel: LockedWheel, info: Mapping[str, Member], scheme: Scheme) -> tuple[Script, ...]:
    member = info.get("entry_points.txt")
    if member is None:
        return ()
    try:
        return entry_points(_text(wheel, member).decode("utf-8"), scheme.series)
    except ValueError as fault:
        raise BadWheel(wheel.filename, str(fault)) from fault


def _record_of(wheel: LockedWheel, info: Mapping[str, Member]) -> list[RecordEntry]:
    try:
        lines = _text(wheel, info["RECORD"]).decode("utf-8").splitlines()
        rows = [RecordEntry.from_elements(*row) for row in parse_record_file(lines)]
    except (InvalidRecordEntry, UnicodeDecodeError) as fault:
        raise BadWheel(wheel.filename, f"RECORD can't be read ({fault})") from fault
    for row in rows:
        # Whoever uninstalls the wheel deletes what its RECORD names.
        if why := why_refused(row.path):
            raise BadWheel(wheel.filename, f"{row.path!r} of RECORD {why}")
    return rows


def _text(wheel: LockedWheel, member: Member) -> bytes:
    """A file of the `.dist-info`, which is read as a whole."""
    if member.data.size_bytes > LARGEST_METADATA:
        raise BadWheel(
            wheel.filename, f"{member.raw!r} has {member.data.size_bytes} bytes, more than {LARGEST_METADATA}"
        )
    return read(member.data)


def _direct_url(url: str, sha256: str) -> bytes:
    """As pip writes it (PEP 610; `hash` is for readers older than `hashes`)."""
    told = {"archive_info": {"hash": f"sha256={sha256}", "hashes": {"sha256": sha256}}, "url": url}
    return json.dumps(told, sort_keys=True).encode()


def _is_same(version: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version.replace("_", "-")) == Version(other)
    except InvalidVersion:
        return version.replace("_", "-") == other.replace("_", "-")
