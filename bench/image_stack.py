"""What is built: a spec, locked once as it is and once with another version of one small package, and its wheels."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import tomlkit

from bench.environment import clean
from bench.workshop import NotHere
from envspec.errors import EnvspecError
from envspec.fetch.types import Fetching, Network
from envspec.fetch.wheels import fetch_wheels
from envspec.io.http_types import Timeouts
from envspec.lock.document import load
from envspec.lock.head import LOCK_FILE
from envspec.models import Package

SPECS: Final = Path(__file__).parent / "images"
#: Small, pure and asked for by nothing else: the package that changes, before and after.
SMALL: Final = ("humanize==4.12.0", "humanize==4.12.1")
#: The biggest import of a stack: the first of these distributions that it has. -> module
IMPORTS: Final = {"torch": "torch", "statsmodels": "statsmodels.api", "pandas": "pandas"}


@dataclass(frozen=True, slots=True)
class Locked:
    """A lock's folder, the text of its requirements with hashes, and its rows."""

    folder: Path
    requirements: str
    packages: tuple[Package, ...]

    def wheels_in(self, cache: Path) -> list[Path]:
        """Where envspec's cache has the wheels, or would have them."""
        return [cache / "archives" / each.file.sha256 / each.file.filename for each in self.packages]


@dataclass(frozen=True, slots=True)
class ImageStack:
    """A stack as it is measured. module: its biggest import. wheels_bytes: of the first lock's."""

    name: str
    first: Locked
    changed: Locked
    module: str
    wheels_bytes: int


@dataclass(frozen=True, slots=True)
class Stock:
    """Where locks and wheels are kept between runs. cache: an envspec cache; what it lacks comes from the network.

    registry: its host, with the base image in it.
    """

    root: Path
    cache: Path
    registry: str

    def stack(self, spec: Path) -> ImageStack:
        """Lock a spec twice and fetch the wheels, as far as that was not done before.

        Raises:
            NotHere: envspec can't lock it, or wheels can't be fetched.
        """
        texts = [variant(spec.read_text(encoding="utf-8"), small) for small in SMALL]
        name = str(tomlkit.parse(texts[0])["env"]["name"])
        first, changed = (self._locked(name, text) for text in texts)
        for locked in (first, changed):
            self._fetch(locked)
        names = {package.name for package in first.packages}
        module = next((module for wanted, module in IMPORTS.items() if wanted in names), "json")
        size = sum(path.stat().st_size for path in first.wheels_in(self.cache))
        return ImageStack(name, first, changed, module, size)

    def gather(self, stack: ImageStack) -> Path:
        """A folder with the wheels of both locks and no others, by links."""
        folder = self.root / "wheels" / stack.name
        shutil.rmtree(folder, ignore_errors=True)
        for wheel in {*stack.first.wheels_in(self.cache), *stack.changed.wheels_in(self.cache)}:
            target = folder / wheel.parent.name / wheel.name
            target.parent.mkdir(parents=True)
            target.symlink_to(wheel.absolute())
        return folder

    def _locked(self, name: str, text: str) -> Locked:
        key = hashlib.sha256(text.encode()).hexdigest()[:12]
        folder = self.root / "locks" / f"{name}-{key}"
        if not (folder / "lock" / LOCK_FILE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            # Where the base is asked for; no lock holds it.
            mirrors = f'\n[registry.mirrors]\n"docker.io" = "{self.registry}"\n'
            (folder / "spec.toml").write_text(text + mirrors, encoding="utf-8")
            self._run("lock", folder / "spec.toml", "--output", folder / "lock")
        document = load((folder / "lock" / LOCK_FILE).read_text(encoding="utf-8"), name)
        (resolution,) = document.resolutions
        (requirements,) = (folder / "lock").glob("requirements.*.txt")
        return Locked(folder / "lock", requirements.read_text(encoding="utf-8"), resolution.packages)

    def _fetch(self, locked: Locked) -> None:
        if all(path.exists() for path in locked.wheels_in(self.cache)):
            return
        how = Fetching(self.cache, Timeouts(), Network.USE, 4, lambda _: None, lambda _: None)
        try:
            asyncio.run(fetch_wheels(locked.packages, how, self._environ(), lambda: datetime.now(timezone.utc)))
        except EnvspecError as fault:
            raise NotHere(f"wheels can't be fetched: {fault}") from fault

    def _run(self, *words: str | Path) -> None:
        command = [sys.executable, "-m", "envspec", *map(str, words)]
        done = subprocess.run(command, env=self._environ(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotHere(f"envspec {words[0]}: {done.stderr.strip()[-600:]}")

    def _environ(self) -> dict[str, str]:
        home = self.root / "home"
        home.mkdir(parents=True, exist_ok=True)
        found = clean(os.environ, home=home, proxy=None) | {"ENVSPEC_CACHE_DIR": str(self.cache)}
        # What is fetched before anything is measured comes by the machine's own way.
        return found | {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}


def variant(spec: str, small: str) -> str:
    """A spec with this version of the small package; without apt, services and compiler, which RUN would install."""
    document = tomlkit.parse(spec)
    for table in ("system", "services", "registry"):
        document.pop(table, None)
    document["image"]["compiler"] = "none"
    name = small.partition("==")[0]
    others = [str(row) for row in document["pip"]["dependencies"] if row.partition("==")[0] != name]
    document["pip"]["dependencies"] = [*others, small]
    return tomlkit.dumps(document)


def specs() -> Sequence[str]:
    return sorted(path.stem for path in SPECS.glob("*.toml"))
