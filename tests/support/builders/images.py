"""Images made in memory, and users who build images from an index and a registry on loopback.

with image_servers(small_wheel("one")) as servers:
    user = servers.user_in(tmp_path)
    user.id_of(user.writes_lock(servers.lock_of(small_wheel("one"))))
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from envspec.image.config import Base, canonical
from envspec.image.layers.types import Compression, Layer
from envspec.models import BaseImage, Lock, Package, PinnedDigest, Platform, Python, Resolution, Target
from envspec.registry.types import OCI_INDEX, OCI_MANIFEST, OCI_PLATFORMS, Descriptor
from tests.support.builders import locks
from tests.support.builders.environments import RUNNING, pin, write_lock
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, wheel
from tests.support.builders.zips import tarred
from tests.support.servers.index import IndexServer
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import OCI_CONFIG, PushRegistry, digest
from tests.support.user import Ran, Running, User


@dataclass(frozen=True)
class MemoryBlob:
    """A blob whose bytes are at hand."""

    body: bytes
    media_type: str = Compression.NONE.media_type

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(self.media_type, digest(self.body), len(self.body))

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        for at in range(start, len(self.body), 1000):
            yield self.body[at : min(at + 1000, len(self.body))]


def plain_layer(body: bytes, created_by: str = "made by a test") -> Layer:
    """The layer of a tar that is not packed."""
    return Layer(digest(body), MemoryBlob(body).descriptor, created_by)


def base(*layers: Layer, run: Mapping[str, Any] | None = None, **config: Any) -> Base:
    """A base image of these layers. run: its config's `config`."""
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(run or {}),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "ADD root"} for _ in layers],
    } | config
    return Base(
        "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04", "sha256:" + "b" * 64, "sha256:" + "c" * 64, document, layers
    )


def read(document: bytes) -> Any:
    return json.loads(document)


X86, ARM = Platform.LINUX_64, Platform.LINUX_AARCH64
CUDA: Final = "docker.io/nvidia/cuda"
TAG: Final = "12.8.1-base-ubuntu24.04"
PLAIN: Final = "application/vnd.oci.image.layer.v1.tar"
#: The image's Python, of which nothing is fetched: a virtual environment of the system's. It is of the version of the
#: one that runs the tests, so that a compiler is at hand.
PYTHON: Final = Python(RUNNING, "system")


class RegistryInThread:
    """A PushRegistry that stands in a thread of its own, for processes that are started meanwhile."""

    def __init__(self, held: PushRegistry) -> None:
        self.held = held
        self._up, self._end = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self.held:
            self._up.set()
            await self._end.wait()

    def __enter__(self) -> RegistryInThread:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    @property
    def host(self) -> str:
        return self.held.host

    def forget(self) -> None:
        """Count requests anew."""
        self.held.asked.clear()

    def changes(self) -> list[Asked]:
        """The requests that change something, or would."""
        return [ask for ask in self.held.asked if ask.method not in {"GET", "HEAD"}]

    def tagged(self, name: str) -> dict[str, Any] | None:
        """The document under `repository:tag`."""
        repository, _, tag = name.rpartition(":")
        found = self.held.tags.get(repository, {}).get(tag)
        return json.loads(found[1]) if found else None

    def stored(self, repository: str) -> set[str]:
        return set(self.held.blobs.get(repository, {}))


@dataclass(frozen=True, slots=True)
class BaseMade:
    """A base image's documents and layers. index: of several platforms, else the manifest of the one."""

    blobs: tuple[bytes, ...]
    manifests: tuple[bytes, ...]
    index: bytes
    platforms: tuple[Platform, ...]

    @property
    def digest(self) -> str:
        return digest(self.index)

    def named(self, platforms: Sequence[Platform] = ()) -> BaseImage:
        """What a lock has of it. platforms: those that it pins it for; by default its own."""
        kind = "index" if len(self.platforms) > 1 else "manifest"
        pinned = tuple(PinnedDigest(each, self.digest, "registry", kind) for each in platforms or self.platforms)
        return BaseImage(CUDA, TAG, "12.8.1", "base", "ubuntu24.04", pinned)


