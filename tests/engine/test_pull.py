"""Images by their references: pulled from a registry where the engine has them not, and else left alone."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from docker import DockerClient

from envspec.engine.client import Engine, EngineImage, ensure_image, open_engine
from envspec.engine.errors import EngineError
from envspec.registry.reference import BadReference
from tests.image.test_engine import Made
from tests.support.machines.engine import removed

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Pushed:
    """A repository with two tags in a registry, and nothing of it in the engine. ids, digests: by tag."""

    engine: Engine
    name: str
    ids: dict[str, str]
    digests: dict[str, str]

    def ask(self, reference: str) -> EngineImage:
        return ensure_image(self.engine, reference, lambda done, total: None)


@pytest.fixture
def pushed(engine: DockerClient, registry: str) -> Iterator[Pushed]:
    name = f"{registry}/envspec-test/pull-{uuid.uuid4().hex[:8]}"
    made, ids, digests = Made(), {}, {}
    with open_engine(os.environ) as opened, contextlib.ExitStack() as stack:
        for tag in ("latest", "one"):
            with removed(engine, f"{name}:{tag}"):
                ids[tag] = made.load(opened, made.image(tag), [f"{name}:{tag}"])
                message = list(engine.api.push(name, tag=tag, stream=True, decode=True))
                (digests[tag],) = [row["aux"]["Digest"] for row in message if "aux" in row]
            stack.enter_context(removed(engine, f"{name}:{tag}", f"{name}@{digests[tag]}"))
        yield Pushed(opened, name, ids, digests)


@pytest.mark.parametrize(
    ("form", "tag", "tags"),
    [
        ("{name}", "latest", ["latest"]),
        ("{name}:one", "one", ["one"]),
        ("{name}@{digest}", "one", []),
        ("{name}:latest@{digest}", "one", []),
        ("http://{name}:one", "one", ["one"]),
    ],
    ids=["no tag is latest", "tag", "digest", "the digest counts", "of a registry without TLS"],
)
def test_a_reference_brings_its_image_and_no_other(
    engine: DockerClient, pushed: Pushed, form: str, tag: str, tags: list[str]
) -> None:
    reference = form.format(name=pushed.name, digest=pushed.digests[tag])
    came = pushed.ask(reference)
    assert (came.reference, came.id) == (reference, pushed.ids[tag])
    assert came.pulled_bytes is not None
    there = [each for image in engine.images.list(name=pushed.name) for each in image.tags]
    assert there == [f"{pushed.name}:{each}" for each in tags]
    again = pushed.ask(reference)
    assert (again.id, again.pulled_bytes, again.pull_s) == (came.id, None, None)


def test_what_only_the_engine_knows_is_taken_as_it_is(engine: DockerClient, pushed: Pushed) -> None:
    made = Made()
    tag = f"envspec-local-{made.run[:8]}"
    with removed(engine, f"{tag}:latest"):
        there = made.load(pushed.engine, made.image("local"), [f"{tag}:latest"])
        for reference in (tag, f"{tag}:latest", there, there.removeprefix("sha256:")[:12]):
            assert pushed.ask(reference) == EngineImage(reference, there)


def test_what_is_nowhere_is_refused_with_its_name(pushed: Pushed) -> None:
    with pytest.raises(EngineError, match=f"{pushed.name}:two") as refused:
        pushed.ask(f"{pushed.name}:two")
    assert refused.value.hint


@pytest.mark.parametrize("reference", ["Upper/Case", "127.0.0.1:1/a@sha256:12", "someone:secret@127.0.0.1:1/a"])
def test_what_is_no_name_is_said_to_be_none(pushed: Pushed, reference: str) -> None:
    with pytest.raises(BadReference) as refused:
        pushed.ask(reference)
    assert "secret" not in str(refused.value)
