"""Blobs and manifests into a registry on loopback, which breaks off, refuses, forgets and lies."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envspec.errors import EnvspecError
from envspec.io import http_types
from envspec.registry import errors
from envspec.registry.client import Registry
from envspec.registry.push import TruncatedBlob, push_blob, push_manifest
from envspec.registry.reference import Reference, parse
from envspec.registry.types import Descriptor
from envspec.structs import replace
from tests.support.registry_clients import BODY, CHUNK, QUICK, REPOSITORY, Bytes, has, nth, push, talk
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import Cut, Fault, Mute, PushRegistry, Say, Sleep, digest

SMALL = BODY[:CHUNK]
METHODS = ("HEAD", "POST", "PATCH", "PUT")
PATIENT = replace(QUICK, stall_s=30.0, total_s=60.0)


def test_a_blob_is_sent_in_chunks_and_not_again(tmp_path: Path) -> None:
    held = PushRegistry()
    push(held, tmp_path)
    assert has(held) and held.taken_bytes == len(BODY)
    assert held.methods() == ["HEAD", "POST", *["PATCH"] * 6, "PUT"]
    ranges = [ask.headers["content-range"] for ask in held.asked if ask.method == "PATCH"]
    assert ranges[:2] == [f"0-{CHUNK - 1}", f"{CHUNK}-{2 * CHUNK - 1}"]
    assert ranges[-1] == f"{5 * CHUNK}-{len(BODY) - 1}"
    held.asked.clear()
    push(held, tmp_path)
    assert held.methods() == ["HEAD"]


def test_a_blob_is_read_once_from_start_to_end(tmp_path: Path) -> None:
    blob = Bytes(BODY)
    talk(PushRegistry(), lambda registry, name: push_blob(registry, name, blob, chunk_bytes=CHUNK), tmp_path)
    assert blob.starts == [0]


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK])
def test_a_small_blob_is_sent_in_one_request(tmp_path: Path, size: int) -> None:
    held = PushRegistry()
    push(held, tmp_path, BODY[:size])
    assert has(held, BODY[:size])
    assert held.methods() == ["HEAD", "POST", "PUT"]


def test_chunks_are_as_large_as_the_registry_requires(tmp_path: Path) -> None:
    held = PushRegistry(least_chunk=4 * CHUNK)
    push(held, tmp_path)
    assert [ask.size for ask in held.asked if ask.method == "PATCH"] == [4 * CHUNK, CHUNK + 17]


def test_a_mount_moves_nothing(tmp_path: Path) -> None:
    held = PushRegistry(token=99)
    held.hold("nvidia/cuda", BODY)
    push(held, tmp_path, mount_from=(REPOSITORY, "nvidia/none", "nvidia/cuda"))
    assert has(held) and held.taken_bytes == 0
    # A mount that is not granted starts an upload.
    assert [method for method in held.methods() if method != "HEAD"] == ["POST", "DELETE", "POST"]
    assert held.uploads == {}
    own = f"repository:{REPOSITORY}:pull,push"
    assert held.scopes == [[own, "repository:nvidia/none:pull", "repository:nvidia/cuda:pull"]]


def test_reported_progress_adds_up(tmp_path: Path) -> None:
    reported: list[int] = []
    push(PushRegistry(fault=nth("PATCH", {2}, Cut(300_000)), keeps_parts=False), tmp_path, report=reported.append)
    assert sum(reported) == len(BODY)
    assert min(reported) < 0
    reported.clear()
    held = PushRegistry()
    held.hold(REPOSITORY, BODY)
    push(held, tmp_path, report=reported.append)
    assert reported == [len(BODY)]


# What a push recovers from

Behaviour = Callable[[PushRegistry, Asked], Fault | None]


def always(method: str, fault: Fault) -> Behaviour:
    return lambda _, ask: fault if ask.method == method else None


def at(method: str, fault: Fault, *numbers: int) -> Behaviour:
    """`fault` for the requests of a method with these numbers, by default the first one."""
    return lambda _, ask: fault if ask.method == method and ask.number in (numbers or (0,)) else None


def refuses_mount(status: int) -> Behaviour:
    return lambda _, ask: Say(status) if "mount=" in ask.target else None


def refuses_the_other_repository(_: PushRegistry, ask: Asked) -> Fault | None:
    return Say(403) if ask.path == "/token" and "nvidia" in ask.target else None


def forgets(held: PushRegistry, ask: Asked) -> Fault | None:
    if ask.method == "PATCH" and ask.number == 3:
        held.uploads.clear()
    return None


def stores_less(held: PushRegistry, ask: Asked) -> Fault | None:
    if ask.method != "PATCH" or ask.number != 1:
        return None
    upload = next(iter(held.uploads.values()))
    upload += BODY[CHUNK : CHUNK + 1000]
    return Say(202, {"Range": f"0-{CHUNK + 999}"})


def damages(*numbers: int) -> Behaviour:
    def damage(held: PushRegistry, ask: Asked) -> Fault | None:
        if ask.method == "PUT" and ask.number in numbers:
            next(iter(held.uploads.values()))[7] ^= 1
        return None

    return damage


def absolute(held: PushRegistry, _: Asked) -> Fault | None:
    held.location = f"http://{held.host}"
    return None


NONE = at("", Mute())
MOUNT = {"mount_from": ("team/one", "nvidia/cuda")}
#: What the registry does, its settings, the push, and how many requests of a method are needed.
RECOVERIES: list[tuple[Behaviour, dict[str, Any], dict[str, Any], dict[str, int]]] = [
    *((always("PATCH", Say(each)), {}, {}, {"PATCH": 1, "POST": 2}) for each in (400, 404, 405, 415, 501)),
    (NONE, {"most_body": CHUNK}, {"chunk_bytes": 16 * CHUNK}, {}),
    (absolute, {}, {}, {"POST": 1}),
    (NONE, {"mounts": False}, MOUNT, {"POST": 2}),
    *((refuses_mount(each), {}, MOUNT, {"POST": 3}) for each in (400, 403, 404, 405)),
    (refuses_the_other_repository, {"token": 99}, MOUNT, {}),
    (forgets, {}, {}, {"POST": 2}),
    (stores_less, {}, {}, {}),
    *((at("PATCH", Say(202, {"Range": each}), 1), {}, {}, {}) for each in ("0-99999999", "0-5", "nonsense", "")),
    (damages(0), {}, {}, {"POST": 2}),
    # aiohttp repeats a PUT whose connection ends by itself: the second one must contain the whole body as well.
    (at("PUT", Cut(300)), {}, {"body": SMALL}, {}),
    (at("PUT", Say(500, at_once=True), 0, 1), {}, {"body": SMALL}, {"POST": 3}),
    *((at(method, fault), {}, {}, {}) for method in METHODS for fault in (Cut(0), Mute())),
    *(
        (at("PATCH", Cut(cut), 1, 3), {"keeps_parts": keeps}, {}, {"POST": 1})
        for cut in (0, 1, 700_000)
        for keeps in (True, False)
    ),
]


@pytest.mark.parametrize(("behaviour", "settings", "options", "requests"), RECOVERIES)
def test_a_push_recovers(
    tmp_path: Path,
    behaviour: Behaviour,
    settings: dict[str, Any],
    options: dict[str, Any],
    requests: dict[str, int],
) -> None:
    held = PushRegistry(fault=lambda ask: behaviour(held, ask), **settings)
    push(held, tmp_path, **options)
    assert has(held, options.get("body", BODY))
    assert {method: held.methods().count(method) for method in requests} == requests
    # An upload whose start got no response is not known.
    assert not any(held.uploads.values())
    if "keeps_parts" in settings:
        assert held.taken_bytes <= len(BODY) + 2 * CHUNK


def test_only_missing_bytes_are_sent_again(tmp_path: Path) -> None:
    held = PushRegistry(fault=nth("PATCH", {1}, Cut(700_000)))
    push(held, tmp_path)
    starts = [int(ask.headers["content-range"].partition("-")[0]) for ask in held.asked if ask.method == "PATCH"]
    assert starts[2] == CHUNK + 700_000
    held = PushRegistry(fault=nth("PATCH", {0}, Mute()))
    push(held, tmp_path)
    assert held.taken_bytes == len(BODY)


@pytest.mark.parametrize("status", [408, 429, 500])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_transient_status_is_waited_out(tmp_path: Path, status: int, method: str, at_once: bool) -> None:
    notices: list[str] = []
    held = PushRegistry(fault=nth(method, {0, 1}, Say(status, at_once=at_once)))
    push(held, tmp_path, notices=notices)
    assert has(held)
    assert len(notices) == 2
    assert all("trying again in" in line for line in notices)


def test_retry_after_is_waited_for_and_a_long_one_is_reported(tmp_path: Path) -> None:
    notices: list[str] = []
    push(PushRegistry(fault=nth("PATCH", {1}, Say(429, {"Retry-After": "1"}))), tmp_path, notices=notices)
    assert notices == [line for line in notices if "in 1.0 s" in line] != []
    with pytest.raises(errors.RateLimited, match="too many requests") as caught:
        push(PushRegistry(fault=nth("PATCH", {1}, Say(429, {"Retry-After": "3600"}))), tmp_path)
    assert "3600" in str(caught.value.hint)
    # Nothing is pushed to mirrors.
    assert "mirror" not in str(caught.value.hint)


def test_progress_resets_the_count_of_attempts(tmp_path: Path) -> None:
    """Twelve broken chunks, each a little further, are no reason to give up; four at one position are."""
    body = random.Random(6).randbytes(5 * CHUNK)
    held = PushRegistry(fault=nth("PATCH", set(range(12)), Cut(300_000)))
    push(held, tmp_path, body)
    assert has(held, body)
    held = PushRegistry(fault=nth("PATCH", set(range(1, 99)), Cut(0)))
    with pytest.raises(http_types.Unreachable):
        push(held, tmp_path, body)
    assert held.methods().count("PATCH") == 1 + QUICK.attempts


class Slow(Bytes):
    """A blob that is slower to read than to send."""

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        for piece in super().chunks(start):
            time.sleep(0.02)
            yield piece


@pytest.mark.parametrize("fault", [Say(503, at_once=True), Say(503, lingers=True), Cut(0), Cut(100_000)])
def test_an_early_end_while_the_blob_is_still_being_read(tmp_path: Path, fault: Fault) -> None:
    """The thread that reads can't be stopped: the next request waits for it. What is refused is not sent to its end."""
    held = PushRegistry(fault=nth("PATCH", {0, 2}, fault))
    talk(held, lambda registry, name: push_blob(registry, name, Slow(BODY), chunk_bytes=2 * CHUNK), tmp_path)
    assert has(held)
    assert held.taken_bytes < len(BODY) + 2 * CHUNK


