"""`envspec install`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from envspec.cli import terminal
from envspec.cli.options import LOCK, OFFLINE, PLATFORMS, UNCONFINED, context_of, jobs
from envspec.cli.terminal import handle_sigterm


@click.command()
@LOCK
@click.option(
    "--prefix",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The environment's folder, which must be empty or not exist yet.",
)
@click.option("--platform", type=click.Choice(PLATFORMS), help="The platform, which must be this machine's.")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="An interpreter of the locked series, for a lock without conda.",
)
@OFFLINE
@jobs("files to fetch", "8")
@UNCONFINED
def command(lock: str, prefix: Path, platform: str | None, python: Path | None, **chosen: Any) -> int:
    """Install the environment of a lock on this machine, whole or not at all.

    LOCK is a folder, its envspec.lock, or a name under locks/. Resolves nothing. Prints the path of the environment.
    What was fetched is kept: an interrupted run continues from there.
    """
    from envspec.cli.progress import TerminalReporter
    from envspec.lockfile.folder import find_lock, read_with_digest
    from envspec.models import Platform
    from envspec.operations.install import Outcome, install, install_request

    locked, digest = read_with_digest(find_lock(lock, Path()))
    request = install_request(locked, digest, prefix, Platform(platform) if platform else None, python)
    with handle_sigterm(), TerminalReporter(request.lock.name) as reporter:
        outcome = install(request, context_of(chosen, reporter, usual_jobs=8))
    if outcome is Outcome.UNCHANGED:
        terminal.report(f"{request.prefix}: already installed")
    terminal.answer(f"{request.prefix}\n")
    return 0
