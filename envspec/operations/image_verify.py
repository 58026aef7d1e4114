"""Whether an image was built from a lock: by its documents, its ID, and the content of its layers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from enum import Enum
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from envspec.context import Connectivity, Context, ReporterOf, comma_separated
from envspec.diagnostics.machine import this_platform
from envspec.errors import EnvspecError, OfflineMiss, UsageError
from envspec.image.base import ManifestCache, base_at, pinned_base
from envspec.image.base_contents import read_streamed
from envspec.image.build import BuiltImage
from envspec.image.config import LABEL_LOCK, LABEL_PACKAGES, Base, canonical, image_config, own_labels
from envspec.image.layers.contents import BadLayer, LayerContents, Pattern, merged, read_layer
from envspec.image.layers.ownership import OwnedPathCache
from envspec.image.layers.store import BlobStore
from envspec.image.layers.types import Layer
from envspec.image.options import Bytecode, ImageOptions, ImageParts, ImageStage
from envspec.image.services import ServicesSource, has_pip, services_config
from envspec.image.sources.bytecode import CompilerFailed, NoCompiler
from envspec.image.sources.system import title_of as system_title
from envspec.image.verification import (
    OWN,
    ImageDrift,
    ImageFinding,
    ImageVerification,
    compare_config,
    compare_files,
    compare_layers,
    compare_packages,
    listed_packages,
    only_package,
    owner_of,
    title_of,
)
from envspec.io.tasks import gather_or_cancel, run_in_thread, run_interruptible
from envspec.lockfile.folder import find_lock, read_lock
from envspec.models import GIT, LOCAL, Lock, Package, Platform, Resolution
from envspec.operations.image import ImageSession, completed, with_bases, with_mirrors_of
from envspec.operations.image_cache import ImageRequest, image_options, missing_wheels
from envspec.operations.image_diff import compared_of
from envspec.operations.image_source import FoundImage, NoImage, open_image
from envspec.operations.lock_state import lacks_wheel
from envspec.operations.session import Session
from envspec.registry.reference import is_digest
from envspec.registry.types import OCI_PLATFORMS, digest_of, read_json
from envspec.structs import replace

#: For a base's registry that can't be reached: the rest is compared without it.
_QUICK_S: Final = 5.0


class Depth(Enum):
    """What of an image is read: its documents, or its layers too."""

    DOCUMENTS = "documents"
    FILES = "files"


def verify(
    reference: str,
    lock: str,
    platform: Platform | None,
    context: Context,
    depth: Depth = Depth.DOCUMENTS,
    *,
    python: Path | None = None,
) -> ImageVerification:
    """Compare an image in a registry, a layout or a tar with a lock.

    By its documents, no layer and no wheel is fetched: its ID is compared if the lock records it, or if all that the
    lock's image is made of is in the cache. By its files, what is missing is fetched or built.

    platform: of an index, by default this machine's.
    python: an interpreter of the locked version, by default found automatically.

    Raises:
        NoImage: it can't be read. UsageError, DamagedLock: the lock can't be read. NetworkError: the registry does not
            return the image.
    """
    context = replace(context, reporter=ReporterOf(progress=context.reporter.progress))
    return run_interruptible(_verify(reference, lock, platform or this_platform(), context, depth, python))


async def _verify(
    reference: str, lock: str, platform: Platform, context: Context, depth: Depth, python: Path | None
) -> ImageVerification:
    async with open_image(reference, platform, context) as image:
        config = dict(read_json(image.config, "application/json", where=image.name))
        words = (config.get("os"), config.get("architecture"))
        platform = next((each for each, names in OCI_PLATFORMS.items() if names == words), platform)
        locked = read_lock(find_lock(lock, Path()))
        result = ImageVerification(image.name, image.id, locked.name, platform.value)
        if platform not in locked.linux_platforms or OCI_PLATFORMS[platform] != words:
            named = comma_separated(locked.linux_platforms), "/".join(map(str, words))
            result.findings.append(ImageFinding(ImageDrift.PLATFORM, "", "", *named))
            return result
        options = replace(image_options(locked, [platform], python=python), parts=ImageParts.PACKAGES)
        subject = _subject_of(image, config, options)
        has_id = image.id in _known_ids(lock, subject, context)
        await _compare(subject, context, depth, result, has_id=has_id)
        return result


class _Subject(Struct, frozen=True):
    """An image for a platform of the lock.

    options: of the lock's image for this platform.
    below, system, above, code: its layers: of the base, of system packages, of the lock's packages, of the project's
    code.
    """

    image: FoundImage
    config: dict[str, Any]
    options: ImageOptions
    below: tuple[Layer, ...]
    system: tuple[Layer, ...]
    above: tuple[Layer, ...]
    code: tuple[Layer, ...]

    @property
    def lock(self) -> Lock:
        return self.options.lock

    @property
    def platform(self) -> Platform:
        return self.options.platforms[0]

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (*self.below, *self.system, *self.above, *self.code)

    @property
    def locked_id(self) -> str:
        """Its ID without the project's code."""
        if not self.code:
            return self.image.id
        count = len(self.code)
        rootfs = self.config["rootfs"] | {"diff_ids": self.config["rootfs"]["diff_ids"][:-count]}
        return digest_of(canonical(self.config | {"rootfs": rootfs, "history": self.config["history"][:-count]}))


