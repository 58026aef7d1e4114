"""Wheels as a layer.

Sources: PyPA's "Binary distribution format" and "Recording installed projects"; how pip 23 to 26 lays what those leave
open: scripts that setuptools made of entry points are made anew, every folder that ends in `.data` is one.

for paths with two owners without all of its wheels being read, or even at hand, again.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import io
import json
import posixpath
import re
from base64 import urlsafe_b64encode
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from functools import partial
from pathlib import Path
from typing import Final

from installer.records import Hash, InvalidRecordEntry, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.utils import Scheme as InstallerScheme
from installer.utils import construct_record_file, fix_shebang, parse_entrypoints

from envspec.fetch.conda_link import RESERVED_FOLDERS
from envspec.image.layers.ownership import Listing, conflicts
from envspec.image.layers.types import PREFIX, Entry, InMemory, Kind, ZipMember
from envspec.image.layers.wheel_zip import BadWheel, Member, members, read, unpacked
from envspec.image.sources.bytecode import Module, Pyc, compiled
from envspec.io.archives import MAX_METADATA_BYTES, path_problem
from envspec.io.cache import JsonCache
from envspec.names import normalised

#: What a script begins with that is to run by the Python that it is installed for (binary distribution format).
_PLACEHOLDER: Final = b"#!python"


def entry_points(text: str, series: str) -> tuple[Script, ...]:
    """The programs that `entry_points.txt` asks for, in its order. series: Python's, such as `3.11`.

    pip's own wheel names its programs for the Python that it was built by, so they are named anew, as pip does.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    try:
        found = [Script(name, module, attr, section) for name, module, attr, section in parse_entrypoints(text)]
    except (configparser.Error, AssertionError) as fault:
        # installer asserts that an entry point names an object.
        why = str(fault) or "an entry point without an object"
        raise ValueError(f"entry_points.txt can't be read ({why})") from fault
    for script in found:
        if "/" in script.name or path_problem(script.name):
            raise ValueError(f"an entry point is named {script.name!r}, which is no file name")
    return tuple(_named_for(found, series))


def _named_for(found: list[Script], series: str) -> Iterator[Script]:
    for script in found:
        if script.name == "pip":
            for name in ("pip", f"pip{series.partition('.')[0]}", f"pip{series}"):
                yield Script(name, script.module, script.attr, script.section)
        elif not (re.fullmatch(r"pip\d+(\.\d+)?", script.name) and any(each.name == "pip" for each in found)):
            yield script


def generated(script: Script, interpreter: str) -> bytes:
    """The text of a program."""
    return script.generate(interpreter, "posix")[1]


def replaces(filename: str, scripts: tuple[Script, ...]) -> bool:
    """Whether a script of the wheel is one that setuptools made of an entry point: then it is made anew instead."""
    lowered = filename.lower()
    ending = next((end for end in (".exe", "-script.py", ".pya") if lowered.endswith(end)), "")
    stem = filename[: len(filename) - len(ending)]
    return any(script.name == stem for script in scripts)


def has_placeholder(start: bytes) -> bool:
    """Whether a file that begins so has to be told its Python."""
    return start.startswith(_PLACEHOLDER)


def for_interpreter(content: bytes, interpreter: str) -> bytes:
    """A script with its first line naming the Python that runs it."""
    with fix_shebang(io.BytesIO(content), interpreter) as fixed:
        return fixed.read()


#: Who installed it, as a distribution's INSTALLER tells.
INSTALLER: Final = "envspec"
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
        if posixpath.relpath(path, self._scheme.data).split("/", 1)[0] in RESERVED_FOLDERS:
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
        if why := path_problem(row.path):
            raise BadWheel(wheel.filename, f"{row.path!r} of RECORD {why}")
    return rows


