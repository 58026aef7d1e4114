"""Blobs out of a registry on loopback that breaks off and lies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from envspec.errors import EnvspecError
from envspec.io import http_types
from envspec.io.cache import CacheError
from envspec.registry import errors
from envspec.registry.client import Registry
from envspec.registry.pull import fetch_blob
from envspec.registry.reference import parse
from envspec.registry.types import Descriptor
from tests.support.registry_clients import BODY, CHUNK, DESCRIPTOR, holding, nth, talk_to
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import Cut, Fault, Mute, PushRegistry, Say, Sleep, digest


def fetch(held: PushRegistry, home: Path, descriptor: Descriptor = DESCRIPTOR, **options: Any) -> Path:
    path = home / "blobs" / "it"
    talk_to(
        home,
        lambda registry: fetch_blob(registry, parse(f"{held.host}/a/b:v1"), descriptor, path, **options),
        held,
    )
    return path


def files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "blobs").iterdir())


def test_a_blob_is_fetched_once(tmp_path: Path) -> None:
    held, message = holding(), list[int]()
    assert fetch(held, tmp_path, report=message.append).read_bytes() == BODY
    assert sum(message) == len(BODY)
    assert files(tmp_path) == ["it"]
    path = fetch(held, tmp_path, report=message.append)
    assert held.methods() == ["GET"]
    assert sum(message) == 2 * len(BODY)
    path.write_bytes(BODY[:-1] + b"?")
    assert fetch(holding(), tmp_path).read_bytes() == BODY


def test_an_empty_blob(tmp_path: Path) -> None:
    assert fetch(holding(b"", digest(b"")), tmp_path, Descriptor("", digest(b""), 0)).read_bytes() == b""


@pytest.mark.parametrize("knows_ranges", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 3 * CHUNK])
def test_half_a_blob_is_completed(tmp_path: Path, cut: int, knows_ranges: bool) -> None:
    held, message = holding(fault=nth("GET", {0, 1}, Cut(cut)), knows_ranges=knows_ranges), list[int]()
    assert fetch(held, tmp_path, report=message.append).read_bytes() == BODY
    assert sum(message) == len(BODY)
    if cut > 1:
        assert held.asked[1].headers["range"] == f"bytes={cut}-"


def left(home: Path, part: bytes) -> None:
    """The part of an earlier run."""
    (home / "blobs").mkdir()
    (home / "blobs" / "it.part").write_bytes(part)


@pytest.mark.parametrize("part", [BODY[: 2 * CHUNK], BODY[:1000] + b"?" * 1000, b"?" * len(BODY), BODY + b"?"])
def test_an_earlier_run_s_part_is_completed_or_replaced(tmp_path: Path, part: bytes) -> None:
    left(tmp_path, part)
    held, message = holding(), list[int]()
    assert fetch(held, tmp_path, report=message.append).read_bytes() == BODY
    assert sum(message) == len(BODY)
    assert files(tmp_path) == ["it"]
    if len(part) < len(BODY):
        assert held.asked[0].headers["range"] == f"bytes={len(part)}-"


def test_patience_that_ends_leaves_what_came(tmp_path: Path) -> None:
    """Two tries get something, the rest nothing; the next run has only the rest to fetch."""
    with pytest.raises(http_types.RequestError):
        fetch(holding(fault=lambda ask: Cut(CHUNK if ask.number < 2 else 0)), tmp_path)
    assert files(tmp_path) == ["it.part"]
    held = holding()
    assert fetch(held, tmp_path).read_bytes() == BODY
    assert int(held.asked[0].headers["range"][6:-1]) > 0


def test_two_at_once_fetch_one(tmp_path: Path) -> None:
    async def use(registry: Registry) -> None:
        name, path = parse(f"{held.host}/a/b:v1"), tmp_path / "blobs" / "it"
        await asyncio.gather(*(fetch_blob(registry, name, DESCRIPTOR, path) for _ in range(3)))

    held = holding()
    talk_to(tmp_path, use, held)
    assert held.methods() == ["GET"]
    assert files(tmp_path) == ["it"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (BODY[:-1], f"has {len(BODY)} bytes in its manifest, and the registry sends {len(BODY) - 1}"),
        (BODY + b"?", f"the registry sends {len(BODY) + 1}"),
        (BODY[:-1] + b"?", "the received bytes have another digest"),
        (b"", "the registry sends 0"),
    ],
)
def test_another_blob_under_the_digest(tmp_path: Path, body: bytes, words: str) -> None:
    with pytest.raises(errors.WrongDigest, match=words):
        fetch(holding(body), tmp_path)
    assert "it" not in files(tmp_path)
    assert [path for path in (tmp_path / "blobs").iterdir() if path.stat().st_size] == []


@pytest.mark.parametrize(
    ("part", "answer", "words"),
    [
        (BODY[:CHUNK], Say(206, {"Content-Range": f"bytes 5-{len(BODY) - 1}/{len(BODY)}"}, BODY[5:]), "another part"),
        (BODY[:CHUNK], Say(416), "less"),
    ],
)
def test_a_response_to_another_request(tmp_path: Path, part: bytes, answer: Say, words: str) -> None:
    left(tmp_path, part)
    with pytest.raises(errors.WrongDigest, match=f"the registry sends {words}"):
        fetch(holding(fault=nth("GET", {0}, answer)), tmp_path)


@pytest.mark.parametrize("fault", [Say(429), Say(500), Say(503), Mute()])
def test_a_status_that_passes(tmp_path: Path, fault: Fault) -> None:
    assert fetch(holding(fault=nth("GET", {0, 1}, fault)), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Say(500), errors.RegistryError, "HTTP 500"),
        (Say(404), errors.ImageNotFound, "not found"),
        (Say(403), errors.AccessRefused, "requires a login"),
        (Say(429), errors.RateLimited, "too many"),
        (Sleep(9), http_types.Stalled, "stalled"),
    ],
)
def test_a_blob_that_is_not_to_be_had(tmp_path: Path, fault: Fault, kind: type[EnvspecError], words: str) -> None:
    with pytest.raises(kind, match=words):
        fetch(holding(fault=lambda _: fault), tmp_path)
    assert "it" not in files(tmp_path)


def test_a_token_that_expires_between_two_parts(tmp_path: Path) -> None:
    held = holding(token=1, fault=lambda ask: Cut(CHUNK) if ask.method == "GET" and ask.number in {2, 5} else None)
    assert fetch(held, tmp_path).read_bytes() == BODY
    assert held.scopes == [["repository:a/b:pull"]] * len(held.scopes)
    assert len(held.scopes) > 1


def test_a_redirect_to_where_blobs_lie_carries_no_login(tmp_path: Path) -> None:
    store = holding()

    def redirect(ask: Asked) -> Fault | None:
        if "authorization" not in ask.headers or ask.path == "/token":
            return None
        return Say(307, {"Location": f"http://{store.host}{ask.path}"})

    async def use(registry: Registry) -> None:
        await fetch_blob(registry, parse(f"{held.host}/a/b:v1"), DESCRIPTOR, tmp_path / "it")

    held = PushRegistry(token=9, fault=redirect)
    talk_to(tmp_path, use, held, store)
    assert (tmp_path / "it").read_bytes() == BODY
    assert not any("authorization" in ask.headers for ask in store.asked)


def test_a_folder_that_can_t_be_written(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file where a folder should be")
    with pytest.raises(CacheError, match="envspec's cache can't be used"):
        fetch(holding(), tmp_path)