def _subject_of(image: FoundImage, config: dict[str, Any], options: ImageOptions) -> _Subject:
    lock, platform = options.lock, options.platforms[0]
    layers = compared_of(image).layers
    if not all(is_digest(each.diff_id) and is_digest(each.blob.digest) for each in layers):
        raise NoImage(image.name, "a layer has no valid digest")
    titles = [each.created_by for each in layers]
    own = next((at for at, each in enumerate(titles) if each.startswith(OWN)), len(layers))
    start, end = own, len(layers)
    if lock.image.apt and titles[own : own + 1] == [OWN + system_title(lock.image.apt)]:
        start += 1
    last = OWN + ServicesSource(lock.image, "", has_pip(_resolution_of(lock, platform))).title
    if lock.image.has_code and last in titles:
        end = titles.index(last) + 1
    return _Subject(image, config, options, layers[:own], layers[own:start], layers[start:end], layers[end:])


def _resolution_of(lock: Lock, platform: Platform) -> Resolution:
    return next(each for each in lock.resolutions if each.target.platform is platform)


def _known_ids(name: str, subject: _Subject, context: Context) -> set[str]:
    """IDs that the lock records, or that this machine has built. name: of the lock, as the user wrote it."""
    lock, platform = subject.lock, subject.platform
    found = set[str]()
    if not lock.image.has_code:
        found.update(row.id for row in lock.images if row.platform is platform)
    # The project's code may not be here.
    with suppress(UsageError):
        for platforms, bytecode in product(((), (platform.value,)), (True, False)):
            cached = ImageRequest(name, context, platforms=platforms, bytecode=bytecode).cached()
            if cached is not None:
                found.update(identity for built, identity in cached.ids if built == platform.value)
    return found


async def _compare(
    subject: _Subject, context: Context, depth: Depth, result: ImageVerification, *, has_id: bool
) -> None:
    wrong: list[Layer] = []
    if depth is Depth.FILES:
        wrong = await _wrong_layers(subject, context, result)
    if has_id:
        result.compared += ["labels", "config", "base", "layers", "image ID"]
    async with AsyncExitStack() as stack:
        if not has_id or wrong:
            expected = await _expect(subject, context, depth, stack)
            if not has_id:
                _compare_documents(subject, expected, result)
            if depth is Depth.FILES:
                await _compare_files(subject, wrong, expected, context, result)
        elif depth is Depth.FILES:
            result.compared.append("files")


class _Expected(Struct):
    """What the lock gives.

    options: with the wheels of sources that the lock does not record, if they are known.
    base: None if it can't be read.
    built: None if the layers of packages can't be built; session: of these.
    failed: why something is None.
    """

    options: ImageOptions
    base: Base | None = None
    built: BuiltImage | None = None
    session: ImageSession | None = None
    failed: EnvspecError | None = None


