"""Wheels as a layer.

Sources: PyPA's "Binary distribution format" and "Recording installed projects"; where they leave a choice, what pip 23
to 26 does: scripts that setuptools generated from entry points are generated again, every folder that ends in `.data`
is a data folder.
"""

from __future__ import annotations

import configparser
import hashlib
import io
import json
import posixpath
import re
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from functools import partial
from pathlib import Path
from typing import Final

from installer.records import Hash, InvalidRecordEntry, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.utils import Scheme as InstallerScheme
from installer.utils import construct_record_file, fix_shebang, parse_entrypoints
from msgspec import Struct

from envspec.fetch.conda_link import RESERVED_FOLDERS
from envspec.image.layers.ownership import OwnedPath, owners_of, sha256_of
from envspec.image.layers.types import PREFIX, Entry, InMemory, ZipMember, with_folders
from envspec.image.layers.wheel_zip import BadWheel, WheelMember, read_member, unpack_member, wheel_members
from envspec.image.sources.bytecode import PycCompiler, SourceModule, with_bytecode
from envspec.io.archives import MAX_METADATA_BYTES, path_problem
from envspec.names import normalised
from envspec.structs import replace
from envspec.verifier.record import DATA, from_hex

#: Content of INSTALLER.
INSTALLER: Final = "envspec"
#: Increase it if the same wheels would give another layer: part of every key.
_FORM: Final = "wheels 1"
_PROGRAM: Final = 0o755
_FILE: Final = 0o644
#: First line of scripts for the environment's Python (binary distribution format).
_PLACEHOLDER: Final = b"#!python"


def entry_points(text: str, series: str) -> tuple[Script, ...]:
    """The programs in `entry_points.txt`, in order. series: Python's, such as `3.11`.

    The programs in pip's own wheel have the version of the Python that built it; like pip, rename them.

    Raises:
        ValueError: what is wrong with the text.
    """
    try:
        found = [Script(name, module, attr, section) for name, module, attr, section in parse_entrypoints(text)]
    except (configparser.Error, AssertionError) as error:
        # installer asserts that an entry point names an object.
        why = str(error) or "an entry point without an object"
        raise ValueError(f"entry_points.txt can't be read ({why})") from error
    for script in found:
        if "/" in script.name or path_problem(script.name):
            raise ValueError(f"an entry point is named {script.name!r}, which is not a file name")
    return tuple(_renamed(found, series))


def _renamed(found: list[Script], series: str) -> Iterator[Script]:
    for script in found:
        if script.name == "pip":
            for name in ("pip", f"pip{series.partition('.')[0]}", f"pip{series}"):
                yield Script(name, script.module, script.attr, script.section)
        elif not (re.fullmatch(r"pip\d+(\.\d+)?", script.name) and any(each.name == "pip" for each in found)):
            yield script


def is_generated_script(filename: str, scripts: tuple[Script, ...]) -> bool:
    """Whether setuptools generated a wheel's script from an entry point."""
    stem = re.sub(r"(\.exe|-script\.py|\.pya)\Z", "", filename, flags=re.IGNORECASE)
    return any(script.name == stem for script in scripts)


class LockedWheel(Struct, frozen=True):
    """A wheel of the lock. name: normalised. path: in the cache, may be fetched later.

    direct_url: of a wheel that the spec names by URL, without credentials; for `direct_url.json`. left_out: files of
    which another package's are installed, as in `SharedFiles`, sorted.
    """

    name: str
    version: str
    filename: str
    sha256: str
    path: Path
    direct_url: str | None = None
    left_out: tuple[str, ...] = ()


class Scheme(Struct, frozen=True):
    """The folders of an environment, relative to the image's root. headers: has a folder for each distribution.

    series: Python's, such as `3.11`. interpreter: of scripts, absolute.
    """

    series: str
    library: str
    scripts: str
    data: str
    headers: str
    interpreter: str

    @classmethod
    def of(cls, series: str, prefix: str = PREFIX) -> Scheme:
        """For a Python with a prefix of its own: standalone or conda's."""
        library = f"{prefix}/lib/python{series}/site-packages"
        headers = f"{prefix}/include/python{series}"
        return cls(series, library, f"{prefix}/bin", prefix, headers, f"/{prefix}/bin/python")

    @classmethod
    def of_venv(cls, series: str, prefix: str = PREFIX) -> Scheme:
        """For a virtual environment, where pip separates headers from Python's own."""
        return replace(cls.of(series, prefix), headers=f"{prefix}/include/site/python{series}")


