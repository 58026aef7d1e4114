"""What commands about images have in common: options, and how several of them become one decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from envspec.cli import terminal

_F = TypeVar("_F", bound=Callable[..., Any])

#: What images are for.
IMAGE_PLATFORMS: Final = ("linux-64", "linux-aarch64")


def combined(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """One decorator that does what these do, written in this order one below the other."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


LOCK: Final = click.argument("lock", metavar="LOCK", shell_complete=terminal.complete_lock)
UNCONFINED: Final = click.option(
    "--unconfined",
    is_flag=True,
    help="Run builds, and a Python that only the lock names, with your rights where nothing confines them.",
)
MIRROR: Final = click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="REGISTRY=HOST",
    help="A registry that stands in for another, as [registry.mirrors] has it; may be given more than once.",
)
