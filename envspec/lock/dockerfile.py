"""Dockerfile: the environment by `docker build` alone, with BuildKit or with the builder before it.

What is fetched is checked: the base by digest, Python and micromamba by SHA-256, wheels and conda packages by the
hashes in the lock's own files. The image is not the one that `envspec image build` assembles, for times are the build's
own; what is in site-packages is the same.

Sources: Dockerfile reference of Docker 28; moby 20.10's builder, which knows neither heredocs nor `ADD --checksum` and
makes every stage, also those of other platforms: those hold files and run nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timezone
from typing import Final

from envspec.lock.canonical import canonical
from envspec.lock.docker_environment import (
    BUILT_FOLDER,
    BUILT_WHEELS,
    PREFIX,
    Part,
    built_in,
    environment_stage,
    files_stages,
)
from envspec.lock.docker_served import Served, files_lines, start_lines, user_lines
from envspec.lock.docker_words import by_architecture, pairs, quoted, run, words
from envspec.lock.document import identity
from envspec.models import BaseImage, Lock, Resolution
from envspec.registry.reference import parse

DOCKERFILE_NAME: Final = "Dockerfile"

#: Sources of Python that an image can be made with; `spec` means that whoever installs the lock brings it.
_IN_IMAGES: Final = frozenset({"standalone", "system", "base", "conda"})


def dockerfile_text(lock: Lock, served: Served) -> str | None:
    """The Dockerfile of a lock's linux platforms; None where `without_dockerfile` says why there is none.

    served: what `lock.image` makes of a container's start.
    """
    lock = canonical(lock)
    if lock.base_image is None or without_dockerfile(lock):
        return None
    parts = _parts(lock)
    lines = [
        *_header(lock, parts),
        f"ARG REGISTRY={parse(lock.base_image.repository).registry}",
        *(["ARG ARCHITECTURE=${TARGETARCH:-amd64}"] if len(parts) > 1 else []),
        "",
        *_base_stages(lock.base_image, parts),
        *_system_stage(lock, parts, served),
        *files_stages(parts),
        *environment_stage(parts),
        *_image_stage(lock, lock.base_image, parts, served),
    ]
    return "\n".join(lines) + "\n"


def without_dockerfile(lock: Lock) -> str | None:
    """Why a lock has no Dockerfile; None where it has one, and where it has no linux platform."""
    linux = [resolution for resolution in lock.resolutions if resolution.target.platform.is_linux]
    if not linux or _parts(lock):
        return None
    if lock.base_image is None:
        return "the lock names no base image: add [cuda], or [image] base"
    if not any(resolution.target.python.source in _IN_IMAGES for resolution in linux):
        return 'Python is yours to bring: set [env] python_source = "standalone", or use a base that has it'
    return f"the digest of {lock.base_image.repository}:{lock.base_image.tag} is not known"


def _parts(lock: Lock) -> list[Part]:
    image = lock.base_image
    digests = {pinned.platform: pinned.digest for pinned in image.digests} if image else {}
    return [
        Part(resolution, digest, _apt(lock, resolution))
        for resolution in lock.resolutions
        if resolution.target.platform.is_linux
        and resolution.target.python.source in _IN_IMAGES
        and (digest := digests.get(resolution.target.platform))
    ]


def _apt(lock: Lock, resolution: Resolution) -> tuple[str, ...]:
    """What apt installs: every package with its version, once the system layer has been made."""
    made = next((layer for layer in lock.system if layer.platform is resolution.target.platform), None)
    return made.packages if made else lock.image.apt


def _header(lock: Lock, parts: Sequence[Part]) -> Iterator[str]:
    platforms = " and ".join(part.platform.value for part in parts)
    yield f"# {lock.name} for {platforms}: written by `envspec lock`. Change the spec, not this file."
    yield "# To build it, in this folder:"
    yield f"#   docker build --tag {lock.name} ."
    if len(parts) > 1:
        yield "# Where the engine has no BuildKit, it is made for amd64, unless told otherwise:"
        yield f"#   docker build --tag {lock.name} --build-arg ARCHITECTURE=arm64 ."
    yield "# What stands in for the registry, and for pip's index:"
    yield "#   --build-arg REGISTRY=HOST --build-arg PIP_INDEX_URL=URL"
    if any(map(built_in, parts)):
        yield f"# Wheels of git and local projects are no index's. They are taken from {BUILT_FOLDER}/<sha256>/ beside"
        yield "# this file, or from where the folder `archives` of the cache is served in which they were built:"
        yield f"#   --build-arg {BUILT_WHEELS}=URL"
    yield ""


def _base_stages(image: BaseImage, parts: Sequence[Part]) -> Iterator[str]:
    repository = parse(image.repository).repository
    name = f"${{REGISTRY}}/{repository}" + (f":{image.tag}" if image.tag else "")
    if len(parts) == 1:
        # Said, so that a Mac's engine does not put this platform's packages on a base for its own.
        yield f"FROM --platform=linux/{parts[0].architecture} {name}@{parts[0].digest} AS base"
    elif len({part.digest for part in parts}) == 1:
        yield f"FROM {name}@{parts[0].digest} AS base"
    else:
        yield from (f"FROM {name}@{part.digest} AS base-{part.architecture}" for part in parts)
        yield "FROM base-${ARCHITECTURE} AS base"
    yield ""


def _system_stage(lock: Lock, parts: Sequence[Part], served: Served) -> Iterator[str]:
    yield "FROM base AS system"
    if lock.image.apt:
        moment = lock.image.snapshot
        at = f" --snapshot={moment.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}" if moment else ""
        install = f"DEBIAN_FRONTEND=noninteractive apt-get{at} install --yes --no-install-recommends"
        clean = "rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /etc/ssh/ssh_host_*"
        if len({part.apt for part in parts}) == 1:
            yield run(f"apt-get{at} update", words(install, parts[0].apt), clean)
        else:
            yield "ARG ARCHITECTURE"
            packages = by_architecture({part.architecture: f'"{" ".join(part.apt)}"' for part in parts}, "packages=%s")
            yield run(f"apt-get{at} update", *packages, f"{install} $packages", clean)
        yield from user_lines(served)
    yield ""


def _image_stage(lock: Lock, image: BaseImage, parts: Sequence[Part], served: Served) -> Iterator[str]:
    yield "FROM system"
    yield f"COPY --from=environment {PREFIX} {PREFIX}"
    yield from files_lines(served)
    variables = {"PATH": f'"{PREFIX}/bin:$PATH"'}
    if lock.driver is not None:
        variables |= {
            "NVIDIA_VISIBLE_DEVICES": '"${NVIDIA_VISIBLE_DEVICES:-all}"',
            "NVIDIA_DRIVER_CAPABILITIES": '"${NVIDIA_DRIVER_CAPABILITIES:-compute,utility}"',
            "NVIDIA_REQUIRE_CUDA": quoted(f"driver>={lock.driver.minimum}"),
        }
    asked = dict(served.env) | dict(lock.image.env)
    own = {name: value for name, value in asked.items() if not set(value) & {"\n", "\r"}}
    yield pairs("ENV", variables | {name: quoted(value) for name, value in own.items()})
    for name in asked:
        if name not in own:
            yield f"# {name} has a line feed, which a Dockerfile can't hold: set it when the container is started."
    yield pairs("LABEL", {name: quoted(value) for name, value in _labels(lock, image, parts).items()})
    yield f"WORKDIR {_path(lock.image.workdir)}"
    yield from start_lines(served)


def _labels(lock: Lock, image: BaseImage, parts: Sequence[Part]) -> dict[str, str]:
    digests = {part.digest for part in parts}
    return {
        "envspec.name": lock.name,
        "envspec.lock": identity(lock),
        "org.opencontainers.image.title": lock.name,
        "org.opencontainers.image.base.name": f"{image.repository}:{image.tag}" if image.tag else image.repository,
        **({"org.opencontainers.image.base.digest": next(iter(digests))} if len(digests) == 1 else {}),
    }


def _path(folder: str) -> str:
    """A folder as WORKDIR takes it: the rest of the line, with variables and escapes in it."""
    return quoted(folder)[1:-1]
