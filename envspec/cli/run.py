"""`envspec run`."""

from __future__ import annotations

from typing import Any

import click

from envspec.cli.container import options, start
from envspec.cli.options import LOCK


class _Run(click.Command):
    """One whose options end where the command begins, as those of `docker run` do: what follows is the command's.

    Without this, `envspec run LOCK python train.py -e 3` would take `-e` for itself.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = self._options_in(ctx, args)
        rest = args[own:]
        if rest and rest[0] != "--":
            further = self._options_in(ctx, rest[1:])
            command = rest[1 + further :]
            command = command[1:] if command[:1] == ["--"] else command
            args = [*args[:own], *rest[1 : 1 + further], "--", rest[0], *command]
        return super().parse_args(ctx, args)

    def _options_in(self, ctx: click.Context, args: list[str]) -> int:
        """How many of the words at the beginning are options and their values."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        found, _, _ = parser.parse_args(list(args))
        # What click has for arguments that are not there differs from release to release.
        words = found.get("words")
        own = len(args) - isinstance(found.get("lock"), str) - (len(words) if isinstance(words, (tuple, list)) else 0)
        return own - (args[own - 1 : own] == ["--"])


@click.command(cls=_Run)
@options
@LOCK
@click.argument("words", metavar="[--] [COMMAND]...", nargs=-1, type=click.UNPROCESSED)
def command(lock: str, words: tuple[str, ...], **chosen: Any) -> int:
    """Run a command in a container of a lock's image, which is made first where the engine has it not.

    The container has the GPUs, the current folder as its working folder, this user's ids, and shared memory for several
    GPUs; it is gone afterwards. Output, signals and exit code are the command's. Without a command the image's services
    run, their ports on loopback; with --services they run beside the command.
    """
    return start(lock, words, chosen)
