"""`envspec image`: build, id, diff, verify, mirror."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from envspec.cli import options, output, terminal
from envspec.cli.inspect import exit_code_of
from envspec.cli.output import Result, in_formats, plain
from envspec.cli.progress import TerminalReporter
from envspec.cli.selection import ENTRYPOINT, IMAGE, this_adopted, warn_of
from envspec.errors import EnvspecError, UsageError
from envspec.report import IMAGE_DIFF, IMAGE_SUMMARY, IMAGE_VERIFICATION
from envspec.structs import replace

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.context import Context
    from envspec.diagnostics.image_summary import ImageSummary
    from envspec.models import Lock, Platform
    from envspec.operations.image import Destinations
    from envspec.operations.image_cache import CachedIds, ImageRequest

#: Files in a warning.
_MOST_NAMED: Final = 5
_BUILD: Final = options.combined(
    click.option(
        "--platform",
        "platforms",
        multiple=True,
        is_eager=True,
        type=click.Choice(options.IMAGE_PLATFORMS),
        help="Platform of the image; several are combined into one index (default: this machine's).",
    ),
    click.option(
        "--no-compile-bytecode", is_flag=True, help="Leave out compiled Python: a smaller image that starts slower."
    ),
    options.path_option(
        "--python", "PATH", "An interpreter of the locked version that compiles modules (default: found automatically)."
    ),
    options.MIRROR,
    options.UNCONFINED,
    options.OFFLINE,
    options.jobs("layers to write and files to fetch", "the number of processors"),
    *IMAGE,
    ENTRYPOINT,
)


class ImageDiffers(EnvspecError, exit_code=8, code="image-differs"):
    """An image differs from its lock."""


@click.group(invoke_without_command=False)
@output.messages
def command() -> None:
    """Build a lock's image, show its ID, compare images, verify one, copy a base image."""


@command.command("build")
@options.lock_argument(report=warn_of)
@options.path_option("--output", "FILE", "Write a tar for `docker load` and skopeo.")
@options.path_option("--layout", "DIR", "Write an OCI layout.")
@click.option("--push", "pushed", metavar="REF", help="Push to a registry's repository and tag.")
@click.option("--load", "loaded", is_flag=True, help="Load into this machine's container engine.")
@click.option(
    "--tag", metavar="NAME:TAG", help="Name of the image for --load and --output (default: envspec/NAME:latest)."
)
@click.option(
    "--compression",
    type=click.Choice(("gzip", "zstd", "none")),
    default="gzip",
    show_default=True,
    help="Compression of layers; the image ID is the same.",
)
@options.DRY_RUN
@_BUILD
@output.output()
def build(lock: str, dry_run: bool, **chosen: Any) -> Result:
    """Build the image of a lock, without a daemon and without root, and print its ID.

    The same lock gives the same ID on another machine. Without --output, --layout, --push or --load the image is only
    kept in envspec's cache.

    \b
    envspec image build uv.lock --push ghcr.io/team/train:1
    envspec image build pytorch-2.9 --load                into this engine
    envspec image build pytorch-2.9 --output train.tar    for docker load
    envspec image build pytorch-2.9 --push ghcr.io/team/train:1
    envspec image build pytorch-2.9 --push ghcr.io/team/train:1 --dry-run
    """
    from envspec.operations.image_cache import default_tag, tag_of

    if chosen["tag"]:
        tag_of(chosen["tag"])
    context = options.context_of(chosen)
    request = _request(lock, context, chosen)
    pushed = chosen["pushed"]
    if context.is_offline and pushed:
        raise UsageError("--push needs the network, and --offline forbids it", hint="leave one of them out")
    secrets = request.secret_files()
    if secrets:
        _warn_of_secrets(secrets)
    only_pushed = not (chosen["output"] or chosen["layout"] or chosen["loaded"])
    if dry_run:
        return _plan(request, chosen, secrets)
    if only_pushed and (cached := request.cached()) is not None and _is_pushed(cached.digest, pushed, context):
        return _ids(cached, pushed, secrets, _summary(request, request.lock, cached))
    from envspec.operations.image import Destinations

    tag = tag_of(chosen["tag"] or default_tag(request.lock))
    load = tag if chosen["loaded"] else None
    built, whole = _build(request, Destinations(chosen["output"], chosen["layout"], pushed, load, tag), context)
    return _ids(built, pushed, secrets, _summary(request, whole, built))


