"""The apt layer.

A system layer in the cache is a zip with the files' contents and a list of entries: copied into the layer's tar like a
wheel, so nothing is packed twice. Two installations with the same list are the same layer.

Cache: `system-layers/<key of the request>/<key of the source>/` with the contents, the entries and, written last,
`layer.json`, which makes the layer valid.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from msgspec import Struct, to_builtins

from envspec.conformance.text import first_of
from envspec.context import Context
from envspec.engine.errors import NoEngine
from envspec.errors import EnvspecError, NoSolution, UsageError
from envspec.image.layers.types import Entry, EntryKind, InMemory, Layer, ZipMember, ZipMethod
from envspec.image.layers.wheel_zip import data_offset
from envspec.image.sources.system_container import (
    ContainerFiles,
    ContainerJob,
    DockerRunner,
    run_job,
)
from envspec.image.sources.system_script import (
    form,
    installed,
    is_excluded,
    package_differences,
    work_files,
)
from envspec.io.file_locks import lock_file
from envspec.io.files import write_file
from envspec.io.http_settings import ca_bundle
from envspec.models import Platform, SystemLayer
from envspec.names import WHITEOUT, is_whiteout
from envspec.registry.reference import endpoint_of, parse
from envspec.structs import replace

FILES: Final = "files.zip"
ENTRIES: Final = "entries.json"
_HEAD: Final = "layer.json"
_CHUNK_BYTES: Final = 1 << 20
_XATTR: Final = "SCHILY.xattr."
#: The script's output besides the layer: lists of paths and packages.
_LISTS: Final = frozenset({"changed", "gone", "packages.before", "packages.after", "undated"})
_MAX_LIST_BYTES: Final = 64 << 20
_POLL_S: Final = 0.2
_MAX_LINES: Final = 20


class ChangedPath(Struct, frozen=True):
    """One path of a system layer.

    sha256, size_bytes: of a file's content. target: as in Entry; of a file, its name in the zip if that differs.
    """

    path: str
    kind: EntryKind
    mode: int
    uid: int
    gid: int
    target: str = ""
    sha256: str = ""
    size_bytes: int = 0


class BadChange(NoSolution, code="bad-system-change"):
    """A change in the container that no layer can contain."""


def read_changes(
    files: ContainerFiles, folder: Path, warn: Callable[[str], None]
) -> tuple[tuple[ChangedPath, ...], tuple[str, ...], tuple[str, ...]]:
    """The changed paths, the installed packages and the sources without snapshots in a script's output; writes contents
    of files to `folder`/FILES.

    Raises:
        BadChange: a link to an excluded file, or unexpected output.
    """
    changes: dict[str, ChangedPath] = {}
    texts: dict[str, bytes] = {}
    for name, content in files:
        if name == "layer.tar":
            with zipfile.ZipFile(folder / FILES, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                changes = {change.path: change for change in _changes(content, archive, warn)}
        elif name in _LISTS:
            texts[name] = content.read(_MAX_LIST_BYTES + 1)
            if len(texts[name]) > _MAX_LIST_BYTES:
                raise BadChange(
                    f"the container returned more than {_MAX_LIST_BYTES} bytes for {name}",
                    hint="select another base image",
                )
    missing = _LISTS - texts.keys()
    if missing or not changes:
        raise BadChange(
            f"the container returned no {', '.join(sorted(missing)) or 'changes'}", hint="report this with the lock"
        )
    for path in filter(None, texts["gone"].decode("utf-8", "surrogateescape").split("\0")):
        _white_out(path.lstrip("/"), changes)
    changed = {path.lstrip("/") for path in texts["changed"].decode("utf-8", "surrogateescape").split("\0")}
    all_changes = _without_unchanged_folders(_linked(changes), changed)
    before = texts["packages.before"].decode("utf-8", "replace")
    after = texts["packages.after"].decode("utf-8", "replace")
    ordered = sorted(all_changes.values(), key=lambda change: change.path.split("/"))
    undated = tuple(texts["undated"].decode("utf-8", "replace").splitlines())
    return tuple(ordered), installed(before, after), undated


def _changes(content: IO[bytes], archive: zipfile.ZipFile, warn: Callable[[str], None]) -> Iterator[ChangedPath]:
    with tarfile.open(fileobj=content, mode="r|", errorlevel=2) as tar:
        for member in tar:
            path = member.name.strip("/")
            if not path or is_excluded(path, is_folder=member.isdir()):
                continue
            if is_whiteout(path):
                warn(f"system layer: /{path} is excluded: its name would hide other files of the image")
                continue
            change = ChangedPath(path, EntryKind.FILE, stat.S_IMODE(member.mode), member.uid, member.gid)
            attributes = sorted(key.removeprefix(_XATTR) for key in member.pax_headers if key.startswith(_XATTR))
            if attributes:
                warn(f"system layer: /{path} loses its {', '.join(attributes)}: layers have no extended attributes")
            if member.isdir():
                yield replace(change, kind=EntryKind.FOLDER)
            elif member.issym():
                yield replace(change, kind=EntryKind.SYMLINK, mode=0o777, target=member.linkname)
            elif member.islnk():
                yield replace(change, kind=EntryKind.HARDLINK, target=member.linkname.strip("/"))
            elif member.isreg() and (file := tar.extractfile(member)) is not None:
                yield replace(change, sha256=_add_file(file, path, archive), size_bytes=member.size)
            else:
                warn(f"system layer: /{path} is excluded: a device or a pipe")


def _add_file(file: IO[bytes], path: str, archive: zipfile.ZipFile) -> str:
    digest = hashlib.sha256()
    member = zipfile.ZipInfo(path)
    member.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(member, "w", force_zip64=True) as packed:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            packed.write(chunk)
    return digest.hexdigest()


def _white_out(path: str, changes: dict[str, ChangedPath]) -> None:
    """Add a mark that hides a path of the base; that of a folder hides its content too.

    Source: OCI image specification 1.1, `layer.md`, "Whiteouts".
    """
    parent = PurePosixPath(path).parent
    if is_excluded(path, is_folder=False) or (str(parent) != "." and str(parent) not in changes):
        # The folder above is removed too, or replaced.
        return
    above = changes.get(str(parent))
    if above is not None and above.kind is not EntryKind.FOLDER:
        return
    mark = str(parent / f"{WHITEOUT}{PurePosixPath(path).name}")
    changes[mark] = ChangedPath(mark, EntryKind.FILE, 0o644, 0, 0, sha256=hashlib.sha256().hexdigest())


def _linked(changes: Mapping[str, ChangedPath]) -> dict[str, ChangedPath]:
    """Of hard links to one file, the first by path has the content: a link must follow its target."""
    groups: dict[str, list[str]] = {}
    for change in changes.values():
        if change.kind is EntryKind.HARDLINK:
            if changes.get(change.target, change).kind is not EntryKind.FILE:
                raise BadChange(
                    f"/{change.path} is the same file as /{change.target}, which is excluded from layers",
                    hint="report this, with the name of its package",
                )
            groups.setdefault(change.target, []).append(change.path)
    linked = dict(changes)
    for holder, names in groups.items():
        first, *others = sorted([holder, *names], key=lambda path: path.split("/"))
        linked[first] = replace(changes[holder], path=first, target=holder if first != holder else "")
        for path in others:
            linked[path] = replace(
                changes[holder], path=path, kind=EntryKind.HARDLINK, target=first, sha256="", size_bytes=0
            )
    return linked


def _without_unchanged_folders(changes: Mapping[str, ChangedPath], changed: Collection[str]) -> dict[str, ChangedPath]:
    """Remove the base's own folders without changed content, which were only listed for excluded files."""
    kept: set[str] = set()
    for path, change in changes.items():
        if change.kind is not EntryKind.FOLDER or path in changed:
            kept.add(path)
            kept.update(map(str, PurePosixPath(path).parents))
    return {path: change for path, change in changes.items() if path in kept}