class WheelLayout:
    """Where a wheel's files go. files: by path, without RECORD. sources: its modules, sorted.

    Raises:
        BadWheel: not this wheel, or unsafe. OSError: it can't be read.
    """

    def __init__(self, wheel: LockedWheel, scheme: Scheme) -> None:
        members = wheel_members(wheel.path)
        info = _dist_info(wheel, members)
        self.files: dict[str, Entry] = {}
        self._wheel, self._scheme = wheel, scheme
        _check_format(wheel, info)
        self._library = scheme.library
        self._scripts = _scripts(wheel, info, scheme)
        self._moved: dict[str, str] = {}
        self._generated: dict[str, bytes] = {}
        for member in members:
            if member is not info.get("RECORD"):
                self._add(member)
        for path in wheel.left_out:
            inner = path.removeprefix(DATA)
            self.files.pop(f"{self._library}/{path}" if inner == path else f"{scheme.data}/{inner}", None)
        folder = f"{self._library}/{posixpath.dirname(info['WHEEL'].path)}"
        for script in self._scripts:
            _, content = script.generate(scheme.interpreter, "posix")
            self._generate(f"{scheme.scripts}/{script.name}", content, _PROGRAM)
        self._generate(f"{folder}/INSTALLER", f"{INSTALLER}\n".encode(), _FILE)
        if wheel.direct_url is not None:
            self._generate(f"{folder}/direct_url.json", _direct_url(wheel.direct_url, wheel.sha256), _FILE)
        self.sources = sorted(filter(self._is_module, self.files))
        self._record_path = f"{folder}/RECORD"
        self._rows = self._installed_rows(_record(wheel, info))

    def _is_module(self, path: str) -> bool:
        return path.startswith(f"{self._library}/") and path.endswith(".py")

    def record(self, compiled: Mapping[str, str]) -> Entry:
        """RECORD with the paths of bytecode, without hashes as with pip. compiled: path of a module -> its bytecode."""
        rows = dict(self._rows)
        for module in self.sources:
            if module in compiled:
                path = self._relative(compiled[module])
                rows[path] = RecordEntry(path, None, None)
        with construct_record_file((InstallerScheme("platlib"), rows[path]) for path in sorted(rows)) as text:
            return Entry(self._record_path, _FILE, data=InMemory(text.read()))

    def digest_of(self, entry: Entry) -> str:
        """Of a file's content and mode, for `OwnedPath`: by the SHA-256 in RECORD, else by the content's own.

        Raises:
            BadArchive, OSError: the content can't be read.
        """
        row = self._rows.get(self._relative(entry.path))
        sha256 = ""
        if row is not None and row.hash_ is not None and row.hash_.name == "sha256":
            sha256 = row.hash_.value.rstrip("=")
        elif entry.data is not None:
            sha256 = from_hex(sha256_of(entry.data))
        return f"{_crc32_of(entry):08x} {entry.size_bytes} {entry.mode:o} {sha256}"

    def _add(self, member: WheelMember) -> None:
        top, _, rest = member.path.partition("/")
        mode = _PROGRAM if member.is_executable else _FILE
        if not top.endswith(".data"):
            self._place(member, f"{self._library}/{member.path}", mode)
            return
        folders = {
            "purelib": self._library,
            "platlib": self._library,
            "scripts": self._scheme.scripts,
            "data": self._scheme.data,
            "headers": f"{self._scheme.headers}/{self._wheel.name}",
        }
        part, _, inner = rest.partition("/")
        if not inner or part not in folders:
            raise BadWheel(self._wheel.filename, f"{member.raw!r} is not in a standard folder of {top}")
        path = f"{folders[part]}/{inner}"
        if part == "scripts" and is_generated_script(posixpath.basename(inner), self._scripts):
            return
        if part == "scripts" and next(unpack_member(member.data), b"").startswith(_PLACEHOLDER):
            self._moved[member.raw] = path
            with fix_shebang(io.BytesIO(read_member(member.data)), self._scheme.interpreter) as fixed:
                self._generate(path, fixed.read(), mode)
            return
        self._place(member, path, mode)

    def _generate(self, path: str, content: bytes, mode: int) -> None:
        """Add a generated file; like pip, after the wheel's own files, which it may replace."""
        self.files[path] = Entry(path, mode, data=InMemory(content))
        self._generated[path] = content

    def _installed_rows(self, record: Sequence[RecordEntry]) -> dict[str, RecordEntry]:
        """RECORD's rows by installed path: the wheel's hashes, except for generated files."""
        rows: dict[str, RecordEntry] = {}
        for row in record:
            path = self._relative(self._moved.get(row.path, posixpath.join(self._library, row.path)))
            rows[path] = RecordEntry(path, row.hash_, row.size)
        for path in map(self._relative, self._moved.values()):
            rows.setdefault(path, RecordEntry(path, None, None))
        for generated, content in self._generated.items():
            path = self._relative(generated)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            rows[path] = RecordEntry(path, Hash("sha256", digest), len(content))
        return rows

    def _relative(self, path: str) -> str:
        if path.startswith(f"{self._library}/"):
            return path.removeprefix(f"{self._library}/")
        return posixpath.relpath(f"/{path}", f"/{self._library}")

    def _place(self, member: WheelMember, path: str, mode: int) -> None:
        if path in self.files:
            raise BadWheel(self._wheel.filename, f"two files of it would be {path}")
        if posixpath.relpath(path, self._scheme.data).split("/", 1)[0] in RESERVED_FOLDERS:
            raise BadWheel(self._wheel.filename, f"{member.raw!r} is in it, which only conda and envspec write")
        self._moved[member.raw] = path
        self.files[path] = Entry(path, mode, data=member.data)


