"""Registries that do harm: what happens to `lock`, `image build`, pushes and mirrors when theirs is one.

Each row of the tables is a way in which a registry on loopback misbehaves. Wherever it leads, a second origin notes
what it gets. A run ends in one message with what to do, within seconds and little memory; the login stays with the
registry that it is for, and nothing that is not what its digest says is kept.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import gzip
import hashlib
import io
import json
import resource
import shutil
import signal
import ssl
import subprocess
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.context import Connectivity
from envspec.errors import EnvspecError, NetworkError
from envspec.image.base import ManifestCache, base_at, pinned_base
from envspec.image.config import RunConfig, image_config
from envspec.image.layers.store import BlobStore
from envspec.io.http import open_http
from envspec.io.http_types import Timeouts, retry_after_s
from envspec.models import BaseImage, Lock, PinnedDigest, Platform
from envspec.registry.auth import Keychain
from envspec.registry.client import Registry, resolve_digests
from envspec.registry.copy import mirror, push_image
from envspec.registry.pull import fetch_blob
from envspec.registry.push import push_blob
from envspec.registry.reference import BadReference, endpoint_of, parse
from envspec.registry.types import Manifest
from envspec.structs import replace
from tests.support import preloaded
from tests.support.builders import locks
from tests.support.builders.environments import RUNNING
from tests.support.builders.images import ImageUser
from tests.support.registry_clients import Bytes
from tests.support.servers import registry as content
from tests.support.servers.loopback import CLOSE, Answer, Asked, RawServer, Step, reply
from tests.support.servers.registry import OCI_INDEX, OCI_MANIFEST, Blob, PushRegistry, digest, encode
from tests.support.user import refused

X86: Final = Platform.LINUX_64
AMD64: Final = {"platform": {"os": "linux", "architecture": "amd64"}}
QUICK: Final = Timeouts(connect_s=1.0, stall_s=0.5, total_s=1.5, backoff_s=0.01, retry_after_s=1.0)
SECRET: Final = "hunter2"
REPOSITORY: Final = "team/base"
#: Of one run. Most take a tenth of a second.
LONGEST_S: Final = 12.0
MOST_BYTES: Final = 200 * 1024 * 1024
LAYER: Final = Blob("application/vnd.oci.image.layer.v1.tar+gzip", gzip.compress(b"a layer" * 1000, mtime=0))
#: Larger than what goes in one request.
LARGE: Final = bytes(range(256)) * 20_000


class Scene:
    """A registry that is honest but for one thing, another origin, and somebody who has a login for the registry."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.cache = home / "cache"
        self.login: dict[str, str] = {"auth": base64.b64encode(f"user:{SECRET}".encode()).decode()}
        self.registry, self.other = RawServer(self._answer), RawServer(self._note)
        self.behave: Behave = lambda _scene, _asked: None
        #: What the other origin answers: by default it wants a login, for itself.
        self.there: Callable[[Asked], Answer] = lambda _: reply(
            401, b"", {"WWW-Authenticate": f'Bearer realm="{self.other.url}/token",service="s",scope="x"'}
        )
        self.named = f"{REPOSITORY}:v1"
        self.blobs: dict[str, Blob] = {}
        self.tags: dict[str, Blob] = {}
        self.holds()

    def holds(self, layer: Blob = LAYER, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
        """An image of one layer, for one platform. change: of its config."""
        document: dict[str, Any] = {
            "os": "linux",
            "architecture": "amd64",
            "rootfs": {"type": "layers", "diff_ids": [digest(b"unpacked")]},
            "config": {"Env": ["PATH=/usr/bin"]},
        }
        change(document)
        self.holds_config(encode(document), layer)

    def holds_config(self, body: bytes, layer: Blob = LAYER) -> None:
        config = Blob(content.OCI_CONFIG, body)
        self.holds_manifest({"config": config.descriptor, "layers": [layer.descriptor]}, config, layer)

    def holds_manifest(self, document: Mapping[str, object], *blobs: Blob) -> Blob:
        kind = OCI_INDEX if "manifests" in document else OCI_MANIFEST
        return self.holds_body(encode({"schemaVersion": 2, "mediaType": kind, **document}), kind, *blobs)

    def holds_body(self, body: bytes, kind: str, *blobs: Blob) -> Blob:
        top = Blob(kind, body)
        self.blobs |= {each.digest: each for each in (*blobs, top)}
        self.tags["v1"] = top
        return top

    def _note(self, asked: Asked) -> Answer:
        return self.there(asked)

    def _answer(self, asked: Asked) -> Answer:
        answer = self.behave(self, asked) or self.honest(asked)
        return list(answer)[:1] if asked.method == "HEAD" else answer

    def honest(self, asked: Asked) -> Answer:
        """As a registry should: reads, and uploads that are begun, sent in chunks, and ended."""
        name = asked.path.rpartition("/")[2]
        if "/blobs/uploads/" in asked.path:
            place = {"Location": f"/v2/{REPOSITORY}/blobs/uploads/u1"}
            if asked.method == "PATCH":
                end = asked.headers["content-range"].rpartition("-")[2]
                return reply(202, b"", place | {"Range": f"0-{end}"})
            return reply({"POST": 202, "PUT": 201}.get(asked.method, 204), b"", place)
        if asked.method == "PUT":
            return reply(201, b"", {"Docker-Content-Digest": digest(asked.body)})
        found = self.blobs.get(name) or self.tags.get(name)
        if found is None:
            return reply(404, {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]})
        return reply(200, found.body, {"Content-Type": found.media_type, "Docker-Content-Digest": found.digest})

    def run(self, work: Callable[[Scene, Registry], Awaitable[object]]) -> EnvspecError | None:
        """What it ended in, None where all went well; and that nothing went wrong beside it."""

        async def do() -> EnvspecError | None:
            async with self.registry, self.other, open_http({}, timeouts=QUICK) as http:
                folder = self.home / ".docker"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "config.json").write_text(json.dumps({"auths": {self.registry.host: self.login}}))
                try:
                    await work(self, Registry(http, Keychain({}, self.home)))
                except EnvspecError as fault:
                    return fault
                return None

        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        fault = asyncio.run(asyncio.wait_for(do(), LONGEST_S))
        assert time.monotonic() - began < LONGEST_S
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES
        self.keeps_its_login()
        self.keeps_nothing_wrong()
        return fault

    def keeps_its_login(self) -> None:
        for asked in self.other.asked:
            text = f"{asked.target} {dict(asked.headers)} {asked.body[:10_000]!r}"
            assert "authorization" not in asked.headers, asked
            assert SECRET not in text and self.login.get("identitytoken", SECRET) not in text, asked

    def keeps_nothing_wrong(self) -> None:
        for path in filter(Path.is_file, self.cache.rglob("*")):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name or path.name.endswith(".part"), path


