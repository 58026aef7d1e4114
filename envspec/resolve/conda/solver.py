"""The interface of a conda solver (a request and its channels in, records out), and py-rattler, the default one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envspec.errors import NoSolution
from envspec.resolve.conda.records import available_records, name_of, record_name, virtual_packages

if TYPE_CHECKING:
    from rattler import RepoDataRecord

    from envspec.resolve.conda.channels import Channels
    from envspec.resolve.types import CondaRequest


class CondaSolver(Protocol):
    """Chooses records and nothing else: their content comes from the channel."""

    @property
    def version(self) -> str:
        """Name and version."""

    def unable(self, environ: Mapping[str, str]) -> str | None:
        """What is missing on this machine; None if it can solve."""

    async def solve(self, request: CondaRequest, channels: Channels, work: Path) -> Sequence[RepoDataRecord]:
        """The records that satisfy the request, without virtual packages.

        work: an empty folder for this run alone.

        Raises:
            CondaUnsolvable: nothing satisfies it.
            NetworkError: a channel cannot be read.
            ResolverError: the solver itself failed.
        """


class CondaUnsolvable(NoSolution):
    """No set of records satisfies the requirements; the message is the solver's."""


class Rattler:
    """py-rattler, in this process: `resolvo`, channels in strict priority, the newest that fits."""

    @property
    def version(self) -> str:
        import rattler

        return f"py-rattler {rattler.__version__}"

    def unable(self, environ: Mapping[str, str]) -> str | None:  # noqa: ARG002 (it is one of envspec's dependencies)
        return None

    async def solve(self, request: CondaRequest, channels: Channels, work: Path) -> Sequence[RepoDataRecord]:
        import rattler
        from rattler.exceptions import SolverError

        locked = await channels.records(request, [package.name for package in request.locked])
        requirements: list[str] = []
        for text in request.requirements:
            # Records with a cutoff of their own are in a source of their own, which comes before all channels.
            has_cutoff = name_of(text) in request.cutoffs
            requirements.append(text.rpartition("::")[2] if has_cutoff else text)
        solving = rattler.solve(
            await channels.sources(request, work),
            requirements,
            channels.gateway,
            platforms=[request.platform.value, "noarch"],
            virtual_packages=virtual_packages(request),
            constraints=list(request.constraints),
            locked_packages=available_records(request.locked, locked),
            exclude_newer=request.as_of.astimezone(timezone.utc),
            timestamp_policy="allow-missing" if request.undated else "require-timestamp",
            channel_relations="disabled",
        )
        try:
            found = await channels.await_query(solving, request.channels)
        except SolverError as error:
            raise CondaUnsolvable(str(error)) from error
        # Those records, as their channel has them.
        own = request.cutoffs.keys() & set(map(record_name, found))
        real = {(record.subdir, record.file_name): record for record in await channels.records(request, own)}
        chosen: list[RepoDataRecord] = []
        for record in found:
            chosen.append(real[record.subdir, record.file_name] if record_name(record) in own else record)
        return chosen
