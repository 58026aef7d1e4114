"""What can go wrong with a build, in words for the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envspec.errors import EnvspecError, NoSolution

_MOST: Final = 15


class BuildFailed(NoSolution):
    """The source gives no wheel. lines: what the build wrote, of which the last are shown."""

    def __init__(self, of: str, why: str, lines: Sequence[str] = (), hint: str | None = None) -> None:
        told = [line.rstrip() for line in lines if line.strip()][-_MOST:]
        super().__init__(
            "\n".join([f"{of}: {why}", *(f"  {line}" for line in told)]),
            hint=hint or "give its build what it asks for, or take a release that has a wheel",
        )


class WrongWheel(BuildFailed):
    """The build gave the wheel of something else, or for another machine."""


class OtherWheel(EnvspecError):
    """A build gave other bytes than the lock records."""

    exit_code = 8

    def __init__(self, of: str, found: str, locked: str) -> None:
        super().__init__(
            f"{of}: the wheel that was built has SHA-256 {found}, the lock records {locked}",
            hint="its build is not the same everywhere: take the wheel from who made the lock (ENVSPEC_BUILT_WHEELS "
            "names where its cache's `archives` folder is served), or record this one by `envspec lock --upgrade "
            "--image SPEC`",
        )