@command.command("id")
@options.LOCK
@_BUILD
@output.output()
def image_id(lock: str, **chosen: Any) -> Result:
    """Print the ID of a lock's image; layers that are not in the cache are fetched and built."""
    context = options.context_of(chosen)
    request = _request(lock, context, chosen)
    if (cached := request.cached()) is not None:
        return _ids(cached)
    from envspec.operations.image import Destinations

    return _ids(_build(request, Destinations(), context)[0])


@command.command("diff")
@click.argument("first", metavar="A", callback=options.compare_with_spec)
@click.argument("second", metavar="B", callback=options.compare_with_spec)
@options.LOCKED
@options.platform_option(options.IMAGE_PLATFORMS, "Platform, if an image has several (default: this machine's).")
@options.MIRROR
@output.output(IMAGE_DIFF)
def diff(first: str, second: str, platform: Platform | None, mirrors: Sequence[str]) -> Result:
    """Show the layers and bytes that a pull of B transfers if A is already there.

    A and B: images in a registry, OCI layouts, tars, or locks. The exit code is 10 if they differ.

    \b
    envspec image diff ghcr.io/team/train:1 pytorch-2.9
    """
    from envspec.diagnostics.machine import this_platform
    from envspec.operations import image_diff

    with TerminalReporter("image diff") as reporter:
        context = options.context_of({"mirrors": mirrors}, reporter)
        found = image_diff.diff(first, second, platform or this_platform(), context)
    return in_formats(IMAGE_DIFF, found, exit_code_of(is_different=found.is_changed))


@command.command("verify")
@click.argument("reference", metavar="REF")
@options.LOCK
@click.option("--deep", is_flag=True, help="Read all layers, and compare their files.")
@options.platform_option(options.IMAGE_PLATFORMS, "Platform, if an image has several (default: this machine's).")
@options.path_option(
    "--python", "PATH", "An interpreter of the locked version that compiles modules (default: found automatically)."
)
@options.MIRROR
@options.UNCONFINED
@options.OFFLINE
@options.jobs("layers to read and files to fetch", "the number of processors")
@options.combined(*IMAGE, ENTRYPOINT)
@output.output(IMAGE_VERIFICATION)
def verify(
    reference: str, lock: str, deep: bool, platform: Platform | None, python: Path | None, **chosen: Any
) -> Result:
    """Check that an image was built from LOCK: its packages, config, base and ID.

    REF is an image in a registry, an OCI layout, or a tar. By default no layer is read, and nothing is fetched but
    documents: the ID is compared if the lock records it, or if everything that the image is built from is in the cache.
    With --deep, what is missing is fetched. Exit code 8, with all differences, if the image differs.

    \b
    envspec image verify ghcr.io/team/train:1 pytorch-2.9
    envspec image verify train.tar pytorch-2.9 --deep         each file
    """
    from envspec.operations.image_verify import Depth, verify

    depth = Depth.FILES if deep else Depth.DOCUMENTS
    with TerminalReporter("image verify") as reporter:
        context = options.context_of(chosen, reporter)
        found = verify(reference, lock, platform, context, depth, python=python and python.absolute())
    if found.is_same:
        return in_formats(IMAGE_VERIFICATION, found)
    error = ImageDiffers(
        f"{reference} is not the image of {found.lock}",
        hint="build it again by `envspec image build`, or name the lock that it was built from",
    )
    return in_formats(IMAGE_VERIFICATION, found, error=error)


@command.command("mirror")
@options.LOCK
@click.argument("reference", metavar="REF")
@options.MIRROR
@output.output()
def mirror(lock: str, reference: str, mirrors: Sequence[str]) -> Result:
    """Copy a lock's base image into another registry, under the same digest.

    \b
    envspec image mirror pytorch-2.9 registry.example.com:5000/nvidia/cuda
    """
    from envspec.lockfile.folder import named_lock
    from envspec.operations import image_diff

    locked = named_lock(lock)
    with TerminalReporter(locked.name) as reporter:
        copied = image_diff.mirror(locked, reference, options.context_of({"mirrors": mirrors}, reporter))
    return plain(lambda: {"image": copied}, [copied])


def _request(lock: str, context: Context, chosen: Mapping[str, Any]) -> ImageRequest:
    from envspec.operations.image_cache import ImageRequest

    return ImageRequest(
        lock,
        context,
        platforms=chosen["platforms"],
        bytecode=not chosen["no_compile_bytecode"],
        compression=chosen.get("compression", "gzip"),
        python=chosen["python"],
    )