# Tokens


def test_concurrent_pushes_share_one_token(tmp_path: Path) -> None:
    async def use(registry: Registry, name: Reference) -> None:
        await asyncio.gather(*(push_blob(registry, name, Bytes(bytes([n]) * 99)) for n in range(6)))

    held = PushRegistry(token=99)
    talk(held, use, tmp_path)
    assert len(held.blobs[REPOSITORY]) == 6
    assert held.scopes == [[f"repository:{REPOSITORY}:pull,push"]]


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
    push(held, tmp_path)
    assert has(held)
    assert len(held.scopes) > 2


def test_a_token_that_never_suffices(tmp_path: Path) -> None:
    def refuse(ask: Asked) -> Fault | None:
        challenge = f'Bearer realm="http://{held.host}/token",service="test"'
        return Say(401, {"WWW-Authenticate": challenge}) if ask.method == "PATCH" else None

    held = PushRegistry(token=99, fault=refuse)
    with pytest.raises(errors.AccessRefused, match="requires a login"):
        push(held, tmp_path)
    assert held.methods().count("PATCH") == 2


# What fails


@pytest.mark.parametrize("method", METHODS)
def test_a_failing_registry_is_named(tmp_path: Path, method: str) -> None:
    text = json.dumps({"errors": [{"code": "UNKNOWN", "message": "disk full"}]}).encode()
    held = PushRegistry(fault=lambda ask: Say(500, {}, text) if ask.method == method else None)
    with pytest.raises(errors.RegistryError, match="HTTP 500" if method == "HEAD" else "HTTP 500.*disk full") as caught:
        push(held, tmp_path)
    assert caught.value.exit_code == 5
    assert held.blobs == {} == held.uploads
    assert held.methods().count(method) == QUICK.attempts


