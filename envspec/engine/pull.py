"""Brings an image into an engine, by its reference.

Source: Docker Engine API 1.41, "ImageCreate": a stream of JSON, a line for each step of each layer. Read 2026-11.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from envspec.engine.docker import Engine
from envspec.engine.faults import EngineRefused
from envspec.registry.faults import shortened
from envspec.registry.reference import Reference, parse

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

    reference: a name, which may say `http://`, or an ID of an image that is there.

    Raises:
        BadReference: it is neither. EngineRefused: there is no such image, or it may not be pulled.
        EngineSilent: the engine is lost.
    """
    named = parse(reference)
    # As it is otherwise: tags without a registry and IDs are the engine's own, and no short forms of other names.
    known = str(replace(named, scheme="")) if named.scheme else reference
    there = inspected(engine, known)
    if there is not None:
        return replace(there, reference=reference)
    began = time.monotonic()
    pulled = _pull(engine, named, moved)
    there = inspected(engine, known)
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


def _pull(engine: Engine, reference: Reference, moved: Callable[[int, int], None]) -> int:
    """Bytes of the layers that came."""
    from docker.errors import NotFound

    sizes: dict[str, int] = {}
    done: dict[str, int] = {}
    with engine.asked(f"pulling {reference}"):
        try:
            # A name without a tag or digest would bring every tag of the repository.
            for step in engine.client.pull(reference.name, tag=reference.asked, stream=True, decode=True):
                if "error" in step:
                    raise _not_pulled(reference, str(step["error"]))
                progress = step.get("progressDetail") or {}
                if step.get("status") == "Downloading" and progress.get("total"):
                    sizes[step["id"]] = int(progress["total"])
                    done[step["id"]] = int(progress.get("current") or 0)
                    moved(sum(done.values()), sum(sizes.values()))
        except NotFound as error:
            # There is none, or it is not for everybody: registries say the same of both.
            raise _not_pulled(reference, str(error.explanation or error)) from error
    return sum(sizes.values())


def _not_pulled(reference: Reference, said: str) -> EngineRefused:
    return EngineRefused(
        f"{reference} can't be pulled: {shortened(' '.join(said.split()), 500)}",
        hint="look at the name, and log in to its registry where it needs that",
    )
