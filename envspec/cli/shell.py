"""`envspec shell`."""

from __future__ import annotations

from typing import Any, Final

import click

from envspec.cli.container import options, start
from envspec.cli.options import LOCK

#: Not a login shell: /etc/profile would set a PATH without the environment.
_SHELL: Final = ("sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh")


@click.command()
@options
@LOCK
def command(lock: str, **chosen: Any) -> int:
    """Open a shell in a container of a lock's image, as `envspec run` runs a command in one.

    A script on standard input is run; the exit code is the shell's.
    """
    return start(lock, _SHELL, chosen)
