"""Images from one registry into another, and nothing under a tag that is not whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from envspec.errors import UsageError
from envspec.registry import errors
from envspec.registry.client import Registry
from envspec.registry.copy import RemoteBlob, copy_blob, mirror, push_image
from envspec.registry.reference import parse
from envspec.registry.types import BadManifest, Descriptor, Manifest, image_blobs
from tests.support.registry_clients import BODY, CHUNK, DESCRIPTOR, QUICK, Bytes, holding, nth, talk_to
from tests.support.servers import registry as content
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import Cut, Fault, PushRegistry, Say, digest

CONFIGS = {name: content.config(architecture=name) for name in ("amd64", "arm64")}
LAYERS = {"amd64": BODY[: 2 * CHUNK], "arm64": BODY[CHUNK : 2 * CHUNK], "both": BODY[:1000]}
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"


def row(body: bytes, kind: str = GZIP) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest(body), "size": len(body)}


def image(architecture: str, *more: dict[str, Any]) -> content.Blob:
    layers = [row(LAYERS["both"]), row(LAYERS[architecture]), *more]
    kind = content.OCI_MANIFEST
    config = CONFIGS[architecture].descriptor
    return content.Blob(
        kind, content.encode({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers})
    )


AMD, ARM = image("amd64"), image("arm64")
INDEX = content.index({"linux/amd64": AMD, "linux/arm64": ARM})


def published(top: content.Blob = INDEX, repository: str = "nvidia/cuda", **options: Any) -> PushRegistry:
    manifests = {blob.digest: (blob.media_type, blob.body) for blob in (AMD, ARM, top)}
    held = PushRegistry(tags={repository: manifests | {"v1": (top.media_type, top.body)}}, **options)
    held.hold(repository, *LAYERS.values(), *(config.body for config in CONFIGS.values()))
    return held


def copy(
    home: Path,
    source: PushRegistry,
    target: PushRegistry,
    names: tuple[str, str] = ("nvidia/cuda:v1", "keep/cuda:v1"),
    **options: Any,
) -> str:
    def use(registry: Registry) -> Awaitable[str]:
        return mirror(registry, parse(f"{source.host}/{names[0]}"), parse(f"{target.host}/{names[1]}"), **options)

    return talk_to(home, use, *([source] if source is target else [source, target]))


def test_an_index_is_mirrored_whole_under_the_same_digest(tmp_path: Path) -> None:
    source, target, text = published(), PushRegistry(), list[tuple[int, int]]()
    assert copy(tmp_path, source, target, report=lambda *count: text.append(count)) == INDEX.digest
    assert target.tags["keep/cuda"] == source.tags["nvidia/cuda"]
    assert target.blobs["keep/cuda"] == source.blobs["nvidia/cuda"]
    assert text[-1][0] == text[-1][1] == sum(map(len, target.blobs["keep/cuda"].values()))
    puts = [ask.path for ask in target.asked if ask.method == "PUT"]
    assert puts[-1].endswith("/manifests/v1")
    target.asked.clear()
    assert copy(tmp_path, source, target) == INDEX.digest
    assert target.methods() == ["HEAD"]


def test_within_a_registry_blobs_are_mounted(tmp_path: Path) -> None:
    held = published()
    copy(tmp_path, held, held)
    # Of the manifests.
    assert held.methods().count("PUT") == 3
    assert held.tags["keep/cuda"] == held.tags["nvidia/cuda"]


def test_an_index_by_its_digest_alone(tmp_path: Path) -> None:
    source, target = published(), PushRegistry()
    copy(tmp_path, source, target, (f"nvidia/cuda@{INDEX.digest}", "keep/cuda"))
    assert set(target.tags["keep/cuda"]) == {AMD.digest, ARM.digest, INDEX.digest}


def test_a_target_of_another_digest_is_refused(tmp_path: Path) -> None:
    target = PushRegistry()
    with pytest.raises(UsageError, match="has the digest"):
        copy(tmp_path, published(), target, ("nvidia/cuda:v1", f"keep/cuda@{AMD.digest}"))
    assert target.asked == []


@pytest.mark.parametrize("method", ["GET", "PATCH", "PUT"])
def test_a_mirror_survives_what_breaks_off(tmp_path: Path, method: str) -> None:
    body = BODY
    source = PushRegistry(fault=nth("GET", {1, 2}, Cut(CHUNK)) if method == "GET" else lambda _: None)
    source.hold("a/b", body)
    target = PushRegistry(fault=nth(method, {0}, Cut(CHUNK)))
    talk_to(tmp_path, lambda registry: copy_one(registry, source, target), source, target)
    assert target.blobs["keep/it"][DESCRIPTOR.digest] == body


def copy_one(registry: Registry, source: PushRegistry, target: PushRegistry) -> Awaitable[None]:
    where = parse(f"{source.host}/a/b:v1")
    return copy_blob(registry, parse(f"{target.host}/keep/it:v1"), RemoteBlob(DESCRIPTOR, where))


@pytest.mark.parametrize("verifies", [True, False])
def test_wrong_bytes_reach_no_registry(tmp_path: Path, verifies: bool) -> None:
    """Not even one that doesn't look at what it is given."""
    source, target = holding(BODY[:-1] + b"?"), PushRegistry(verifies=verifies)
    with pytest.raises(errors.WrongDigest, match=r"/a/b: blob sha256:\w+: the received bytes have the digest"):
        talk_to(tmp_path, lambda registry: copy_one(registry, source, target), source, target)
    assert target.blobs == {} == target.uploads


