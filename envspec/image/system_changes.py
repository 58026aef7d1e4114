"""What an installation has changed, out of its container into the form in which layers are made of it.

A kept layer is a zip with the files' contents and a list of entries: spliced into the layer's tar like a wheel, so that
nothing is packed twice. The list decides: two installations that gave the same one are the same layer.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from envspec.errors import EnvspecError
from envspec.image.content import Entry, InMemory, Kind, Method, ZipMember
from envspec.image.system_script import is_left_out
from envspec.image.system_streams import Outputs
from envspec.names import WHITEOUT, is_whiteout

FILES: Final = "files.zip"
ENTRIES: Final = "entries.json"
_CHUNK: Final = 1 << 20
_LOCAL_HEADER: Final = struct.Struct("<26x2H")
_XATTR: Final = "SCHILY.xattr."


@dataclass(frozen=True, slots=True)
class Changed:
    """One path of a system layer.

    sha256, size_bytes: of a file's content. target: as in Entry; of a file, its name in the zip where that is another.
    """

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    target: str = ""
    sha256: str = ""
    size_bytes: int = 0

    @property
    def order(self) -> list[str]:
        return self.path.split("/")


@dataclass(frozen=True, slots=True)
class Taken:
    """What came out of a container. before, after: lists of packages."""

    changes: tuple[Changed, ...]
    before: str
    after: str


#: What the script gives beside the layer: lists of paths and packages.
_TEXTS: Final = frozenset({"changed", "gone", "packages.before", "packages.after"})
_MOST_BYTES: Final = 64 << 20


class BadChange(EnvspecError):
    """Something in the container that no layer can hold."""


def take(outputs: Outputs, folder: Path, warn: Callable[[str], None]) -> Taken:
    """Read what the script gives, and write the contents of files to `folder`/FILES.

    Raises:
        BadChange: a link to a file that stays out of the layer.
    """
    changes: dict[str, Changed] = {}
    texts: dict[str, bytes] = {}
    for name, content in outputs:
        if name == "layer.tar":
            with zipfile.ZipFile(folder / FILES, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                changes = {change.path: change for change in _changes(content, archive, warn)}
        elif name in _TEXTS:
            texts[name] = content.read(_MOST_BYTES + 1)
            if len(texts[name]) > _MOST_BYTES:
                raise BadChange(
                    f"the container gave more than {_MOST_BYTES} bytes for {name}", hint="take another base image"
                )
    missing = _TEXTS - texts.keys()
    if missing or not changes:
        raise BadChange(
            f"the container gave no {', '.join(sorted(missing)) or 'changes'}", hint="report this with the lock"
        )
    for path in filter(None, texts["gone"].decode("utf-8", "surrogateescape").split("\0")):
        _white_out(path.lstrip("/"), changes)
    changed = {path.lstrip("/") for path in texts["changed"].decode("utf-8", "surrogateescape").split("\0")}
    kept = _without_idle_folders(_linked(changes), changed)
    before, after = (texts[f"packages.{when}"].decode("utf-8", "replace") for when in ("before", "after"))
    return Taken(tuple(sorted(kept.values(), key=lambda change: change.order)), before, after)


def _changes(content: IO[bytes], archive: zipfile.ZipFile, warn: Callable[[str], None]) -> Iterator[Changed]:
    with tarfile.open(fileobj=content, mode="r|", errorlevel=2) as tar:
        for member in tar:
            path = member.name.strip("/")
            if not path or is_left_out(path, is_folder=member.isdir()):
                continue
            if is_whiteout(path):
                warn(f"system layer: /{path} is left out: in a layer its name would hide other files")
                continue
            change = Changed(path, Kind.FILE, stat.S_IMODE(member.mode), member.uid, member.gid)
            attributes = sorted(key.removeprefix(_XATTR) for key in member.pax_headers if key.startswith(_XATTR))
            if attributes:
                warn(f"system layer: /{path} loses its {', '.join(attributes)}: layers of envspec's hold none")
            if member.isdir():
                yield replace(change, kind=Kind.FOLDER)
            elif member.issym():
                yield replace(change, kind=Kind.SYMLINK, mode=0o777, target=member.linkname)
            elif member.islnk():
                yield replace(change, kind=Kind.HARDLINK, target=member.linkname.strip("/"))
            elif member.isreg() and (file := tar.extractfile(member)) is not None:
                yield replace(change, sha256=_keep(file, path, archive), size_bytes=member.size)
            else:
                warn(f"system layer: /{path} is a device or a pipe, and is left out")


def _keep(file: IO[bytes], path: str, archive: zipfile.ZipFile) -> str:
    digest = hashlib.sha256()
    member = zipfile.ZipInfo(path)
    member.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(member, "w", force_zip64=True) as packed:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            packed.write(chunk)
    return digest.hexdigest()


def _white_out(path: str, changes: dict[str, Changed]) -> None:
    """A mark that takes a path of the base away; one for a folder takes all that is in it.

    Source: OCI image specification 1.1, `layer.md`, "Whiteouts".
    """
    parent = PurePosixPath(path).parent
    if is_left_out(path, is_folder=False) or (str(parent) != "." and str(parent) not in changes):
        # The folder above is gone too, or something else has taken its place.
        return
    above = changes.get(str(parent))
    if above is not None and above.kind is not Kind.FOLDER:
        return
    mark = str(parent / f"{WHITEOUT}{PurePosixPath(path).name}")
    changes[mark] = Changed(mark, Kind.FILE, 0o644, 0, 0, sha256=hashlib.sha256().hexdigest())


def _linked(changes: Mapping[str, Changed]) -> dict[str, Changed]:
    """Of files that are one file, the first by path has the content: links come after what they lead to."""
    groups: dict[str, list[str]] = {}
    for change in changes.values():
        if change.kind is Kind.HARDLINK:
            if changes.get(change.target, change).kind is not Kind.FILE:
                raise BadChange(
                    f"/{change.path} is the same file as /{change.target}, which is left out of layers",
                    hint="report this with the name of its package",
                )
            groups.setdefault(change.target, []).append(change.path)
    linked = dict(changes)
    for holder, names in groups.items():
        first, *others = sorted([holder, *names], key=lambda path: path.split("/"))
        linked[first] = replace(changes[holder], path=first, target=holder if first != holder else "")
        for path in others:
            linked[path] = replace(
                changes[holder], path=path, kind=Kind.HARDLINK, target=first, sha256="", size_bytes=0
            )
    return linked


def _without_idle_folders(changes: Mapping[str, Changed], changed: Collection[str]) -> dict[str, Changed]:
    """Without the base's own folders that had to be there only for what was left out."""
    above = {
        str(parent)
        for path, change in changes.items()
        if change.kind is not Kind.FOLDER or path in changed
        for parent in PurePosixPath(path).parents
    }
    return {
        path: change
        for path, change in changes.items()
        if change.kind is not Kind.FOLDER or path in changed or path in above
    }


