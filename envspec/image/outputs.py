"""Images as files: an OCI layout in a folder, or in a tar for `docker load`, skopeo and podman.

Sources: OCI image specification 1.1, `image-layout.md`; moby, `image/tarexport` for `manifest.json`. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from envspec.errors import EnvspecError, UsageError
from envspec.image.config import canonical, descriptor, entry
from envspec.image.layers.types import Image
from envspec.io.files import FULL, DiskFull, is_unfinished, make_directories, open_replacing, remove_leftovers
from envspec.registry.reference import parse
from envspec.registry.types import OCI_INDEX, Blob, Descriptor, digest_of

#: (path, content) of all files of a layout.
Files = Sequence[tuple[str, bytes | Descriptor]]
OpenBlob = Callable[[Descriptor], Blob]
#: Called with the size of each chunk that was written.
OnBytes = Callable[[int], None]

_LAYOUT: Final = canonical({"imageLayoutVersion": "1.0.0"})
_BLOCK: Final = 512
#: GNU tar's and Python's record: some readers wait for whole records.
_RECORD: Final = 20 * _BLOCK
#: Order in which a layout is written; blobs are 1.
_ORDER: Final = {"oci-layout": 0, "manifest.json": 2, "index.json": 3}
_REF: Final = "org.opencontainers.image.ref.name"
#: The whole name, used by containerd, podman from 4.0 on and Docker's containerd store; _REF is the tag alone.
_NAME: Final = "io.containerd.image.name"


class CannotWriteImage(EnvspecError, exit_code=6, code="image-not-writable"):
    """The output can't be written."""


def files_of(images: Sequence[Image], index: bytes | None, tags: Sequence[str]) -> list[tuple[str, bytes | Descriptor]]:
    """All files of a layout, in the order of a tar; each blob once.

    index: of several platforms; None for one image. tags: `repository:tag`, for `docker load`.
    """
    blobs: dict[str, bytes | Descriptor] = {}
    for image in images:
        for layer in image.layers:
            blobs.setdefault(_path(layer.blob.digest), layer.blob)
        blobs[_path(image.id)] = image.config
        blobs[_path(image.digest)] = image.manifest
    top = [entry(image) for image in images]
    if index is not None:
        blobs[_path(digest_of(index))] = index
        top = [descriptor(Descriptor(OCI_INDEX, digest_of(index), len(index)))]
    if tags:
        for each in top:
            each["annotations"] = {_NAME: str(parse(tags[0])), _REF: tags[0].rpartition(":")[2]}
    # Docker reads one image per tag: that of the first platform.
    docker: list[dict[str, Any]] = []
    for number, image in enumerate(images):
        layers = [_path(layer.blob.digest) for layer in image.layers]
        names = list(tags) if number == 0 else None
        docker.append({"Config": _path(image.id), "RepoTags": names, "Layers": layers})
    index_json = canonical({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": top})
    return [
        ("oci-layout", _LAYOUT),
        ("index.json", index_json),
        ("manifest.json", json.dumps(docker, separators=(",", ":")).encode()),
        *blobs.items(),
    ]


def tar_of(files: Iterable[tuple[str, bytes | Descriptor]], opened: OpenBlob, moved: OnBytes) -> Iterator[bytes]:
    """The layout as a deterministic tar."""
    written = 0
    for name, content in files:
        size = _size_of(content)
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        header = info.tobuf(tarfile.PAX_FORMAT)
        yield header
        for chunk in _chunks(content, opened):
            moved(len(chunk))
            yield chunk
        padding = -size % _BLOCK
        yield bytes(padding)
        written += len(header) + size + padding
    yield bytes(2 * _BLOCK + -(written + 2 * _BLOCK) % _RECORD)


def write_tar(path: Path, files: Files, opened: OpenBlob, moved: OnBytes) -> None:
    """Write the tar to a temporary file and rename it. Raises DiskFull; CannotWriteImage: no permission."""
    with _write_errors(path):
        remove_leftovers(path.parent, path.name)
        with open_replacing(path) as file:
            for chunk in tar_of(files, opened, moved):
                file.write(chunk)


def write_layout(folder: Path, files: Files, opened: OpenBlob, moved: OnBytes) -> None:
    """Write a layout. An existing one keeps its blobs, and its index is replaced last.

    After an error, no new layout is left; after a kill, the next run continues.

    Raises:
        UsageError: the folder contains something else. DiskFull. CannotWriteImage: no permission.
    """
    check_outputs(None, folder)
    is_layout = _is_layout(folder)
    with _write_errors(folder), contextlib.nullcontext() if is_layout else _removed_on_error(folder):
        for each in (folder, *folder.glob("blobs/*")):
            remove_leftovers(each)
        # oci-layout first: it marks a folder as envspec's. index.json last: without it there is no image.
        for name, content in sorted(files, key=lambda file: _ORDER.get(file[0], 1)):
            path, size = folder / name, _size_of(content)
            # Files are renamed only when complete: a blob of another size was truncated later.
            if not (name.startswith("blobs/") and path.is_file() and path.stat().st_size == size):
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_replacing(path) as file:
                    for chunk in _chunks(content, opened):
                        moved(len(chunk))
                        file.write(chunk)


def check_outputs(tar: Path | None, layout: Path | None) -> None:
    """Check the paths of outputs before the image is built. Raises UsageError: a path is in use for something else."""
    if tar is not None and tar.is_dir():
        raise UsageError(f"{tar} is a folder", hint=f"use a file name: {tar / 'image.tar'}")
    if layout is None or not layout.exists():
        return
    if not layout.is_dir():
        raise UsageError(f"{layout} is a file", hint="use a folder for the layout")
    if not _is_layout(layout) and not all(map(is_unfinished, layout.iterdir())):
        raise UsageError(f"{layout} is neither empty nor an OCI layout", hint="use an empty or a new folder")


def _size_of(content: bytes | Descriptor) -> int:
    if isinstance(content, bytes):
        return len(content)
    return content.size_bytes


def _chunks(content: bytes | Descriptor, opened: OpenBlob) -> Iterator[bytes]:
    return iter((content,)) if isinstance(content, bytes) else opened(content).chunks()


def _is_layout(folder: Path) -> bool:
    return (folder / "oci-layout").is_file()


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"


@contextlib.contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
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
def _write_errors(path: Path) -> Iterator[None]:
    try:
        make_directories(path.parent)
        yield
    except OSError as error:
        kept = "the layers written so far stay in envspec's cache"
        what = f"{path} can't be written: {error.strerror or error}"
        if error.errno not in FULL:
            raise CannotWriteImage(what, hint=f"use another path; {kept}") from error
        free = shutil.disk_usage(next(each for each in (path, *path.absolute().parents) if each.exists())).free
        raise DiskFull(
            f"{what} ({free / 1e6:,.0f} MB are free there)", hint=f"free some space or use another path; {kept}"
        ) from error