def _text(wheel: LockedWheel, member: Member) -> bytes:
    """A file of the `.dist-info`, which is read as a whole."""
    if member.data.size_bytes > MAX_METADATA_BYTES:
        raise BadWheel(
            wheel.filename, f"{member.raw!r} has {member.data.size_bytes} bytes, more than {MAX_METADATA_BYTES}"
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


#: Goes up with every change of what comes of the same wheels: it is a part of every key.
_FORM: Final = "wheels 1"
_FOLDER: Final = 0o755
_FILE: Final = 0o644


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A layer of wheels. pyc: None for a layer without bytecode of ours.

    A path that several of its wheels bring with equal bytes is in the layer once. Several layers may each have it:
    what is in one follows from its own wheels alone.
    """

    wheels: tuple[LockedWheel, ...]
    scheme: Scheme
    pyc: Pyc | None
    #: What `listings` read, until `entries` lays it: a wheel's directory is read once.
    _laid: dict[LockedWheel, Laid] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def key(self) -> str:
        """SHA-256 over the wheels' hashes, where they go, and the Python that compiles; no path of this machine."""
        scheme = self.scheme
        told = [
            _FORM,
            [[wheel.name, wheel.version, wheel.sha256, wheel.direct_url] for wheel in self._sorted()],
            [scheme.series, scheme.purelib, scheme.platlib, scheme.scripts],
            [scheme.data, scheme.headers, scheme.interpreter],
            self.pyc.key if self.pyc else None,
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def title(self) -> str:
        """`torch 2.9.1`, or `41 wheels: attrs 25.1.0, certifi ...`."""
        names = [f"{wheel.name} {wheel.version}" for wheel in self._sorted()]
        return names[0] if len(names) == 1 else f"{len(names)} wheels: {', '.join(names)}"

    def entries(self) -> Iterator[Entry]:
        """Folders before what is in them; a module, then its bytecode; each RECORD at the end, when all is known.

        Raises:
            BadWheel, FileConflict. UnfitMachine, WorkerFault: no bytecode. OSError: a wheel can't be read.
        """
        laid = {wheel: self._taken(wheel) for wheel in self._sorted()}
        conflicts(_listing(wheel, each) for wheel, each in laid.items())
        files = {path: entry for each in laid.values() for path, entry in each.files.items()}
        sources = sorted({path for each in laid.values() for path in each.sources})
        made: set[str] = set()
        folders = _Folders()
        with contextlib.closing(self._bytecode(sources, files)) as bytecode:
            coming = next(bytecode, None)
            replaced = {self.pyc.path_of(path): path for path in sources} if self.pyc else {}
            for path in sorted(files):
                # Bytecode that a wheel brings is of its builder's making, and waits for whether ours replaces it.
                if path in replaced:
                    continue
                yield from folders.above(path)
                yield files[path]
                if coming is not None and coming[0] == path:
                    data, coming = coming[1], next(bytecode, None)
                    place = self._place(path)
                    if data:
                        made.add(place)
                        yield from folders.above(place)
                        yield Entry(place, _FILE, data=InMemory(data))
                    elif place in files:
                        yield from folders.above(place)
                        yield files[place]
        for each in laid.values():
            yield from folders.above(each.record_path)
            yield record(each, sorted(self._place(path) for path in each.sources if self._place(path) in made))

    def listings(self) -> tuple[Listing, ...]:
        """What each wheel owns, without bytecode and RECORD, for `owners.conflicts`.

        Raises:
            BadWheel: what it says. OSError: a wheel can't be read.
        """
        for wheel in self._sorted():
            if wheel not in self._laid:
                self._laid[wheel] = lay(wheel, self.scheme)
        return tuple(_listing(wheel, self._laid[wheel]) for wheel in self._sorted())

    def _taken(self, wheel: LockedWheel) -> Laid:
        """What was laid for `listings`, once; laid now where that was not asked for."""
        return self._laid.pop(wheel) if wheel in self._laid else lay(wheel, self.scheme)

    def _sorted(self) -> list[LockedWheel]:
        return sorted(self.wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.sha256))

    def _place(self, module: str) -> str:
        return self.pyc.path_of(module) if self.pyc else ""

    def _bytecode(self, sources: list[str], files: Mapping[str, Entry]) -> Generator[tuple[str, bytes], None, None]:
        if self.pyc is None:
            return
        modules = (_module(files[path]) for path in sources)
        with contextlib.closing(compiled(self.pyc, modules)) as coming:
            yield from zip(sources, coming, strict=True)


class _Folders:
    """The folders of a layer, each once and before what is in it."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def above(self, path: str) -> Iterator[Entry]:
        folder = posixpath.dirname(path)
        if folder and folder not in self._made:
            yield from self.above(folder)
            self._made.add(folder)
            yield Entry(folder, _FOLDER, Kind.FOLDER)


def _listing(wheel: LockedWheel, laid: Laid) -> Listing:
    return Listing(f"{wheel.name} {wheel.version}", tuple(laid.files.values()))


def _module(entry: Entry) -> Module:
    if isinstance(entry.data, ZipMember):
        return Module(entry.path, entry.data.size_bytes, partial(read, entry.data))
    content = entry.data.content if isinstance(entry.data, InMemory) else b""
    return Module(entry.path, len(content), lambda: content)


@dataclass(frozen=True, slots=True)
class Paths:
    """What one layer holds. files: by their paths; empty: those of them without a byte, which layers may share.

    folders: all that are above them.
    """

    files: frozenset[str]
    empty: frozenset[str]
    folders: frozenset[str]


class WheelLists:
    """The lists of one cache, by the keys of their layers."""

    def __init__(self, cache: Path) -> None:
        self._notes = JsonCache(cache / "image-owned")
        self._seen: dict[str, Paths] = {}

    def learn(self, source: WheelSource) -> Paths:
        """Read a layer's wheels for its list, and remember it. For threads, each with another source.

        Raises:
            BadWheel: what it says. OSError: a wheel can't be read. CacheError: the cache can't be written.
        """
        found = _paths_of(entry for listing in source.listings() for entry in listing.entries)
        told = {name: sorted(getattr(found, name)) for name in ("files", "empty", "folders")}
        self._notes.write(_key(source), told)
        return found

    def known(self, source: WheelSource) -> bool:
        """Whether the list is there, and can be read."""
        found = self._read(source)
        if found is not None:
            self._seen[source.key] = found
        return found is not None

    def are_apart(self, sources: Iterable[WheelSource], others: Iterable[str]) -> bool:
        """Whether no two layers have one path. others: paths of layers below.

        False says only that somebody has to look closer: what two of them have may be equal.

        Raises:
            BadWheel: what it says. OSError: a wheel can't be read. CacheError: the cache can't be written.
        """
        files, shared, folders = set(others), set[str](), set[str]()
        for source in sources:
            paths = self._of(source)
            alone = paths.files - paths.empty
            if not files.isdisjoint(paths.files) or not shared.isdisjoint(alone):
                return False
            files |= alone
            shared |= paths.empty
            folders |= paths.folders
        return folders.isdisjoint(files) and folders.isdisjoint(shared)

    def _of(self, source: WheelSource) -> Paths:
        # Let go of as soon as it was looked at: those of a large stack are worth some memory.
        return self._seen.pop(source.key, None) or self._read(source) or self.learn(source)

    def _read(self, source: WheelSource) -> Paths | None:
        with suppress(KeyError, TypeError):
            told = self._notes.read(_key(source))
            return Paths(frozenset(told["files"]), frozenset(told["empty"]), frozenset(told["folders"]))
        return None


def _key(source: WheelSource) -> str:
    return f"wheels-{source.key}"


def _paths_of(entries: Iterable[Entry]) -> Paths:
    files: set[str] = set()
    empty: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        files.add(entry.path)
        if entry.mode == _FILE and _is_empty(entry):
            empty.add(entry.path)
        folder = posixpath.dirname(entry.path)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    return Paths(frozenset(files), frozenset(empty), frozenset(folders))


def _is_empty(entry: Entry) -> bool:
    data = entry.data
    if data is None:
        return False
    return not (data.content if isinstance(data, InMemory) else data.size_bytes)
