"""The first engine: py-rattler, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timezone
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.resolve.conda.records import kept, name_of, virtual_packages
from envspec.resolve.conda.solver import CondaUnsolvable

if TYPE_CHECKING:
    from rattler import RepoDataRecord

    from envspec.resolve.conda.channels import Channels
    from envspec.resolve.types import CondaRequest


class Rattler:
    """Solves with rattler's `resolvo`; channels in strict priority, the newest that fits."""

    @property
    def version(self) -> str:
        import rattler

        return f"py-rattler {rattler.__version__}"

    def unable(self, environ: Mapping[str, str]) -> str | None:
        """Always None: it is one of envspec's dependencies, and asks for nothing of the machine's."""
        del environ
        return None

    async def solve(self, request: CondaRequest, channels: Channels, work: Path) -> Sequence[RepoDataRecord]:
        """See CondaEngine."""
        import rattler
        from rattler.exceptions import SolverError

        locked = await channels.rows(request, [package.name for package in request.locked])
        asked = rattler.solve(
            await channels.sources(request, work),
            [_anywhere(text) if name_of(text) in request.cuts else text for text in request.requirements],
            channels.gateway,
            platforms=[request.platform.value, "noarch"],
            virtual_packages=virtual_packages(request),
            constraints=list(request.constraints),
            locked_packages=kept(request.locked, locked),
            exclude_newer=request.as_of.astimezone(timezone.utc),
            timestamp_policy="allow-missing" if request.undated else "require-timestamp",
            channel_relations="disabled",
        )
        try:
            found = await channels.answered(asked, request.channels)
        except SolverError as error:
            raise CondaUnsolvable(str(error)) from error
        return await _from_the_channel(found, request, channels)


def _anywhere(requirement: str) -> str:
    """Without the channel that it names: rows with a moment of their own are in none, and go before all others."""
    return requirement.rpartition("::")[2]


async def _from_the_channel(
    found: Sequence[RepoDataRecord], request: CondaRequest, channels: Channels
) -> list[RepoDataRecord]:
    """The rows with a moment of their own as their channel has them."""
    own = {row.name.normalized for row in found} & set(request.cuts)
    real = {(row.subdir, row.file_name): row for row in await channels.rows(request, own)}
    return [real[row.subdir, row.file_name] if row.name.normalized in request.cuts else row for row in found]
