"""Images into the real engine: found by what they are, loaded with and without the layers that are there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

import pytest
from docker import DockerClient

from envspec.engine.client import Engine, open_engine
from envspec.engine.errors import EngineError
from envspec.image import engine as loading
from envspec.image.config import RunConfig, annotations_of, image_config, image_of
from envspec.image.layers.types import Image, Layer
from envspec.image.outputs import tar_of
from envspec.models import Lock, Platform, Python, Resolution, Target
from envspec.registry.types import Descriptor
from envspec.structs import replace
from tests.support.builders.images import MemoryBlob, base, plain_layer
from tests.support.builders.images import tar_of as plain_tar
from tests.support.machines.engine import removed
from tests.support.machines.run_container import lock_of

pytestmark = pytest.mark.engine


class Made:
    """Images of small layers, the same names always other contents: nothing of an earlier run is in the engine."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex
        self.bodies: dict[str, bytes] = {}
        self.opened: list[str] = []

    def layer(self, name: str) -> Layer:
        body = plain_tar({name: f"{name} {self.run}".encode()})
        layer = plain_layer(body)
        self.bodies[layer.blob.digest] = body
        return layer

    def image(self, *names: str) -> Image:
        target = Target(Platform.LINUX_64, Python("3.12.1", "spec"))
        lock: Lock = replace(lock_of(), resolutions=(Resolution(target, ()),))
        below = base(self.layer("base"))
        layers = tuple(self.layer(name) for name in names)
        config = image_config(lock, self.run, Platform.LINUX_64, below, layers, RunConfig(entrypoint=("true",)))
        return image_of(Platform.LINUX_64, config, (*below.layers, *layers), annotations_of(lock, self.run, below))

    def open(self, descriptor: Descriptor) -> MemoryBlob:
        self.opened.append(descriptor.digest)
        return MemoryBlob(self.bodies[descriptor.digest])

    def load(self, engine: Engine, image: Image, tags: Sequence[str] = (), there: int = 0) -> str:
        self.opened.clear()
        files = loading.files_to_load(image, tags, there)
        return loading.load(engine, image, tar_of(files, self.open, lambda _: None))


@pytest.fixture
def opened(engine: DockerClient) -> Iterator[Engine]:
    with open_engine(os.environ) as found:
        if found.facts.platform is not Platform.LINUX_64:
            pytest.skip("not run: the engine is not linux/amd64")
        yield found


def test_an_image_is_loaded_found_and_named(engine: DockerClient, opened: Engine) -> None:
    made = Made()
    image = made.image("one", "two")
    assert loading.find_image(opened, image) is None
    tag = f"envspec-test/load:{made.run[:8]}"
    with removed(engine, tag, f"{tag}b", image.id):
        there = made.load(opened, image, [tag])
        assert there == loading.find_image(opened, image)
        assert engine.images.get(tag).id == there
        if not opened.facts.containerd_store:
            assert there == image.id
        loading.tag_image(opened, there, f"{tag}b")
        assert engine.images.get(f"{tag}b").id == there
        created = engine.images.get(there).attrs["Created"]
        assert datetime.fromisoformat(created.replace("Z", "+00:00")) == datetime(2026, 11, 1, tzinfo=timezone.utc)


def test_layers_that_are_there_are_not_sent_again(engine: DockerClient, opened: Engine) -> None:
    if opened.facts.containerd_store:
        pytest.skip("not run: an engine with containerd's store reads every layer")
    made = Made()
    first, second = made.image("one", "two"), made.image("one", "other")
    with removed(engine, first.id, second.id):
        assert loading.count_loaded_layers(opened, first) == 0
        made.load(opened, first)
        assert len(made.opened) == 3
        kept = loading.count_loaded_layers(opened, second)
        assert kept == 2
        assert made.load(opened, second, there=kept) == second.id
        assert made.opened == [second.layers[2].blob.digest]
        assert engine.images.get(second.id).attrs["RootFS"]["Layers"] == [layer.diff_id for layer in second.layers]


def test_a_layer_that_is_neither_there_nor_sent(opened: Engine) -> None:
    made = Made()
    image = made.image("one")
    with pytest.raises(EngineError, match=r"loading the image: the engine reports: "):
        made.load(opened, image, there=2)


def test_a_layer_with_other_bytes_than_its_name(opened: Engine, engine: DockerClient) -> None:
    made = Made()
    image = made.image("one")
    digest = image.layers[1].blob.digest
    made.bodies[digest] = plain_tar({"one": b"x" * len(f"one {made.run}")})
    with removed(engine, image.id), pytest.raises(EngineError):
        made.load(opened, image)
