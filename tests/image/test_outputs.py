"""Layouts and tars of images, read back by other programs' eyes; and their differences."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from envspec.image import outputs
from envspec.image.config import RunConfig, image_config, image_of, index_of
from envspec.image.diff import ComparedImage, compared_image, diff_images
from envspec.image.layers.types import Image
from envspec.models import Platform
from envspec.registry.types import Blob, Descriptor
from envspec.report import IMAGE_DIFF
from envspec.structs import replace
from tests.support.builders import images
from tests.support.builders.locks import example
from tests.support.servers.registry import digest

BODIES = [images.tar_of({f"file{number}": b"x" * number * 700}) for number in range(1, 5)]


def image(*bodies: bytes) -> Image:
    base, *rest = map(images.plain_layer, bodies)
    below = images.base(base)
    config = image_config(example(), "i", Platform.LINUX_64, below, rest, RunConfig())
    return image_of(Platform.LINUX_64, config, [base, *rest], {})


def opened(descriptor: Descriptor) -> Blob:
    return next(images.MemoryBlob(body) for body in BODIES if digest(body) == descriptor.digest)


def test_the_tar_is_a_layout_and_dockers_archive_in_one() -> None:
    made = image(*BODIES[:2])
    files = outputs.files_of([made], None, ["envspec/x:latest"])
    moved: list[int] = []
    data = b"".join(outputs.tar_of(files, opened, moved.append))
    assert data == b"".join(outputs.tar_of(files, opened, moved.append))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        content = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        assert {member.mtime for member in archive} == {0}
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    [row] = json.loads(content["index.json"])["manifests"]
    assert row["digest"] == made.digest
    assert row["annotations"] == {
        "io.containerd.image.name": "docker.io/envspec/x:latest",
        "org.opencontainers.image.ref.name": "latest",
    }
    [docker] = json.loads(content["manifest.json"])
    assert docker["RepoTags"] == ["envspec/x:latest"]
    assert hashlib.sha256(content[docker["Config"]]).hexdigest() == made.id.removeprefix("sha256:")
    assert [digest(content[path]) for path in docker["Layers"]] == [each.diff_id for each in made.layers]
    for name, body in content.items():
        if name.startswith("blobs/"):
            assert hashlib.sha256(body).hexdigest() == Path(name).name
    assert len(data) % 10240 == 0
    assert sum(moved) // 2 == sum(map(len, content.values()))


def test_a_layer_that_two_platforms_share_is_written_once() -> None:
    made = image(*BODIES[:2])
    index = index_of([made, made], {})
    names = [name for name, _ in outputs.files_of([made, made], index, [])]
    assert len(names) == len(set(names))
    body = dict(outputs.files_of([made], index, []))["index.json"]
    assert isinstance(body, bytes)
    top = json.loads(body)
    assert top["manifests"][0]["digest"] == digest(index)


def test_a_layout_keeps_its_blobs_and_replaces_its_index(tmp_path: Path) -> None:
    folder = tmp_path / "layout"
    first, second = image(*BODIES[:3]), image(*BODIES[:2], BODIES[3])
    outputs.write_layout(folder, outputs.files_of([first], None, []), opened, lambda _: None)
    moved: list[int] = []
    outputs.write_layout(folder, outputs.files_of([second], None, []), opened, moved.append)
    small = sum(len(body) for _, body in outputs.files_of([second], None, []) if isinstance(body, bytes))
    assert sum(moved) == len(BODIES[3]) + small
    [row] = json.loads((folder / "index.json").read_bytes())["manifests"]
    assert row["digest"] == second.digest
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_a_blob_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    folder, made = tmp_path / "layout", image(*BODIES[:2])
    outputs.write_layout(folder, outputs.files_of([made], None, []), opened, lambda _: None)
    blob = folder / "blobs" / made.layers[0].blob.digest.replace(":", "/")
    blob.write_bytes(b"short")
    outputs.write_layout(folder, outputs.files_of([made], None, []), opened, lambda _: None)
    assert blob.read_bytes() == BODIES[0]


def test_what_no_room_would_help_is_not_told_of_room(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = outputs.files_of([image(BODIES[0])], None, [])
    with pytest.raises(outputs.CannotWriteImage) as caught:
        outputs.write_tar(tmp_path / "file" / "image.tar", files, opened, lambda _: None)
    assert "Not a directory" in str(caught.value) and "free" not in str(caught.value)
    assert "free some" not in str(caught.value)


def side(name: str, made: Image) -> ComparedImage:
    return compared_image(name, made.id, json.loads(made.manifest), json.loads(made.config))


def test_diff_tells_what_a_pull_moves() -> None:
    first, second = image(*BODIES[:3]), image(BODIES[0], BODIES[3], BODIES[2])
    found = diff_images(side("a", first), side("b", second))
    assert found.is_changed
    assert [layer.diff_id for layer in found.moved] == [digest(BODIES[3])]
    assert [layer.diff_id for layer in found.removed] == [digest(BODIES[1])]
    assert found.moved_bytes == len(BODIES[3]) + len(second.config)
    assert found.chained_bytes == len(BODIES[3]) + len(BODIES[2]) + len(second.config)
    text = " ".join(IMAGE_DIFF.render("text", found).split())
    assert "2 layers of 3 unchanged; a pull moves 1 layer and the config" in text
    assert "Docker's own store" in text
    assert json.loads(IMAGE_DIFF.render("json", found))["docker_moved_bytes"] == found.chained_bytes


def test_the_same_image_moves_nothing() -> None:
    made = image(*BODIES[:3])
    found = diff_images(side("a", made), side("b", replace(made)))
    assert not found.is_changed
    assert (found.moved_bytes, found.chained_bytes) == (0, 0)
    assert IMAGE_DIFF.render("text", found) == f"the same image: {made.id}\n"


@pytest.mark.parametrize("size", [8 * 2**30 - 1, 8 * 2**30, 40 * 2**30])
def test_a_tar_ends_at_a_whole_record_whatever_the_size_of_its_blobs(size: int) -> None:
    blob = Descriptor("application/x-tar", digest(b""), size)
    frame = b"".join(outputs.tar_of([("blobs/x", blob)], lambda _: images.MemoryBlob(b""), lambda _: None))
    assert (len(frame) + size) % 10240 == 0
