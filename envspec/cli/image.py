"""`envspec image`: build, id, diff, mirror."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envspec.cli import terminal
from envspec.cli.image_order import Opened, tag_of
from envspec.cli.image_world import image_world
from envspec.cli.options import IMAGE_PLATFORMS, LOCK, MIRROR, UNCONFINED, combined
from envspec.cli.terminal import terminable
from envspec.errors import UsageError
from envspec.report import IMAGE_DIFF

if TYPE_CHECKING:
    from envspec.operations.image import Built

_MAKING: Final = combined(
    click.option(
        "--platform",
        "platforms",
        multiple=True,
        type=click.Choice(IMAGE_PLATFORMS),
        help="The platform, this machine's where the lock has it; several become one index.",
    ),
    click.option("--no-pyc", is_flag=True, help="Leave compiled Python out: a smaller image that starts slower."),
    click.option(
        "--python",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="An interpreter of the locked version, to compile with; found by itself where it is left out.",
    ),
    MIRROR,
    UNCONFINED,
    click.option("--offline", is_flag=True, help="Use what is in the cache and no network."),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=None,
        metavar="N",
        help="How many layers to make, and files to fetch, at once; as many as there are processors.",
    ),
)


@click.group(invoke_without_command=False)
def command() -> None:
    """Make the image of a lock, tell its ID, compare images, keep a base image."""


@command.command("build")
@LOCK
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="A tar for `docker load` and skopeo.")
@click.option("--layout", type=click.Path(path_type=Path), metavar="DIR", help="An OCI layout.")
@click.option("--push", "pushed", metavar="REF", help="A registry's repository and tag.")
@click.option("--load", "loaded", is_flag=True, help="Into this machine's container engine.")
@click.option(
    "--tag", metavar="NAME:TAG", help="What --load and --output call the image; envspec/NAME:latest where left out."
)
@click.option(
    "--compression",
    type=click.Choice(("gzip", "zstd", "none")),
    default="gzip",
    show_default=True,
    help="How layers are packed; the image ID is the same.",
)
@_MAKING
def build(lock: str, **chosen: Any) -> int:
    """Assemble the image of a lock, without a daemon and without root, and print its ID.

    The same lock gives the same ID on every machine. Without --output, --layout, --push or --load the image is made
    and kept in envspec's cache.
    """
    opened = Opened(lock, chosen)
    if chosen["offline"] and chosen["pushed"]:
        raise UsageError("--push needs the network, and --offline forbids it", hint="leave one of them out")
    only_pushed = not (chosen["output"] or chosen["layout"] or chosen["loaded"])
    if only_pushed and (known := opened.known()) is not None and _is_pushed(known.digest, chosen):
        _tell_ids(known.ids)
        _tell_pushed(known.digest, chosen)
        return 0
    from envspec.cli.progress import DownloadProgress
    from envspec.image.outputs import check_outputs
    from envspec.operations import image as pipeline

    name = opened.lock.name
    tag = tag_of(chosen["tag"] or f"envspec/{name.lower()}")
    check_outputs(chosen["output"], chosen["layout"])
    outputs = pipeline.Outputs(
        chosen["output"], chosen["layout"], chosen["pushed"], tag if chosen["loaded"] else None, tag
    )
    with terminable(), DownloadProgress(name) as progress:
        world = image_world(progress, chosen["mirrors"], unconfined=chosen["unconfined"])
        built = pipeline.build(opened.order, outputs, world)
    _tell_pushed(built.digest, chosen)
    return _made(opened, built)


@command.command("id")
@LOCK
@_MAKING
def image_id(lock: str, **chosen: Any) -> int:
    """Print the ID of a lock's image, from what the cache knows; what it doesn't is fetched and looked through."""
    opened = Opened(lock, chosen)
    if (known := opened.known()) is not None:
        _tell_ids(known.ids)
        return 0
    from envspec.cli.progress import DownloadProgress
    from envspec.operations import image as pipeline

    with terminable(), DownloadProgress(opened.lock.name) as progress:
        world = image_world(progress, chosen["mirrors"], unconfined=chosen["unconfined"])
        built = pipeline.build(opened.order, pipeline.Outputs(), world)
    return _made(opened, built)


@command.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--platform",
    type=click.Choice(IMAGE_PLATFORMS),
    help="The platform, where an image has several; this machine's where left out.",
)
@click.option("--format", "form", type=click.Choice(list(IMAGE_DIFF)), default="text", show_default=True)
@MIRROR
def diff(first: str, second: str, platform: str | None, form: str, mirrors: Sequence[str]) -> int:
    """Tell which layers and bytes a pull of B moves where A is already.

    A and B: images in a registry, OCI layouts, tars, or locks. The exit code is 10 where they differ.
    """
    from envspec.cli.progress import DownloadProgress
    from envspec.diagnostics.machine import this_platform
    from envspec.models import Platform
    from envspec.operations import image as pipeline

    with terminable(), DownloadProgress("image diff") as progress:
        world = image_world(progress, mirrors)
        wanted = Platform(platform) if platform else this_platform()
        found = pipeline.diff(first, second, wanted, world)
    terminal.answer_report(form, IMAGE_DIFF.render(form, found, terminal.width()))
    return 10 if found.is_changed else 0


@command.command("mirror")
@LOCK
@click.argument("reference", metavar="REF")
@MIRROR
def mirror(lock: str, reference: str, mirrors: Sequence[str]) -> int:
    """Keep a copy of a lock's base image in another registry, under the same digest."""
    from envspec.cli.progress import DownloadProgress
    from envspec.lockfile.folder import find_lock, read_lock
    from envspec.operations import image as pipeline

    locked = read_lock(find_lock(lock, Path()))
    with terminable(), DownloadProgress(locked.name) as progress:
        kept = pipeline.mirror(locked, reference, image_world(progress, mirrors))
    terminal.answer(f"{kept}\n")
    return 0


def _is_pushed(digest: str, chosen: dict[str, Any]) -> bool:
    """Whether nothing is left to do: the tag names this already, or there is none to push."""
    if not chosen["pushed"]:
        return True
    from envspec.cli.progress import DownloadProgress
    from envspec.operations.image import is_pushed

    with terminable(), DownloadProgress("image") as progress:
        return is_pushed(chosen["pushed"], digest, image_world(progress, chosen["mirrors"]))


def _tell_pushed(digest: str, chosen: dict[str, Any]) -> None:
    """By which name a registry has it for good; on stderr, for the answer is the ID."""
    if chosen["pushed"]:
        from envspec.registry.reference import parse

        terminal.tell(f"pushed: {parse(chosen['pushed']).name}@{digest}")


def _made(opened: Opened, built: Built) -> int:
    opened.remember(built.images, built.digest)
    _tell_ids([(image.platform.value, image.id) for image in built.images])
    return 0


def _tell_ids(rows: Sequence[tuple[str, str]]) -> None:
    if len(rows) == 1:
        terminal.answer(f"{rows[0][1]}\n")
        return
    terminal.answer("".join(f"{identity}  {platform}\n" for platform, identity in rows))