Behave = Callable[[Scene, Asked], "Answer | None"]
Reply = Callable[[Scene, Asked], Answer]
Hold = Callable[[Scene], object]


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to misbehave. says: in the message; None where all goes well all the same."""

    name: str
    says: str | None
    behave: Behave = lambda _scene, _asked: None
    hold: Hold = lambda _: None


def names(rows: Iterable[Row]) -> pytest.MarkDecorator:
    rows = list(rows)
    assert len({row.name for row in rows}) == len(rows)
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


def check(row: Row, scene: Scene, work: Callable[[Scene, Registry], Awaitable[object]]) -> None:
    row.hold(scene)
    scene.behave = row.behave
    fault = scene.run(work)
    if row.says is None:
        assert fault is None, fault
        return
    assert fault is not None
    message = str(fault).partition("\n  hint: ")
    assert row.says in message[0], fault
    assert message[2], fault
    assert fault.exit_code == 5
    assert SECRET not in str(fault)
    assert len(str(fault)) < 1000
    assert "\n" not in message[0] + message[2]
    assert str(fault).replace("\n", "").isprintable()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def lock(scene: Scene, registry: Registry) -> None:
    await resolve_digests(parse(f"{scene.registry.host}/{scene.named}"), (X86,), registry)


async def build(scene: Scene, registry: Registry) -> None:
    """What `image build` takes of a base: manifest, config and layers, into the cache and into a config."""
    blobs = BlobStore(scene.cache)

    async def opened() -> Registry:
        return registry

    made = lock_of(scene)
    base = await base_at(*pinned_base(made, X86), ManifestCache(blobs, opened, Connectivity.ONLINE, lambda: None))
    image_config(made, "sha256:" + "0" * 64, X86, base, (), RunConfig())
    for layer in base.layers:
        await fetch_blob(registry, parse(base.name), layer.blob, blobs.path(layer.blob.digest))


def lock_of(scene: Scene) -> Lock:
    pinned = PinnedDigest(X86, scene.tags["v1"].digest, "registry", "manifest")
    image = BaseImage(f"{scene.registry.host}/{REPOSITORY}", "v1", None, None, "", (pinned,))
    return locks.lock(locks.resolution(X86), base_image=image)


async def push(scene: Scene, registry: Registry) -> None:
    """A small blob, which goes in one request, one in chunks, and a manifest that names both."""
    blobs = [Bytes(b"small"), Bytes(LARGE)]
    rows = [{"mediaType": "", "digest": each.descriptor.digest, "size": len(each.body)} for each in blobs]
    body = encode({"schemaVersion": 2, "config": rows[0], "layers": rows[1:]})
    target = parse(f"{scene.registry.host}/{REPOSITORY}:v2")
    for blob in blobs:
        await push_blob(registry, target, blob, chunk_bytes=1 << 20)
    await push_image(registry, target, [], [Manifest(body, OCI_MANIFEST)])


async def push_mounted(scene: Scene, registry: Registry) -> None:
    target = parse(f"{scene.registry.host}/{REPOSITORY}:v2")
    await push_blob(registry, target, Bytes(b"small"), ["team/other"])
    await push_image(registry, target, [], [Manifest(b"{}", OCI_MANIFEST)])


async def copy(scene: Scene, registry: Registry) -> None:
    """A mirror of the hostile registry's image in an honest one."""
    async with PushRegistry() as honest:
        source, target = parse(f"{scene.registry.host}/{scene.named}"), parse(f"{honest.host}/keep/base:v1")
        try:
            await mirror(registry, source, target)
        except EnvspecError:
            assert not honest.tags.get("keep/base", {}).get("v1")
            raise
        finally:
            for name, body in honest.blobs.get("keep/base", {}).items():
                assert digest(body) == name


def on(method: str, part: str, answer: Callable[[Scene, Asked], Answer | None]) -> Behave:
    """Answer requests of a method whose path has this part."""
    return lambda scene, asked: answer(scene, asked) if asked.method == method and part in asked.path else None


def away(status: int = 307) -> Reply:
    return lambda scene, asked: reply(status, b"", {"Location": f"{scene.other.url}{asked.target}"})


def to(location: str, status: int = 307) -> Reply:
    """OTHER and HOST: the other origin's URL, and its host and port."""

    def answer(scene: Scene, _asked: Asked) -> Answer:
        place = location.replace("OTHER", scene.other.url).replace("HOST", scene.other.host)
        return reply(status, b"", {"Location": place})

    return answer


def wanting(challenge: str, token: Reply | None = None) -> Behave:
    """Wants a login, always; /token answers `token`. REALM and OTHER: this server's token server, and the other."""

    def behave(scene: Scene, asked: Asked) -> Answer:
        if asked.path == "/token" and token is not None:
            return token(scene, asked)
        words = challenge.replace("REALM", f"{scene.registry.url}/token").replace("OTHER", scene.other.url)
        return reply(401, b"", {"WWW-Authenticate": words})

    return behave


def says(status: int, headers: Mapping[str, str] | None = None, body: object = b"") -> Reply:
    return lambda _scene, _asked: reply(status, body, headers)


