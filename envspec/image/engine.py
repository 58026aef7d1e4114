"""Loads images into a container engine, without the layers that it already has.

Sources: Docker Engine API 1.41, "ImageLoad"; moby, `image/tarexport/load.go`, which opens only layers whose chain is
missing in the engine (read in 20.10 and 28).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final

from envspec.engine import errors
from envspec.engine.client import Engine, inspect_image
from envspec.engine.errors import EngineError
from envspec.errors import UsageError
from envspec.facts.tables import numeric
from envspec.image.config import LABEL_LOCK
from envspec.image.diff import common_prefix
from envspec.image.layers.types import Compression, Image
from envspec.image.outputs import files_of
from envspec.registry.types import Descriptor

_LOADING: Final = "loading the image"
#: The first Docker that unpacks zstd. Source: moby 23.0, release notes; 20.10 reports `invalid tar header`.
_READS_ZSTD: Final = 23
_FINDING: Final = "looking for the image"
#: What a container starts with; in the `config` documents of both kinds of store.
_RUN_KEYS: Final = ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Labels", "ExposedPorts", "Healthcheck")


def find_image(engine: Engine, image: Image) -> str | None:
    """The engine's name of exactly this image; None if it does not have it.

    Docker's own store names an image by its config's digest. containerd's names it by a manifest's, which depends on
    how its layers were packed: there, images are equal if their layers' contents and their run configs are.

    Raises:
        EngineError, EngineUnreachable: the engine fails.
    """
    with engine.errors_while(_FINDING):
        if inspect_image(engine, image.id) is not None:
            return image.id
        if not engine.facts.containerd_store:
            return None
        config = json.loads(image.config)
        lock = (config["config"].get("Labels") or {}).get(LABEL_LOCK)
        for summary in engine.client.images(filters={"label": f"{LABEL_LOCK}={lock}"} if lock else None):
            found = inspect_image(engine, summary["Id"])
            if found is not None and is_same(found, config):
                return str(summary["Id"])
    return None


def is_same(found: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether an engine's description of an image (`GET /images/{name}/json`) matches an image's config."""
    layers = (found.get("RootFS") or {}).get("Layers") or []
    run = found.get("Config") or {}
    if list(layers) != list(config["rootfs"]["diff_ids"]):
        return False
    # Engines have null for what an image has as an empty list, and the other way round.
    return all((run.get(key) or None) == (config["config"].get(key) or None) for key in _RUN_KEYS)


def count_loaded_layers(engine: Engine, image: Image) -> int:
    """How many of the image's lowest layers the engine has: a tar for `load` may omit their blobs.

    Raises:
        EngineError, EngineUnreachable: the engine fails.
    """
    if engine.facts.containerd_store or engine.facts.is_podman:
        # They read every layer of the tar.
        return 0
    most, diff_ids = 0, [layer.diff_id for layer in image.layers]
    with engine.errors_while(_FINDING):
        for summary in engine.client.images(all=True):
            found = inspect_image(engine, summary["Id"]) or {}
            most = max(most, common_prefix((found.get("RootFS") or {}).get("Layers") or [], diff_ids))
    return most


def check_reads(engine: Engine, compression: Compression) -> None:
    """Raises UsageError: the engine's version can't read layers of this form."""
    is_old = not engine.facts.is_podman and numeric(engine.facts.version)[:1] < (_READS_ZSTD,)
    if compression is Compression.ZSTD and is_old:
        raise UsageError(
            f"the engine ({engine.facts}) can't read layers in zstd; Docker {_READS_ZSTD} and newer can",
            hint="remove `--compression zstd`: the image ID is the same",
        )


def files_to_load(image: Image, tags: Sequence[str], loaded: int) -> list[tuple[str, bytes | Descriptor]]:
    """The files of a tar for `load`, without the blobs of the first `loaded` layers."""
    needed = {layer.blob.digest for layer in image.layers[loaded:]}
    omitted = {layer.blob.digest for layer in image.layers[:loaded]} - needed
    included = []
    for name, content in files_of([image], None, tags):
        if isinstance(content, bytes) or content.digest not in omitted:
            included.append((name, content))
    return included


def load(engine: Engine, image: Image, archive: Iterable[bytes]) -> str:
    """Send a tar in the format of `docker load`; returns the engine's name of the image.

    Raises:
        EngineError, EngineUnreachable: the engine fails, its disk is full, or the loaded image is another one.
    """
    with engine.errors_while(_LOADING), contextlib.closing(_post(engine, archive)) as answers:
        for answer in answers:
            if "errorDetail" in answer or "error" in answer:
                detail = answer.get("errorDetail") or {}
                raise errors.engine_error(_LOADING, str(detail.get("message") or answer.get("error")))
    name = find_image(engine, image)
    if name is None:
        raise EngineError(
            f"the engine ({engine.facts}) loaded the image, but has none with its ID, {image.id}",
            hint="load it from a file: `envspec image build LOCK --output FILE.tar` and `docker load -i FILE.tar`",
        )
    return name


def tag_image(engine: Engine, image_id: str, tag: str) -> None:
    """Tag one of the engine's images. tag: `repository:tag`."""
    repository, _, name = tag.rpartition(":")
    with engine.errors_while("naming the image"):
        engine.client.tag(image_id, repository, name)


def _post(engine: Engine, archive: Iterable[bytes]) -> Generator[dict[str, Any], None, None]:
    """The engine's answers to a load, as they arrive."""
    client = engine.client
    url = f"{client.base_url}/v{client.api_version}/images/load"
    headers = {"Content-Type": "application/x-tar"}
    # The engine answers once it has read everything, which takes as long as its disk needs.
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
