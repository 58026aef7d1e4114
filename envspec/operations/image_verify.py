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
from envspec.image.config import (
    LABEL_BASE_DIGEST,
    LABEL_BASE_NAME,
    LABEL_LOCK,
    LABEL_PACKAGES,
    Base,
    canonical,
    image_config,
    own_labels,
    packages_sha256,
)
from envspec.image.layers.contents import BadLayer, LayerContents, Pattern, merged, read_layer
from envspec.image.layers.ownership import OwnedPathCache
from envspec.image.layers.store import BlobStore
from envspec.image.layers.types import Layer
from envspec.image.options import Bytecode, ImageOptions, ImageParts, ImageStage
from envspec.image.services import ServicesSource, has_pip, services_config, workdir_path
from envspec.image.sources.bytecode import CompilerFailed, NoCompiler
from envspec.image.sources.system import title_of as system_title
from envspec.image.verification import (
    OWN,
    ImageDrift,
    ImageFinding,
    ImageVerification,
    changed_by_code,
    compare_config,
    compare_files,
    compare_layers,
    compare_packages,
    labels_of,
    listed_packages,
    only_package,
    owner_of,
    title_of,
)
from envspec.io.tasks import gather_or_cancel, run_in_thread, run_interruptible
from envspec.lockfile.folder import find_lock, read_lock
from envspec.models import EDITABLE, GIT, LOCAL, ImageSettings, Lock, Package, Platform, Resolution
from envspec.operations.image import ImageSession, completed, with_bases, with_mirrors_of
from envspec.operations.image_cache import ImageRequest, image_options, missing_wheels
from envspec.operations.image_diff import compared_of
from envspec.operations.image_source import FoundImage, NoImage, open_image
from envspec.operations.lock_state import lacks_wheel
from envspec.operations.session import Session
from envspec.registry.reference import is_digest
from envspec.registry.types import OCI_PLATFORMS, Descriptor, digest_of, read_json
from envspec.spec.owner import adopted_source
from envspec.structs import replace

#: For a base's registry that can't be reached: the rest is compared without it.
_QUICK_S: Final = 5.0
#: Sources of a digest that is not in the lock of another tool, nor in envspec's facts.
_BY_TAG: Final = ("registry", "unresolved")


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
    return run_interruptible(_verify(reference, lock, platform, context, depth, python))


async def _verify(
    reference: str, lock: str, platform: Platform | None, context: Context, depth: Depth, python: Path | None
) -> ImageVerification:
    async with open_image(reference, platform or this_platform(), context) as image, AsyncExitStack() as stack:
        config = dict(read_json(image.config, "application/json", where=image.name))
        words = (config.get("os"), config.get("architecture"))
        stated = next((each for each, names in OCI_PLATFORMS.items() if names == words), None)
        platform = platform or image.platform or stated or this_platform()
        locked = read_lock(find_lock(lock, Path()))
        result = ImageVerification(image.name, image.id, locked.name, platform.value)
        if stated is not platform or platform not in locked.linux_platforms:
            wanted = [platform] if platform in locked.linux_platforms else locked.linux_platforms
            named = comma_separated(wanted), "/".join(map(str, words))
            result.findings.append(ImageFinding(ImageDrift.PLATFORM, "", "", *named))
            return result
        options = replace(image_options(locked, [platform], python=python), parts=ImageParts.PACKAGES)
        subject = _Subject(image, config, options, _layers_of(image), context, result)
        has_id = image.id in _known_ids(lock, subject)
        if depth is Depth.FILES:
            subject.wrong = await _wrong_layers(subject)
        if has_id:
            result.compared += ["labels", "config", "base", "layers", "image ID"]
        if not has_id or subject.wrong:
            await _expect(subject, depth, stack)
        if not has_id:
            _compare_documents(subject)
        if depth is Depth.FILES and (not has_id or subject.wrong):
            await _compare_files(subject)
        elif depth is Depth.FILES:
            result.compared.append("files")
        return result


class _Subject(Struct):
    """An image, and what the lock gives for its platform.

    options: of the lock's image; with the wheels of sources that the lock does not record, once they are known.
    layers: all of the image.
    wrong: those whose content is not the one in the config.
    base: None if it can't be read.
    built: None if the layers of packages can't be built; session: of these.
    failed: why something is None.
    stated: the identity of the lock that the image states, if the lock names its base by a tag alone: the digest is
        the one that the image states.
    """

    image: FoundImage
    config: dict[str, Any]
    options: ImageOptions
    layers: tuple[Layer, ...]
    context: Context
    result: ImageVerification
    wrong: tuple[Layer, ...] = ()
    base: Base | None = None
    built: BuiltImage | None = None
    session: ImageSession | None = None
    failed: EnvspecError | None = None
    stated: str = ""

    @property
    def lock(self) -> Lock:
        return self.options.lock

    @property
    def platform(self) -> Platform:
        return self.options.platforms[0]

    @property
    def resolution(self) -> Resolution:
        return next(each for each in self.lock.resolutions if each.target.platform is self.platform)


