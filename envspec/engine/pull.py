"""Brings an image into an engine, by its reference.

Source: Docker Engine API 1.41, "ImageCreate": a stream of JSON, a line for each step of each layer. Read 2026-11.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from envspec.engine.docker import Engine
from envspec.engine.faults import EngineRefused

_LOOKING: Final = "looking for the image"


@dataclass(frozen=True, slots=True)
class Present:
    """An image in an engine. id: as the engine names it.

    pulled_bytes: packed, of the layers that were fetched just now; None where the image was there. pull_s: seconds.
    """

    reference: str
    id: str
    pulled_bytes: int | None = None
    pull_s: float | None = None


def present(engine: Engine, reference: str, moved: Callable[[int, int], None]) -> Present:
    """The image, pulled where the engine has it not. moved: told of bytes done and in all, as far as they are known.

    Raises:
        EngineRefused: there is no such image, or it may not be pulled. EngineSilent: the engine is lost.
    """
    there = inspected(engine, reference)
    if there is not None:
        return there
    began = time.monotonic()
    pulled = _pull(engine, reference, moved)
    there = inspected(engine, reference)
    if there is None:
        raise EngineRefused(f"the engine ({engine.facts}) has let go of {reference}", hint="run the same command again")
    seconds = time.monotonic() - began
    return Present(reference, there.id, pulled, seconds)


def inspected(engine: Engine, reference: str) -> Present | None:
    """The image as the engine has it; None where it has not."""
    from docker.errors import ImageNotFound, NotFound

    # The SDK's types say nothing of it.
    inspect = cast("Callable[[str], dict[str, Any]]", engine.client.inspect_image)
    with engine.asked(_LOOKING):
        try:
            told = inspect(reference)
        except (ImageNotFound, NotFound):
            return None
    return Present(reference, str(told["Id"]))


def _pull(engine: Engine, reference: str, moved: Callable[[int, int], None]) -> int:
    """Bytes of the layers that came."""
    sizes: dict[str, int] = {}
    done: dict[str, int] = {}
    with engine.asked(f"pulling {reference}"):
        # A reference without a tag or digest would bring every tag of the repository.
        name, tag = _named(reference)
        for step in engine.client.pull(name, tag=tag, stream=True, decode=True):
            if "error" in step:
                raise EngineRefused(
                    f"{reference} can't be pulled: {step['error']}",
                    hint="look at the name, and log in to its registry where it needs that",
                )
            progress = step.get("progressDetail") or {}
            if step.get("status") == "Downloading" and progress.get("total"):
                sizes[step["id"]] = int(progress["total"])
                done[step["id"]] = int(progress.get("current") or 0)
                moved(sum(done.values()), sum(sizes.values()))
    return sum(sizes.values())


def _named(reference: str) -> tuple[str, str]:
    """Repository, and tag or digest; `latest` where the reference has neither."""
    repository, at, digest = reference.partition("@")
    if at:
        return repository, digest
    head, colon, tag = reference.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (reference, "latest")