def endless(headers: str, piece: bytes, pause_s: float = 0.0, most: int = 1 << 30) -> Answer:
    """A body in HTTP's chunks that does not end."""

    def steps() -> Iterator[Step]:
        yield f"HTTP/1.1 200 OK\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
        for _ in range(most // len(piece)):
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
            if pause_s:
                yield pause_s
        yield CLOSE

    return steps()


def streaming(headers: str, piece: bytes, pause_s: float = 0.0) -> Reply:
    return lambda _scene, _asked: endless(headers, piece, pause_s)


FLOOD: Final = streaming("", b" " * 65536)
DRIP: Final = streaming("", b" ", 0.05)
TWO_LENGTHS: Final = streaming("Content-Length: 5\r\n", b" " * 65536)


def bomb(_scene: Scene, _asked: Asked) -> Answer:
    return reply(200, packed(), {"Content-Type": OCI_MANIFEST, "Content-Encoding": "gzip"})


@cache
def packed() -> bytes:
    return gzip.compress(bytes(1 << 28), 1, mtime=0)


def holds_json(text: str) -> Hold:
    return lambda scene: scene.holds_body(text.encode("utf-8", "surrogatepass"), OCI_MANIFEST)


def holds_index(count: int, **platform: object) -> Hold:
    """count: of manifests that nobody has, but for the last one, which is there."""

    def hold(scene: Scene) -> None:
        rows = [{"digest": f"sha256:{place:064x}", "size": 1, "platform": platform} for place in range(count)]
        rows.append(scene.tags["v1"].descriptor | AMD64)
        document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": rows}
        scene.holds_body(json.dumps(document, separators=(",", ":")).encode(), OCI_INDEX)

    return hold


def nested(depth: int, width: int = 1) -> Hold:
    """An index that names an index, that names an index... each `width` times."""

    def hold(scene: Scene) -> None:
        for _ in range(depth):
            scene.holds_manifest({"manifests": [scene.tags["v1"].descriptor | AMD64] * width})

    return hold


def config_of(**values: object) -> Hold:
    """Keys of the image's config, or of `config` in it where they begin with a capital."""

    def change(document: dict[str, Any]) -> None:
        for key, value in values.items():
            (document["config"] if key[0].isupper() else document)[key.rstrip("_")] = value

    return partial(Scene.holds, change=change)


def changed(config: Mapping[str, object] = {}, layer: Mapping[str, object] = {}, layers: int = 1) -> Hold:
    """The image with other descriptors of its config and its layer."""

    def hold(scene: Scene) -> None:
        document = json.loads(scene.tags["v1"].body)
        document["config"] |= config
        document["layers"] = [document["layers"][0] | layer] * layers
        scene.holds_manifest(document)

    return hold


def foreign(kind: str) -> Hold:
    # Addresses that nobody may request; the other origin's is not known before the servers run.
    urls = ["http://127.0.0.1:9/x", "http://169.254.169.254/", "file:///etc"]
    return changed(layer={"mediaType": kind, "urls": urls})


def get(answer: Callable[[Scene, Asked], Answer | None], part: str = "/") -> Behave:
    return on("GET", part, answer)


def top(headers: Mapping[str, str], end: bytes = b"") -> Reply:
    """The image's manifest with other headers, or more bytes."""
    return lambda scene, _: reply(200, scene.tags["v1"].body + end, headers)


def raw(*steps: Step) -> Reply:
    return lambda _scene, _asked: list(steps)


def holds(**document: object) -> Hold:
    """A manifest of these keys."""
    return lambda scene: scene.holds_manifest(document)


WANTS: Final = 'Bearer realm="REALM",service="s"'
LEADS: Final = "the registry redirects to http://127.0.0.1"
NO_CONFIG: Final = "config has no digest"
NO_OBJECT: Final = "not a JSON object"
#: Where a challenge says that its token server is -> the message.
REALMS: Final = {
    "http://u:p@x.y/t": "is not an http(s) URL",
    "file:///etc/passwd": "is not an http(s) URL",
    "http://[::1/t": "is not an http(s) URL",
    "http://tokens.example/t": "is plain http",
    "http://169.254.169.254/t": "no login is sent there",
}
#: What a token server answers -> the message.
TOKENS: Final = {
    "with a line end": ({"token": "a\r\nX-Evil: 1"}, "sends no token"),
    "of 500 KB": ({"token": "a" * 500_000}, "sends no token"),
    "that is none": ({"token": ["a"]}, "sends no token"),
    "that lasts for ever": (b'{"token": "a", "expires_in": 1' + b"0" * 400 + b"}", "refuses the login"),
    "that is refused": ({"token": "a"}, "refuses the login"),
}
#: Where a registry redirects to -> the message.
REDIRECTS: Final = {
    "file:///etc/passwd": "redirects to no http(s) URL",
    "gopher://127.0.0.1:1/": "redirects to no http(s) URL",
    "http://169.254.169.254/latest/meta-data/": "a service of this machine's own",
    "http://2852039166/latest/": "a service of this machine's own",
    "http://[::ffff:169.254.169.254]/": "a service of this machine's own",
    "http://a:b@HOST/x": LEADS,
}
#: Documents in a manifest's place -> the message.
DOCUMENTS: Final = {
    "a type of 1 MB": ('{"mediaType": "' + "\u202e" * (1 << 20) + '"}', "is not a container image"),
    "a chart": ('{"mediaType": "application/vnd.cncf.helm.config.v1+json"}', "is not a container image"),
    "both at once": ('{"manifests": [], "layers": [], "config": {}}', "a manifest and an index"),
    "JSON 100,000 deep": ("[" * 100_000, NO_OBJECT),
    "JSON with a key twice": ('{"config": 1, "config": 2}', "the key 'config' occurs twice"),
    "JSON with 300,000 keys, the last one twice": (
        "{" + "".join(f'"{n}":1,' for n in range(300_000)) + '"a":1,"a":1}',
        "occurs twice",
    ),
    "JSON with half a character": ('{"a": "\\ud800"}', NO_OBJECT),
    "JSON with NaN": ('{"size": NaN}', NO_OBJECT),
    "JSON with a number of 10,000 digits": ('{"size": 1' + "0" * 10_000 + "}", NO_OBJECT),
    "a list": ("[]", NO_OBJECT),
    "schema 1": ('{"schemaVersion": 1}', "schema 1"),
}
LIES: Final = {"a wrong digest": "0" * 64, "a digest of 7 KB": "\x1b" * 7000}
MUCH: Final = {"ratelimit-limit": f"{'9' * 3800};w=1", "Retry-After": "9" * 3800}

LOCK: Final = [
    Row("GET redirected: its 401 names a realm", LEADS, get(away(), "/manifests/")),
    Row("GET redirected: permanently", LEADS, get(away(301), "/manifests/")),
    *(Row(f"a realm {url}", shown, wanting(f'Bearer realm="{url}"')) for url, shown in REALMS.items()),
    Row("a token server that redirects", "refuses the login", wanting(WANTS, away())),
    Row("a token without end", "larger than 1 MB", wanting(WANTS, FLOOD)),
    *(Row(f"a token {name}", shown, wanting(WANTS, says(200, None, body))) for name, (body, shown) in TOKENS.items()),
    Row("a challenge of 8 KB", "for logins", wanting("Negotiate " * 700)),
    Row("429 until tomorrow", "too many requests", get(says(429, {"Retry-After": "99999999999999"}))),
    Row("429 with a length of digits", "too many requests", get(says(429, MUCH))),
    Row("429 with digits of another kind", "too many requests", get(says(429, {"Retry-After": "\u00b2"}))),
    Row(
        "an error that steers the terminal",
        "HTTP 400 (",
        get(says(400, None, {"errors": [{"code": "\x1b[2J\u202e", "message": "x" * 9000}]})),
    ),
    Row("a circle", "redirects without an end", get(lambda _, asked: reply(302, b"", {"Location": asked.target}))),
    *(Row(f"redirects to {url}", shown, get(to(url))) for url, shown in REDIRECTS.items()),
    *(
        Row(name, "the bytes have", get(top({"Docker-Content-Digest": f"sha256:{digits}"})))
        for name, digits in LIES.items()
    ),
    Row("an index by its header", "a manifest and an index", get(top({"Content-Type": OCI_INDEX}))),
    Row("a body without end", "larger than 4 MB", get(FLOOD)),
    Row("a body that drips", "is not complete within the time limit", get(DRIP)),
    Row("a body of two lengths", "", get(TWO_LENGTHS)),
    Row("a body that unpacks to 256 MB", "larger than 4 MB", get(bomb)),
    Row("a body of 1 TB", "larger than 4 MB", get(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n"))),
    Row("nothing", "stalled", get(raw(30.0))),
    Row("no HTTP", "is not HTTP", get(raw(b"\x16\x03\x01" * 100, CLOSE))),
    Row("headers without end", "", get(raw(b"HTTP/1.1 200 OK\r\n", *([b"X: " + b"x" * 60_000 + b"\r\n"] * 10), CLOSE))),
    *(Row(name, shown, hold=holds_json(text)) for name, (text, shown) in DOCUMENTS.items()),
    Row("UTF-16", NO_OBJECT, hold=lambda scene: scene.holds_body('{"a": 1}'.encode("utf-16"), OCI_MANIFEST)),
    Row("20,000 manifests in an index", "an index of 20001 manifests", hold=holds_index(20_000)),
    Row("100,000 manifests in an index", "larger than 4 MB", hold=holds_index(100_000)),
    Row("an index without its platforms", None, hold=holds_index(10, os=["linux"], architecture={"amd64": 1})),
    Row(
        "an index that names no digest",
        "has no digest or size",
        hold=holds(manifests=[{"digest": "sha256:../../../x", "size": 1}]),
    ),
    Row("an index of negative size", "has no digest or size", hold=holds(manifests=[LAYER.descriptor | {"size": -1}])),
    *(
        Row(f"a config's digest {name}", NO_CONFIG, hold=holds(config={"digest": name, "size": 1}, layers=[]))
        for name in ("sha256:../../x", f"md5:{'0' * 32}")
    ),
]


@names(LOCK)
def test_lock(row: Row, scene: Scene) -> None:
    check(row, scene, lock)


BLOB: Final = f"/blobs/{LAYER.digest}"


def part(status: int, content_range: str, body: bytes = LAYER.body) -> Reply:
    return says(status, {"Content-Range": content_range}, body)


def tarred(*members: tuple[str, bytes, str]) -> Blob:
    """A layer of members by name, type and link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.pax_headers = {"SCHILY.xattr.user.big": "x" * 200_000} if name == "attributes" else {}
            archive.addfile(info)
    return Blob(LAYER.media_type, buffer.getvalue())


#: A base's layers are handed on as they are: what is in them is for the engine to judge.
HOSTILE_LAYERS: Final = {
    "a layer with `../`": tarred(("../../escaped", tarfile.REGTYPE, "")),
    "a layer with an absolute path": tarred(("/etc/escaped", tarfile.REGTYPE, "")),
    "a layer with links that lead out": tarred(("out", tarfile.SYMTYPE, "/etc"), ("hard", tarfile.LNKTYPE, "../../x")),
    "a layer with devices": tarred(("null", tarfile.CHRTYPE, ""), ("pipe", tarfile.FIFOTYPE, "")),
    "a layer with whiteouts": tarred((".wh.etc", tarfile.REGTYPE, ""), (".wh..wh..opq", tarfile.REGTYPE, "")),
    "a layer with attributes of 200 KB": tarred(("attributes", tarfile.REGTYPE, "")),
    "a layer that is a bomb": Blob(LAYER.media_type, packed()),
    "a layer that is no archive": Blob(LAYER.media_type, b"\x1f\x8b no archive"),
}

GONE: Final = Row(
    "a layer with URLs that is not in the registry",
    "not found",
    get(says(404), BLOB),
    foreign(LAYER.media_type),
)
NO_BLOB: Final = "a blob without a valid digest and size"
#: Keys of a config that are of another type than they should be.
CONFIGS: Final[tuple[tuple[str, object], ...]] = (
    *(("Env", ["A=\0"]), ("Env", "PATH=/bin"), ("Env", [1]), ("Labels", ["a"]), ("Labels", {"a": 1})),
    *(("ExposedPorts", ["80/tcp"]), ("Entrypoint", "/bin/sh"), ("User", 0), ("history", "x"), ("config_", [])),
)
#: Keys of a layer's descriptor.
DESCRIPTORS: Final[tuple[dict[str, object], ...]] = (
    {"size": -1},
    {"size": 1 << 63},
    {"size": True},
    {"size": "100"},
    {"digest": f"md5:{'0' * 32}"},
    {"digest": "sha256:../../../etc/passwd"},
)
DIFFERS: Final = "its layers differ from its config"
#: Bytes in a config's place -> the message.
BODIES: Final = {
    "a config 100,000 deep": (b'{"a":' + b"[" * 100_000, NO_OBJECT),
    "a config of a million objects": (b'{"a":[' + b"{}," * 1_000_000 + b"1]}", DIFFERS),
    "a config with a key twice": (b'{"os": "linux", "os": "windows"}', "the key 'os' occurs twice"),
    "a config with half a character": (b'{"a": "\\udc00"}', NO_OBJECT),
}
WHOLE: Final = f"bytes 0-{len(LAYER.body) - 1}/{len(LAYER.body)}"
REST: Final = f"bytes 20-{len(LAYER.body) - 1}/{len(LAYER.body)}"
FOREIGN: Final = "application/vnd.oci.image.layer.nondistributable.v1.tar"

BUILD: Final = [
    Row("all is well", None),
    Row("a manifest of another digest", "the received bytes have the digest", get(top({}, b" "), "/manifests/")),
    Row("a config of another digest", "the received bytes have the digest", get(says(200, None, b"{}"), "/blobs/")),
    Row("a config redirected: its 401 names a realm", LEADS, get(away(), "/blobs/")),
    Row("a layer redirected: its 401 names a realm", LEADS, get(away(), BLOB)),
    Row("a config of another size", "bytes, but 7 in its manifest", hold=changed({"size": 7})),
    Row("a config of negative size", "config has no digest or size", hold=changed({"size": -1})),
    Row("a config of 2^63 bytes", "config has no digest or size", hold=changed({"size": 1 << 63})),
    Row("a config of 20 MB", "larger than 8 MB", hold=config_of(history=[{"created_by": "x" * (20 << 20)}])),
    *(Row(name, shown, hold=partial(Scene.holds_config, body=body)) for name, (body, shown) in BODIES.items()),
    *(
        Row(f"a config: {key} {value!r}", f"`{key.rstrip('_')}` in its config does not", hold=config_of(**{key: value}))
        for key, value in CONFIGS
    ),
    Row("a config without a history", None, hold=config_of(history=None)),
    Row("a config whose layers are another number", DIFFERS, hold=config_of(rootfs={"diff_ids": []})),
    Row("a config whose layers are no digests", DIFFERS, hold=config_of(rootfs={"diff_ids": ["sha256:../x"]})),
    Row("a config of another system", "is for", hold=config_of(os="\x1b[2J" * 500)),
    Row("an index inside of an index", "an index, not the image of one platform", hold=nested(2)),
    Row("a manifest that is a layer", NO_OBJECT, hold=lambda scene: scene.tags.update(v1=LAYER)),
    Row(
        "2,000 layers",
        "no layers, or more than",
        hold=changed(layers=2000),
    ),
    Row("more than it says", "and the registry sends", hold=changed(layer={"size": len(LAYER.body) - 1})),
    Row("less than it says", "and the registry sends", hold=changed(layer={"size": len(LAYER.body) + 1})),
    *(Row(f"a layer with {fields}", NO_BLOB, hold=changed(layer=fields)) for fields in DESCRIPTORS),
    Row("other bytes", "the received bytes have another digest", get(says(200, None, bytes(len(LAYER.body))), BLOB)),
    Row("a layer without end", "and the registry sends more", get(FLOOD, BLOB)),
    Row("a layer of two lengths", "", get(TWO_LENGTHS, BLOB)),
    Row("a layer that unpacks on its way", "and the registry sends more", get(bomb, BLOB)),
    Row("a layer in no pieces at all", "response ended early", get(part(206, WHOLE, b""), BLOB)),
    *(
        Row(f"a part that is {place!r}", shown, get(part(206, place), BLOB))
        for place, shown in (
            (f"bytes 5-{len(LAYER.body)}/*", "another part than requested"),
            ("bytes */*", "another part than requested"),
            ("bytes 0-9/999999", "the registry sends 999999"),
        )
    ),
    Row("a layer by its owner's URLs", "has URLs outside of the registry", hold=foreign(FOREIGN)),
    Row("a layer with URLs beside the registry", None, hold=foreign(LAYER.media_type)),
    GONE,
    *(Row(name, None, hold=partial(Scene.holds, layer=layer)) for name, layer in HOSTILE_LAYERS.items()),
]


@names(BUILD)
def test_build(row: Row, scene: Scene) -> None:
    check(row, scene, build)
    assert not (scene.home / "escaped").exists()
    assert scene.other.asked == [] or "redirected" in row.name


def half_of_it(rest: str, body: bytes) -> Behave:
    """Half of the layer, and then this in place of the rest."""
    half: list[Step] = [
        f"HTTP/1.1 200 OK\r\nContent-Length: {len(LAYER.body)}\r\n\r\n".encode(),
        LAYER.body[:20],
        CLOSE,
    ]
    return get(lambda scene, asked: part(206, rest, body)(scene, asked) if "range" in asked.headers else half, BLOB)


@names(
    [
        Row("another part", "another part than requested", half_of_it(WHOLE, LAYER.body)),
        Row("other bytes", "the received bytes have another digest", half_of_it(REST, bytes(len(LAYER.body) - 20))),
    ]
)
def test_a_layer_that_is_gone_on_with(row: Row, scene: Scene) -> None:
    check(row, scene, build)
    assert not list(scene.cache.rglob("*.part"))


def begins_at(location: str) -> Behave:
    """An upload's place is another origin's from the start."""
    return on("POST", "/uploads/", to(location, 202))


def never_done(_scene: Scene, asked: Asked) -> Answer:
    """Keeps one byte of each chunk."""
    start = int(asked.headers["content-range"].partition("-")[0])
    return reply(202, b"", {"Range": f"0-{start + 1}"})


def at_least(text: str) -> Behave:
    """Chunks of at least this many bytes are to be sent."""
    place = {"Location": f"/v2/{REPOSITORY}/blobs/uploads/u1", "OCI-Chunk-Min-Length": text}
    return on("POST", "/uploads/", says(202, place))


def stored_as(part: str, name: str) -> Behave:
    return on("PUT", part, says(201, {"Docker-Content-Digest": f"sha256:{name}"}))


#: Where an upload is to go -> the message.
UPLOADS: Final = {
    "OTHER/up": "redirects to http://127.0.0.1",
    "file:///etc/passwd": "is not an http(s) URL",
    "http://a:b@127.0.0.1/up": "is not an http(s) URL",
    "http://[::1/up": "is not an http(s) URL",
    "http://uploads.example/up": "is plain http",
    "http://169.254.169.254/up": "is plain http",
}

PUSH: Final = [
    Row("all is well", None),
    Row("HEAD redirected: its 401 names a realm", LEADS, on("HEAD", "/blobs/", away())),
    Row("HEAD of the tag redirected", LEADS, on("HEAD", "/manifests/", away())),
    *(Row(f"{method} redirected", "HTTP 307", on(method, "/uploads/", away())) for method in ("POST", "PATCH", "PUT")),
    *(Row(f"an upload at {url}", shown, begins_at(url)) for url, shown in UPLOADS.items()),
    Row("PATCH goes on elsewhere", "redirects to http://127.0.0.1", on("PATCH", "/uploads/", to("OTHER/up", 202))),
    Row("PUT of the manifest redirected", "HTTP 307", on("PUT", "/manifests/", away())),
    Row("PUT of the manifest: 401 for ever", "HTTP 401, and it offers nothing", on("PUT", "/manifests/", says(401))),
    Row("an upload nowhere", "starts an upload without a URL", on("POST", "/uploads/", says(202))),
    Row("an upload that is never done", "bytes after", on("PATCH", "/uploads/", never_done)),
    Row("more than was sent", "bytes after", on("PATCH", "/uploads/", says(202, {"Range": "0-99999999"}))),
    Row("a range of 4,000 digits", None, on("PATCH", "/uploads/", says(202, {"Range": f"0-{'9' * 4000}"}))),
    Row("chunks of 4,000 digits", None, at_least("9" * 4000)),
    Row("chunks of digits of another kind", None, at_least("\u00b2")),
    Row("an answer without end", "larger than", on("POST", "/uploads/", FLOOD)),
    Row("an answer that drips", "is not complete within the time limit", on("POST", "/uploads/", DRIP)),
    Row("a blob under another digest", "the registry stored it as", stored_as("/uploads/", "\x1b[2J" * 900)),
    Row("a manifest under another digest", "the registry has", stored_as("/manifests/", "0" * 64)),
    Row("has all, by its own word", None, on("HEAD", "/blobs/", says(200))),
    Row("429 until tomorrow", "too many requests", on("PATCH", "/", says(429, {"Retry-After": "9" * 3000}))),
]


@names(PUSH)
def test_push(row: Row, scene: Scene) -> None:
    check(row, scene, push)


def test_an_upload_at_another_origin_that_takes_it_gets_the_blob_and_no_login(scene: Scene) -> None:
    """Clouds' registries do so. The registry asks for the login first, so that it is known and could go astray."""

    def behave(scene: Scene, asked: Asked) -> Answer | None:
        if "authorization" not in asked.headers:
            return reply(401, b"", {"WWW-Authenticate": "Basic"})
        return begins_at("OTHER/up")(scene, asked)

    scene.there = lambda asked: reply(202 if asked.method == "PATCH" else 201, b"", {"Location": "/up"})
    check(Row("", None, behave), scene, push)
    assert {asked.method for asked in scene.other.asked} == {"PATCH", "PUT"}


def test_a_mount_that_is_granted_falsely_moves_no_tag(scene: Scene) -> None:
    missing = encode({"errors": [{"code": "MANIFEST_BLOB_UNKNOWN", "message": "blob unknown"}]})

    def behave(_scene: Scene, asked: Asked) -> Answer | None:
        if "mount=" in asked.target:
            return reply(201)
        return reply(400, missing) if asked.method == "PUT" else None

    check(Row("", "MANIFEST_BLOB_UNKNOWN", behave), scene, push_mounted)


COPY: Final = [
    Row("all is well", None),
    Row("a layer redirected: its 401 names a realm", LEADS, get(away(), BLOB)),
    Row("an index that is 100 deep", "indexes more than 4 deep", hold=nested(100)),
    Row("an index that names an index twice, 30 deep", "indexes more than 4 deep", hold=nested(30, 2)),
    Row("an index that names one image 900 times", None, hold=nested(1, 900)),
    Row("an index of what is not there", "not found", hold=holds_index(900)),
    Row(
        "says that it has a layer, and gives others' bytes",
        "the received bytes have the digest",
        get(says(200, None, bytes(len(LAYER.body))), BLOB),
    ),
    GONE,
]


@names(COPY)
def test_mirror(row: Row, scene: Scene) -> None:
    check(row, scene, copy)
    assert len(scene.registry.asked) < 100


def test_a_layer_of_the_owner_s_stays_where_it_is_in_a_mirror(scene: Scene) -> None:
    hold = foreign("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")
    check(Row("", None, hold=hold), scene, copy)
    assert not any(BLOB in asked.path for asked in scene.registry.asked)


def after_the_token(scene: Scene, asked: Asked) -> Answer:
    if asked.path == "/token":
        return reply(200, {"token": SECRET})
    if "authorization" in asked.headers:
        return away()(scene, asked)
    return wanting(WANTS)(scene, asked) or []


@names(
    [
        Row("a token server that redirects", "its token server", wanting(WANTS, away())),
        Row("a redirect whose 401 names a realm", LEADS, get(away(), "/manifests/")),
        Row("a redirect after the token", LEADS, after_the_token),
    ]
)
@pytest.mark.parametrize("login", ["identitytoken", "registrytoken"])
def test_a_token_of_the_user_s_goes_nowhere_else(row: Row, scene: Scene, login: str) -> None:
    scene.login = {login: SECRET}
    if login == "registrytoken":
        row = dataclasses.replace(row, says="" if "token server" in row.name else row.says)
    check(row, scene, lock)


def test_a_token_server_elsewhere_gets_the_login_that_the_registry_asks_for(scene: Scene) -> None:
    """Docker Hub's is on another host: what its registry itself names is meant."""

    def behave(scene: Scene, asked: Asked) -> Answer | None:
        if asked.headers.get("authorization") == "Bearer given":
            return None
        return wanting('Bearer realm="OTHER/token",service="s"')(scene, asked)

    scene.keeps_its_login = lambda: None  # type: ignore[method-assign]  # it is meant to go there
    scene.there = lambda _: reply(200, {"token": "given"})
    check(Row("", None, behave), scene, lock)
    assert [asked.headers["authorization"] for asked in scene.other.asked] == [f"Basic {scene.login['auth']}"]


def test_a_mirror_does_not_get_the_login_of_what_it_stands_for(scene: Scene) -> None:
    """It asks for a login, and names Docker Hub's service; the only login that is there is Docker Hub's."""
    scene.behave = wanting('Bearer realm="REALM",service="registry.docker.io"', says(200, None, b'{"token": "a"}'))

    async def work(scene: Scene, registry: Registry) -> None:
        logins = {"https://index.docker.io/v1/": scene.login, "docker.io": scene.login}
        (scene.home / ".docker" / "config.json").write_text(json.dumps({"auths": logins}))
        stand_in = Registry(registry.http, registry.keychain, {"docker.io": scene.registry.host})
        await resolve_digests(parse("nvidia/cuda:v1"), (X86,), stand_in)

    fault = scene.run(work)
    assert fault is not None and "docker login 127.0.0.1" in str(fault)
    assert not any("authorization" in asked.headers for asked in scene.registry.asked if asked.path == "/token")


@pytest.mark.parametrize("helper", ["../../x", "/bin/sh", "x/../../y", "..", "", "a b", "a\nb", "-x;y"])
def test_a_helper_s_name_is_no_path(tmp_path: Path, helper: str) -> None:
    ran, warnings = list[object](), list[str]()

    async def run(command: object, **_: object) -> Any:
        ran.append(command)
        raise FileNotFoundError

    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"credHelpers": {"registry.corp": helper}}))
    keychain = Keychain({}, tmp_path, warnings.append, run)
    assert asyncio.run(keychain.login("registry.corp")) is None
    assert ran == []
    assert len(warnings) == 1