def _dist_info(wheel: LockedWheel, members: Sequence[WheelMember]) -> Mapping[str, WheelMember]:
    """The files of the only `.dist-info`, by name; it must be of this distribution."""
    folders = {member.path.split("/", 1)[0] for member in members if "/" in member.path}
    infos = sorted(folder for folder in folders if folder.endswith(".dist-info"))
    if len(infos) != 1:
        raise BadWheel(wheel.filename, f"{len(infos)} folders end in .dist-info ({', '.join(infos)}), not one")
    info = {member.path[len(infos[0]) + 1 :]: member for member in members if member.path.startswith(f"{infos[0]}/")}
    if missing := sorted({"METADATA", "RECORD", "WHEEL"} - info.keys()):
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


def _check_format(wheel: LockedWheel, info: Mapping[str, WheelMember]) -> None:
    headers = BytesHeaderParser().parsebytes(_text(wheel, info["WHEEL"]))
    if not str(headers["Wheel-Version"]).startswith("1."):
        raise BadWheel(wheel.filename, f"its format is {headers['Wheel-Version']}, only 1 is supported")


def _scripts(wheel: LockedWheel, info: Mapping[str, WheelMember], scheme: Scheme) -> tuple[Script, ...]:
    member = info.get("entry_points.txt")
    if member is None:
        return ()
    try:
        return entry_points(_text(wheel, member).decode("utf-8"), scheme.series)
    except ValueError as error:
        raise BadWheel(wheel.filename, str(error)) from error


def _record(wheel: LockedWheel, info: Mapping[str, WheelMember]) -> list[RecordEntry]:
    try:
        lines = _text(wheel, info["RECORD"]).decode("utf-8").splitlines()
        rows = [RecordEntry.from_elements(*row) for row in parse_record_file(lines)]
    except (InvalidRecordEntry, UnicodeDecodeError) as error:
        raise BadWheel(wheel.filename, f"RECORD can't be read ({error})") from error
    for row in rows:
        # Uninstalling a wheel deletes the files in its RECORD.
        if why := path_problem(row.path):
            raise BadWheel(wheel.filename, f"{row.path!r} of RECORD {why}")
    return rows


def _text(wheel: LockedWheel, member: WheelMember) -> bytes:
    """The content of a metadata file."""
    if member.data.size_bytes > MAX_METADATA_BYTES:
        raise BadWheel(
            wheel.filename, f"{member.raw!r} has {member.data.size_bytes} bytes, more than {MAX_METADATA_BYTES}"
        )
    return read_member(member.data)


