"""Images as files: an OCI layout in a folder, or in a tar that `docker load`, skopeo and podman read as well.

Sources: OCI image specification 1.1, `image-layout.md`; moby, `image/tarexport` for `manifest.json`. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from envspec.errors import EnvspecError, UsageError
from envspec.image.config import canonical
from envspec.image.index_document import OCI_CONFIG, entry
from envspec.image.layer import Image
from envspec.registry.blob import Blob, Descriptor
from envspec.registry.manifest import OCI_INDEX, OCI_MANIFEST

#: Gives the bytes of a layer, wherever they are.
Open = Callable[[Descriptor], Blob]
#: Told of every piece that was written, in bytes.
Moved = Callable[[int], None]

_LAYOUT: Final = canonical({"imageLayoutVersion": "1.0.0"})
_BLOCK: Final = 512
#: GNU tar's and Python's record: readers that read whole records are not left waiting.
_RECORD: Final = 20 * _BLOCK
_REF: Final = "org.opencontainers.image.ref.name"


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
        from envspec.image.index_document import descriptor
        from envspec.registry.manifest import digest_of

        blobs[_path(digest_of(index))] = index
        top = [descriptor(Descriptor(OCI_INDEX, digest_of(index), len(index)))]
    for row in top:
        if tags:
            row["annotations"] = {_REF: tags[0].rpartition(":")[2]}
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


def write_tar(path: Path, files: Iterable[tuple[str, bytes | Descriptor]], opened: Open, moved: Moved) -> None:
    """Write the tar beside its place and move it there whole.

    Raises:
        CannotWrite: no space, no permission.
    """
    with _writing(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        beside = Path(name)
        try:
            with os.fdopen(descriptor, "wb", buffering=1 << 20) as file:
                for chunk in tar_of(files, opened, moved):
                    file.write(chunk)
            # mkstemp's 0600 is for secrets; what is written here is as any file of the user's.
            beside.chmod(0o666 & ~_umask())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def write_layout(folder: Path, files: Iterable[tuple[str, bytes | Descriptor]], opened: Open, moved: Moved) -> None:
    """Write a layout; where one is already, its blobs are kept and its index is replaced last.

    Raises:
        UsageError: the folder holds something that is no layout. CannotWrite: no space, no permission.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder for the layout")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "oci-layout").is_file():
        raise UsageError(f"{folder} holds something that is no OCI layout", hint="name an empty folder, or a new one")
    with _writing(folder):
        late = []
        for name, content in files:
            if not name.startswith("blobs/"):
                late.append((name, content))
            elif not _is_whole(folder / name, content):
                _place(folder / name, _chunks(content, opened), moved)
        # oci-layout last of all: a folder without it is none yet, for us and for others.
        for name, content in reversed(late):
            _place(folder / name, _chunks(content, opened), moved)


def manifests(images: Sequence[Image]) -> Iterator[tuple[Descriptor, bytes]]:
    """The small documents of images, each with its descriptor: configs and manifests."""
    for image in images:
        yield Descriptor(OCI_CONFIG, image.id, len(image.config)), image.config
        yield Descriptor(OCI_MANIFEST, image.digest, len(image.manifest)), image.manifest


def _chunks(content: bytes | Descriptor, opened: Open) -> Iterator[bytes]:
    return iter((content,)) if isinstance(content, bytes) else opened(content).chunks()


def _is_whole(path: Path, content: bytes | Descriptor) -> bool:
    """Files get their names when they are whole, so size tells; one that was cut by hand is written again."""
    size = len(content) if isinstance(content, bytes) else content.size_bytes
    return path.is_file() and path.stat().st_size == size


def _place(path: Path, chunks: Iterable[bytes], moved: Moved) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb", buffering=1 << 20) as file:
            for chunk in chunks:
                moved(len(chunk))
                file.write(chunk)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as fault:
        free = shutil.disk_usage(next(each for each in (path, *path.absolute().parents) if each.exists())).free
        raise CannotWrite(
            f"{path} can't be written: {fault.strerror or fault} ({free / 1e6:,.0f} MB are free there)",
            hint="make room or name another place; what was made so far is kept in envspec's cache",
        ) from fault
