"""Images into a container engine: what it has already, and the rest as the tar that `docker load` reads.

    there = find(engine, image)                                # None: it is not there
    kept = layers_there(engine, image)                         # their blobs need not even be at hand
    there = load(engine, image, outputs.tar_of(files_without(image, tags, kept), ...))

Sources: Docker Engine API 1.41, "ImageLoad"; moby, `image/tarexport/load.go`, which opens only layers whose chain the
engine lacks (read in 20.10 and 28).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from envspec.engine import errors
from envspec.engine.client import Engine
from envspec.engine.errors import EngineError
from envspec.image.config import LABEL_LOCK
from envspec.image.layers.types import Image
from envspec.image.outputs import files_of
from envspec.registry.types import Descriptor

_LOADING: Final = "loading the image"
_LOOKING: Final = "looking for the image"
#: What a container starts with; `config` documents of both kinds of store have these.
_CONDUCT: Final = ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Labels", "ExposedPorts", "Healthcheck")


def find(engine: Engine, image: Image) -> str | None:
    """The name by which the engine has exactly this image; None where it has not.

    Docker's own store names images by their config's digest. containerd's names them by a manifest's, which depends on
    who packed the layers: there an image is the same where its layers' contents and its conduct are.

    Raises:
        EngineError, EngineUnreachable: the engine fails.
    """
    with engine.errors_while(_LOOKING):
        if _inspected(engine, image.id) is not None:
            return image.id
        if not engine.facts.containerd_store:
            return None
        wanted = json.loads(image.config)
        lock = (wanted["config"].get("Labels") or {}).get(LABEL_LOCK)
        rows = engine.client.images(filters={"label": f"{LABEL_LOCK}={lock}"} if lock else None)
        for row in rows:
            found = _inspected(engine, row["Id"])
            if found is not None and is_same(found, wanted):
                return str(row["Id"])
    return None


def is_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether an engine's description of an image (`GET /images/{name}/json`) is that of a config: pure."""
    layers = (found.get("RootFS") or {}).get("Layers") or []
    conduct = found.get("Config") or {}
    return list(layers) == list(wanted["rootfs"]["diff_ids"]) and all(
        (conduct.get(key) or None) == (wanted["config"].get(key) or None) for key in _CONDUCT
    )


def layers_there(engine: Engine, image: Image) -> int:
    """How many of its layers, from the lowest on, the engine has: a tar for `load` may leave out their blobs.

    Raises:
        EngineError, EngineUnreachable: the engine fails.
    """
    if engine.facts.containerd_store or engine.facts.is_podman:
        # They read every layer of the tar.
        return 0
    most, diff_ids = 0, [layer.diff_id for layer in image.layers]
    with engine.errors_while(_LOOKING):
        for row in engine.client.images(all=True):
            found = _inspected(engine, row["Id"])
            have = ((found or {}).get("RootFS") or {}).get("Layers") or []
            most = max(most, common(have, diff_ids))
    return most


def common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many of their first items two sequences share."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def files_without(image: Image, tags: Sequence[str], there: int) -> list[tuple[str, bytes | Descriptor]]:
    """What a tar for `load` holds: everything of the image but the blobs of its first `there` layers."""
    needed = {layer.blob.digest for layer in image.layers[there:]}
    left_out = {layer.blob.digest for layer in image.layers[:there]} - needed
    return [
        (name, content)
        for name, content in files_of([image], None, tags)
        if isinstance(content, bytes) or content.digest not in left_out
    ]


def load(engine: Engine, image: Image, archive: Iterable[bytes]) -> str:
    """Send a tar in the form of `docker load`; the name by which the engine then has the image.

    archive: read once, as the engine takes it.

    Raises:
        EngineError, EngineUnreachable: the engine fails, its disk is full, or it made another image of it.
    """
    with engine.errors_while(_LOADING), contextlib.closing(_sent(engine, archive)) as answers:
        for answer in answers:
            if "errorDetail" in answer or "error" in answer:
                detail = answer.get("errorDetail") or {}
                raise errors.engine_error(_LOADING, str(detail.get("message") or answer.get("error")))
    there = find(engine, image)
    if there is None:
        raise EngineError(
            f"the engine ({engine.facts}) took the image and has none of its ID, {image.id}",
            hint="load it from a file: `envspec image build LOCK --output FILE.tar` and `docker load -i FILE.tar`",
        )
    return there


def name_it(engine: Engine, there: str, tag: str) -> None:
    """Give an image that the engine has a name: `repository:tag`."""
    repository, _, name = tag.rpartition(":")
    with engine.errors_while("naming the image"):
        engine.client.tag(there, repository, name)


def _sent(engine: Engine, archive: Iterable[bytes]) -> Generator[dict[str, Any], None, None]:
    """The engine's answers to a load, as they come."""
    client = engine.client
    url = f"{client.base_url}/v{client.api_version}/images/load"
    headers = {"Content-Type": "application/x-tar"}
    # It answers when it has read everything, and that takes as long as its disk does.
    with client.post(url, params={"quiet": 1}, data=archive, headers=headers, stream=True, timeout=None) as response:
        if not response.ok:
            raise errors.engine_error(_LOADING, _message(response.text))
        for line in response.iter_lines():
            if line.strip():
                yield json.loads(line)


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text


def _inspected(engine: Engine, name: str) -> Mapping[str, Any] | None:
    from docker.errors import ImageNotFound, NotFound

    # The SDK's types say nothing of it.
    inspect = cast("Callable[[str], Mapping[str, Any]]", engine.client.inspect_image)
    try:
        return inspect(name)
    except (ImageNotFound, NotFound):
        return None
