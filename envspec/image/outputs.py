"""Images as files: an OCI layout in a folder, or in a tar that `docker load`, skopeo and podman read as well.

Sources: OCI image specification 1.1, `image-layout.md`; moby, `image/tarexport` for `manifest.json`. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from envspec.errors import EnvspecError, UsageError
from envspec.image.config import canonical, entry
from envspec.image.layers.types import Image
from envspec.io.files import FULL, is_unfinished, open_replacing, remove_leftovers
from envspec.registry.reference import parse
from envspec.registry.types import OCI_INDEX, Blob, Descriptor

#: Path -> content of everything in a layout, in the order in which it is written.
Files = Sequence[tuple[str, bytes | Descriptor]]
#: Gives the bytes of a layer, wherever they are.
Open = Callable[[Descriptor], Blob]
#: Told of every piece that was written, in bytes.
Moved = Callable[[int], None]

_LAYOUT: Final = canonical({"imageLayoutVersion": "1.0.0"})
_BLOCK: Final = 512
#: GNU tar's and Python's record: readers that read whole records are not left waiting.
_RECORD: Final = 20 * _BLOCK
#: When what is no blob is written; blobs between them.
_TURNS: Final = {"oci-layout": 0, "manifest.json": 2, "index.json": 3}
_REF: Final = "org.opencontainers.image.ref.name"
#: The whole name, by which containerd, podman from 4.0 on and Docker's containerd store go; the other is the tag alone.
_NAME: Final = "io.containerd.image.name"


class CannotWrite(EnvspecError):
    """The output can't be written."""

    exit_code = 6


def files_of(images: Sequence[Image], index: bytes | None, tags: Sequence[str]) -> list[tuple[str, bytes | Descriptor]]:
    """Path -> content of everything in a layout, in the order in which it is written; each blob once.

    index: the index of several platforms; None for one image. tags: `repository:tag`, for `docker load`.
    """
    blobs: dict[str, bytes | Descriptor] = {}
    for image in images:
        for layer in image.layers:
            blobs.setdefault(_path(layer.blob.digest), layer.blob)
        blobs[_path(image.id)] = image.config
        blobs[_path(image.digest)] = image.manifest
    top = [entry(image) for image in images]
    if index is not None:
        from envspec.image.config import descriptor
        from envspec.registry.types import digest_of

        blobs[_path(digest_of(index))] = index
        top = [descriptor(Descriptor(OCI_INDEX, digest_of(index), len(index)))]
    for row in top:
        if tags:
            row["annotations"] = {_NAME: str(parse(tags[0])), _REF: tags[0].rpartition(":")[2]}
    # Docker reads one image per tag: that of the first platform.
    docker = [
        {
            "Config": _path(image.id),
            "RepoTags": list(tags) if place == 0 else None,
            "Layers": [_path(layer.blob.digest) for layer in image.layers],
        }
        for place, image in enumerate(images)
    ]
    index_json = canonical({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": top})
    return [
        ("oci-layout", _LAYOUT),
        ("index.json", index_json),
        ("manifest.json", json.dumps(docker, separators=(",", ":")).encode()),
        *blobs.items(),
    ]


def tar_of(files: Iterable[tuple[str, bytes | Descriptor]], opened: Open, moved: Moved) -> Iterator[bytes]:
    """The layout as a tar, the same bytes for the same images."""
    written = 0
    for name, content in files:
        size = len(content) if isinstance(content, bytes) else content.size_bytes
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        yield info.tobuf(tarfile.PAX_FORMAT)
        for chunk in _chunks(content, opened):
            moved(len(chunk))
            yield chunk
        padding = -size % _BLOCK
        yield bytes(padding)
        written += _BLOCK + size + padding
    yield bytes(2 * _BLOCK + -(written + 2 * _BLOCK) % _RECORD)


def write_tar(path: Path, files: Files, opened: Open, moved: Moved) -> None:
    """Write the tar beside its place and move it there whole.

    Raises:
        CannotWrite: no space, no permission.
    """
    with _writing(path):
        remove_leftovers(path.parent, path.name)
        with open_replacing(path) as file:
            for chunk in tar_of(files, opened, moved):
                file.write(chunk)


def write_layout(folder: Path, files: Files, opened: Open, moved: Moved) -> None:
    """Write a layout; where one is already, its blobs are kept and its index is replaced last.

    Where none was, a fault leaves none. A run that is killed leaves what the next one goes on with.

    Raises:
        UsageError: the folder holds something that is no layout. CannotWrite: no space, no permission.
    """
    check_places(None, folder)
    is_layout = _is_layout(folder)
    with _writing(folder), _leaving_none(folder) if not is_layout else contextlib.nullcontext():
        for each in (folder, *folder.glob("blobs/*")):
            remove_leftovers(each)
        # oci-layout first: by it the next run knows a folder of ours. index.json last: without it there is no image.
        for name, content in sorted(files, key=lambda row: _TURNS.get(row[0], 1)):
            path = folder / name
            if not name.startswith("blobs/") or not _is_whole(path, content):
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_replacing(path) as file:
                    for chunk in _chunks(content, opened):
                        moved(len(chunk))
                        file.write(chunk)


def check_places(tar: Path | None, layout: Path | None) -> None:
    """Whether a tar and a layout may be written there: asked before hours go into what they hold.

    Raises:
        UsageError: something of the user's is in the way.
    """
    if tar is not None and tar.is_dir():
        raise UsageError(f"{tar} is a folder", hint=f"name a file: {tar / 'image.tar'}")
    if layout is None or not layout.exists():
        return
    if not layout.is_dir():
        raise UsageError(f"{layout} is a file", hint="name a folder for the layout")
    if not _is_layout(layout) and not all(map(is_unfinished, layout.iterdir())):
        raise UsageError(f"{layout} holds something that is no OCI layout", hint="name an empty folder, or a new one")


def _chunks(content: bytes | Descriptor, opened: Open) -> Iterator[bytes]:
    return iter((content,)) if isinstance(content, bytes) else opened(content).chunks()


def _is_whole(path: Path, content: bytes | Descriptor) -> bool:
    """Files get their names when they are whole, so size tells; one that was cut by hand is written again."""
    size = len(content) if isinstance(content, bytes) else content.size_bytes
    return path.is_file() and path.stat().st_size == size


def _is_layout(folder: Path) -> bool:
    return (folder / "oci-layout").is_file()


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"


@contextlib.contextmanager
def _leaving_none(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for name in ("index.json", "manifest.json", "oci-layout"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "blobs", ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as fault:
        what, way = f"{path} can't be written: {fault.strerror or fault}", "name another place"
        if fault.errno in FULL:
            free = shutil.disk_usage(next(each for each in (path, *path.absolute().parents) if each.exists())).free
            what, way = f"{what} ({free / 1e6:,.0f} MB are free there)", "make room or name another place"
        raise CannotWrite(what, hint=f"{way}; what was made so far is kept in envspec's cache") from fault
