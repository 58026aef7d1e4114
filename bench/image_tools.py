"""The ways of making an image that `bench.image` measures, and what they work with: wheels, an engine, a registry.

A new way is one entry of `TOOLS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

import tomlkit

from bench.harness import Command, NotHere, clean, proxies, run, uv
from envspec.context import Context
from envspec.errors import EnvspecError
from envspec.fetch.wheels import fetch_wheels
from envspec.lockfile.document import load
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Package
from tests.support.servers import docker_registry
from tests.support.waits import free_port

# --------------------------------------------------------------------------------------------------------- the stack

SPECS: Final = Path(__file__).parent / "images"
#: Small, pure and asked for by nothing else: the package that changes, before and after.
SMALL: Final = ("humanize==4.12.0", "humanize==4.12.1")
#: The biggest import of a stack: the first of these distributions that it has. -> module
IMPORTS: Final = {"torch": "torch", "statsmodels": "statsmodels.api", "pandas": "pandas"}


#: The project beside each lock: modules, and lines in each.
_MODULES: Final = 100
_LINES: Final = 200
_PYPROJECT: Final = """\
[project]
name = "trainer"
version = "1.0"
"""


def write_project(folder: Path) -> None:
    """A project with as much code as a real one has (1 MB), and its modules below `src`."""
    package = folder / "src" / "trainer"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PYPROJECT)
    for number in range(_MODULES):
        lines = [f"def function_{number}_{line}(x):\n    return x * {line} + {number}\n" for line in range(_LINES)]
        (package / f"module_{number}.py").write_text("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Locked:
    """A lock's folder, the text of its requirements with hashes, and its rows. Beside the folder is a project."""

    folder: Path
    requirements: str
    packages: tuple[Package, ...]

    @property
    def code(self) -> Path:
        """The folder of the project's modules."""
        return self.folder.parent / "src"

    def change_a_line(self, text: str) -> None:
        """Write the project anew, with this comment as one of its lines."""
        write_project(self.folder.parent)
        path = self.code / "trainer" / "module_7.py"
        path.write_text(f"# {text}\n{path.read_text()}")

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
            # The registry of the base; it is in no lock.
            mirrors = f'\n[registry.mirrors]\n"docker.io" = "{self.registry}"\n'
            (folder / "spec.toml").write_text(text + mirrors, encoding="utf-8")
            write_project(folder)
            self._run("lock", folder / "spec.toml", "--output", folder / "lock")
        document = load((folder / "lock" / LOCK_FILE).read_text(encoding="utf-8"), name)
        (resolution,) = document.resolutions
        (requirements,) = (folder / "lock").glob("requirements.*.txt")
        return Locked(folder / "lock", requirements.read_text(encoding="utf-8"), resolution.packages)

    def _fetch(self, locked: Locked) -> None:
        if all(path.exists() for path in locked.wheels_in(self.cache)):
            return
        context = Context(self._environ(), self.root, self.cache)
        try:
            asyncio.run(fetch_wheels(locked.packages, context))
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
        found = clean(os.environ, home=home) | {"ENVSPEC_CACHE_DIR": str(self.cache)}
        return found | proxies()


def variant(spec: str, small: str) -> str:
    """A spec with this version of the small package; without apt, services and compiler, which RUN would install."""
    document = tomlkit.parse(spec)
    for table in ("system", "services", "registry"):
        document.pop(table, None)
    document["image"]["compiler"] = "none"
    document["image"]["project"] = "editable"
    name = small.partition("==")[0]
    others = [str(row) for row in document["pip"]["dependencies"] if row.partition("==")[0] != name]
    document["pip"]["dependencies"] = [*others, small]
    return tomlkit.dumps(document)


def specs() -> Sequence[str]:
    return sorted(path.stem for path in SPECS.glob("*.toml"))


# --------------------------------------------------------------------------------------------------------- the engine

