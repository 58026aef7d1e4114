"""`envspec export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envspec.cli import output
from envspec.cli.options import LOCK, OFFLINE, PLATFORMS, context_of, platform_option, read_lock_of
from envspec.cli.output import Result
from envspec.operations.export import FORMATS

if TYPE_CHECKING:
    from envspec.models import Platform


@click.command()
@LOCK
@click.option(
    "--output",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to FILE, or with its usual name into this folder (default: standard output).",
)
@platform_option(PLATFORMS, "Only this platform (environment-yml is for one: default this machine's).")
@click.option("--image", metavar="REF", help="The image's name in a registry, for devcontainer: best with @sha256:...")
@click.option("--without-conda", is_flag=True, help="Leave conda packages out of pylock, which can't contain them.")
@click.option("--force", is_flag=True, help="Replace a FILE that `envspec export` did not write.")
@OFFLINE
@output.output(FORMATS, "Format of the file; pylock is PEP 751, for pip and uv.")
def command(
    lock: str,
    path: Path | None,
    platform: Platform | None,
    image: str | None,
    without_conda: bool,
    force: bool,
    **chosen: Any,
) -> Result | int:
    """Write a lock as a file of another tool, with every version pinned.

    LOCK is a folder, its envspec.lock, or a name under locks/. What the format can't contain, such as a base image,
    is listed in the file's first comments and as a warning.

    \b
    envspec export pytorch-2.9 --output .              pylock.pytorch-2-9.toml
    envspec export pytorch-2.9 --format devcontainer --output .devcontainer/
    envspec export pytorch-2.9 --format pixi > pixi.toml
    """
    from envspec.cli.progress import TerminalReporter
    from envspec.operations.export import ExportOptions, destination, export, write

    locked, form = read_lock_of(lock), output.SETTINGS.form
    target, folder = None, Path()
    if path is not None:
        target = destination(path, form, locked.name)
        folder = target.parent
    with TerminalReporter(locked.name) as reporter:
        exported = export(
            locked,
            ExportOptions(form, platform, image, without_conda),
            context_of(chosen, reporter, usual_jobs=8),
            folder,
        )
    if exported.missing:
        output.warn(f"{locked.name}: {form} has no place for: {'; '.join(exported.missing)}")
    if target is None:
        return Result(lambda _: exported.text)
    write(target, exported.text, force=force)
    output.info(f"wrote {target}")
    return 0
