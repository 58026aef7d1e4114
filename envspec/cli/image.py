"""`envspec image`: build, id, diff, mirror."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from envspec.cli import terminal
from envspec.cli.image_world import image_world
from envspec.errors import UsageError

if TYPE_CHECKING:
    from envspec.cli.progress_bars import Progress
    from envspec.image.order import ImageOrder, ImageWorld
    from envspec.model import Lock, Platform

_PLATFORMS: Final = ("linux-64", "linux-aarch64")
_F = TypeVar("_F", bound=Callable[..., Any])


def _options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_LOCK: Final = click.argument("lock", metavar="LOCK", shell_complete=terminal.complete_lock)
_MIRROR: Final = click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="REGISTRY=HOST",
    help="A registry that stands in for another, as [registry.mirrors] has it; may be given more than once.",
)
_MAKING: Final = _options(
    click.option(
        "--platform",
        "platforms",
        multiple=True,
        type=click.Choice(_PLATFORMS),
        help="The platform, this machine's where the lock has it; several become one index.",
    ),
    click.option("--no-pyc", is_flag=True, help="Leave compiled Python out: a smaller image that starts slower."),
    click.option(
        "--python",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="An interpreter of the locked version, to compile with; found by itself where it is left out.",
    ),
    _MIRROR,
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
@_LOCK
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="A tar for `docker load` and skopeo.")
@click.option("--layout", type=click.Path(path_type=Path), metavar="DIR", help="An OCI layout.")
@click.option("--push", "pushed", metavar="REF", help="A registry's repository and tag.")
@click.option("--load", "loaded", is_flag=True, help="Into this machine's container engine.")
@click.option(
    "--tag", metavar="NAME:TAG", help="What --load and --output call the image; envspec/NAME:latest where left out."
)
@click.option(
    "--builder",
    type=click.Choice(("oci", "docker")),
    default="oci",
    show_default=True,
    help="oci: direct assembly. docker: the lock's Dockerfile, by the engine.",
)
@click.option(
    "--compression",
    type=click.Choice(("gzip", "zstd", "none")),
    default="gzip",
    show_default=True,
    help="How layers are packed; the image ID is the same.",
)
@_MAKING
def build(lock: str, builder: str, **chosen: Any) -> int:
    """Assemble the image of a lock, without a daemon and without root, and print its ID.

    The same lock gives the same ID on every machine. Without --output, --layout, --push or --load the image is made
    and kept in envspec's cache.
    """
    from envspec.pipeline import image as pipeline

    opened = _Opened(lock, chosen)
    with opened.progress as progress:
        world = opened.world(progress)
        if builder == "docker":
            outputs = _outputs(opened.lock, chosen)
            terminal.answer(f"{pipeline.build_by_docker(opened.folder, opened.order, outputs, world)}\n")
            return 0
        outputs = _outputs(opened.lock, chosen)
        images = pipeline.build(opened.order, outputs, world)
    _tell_ids([(image.platform, image.id) for image in images])
    return 0


@command.command("id")
@_LOCK
@_MAKING
def image_id(lock: str, **chosen: Any) -> int:
    """Print the ID of a lock's image, from what the cache knows; what it doesn't is fetched and looked through."""
    from envspec.pipeline import image as pipeline

    opened = _Opened(lock, chosen)
    with opened.progress as progress:
        images = pipeline.images_of(opened.order, opened.world(progress))
    _tell_ids([(image.platform, image.id) for image in images])
    return 0


@command.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--platform",
    type=click.Choice(_PLATFORMS),
    help="The platform, where an image has several; this machine's where left out.",
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
@_MIRROR
def diff(first: str, second: str, platform: str | None, form: str, mirrors: Sequence[str]) -> int:
    """Tell which layers and bytes a pull of B moves where A is already.

    A and B: images in a registry, OCI layouts, tars, or locks. The exit code is 10 where they differ.
    """
    from envspec.cli.image_diff_text import as_json, as_text
    from envspec.cli.progress_bars import Progress
    from envspec.machine import this_platform
    from envspec.model import Platform
    from envspec.pipeline import image as pipeline

    with Progress("image diff") as progress:
        world = image_world(progress, mirrors)
        wanted = Platform(platform) if platform else this_platform()
        found = pipeline.diff(first, second, wanted, world)
    terminal.answer(as_json(found) if form == "json" else as_text(found))
    return 10 if found.is_changed else 0


@command.command("mirror")
@_LOCK
@click.argument("reference", metavar="REF")
@_MIRROR
def mirror(lock: str, reference: str, mirrors: Sequence[str]) -> int:
    """Keep a copy of a lock's base image in another registry, under the same digest."""
    from envspec.cli.progress_bars import Progress
    from envspec.lock.folder import find_lock, read_lock
    from envspec.pipeline import image as pipeline

    locked = read_lock(find_lock(lock, Path()))
    with Progress(locked.name) as progress:
        kept = pipeline.mirror(locked, reference, image_world(progress, mirrors))
    terminal.answer(f"{kept}\n")
    return 0