_STARTING_S: Final = 60.0
_STOPPING_S: Final = 30.0
#: Debian's own client has BuildKit; a newer one without buildx, which may precede it on PATH, does not.
_CLIENT: Final = "/usr/bin/docker"
_ADMIN: Final = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(slots=True)
class Engine:
    """dockerd with data, socket and containerd of its own, and without a network: containers use the namespace's."""

    folder: Path
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"unix://{self.folder / 'docker.sock'}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start_empty(self, environ: Mapping[str, str]) -> None:
        """Stop it, forget all images and caches, start it again.

        Raises:
            NotHere: not root, no dockerd, or it does not come up (with the end of its log).
        """
        self.remove()
        self.folder.mkdir(parents=True)
        if os.geteuid() != 0:
            raise NotHere("an engine of one's own needs root")
        dockerd = shutil.which("dockerd", path=f"{environ.get('PATH', '')}:{_ADMIN}")
        if dockerd is None or not Path(_CLIENT).exists():
            raise NotHere("dockerd and its client are not installed (Debian's package docker.io)")
        (self.folder / "daemon.json").write_text("{}")  # else /etc/docker/daemon.json counts
        files = {"config-file": "daemon.json", "data-root": "data", "exec-root": "run", "pidfile": "pid"}
        command = [
            dockerd,
            *(f"--{option}={self.folder / name}" for option, name in files.items()),
            f"--host={self.url}",
            # Containers use the namespace's own network, where registry and index are.
            *("--bridge=none", "--iptables=false", "--ip6tables=false"),
            *("--containerd-namespace=envspec-bench", "--containerd-plugins-namespace=envspec-bench-plugins"),
        ]
        path = {"PATH": f"{environ.get('PATH', '')}:{_ADMIN}"}
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**environ, **path}
            )
        self._wait(environ)

    def remove(self) -> None:
        """Stop it, and take away all that it had."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOPPING_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words: str | Path) -> list[str | Path]:
        """A command of its client."""
        return [_CLIENT, "--host", self.url, *words]

    def output(self, environ: Mapping[str, str], *words: str | Path) -> str:
        """Run a command of its client that must not fail; what it prints."""
        done = subprocess.run(
            [str(word) for word in self.command(*words)], env=dict(environ), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NotHere(f"docker {words[0]}: {done.stderr.strip()[-400:]}")
        return done.stdout.strip()

    def _wait(self, environ: Mapping[str, str]) -> None:
        until = time.monotonic() + _STARTING_S
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            try:
                self.output(environ, "version")
            except NotHere:
                time.sleep(0.1)
            else:
                return
        raise NotHere(f"dockerd does not come up: {(self.folder / 'log').read_text(errors='replace')[-400:]}")


# ------------------------------------------------------------------------------------------------------- the registry

#: `127.0.0.1 - - [..] "GET /v2/NAME/blobs/sha256:.. HTTP/1.1" 200 1234 "" "docker/.."`
_BLOB_READ: Final = re.compile(r'"GET /v2/\S+/(?:blobs|manifests)/\S+ HTTP/[\d.]+" 2\d\d (\d+)')
_ACCEPT: Final = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        *("oci.image.manifest.v1", "oci.image.index.v1"),
        *("docker.distribution.manifest.v2", "docker.distribution.manifest.list.v2"),
    )
)


@dataclass(frozen=True, slots=True)
class Base:
    """The base image, an OCI layout. name: repository and tag that it gets in the registry."""

    layout: Path
    name: str


@dataclass(slots=True)
class Registry:
    """Debian's docker-registry. The port stays the same over its lives: names of images hold it."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @classmethod
    def at(cls, folder: Path) -> Registry:
        """On a port that is free now.

        Raises:
            NotHere: docker-registry is not installed.
        """
        if docker_registry.PROGRAM is None:
            raise NotHere("docker-registry is not installed (Debian's package docker-registry)")
        return cls(folder, free_port())

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start_empty(self, base: Base) -> None:
        """Stop it, delete everything, start again with nothing but the base image."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._process = docker_registry.start(self.folder, self.port, {"log": {"level": "error"}})
        docker_registry.push_layout(self.host, base.layout, base.name)

    def stop(self) -> None:
        if self._process is not None:
            docker_registry.stop(self._process)
            self._process = None

    def stored_bytes(self) -> int:
        """All that it has, uploads under way too: what was sent to it since it was empty, and the base."""
        total = 0
        for path in (self.folder / "data").rglob("data"):
            with contextlib.suppress(FileNotFoundError):  # an upload has become a blob
                total += path.stat().st_size
        return total

    def read_bytes(self) -> int:
        """Bodies of the blobs and manifests that were read from it since it was empty."""
        return read_bytes((self.folder / "registry.log").read_text(errors="replace"))

    def manifest(self, repository: str, tag: str) -> dict[str, Any]:
        """The manifest of an image, of the first platform if there are several."""
        url = f"http://{self.host}/v2/{repository}/manifests/{tag}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(url, headers={"Accept": _ACCEPT}), timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        if "manifests" in found:
            return self.manifest(repository, found["manifests"][0]["digest"])
        return found


def read_bytes(log: str) -> int:
    """The bytes of blobs and manifests in an access log of the usual ("combined") form."""
    return sum(map(int, _BLOB_READ.findall(log)))


# ---------------------------------------------------------------------------------------------------- the Dockerfiles


class Installer(Enum):
    UV = "uv"
    PIP = "pip"


@dataclass(frozen=True, slots=True)
class Recipe:
    """installer: what fills the environment. options: of its install command."""

    installer: Installer
    options: tuple[str, ...] = ()


# `/mnt` is in every base: a mount point that had to be made would stay in the layer.
_HEAD: Final = """\
ARG BASE
FROM scratch AS tools
COPY {tool} /{tool}
COPY requirements.txt /requirements.txt