def _warn_of_secrets(paths: Sequence[str]) -> None:
    from envspec.conformance.text import some_of

    output.warn(
        f"[image] copy puts {some_of(paths, _MOST_NAMED)} into the image, which everybody who has the image can read: "
        "copy folders without secrets, and set these at the start: `envspec run --env NAME`"
    )


def _is_pushed(digest: str, reference: str | None, context: Context) -> bool:
    """Whether nothing is left to do: the tag names this digest already, or nothing is to be pushed."""
    if not reference:
        return True
    from envspec.operations.image import is_pushed

    with TerminalReporter("image") as reporter:
        return is_pushed(reference, digest, replace(context, reporter=reporter))


def _build(request: ImageRequest, outputs: Destinations, context: Context) -> tuple[CachedIds, Lock]:
    """The IDs of images that are built, and the lock with all that they were built of."""
    from envspec.operations import image

    with TerminalReporter(request.lock.name) as reporter:
        built = image.build(request.options, outputs, replace(context, reporter=reporter))
    return request.remember(built.images, built.digest), built.lock


def _ids(
    found: CachedIds,
    pushed: str | None = None,
    secrets: Sequence[str] | None = None,
    summary: ImageSummary | None = None,
) -> Result:
    """The IDs; on stderr, because they are the result, the name by digest of what was pushed, and the summary.

    secrets: files in the image that may have some; None: not looked for.
    """
    from envspec.operations.image_cache import pushed_name

    name = None
    if pushed:
        name = pushed_name(pushed, found.digest)
        output.info(f"pushed: {name}")
    images = [{"platform": platform, "id": identity} for platform, identity in found.ids]
    lines = [found.ids[0][1]]
    if len(found.ids) > 1:
        lines = [f"{identity}  {platform}" for platform, identity in found.ids]
    document: dict[str, object] = {"images": images, "digest": found.digest, "pushed": name}
    if secrets is not None:
        document["secret_files"] = list(secrets)
    _show(summary, document)
    return plain(lambda: document, lines)


def _summary(request: ImageRequest, lock: Lock, built: CachedIds | None) -> ImageSummary | None:
    """What the images have; None if nobody sees it. built: None if they were not."""
    if output.SETTINGS.quiet >= output.QUIET and output.SETTINGS.form != "json":
        return None
    from envspec.operations.image_summary import image_summary

    return image_summary(lock, request.options.platforms, built.sizes if built else (), this_adopted())


def _show(summary: ImageSummary | None, document: dict[str, object]) -> None:
    """The summary as text on stderr, and in the JSON object."""
    if summary is None:
        return
    document["summary"] = summary
    for line in IMAGE_SUMMARY.render("text", summary, terminal.width()).splitlines():
        output.info(line)


def _plan(request: ImageRequest, chosen: Mapping[str, Any], secrets: Sequence[str]) -> Result:
    """What `image build` would do: `--dry-run`."""
    from envspec.conformance.text import counted
    from envspec.operations.image_cache import default_tag
    from envspec.report.format import total_size

    wanted, cached = request.options, request.cached()
    missing = request.missing_wheels()
    sizes = [each.file.size_bytes for each in missing]
    fetched = sum(filter(None, sizes))
    platforms = [platform.value for platform in wanted.platforms]
    tag = chosen["tag"] or default_tag(wanted.lock)
    targets = {
        "push": chosen["pushed"],
        "load": tag if chosen["loaded"] else None,
        "output": chosen["output"] and str(chosen["output"]),
        "layout": chosen["layout"] and str(chosen["layout"]),
    }
    lines = [f"would build {wanted.lock.name} for {', '.join(platforms)}"]
    images = []
    for platform, identity in cached.ids if cached else ():
        lines.append(f"image {identity}  {platform}, built before")
        images.append({"platform": platform, "id": identity})
    if missing:
        lines.append(f"would fetch {counted(len(missing), 'wheel')} ({total_size(fetched, sizes.count(None))})")
    verbs = {"push": "push", "load": "load", "output": "write", "layout": "write"}
    lines += [f"would {verbs[option]} {target}" for option, target in targets.items() if target]
    document: dict[str, object] = {
        "dry_run": True,
        "platforms": platforms,
        "images": images,
        "missing_wheels": len(missing),
        "missing_bytes": fetched,
        "missing_unsized": sizes.count(None),
        "secret_files": list(secrets),
        **targets,
    }
    _show(_summary(request, wanted.lock, cached), document)
    return plain(lambda: document, lines)