async def _expect(subject: _Subject, context: Context, depth: Depth, stack: AsyncExitStack) -> _Expected:
    expected = _Expected(subject.options)
    context = with_mirrors_of(subject.lock, context)
    timeouts = context.timeouts
    if depth is Depth.DOCUMENTS:
        timeouts = replace(timeouts, connect_s=_QUICK_S, stall_s=_QUICK_S, attempts=1)
    clients = await stack.enter_async_context(Session(context, timeouts))
    manifests = ManifestCache(BlobStore(context.cache), clients.registry, context.connectivity, lambda: None)
    try:
        expected.options = await with_bases(subject.options, context)
        expected.base = await base_at(*pinned_base(expected.options.lock, subject.platform), manifests)
        if depth is Depth.DOCUMENTS:
            context = replace(context, connectivity=Connectivity.OFFLINE)
            # Those of sources that the lock does not record are known once they are built.
            if missing := [each for each in missing_wheels(subject.options, context.cache) if not lacks_wheel(each)]:
                raise OfflineMiss(f"{missing[0].name} {missing[0].version}")
        await _build(subject, expected, context, stack)
    except EnvspecError as error:
        expected.failed = error
    return expected


async def _build(subject: _Subject, expected: _Expected, context: Context, stack: AsyncExitStack) -> None:
    """The image with bytecode or the one without, whichever has more layers of the subject.

    Raises:
        EnvspecError: as an image's build. NoCompiler, CompilerFailed: and the one without bytecode is not the subject.
    """
    options = await completed(expected.options, context)
    found, most = {layer.diff_id for layer in subject.above}, -1
    unfit: NoCompiler | CompilerFailed | None = None
    for bytecode in Bytecode:
        session = await stack.enter_async_context(ImageSession(replace(options, bytecode=bytecode), context))
        try:
            [built] = await session.build()
        except (NoCompiler, CompilerFailed) as error:
            unfit = error
            continue
        layers = {layer.diff_id for layer in built.locked}
        if len(layers & found) > most:
            most = len(layers & found)
            expected.options, expected.built, expected.session = options, built, session
        if layers <= found:
            return
    if unfit is not None:
        expected.built = expected.session = None
        raise unfit


def _compare_documents(subject: _Subject, expected: _Expected, result: ImageVerification) -> None:
    built, base = expected.built, expected.base
    lock, identity, platform = expected.options.lock, expected.options.identity, subject.platform
    result.compared.append("labels")
    document: dict[str, Any] = {"config": {"Labels": own_labels(lock, identity, platform)}}
    has_id = False
    if base is not None:
        result.compared += ["config", "base"]
        system = [replace(each, created_by=title_of(each)) for each in subject.system]
        layers = (*system, *built.locked) if built else ()
        config = image_config(lock, identity, platform, base, layers, services_config(lock.image))
        document, has_id = json.loads(config), digest_of(config) == subject.locked_id
    record = _system_record(lock, platform, base)
    found = _compare_system(subject, record, result)
    if built is not None:
        result.compared.append("layers")
        # What the lock does not record is not compared, and a part of the ID.
        if record or not lock.image.apt:
            result.compared.append("image ID")
    elif expected.failed is not None:
        what = "image ID" if base else "config, base, image ID"
        result.not_compared[what] = expected.failed.message.removeprefix("offline, and ")
    for layer in subject.code:
        result.not_compared[f"layer `{title_of(layer)}`"] = "the project's code is not of the lock"
    if not has_id:
        found += _differences(subject, expected, document)
        # Texts of the history, or another form of the same JSON.
        if built is not None and not found:
            found.append(ImageFinding(ImageDrift.CONFIG_BYTES))
    result.findings += found


def _system_record(lock: Lock, platform: Platform, base: Base | None) -> str | None:
    """The digest of the layer of system packages on a base in the lock."""
    for each in lock.system:
        if each.platform is platform and each.apt == lock.image.apt and base and each.base == base.manifest:
            return each.diff_id
    return None


def _compare_system(subject: _Subject, record: str | None, result: ImageVerification) -> list[ImageFinding]:
    """Compare the layer of system packages with the lock's record of it: only a container can make it again."""
    if not subject.lock.image.apt:
        return []
    title = system_title(subject.lock.image.apt)
    if not subject.system:
        return [ImageFinding(ImageDrift.LAYER_MISSING, "", title)]
    if record is None:
        result.not_compared[f"layer `{title}`"] = "the lock does not record it: `envspec lock --image` does"
        return []
    found = subject.system[0].diff_id
    return [] if found == record else [ImageFinding(ImageDrift.LAYER, "", title, record, found)]


