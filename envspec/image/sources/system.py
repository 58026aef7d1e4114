"""The apt layer.

A kept layer is a zip with the files' contents and a list of entries: spliced into the layer's tar like a wheel, so that
nothing is packed twice. The list decides: two installations that gave the same one are the same layer.

Cache: `system-layers/<key of the order>/<key of the source>/` with the contents, the entries and, written last,
`layer.json`, which makes it known.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from envspec.errors import EnvspecError, UsageError
from envspec.image.layers.types import Entry, InMemory, Kind, Layer, Method, ZipMember
from envspec.image.sources.system_container import Builder, Job, Outputs, Plain, choose, run_job
from envspec.image.sources.system_script import (
    MIRROR,
    Wish,
    form,
    installed,
    is_left_out,
    package_differences,
    work_files,
)
from envspec.io.file_locks import lock_file
from envspec.io.files import write_file
from envspec.io.http_settings import ca_bundle, is_loopback
from envspec.models import Platform, SystemLayer
from envspec.names import WHITEOUT, is_whiteout
from envspec.registry.reference import endpoint_of, parse

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
                yield replace(change, sha256=_keep_change(file, path, archive), size_bytes=member.size)
            else:
                warn(f"system layer: /{path} is a device or a pipe, and is left out")


def _keep_change(file: IO[bytes], path: str, archive: zipfile.ZipFile) -> str:
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


def _members(path: Path) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def _member(archive: Path, file: IO[bytes], member: zipfile.ZipInfo) -> ZipMember:
    """Where a member's packed bytes lie: behind its local header, whose two last fields are of any length."""
    file.seek(member.header_offset)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    offset = member.header_offset + _LOCAL_HEADER.size + name + extra
    return ZipMember(archive, offset, member.compress_size, member.file_size, member.CRC, Method.DEFLATED)


_KNOWN: Final = "layer.json"
_WAIT_S: Final = 0.2
_MOST_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class SystemOrder:
    """A system layer that is wanted.

    base: `docker.io/nvidia/cuda@sha256:...`, what is pulled. base_digest: of that platform's own manifest. apt: names,
    sorted. snapshot: moment of the archive. locked: what the lock knows of the layer; one that differs is refused.
    mirrors: `[registry.mirrors]`.
    """

    platform: Platform
    base: str
    base_digest: str
    apt: tuple[str, ...]
    snapshot: datetime | None = None
    locked: SystemLayer | None = None
    mirrors: tuple[tuple[str, str], ...] = ()
    builder: Builder = Builder.AUTO

    @property
    def key(self) -> str:
        """SHA-256 over all that decides the layer but the state of the archive."""
        moment = self.snapshot.isoformat() if self.snapshot else None
        parts = [form(), self.base_digest, self.platform.value, list(self.apt), moment]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class World:
    """The machine around it.

    cache: envspec's own folder. make_layer: makes, or finds, the layer of a source. told: every line of the
    installation. warn: what the user should know.
    """

    environ: Mapping[str, str]
    cache: Path
    make_layer: Callable[[SystemSource], Layer]
    told: Callable[[str], None]
    warn: Callable[[str], None]


class SystemDiffers(EnvspecError):
    """A system layer came out otherwise than the lock says."""

    exit_code = 8


def find_system_layer(order: SystemOrder, cache: Path) -> tuple[SystemLayer, SystemSource] | None:
    """The layer in the cache; with `order.locked`, the one that the lock means and no other."""
    folder = _folder(order, cache)
    found = [each for each in (_read(path, order.apt) for path in sorted(folder.glob(f"*/{_KNOWN}"))) if each]
    if order.locked is not None:
        found = [each for each in found if each[0].diff_id == order.locked.diff_id]
    return max(found, key=lambda each: (each[1].folder / _KNOWN).stat().st_mtime_ns, default=None)


async def make_system_layer(order: SystemOrder, world: World) -> tuple[SystemLayer, SystemSource]:
    """The layer out of the cache; where it is not there, made in a container of the base.

    Raises:
        NoEngine: it has to be made, and there is neither a container engine nor buildah.
        InstallFailed, ArchiveSilent: apt could not do it. SystemDiffers: it is not what the lock says.
        UsageError: there is nothing to install; the base's name can't be read.
    """
    if not order.apt:
        raise UsageError("a system layer without packages", hint="name some by [system] apt")
    if found := find_system_layer(order, world.cache):
        return found
    folder = _folder(order, world.cache)
    folder.mkdir(parents=True, exist_ok=True)
    with await _alone(folder):
        if found := find_system_layer(order, world.cache):
            return found
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as made:
            beside = Path(made, "layer")
            taken = await _install(order, world, beside)
            source = _keep(order, taken, beside, folder)
    return await asyncio.to_thread(_record, order, taken, source, world)


