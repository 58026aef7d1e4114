"""The conda half of an environment: its archives, and what puts them into the folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from envspec.errors import EnvspecError, UsageError
from envspec.fetch.values import Archive
from envspec.install.order import Order, Stage, Step, World
from envspec.install.place import NoSpace, Site
from envspec.install.programs import Program, run
from envspec.model import CondaPackage

#: The longest path that conda's packages leave room for: their placeholder has 255 characters and an end.
LONGEST_PREFIX = 254


class LinkFault(EnvspecError):
    """rattler could not put a package into the folder."""


def archives(packages: Sequence[CondaPackage]) -> list[Archive]:
    """The archives of conda's packages."""
    return [
        Archive(f"{each.name} {each.version}", each.url, each.filename, each.sha256, each.size_bytes)
        for each in packages
    ]


def check_prefix(prefix: Path) -> None:
    """Refuse a path that conda's packages can't be told.

    Raises:
        UsageError: it is too long.
    """
    if len(os.fsencode(prefix)) > LONGEST_PREFIX:
        raise UsageError(
            f"--prefix is {len(os.fsencode(prefix))} bytes long, and conda's packages have room for {LONGEST_PREFIX}",
            hint="name a folder with a shorter path",
        )


async def link(order: Order, world: World, site: Site, kept: Mapping[str, Path]) -> None:
    """Put conda's packages into the site. kept: SHA-256 -> the checked archive.

    Raises:
        NoSpace, UsageError, LinkFault
    """
    packages = order.resolution.conda
    world.report(Step(Stage.LINKING, 0, len(packages)))
    words = {
        "site": str(site.path),
        "prefix": str(order.prefix),
        "cache": str(world.cache / "conda-packages"),
        "platform": order.platform.value,
        "rows": [
            {"package": _fields(package), "archive": f"file://{quote(str(kept[package.sha256]))}"}
            for package in packages
        ],
    }
    program = Program(
        [sys.executable, "-m", "envspec.install.link"],
        # The same modules as here, wherever they came from.
        {**world.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        site.path,
        site.descriptor,
    )
    ended = await run(program, stdin=json.dumps(words).encode() + b"\n", told=lambda line: _tell(line, world))
    last = json.loads(ended.lines[-1]) if ended.lines else {}
    if ended.status != 0 or not last.get("done"):
        raise _fault(last.get("error") or ended.errors.strip() or f"rattler ended with status {ended.status}")


def _fields(package: CondaPackage) -> dict[str, object]:
    fields = asdict(package)
    for name in ("provides", "askers", "newest"):
        del fields[name]
    return fields


def _tell(line: str, world: World) -> None:
    told = json.loads(line)
    if "linked" in told:
        world.report(Step(Stage.LINKING, told["linked"], told["total"]))


def _fault(text: str) -> EnvspecError:
    """rattler's chain of causes as one message."""
    told = ": ".join(dict.fromkeys(line.removeprefix("Caused by: ").strip() for line in text.splitlines() if line))
    if "os error 28" in told or "os error 122" in told:
        return NoSpace(f"no space left while conda's packages were linked: {told}", hint="make room and try again")
    if "longer than the placeholder" in told:
        return UsageError(f"--prefix is too long for a package: {told}", hint="name a folder with a shorter path")
    return LinkFault(f"conda's packages could not be linked: {told}", hint="run again with --debug and report it")
