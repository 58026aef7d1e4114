"""The layer of the system's own packages: made once in a container of the base, kept in the cache, then only read.

Cache: `system-layers/<key of the order>/<key of the source>/` with the contents, the entries and, written last,
`layer.json`, which makes it known.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Final

from envspec.effects.files import place
from envspec.effects.held import hold_file
from envspec.effects.surroundings import ca_bundle, is_loopback
from envspec.errors import EnvspecError, UsageError
from envspec.image.layer import Layer
from envspec.image.system_changes import SystemSource, Taken, file_differences, read_list, take, title_of, write_list
from envspec.image.system_container import Builder, Job, Plain, choose, run_job
from envspec.image.system_script import MIRROR, Wish, form, installed, package_differences, work_files
from envspec.image.system_streams import Outputs
from envspec.model import Platform, SystemLayer
from envspec.registry.reference import endpoint, parse

_KNOWN: Final = "layer.json"
_WAIT_S: Final = 0.2
_MOST_TOLD: Final = 20


class Kept(Enum):
    """What to do with a layer that the cache has."""

    USE = "use"
    MAKE_ANEW = "make anew"


@dataclass(frozen=True, slots=True)
class SystemOrder:
    """A system layer that is wanted.

    base: `docker.io/nvidia/cuda@sha256:...`, what is pulled. base_digest: of that platform's own manifest. apt: names,
    sorted. snapshot: moment of the archive. locked: what the lock knows of the layer; one that differs is refused.
    mirrors: `[registry.mirrors]`.
    """

    platform: Platform
    base: str
    base_digest: str
    apt: tuple[str, ...]
    snapshot: datetime | None = None
    locked: SystemLayer | None = None
    mirrors: tuple[tuple[str, str], ...] = ()
    builder: Builder = Builder.AUTO
    kept: Kept = Kept.USE

    @property
    def key(self) -> str:
        """SHA-256 over all that decides the layer but the state of the archive."""
        moment = self.snapshot.isoformat() if self.snapshot else None
        parts = [form(), self.base_digest, self.platform.value, list(self.apt), moment]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class World:
    """The machine around it.

    cache: envspec's own folder. make_layer: makes, or finds, the layer of a source. told: every line of the
    installation. warn: what the user should know.
    """

    environ: Mapping[str, str]
    cache: Path
    make_layer: Callable[[SystemSource], Layer]
    told: Callable[[str], None]
    warn: Callable[[str], None]


class SystemDiffers(EnvspecError):
    """A system layer came out otherwise than the lock says."""

    exit_code = 8


def find_system_layer(order: SystemOrder, cache: Path) -> tuple[SystemLayer, SystemSource] | None:
    """The layer in the cache; with `order.locked`, the one that the lock means and no other."""
    folder = _folder(order, cache)
    found = [each for each in (_read(path, order.apt) for path in sorted(folder.glob(f"*/{_KNOWN}"))) if each]
    if order.locked is not None:
        found = [each for each in found if each[0].diff_id == order.locked.diff_id]
    return max(found, key=lambda each: (each[1].folder / _KNOWN).stat().st_mtime_ns, default=None)


async def make_system_layer(order: SystemOrder, world: World) -> tuple[SystemLayer, SystemSource]:
    """The layer out of the cache; where it is not there, made in a container of the base.

    Raises:
        NoEngine: it has to be made, and there is neither a container engine nor buildah.
        InstallFailed, ArchiveSilent: apt could not do it. SystemDiffers: it is not what the lock says.
        UsageError: there is nothing to install; the base's name can't be read.
    """
    if not order.apt:
        raise UsageError("a system layer without packages", hint="name some by [system] apt")
    if order.kept is Kept.USE and (found := find_system_layer(order, world.cache)):
        return found
    folder = _folder(order, world.cache)
    folder.mkdir(parents=True, exist_ok=True)
    with await _alone(folder):
        if order.kept is Kept.USE and (found := find_system_layer(order, world.cache)):
            return found
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as made:
            beside = Path(made, "layer")
            taken = await _install(order, world, beside)
            source = _keep(order, taken, beside, folder)
    return await asyncio.to_thread(_record, order, taken, source, world)


def _job(order: SystemOrder, world: World) -> Job:
    wish = Wish(
        order.apt, order.snapshot, order.locked.packages if order.locked else (), world.environ.get(MIRROR) or None
    )
    where = endpoint(parse(order.base), dict(order.mirrors))
    host = where.base.partition("://")[2].partition("/")[0]
    digest = order.base.rpartition("@")[2]
    return Job(
        base=f"{host}/{where.repository}@{digest}",
        platform=order.platform,
        plain=Plain.HTTP if where.is_plain or is_loopback(host.rpartition(":")[0]) else Plain.TLS,
        name=f"envspec-system-{order.key[:16]}",
        files=work_files(wish, world.environ, certificates_of(world.environ)),
    )


async def _install(order: SystemOrder, world: World, folder: Path) -> Taken:
    work = await asyncio.to_thread(choose, order.builder, _job(order, world), world.environ)
    taken: list[Taken] = []

    def taking(outputs: Outputs) -> None:
        folder.mkdir()
        taken.append(take(outputs, folder, world.warn))

    await run_job(work, world.told, taking)
    return taken[0]


def _keep(order: SystemOrder, taken: Taken, made: Path, folder: Path) -> SystemSource:
    """What was made, at the place of its own content: another run's of the same content is as good."""
    key = write_list(made, taken.changes, title_of(order.apt))
    kept = folder / key
    if not (kept / _KNOWN).exists():
        if kept.exists():
            shutil.rmtree(kept)
        made.rename(kept)
    return SystemSource(kept, key, order.apt)