@dataclass(frozen=True, slots=True)
class SystemSource:
    """A kept system layer.

    folder: with FILES and ENTRIES. key: SHA-256 over title and entries. apt: what was asked for.
    """

    folder: Path
    key: str
    apt: tuple[str, ...]

    @property
    def title(self) -> str:
        return title_of(self.apt)

    def entries(self) -> Iterator[Entry]:
        members = {member.filename: member for member in _members(self.folder / FILES)}
        with (self.folder / FILES).open("rb") as file:
            for each in read_list(self.folder):
                if each.kind is not Kind.FILE:
                    yield Entry(each.path, each.mode, each.kind, None, each.target, each.uid, each.gid)
                    continue
                data: InMemory | ZipMember = InMemory(b"")
                if each.size_bytes:
                    data = _member(self.folder / FILES, file, members[each.target or each.path])
                yield Entry(each.path, each.mode, each.kind, data, "", each.uid, each.gid)


def title_of(apt: tuple[str, ...]) -> str:
    """What the image's history says of the layer: known before it is made."""
    return f"apt: {' '.join(apt)}"


def write_list(folder: Path, changes: tuple[Changed, ...], title: str) -> str:
    """Write the list of entries beside their contents; gives the SHA-256 of it and of the title, the layer's key."""
    rows = [
        [each.path, each.kind.value, each.mode, each.uid, each.gid, each.target, each.sha256, each.size_bytes]
        for each in changes
    ]
    text = json.dumps(rows, separators=(",", ":")).encode()
    (folder / ENTRIES).write_bytes(text)
    return hashlib.sha256(title.encode() + b"\n" + text).hexdigest()


def read_list(folder: Path) -> tuple[Changed, ...]:
    rows: list[list[Any]] = json.loads((folder / ENTRIES).read_bytes())
    return tuple(Changed(path, Kind(kind), *rest) for path, kind, *rest in rows)


def file_differences(was: tuple[Changed, ...], now: tuple[Changed, ...]) -> tuple[str, ...]:
    """The paths that are not as they were, each with what has changed."""
    old, new = ({change.path: change for change in changes} for changes in (was, now))
    told = []
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) != new.get(path):
            what = "is new" if path not in old else "is gone" if path not in new else "differs"
            told.append(f"/{path} {what}")
    return tuple(told)


def _members(path: Path) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def _member(archive: Path, file: IO[bytes], member: zipfile.ZipInfo) -> ZipMember:
    """Where a member's packed bytes lie: behind its local header, whose two last fields are of any length."""
    file.seek(member.header_offset)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    offset = member.header_offset + _LOCAL_HEADER.size + name + extra
    return ZipMember(archive, offset, member.compress_size, member.file_size, member.CRC, Method.DEFLATED)
