"""What a lock is installed on top of: read from the layers of `[image] base`, or from the file of `[pip] on_top_of`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envspec.base_image.plan import custom_image
from envspec.context import Context
from envspec.errors import NetworkError, OfflineMiss, UsageError
from envspec.io.cache import BASE_CONTENTS, JsonCache
from envspec.io.tasks import run_interruptible
from envspec.models import BaseImage, PinnedDigest, Platform
from envspec.operations.lock.assemble import with_digests
from envspec.operations.lock.complete import unknown_digests
from envspec.operations.lock_state import Beneath, LockState, Upgrade, linux_platforms
from envspec.resolve.pypi.found import BadList, read_list
from envspec.resolve.types import FoundEnvironment
from envspec.spec import Spec
from envspec.spec.errors import RefusedValues
from envspec.spec.sections import BasePackages
from envspec.spec.targets import GivenPython
from envspec.structs import replace
from envspec.verifier.regular import read_regular

if TYPE_CHECKING:
    from envspec.operations.session import Session

_STAGE: Final = "reading the base image's packages"


def with_beneath(state: LockState) -> LockState:
    """The state with what the lock is installed on top of; its notes are reported.

    Raises:
        UsageError: the base has no Python, or another one than the spec. NetworkError: its layers can't be read.
        RefusedValues: the file of `[pip] on_top_of` lists no packages.
    """
    spec = state.spec
    if spec.image.packages is BasePackages.KEEP and spec.image.base:
        beneath = run_interruptible(_read_bases(state, spec.image.base))
    elif spec.pip.on_top_of:
        found = read_on_top_of(state.request.spec_path.parent, spec)
        check_python(found, spec)
        beneath = Beneath(dict.fromkeys(spec.env.platforms, found))
    else:
        return state
    notes: dict[str, None] = {}
    for found in beneath.found.values():
        notes |= dict.fromkeys(found.notes)
    for text in notes:
        state.context.reporter.warning(text)
    return replace(state, beneath=beneath)


def read_on_top_of(folder: Path, spec: Spec) -> FoundEnvironment:
    """The packages in the file of `[pip] on_top_of`. folder: the spec's.

    Raises:
        RefusedValues: it can't be read, or lists no packages.
    """
    path, name = ("pip", "on_top_of"), spec.pip.on_top_of or ""
    try:
        found = read_list(read_regular(folder / name), name)
    except BadList as error:
        hint = "write it there with `pip inspect > FILE`, which has the packages' requirements, or with `pip freeze`"
        raise RefusedValues((path, f"{name} lists no packages: {error}", hint)) from None
    except OSError as error:
        raise RefusedValues((path, f"{name} can't be read: {error.strerror}", "correct its path")) from None
    if any(package.metadata is None for package in found.packages.values()):
        text = (
            f"{name} does not have what its packages require: whether packages on top of them fit these requirements "
            "is not checked. `pip inspect` writes them"
        )
        found = replace(found, notes=(*found.notes, text))
    return found


async def _read_bases(state: LockState, base: str) -> Beneath:
    from envspec.operations.session import Session

    spec, context = state.spec, state.context
    image = custom_image(base, "", linux_platforms(spec), state.facts).image
    old = None
    if state.old is not None and state.request.upgrade is Upgrade.KEEP:
        old = state.old.base_image
    async with Session(context) as session:
        image, failure = await with_digests(image, old, context)
        if unknown := unknown_digests(image):
            why = failure.message if failure else unknown[0].note
            raise NetworkError(
                f'[image] packages = "keep": the digest of {image.name} is unknown ({why})',
                hint="lock where its registry can be reached, or add its digest to [image] base",
            )
        found = {}
        for pinned in image.digests:
            found[pinned.platform] = await _read_base(image, pinned, session, context)
    for each in found.values():
        check_python(each, spec)
    return Beneath(found, image)


async def _read_base(image: BaseImage, pinned: PinnedDigest, session: Session, context: Context) -> FoundEnvironment:
    from envspec.image.base import ManifestCache, base_at
    from envspec.image.base_contents import OpenBlob, read_base
    from envspec.image.layers.store import BlobStore
    from envspec.registry.pull import read_blob
    from envspec.registry.reference import parse
    from envspec.registry.types import Descriptor

    blobs = BlobStore(context.cache)

    def asking() -> None:
        session.bytes_moved(_STAGE, 0)

    base = await base_at(image, pinned, ManifestCache(blobs, session.registry, context.connectivity, asking))
    moved = session.bytes_moved(_STAGE, sum(layer.blob.size_bytes for layer in base.layers))

    async def opened(blob: Descriptor) -> OpenBlob:
        if blobs.has(blob):
            return lambda each: _stored(blobs.open(each).chunks())
        if context.is_offline:
            raise OfflineMiss(f"layer {blob.digest} of {image.name}")
        registry = await session.registry()
        return lambda each: read_blob(registry, parse(image.repository), each)

    return await read_base(base, JsonCache(context.cache / BASE_CONTENTS), opened, context.jobs, moved)


async def _stored(chunks: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    """A blob of the cache."""
    for chunk in chunks:
        yield chunk


def check_python(found: FoundEnvironment, spec: Spec) -> None:
    """Refuse another Python than the spec's, and a base of which it is unknown what wheels it loads.

    Raises:
        UsageError: the Python there has another version, or an unknown one; or the base's glibc is unknown.
    """
    if found.home and not (found.glibc or spec.image.glibc):
        raise UsageError(
            f"no glibc was found in {found.place}: which wheels it can load is unknown",
            hint='state it: [image] glibc = "2.39", as `docker run --rm IMAGE ldd --version` prints it',
        )
    wanted = spec.image.python or spec.env.exact_python or spec.env.python_series
    if not found.python and found.home and not spec.image.python:
        raise UsageError(
            f"the version of the Python of {found.place} is not in its program",
            hint='state it: [image] python = "3.12.3", as `docker run --rm IMAGE python3 --version` prints it',
        )
    if found.python and not f"{found.python}.".startswith(f"{wanted}."):
        key, python = "env.python", ".".join(found.python.split(".")[:2])
        if spec.image.python:
            key, python = "image.python", found.python
        raise UsageError(
            f"{found.place} has Python {found.python}, but {key} is {wanted}", hint=f'set {key} to "{python}"'
        )


def pythons_of(environments: Mapping[Platform, FoundEnvironment], spec: Spec) -> dict[Platform, GivenPython]:
    """The Python of each platform that is there before the lock. environments: see `Beneath`."""
    pythons: dict[Platform, GivenPython] = {}
    for platform, found in environments.items():
        version, glibc = spec.image.python or found.python, spec.image.glibc or found.glibc
        pythons[platform] = GivenPython(version, glibc, bool(found.home), found.place)
    return pythons