class _Opened:
    """A lock on the command line with the options that all builders share."""

    def __init__(self, lock: str, chosen: dict[str, Any]) -> None:
        import os

        from envspec.cli.progress_bars import Progress
        from envspec.fetch.values import Network
        from envspec.image.layer import Compression
        from envspec.image.order import Bytecode, ImageOrder
        from envspec.lock.document import identity
        from envspec.lock.folder import find_lock, read_lock

        self.folder = find_lock(lock, Path())
        self.lock: Lock = read_lock(self.folder)
        self._mirrors: Sequence[str] = chosen["mirrors"]
        self.progress = Progress(self.lock.name)
        self.order: ImageOrder = ImageOrder(
            lock=self.lock,
            identity=identity(self.lock),
            platforms=_platforms(self.lock, chosen["platforms"]),
            bytecode=Bytecode.NONE if chosen["no_pyc"] else Bytecode.COMPILED,
            compression=Compression(chosen.get("compression", "gzip")),
            python=chosen["python"].absolute() if chosen["python"] else None,
            network=Network.OFFLINE if chosen["offline"] else Network.USE,
            jobs=chosen["jobs"] or os.cpu_count() or 1,
        )

    def world(self, progress: Progress) -> ImageWorld:
        return image_world(progress, self._mirrors)


def _platforms(lock: Lock, named: Sequence[str]) -> tuple[Platform, ...]:
    from envspec.machine import this_platform
    from envspec.model import Platform

    locked = [resolution.target.platform for resolution in lock.resolutions]
    linux = [platform for platform in locked if platform.is_linux]
    if not linux:
        raise UsageError(
            f"{lock.name} has no linux platform, and images are for linux", hint="add linux-64 to [env] platforms"
        )
    if named:
        wanted = tuple(dict.fromkeys(map(Platform, named)))
        missing = [platform.value for platform in wanted if platform not in locked]
        if missing:
            raise UsageError(
                f"{lock.name} is not locked for {', '.join(missing)}",
                hint=f"it has {', '.join(platform.value for platform in locked)}",
            )
        return wanted
    here = this_platform()
    # A container runs on a Mac's or a Windows machine's engine: the only one that the lock has is meant there.
    if here in linux or len(linux) > 1:
        if here not in linux:
            raise UsageError(
                f"{lock.name} has images for {', '.join(platform.value for platform in linux)}, none for this machine",
                hint="choose by --platform",
            )
        return (here,)
    return (linux[0],)


def _outputs(lock: Lock, chosen: dict[str, Any]) -> Any:
    from envspec.pipeline.image import Outputs

    tag = chosen["tag"] or f"envspec/{lock.name.lower()}:latest"
    return Outputs(chosen["output"], chosen["layout"], chosen["pushed"], tag if chosen["loaded"] else None, tag)


def _tell_ids(rows: Sequence[tuple[Platform, str]]) -> None:
    if len(rows) == 1:
        terminal.answer(f"{rows[0][1]}\n")
        return
    terminal.answer("".join(f"{identity}  {platform.value}\n" for platform, identity in rows))