class SystemSource(Struct, frozen=True):
    """A cached system layer. folder: contains FILES and ENTRIES. key: SHA-256 of title and entries. apt: requested."""

    folder: Path
    key: str
    apt: tuple[str, ...]

    @property
    def title(self) -> str:
        return title_of(self.apt)

    def names(self) -> frozenset[str]:
        """The names of its files and links, without their folders."""
        return frozenset(each.path.rpartition("/")[2] for each in read_entries(self.folder))

    def entries(self) -> Iterator[Entry]:
        archive = self.folder / FILES
        with zipfile.ZipFile(archive) as opened:
            members = {member.filename: member for member in opened.infolist()}
        with archive.open("rb") as file:
            for each in read_entries(self.folder):
                if each.kind is not EntryKind.FILE:
                    yield Entry(each.path, each.mode, each.kind, None, each.target, each.uid, each.gid)
                    continue
                data: InMemory | ZipMember = InMemory(b"")
                if each.size_bytes:
                    member = members[each.target or each.path]
                    place = (data_offset(archive, file, member), member.compress_size, member.file_size, member.CRC)
                    data = ZipMember(archive, *place, ZipMethod.DEFLATED)
                yield Entry(each.path, each.mode, each.kind, data, "", each.uid, each.gid)


def title_of(apt: tuple[str, ...]) -> str:
    """The layer's text in the image's history."""
    return f"apt: {' '.join(apt)}"


