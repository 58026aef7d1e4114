"""A stand-in for `nvidia/cuda:12.8.1-base-ubuntu24.04`, which cannot be reached from every machine.

Debian's minimal system with its Python (without venv and pip), and the variables of NVIDIA's image. It is made once by
debootstrap from the Debian that this machine's apt knows, and kept as an OCI layout; from the same packages comes
the same image, so that results of one hold on another machine.

    base = push(layout(), registry)
    assert base.name == "127.0.0.1:5000/nvidia/cuda:12.8.1-base-ubuntu24.04"
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.machines import NotRun, program, rootfs
from tests.support.servers.docker_registry import push_layout
from tests.support.servers.registry import OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, digest, encode

REPOSITORY: Final = "nvidia/cuda"
TAG: Final = "12.8.1-base-ubuntu24.04"
SUITE: Final = "bookworm"
#: What Debian's bookworm has, and with it the stand-in.
PYTHON: Final = "3.11.2"
GLIBC: Final = "2.36"
PACKAGES: Final = ("python3.11", "ca-certificates")
#: Names a mirror of Debian where apt's configuration knows none, as on Ubuntu.
MIRROR: Final = "ENVSPEC_TEST_DEBIAN"
#: Where what is costly to make is kept; else a folder below the system's for temporary files.
CACHE: Final = "ENVSPEC_TEST_CACHE"

_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
#: As NVIDIA's image has them (container-images, Dockerfile of 12.8.1 base), but for the list of old drivers.
_VARIABLES: Final = (
    "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "NVARCH=x86_64",
    "NVIDIA_REQUIRE_CUDA=cuda>=12.8",
    "CUDA_VERSION=12.8.1",
    "LD_LIBRARY_PATH=/usr/local/cuda/lib64",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
)
_CREATED: Final = "2025-03-10T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Layout:
    """An OCI layout on disk. index, manifest, config: digests. diff_ids: of its layers, lowest first."""

    folder: Path
    index: str
    manifest: str
    config: str
    diff_ids: tuple[str, ...]

    def blob(self, name: str) -> Path:
        return self.folder / "blobs" / "sha256" / name.removeprefix("sha256:")


@dataclass(frozen=True, slots=True)
class Pushed:
    """The image in a registry. name: with registry and tag. digest: of its index."""

    name: str
    registry: str
    digest: str
    layout: Layout


def cache_folder() -> Path:
    """Where tests keep what is costly to make and the same every time."""
    named = os.environ.get(CACHE)
    folder = Path(named) if named else Path(tempfile.gettempdir(), f"envspec-tests-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def layout(more: Sequence[str] = ()) -> Layout:
    """The stand-in, made where the cache does not have it. more: further packages of Debian's.

    Raises:
        NotRun: no debootstrap, not root, not an x86-64 Linux, or no Debian that could be asked.
    """
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NotRun("the stand-in for NVIDIA's image is for x86-64 Linux")
    # Another recipe is another image: this file, and the one that writes its tar.
    made_by = Path(__file__).read_bytes() + Path(rootfs.__file__).read_bytes() + " ".join(more).encode()
    recipe = hashlib.sha256(made_by).hexdigest()[:12]
    folder = cache_folder() / f"standin-{recipe}"
    with _alone(folder.with_suffix(".lock")):
        if not (folder / "index.json").exists():
            _make_at(folder, (*PACKAGES, *more))
    return _read(folder)


def make(folder: Path) -> Layout:
    """Make it anew in an empty folder, whatever the cache has."""
    _make_at(folder, PACKAGES)
    return _read(folder)


def with_layer(base: Layout, members: Iterable[rootfs.Member], folder: Path) -> Layout:
    """The image with one more layer, in a new folder."""
    shutil.copytree(base.folder / "blobs", folder / "blobs")
    blobs = folder / "blobs" / "sha256"
    layer = rootfs.pack(members, blobs)
    image, config = (_json(base, name) for name in (base.manifest, base.config))
    config["rootfs"]["diff_ids"].append(layer.diff_id)
    config["history"].append({"created": _CREATED, "created_by": "a layer of a test"})
    rows = [*image["layers"], {"mediaType": _LAYER, "digest": layer.digest, "size": layer.size_bytes}]
    _write_documents(folder, config, rows)
    return _read(folder)


def with_sources(base: Layout, lines: Sequence[str], folder: Path) -> Layout:
    """The image with these lines as the only sources of apt, in a new folder."""
    content = "".join(f"{line}\n" for line in lines).encode()
    member = tarfile.TarInfo("etc/apt/sources.list")
    member.size, member.mode = len(content), 0o644
    return with_layer(base, [(member, io.BytesIO(content))], folder)


def push(base: Layout, registry: str, tag: str = TAG) -> Pushed:
    """Put it under its name into a registry that talks plain HTTP; what is there stays."""
    push_layout(registry, base.folder, f"{REPOSITORY}:{tag}")
    return Pushed(f"{registry}/{REPOSITORY}:{tag}", registry, base.index, base)


def mirror() -> str:
    """The Debian that apt asks, from its configuration as it stands.

    Raises:
        NotRun: apt knows none, and the environment names none.
    """
    if named := os.environ.get(MIRROR):
        return named
    message = subprocess.run(
        [program("apt-get"), "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT) $(ARCHITECTURE)"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for line in message.splitlines():
        address, *rest = line.split()
        if rest == [SUITE, "main", "amd64"]:
            return address
    raise NotRun(f"apt's configuration names no Debian {SUITE}: set {MIRROR} to a mirror's address")


def _make_at(folder: Path, packages: Sequence[str]) -> None:
    debootstrap, address = program("debootstrap"), mirror()
    if os.geteuid() != 0:
        raise NotRun("debootstrap needs root")
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        root = beside / "root"
        command = [
            debootstrap,
            "--variant=minbase",
            "--arch=amd64",
            f"--include={','.join(packages)}",
            SUITE,
            str(root),
            address,
        ]
        started = time.time()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
        if done.returncode != 0:
            raise NotRun(f"debootstrap failed: {' | '.join((done.stdout + done.stderr).splitlines()[-3:])}")
        _write(beside / "layout", root, started)
        (beside / "layout").rename(folder)
    finally:
        shutil.rmtree(beside)


def _environment() -> dict[str, str]:
    """PATH with the administrator's folders, and how to reach a network: nothing else decides what debootstrap does."""
    reach = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **reach}


