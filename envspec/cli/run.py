"""`envspec run`."""

from __future__ import annotations

from typing import Any

import click

from envspec.cli.container import options, start
from envspec.cli.options import LOCK


@click.command()
@options
@LOCK
@click.argument("words", metavar="-- [COMMAND]...", nargs=-1, type=click.UNPROCESSED)
def command(lock: str, words: tuple[str, ...], **chosen: Any) -> int:
    """Run a command in a container of a lock's image, which is made first where the engine has it not.

    The container has the GPUs, the current folder as its working folder, this user's ids, and shared memory for several
    GPUs; it is gone afterwards. Output, signals and exit code are the command's. Without a command the image's services
    run, their ports on loopback; with --services they run beside the command.
    """
    return start(lock, words, chosen)
