"""Builds a folder's Dockerfile in an engine: by BuildKit where it has it, else by the builder before it.

Source: Docker Engine API 1.41, "ImageBuild"; moby, `api/server/router/build`: `version=2` is BuildKit, which takes the
context from the body as the other one does. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import IO, Any, Final

from envspec.engine import errors
from envspec.engine.buildkit import Told
from envspec.engine.certificates import context_files, with_certificates
from envspec.engine.client import Engine, EngineFacts
from envspec.engine.errors import EngineRefused
from envspec.engine.protobuf import BadMessage

DOCKERFILE: Final = "Dockerfile"
_IGNORE: Final = ".dockerignore"
_BUILDING: Final = "building"
#: The API with which BuildKit left its trial (Docker 18.09).
_BUILDKIT_SINCE: Final = (1, 39)
_SERVER_FAULTS: Final = 500


class BuildFailed(EngineRefused):
    """The Dockerfile's steps did not come to their end."""


class NoBuildKit(EngineRefused):
    """The engine does not take a build by BuildKit at all."""


class Builder(Enum):
    """Who builds; the value is the API's `version`."""

    BUILDKIT = "2"
    LEGACY = "1"


@dataclass(frozen=True, slots=True)
class Build:
    """What is to be built. folder: with the Dockerfile. tag: `repository:tag`, empty for none. args: build arguments.

    platform: `linux/arm64`, empty for the engine's own. network: of its steps, empty for the engine's own.
    certificates: a CA bundle for its steps, which only BuildKit can be given.
    """

    folder: Path
    tag: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""
    network: str = ""
    certificates: bytes | None = None


def builder_for(facts: EngineFacts, environ: Mapping[str, str]) -> Builder:
    """BuildKit, where the engine has it and DOCKER_BUILDKIT does not forbid it."""
    if facts.is_podman or facts.api < _BUILDKIT_SINCE or environ.get("DOCKER_BUILDKIT") == "0":
        return Builder.LEGACY
    return Builder.BUILDKIT


def build(engine: Engine, asked: Build, builder: Builder, log: Callable[[str], None]) -> str:
    """Build it; the image's ID. log: told of each line as it comes.

    Raises:
        BuildFailed: a step failed; its words are the message. EngineRefused, EngineSilent: the engine fails.
    """
    try:
        return _build(engine, asked, builder, log)
    except NoBuildKit:
        log("the engine has no BuildKit: its older builder goes on")
        return _build(engine, asked, Builder.LEGACY, log)


def parameters(asked: Build, builder: Builder) -> dict[str, str]:
    """The query of `POST /build`: pure."""
    query = {
        "version": builder.value,
        "dockerfile": DOCKERFILE,
        "t": asked.tag,
        "platform": asked.platform,
        "networkmode": asked.network,
        "buildargs": json.dumps(dict(asked.args), sort_keys=True) if asked.args else "",
        # Of the older builder: containers of failed steps go, too.
        "rm": "1",
        "forcerm": "1",
    }
    return {name: value for name, value in query.items() if value}


def _build(engine: Engine, asked: Build, builder: Builder, log: Callable[[str], None]) -> str:
    told = Told()
    if asked.certificates and builder is Builder.LEGACY:
        log("warning: the older builder can't be given this machine's certificates without leaving them in the image")
        asked = replace(asked, certificates=None)
    with (
        engine.asked(_BUILDING),
        _context(asked) as context,
        contextlib.closing(_answers(engine, parameters(asked, builder), context, builder)) as answers,
    ):
        for message in answers:
            try:
                lines = told.lines(message)
            except BadMessage as fault:
                raise EngineRefused(
                    f"what the engine ({engine.facts}) tells of the build can't be read: {fault}"
                ) from fault
            for line in lines:
                log(line)
    for line in told.rest():
        log(line)
    if told.error:
        raise BuildFailed(
            f"the build of {asked.folder / DOCKERFILE} failed: {told.error}", hint="the lines above say at which step"
        )
    if told.image is None:
        raise BuildFailed(f"the build of {asked.folder / DOCKERFILE} ended without an image, and without a word why")
    return told.image


def _answers(
    engine: Engine, query: Mapping[str, str], context: IO[bytes], builder: Builder
) -> Generator[dict[str, Any], None, None]:
    client = engine.client
    url = f"{client.base_url}/v{client.api_version}/build"
    headers = {"Content-Type": "application/x-tar"}
    # Closing the connection is what cancels a build.
    with client.post(url, params=query, data=context, headers=headers, stream=True, timeout=None) as response:
        if not response.ok:
            said = _message(response.text)
            if builder is Builder.BUILDKIT and "buildkit" in said.lower():
                raise NoBuildKit(said)
            if response.status_code < _SERVER_FAULTS:
                raise BuildFailed(f"the engine does not build this Dockerfile: {said}")
            raise errors.refused(_BUILDING, said)
        for line in response.iter_lines():
            if line.strip():
                yield json.loads(line)


@contextlib.contextmanager
def _context(asked: Build) -> Generator[IO[bytes], None, None]:
    """The folder as a tar, the same bytes for the same files, without what its .dockerignore names."""
    from docker.utils import exclude_paths

    folder = asked.folder
    given: dict[str, bytes] = {}
    if asked.certificates:
        dockerfile = with_certificates((folder / DOCKERFILE).read_text(encoding="utf-8"))
        given = {DOCKERFILE: dockerfile.encode(), **context_files(asked.certificates)}
    ignore = folder / _IGNORE
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    names = exclude_paths(str(folder), [*patterns, f"!{DOCKERFILE}"])
    with tempfile.TemporaryFile() as packed:
        # BuildKit looks at the first header to tell a tar from a Dockerfile, and takes one in pax' form for neither.
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name in sorted({*names, *given}, key=lambda each: (each != DOCKERFILE, each)):
                if name in given:
                    entry = tarfile.TarInfo(name)
                    entry.size = len(given[name])
                    tar.addfile(entry, io.BytesIO(given[name]))
                else:
                    _add(tar, folder / name, name.replace("\\", "/"))
        packed.seek(0)
        yield packed


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tar.gettarinfo(str(path), name)
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    if entry.isreg():
        with path.open("rb") as file:
            tar.addfile(entry, file)
    else:
        tar.addfile(entry)


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text
