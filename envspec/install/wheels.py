"""The PyPI half of an environment: the locked files, hashes required, by uv, with nothing resolved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from envspec.effects.default_index import default_index_url
from envspec.effects.http_values import Patience
from envspec.fetch.values import Step
from envspec.install import uv
from envspec.install.order import Order, Stage, World
from envspec.install.place import Site
from envspec.install.record import FOLDER
from envspec.lock.requirements import requirements_text
from envspec.model import DEFAULT_INDEX, Resolution, WheelFile


async def install(order: Order, world: World, site: Site, patience: Patience) -> None:
    """Install the wheels into the Python of the site; uv's cache keeps what was fetched.

    Raises:
        NetworkError, NoSpace, UnfitMachine, UvFault: in words for the user.
    """
    packages = order.resolution.packages
    if not packages:
        return
    total = sum(package.file.size_bytes or 0 for package in packages)
    world.report(Step(Stage.WHEELS, 0, len(packages), 0, total))
    python = site.path / "bin" / "python"
    resolution = order.resolution
    built: Mapping[str, Path] = {}
    if any(package.built or not package.file.filename.endswith(".whl") for package in packages):
        # Not by uv while it installs: there, what a build requires would come from wherever uv finds it.
        resolution, built = await world.built(order, python)
    lock = replace(order.lock, resolutions=(with_built(resolution),))
    requirements = _write(site.path / FOLDER / "requirements.txt", requirements_text(lock, order.platform))
    words = [
        *("pip", "install", "--python", str(python)),
        *("--no-deps", "--require-hashes", "--no-build", "--requirements", str(requirements)),
        # A conda Python may be marked as managed by something else, which here it is.
        "--break-system-packages",
    ]
    for path in built.values():
        words += ["--find-links", str(path.parent)]
    variables = uv.environ(world, patience, order.network, order.jobs)
    # In the environment and not among the words: the address may hold a password.
    variables["UV_DEFAULT_INDEX"] = default_index_url(world.environ)
    for attempt in count(1):
        ended = await uv.ask(words, variables, site)
        if ended.status == 0:
            break
        if attempt >= patience.attempts or not uv.is_passing(ended.stderr):
            raise uv.fault(ended)
        fault, pause = uv.fault(ended), patience.backoff_s * 2 ** (attempt - 1)
        world.warn(f"{fault.message}; trying again in {pause:.1f} s")
        await asyncio.sleep(pause)
    requirements.unlink()


def with_built(resolution: Resolution) -> Resolution:
    """The same packages, as if the wheels that were built of sources had been published as `name==version`."""
    packages = tuple(
        replace(each, file=WheelFile(DEFAULT_INDEX, each.built.filename, each.built.sha256, each.built.size_bytes))
        if each.built
        else each
        for each in resolution.packages
    )
    return replace(resolution, packages=packages)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
