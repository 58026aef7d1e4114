"""Blobs and manifests into a registry on loopback that breaks off, refuses, forgets and lies."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pytest

from envspec.effects import http_faults
from envspec.effects.http import Patience, open_http
from envspec.errors import EnvspecError
from envspec.registry import faults
from envspec.registry.blob import Descriptor
from envspec.registry.client import Registry
from envspec.registry.credentials import Keychain
from envspec.registry.pieces import ShortBlob
from envspec.registry.push import How, Moved, push_blob, push_manifest
from envspec.registry.reference import Reference, parse
from tests.support.push_registry import Ask, Cut, Fault, Mute, PushRegistry, Say, Sleep, digest

QUICK = Patience(connect_s=1.0, stall_s=0.5, total_s=5.0, backoff_s=0.01, retry_after_s=1.0)
CHUNK = 1024 * 1024
#: Over the size up to which blobs go in one request.
BODY = random.Random(4).randbytes(5 * CHUNK + 17)
REPOSITORY = "team/app"
T = TypeVar("T")


@dataclass(frozen=True)
class Bytes:
    """A blob in memory, in pieces of odd sizes; it counts how far it is read."""

    body: bytes
    claimed: Descriptor | None = None
    starts: list[int] = field(default_factory=list)

    @property
    def descriptor(self) -> Descriptor:
        return self.claimed or Descriptor("application/octet-stream", digest(self.body), len(self.body))

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        self.starts.append(start)
        sizes = random.Random(1)
        while start < len(self.body):
            end = start + sizes.randrange(1, 300_000)
            yield self.body[start:end]
            start = end


def talk(
    held: PushRegistry,
    use: Callable[[Registry, Reference], Awaitable[T]],
    home: Path,
    patience: Patience = QUICK,
    notices: list[str] | None = None,
) -> T:
    async def run() -> T:
        kept = [] if notices is None else notices
        async with held, open_http({}, patience=patience, notice=kept.append) as http:
            return await use(Registry(http, Keychain({}, home)), parse(f"{held.host}/{REPOSITORY}:v1"))

    return asyncio.run(asyncio.wait_for(run(), 20))


def push(held: PushRegistry, home: Path, body: bytes = BODY, chunk_bytes: int = CHUNK, **options: object) -> Moved:
    patience = options.pop("patience", QUICK)
    notices = options.pop("notices", None)
    return talk(
        held,
        lambda registry, name: push_blob(registry, name, Bytes(body), chunk_bytes=chunk_bytes, **options),  # type: ignore[arg-type]
        home,
        patience,  # type: ignore[arg-type]
        notices,  # type: ignore[arg-type]
    )


def has(held: PushRegistry, body: bytes = BODY) -> bool:
    return held.blobs.get(REPOSITORY, {}).get(digest(body)) == body


def nth(method: str, numbers: set[int], fault: Fault) -> Callable[[Ask], Fault | None]:
    """`fault` for the requests of a method with these numbers."""
    return lambda ask: fault if ask.method == method and ask.number in numbers else None


# -- ways in


def test_a_blob_goes_in_chunks_and_is_not_sent_again(tmp_path: Path) -> None:
    held = PushRegistry()
    moved = push(held, tmp_path)
    assert (moved.how, moved.sent_bytes) == (How.UPLOADED, len(BODY))
    assert has(held)
    assert held.methods() == ["HEAD", "POST", *["PATCH"] * 6, "PUT"]
    ranges = [ask.headers["content-range"] for ask in held.asked if ask.method == "PATCH"]
    assert ranges[:2] == [f"0-{CHUNK - 1}", f"{CHUNK}-{2 * CHUNK - 1}"]
    assert ranges[-1] == f"{5 * CHUNK}-{len(BODY) - 1}"
    held.asked.clear()
    assert push(held, tmp_path).how is How.EXISTS
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
    assert push(held, tmp_path).how is How.UPLOADED
    assert has(held)
    assert held.methods().count("PATCH") == 1
    assert held.methods()[-2:] == ["POST", "PUT"]
    assert held.uploads == {}


def test_a_proxy_that_limits_requests_gets_smaller_ones(tmp_path: Path) -> None:
    held = PushRegistry(most_body=CHUNK)
    assert push(held, tmp_path, chunk_bytes=16 * CHUNK).how is How.UPLOADED
    assert has(held)


def test_a_proxy_that_lets_nothing_through_is_named(tmp_path: Path) -> None:
    with pytest.raises(faults.RegistryFault, match="HTTP 413") as caught:
        push(PushRegistry(most_body=1000), tmp_path)
    assert "client_max_body_size" in str(caught.value.hint)


def test_chunks_are_as_large_as_the_registry_wants_them(tmp_path: Path) -> None:
    held = PushRegistry(least_chunk=4 * CHUNK)
    push(held, tmp_path)
    assert [ask.size for ask in held.asked if ask.method == "PATCH"] == [4 * CHUNK, CHUNK + 17]


def test_an_upload_at_an_absolute_url(tmp_path: Path) -> None:
    async def use(registry: Registry, name: Reference) -> Moved:
        held.location = f"http://{held.host}"
        return await push_blob(registry, name, Bytes(BODY))

    held = PushRegistry()
    talk(held, use, tmp_path)
    assert has(held)


def test_a_mount_moves_nothing(tmp_path: Path) -> None:
    held = PushRegistry()
    held.hold("nvidia/cuda", BODY)
    moved = push(held, tmp_path, mount_from=(REPOSITORY, "nvidia/none", "nvidia/cuda"))
    assert (moved.how, moved.sent_bytes) == (How.MOUNTED, 0)
    assert has(held)
    assert held.methods() == ["HEAD", "POST", "POST"]


def test_a_mount_that_is_not_granted_becomes_an_upload(tmp_path: Path) -> None:
    held = PushRegistry(mounts=False)
    assert push(held, tmp_path, mount_from=("nvidia/cuda",)).how is How.UPLOADED
    assert has(held)
    assert held.methods().count("POST") == 1


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_a_mount_that_is_refused_becomes_an_upload(tmp_path: Path, status: int) -> None:
    held = PushRegistry(fault=lambda ask: Say(status) if "mount=" in ask.target else None)
    assert push(held, tmp_path, mount_from=("nvidia/cuda",)).how is How.UPLOADED
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


# -- faults that pass


@pytest.mark.parametrize("keeps_parts", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 700_000])
def test_a_chunk_that_breaks_off_goes_on_from_where_the_registry_is(
    tmp_path: Path, cut: int, keeps_parts: bool
) -> None:
    held = PushRegistry(fault=nth("PATCH", {1, 3}, Cut(cut)), keeps_parts=keeps_parts)
    moved = push(held, tmp_path)
    assert has(held)
    assert held.methods().count("POST") == 1
    assert moved.sent_bytes <= len(BODY) + 2 * CHUNK
    if keeps_parts and cut > 1:
        places = [int(ask.headers["content-range"].partition("-")[0]) for ask in held.asked if ask.method == "PATCH"]
        assert places[2] == CHUNK + cut


@pytest.mark.parametrize("status", [408, 429, 500])
@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "PUT"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_status_that_passes_is_waited_out(tmp_path: Path, status: int, method: str, at_once: bool) -> None:
    notices: list[str] = []
    held = PushRegistry(fault=nth(method, {0, 1}, Say(status, at_once=at_once)))
    assert push(held, tmp_path, notices=notices).how is How.UPLOADED
    assert has(held)
    assert len(notices) == 2
    assert all("trying again in" in line for line in notices)


@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "PUT"])
@pytest.mark.parametrize("fault", [Cut(0), Mute()])
def test_an_answer_that_gets_lost(tmp_path: Path, method: str, fault: Fault) -> None:
    held = PushRegistry(fault=nth(method, {0}, fault))
    push(held, tmp_path)
    assert has(held)
    if isinstance(fault, Mute):
        assert held.taken_bytes == len(BODY)  # nothing was sent twice: the registry was asked what it has


def test_the_lost_answer_to_a_small_blob(tmp_path: Path) -> None:
    """aiohttp repeats a PUT whose connection ends by itself: the second one has to carry the whole body as well."""
    held = PushRegistry(fault=nth("PUT", {0}, Cut(300)))
    push(held, tmp_path, BODY[:CHUNK])
    assert has(held, BODY[:CHUNK])


def test_retry_after_is_waited_for_and_a_long_one_is_told(tmp_path: Path) -> None:
    notices: list[str] = []
    push(PushRegistry(fault=nth("PATCH", {1}, Say(429, {"Retry-After": "1"}))), tmp_path, notices=notices)
    assert notices == [line for line in notices if "in 1.0 s" in line] != []
    with pytest.raises(faults.RateLimited, match="too many requests") as caught:
        push(PushRegistry(fault=nth("PATCH", {1}, Say(429, {"Retry-After": "3600"}))), tmp_path)
    assert "3600" in str(caught.value.hint)


def test_an_upload_that_the_registry_forgot_is_begun_anew(tmp_path: Path) -> None:
    def forget(ask: Ask) -> Fault | None:
        if ask.method == "PATCH" and ask.number == 3:
            held.uploads.clear()
        return None

    held = PushRegistry(fault=forget)
    assert push(held, tmp_path).sent_bytes > len(BODY)
    assert has(held)
    assert held.methods().count("POST") == 2


def test_a_registry_that_took_less_than_it_got(tmp_path: Path) -> None:
    def lose(ask: Ask) -> Fault | None:
        if ask.method == "PATCH" and ask.number == 1:
            upload = next(iter(held.uploads.values()))
            upload += BODY[CHUNK : CHUNK + 1000]
            return Say(202, {"Range": f"0-{CHUNK + 999}"})
        return None

    held = PushRegistry(fault=lose)
    push(held, tmp_path)
    assert has(held)


@pytest.mark.parametrize("range_", ["0-99999999", "0-5", "nonsense", ""])
def test_a_registry_that_says_it_has_what_it_can_t_have(tmp_path: Path, range_: str) -> None:
    lie = nth("PATCH", {1}, Say(202, {"Range": range_}))
    held = PushRegistry(fault=lie)
    push(held, tmp_path)
    assert has(held)


def test_damage_on_the_way_is_sent_again_once(tmp_path: Path) -> None:
    def damage(ask: Ask) -> Fault | None:
        if ask.method == "PUT" and ask.number in spoilt:
            next(iter(held.uploads.values()))[7] ^= 1
        return None

    spoilt = {0}
    held = PushRegistry(fault=damage)
    push(held, tmp_path)
    assert has(held)
    spoilt, held = {0, 1, 2}, PushRegistry(fault=damage)
    with pytest.raises(faults.WrongDigest, match=r"the registry finds another digest.*DIGEST_INVALID"):
        push(held, tmp_path)
    assert not has(held)


def test_a_server_that_takes_no_bytes_is_given_up(tmp_path: Path) -> None:
    held = PushRegistry(fault=lambda ask: Sleep(30) if ask.method == "PATCH" else None)
    with pytest.raises(http_faults.Stalled, match="stalled"):
        push(held, tmp_path, random.Random(5).randbytes(12 * CHUNK), chunk_bytes=12 * CHUNK)


def test_progress_starts_patience_anew(tmp_path: Path) -> None:
    """Twelve broken chunks, each a little further, are no reason to give up; four at one place are."""
    body = random.Random(6).randbytes(5 * CHUNK)
    held = PushRegistry(fault=nth("PATCH", set(range(12)), Cut(300_000)))
    push(held, tmp_path, body)
    assert has(held, body)
    held = PushRegistry(fault=nth("PATCH", set(range(1, 99)), Cut(0)))
    with pytest.raises(http_faults.Unreachable):
        push(held, tmp_path, body)
    assert held.methods().count("PATCH") == 1 + QUICK.attempts


# -- faults that stay


@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "PUT"])
def test_a_registry_that_fails_is_told(tmp_path: Path, method: str) -> None:
    words = json.dumps({"errors": [{"code": "UNKNOWN", "message": "disk full"}]}).encode()
    held = PushRegistry(fault=lambda ask: Say(500, {}, words) if ask.method == method else None)
    with pytest.raises(faults.RegistryFault, match="HTTP 500") as caught:
        push(held, tmp_path)
    assert caught.value.exit_code == 5
    assert not held.blobs
    assert held.methods().count(method) == QUICK.attempts


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "wants a login and none was found"),
        (404, "no such repository"),
        (405, "takes nothing"),
        (400, "answers HTTP 400"),
    ],
)
def test_a_registry_that_takes_nothing(tmp_path: Path, status: int, words: str) -> None:
    held = PushRegistry(fault=lambda ask: Say(status) if ask.method == "POST" else None)
    with pytest.raises(faults.RegistryFault, match=words):
        push(held, tmp_path)
    assert held.methods() == ["HEAD", "POST"]


def test_another_host_gets_the_blob_and_no_login(tmp_path: Path) -> None:
    other = PushRegistry(uploads={"u2": bytearray()})

    async def use(registry: Registry, name: Reference) -> Moved:
        async with other:
            held.location = f"http://{other.host}"
            return await push_blob(registry, name, Bytes(BODY[:CHUNK]))

    def name_upload(ask: Ask) -> Fault | None:
        if ask.method == "POST" and "authorization" in ask.headers:
            return Say(202, {"Location": f"{held.location}/v2/{REPOSITORY}/blobs/uploads/u2"})
        return None

    held = PushRegistry(token=99, fault=name_upload)
    assert talk(held, use, tmp_path).how is How.UPLOADED
    assert has(other, BODY[:CHUNK])
    assert any("authorization" in ask.headers for ask in held.asked)
    assert not any("authorization" in ask.headers for ask in other.asked)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://registry.example/v2/x", "plain http"),
        ("ftp://127.0.0.1/x", "no URL"),
        ("https://user:secret@127.0.0.1/x", "no URL"),
        ("http://[::1/x", "no URL"),
        ("", "doesn't say where"),
    ],
)
def test_an_upload_at_a_place_where_nothing_may_be_sent(tmp_path: Path, location: str, words: str) -> None:
    held = PushRegistry(fault=nth("POST", {0}, Say(202, {"Location": location} if location else {})))
    with pytest.raises(faults.RegistryFault, match=words) as caught:
        push(held, tmp_path)
    assert "secret" not in str(caught.value)


def test_a_copy_on_this_machine_that_is_not_whole(tmp_path: Path) -> None:
    held = PushRegistry()
    short = Bytes(BODY[:-1], Descriptor("", digest(BODY), len(BODY)))
    with pytest.raises(ShortBlob, match=f"has {len(BODY) - 1} bytes of {len(BODY)}"):
        talk(held, lambda registry, name: push_blob(registry, name, short), tmp_path)
    assert held.uploads == {} == held.blobs


def test_a_copy_on_this_machine_that_is_damaged(tmp_path: Path) -> None:
    wrong = Bytes(BODY[:-1] + b"?", Descriptor("", digest(BODY), len(BODY)))
    with pytest.raises(faults.WrongDigest, match="its copy on this machine has the digest"):
        talk(PushRegistry(), lambda registry, name: push_blob(registry, name, wrong), tmp_path)


def test_what_the_blob_s_source_raises_comes_as_it_is(tmp_path: Path) -> None:
    class Gone(EnvspecError):
        pass

    class Broken(Bytes):
        def chunks(self, start: int = 0) -> Iterator[bytes]:
            yield BODY[start : start + 2 * CHUNK]
            raise Gone("the wheel is not in the cache any more")

    held = PushRegistry()
    with pytest.raises(Gone, match="the wheel is not in the cache any more"):
        talk(held, lambda registry, name: push_blob(registry, name, Broken(BODY)), tmp_path)
    assert held.methods().count("PATCH") == 1
    assert held.uploads == {}


# -- logins


def test_one_token_does_for_questions_and_pushes(tmp_path: Path) -> None:
    held = PushRegistry(token=99)
    push(held, tmp_path)
    assert held.scopes == [[f"repository:{REPOSITORY}:pull,push"]]
    assert has(held)


def test_a_mount_asks_for_the_right_to_read_there(tmp_path: Path) -> None:
    held = PushRegistry(token=99)
    held.hold("nvidia/cuda", BODY)
    assert push(held, tmp_path, mount_from=("nvidia/cuda",)).how is How.MOUNTED
    assert held.scopes == [[f"repository:{REPOSITORY}:pull,push", "repository:nvidia/cuda:pull"]]


def test_a_token_server_that_refuses_the_mount_s_repository(tmp_path: Path) -> None:
    def refuse(ask: Ask) -> Fault | None:
        return Say(403) if ask.path == "/token" and "nvidia" in ask.target else None

    held = PushRegistry(token=99, fault=refuse)
    assert push(held, tmp_path, mount_from=("nvidia/cuda",)).how is How.UPLOADED
    assert has(held)


@pytest.mark.parametrize("uses", [1, 2, 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_tokens_that_expire_midway(tmp_path: Path, uses: int, at_once: bool) -> None:
    """at_once: the registry refuses before it has read a chunk, and ends the connection."""

    def early(ask: Ask) -> Fault | None:
        if not at_once or ask.method != "PATCH":
            return None
        say = held._challenge(ask, REPOSITORY)
        if say is None:
            held._tokens = {name: (allowed, left + 1) for name, (allowed, left) in held._tokens.items()}
        return None if say is None else Say(401, {"WWW-Authenticate": say}, at_once=True)

    held = PushRegistry(token=uses, fault=early)
    moved = push(held, tmp_path)
    assert moved.how is How.UPLOADED
    assert has(held)
    assert len(held.scopes) > 2


def test_a_token_that_never_suffices(tmp_path: Path) -> None:
    challenge = {"WWW-Authenticate": 'Bearer realm="http://HOST/token",service="test"'}

    async def use(registry: Registry, name: Reference) -> Moved:
        challenge["WWW-Authenticate"] = challenge["WWW-Authenticate"].replace("HOST", held.host)
        return await push_blob(registry, name, Bytes(BODY))

    held = PushRegistry(token=99, fault=lambda ask: Say(401, challenge) if ask.method == "PATCH" else None)
    with pytest.raises(faults.AccessRefused, match="wants a login"):
        talk(held, use, tmp_path)
    assert held.methods().count("PATCH") == 2


# -- manifests


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
    with pytest.raises(faults.RegistryFault, match="MANIFEST_BLOB_UNKNOWN"):
        put(held, tmp_path, manifest(b"config"))
    assert held.tags[REPOSITORY] == {}


@pytest.mark.parametrize("fault", [Say(500), Say(503), Mute(), Cut(3)])
def test_a_manifest_is_put_again(tmp_path: Path, fault: Fault) -> None:
    held, body = PushRegistry(fault=nth("PUT", {0}, fault)), manifest(b"config")
    held.hold(REPOSITORY, b"config")
    assert put(held, tmp_path, body) == digest(body)


def test_an_answer_that_names_another_digest(tmp_path: Path) -> None:
    held = PushRegistry(fault=nth("PUT", {0}, Say(201, {"Docker-Content-Digest": digest(b"other")})))
    with pytest.raises(faults.WrongDigest, match="the registry keeps"):
        put(held, tmp_path, manifest(b"config"))


def test_an_answer_that_names_no_digest_is_looked_after(tmp_path: Path) -> None:
    held, body = PushRegistry(fault=nth("PUT", {0}, Say(201))), manifest(b"config")
    with pytest.raises(faults.WrongDigest, match="keeps nothing there"):
        put(held, tmp_path, body)
    held = PushRegistry(fault=nth("PUT", {0}, Say(201)), tags={REPOSITORY: {"v1": (KIND, body)}})
    assert put(held, tmp_path, body) == digest(body)


def test_a_manifest_under_another_digest_is_not_sent(tmp_path: Path) -> None:
    held = PushRegistry()
    with pytest.raises(faults.WrongDigest, match="the manifest to push has the digest"):
        put(held, tmp_path, manifest(b"config"), f"{REPOSITORY}@{digest(b'other')}")
    assert held.asked == []
