"""`envspec explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envspec.cli import terminal
from envspec.report import EXPLANATION

if TYPE_CHECKING:
    from envspec.base_image.cuda import SharedLibrary
    from envspec.models import GpuCodeFound, Lock, Platform


@click.command()
@click.argument("lock", metavar="LOCK", shell_complete=terminal.complete_lock)
@click.argument("package", required=False, metavar="[PACKAGE]")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(EXPLANATION)),
    default="text",
    show_default=True,
    help="Text for people, or JSON for programs.",
)
def command(lock: str, package: str | None, form: str) -> int:
    """Show every decision of a lock with its reason and source, or one of its packages.

    LOCK is a folder, its envspec.lock, or a name under locks/. For a PACKAGE, by its PyPI or conda name: what requires
    it, the newest version that was rejected and why, its GPU code, its files and sizes. Reads the lock only: resolves
    and fetches nothing.
    """
    import os
    from pathlib import Path

    from envspec.diagnostics import explain
    from envspec.io.cache import cache_root, seen
    from envspec.lockfile.folder import find_lock, read_lock

    locked = read_lock(find_lock(lock, Path()))
    cache = cache_root(os.environ)

    def read(sha256: str) -> GpuCodeFound | None:
        return seen(cache, sha256)

    found = (
        explain.explain_package(locked, package, read)
        if package is not None
        else explain.explain_lock(locked, _held_twice(locked), read)
    )
    terminal.answer_report(form, EXPLANATION.render(form, found, terminal.width()))
    return 0


def _held_twice(lock: Lock) -> dict[Platform, tuple[SharedLibrary, ...]]:
    """CUDA libraries in both the base image and the packages, by platform."""
    if lock.base_image is None:
        return {}
    from envspec.base_image.cuda import shared_libraries
    from envspec.facts import load_facts

    facts = load_facts()
    return {
        resolution.target.platform: shared_libraries(lock.base_image, resolution, facts)
        for resolution in lock.resolutions
        if resolution.target.platform.is_linux
    }