def _job(order: SystemOrder, world: World) -> Job:
    wish = Wish(
        order.apt, order.snapshot, order.locked.packages if order.locked else (), world.environ.get(MIRROR) or None
    )
    where = endpoint_of(parse(order.base), dict(order.mirrors))
    host = where.base.partition("://")[2].partition("/")[0]
    digest = order.base.rpartition("@")[2]
    return Job(
        base=f"{host}/{where.repository}@{digest}",
        platform=order.platform,
        plain=Plain.HTTP if where.is_plain or is_loopback(host.rpartition(":")[0]) else Plain.TLS,
        name=f"envspec-system-{order.key[:16]}",
        files=work_files(wish, world.environ, certificates_of(world.environ)),
    )


async def _install(order: SystemOrder, world: World, folder: Path) -> Taken:
    work = await asyncio.to_thread(choose, order.builder, _job(order, world), world.environ)
    taken: list[Taken] = []

    def taking(outputs: Outputs) -> None:
        folder.mkdir()
        taken.append(take(outputs, folder, world.warn))

    await run_job(work, world.told, taking)
    return taken[0]


def _keep(order: SystemOrder, taken: Taken, made: Path, folder: Path) -> SystemSource:
    """What was made, at the place of its own content: another run's of the same content is as good."""
    key = write_list(made, taken.changes, title_of(order.apt))
    kept = folder / key
    if not (kept / _KNOWN).exists():
        if kept.exists():
            shutil.rmtree(kept)
        made.rename(kept)
    return SystemSource(kept, key, order.apt)


def _record(order: SystemOrder, taken: Taken, source: SystemSource, world: World) -> tuple[SystemLayer, SystemSource]:
    layer = world.make_layer(source)
    packages = installed(taken.before, taken.after)
    found = SystemLayer(
        order.platform,
        order.base_digest,
        order.apt,
        packages,
        layer.diff_id,
        layer.blob.digest,
        layer.blob.size_bytes,
    )
    write_file(source.folder / _KNOWN, json.dumps(asdict(found) | {"platform": found.platform.value}).encode())
    if order.locked is not None and order.locked.diff_id != found.diff_id:
        raise _difference(order.locked, found)
    return found, source


def _difference(locked: SystemLayer, found: SystemLayer) -> SystemDiffers:
    """The error that lists the packages that differ from the lock's."""
    told = package_differences(locked.packages, found.packages)
    hint = "the archive has moved on: `envspec lock --upgrade` takes what it has now, [system] snapshot holds it still"
    if not told:
        hint = (
            "the same packages gave other files: compare system-layers/*/*/entries.json in this cache and in the cache "
            "of the machine that made the lock, and report the files that differ"
        )
    rows = [f"  {line}" for line in told[:_MOST_TOLD]]
    rows += [f"  and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    return SystemDiffers(
        "\n".join(
            [
                f"the system layer for {found.platform.value} is {found.diff_id}, and the lock says {locked.diff_id}",
                *rows,
            ]
        ),
        hint=hint,
    )


def _folder(order: SystemOrder, cache: Path) -> Path:
    return cache / "system-layers" / order.key


def _read(path: Path, apt: tuple[str, ...]) -> tuple[SystemLayer, SystemSource] | None:
    """A kept layer, if it can be read."""
    try:
        row = json.loads(path.read_bytes())
        row = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        layer = SystemLayer(**{**row, "platform": Platform(row["platform"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return layer, SystemSource(path.parent, path.parent.name, apt)


def certificates_of(environ: Mapping[str, str]) -> bytes | None:
    """The CA bundle that this machine's programs are told to trust; of a folder, all that is in it."""
    bundle = ca_bundle(environ)
    if bundle is None:
        return None
    if bundle.is_file():
        return bundle.read_bytes()
    return b"\n".join(path.read_bytes() for path in sorted(bundle.glob("*.pem"))) or None


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


async def _alone(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Holds the order against other runs, which would use the same container's name; waits for its turn."""
    return _held(await lock_file(folder / ".lock", _WAIT_S))
