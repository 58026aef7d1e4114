"""Blobs and manifests into a registry on loopback: the ways in, logins, manifests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from envspec.registry import errors
from envspec.registry.client import Registry
from envspec.registry.push import BlobTransfer, Transfer, push_blob, push_manifest
from envspec.registry.reference import Reference, parse
from tests.support.registry_clients import BODY, CHUNK, QUICK, REPOSITORY, Bytes, has, nth, push, talk
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import Cut, Fault, Mute, PushRegistry, Say, digest


def test_a_blob_goes_in_chunks_and_is_not_sent_again(tmp_path: Path) -> None:
    held = PushRegistry()
    moved = push(held, tmp_path)
    assert (moved.how, moved.sent_bytes) == (Transfer.UPLOADED, len(BODY))
    assert has(held)
    assert held.methods() == ["HEAD", "POST", *["PATCH"] * 6, "PUT"]
    ranges = [ask.headers["content-range"] for ask in held.asked if ask.method == "PATCH"]
    assert ranges[:2] == [f"0-{CHUNK - 1}", f"{CHUNK}-{2 * CHUNK - 1}"]
    assert ranges[-1] == f"{5 * CHUNK}-{len(BODY) - 1}"
    held.asked.clear()
    assert push(held, tmp_path).how is Transfer.EXISTS
    assert held.methods() == ["HEAD"]


def test_a_blob_is_read_once_from_start_to_end(tmp_path: Path) -> None:
    blob = Bytes(BODY)
    talk(PushRegistry(), lambda registry, name: push_blob(registry, name, blob, chunk_bytes=CHUNK), tmp_path)
    assert blob.starts == [0]


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK])
def test_a_small_blob_goes_in_one_request(tmp_path: Path, size: int) -> None:
    held = PushRegistry()
    assert push(held, tmp_path, BODY[:size]).sent_bytes == size
    assert has(held, BODY[:size])
    assert held.methods() == ["HEAD", "POST", "PUT"]


@pytest.mark.parametrize("status", [400, 404, 405, 415, 501])
def test_a_registry_that_takes_no_chunks_gets_it_whole(tmp_path: Path, status: int) -> None:
    held = PushRegistry(fault=lambda ask: Say(status) if ask.method == "PATCH" else None)
    assert push(held, tmp_path).how is Transfer.UPLOADED
    assert has(held)
    assert held.methods().count("PATCH") == 1
    assert held.methods()[-2:] == ["POST", "PUT"]
    assert held.uploads == {}


def test_a_proxy_that_limits_requests_gets_smaller_ones(tmp_path: Path) -> None:
    held = PushRegistry(most_body=CHUNK)
    assert push(held, tmp_path, chunk_bytes=16 * CHUNK).how is Transfer.UPLOADED
    assert has(held)


def test_a_proxy_that_lets_nothing_through_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.RegistryError, match="HTTP 413") as caught:
        push(PushRegistry(most_body=1000), tmp_path)
    assert "client_max_body_size" in str(caught.value.hint)


def test_chunks_are_as_large_as_the_registry_wants_them(tmp_path: Path) -> None:
    held = PushRegistry(least_chunk=4 * CHUNK)
    push(held, tmp_path)
    assert [ask.size for ask in held.asked if ask.method == "PATCH"] == [4 * CHUNK, CHUNK + 17]


def test_an_upload_at_an_absolute_url(tmp_path: Path) -> None:
    async def use(registry: Registry, name: Reference) -> BlobTransfer:
        held.location = f"http://{held.host}"
        return await push_blob(registry, name, Bytes(BODY))

    held = PushRegistry()
    talk(held, use, tmp_path)
    assert has(held)


def test_a_mount_moves_nothing(tmp_path: Path) -> None:
    held = PushRegistry()
    held.hold("nvidia/cuda", BODY)
    moved = push(held, tmp_path, mount_from=(REPOSITORY, "nvidia/none", "nvidia/cuda"))
    assert (moved.how, moved.sent_bytes) == (Transfer.MOUNTED, 0)
    assert has(held)
    # a mount that is not granted begins an upload
    assert held.methods() == ["HEAD", "POST", "DELETE", "POST"]
    assert held.uploads == {}


def test_a_mount_that_is_not_granted_becomes_an_upload(tmp_path: Path) -> None:
    held = PushRegistry(mounts=False)
    assert push(held, tmp_path, mount_from=("nvidia/cuda",)).how is Transfer.UPLOADED
    assert has(held)
    assert held.methods().count("POST") == 1


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_a_mount_that_is_refused_becomes_an_upload(tmp_path: Path, status: int) -> None:
    held = PushRegistry(fault=lambda ask: Say(status) if "mount=" in ask.target else None)
    assert push(held, tmp_path, mount_from=("nvidia/cuda",)).how is Transfer.UPLOADED
    assert has(held)


def test_what_is_reported_adds_up(tmp_path: Path) -> None:
    told: list[int] = []
    push(PushRegistry(fault=nth("PATCH", {2}, Cut(300_000)), keeps_parts=False), tmp_path, report=told.append)
    assert sum(told) == len(BODY)
    assert min(told) < 0
    told.clear()
    held = PushRegistry()
    held.hold(REPOSITORY, BODY)
    push(held, tmp_path, report=told.append)
    assert told == [len(BODY)]


def test_one_token_does_for_questions_and_pushes(tmp_path: Path) -> None:
    held = PushRegistry(token=99)
    push(held, tmp_path)
    assert held.scopes == [[f"repository:{REPOSITORY}:pull,push"]]
    assert has(held)


def test_blobs_that_go_at_once_share_one_token(tmp_path: Path) -> None:
    async def use(registry: Registry, name: Reference) -> list[BlobTransfer]:
        return list(await asyncio.gather(*(push_blob(registry, name, Bytes(bytes([n]) * 99)) for n in range(6))))

    held = PushRegistry(token=99)
    assert {moved.how for moved in talk(held, use, tmp_path)} == {Transfer.UPLOADED}
    assert len(held.scopes) == 1


def test_a_mount_asks_for_the_right_to_read_there(tmp_path: Path) -> None:
    held = PushRegistry(token=99)
    held.hold("nvidia/cuda", BODY)
    assert push(held, tmp_path, mount_from=("nvidia/cuda",)).how is Transfer.MOUNTED
    assert held.scopes == [[f"repository:{REPOSITORY}:pull,push", "repository:nvidia/cuda:pull"]]


def test_a_token_server_that_refuses_the_mount_s_repository(tmp_path: Path) -> None:
    def refuse(ask: Asked) -> Fault | None:
        return Say(403) if ask.path == "/token" and "nvidia" in ask.target else None

    held = PushRegistry(token=99, fault=refuse)
    assert push(held, tmp_path, mount_from=("nvidia/cuda",)).how is Transfer.UPLOADED
    assert has(held)


@pytest.mark.parametrize("uses", [1, 2, 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_tokens_that_expire_midway(tmp_path: Path, uses: int, at_once: bool) -> None:
    """at_once: the registry refuses before it has read a chunk, and ends the connection."""

    def early(ask: Asked) -> Fault | None:
        if not at_once or ask.method != "PATCH":
            return None
        say = held._challenge(ask, REPOSITORY)
        if say is None:
            held._tokens = {name: (allowed, left + 1) for name, (allowed, left) in held._tokens.items()}
        return None if say is None else Say(401, {"WWW-Authenticate": say}, at_once=True)

    held = PushRegistry(token=uses, fault=early)
    moved = push(held, tmp_path)
    assert moved.how is Transfer.UPLOADED
    assert has(held)
    assert len(held.scopes) > 2


def test_a_token_that_never_suffices(tmp_path: Path) -> None:
    challenge = {"WWW-Authenticate": 'Bearer realm="http://HOST/token",service="test"'}

    async def use(registry: Registry, name: Reference) -> BlobTransfer:
        challenge["WWW-Authenticate"] = challenge["WWW-Authenticate"].replace("HOST", held.host)
        return await push_blob(registry, name, Bytes(BODY))

    held = PushRegistry(token=99, fault=lambda ask: Say(401, challenge) if ask.method == "PATCH" else None)
    with pytest.raises(errors.AccessRefused, match="requires a login"):
        talk(held, use, tmp_path)
    assert held.methods().count("PATCH") == 2


def manifest(*bodies: bytes) -> bytes:
    rows = [{"mediaType": "x", "digest": digest(body), "size": len(body)} for body in bodies]
    return json.dumps({"schemaVersion": 2, "config": rows[0], "layers": rows[1:]}).encode()


KIND = "application/vnd.oci.image.manifest.v1+json"


def put(held: PushRegistry, home: Path, body: bytes, name: str = f"{REPOSITORY}:v1") -> str:
    return talk(
        held,
        lambda registry, _: push_manifest(registry, parse(f"{held.host}/{name}"), body, KIND),
        home,
        replace(QUICK, attempts=3),
    )


def test_a_manifest_goes_under_its_tag(tmp_path: Path) -> None:
    held, body = PushRegistry(), manifest(b"config", b"layer")
    held.hold(REPOSITORY, b"config", b"layer")
    assert put(held, tmp_path, body) == digest(body)
    assert held.tags[REPOSITORY]["v1"] == (KIND, body)
    assert put(held, tmp_path, body, f"{REPOSITORY}@{digest(body)}") == digest(body)
    assert put(held, tmp_path, body, REPOSITORY) == digest(body)
    assert set(held.tags[REPOSITORY]) == {"v1", "latest", digest(body)}


def test_a_manifest_without_its_blobs_is_refused(tmp_path: Path) -> None:
    held = PushRegistry()
    with pytest.raises(errors.RegistryError, match="MANIFEST_BLOB_UNKNOWN"):
        put(held, tmp_path, manifest(b"config"))
    assert held.tags[REPOSITORY] == {}


@pytest.mark.parametrize("fault", [Say(500), Say(503), Mute(), Cut(3)])
def test_a_manifest_is_put_again(tmp_path: Path, fault: Fault) -> None:
    held, body = PushRegistry(fault=nth("PUT", {0}, fault)), manifest(b"config")
    held.hold(REPOSITORY, b"config")
    assert put(held, tmp_path, body) == digest(body)


def test_an_answer_that_names_another_digest(tmp_path: Path) -> None:
    held = PushRegistry(fault=nth("PUT", {0}, Say(201, {"Docker-Content-Digest": digest(b"other")})))
    with pytest.raises(errors.WrongDigest, match="the registry has"):
        put(held, tmp_path, manifest(b"config"))


def test_an_answer_that_names_no_digest_is_looked_after(tmp_path: Path) -> None:
    held, body = PushRegistry(fault=nth("PUT", {0}, Say(201))), manifest(b"config")
    with pytest.raises(errors.WrongDigest, match="has nothing there"):
        put(held, tmp_path, body)
    held = PushRegistry(fault=nth("PUT", {0}, Say(201)), tags={REPOSITORY: {"v1": (KIND, body)}})
    assert put(held, tmp_path, body) == digest(body)


def test_a_manifest_under_another_digest_is_not_sent(tmp_path: Path) -> None:
    held = PushRegistry()
    with pytest.raises(errors.WrongDigest, match="the manifest to push has the digest"):
        put(held, tmp_path, manifest(b"config"), f"{REPOSITORY}@{digest(b'other')}")
    assert held.asked == []
