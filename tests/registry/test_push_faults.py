"""Pushes to a registry that breaks off, refuses, forgets and lies."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envspec.errors import EnvspecError
from envspec.io import http_types
from envspec.registry import errors
from envspec.registry.client import Registry
from envspec.registry.push import BlobTransfer, Transfer, TruncatedBlob, push_blob
from envspec.registry.reference import Reference
from envspec.registry.types import Descriptor
from tests.support.registry_clients import BODY, CHUNK, QUICK, REPOSITORY, Bytes, has, nth, push, talk
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import Cut, Fault, Mute, PushRegistry, Say, Sleep, digest


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
    assert push(held, tmp_path, notices=notices).how is Transfer.UPLOADED
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
    with pytest.raises(errors.RateLimited, match="too many requests") as caught:
        push(PushRegistry(fault=nth("PATCH", {1}, Say(429, {"Retry-After": "3600"}))), tmp_path)
    assert "3600" in str(caught.value.hint)
    # one stands in for a registry where it is read
    assert "mirror" not in str(caught.value.hint)


def test_an_upload_that_the_registry_forgot_is_begun_anew(tmp_path: Path) -> None:
    def forget(ask: Asked) -> Fault | None:
        if ask.method == "PATCH" and ask.number == 3:
            held.uploads.clear()
        return None

    held = PushRegistry(fault=forget)
    assert push(held, tmp_path).sent_bytes > len(BODY)
    assert has(held)
    assert held.methods().count("POST") == 2


def test_a_registry_that_took_less_than_it_got(tmp_path: Path) -> None:
    def lose(ask: Asked) -> Fault | None:
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
    def damage(ask: Asked) -> Fault | None:
        if ask.method == "PUT" and ask.number in spoilt:
            next(iter(held.uploads.values()))[7] ^= 1
        return None

    spoilt = {0}
    held = PushRegistry(fault=damage)
    push(held, tmp_path)
    assert has(held)
    spoilt, held = {0, 1, 2}, PushRegistry(fault=damage)
    with pytest.raises(errors.WrongDigest, match=r"the registry received bytes with another digest.*DIGEST_INVALID"):
        push(held, tmp_path)
    assert not has(held)


def test_a_server_that_takes_no_bytes_is_given_up(tmp_path: Path) -> None:
    held = PushRegistry(fault=lambda ask: Sleep(30) if ask.method == "PATCH" else None)
    with pytest.raises(http_types.Stalled, match="stalled"):
        push(held, tmp_path, random.Random(5).randbytes(12 * CHUNK), chunk_bytes=12 * CHUNK)


def test_a_blob_is_not_read_far_ahead_of_what_is_taken(tmp_path: Path) -> None:
    """What the system takes for a connection counts, a few MiB; the rest of the blob has to wait."""
    read: list[int] = []

    class Large(Bytes):
        def chunks(self, start: int = 0) -> Iterator[bytes]:
            for _ in range(start, len(self.body), CHUNK):
                read.append(CHUNK)
                yield bytes(CHUNK)

    large = Large(bytes(64 * CHUNK))
    held = PushRegistry(fault=lambda ask: Sleep(30) if ask.method == "PATCH" else None)
    with pytest.raises(http_types.Stalled):
        talk(held, lambda registry, name: push_blob(registry, name, large), tmp_path, replace(QUICK, attempts=1))
    assert sum(read) < 20 * CHUNK


class Slow(Bytes):
    """A blob that is slower to read than to send."""

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        for piece in super().chunks(start):
            time.sleep(0.03)
            yield piece


@pytest.mark.parametrize("fault", [Say(503, at_once=True), Say(503, lingers=True), Cut(0), Cut(100_000)])
def test_an_early_end_while_the_blob_is_still_being_read(tmp_path: Path, fault: Fault) -> None:
    """The thread that reads can't be stopped: the next request waits for it."""

    held = PushRegistry(fault=nth("PATCH", {0, 2}, fault))
    talk(held, lambda registry, name: push_blob(registry, name, Slow(BODY), chunk_bytes=2 * CHUNK), tmp_path)
    assert has(held)


def test_what_is_refused_early_is_not_sent_to_its_end(tmp_path: Path) -> None:
    held = PushRegistry(fault=nth("PATCH", {0}, Say(503, lingers=True)))
    talk(held, lambda registry, name: push_blob(registry, name, Slow(BODY)), tmp_path)
    assert has(held)
    assert held.taken_bytes < len(BODY) + 2 * CHUNK


def test_progress_starts_patience_anew(tmp_path: Path) -> None:
    """Twelve broken chunks, each a little further, are no reason to give up; four at one place are."""
    body = random.Random(6).randbytes(5 * CHUNK)
    held = PushRegistry(fault=nth("PATCH", set(range(12)), Cut(300_000)))
    push(held, tmp_path, body)
    assert has(held, body)
    held = PushRegistry(fault=nth("PATCH", set(range(1, 99)), Cut(0)))
    with pytest.raises(http_types.Unreachable):
        push(held, tmp_path, body)
    assert held.methods().count("PATCH") == 1 + QUICK.attempts