def _layers_of(image: FoundImage) -> tuple[Layer, ...]:
    layers = compared_of(image).layers
    if not all(is_digest(each.diff_id) and is_digest(each.blob.digest) for each in layers):
        raise NoImage(image.name, "a layer has no valid digest")
    return layers


def _known_ids(name: str, subject: _Subject) -> set[str]:
    """IDs that the lock records, or that this machine has built. name: of the lock, as the user wrote it."""
    lock, platform = subject.lock, subject.platform
    found = set[str]()
    # A record that a merge of two locks has left is of other packages.
    packages = packages_sha256(subject.resolution)
    if not lock.image.has_code and labels_of(subject.config).get(LABEL_PACKAGES, packages) == packages:
        found.update(row.id for row in lock.images if row.platform is platform)
    # The project's code may not be here.
    with suppress(UsageError):
        for platforms, bytecode in product(((), (platform.value,)), (True, False)):
            cached = ImageRequest(name, subject.context, platforms=platforms, bytecode=bytecode).cached()
            if cached is not None:
                found.update(identity for built, identity in cached.ids if built == platform.value)
    return found


def _take_stated_base(subject: _Subject) -> None:
    """Take the digest of the base from the image, for the lock of another tool whose settings name no digest: today's
    of this tag is another one.
    """
    lock, base = subject.lock, subject.lock.on(subject.platform).base_image
    if base is None or adopted_source(lock.directory) is None:
        return
    found = labels_of(subject.config)
    digest, identity = found.get(LABEL_BASE_DIGEST, ""), found.get(LABEL_LOCK, "")
    is_tag = any(row.platform is subject.platform and row.source in _BY_TAG for row in base.digests)
    if not is_tag or found.get(LABEL_BASE_NAME) != base.name or not is_digest(digest):
        return
    base = replace(base, digests=tuple(replace(row, digest=digest) for row in base.digests))
    others = tuple(replace(each, base_image=None) for each in lock.platform_cuda)
    lock = replace(lock.on(subject.platform), base_image=base, platform_cuda=others)
    subject.options = replace(subject.options, lock=lock, identity=identity)
    subject.stated = identity


async def _expect(subject: _Subject, depth: Depth, stack: AsyncExitStack) -> None:
    """Find the base, and build the layers of packages; by documents, only from what is in the cache."""
    context = with_mirrors_of(subject.lock, subject.context)
    if depth is Depth.DOCUMENTS:
        quick = replace(context.timeouts, connect_s=_QUICK_S, stall_s=_QUICK_S, attempts=1)
        context = replace(context, timeouts=quick)
    clients = await stack.enter_async_context(Session(context))
    manifests = ManifestCache(BlobStore(context.cache), clients.registry, context.connectivity, lambda: None)
    try:
        _take_stated_base(subject)
        subject.options = await with_bases(subject.options, context)
        subject.base = await base_at(*pinned_base(subject.lock, subject.platform), manifests)
        if depth is Depth.DOCUMENTS:
            context = replace(context, connectivity=Connectivity.OFFLINE)
            # Those of sources that the lock does not record are known once they are built.
            if missing := [each for each in missing_wheels(subject.options, context.cache) if not lacks_wheel(each)]:
                raise OfflineMiss(f"{missing[0].name} {missing[0].version}")
        await _build(subject, context, stack)
    except EnvspecError as error:
        subject.failed = error


async def _build(subject: _Subject, context: Context, stack: AsyncExitStack) -> None:
    """The image with bytecode or the one without, whichever has more layers of the subject.

    Raises:
        EnvspecError: as an image's build. NoCompiler, CompilerFailed: and the one without bytecode is not the subject.
    """
    options = await completed(subject.options, context)
    options = replace(options, identity=subject.stated or options.identity)
    found, most = {layer.diff_id for layer in subject.layers}, -1
    unfit: NoCompiler | CompilerFailed | None = None
    for bytecode in Bytecode:
        session = await stack.enter_async_context(ImageSession(replace(options, bytecode=bytecode), context))
        try:
            [built] = await session.build()
        except (NoCompiler, CompilerFailed) as error:
            unfit = error
            continue
        layers = {layer.diff_id for layer in built.locked}
        if layers <= found:
            unfit = None
        if len(layers & found) > most and unfit is None:
            most = len(layers & found)
            subject.options, subject.built, subject.session = options, built, session
        if layers <= found:
            return
    if unfit is not None:
        raise unfit