def _differences(subject: _Subject, expected: _Expected, document: dict[str, Any]) -> list[ImageFinding]:
    """How documents differ of which not all is equal."""
    built, base = expected.built, expected.base
    resolution = _resolution_of(expected.options.lock, subject.platform)
    found = list(compare_config(document, subject.config, whole=base is not None))
    if base is not None and [each.diff_id for each in base.layers] != [each.diff_id for each in subject.below]:
        found.append(ImageFinding(ImageDrift.BASE, expected=f"{base.name}@{base.digest}"))
    found += compare_packages(resolution, listed_packages(map(title_of, subject.above)))
    if unbuilt := [each for each in resolution.packages if lacks_wheel(each)]:
        found = [each for each in found if not _is_of_unbuilt(each, unbuilt)]
    if built is not None:
        found += compare_layers(built.locked, subject.above)
    return found


def _is_of_unbuilt(found: ImageFinding, unbuilt: Sequence[Package]) -> bool:
    """Whether a difference may only be that the wheels of sources are not known: the lock's identity includes them. Of
    commits and folders, neither file nor version is known.
    """
    unknown = {each.name for each in unbuilt if each.file.index in {GIT, LOCAL}}
    is_label = found.drift is ImageDrift.LABEL
    if is_label and (found.path == LABEL_LOCK or (unknown and found.path == LABEL_PACKAGES)):
        return True
    return found.drift is ImageDrift.VERSION and found.package in unknown


def _sha256(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


#: What is kept of layers that differ.
_FILES: Final = (Pattern(re.compile(r".+", re.DOTALL), _sha256, folders=True),)


async def _read(
    subject: _Subject, layers: Sequence[Layer], context: Context, patterns: Sequence[Pattern] = ()
) -> list[tuple[str, LayerContents]]:
    """Of each layer the digest of its tar, or why it can't be read, and the entries that the patterns keep."""
    moved = Session(context).bytes_moved(ImageStage.READING, sum(each.blob.size_bytes for each in layers))

    async def read(layer: Layer) -> tuple[str, LayerContents]:
        digest = hashlib.new(layer.diff_id.partition(":")[0])
        stream = subject.image.opened(layer.blob)
        try:
            contents = await read_streamed(stream, layer.blob, patterns, moved, digest.update)
        except (BadLayer, OSError, LookupError) as error:
            return str(error), LayerContents({}, [], [])
        return f"{digest.name}:{digest.hexdigest()}", contents

    return await gather_or_cancel(map(read, layers), context.jobs)


async def _wrong_layers(subject: _Subject, context: Context, result: ImageVerification) -> list[Layer]:
    """Read all layers: those whose content is not the one in the config."""
    wrong = []
    for layer, (digest, _) in zip(subject.layers, await _read(subject, subject.layers, context), strict=True):
        if digest != layer.diff_id:
            wrong.append(layer)
            title = title_of(layer)
            found = ImageFinding(ImageDrift.LAYER_BYTES, only_package(title), title, layer.diff_id, digest)
            result.findings.append(found)
    return wrong


async def _compare_files(
    subject: _Subject, wrong: Sequence[Layer], expected: _Expected, context: Context, result: ImageVerification
) -> None:
    """Compare the files of layers that are not the lock's with those of the lock's layers that are missing.

    Raises:
        EnvspecError: why the lock's image can't be built, if no difference is known.
    """
    built, session = expected.built, expected.session
    if built is None or session is None:
        if expected.failed is not None:
            if not result.findings:
                raise expected.failed
            result.not_compared["files"] = expected.failed.message
        return
    kept = {each.diff_id for each in subject.above} - {each.diff_id for each in wrong}
    absent = [each for each in built.locked if each.diff_id not in kept]
    kept &= {each.diff_id for each in built.locked}

    def read_absent() -> list[LayerContents]:
        contents = []
        for each in absent:
            contents.append(read_layer(session.open(each.blob).chunks(), each.blob.size_bytes, _FILES))
        return contents

    wanted = await session.with_wheels(lambda: run_in_thread(read_absent))
    others = [each for each in subject.above if each.diff_id not in kept]
    found = [contents for _, contents in await _read(subject, others, context, _FILES)]
    owners = await run_in_thread(OwnedPathCache(context.cache).owners, built.owning)
    removed = {path for each in found for path in (*each.removed, *each.emptied)}
    owner = partial(owner_of, owners=owners, names=_resolution_of(subject.lock, subject.platform).names)
    result.findings += compare_files(merged(wanted), merged(found), removed, owner)
    result.compared.append("files")
