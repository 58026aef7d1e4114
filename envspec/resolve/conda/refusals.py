"""Why a platform has no solution, in the user's words: the spec's requirements, `[cuda] version`, the base, `as_of`."""

from __future__ import annotations

from envspec.errors import EnvspecError, NoSolution
from envspec.resolve.conda.channels import Channels
from envspec.resolve.conda.engine import CondaUnsolvable
from envspec.resolve.conda.question import CondaRequest
from envspec.resolve.conda.rows import name_of


async def refusal(error: CondaUnsolvable, request: CondaRequest, channels: Channels) -> EnvspecError:
    """The error to raise for an engine's "no solution": what is known here comes before the engine's words."""
    there = {row.name.normalized for row in await channels.rows(request, map(name_of, request.requirements))}
    unknown = [text for text in request.requirements if name_of(text) not in there and not text.startswith("__")]
    place = f"no solution for conda's packages on {request.platform.value}"
    if unknown:
        return NoSolution(f"{place}: no such package: {', '.join(unknown)}", hint="correct the name")
    return NoSolution(f"{place}: {error.message}", hint="loosen one of the requirements named above, or move as_of")
