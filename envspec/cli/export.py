"""`envspec export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from envspec.cli import output
from envspec.cli.options import LOCK, OFFLINE, PLATFORMS, context_of, path_option, platform_option
from envspec.cli.output import Result
from envspec.operations.export import FORMATS


@click.command()
@LOCK
@path_option(
    "--output", "FILE", "Write to FILE, or with its usual name into this folder (default: standard output).", to="path"
)
@platform_option(PLATFORMS, "Only this platform (environment-yml is for one: default this machine's).")
@click.option("--image", metavar="REF", help="The image's name in a registry, for devcontainer: best with @sha256:...")
@click.option("--without-conda", is_flag=True, help="Leave conda packages out of pylock, which can't contain them.")
@click.option("--force", "overwrite", is_flag=True, help="Replace a FILE that `envspec export` did not write.")
@OFFLINE
@output.output(FORMATS, "Format of the file; pylock is PEP 751, for pip and uv.")
def command(lock: str, path: Path | None, offline: bool, **chosen: Any) -> Result | int:
    """Write a lock as a file of another tool, with every version pinned.

    LOCK is a folder, its envspec.lock, a name under locks/, or a lock of another tool, such as uv.lock. What the format
    can't contain, such as a base image, is listed in the file's first comments and as a warning.

    \b
    envspec export pytorch-2.9 --output .              pylock.pytorch-2-9.toml
    envspec export pytorch-2.9 --format devcontainer --output .devcontainer/
    envspec export pytorch-2.9 --format pixi > pixi.toml
    """
    from envspec.cli.progress import TerminalReporter
    from envspec.lockfile.folder import named_lock
    from envspec.operations.export import destination, export

    locked, form = named_lock(lock), output.SETTINGS.form
    if path is not None:
        path = destination(path, form, locked.name)
    with TerminalReporter(locked.name) as reporter:
        context = context_of({"offline": offline}, reporter, usual_jobs=8)
        text = export(locked, form, output=path, context=context, **chosen)
    if path is None:
        return Result(lambda _: text)
    output.info(f"wrote {path}")
    return 0