@pytest.mark.parametrize("registry", ["registry.corp:444", "evil.registry.corp", "registry.corp.evil.org", "corp"])
def test_a_login_is_for_its_host_alone(tmp_path: Path, registry: str) -> None:
    entry = {"auth": base64.b64encode(b"user:hunter2").decode()}
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(
        json.dumps({"auths": {"registry.corp": entry, "https://registry.corp:443/v2/": entry}})
    )
    assert asyncio.run(Keychain({}, tmp_path).login(registry)) is None


def remote(
    home: Path, answer: Callable[[Asked], Answer], work: Callable[[Registry], Awaitable[object]]
) -> tuple[str, list[Asked]]:
    """A registry `http://registry.test`, which a proxy on loopback plays: its message, and what a local service got."""

    async def do() -> tuple[str, list[Asked]]:
        local = RawServer(lambda _: reply(200, b"{}"))
        async with local, RawServer(lambda asked: answer(asked_of(asked, local.url))) as proxy:
            async with open_http({"HTTP_PROXY": proxy.url}, timeouts=QUICK) as http:
                with pytest.raises(NetworkError) as caught:
                    await work(Registry(http, Keychain({}, home)))
            return str(caught.value), local.asked

    return asyncio.run(asyncio.wait_for(do(), LONGEST_S))