def make_base(
    *platforms: Platform,
    layers: int = 2,
    blobs_of: Sequence[bytes] = (),
    env: Mapping[str, str] = {},
    created: str | None = None,
) -> BaseMade:
    """A base whose layers hold a small file each, not packed: the same bytes whatever zlib.

    blobs_of: the tars of its layers instead, not packed. env: more variables. created: as the config states it.
    """
    blobs: list[bytes] = []
    manifests = []
    for platform in platforms or (X86,):
        os, architecture = OCI_PLATFORMS[platform]
        tars = list(blobs_of) or [
            tar_of({f"etc/{architecture}-{number}": b"%d\n" % number}) for number in range(layers)
        ]
        variables = {"PATH": "/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES": "all", **env}
        config = canonical(
            {
                "os": os,
                "architecture": architecture,
                "config": {"Env": [f"{name}={value}" for name, value in variables.items()]},
                "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in tars]},
                "history": [{"created_by": f"ADD {number}"} for number in range(len(tars))],
                **({"created": created} if created else {}),
            }
        )
        rows = [{"mediaType": PLAIN, "digest": digest(each), "size": len(each)} for each in tars]
        named = {"mediaType": OCI_CONFIG, "digest": digest(config), "size": len(config)}
        manifests.append(canonical({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": named, "layers": rows}))
        blobs += [*tars, config]
    if len(manifests) == 1:
        return BaseMade(tuple(blobs), tuple(manifests), manifests[0], platforms or (X86,))
    children = [
        {"mediaType": OCI_MANIFEST, "digest": digest(each), "size": len(each)}
        | {"platform": dict(zip(("os", "architecture"), OCI_PLATFORMS[platform], strict=True))}
        for each, platform in zip(manifests, platforms, strict=True)
    ]
    index = canonical({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": children})
    return BaseMade(tuple(blobs), tuple(manifests), index, platforms)


def hold_base(registry: PushRegistry, base: BaseMade, repository: str = "nvidia/cuda", tag: str = TAG) -> BaseMade:
    """Put it into a registry, by default under the name of NVIDIA's."""
    registry.hold(repository, *base.blobs)
    tags = registry.tags.setdefault(repository, {})
    for body in base.manifests:
        tags[digest(body)] = (OCI_MANIFEST, body)
    kind = OCI_INDEX if len(base.manifests) > 1 else OCI_MANIFEST
    tags[base.digest] = tags[tag] = (kind, base.index)
    return base


def keep_base(cache: Path, base: BaseMade) -> BaseMade:
    """Put it into envspec's cache, as if it had been fetched: then no registry is needed."""
    for body in (*base.blobs, *base.manifests, base.index):
        path = cache / "blobs" / "sha256" / hashlib.sha256(body).hexdigest()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return base


def tar_of(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    members = [(tarfile.TarInfo(name), content) for name, content in files.items()]
    for member, _ in members:
        member.mode = mode
    return tarred(members)


def image_lock(
    pins: Mapping[Platform, Sequence[Package]], base: BaseImage, *, python: Python = PYTHON, **others: Any
) -> Lock:
    """A lock of these packages on each platform. others: fields of Lock to set."""
    parts = [
        Resolution(Target(platform, python, glibc=(2, 36)), tuple(sorted(rows, key=lambda row: row.name)))
        for platform, rows in pins.items()
    ]
    return locks.lock(*parts, base_image=base, **others)


class ImageUser(User):
    """A user who builds. registry: host that stands for Docker Hub."""

    def __init__(self, folder: Path, index: str, registry: str = "127.0.0.1:9", **environ: str) -> None:
        mirrors = {"ENVSPEC_REGISTRY_MIRRORS": f"docker.io={registry}", "NO_PROXY": "127.0.0.1"}
        super().__init__(folder, index, **{**mirrors, **environ})

    def writes_lock(self, lock: Lock, name: str = "lock") -> Path:
        """The lock's folder, below the user's own."""
        return write_lock(self.folder / name, lock)

    def image(self, *words: str | Path, **environ: str) -> Ran:
        """`envspec image WORDS`."""
        return self.runs("image", *words, environ=environ)

    def begins(self, *words: str | Path, **environ: str) -> Running:
        """The same, without waiting for its end."""
        return self.in_background(("image", *words), {**self.environ, **environ})

    def id_of(self, *words: str | Path, **environ: str) -> str:
        """The ID that `envspec image build WORDS` prints."""
        ran = self.image("build", *words, **environ)
        assert ran.status == 0, ran.stderr
        assert ran.stdout.startswith("sha256:") and ran.stdout.count("\n") == 1, ran.stdout
        return ran.stdout.strip()


def modules(name: str, count: int = 3) -> dict[str, bytes]:
    """A small package: modules with constants whose order a hash seed would change."""
    files = {f"{name}/__init__.py": b'"""Words."""\n__version__ = "1.0"\n'}
    for number in range(count):
        body = (
            f"KNOWN = frozenset({{'a{number}', 'b', 'c', 'd', 'e'}})\n\ndef f(x):\n    return x in {{'x', 'y', 'z'}}\n"
        )
        files[f"{name}/m{number}.py"] = body.encode()
    return files


def small_wheel(name: str, version: str = "1.0", **others: Any) -> Artifact:
    """A wheel of a few modules."""
    return wheel(name, version, files=modules(name.replace("-", "_")), **others)


@dataclass
class ImageServers:
    """registry: has the base, and takes pushes."""

    index: IndexServer
    registry: RegistryInThread
    base: BaseMade

    def user_in(self, folder: Path, **environ: str) -> ImageUser:
        """Somebody who gets everything from here."""
        return ImageUser(folder, self.index.url, self.registry.host, **environ)

    def lock_of(self, *wheels: Artifact, **others: Any) -> Lock:
        """A lock of these on the base. others: fields of Lock to set."""
        return image_lock({X86: [pin(each) for each in wheels]}, self.base.named(), **others)


@contextmanager
def image_servers(*wheels: Artifact) -> Iterator[ImageServers]:
    """An index that has these wheels, and a registry."""
    with IndexServer([File(each) for each in wheels]) as index, RegistryInThread(PushRegistry()) as registry:
        yield ImageServers(index, registry, hold_base(registry.held, make_base()))