def _write(folder: Path, root: Path, started: float) -> None:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers = [rootfs.pack(rootfs.system(root, started), blobs), rootfs.pack(rootfs.cuda(), blobs)]
    config = {
        "created": _CREATED,
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": list(_VARIABLES), "Cmd": ["/bin/bash"], "Labels": {"maintainer": "a stand-in, not NVIDIA"}},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [
            {"created": _CREATED, "created_by": f"debootstrap {SUITE} {','.join(PACKAGES)}"},
            {"created": _CREATED, "created_by": "folders of /usr/local/cuda"},
            {"created": _CREATED, "created_by": "ENV CUDA_VERSION=12.8.1", "empty_layer": True},
        ],
    }
    rows = [{"mediaType": _LAYER, "digest": layer.digest, "size": layer.size_bytes} for layer in layers]
    _write_documents(folder, config, rows)


def _write_documents(folder: Path, config: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]) -> None:
    blobs = folder / "blobs" / "sha256"
    of_config = _keep(blobs, OCI_CONFIG, config)
    image = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": of_config, "layers": list(layers)}
    child = {**_keep(blobs, OCI_MANIFEST, image), "platform": {"os": "linux", "architecture": "amd64"}}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [child]}
    named = {**_keep(blobs, OCI_INDEX, index), "annotations": {"org.opencontainers.image.ref.name": TAG}}
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_bytes(encode({"schemaVersion": 2, "manifests": [named]}))


def _keep(blobs: Path, media_type: str, document: Mapping[str, Any]) -> dict[str, Any]:
    body = encode(document)
    (blobs / digest(body).removeprefix("sha256:")).write_bytes(body)
    return {"mediaType": media_type, "digest": digest(body), "size": len(body)}


def _read(folder: Path) -> Layout:
    (named,) = json.loads((folder / "index.json").read_text())["manifests"]
    draft = Layout(folder, named["digest"], "", "", ())
    manifest = _json(draft, draft.index)["manifests"][0]["digest"]
    config = _json(draft, manifest)["config"]["digest"]
    return Layout(folder, draft.index, manifest, config, tuple(_json(draft, config)["rootfs"]["diff_ids"]))


def _json(base: Layout, name: str) -> Any:
    return json.loads(base.blob(name).read_text())


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time: the others wait and find what it made."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