REFUSALS: list[tuple[Behaviour, dict[str, Any], str]] = [
    (always("POST", Say(403)), {}, "requires a login and none was found"),
    (always("POST", Say(404)), {}, "no such repository"),
    (always("POST", Say(405)), {}, "accepts no push"),
    (always("POST", Say(400)), {}, "answers HTTP 400"),
    (always("PATCH", Say(403)), {}, "requires a login"),
    (always("PUT", Say(403)), {}, "requires a login"),
    (NONE, {"most_body": 1000}, r"HTTP 413[\s\S]*client_max_body_size"),
    (damages(0, 1), {}, r"the registry received bytes with another digest.*DIGEST_INVALID"),
]


@pytest.mark.parametrize(("behaviour", "settings", "text"), REFUSALS)
def test_a_refused_push_leaves_nothing(
    tmp_path: Path, behaviour: Behaviour, settings: dict[str, Any], text: str
) -> None:
    held = PushRegistry(fault=lambda ask: behaviour(held, ask), **settings)
    with pytest.raises(errors.RegistryError, match=text):
        push(held, tmp_path)
    assert held.blobs == {} == held.uploads
    if "POST" in held.methods()[-1:]:
        assert held.methods() == ["HEAD", "POST"]


def test_a_server_that_takes_no_bytes_is_given_up_and_the_blob_not_read_to_its_end(tmp_path: Path) -> None:
    """What the system buffers for a connection counts, a few MiB; the rest of the blob has to wait."""
    read: list[int] = []

    class Large(Bytes):
        def chunks(self, start: int = 0) -> Iterator[bytes]:
            for _ in range(start, len(self.body), CHUNK):
                read.append(CHUNK)
                yield bytes(CHUNK)

    held = PushRegistry(fault=lambda ask: Sleep(30) if ask.method == "PATCH" else None)
    large = Large(bytes(64 * CHUNK))
    with pytest.raises(http_types.Stalled, match="stalled"):
        talk(held, lambda registry, name: push_blob(registry, name, large), tmp_path, replace(QUICK, attempts=1))
    assert sum(read) < 20 * CHUNK


