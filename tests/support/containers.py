"""Containers and images of tests: run to the end, looked at, and taken away again."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import ImageNotFound
from docker.models.containers import Container

from tests.support.engine import program


@dataclass(frozen=True, slots=True)
class Done:
    """What a container left. output: both streams, in the order in which they came. stdout: the one alone."""

    status: int
    output: str
    stdout: str


@contextlib.contextmanager
def created(
    client: DockerClient, image: str, command: Sequence[str] | None = None, **settings: Any
) -> Iterator[Container]:
    """A container that does not run yet, taken away at the end, running or not. settings: of the SDK's `create`."""
    container = client.containers.create(image, list(command) if command else None, **settings)
    try:
        yield container
    finally:
        container.remove(force=True, v=True)


def run_in(
    client: DockerClient,
    image: str,
    *command: str,
    files: Mapping[str, bytes] | None = None,
    timeout_s: float = 600,
    **settings: Any,
) -> Done:
    """Run a command in a container of that image, without a network where `settings` names none.

    files: put in first, by absolute path.
    """
    with created(client, image, command, **{"network_mode": "none", **settings}) as container:
        for path, content in (files or {}).items():
            put(container, path, content)
        container.start()
        status = int(container.wait(timeout=timeout_s)["StatusCode"])
        output, stdout = container.logs(), container.logs(stderr=False)
        return Done(status, output.decode("utf-8", "replace"), stdout.decode("utf-8", "replace"))


def put(container: Container, path: str, content: bytes, mode: int = 0o755) -> None:
    """Lay a file into a container, with the folders above it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.size, member.mode = len(content), mode
        tar.addfile(member, io.BytesIO(content))
    assert container.put_archive("/", packed.getvalue())


@contextlib.contextmanager
def removed(client: DockerClient, *images: str) -> Iterator[None]:
    """Take these images away at the end, by name or id, where they are there."""
    try:
        yield
    finally:
        for image in images:
            with contextlib.suppress(ImageNotFound):
                client.images.remove(image, force=True)


@contextlib.contextmanager
def image_of_programs(client: DockerClient, *names: str, files: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """An image of this machine's own programs and the libraries that they load: plumbing needs no network.

    Gives its id. The programs lie where they lie here. files: further ones, by path without the first `/`.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
        for path in dict.fromkeys(path for name in names for path in _with_libraries(program(name))):
            tar.add(path, recursive=False)
        for path, content in (files or {}).items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    image = client.images.get(client.api.import_image_from_data(packed.getvalue()).split('"')[3])
    with removed(client, str(image.id)):
        yield str(image.id)


def _with_libraries(path: str) -> list[str]:
    """The file, and what `ldd` finds of it (`libc.so.6 => /lib/libc.so.6 (0x7f)`)."""
    told = subprocess.run([program("ldd"), path], capture_output=True, text=True, check=False).stdout
    words = [word for line in told.splitlines() for word in line.split() if word.startswith("/")]
    return [path, *(word for word in words if Path(word).is_file())]