def _record(order: SystemOrder, taken: Taken, source: SystemSource, world: World) -> tuple[SystemLayer, SystemSource]:
    layer = world.make_layer(source)
    packages = installed(taken.before, taken.after)
    found = SystemLayer(
        order.platform,
        order.base_digest,
        order.apt,
        packages,
        layer.diff_id,
        layer.blob.digest,
        layer.blob.size_bytes,
    )
    place(source.folder / _KNOWN, json.dumps(asdict(found) | {"platform": found.platform.value}).encode())
    if order.locked is not None and order.locked.diff_id != found.diff_id:
        raise _difference(order, order.locked, found, source, world.cache)
    return found, source


def _difference(
    order: SystemOrder, locked: SystemLayer, found: SystemLayer, source: SystemSource, cache: Path
) -> SystemDiffers:
    """What of the layer is not as the lock has it: packages, else files where the cache has the one that was locked."""
    told = package_differences(locked.packages, found.packages)
    hint = "the archive has moved on: `envspec lock --upgrade` takes what it has now, [system] snapshot holds it still"
    if not told:
        hint = "the same packages gave other files: report this with the names of the files"
        meant = find_system_layer(order, cache)
        told = file_differences(read_list(meant[1].folder), read_list(source.folder)) if meant else ()
        if not meant:
            hint += "; the cache of who made the lock has the other list (system-layers/*/*/entries.json)"
    rows = [f"  {line}" for line in told[:_MOST_TOLD]]
    rows += [f"  and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    return SystemDiffers(
        "\n".join(
            [
                f"the system layer for {order.platform.value} is {found.diff_id}, and the lock says {locked.diff_id}",
                *rows,
            ]
        ),
        hint=hint,
    )


def _folder(order: SystemOrder, cache: Path) -> Path:
    return cache / "system-layers" / order.key


def _read(path: Path, apt: tuple[str, ...]) -> tuple[SystemLayer, SystemSource] | None:
    """A kept layer, if it can be read."""
    try:
        row = json.loads(path.read_bytes())
        row = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        layer = SystemLayer(**{**row, "platform": Platform(row["platform"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return layer, SystemSource(path.parent, path.parent.name, apt)


def certificates_of(environ: Mapping[str, str]) -> bytes | None:
    """The CA bundle that this machine's programs are told to trust; of a folder, all that is in it."""
    bundle = ca_bundle(environ)
    if bundle is None:
        return None
    if bundle.is_file():
        return bundle.read_bytes()
    return b"\n".join(path.read_bytes() for path in sorted(bundle.glob("*.pem"))) or None


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


async def _alone(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Holds the order against other runs, which would use the same container's name; waits for its turn."""
    return _held(await hold_file(folder / ".lock", _WAIT_S))