class _Parts(Struct, frozen=True):
    """Layers of an image. own: those of Python, packages and services. code: of the project, as many as it may have."""

    below: tuple[Layer, ...]
    system: tuple[Layer, ...]
    own: tuple[Layer, ...]
    code: tuple[Layer, ...]


def _parts_of(subject: _Subject) -> _Parts:
    layers, settings, base = subject.layers, subject.lock.image, subject.base
    titles = [each.created_by for each in layers]
    start = 0
    # The base may be an image of envspec's own.
    if base is not None and _ids(layers[: len(base.layers)]) == _ids(base.layers):
        start = len(base.layers)
    while start < len(layers) and not titles[start].startswith(OWN):
        start += 1
    own = start
    if settings.apt and titles[own : own + 1] == [OWN + system_title(settings.apt)]:
        own += 1
    end = code = len(layers)
    last = OWN + ServicesSource(settings, "", has_pip(subject.resolution)).title
    if settings.has_code and last in titles[own:]:
        end = titles.index(last, own) + 1
        code = end + _code_layers(settings)
    return _Parts(layers[:start], layers[start:own], layers[own:end] + layers[code:], layers[end:code])


def _code_layers(settings: ImageSettings) -> int:
    """How many layers the project's code has: its wheel, its files."""
    return bool(settings.project) + bool(settings.copy or settings.project == EDITABLE)


def _ids(layers: Iterable[Layer]) -> list[str]:
    return [each.diff_id for each in layers]


def _id_without(code: Sequence[Layer], subject: _Subject) -> str:
    """The image's ID without the project's code, if that is in its last layers."""
    if not code:
        return subject.image.id
    end, config = -len(code), subject.config
    rootfs = config["rootfs"] | {"diff_ids": config["rootfs"]["diff_ids"][:end]}
    return digest_of(canonical(config | {"rootfs": rootfs, "history": config["history"][:end]}))


def _compare_documents(subject: _Subject) -> None:
    built, base, result, parts = subject.built, subject.base, subject.result, _parts_of(subject)
    lock, identity, platform = subject.lock, subject.options.identity, subject.platform
    result.compared.append("labels")
    document: dict[str, Any] = {"config": {"Labels": own_labels(lock, identity, platform)}}
    system = _system_layers(subject, parts)
    expected = [*system, *built.locked] if built else system
    has_id = False
    if base is not None:
        result.compared += ["config", "base"]
        config = image_config(lock, identity, platform, base, expected, services_config(lock.image))
        document, has_id = json.loads(config), digest_of(config) == _id_without(parts.code, subject)
    if built is not None:
        result.compared.append("layers")
        # System packages that the lock does not record are a part of the ID.
        if not result.not_compared:
            result.compared.append("image ID")
    elif subject.failed is not None:
        what = "image ID" if base else "config, base, image ID"
        result.not_compared[what] = subject.failed.message.removeprefix("offline, and ")
    for layer in parts.code:
        result.not_compared[f"layer `{title_of(layer)}`"] = "the project's code is not of the lock"
    if subject.stated and base is not None:
        for what in (f"digest of {base.name}", f"label {LABEL_LOCK}"):
            result.not_compared[what] = "the lock names the base by its tag"
    if len(parts.code) < _code_layers(lock.image):
        result.findings.append(ImageFinding(ImageDrift.LAYER_MISSING, "", "the project's code"))
    if not has_id or built is None:
        result.findings += _differences(subject, parts, expected, document)


def _differences(
    subject: _Subject, parts: _Parts, expected: Sequence[Layer], document: dict[str, Any]
) -> list[ImageFinding]:
    """expected: the layers above the base, as far as they are known. document: the config, or its labels alone."""
    built, base, packages = subject.built, subject.base, subject.resolution.packages
    found = list(compare_config(document, subject.config, whole=base is not None))
    if base is not None and _ids(base.layers) != _ids(parts.below):
        found.append(ImageFinding(ImageDrift.BASE, expected=f"{base.name}@{base.digest}"))
    found += compare_packages(subject.resolution, listed_packages(map(title_of, parts.own)))
    if unbuilt := [each for each in packages if lacks_wheel(each)]:
        unknown = [each for each in found if _is_of_unbuilt(each, unbuilt)]
        found = [each for each in found if each not in unknown]
        for each in unknown:
            what = f"{each.drift.field} {each.path or each.package}"
            subject.result.not_compared[what] = "wheels of sources are not built"
    found += compare_layers(expected, (*parts.system, *parts.own) if built else parts.system)
    # Texts of the history, or another form of the same JSON.
    if built is not None and not found:
        found.append(ImageFinding(ImageDrift.CONFIG_BYTES))
    return found


