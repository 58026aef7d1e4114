"""What a conda solver has to do here: a request and its channels in, rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envspec.errors import NoSolution

if TYPE_CHECKING:
    from rattler import RepoDataRecord

    from envspec.resolve.conda.channels import Channels
    from envspec.resolve.types import CondaRequest


class CondaEngine(Protocol):
    """A solver. It decides which rows, and nothing more: what a row says comes from the channel."""

    @property
    def version(self) -> str:
        """Name and version."""

    def unable(self, environ: Mapping[str, str]) -> str | None:
        """What it lacks on this machine, in plain words; None when it can solve."""

    async def solve(self, request: CondaRequest, channels: Channels, work: Path) -> Sequence[RepoDataRecord]:
        """The rows that satisfy the request, virtual packages left out.

        work: an empty folder for this run alone.

        Raises:
            CondaUnsolvable: nothing satisfies it; says why in the engine's words.
            NetworkError: a channel can't be read.
            EngineFault: the engine itself failed.
        """


class CondaUnsolvable(NoSolution):
    """No set of rows satisfies the requirements; says why in the engine's words."""