FROM ${{BASE}}
ARG {index}
ENV PATH="/opt/env/bin:$PATH"
RUN --mount=type=bind,from=tools,target=/mnt --mount=type=cache,target=/root/.cache \\
"""
_UV: Final = (
    _HEAD
    + """\
    export UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never \\
 && /mnt/uv venv --quiet --python python3.11 /opt/env \\
 && /mnt/uv pip install --quiet --python /opt/env/bin/python --no-deps --require-hashes {options} \
--requirement /mnt/requirements.txt
"""
)
_PIP: Final = (
    _HEAD
    + """\
    python3.11 -m venv --without-pip /opt/env \\
 && PIP_ROOT_USER_ACTION=ignore /opt/env/bin/python /mnt/pip install --quiet --disable-pip-version-check \
--no-deps --require-hashes {options} --requirement /mnt/requirements.txt
"""
)
_INDEX: Final = {Installer.UV: "UV_DEFAULT_INDEX", Installer.PIP: "PIP_INDEX_URL"}


def dockerfile(recipe: Recipe) -> str:
    """The Dockerfile."""
    template = _UV if recipe.installer is Installer.UV else _PIP
    filled = template.format(
        tool=recipe.installer.value, index=_INDEX[recipe.installer], options=" ".join(recipe.options)
    )
    filled = filled.replace("  ", " ") if not recipe.options else filled
    return f"{filled}COPY src /workspace/src\nENV PYTHONPATH=/workspace/src\n"


def write_context(recipe: Recipe, folder: Path, locked: Locked) -> Path:
    """The folder that is built: Dockerfile, requirements with hashes, code, and the tool as its wheel has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile(recipe))
    (folder / "requirements.txt").write_text(locked.requirements)
    shutil.copytree(locked.code, folder / "src", dirs_exist_ok=True)
    tool = folder / recipe.installer.value
    if not tool.exists():
        if recipe.installer is Installer.UV:
            shutil.copy2(uv(), tool)
        else:
            import pip

            shutil.copytree(Path(pip.__file__).parent, tool, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def build_arguments(recipe: Recipe, base: str, index: str) -> list[str]:
    """Build arguments: where base and wheels are."""
    return ["--build-arg", f"BASE={base}", "--build-arg", f"{_INDEX[recipe.installer]}={index}"]


# ---------------------------------------------------------------------------------------------------------- the tools

#: What of envspec's cache is not made from wheels: the wheels themselves, and pages of the index.
_OF_WHEELS: Final = ("archives", "index")


class Fresh(Enum):
    """What a build may use of the builds before it."""

    ALL = "all that the tool keeps"
    WHEELS = "the wheels that the tool keeps, and no layer"


@dataclass(frozen=True, slots=True)
class Order:
    """What is run. push: where it is a command of its own. environ: variables beside the place's."""

    build: Command
    push: Command | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tool works. folder: its own, emptied at the start of a round. base: with registry and tag.

    index: simple pages of the loopback index. registry: host and port.
    """

    folder: Path
    engine: Engine
    registry: str
    base: str
    index: str

    @property
    def environ(self) -> dict[str, str]:
        """Variables of every command: a home of the tool's own, and no proxy."""
        return clean(os.environ, home=self.folder)


_OURS: Final = Path(sys.executable).with_name("envspec")


@dataclass(frozen=True, slots=True)
class Direct:
    """envspec, by direct assembly.

    `open` empties the caches and pulls the base image if the tool wants it beforehand, or raises `NotHere`. `order` is
    how the image is made and brought into the registry, with the state brought to `fresh` before. `close` deletes all.
    note: how it works, and what its numbers cannot be compared in.
    """

    name: str
    options: tuple[str, ...]
    note: str

    def open(self, place: Place) -> None:
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.mkdir(parents=True)

    def order(self, place: Place, locked: Locked, image: str, fresh: Fresh) -> Order:
        cache = place.folder / "cache"
        if fresh is Fresh.WHEELS:
            for part in cache.iterdir():
                if part.name not in _OF_WHEELS:
                    shutil.rmtree(part)
        build: Command = [_OURS, "image", "build", locked.folder, *self.options, "--push", image]
        return Order(build, environ=self._environ(place))

    def run_of(self, place: Place, locked: Locked, engine: Engine, *words: str) -> Order:
        """A command in a new container of the image, which the engine has."""
        options = ("--gpus", "none", "--network", "none", *self.options)
        command: list[str | Path] = [_OURS, "run", *options, locked.folder, "--", *words]
        return Order(command, environ={**self._environ(place), "DOCKER_HOST": engine.url})

    def _environ(self, place: Place) -> dict[str, str]:
        return {
            "ENVSPEC_CACHE_DIR": str(place.folder / "cache"),
            "ENVSPEC_DEFAULT_INDEX": place.index,
            "ENVSPEC_REGISTRY_MIRRORS": f"docker.io={place.registry}",
        }

    def close(self, place: Place) -> None:
        shutil.rmtree(place.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Docker:
    """docker build with BuildKit, then docker push."""

    name: str
    recipe: Recipe
    note: str

    def open(self, place: Place) -> None:
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.mkdir(parents=True)
        place.engine.start_empty(place.environ)
        place.engine.output(place.environ, "pull", "--quiet", place.base)

    def order(self, place: Place, locked: Locked, image: str, fresh: Fresh) -> Order:
        context = write_context(self.recipe, place.folder / "context", locked)
        # Cache mounts outlive --no-cache.
        anew = ("--no-cache",) if fresh is Fresh.WHEELS else ()
        arguments = build_arguments(self.recipe, place.base, place.index)
        return Order(
            place.engine.command("build", "--network=host", "--quiet", *anew, *arguments, "--tag", image, context),
            place.engine.command("push", "--quiet", image),
            {"DOCKER_BUILDKIT": "1"},
        )

    def close(self, place: Place) -> None:
        place.engine.remove()
        shutil.rmtree(place.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Buildah:
    """buildah build, then buildah push, with a store of its own."""

    name: str
    recipe: Recipe
    compression: str
    note: str

    def open(self, place: Place) -> None:
        self.close(place)
        if shutil.which("buildah") is None:
            raise NotHere("buildah is not installed (Debian's package buildah)")
        place.folder.mkdir(parents=True)
        pulled = run(
            [*self._buildah(place), "pull", "--quiet", "--tls-verify=false", place.base],
            cwd=place.folder,
            env=place.environ,
            limit_s=120,
        )
        if not pulled.is_done:
            raise NotHere(f"buildah pull: {pulled.output}")

    def order(self, place: Place, locked: Locked, image: str, fresh: Fresh) -> Order:
        context = write_context(self.recipe, place.folder / "context", locked)
        anew = ("--no-cache",) if fresh is Fresh.WHEELS else ("--layers",)
        build = ("build", "--isolation=chroot", "--network=host", "--tls-verify=false", "--quiet", *anew)
        push = ("push", "--quiet", "--tls-verify=false", f"--compression-format={self.compression}", image)
        arguments = build_arguments(self.recipe, place.base, place.index)
        buildah = self._buildah(place)
        return Order([*buildah, *build, *arguments, "--tag", image, context], [*buildah, *push])

    def close(self, place: Place) -> None:
        if place.folder.exists() and shutil.which("buildah"):
            command = [*self._buildah(place), "rm", "--all"]
            run(command, cwd=place.folder, env=place.environ, limit_s=60)
        shutil.rmtree(place.folder, ignore_errors=True)

    def _buildah(self, place: Place) -> Command:
        store = place.folder / "store"
        return ["buildah", "--storage-driver=overlay", "--root", store / "root", "--runroot", store / "run"]


Tool = Direct | Docker | Buildah

DIRECT: Final = "envspec, no pyc"
DIRECT_PYC: Final = "envspec, pyc"
UV: Final = "docker + uv, no pyc"
UV_PYC: Final = "docker + uv, pyc"

_DOCKER: Final = "BuildKit of the engine, one RUN with a cache mount, then `docker push`"
TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        Direct(
            DIRECT,
            ("--no-compile-bytecode",),
            "`envspec image build --no-compile-bytecode --push`: one command makes and pushes",
        ),
        Direct(DIRECT_PYC, (), "`envspec image build --push`: pyc checked by the hash of its source"),
        Docker(UV, Recipe(Installer.UV), _DOCKER),
        Docker(
            UV_PYC, Recipe(Installer.UV, ("--compile-bytecode",)), f"{_DOCKER}; `uv pip install --compile-bytecode`"
        ),
        Docker("docker + pip, pyc", Recipe(Installer.PIP), f"{_DOCKER}; pip compiles by itself"),
        Buildah(
            "buildah + uv, no pyc",
            Recipe(Installer.UV),
            "gzip",
            "the same Dockerfile, `--isolation=chroot`, then `buildah push`, which packs on all cores",
        ),
        Buildah(
            "buildah + uv, zstd",
            Recipe(Installer.UV),
            "zstd",
            "as before, layers packed by zstd: Docker engines before 23 can't pull those",
        ),
    )
}

#: What would be measured and cannot be had. -> why
MISSING: Final = {
    "docker buildx, zstd or plain layers": "they are pushed by a BuildKit of its own, or by an engine with "
    "containerd's image store (Docker 24 and later); Debian 12 has neither (Debian 13 has docker-buildx 0.13). "
    "buildah pushes zstd here"
}