def write_entries(folder: Path, changes: tuple[ChangedPath, ...], title: str) -> str:
    """Write the list of entries; returns the layer's key."""
    entries = [
        [each.path, each.kind.value, each.mode, each.uid, each.gid, each.target, each.sha256, each.size_bytes]
        for each in changes
    ]
    text = json.dumps(entries, separators=(",", ":")).encode()
    (folder / ENTRIES).write_bytes(text)
    return hashlib.sha256(title.encode() + b"\n" + text).hexdigest()


def read_entries(folder: Path) -> tuple[ChangedPath, ...]:
    entries: list[list[Any]] = json.loads((folder / ENTRIES).read_bytes())
    return tuple(ChangedPath(path, EntryKind(kind), *rest) for path, kind, *rest in entries)


class SystemLayerRequest(Struct, frozen=True):
    """base: `docker.io/nvidia/cuda@sha256:...`, to pull. base_digest: of the platform's manifest. apt: sorted names.

    snapshot: time of the archive. locked: the lock's record; a different layer is refused. mirrors:
    `[registry.mirrors]`.
    """

    platform: Platform
    base: str
    base_digest: str
    apt: tuple[str, ...]
    snapshot: datetime | None = None
    locked: SystemLayer | None = None
    mirrors: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Of everything that determines the layer, except the state of the archive."""
        snapshot = self.snapshot.isoformat() if self.snapshot else None
        parts = [form(), self.base_digest, self.platform.value, list(self.apt), snapshot]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def folder(self, cache: Path) -> Path:
        return cache / "system-layers" / self.key


class SystemDiffers(EnvspecError, exit_code=8, code="system-differs"):
    """A system layer differs from the lock."""


def find_system_layer(request: SystemLayerRequest, cache: Path) -> tuple[SystemLayer, SystemSource] | None:
    """The newest cached layer; with `request.locked`, exactly that one."""
    heads = sorted(request.folder(cache).glob(f"*/{_HEAD}"))
    found = list(filter(None, (_read_head(path, request.apt) for path in heads)))
    if request.locked is not None:
        found = [each for each in found if each[0].diff_id == request.locked.diff_id]
    return max(found, key=lambda each: (each[1].folder / _HEAD).stat().st_mtime_ns, default=None)


async def build_system_layer(
    request: SystemLayerRequest,
    context: Context,
    make_layer: Callable[[SystemSource], Layer],
    on_line: Callable[[str], None],
) -> tuple[SystemLayer, SystemSource]:
    """The cached layer; if there is none, installs the packages in a container of the base.

    make_layer: returns the layer of a source. on_line: called with every line of the installation's output.

    Raises:
        NoEngine: no container engine. InstallFailed, ArchiveUnreachable: apt failed.
        SystemDiffers: the layer differs from the lock. UsageError: no packages, or an invalid name of the base.
    """
    if not request.apt:
        raise UsageError("a system layer without packages", hint="add some to [system] apt")
    if found := find_system_layer(request, context.cache):
        return found
    folder = request.folder(context.cache)
    folder.mkdir(parents=True, exist_ok=True)
    # Other runs would use the same container name.
    lock = await lock_file(folder / ".lock", _POLL_S)
    try:
        if found := find_system_layer(request, context.cache):
            return found
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as temporary:
            built = Path(temporary, "layer")
            job = _job(request, context.environ)
            runner = DockerRunner(job, context.environ)
            await asyncio.to_thread(_check_engine, runner, request.apt)
            await asyncio.to_thread(built.mkdir)
            changes, packages, undated = await run_job(
                runner, on_line, lambda files: read_changes(files, built, context.reporter.warning)
            )
            key = write_entries(built, changes, title_of(request.apt))
            source = SystemSource(folder / key, key, request.apt)
            _place(built, source.folder)
    finally:
        os.close(lock)
    return await asyncio.to_thread(_record, request, packages, undated, source, make_layer), source


def _job(request: SystemLayerRequest, environ: Mapping[str, str]) -> ContainerJob:
    pins = request.locked.packages if request.locked else ()
    where = endpoint_of(parse(request.base), dict(request.mirrors))
    return ContainerJob(
        base=f"{where.image_name}@{request.base.rpartition('@')[2]}",
        platform=request.platform,
        name=f"envspec-system-{request.key[:16]}",
        files=work_files(request.apt, request.snapshot, pins, environ, certificates_of(environ)),
    )


def _check_engine(runner: DockerRunner, apt: tuple[str, ...]) -> None:
    try:
        runner.check_engine()
    except NoEngine as error:
        from envspec.base_image.plan import COMPILER

        instead = "copy the layer from the cache of the lock's author"
        if apt == COMPILER:
            instead = 'without torch.compile, leave out the compiler by `compiler = "none"` in [image]'
        raise NoEngine(
            f"system packages need a container, but {error.message}", hint=f"{error.hint}; or {instead}"
        ) from error


def _place(built: Path, target: Path) -> None:
    # A complete folder of the same key has the same content.
    if not (target / _HEAD).exists():
        shutil.rmtree(target, ignore_errors=True)
        built.rename(target)


def _record(
    request: SystemLayerRequest,
    packages: tuple[str, ...],
    undated: tuple[str, ...],
    source: SystemSource,
    make_layer: Callable[[SystemSource], Layer],
) -> SystemLayer:
    layer = make_layer(source)
    identity = (layer.diff_id, layer.blob.digest, layer.blob.size_bytes)
    found = SystemLayer(request.platform, request.base_digest, request.apt, packages, *identity, undated)
    write_file(source.folder / _HEAD, json.dumps(to_builtins(found)).encode())
    if request.locked is not None and request.locked.diff_id != found.diff_id:
        raise _difference(request.locked, found)
    return found


def _difference(locked: SystemLayer, found: SystemLayer) -> SystemDiffers:
    lines = first_of(package_differences(locked.packages, found.packages), _MAX_LINES)
    hint = (
        "run `envspec lock --upgrade --image SPEC` for the archive's current packages, or set [system] snapshot to "
        "a date"
    )
    if not lines:
        hint = (
            "report that the same packages gave other files, with both lists: system-layers/*/*/entries.json in this "
            "cache and in that of the lock's author"
        )
    shown = [f"  {line}" for line in lines]
    what = f"the system layer for {found.platform.value} is {found.diff_id}, but the lock has {locked.diff_id}"
    return SystemDiffers("\n".join([what, *shown]), hint=hint)


def _read_head(path: Path, apt: tuple[str, ...]) -> tuple[SystemLayer, SystemSource] | None:
    """A cached layer; None if its head can't be read."""
    try:
        head = json.loads(path.read_bytes())
        for name, value in head.items():
            if isinstance(value, list):
                head[name] = tuple(value)
        layer = SystemLayer(**{**head, "platform": Platform(head["platform"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return layer, SystemSource(path.parent, path.parent.name, apt)


def certificates_of(environ: Mapping[str, str]) -> bytes | None:
    """This machine's CA bundle; of a folder, all certificates in it."""
    bundle = ca_bundle(environ)
    if bundle is None:
        return None
    if bundle.is_file():
        return bundle.read_bytes()
    return b"\n".join(map(Path.read_bytes, sorted(bundle.glob("*.pem")))) or None
