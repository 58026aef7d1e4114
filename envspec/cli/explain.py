"""`envspec explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envspec.cli import terminal

if TYPE_CHECKING:
    from envspec.base_image.cuda import SharedLibrary
    from envspec.models import GpuCodeFound, Lock, Platform


@click.command()
@click.argument("lock", metavar="LOCK", shell_complete=terminal.complete_lock)
@click.argument("package", required=False, metavar="[PACKAGE]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON for programs.",
)
def command(lock: str, package: str | None, form: str) -> int:
    """Tell every decision of a lock with its reason and source, or tell of one of its packages.

    LOCK is a folder, its envspec.lock, or a name under locks/. For a PACKAGE, by PyPI's name or conda's: who asked for
    it, the newest version that was not taken and why, its GPU code, its files and sizes. Nothing is resolved or
    fetched: the lock holds it all.
    """
    import os
    from pathlib import Path

    from envspec.explain import explanation, package_text, text
    from envspec.io.cache import cache_root, read_gpu_code
    from envspec.lock.find import find_lock
    from envspec.lock.folder import read_lock

    locked = read_lock(find_lock(lock, Path()))
    cache = cache_root(os.environ)

    def read(sha256: str) -> GpuCodeFound | None:
        return read_gpu_code(cache, sha256)

    told = (
        explanation.explain_package(locked, package, read)
        if package is not None
        else explanation.explain_lock(locked, _held_twice(locked), read)
    )
    if form == "json":
        terminal.answer_json(text.as_json(told))
    elif isinstance(told, explanation.Explanation):
        terminal.answer_sections(text.lock_text(told, terminal.width()))
    else:
        terminal.answer_sections(package_text.package_text(told, terminal.width()))
    return 0


def _held_twice(lock: Lock) -> dict[Platform, tuple[SharedLibrary, ...]]:
    """The CUDA libraries that the base image and the packages both hold, on the platforms that have the image."""
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