def _direct_url(url: str, sha256: str) -> bytes:
    """As pip writes it (PEP 610; `hash` is for readers older than `hashes`)."""
    document = {"archive_info": {"hash": f"sha256={sha256}", "hashes": {"sha256": sha256}}, "url": url}
    return json.dumps(document, sort_keys=True).encode()


def _is_same(version: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        # The lock has the file's hash: a label that only its name has is no other version.
        return Version(version.replace("_", "-")) in (Version(other), Version(Version(other).public))
    except InvalidVersion:
        return version.replace("_", "-") == other.replace("_", "-")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A layer of wheels. pyc: None for no bytecode.

    A path that several of its wheels share is in the layer once. Several layers may contain it: a layer's content
    follows from its own wheels alone.
    """

    wheels: tuple[LockedWheel, ...]
    scheme: Scheme
    pyc: PycCompiler | None
    #: Layouts of `owned`, until `entries` uses them: a wheel's directory is read once.
    _layouts: dict[LockedWheel, WheelLayout] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def key(self) -> str:
        """Of the wheels' hashes, their scheme and the compiling Python, without any path of this machine."""
        scheme = self.scheme
        parts = [
            _FORM,
            [_key_of(wheel) for wheel in self._sorted()],
            [scheme.series, scheme.library, scheme.library, scheme.scripts],
            [scheme.data, scheme.headers, scheme.interpreter],
            self.pyc.key if self.pyc else None,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def title(self) -> str:
        """`torch 2.9.1`, or `41 wheels: attrs 25.1.0, certifi ...`."""
        names = [f"{wheel.name} {wheel.version}" for wheel in self._sorted()]
        return names[0] if len(names) == 1 else f"{len(names)} wheels: {', '.join(names)}"

    def entries(self) -> Iterator[Entry]:
        """Files by path; a module, then its bytecode; all RECORDs at the end.

        Raises:
            BadWheel, FileConflict: an invalid wheel, or two that write one path. UnfitMachine, CompilerFailed: no
            bytecode. OSError: a wheel can't be read.
        """
        return with_folders(self._entries())

    def _entries(self) -> Iterator[Entry]:
        owners_of(self.owned())
        layouts = [self._layouts.pop(wheel) for wheel in self._sorted()]
        files: dict[str, Entry] = {}
        sources: set[str] = set()
        for layout in layouts:
            files.update(layout.files)
            sources.update(layout.sources)
        modules = (_source_module(files[path]) for path in sorted(sources))
        compiled: dict[str, str] = {}
        listed = (files[path] for path in sorted(files))
        yield from with_bytecode(self.pyc, listed, modules, compiled, files)
        for layout in layouts:
            yield layout.record(compiled)

    def owned(self) -> tuple[OwnedPath, ...]:
        """The paths of all wheels, without bytecode and RECORD.

        Raises:
            BadWheel: an invalid wheel. BadArchive, OSError: a wheel can't be read.
        """
        paths = []
        for wheel in self._sorted():
            if wheel not in self._layouts:
                self._layouts[wheel] = WheelLayout(wheel, self.scheme)
            layout = self._layouts[wheel]
            for entry in layout.files.values():
                paths.append(OwnedPath(entry.path, f"{wheel.name} {wheel.version}", layout.digest_of(entry)))
        return tuple(paths)

    def _sorted(self) -> list[LockedWheel]:
        return sorted(self.wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.sha256))


def _key_of(wheel: LockedWheel) -> list[object]:
    return [wheel.name, wheel.version, wheel.sha256, wheel.direct_url, *wheel.left_out]


def _crc32_of(entry: Entry) -> int:
    if isinstance(entry.data, ZipMember):
        return entry.data.crc32
    return zlib.crc32(_content_of(entry))


def _content_of(entry: Entry) -> bytes:
    return entry.data.content if isinstance(entry.data, InMemory) else b""


def _source_module(entry: Entry) -> SourceModule:
    if isinstance(entry.data, ZipMember):
        return SourceModule(entry.path, entry.data.size_bytes, partial(read_member, entry.data))
    return SourceModule(entry.path, entry.size_bytes, partial(_content_of, entry))