@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "PUT"])
def test_a_registry_that_fails_is_told(tmp_path: Path, method: str) -> None:
    words = json.dumps({"errors": [{"code": "UNKNOWN", "message": "disk full"}]}).encode()
    held = PushRegistry(fault=lambda ask: Say(500, {}, words) if ask.method == method else None)
    with pytest.raises(errors.RegistryError, match="HTTP 500") as caught:
        push(held, tmp_path)
    assert caught.value.exit_code == 5
    assert not held.blobs
    assert held.methods().count(method) == QUICK.attempts


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "requires a login and none was found"),
        (404, "no such repository"),
        (405, "accepts no push"),
        (400, "answers HTTP 400"),
    ],
)
def test_a_registry_that_takes_nothing(tmp_path: Path, status: int, words: str) -> None:
    held = PushRegistry(fault=lambda ask: Say(status) if ask.method == "POST" else None)
    with pytest.raises(errors.RegistryError, match=words):
        push(held, tmp_path)
    assert held.methods() == ["HEAD", "POST"]


def test_another_host_gets_the_blob_and_no_login(tmp_path: Path) -> None:
    other = PushRegistry(uploads={"u2": bytearray()})

    async def use(registry: Registry, name: Reference) -> BlobTransfer:
        async with other:
            held.location = f"http://{other.host}"
            return await push_blob(registry, name, Bytes(BODY[:CHUNK]))

    def name_upload(ask: Asked) -> Fault | None:
        if ask.method == "POST" and "authorization" in ask.headers:
            return Say(202, {"Location": f"{held.location}/v2/{REPOSITORY}/blobs/uploads/u2"})
        return None

    held = PushRegistry(token=99, fault=name_upload)
    assert talk(held, use, tmp_path).how is Transfer.UPLOADED
    assert has(other, BODY[:CHUNK])
    assert any("authorization" in ask.headers for ask in held.asked)
    assert not any("authorization" in ask.headers for ask in other.asked)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://registry.example/v2/x", "plain http"),
        ("ftp://127.0.0.1/x", "for an upload is invalid"),
        ("https://user:secret@127.0.0.1/x", "for an upload is invalid"),
        ("http://[::1/x", "for an upload is invalid"),
        ("", "starts an upload without a URL"),
    ],
)
def test_an_upload_at_a_place_where_nothing_may_be_sent(tmp_path: Path, location: str, words: str) -> None:
    held = PushRegistry(fault=nth("POST", {0}, Say(202, {"Location": location} if location else {})))
    with pytest.raises(errors.RegistryError, match=words) as caught:
        push(held, tmp_path)
    assert "secret" not in str(caught.value)


def test_a_copy_on_this_machine_that_is_not_whole(tmp_path: Path) -> None:
    held = PushRegistry()
    short = Bytes(BODY[:-1], Descriptor("", digest(BODY), len(BODY)))
    with pytest.raises(TruncatedBlob, match=f"has {len(BODY) - 1} bytes of {len(BODY)}"):
        talk(held, lambda registry, name: push_blob(registry, name, short), tmp_path)
    assert held.uploads == {} == held.blobs


def test_a_copy_on_this_machine_that_is_damaged(tmp_path: Path) -> None:
    wrong = Bytes(BODY[:-1] + b"?", Descriptor("", digest(BODY), len(BODY)))
    with pytest.raises(errors.WrongDigest, match="its local copy has the digest"):
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


@pytest.mark.parametrize("status", [403, 500])
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_an_upload_that_fails_is_let_go(tmp_path: Path, status: int, method: str) -> None:
    held = PushRegistry(fault=lambda ask: Say(status) if ask.method == method else None)
    with pytest.raises(errors.RegistryError):
        push(held, tmp_path)
    assert held.uploads == {}


def test_tries_of_a_small_blob_are_let_go(tmp_path: Path) -> None:
    held = PushRegistry(fault=nth("PUT", {0, 1}, Say(500, at_once=True)))
    push(held, tmp_path, BODY[:CHUNK])
    assert has(held, BODY[:CHUNK])
    assert held.methods().count("POST") == 3
    assert held.uploads == {}


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_an_upload_that_is_interrupted_is_let_go(tmp_path: Path, method: str) -> None:
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
    talk(held, use, tmp_path, replace(QUICK, stall_s=30.0, total_s=60.0))
    assert held.uploads == {}


def test_an_upload_whose_registry_is_silent_does_not_hold_the_end_up(tmp_path: Path) -> None:
    answers: dict[str, Fault] = {"PATCH": Say(403), "DELETE": Sleep(60)}
    held = PushRegistry(fault=lambda ask: answers.get(ask.method))
    start = time.monotonic()
    with pytest.raises(errors.AccessRefused):
        push(held, tmp_path, timeouts=replace(QUICK, stall_s=30.0, total_s=60.0))
    assert "DELETE" in held.methods()
    assert time.monotonic() - start < 10


def test_mounts_that_are_not_granted_leave_no_upload(tmp_path: Path) -> None:
    held = PushRegistry(mounts=False)
    push(held, tmp_path, mount_from=("team/one", "team/two", "team/three"))
    assert has(held)
    assert held.uploads == {}