def asked_of(asked: Asked, local: str) -> Asked:
    """As the registry gets it; the local service's address goes along in a header."""
    return dataclasses.replace(asked, headers={**asked.headers, "local": local})


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "localhost.", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
def test_a_registry_elsewhere_leads_nobody_to_services_of_this_machine(tmp_path: Path, host: str) -> None:
    def leads(asked: Asked) -> str:
        return asked.headers["local"].replace("127.0.0.1", host)

    name = parse("http://registry.test/team/base:v1")
    shown, got = remote(
        tmp_path,
        lambda asked: reply(302, b"", {"Location": f"{leads(asked)}/delete-all"}),
        lambda registry: resolve_digests(name, (X86,), registry),
    )
    assert "this machine's own" in shown and got == []
    shown, got = remote(
        tmp_path,
        lambda asked: reply(401, b"", {"WWW-Authenticate": f'Bearer realm="{leads(asked)}/token"'}),
        lambda registry: resolve_digests(name, (X86,), registry),
    )
    assert "this machine's own" in shown or "plain http" in shown
    assert got == []
    shown, got = remote(
        tmp_path,
        lambda asked: reply(404) if asked.method == "HEAD" else reply(202, b"", {"Location": f"{leads(asked)}/up"}),
        lambda registry: push_blob(registry, name, Bytes(b"small")),
    )
    assert "its URL for an upload, " in shown and got == []


