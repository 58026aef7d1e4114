"""The conda half of an environment: its archives, and what puts them into the folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from envspec.effects.cache import CONDA_PACKAGES
from envspec.errors import UsageError
from envspec.fetch.values import Step
from envspec.install.order import Order, Stage, World
from envspec.install.place import NoSpace, Site
from envspec.link.packages import Into, NoRoom, TooLong
from envspec.link.packages import link as link_packages

#: The longest path that conda's packages leave room for: their placeholder has 255 characters and an end.
LONGEST_PREFIX = 254


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

    def told(done: int, total: int) -> None:
        world.report(Step(Stage.LINKING, done, total))

    into = Into(site.path, str(order.prefix), world.cache / CONDA_PACKAGES, order.platform, holds=site.descriptor)
    try:
        await link_packages(order.resolution.conda, kept, into, world.environ, told)
    except NoRoom as fault:
        raise NoSpace(fault.message, hint=fault.hint) from fault
    except TooLong as fault:
        raise UsageError(fault.message.replace("the folder's path", "--prefix"), hint=fault.hint) from fault
