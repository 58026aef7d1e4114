"""conda's packages into a folder: what the process that does it is told, and its faults in words."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from envspec.effects.process import Bond, Ending, attend
from envspec.errors import EnvspecError, UsageError
from envspec.model import CondaPackage, Platform


class LinkFault(EnvspecError):
    """rattler could not put a package into the folder."""


class BadPackage(EnvspecError):
    """A package of conda's that must not be put into an environment, or that no layer can be made of."""

    exit_code = 5

    def __init__(self, told: str) -> None:
        super().__init__(
            told, hint="its hash is the lock's, so it was published like this: take another build, and tell its channel"
        )


class NoRoom(EnvspecError):
    """The disk is full."""

    exit_code = 6


class TooLong(UsageError):
    """The environment's path is longer than the room that a package has for it."""


@dataclass(frozen=True, slots=True)
class Into:
    """Where packages are put.

    folder: where they come to lie. prefix: the folder that their files name, wherever they lie. cache: rattler's, of
    unpacked packages; files are hard links into it where the disk allows. there: names of packages that are taken for
    installed, and not put there. holds: a descriptor that the process inherits, and with it the lock on the folder.
    """

    folder: Path
    prefix: str
    cache: Path
    platform: Platform
    there: frozenset[str] = frozenset()
    holds: int | None = None


async def link(
    packages: Sequence[CondaPackage],
    archives: Mapping[str, Path],
    into: Into,
    environ: Mapping[str, str],
    told: Callable[[int, int], None],
) -> None:
    """Put packages into a folder. archives: SHA-256 -> the checked archive, not needed of those in `into.there`.

    told: how many of how many are in their place.

    When the caller is cancelled nothing writes into the folder any more.

    Raises:
        BadPackage: it would write outside of the folder, through a link, or over what conda and envspec write.
        NoRoom, TooLong, LinkFault
    """
    told(0, len(packages) - len(into.there))
    words = {
        "site": str(into.folder),
        "prefix": into.prefix,
        "cache": str(into.cache),
        "platform": into.platform.value,
        "there": sorted(into.there),
        "rows": [
            {
                "package": _fields(package),
                # rattler opens it for those alone that it puts there.
                "archive": package.url if package.name in into.there else archives[package.sha256].as_uri(),
                "packed_bytes": 0 if package.name in into.there else archives[package.sha256].stat().st_size,
            }
            for package in packages
        ],
    }

    def hear(line: str) -> None:
        step = json.loads(line)
        if "linked" in step:
            told(step["linked"], step["total"])

    ended = await attend(
        [sys.executable, "-m", "envspec.link.worker"],
        # The same modules as here, wherever they came from.
        environ={**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=into.folder,
        bond=Bond(into.holds, Ending.STDIN, json.dumps(words).encode() + b"\n"),
        told=hear,
    )
    for line in ended.lines:
        if refused := json.loads(line).get("refused"):
            raise BadPackage(refused)
    last = json.loads(ended.lines[-1]) if ended.lines else {}
    if ended.status != 0 or not last.get("done"):
        raise _fault(last.get("error") or ended.stderr.strip() or f"rattler ended with status {ended.status}")


def _fields(package: CondaPackage) -> dict[str, object]:
    fields = asdict(package)
    for name in ("provides", "askers", "newest"):
        del fields[name]
    return fields


def _fault(text: str) -> EnvspecError:
    """rattler's chain of causes as one message."""
    panic = re.search(r"panicked at [^\n]*\n(.+?)(?:\nnote: |\Z)", text, re.DOTALL)
    lines = (panic[1] if panic else text).splitlines()
    told = ": ".join(dict.fromkeys(line.removeprefix("Caused by: ").strip() for line in lines if line))
    if "os error 28" in told or "os error 122" in told:
        return NoRoom(f"no space left while conda's packages were linked: {told}", hint="make room and try again")
    if "longer than the placeholder" in told:
        return TooLong(f"the folder's path is too long for a package: {told}", hint="name a folder with a shorter path")
    return LinkFault(f"conda's packages could not be linked: {told}", hint="run again with --debug and report it")