class Gone(EnvspecError):
    """An error of a blob's source."""


class Broken(Bytes):
    def chunks(self, start: int = 0) -> Iterator[bytes]:
        yield BODY[start : start + 2 * CHUNK]
        raise Gone("the wheel is not in the cache any more")


CLAIMED = Descriptor("", digest(BODY), len(BODY))


@pytest.mark.parametrize(
    ("blob", "kind", "text"),
    [
        (Bytes(BODY[:-1], CLAIMED), TruncatedBlob, f"has {len(BODY) - 1} bytes of {len(BODY)}"),
        (Bytes(BODY[:-1] + b"?", CLAIMED), errors.WrongDigest, "its local copy has the digest"),
        (Broken(BODY), Gone, "the wheel is not in the cache any more"),
    ],
)
def test_a_damaged_local_copy(tmp_path: Path, blob: Bytes, kind: type[EnvspecError], text: str) -> None:
    held = PushRegistry()
    with pytest.raises(kind, match=text):
        talk(held, lambda registry, name: push_blob(registry, name, blob), tmp_path)
    assert held.uploads == {} == held.blobs


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_an_interrupted_upload_is_cancelled(tmp_path: Path, method: str) -> None:
    reached = asyncio.Event()

    def hang(ask: Asked) -> Fault | None:
        if ask.method != method:
            return None
        reached.set()
        return Sleep(60)

    async def use(registry: Registry, name: Reference) -> None:
        pushing = asyncio.create_task(push_blob(registry, name, Bytes(BODY), chunk_bytes=CHUNK))
        await reached.wait()
        assert held.uploads
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing

    held = PushRegistry(fault=hang)
    talk(held, use, tmp_path, PATIENT)
    assert held.uploads == {}


def test_a_silent_registry_does_not_delay_the_end(tmp_path: Path) -> None:
    answers: dict[str, Fault] = {"PATCH": Say(403), "DELETE": Sleep(60)}
    held = PushRegistry(fault=lambda ask: answers.get(ask.method))
    start = time.monotonic()
    with pytest.raises(errors.AccessRefused):
        push(held, tmp_path, timeouts=PATIENT)
    assert "DELETE" in held.methods()
    assert time.monotonic() - start < 30


# Manifests


def manifest(*bodies: bytes) -> bytes:
    rows = [{"mediaType": "x", "digest": digest(body), "size": len(body)} for body in bodies]
    return json.dumps({"schemaVersion": 2, "config": rows[0], "layers": rows[1:]}).encode()


KIND = "application/vnd.oci.image.manifest.v1+json"
BARE = manifest(b"config")


def put(held: PushRegistry, home: Path, body: bytes = BARE, name: str = f"{REPOSITORY}:v1") -> str:
    return talk(held, lambda registry, _: push_manifest(registry, parse(f"{held.host}/{name}"), body, KIND), home)


def test_a_manifest_is_pushed_under_its_tag(tmp_path: Path) -> None:
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
        put(held, tmp_path)
    assert held.tags[REPOSITORY] == {}


@pytest.mark.parametrize("fault", [Say(500), Say(503), Mute(), Cut(3)])
def test_a_manifest_is_put_again(tmp_path: Path, fault: Fault) -> None:
    held = PushRegistry(fault=nth("PUT", {0}, fault))
    held.hold(REPOSITORY, b"config")
    assert put(held, tmp_path) == digest(BARE)


def test_a_response_without_a_digest_is_checked(tmp_path: Path) -> None:
    with pytest.raises(errors.WrongDigest, match="has nothing there"):
        put(PushRegistry(fault=nth("PUT", {0}, Say(201))), tmp_path)
    held = PushRegistry(fault=nth("PUT", {0}, Say(201)), tags={REPOSITORY: {"v1": (KIND, BARE)}})
    assert put(held, tmp_path) == digest(BARE)


def test_a_manifest_under_another_digest_is_not_sent(tmp_path: Path) -> None:
    held = PushRegistry()
    with pytest.raises(errors.WrongDigest, match="the manifest to push has the digest"):
        put(held, tmp_path, name=f"{REPOSITORY}@{digest(b'other')}")
    assert held.asked == []