@pytest.mark.parametrize(
    "base", ["https://registry.corp/v2", "https://127.0.0.1:5000/v2", "http://registry.corp:5000/v2"]
)
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80/x", "http://other.corp/x", "http://169.254.169.254/x", "ftp://registry.corp/x"]
)
def test_what_a_registry_may_name(base: str, url: str) -> None:
    place = replace(endpoint_of(parse("a.b/c")), base=base)
    assert place.why_not_to(url)
    assert place.why_not_to("https://tokens.corp/x") is None
    assert (place.why_not_to("http://registry.corp:5001/x") is None) is base.startswith("http:")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls_is_not_left(tmp_path: Path) -> None:
    """A registry on https redirects to plain http on another host, which a proxy would get."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def do() -> tuple[str, int, list[Asked]]:
        async with RawServer(lambda _: reply(200, b"{}")) as proxy:
            away = reply(302, b"", {"Location": "http://registry.test/x"})
            async with RawServer(lambda _: away, tls=context) as server:
                environ = {"HTTP_PROXY": proxy.url, "SSL_CERT_FILE": str(certificate)}
                async with open_http(environ, timeouts=QUICK) as http:
                    with pytest.raises(NetworkError) as caught:
                        name = parse(f"https://localhost:{server.port}/team/base:v1")
                        await resolve_digests(name, (X86,), Registry(http, Keychain({}, tmp_path)))
            return str(caught.value), len(server.asked), proxy.asked

    shown, asked, got = asyncio.run(do())
    assert "redirects from https to http://registry.test/x" in shown
    assert (asked, got) == (1, [])


@pytest.mark.parametrize(
    "header",
    [
        "\u00b2",
        "9" * 5000,
        "Mon, 01 Jan 99999999999999999999 00:00:00 +0000",
        "Mon, 01 Jan 2026 00:00:00 +999999999999",
        "-1",
        "1e9",
        "nan",
        "\x00",
    ],
)
def test_every_wait_that_a_server_asks_for_is_read(header: str) -> None:
    found = retry_after_s(header)
    assert found is None or found >= 0


@pytest.mark.parametrize(
    "text",
    [
        *(
            "https://user:hunter2@registry.corp/cuda:v1",
            "user:hunter2@registry.corp/cuda:v1",
            "user:hunter2@registry.corp",
        ),
        *("ftp://user:hunter2@registry.corp/cuda", "HTTPS://user:hunter2@registry.corp/cuda", "a/user:hunter2@b/c"),
        *("user:hun/hunter2@registry.corp/cuda", "user:hunter2@x@registry.corp/cuda", "hunter2@registry.corp/cuda"),
        f"user:hunter2@registry.corp/cuda@sha256:{'0' * 64}",
        f"https://user:hunter2@registry.corp/cuda@sha256:{'0' * 64}",
    ],
)
def test_a_login_in_a_name_is_refused_and_not_told(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadReference) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)
    assert "docker login" in (caught.value.hint or "")
    with pytest.raises(BadReference) as caught:
        endpoint_of(parse("docker.io/a/b"), {"docker.io": text})
    assert "hunter2" not in str(caught.value)
    user = ImageUser(tmp_path / "user", "http://127.0.0.1:9")
    user.wants("six", python=RUNNING, rest=f'[image]\nbase = "{text}"\n')
    shown = refused(user.locks(), 2)
    assert "hunter2" not in shown and "docker login" in shown
    user.wants("six", python=RUNNING, rest=f'[registry.mirrors]\n"docker.io" = "{text}"\n')
    assert "hunter2" not in refused(user.locks(), 2)
    for mirrored in (f"docker.io={text}", text):
        shown = refused(user.image("id", tmp_path, "--mirror", mirrored), 2)
        assert "hunter2" not in shown
    assert not any("hunter2" in path.read_text() for path in user.folder.rglob("*.toml") if path != user.spec)


@pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")
@pytest.mark.parametrize("answer", [[30.0], endless("", b" ", 0.05)], ids=["mute", "dripping"])
def test_ctrl_c_ends_a_lock_that_waits_for_a_registry(tmp_path: Path, answer: Answer) -> None:
    """And no lock is written."""

    async def do() -> None:
        async with RawServer(lambda _: answer) as server:
            user = ImageUser(tmp_path / "user", "http://127.0.0.1:9", server.host)
            running = user.begins("diff", f"{server.host}/team/base:v1", f"{server.host}/team/base:v1")
            while not server.asked:  # noqa: ASYNC110 (what it waits for is another process)
                await asyncio.sleep(0.02)
            running.child.signal(signal.SIGINT)
            began = time.monotonic()
            ran = await asyncio.to_thread(running.ends)
            assert time.monotonic() - began < 15
            assert ran.status == 130 and "Traceback" not in ran.stderr

    asyncio.run(asyncio.wait_for(do(), LONGEST_S))


@pytest.mark.parametrize("answer", [[30.0], endless("", b" ", 0.05)], ids=["mute", "dripping"])
def test_a_push_that_is_ended_waits_for_nobody(scene: Scene, answer: Answer) -> None:
    """The upload is cancelled at the registry, which does not answer to that either."""

    async def work(scene: Scene, registry: Registry) -> None:
        pushing = asyncio.ensure_future(push(scene, registry))
        while not any(asked.method == "PATCH" for asked in scene.registry.asked):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        began = time.monotonic()
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        assert time.monotonic() - began < 15

    check(Row("", None, lambda _, asked: answer if asked.method in {"PATCH", "DELETE"} else None), scene, work)