def _system_layers(subject: _Subject, parts: _Parts) -> list[Layer]:
    """The layer of system packages that the lock records; the image's own without a record: only a container can make
    it again.
    """
    lock, base = subject.lock, subject.base
    if not lock.image.apt:
        return []
    title = system_title(lock.image.apt)
    for row in lock.system:
        if row.platform is subject.platform and row.apt == lock.image.apt and base and row.base == base.manifest:
            return [Layer(row.diff_id, Descriptor("", row.digest, row.size_bytes), title)]
    if not parts.system:
        return [Layer("", Descriptor("", "", 0), title)]
    subject.result.not_compared[f"layer `{title}`"] = "the lock does not record it: `envspec lock --image` does"
    return [replace(each, created_by=title) for each in parts.system]


def _is_of_unbuilt(found: ImageFinding, unbuilt: Sequence[Package]) -> bool:
    """Whether a difference may only be that the wheels of sources are not known: the lock's identity includes them. Of
    commits and folders, neither file nor version is known.
    """
    unknown = {each.name for each in unbuilt if each.file.index in {GIT, LOCAL}}
    unsure = {LABEL_LOCK, LABEL_PACKAGES} if unknown else {LABEL_LOCK}
    if found.drift is ImageDrift.VERSION:
        return found.package in unknown
    return found.drift is ImageDrift.LABEL and found.path in unsure


def _sha256(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


#: What is kept of layers that differ.
_FILES: Final = (Pattern(re.compile(r".+", re.DOTALL), _sha256, folders=True),)


async def _read(
    subject: _Subject, layers: Sequence[Layer], patterns: Sequence[Pattern] = _FILES
) -> list[tuple[str, LayerContents]]:
    """Of each layer the digest of its tar, or why it can't be read, and the entries that the patterns keep."""
    context = subject.context
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


async def _wrong_layers(subject: _Subject) -> tuple[Layer, ...]:
    """Read all layers: those whose content is not the one in the config."""
    wrong = []
    for layer, (digest, _) in zip(subject.layers, await _read(subject, subject.layers, ()), strict=True):
        if digest != layer.diff_id:
            wrong.append(layer)
            title = title_of(layer)
            found = ImageFinding(ImageDrift.LAYER_BYTES, only_package(title), title, layer.diff_id, digest)
            subject.result.findings.append(found)
    return tuple(wrong)


async def _compare_files(subject: _Subject) -> None:
    """Compare the files of layers that are not the lock's with those of the lock's layers that are missing.

    Raises:
        EnvspecError: why the lock's image can't be built, if no difference is known.
    """
    built, session, result = subject.built, subject.session, subject.result
    if subject.failed is not None and not result.findings:
        raise subject.failed
    if subject.failed is not None:
        result.not_compared["files"] = subject.failed.message
    if built is None or session is None:
        return
    parts = _parts_of(subject)
    kept = {*_ids(parts.own)} - {*_ids(subject.wrong)}
    absent = [each for each in built.locked if each.diff_id not in kept]
    kept &= {*_ids(built.locked)}

    def read_absent() -> list[LayerContents]:
        contents = []
        for each in absent:
            contents.append(read_layer(session.open(each.blob).chunks(), each.blob.size_bytes, _FILES))
        return contents

    wanted = await session.with_wheels(lambda: run_in_thread(read_absent))
    others = [each for each in parts.own if each.diff_id not in kept]
    found = [contents for _, contents in await _read(subject, others)]
    owners = await run_in_thread(OwnedPathCache(subject.context.cache).owners, built.owning)
    owner = partial(owner_of, owners=owners, names=subject.resolution.names)
    result.findings += compare_files(merged(wanted), merged(found), _removed(found), owner)
    code = [contents for _, contents in await _read(subject, parts.code)]
    changed, lower = changed_by_code(merged(code), owners, workdir_path(subject.lock.image.workdir)), {}
    if changed:
        lower = merged(contents for _, contents in await _read(subject, parts.own))
    before = {path: lower[path] for path in changed.keys() & lower.keys()}
    result.findings += compare_files(before, changed, _removed(code), owner)
    result.compared.append("files")


def _removed(layers: Iterable[LayerContents]) -> set[str]:
    return {path for each in layers for path in (*each.removed, *each.emptied)}