def test_a_source_that_is_gone_is_named_once_patience_ends(tmp_path: Path) -> None:
    source, target = holding(fault=lambda ask: Cut(0)), PushRegistry()
    with pytest.raises(errors.RegistryError) as caught:
        talk_to(tmp_path, lambda registry: copy_one(registry, source, target), source, target)
    assert source.host in caught.value.message
    assert len(source.asked) <= 2 * QUICK.attempts
    assert target.uploads == {}


def never(_: Asked) -> None:
    """No fault."""


FAILURES: dict[str, tuple[Callable[[Asked], Fault | None], Callable[[Asked], Fault | None]]] = {
    "a layer of the source is not there": (
        lambda ask: Say(404) if digest(LAYERS["arm64"]) in ask.path else None,
        never,
    ),
    "a child of the index is not there": (lambda ask: Say(404) if ARM.digest in ask.path else None, never),
    "a child of the index is another": (
        lambda ask: Say(200, {"Content-Type": AMD.media_type}, AMD.body) if ARM.digest in ask.path else None,
        never,
    ),
    "the target takes no blob": (never, lambda ask: Say(500) if ask.method == "POST" else None),
    "the target takes no child": (
        never,
        lambda ask: Say(403) if ask.method == "PUT" and f"/manifests/{ARM.digest}" in ask.path else None,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_nothing_stands_under_the_tag_unless_all_is_there(tmp_path: Path, name: str) -> None:
    of_source, of_target = FAILURES[name]
    before = ("kind", b"what was there")
    target = PushRegistry(fault=of_target, tags={"keep/cuda": {"v1": before}})
    with pytest.raises(errors.RegistryError):
        copy(tmp_path, published(fault=of_source), target)
    assert target.tags["keep/cuda"]["v1"] == before
    assert INDEX.digest not in target.tags["keep/cuda"]


def test_an_image_from_here_and_from_elsewhere(tmp_path: Path) -> None:
    """As a build pushes: the base's layers from another registry, own layers and config from this machine."""
    own, config = b"own layer", CONFIGS["amd64"].body
    top = content.encode(
        {"schemaVersion": 2, "config": row(config), "layers": [row(LAYERS["both"]), row(LAYERS["amd64"]), row(own)]}
    )
    base, target = published(), PushRegistry()

    async def use(registry: Registry) -> None:
        where = parse(f"{base.host}/nvidia/cuda:v1")
        below = [RemoteBlob(Descriptor(GZIP, digest(body), len(body)), where) for body in list(LAYERS.values())[::2]]
        await push_image(
            registry,
            parse(f"{target.host}/team/app:v1"),
            [
                *below,
                RemoteBlob(Descriptor(GZIP, digest(LAYERS["amd64"]), len(LAYERS["amd64"])), where),
                Bytes(own),
                Bytes(config),
            ],
            [Manifest(top, content.OCI_MANIFEST)],
        )

    talk_to(tmp_path, use, base, target)
    assert target.tags["team/app"]["v1"] == (content.OCI_MANIFEST, top)
    target.asked.clear()
    talk_to(tmp_path, use, base, target)
    assert target.methods() == ["HEAD"]


def test_what_is_in_a_manifest(tmp_path: Path) -> None:
    async def use(registry: Registry) -> None:
        name = parse(f"{held.host}/nvidia/cuda:v1")
        index = await registry.manifest(name)
        with pytest.raises(BadManifest, match="an index, not the image of one platform"):
            image_blobs(index, str(name))
        manifest = await registry.manifest(name.at(ARM.digest))
        found = [each.digest for each in image_blobs(manifest, str(name))]
        assert found == [CONFIGS["arm64"].digest, digest(LAYERS["both"]), digest(LAYERS["arm64"])]

    held = published()
    talk_to(tmp_path, use, held)
