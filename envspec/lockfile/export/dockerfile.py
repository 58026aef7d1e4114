"""Dockerfile: the environment by `docker build`, without envspec, from the files of the lock's folder.

What is fetched is checked: the base by digest, Python and micromamba by SHA-256, wheels and conda packages by the
hashes in the lock's own files. The image differs from that of `envspec image build`, for times are the build's own;
what is in site-packages is the same.

Its instructions are in `data/Dockerfile.jinja`. Each platform has stages of its own. The last line selects those of the
platform that is built, which needs BuildKit: another builder builds every stage.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import timezone
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from envspec.data import DATA as DATA_FILES
from envspec.data import read_template
from envspec.errors import UsageError
from envspec.facts import load_facts
from envspec.lockfile.document import canonical, identity
from envspec.lockfile.export.conda import explicit_name
from envspec.lockfile.export.requirements import requirements_name
from envspec.lockfile.export.types import ContainerConfig, Content, Exported, ExportRequest, File, is_project
from envspec.models import BaseImage, Lock, Platform, Python, Resolution, WheelFile
from envspec.registry.reference import parse
from envspec.structs import replace
from envspec.verifier.record import DATA

DOCKERFILE_NAME: Final = "Dockerfile"
_TEMPLATE: Final = "Dockerfile.jinja"
_SOURCES_NAME: Final = "apt-sources.sh"
#: Platform -> what Docker calls its architecture.
_ARCHITECTURES: Final = {Platform.LINUX_64: "amd64", Platform.LINUX_AARCH64: "arm64"}
#: Sources of Python that an image can be built with; for `spec`, whoever installs the lock brings it.
_IN_IMAGES: Final = frozenset({"standalone", "system", "base", "conda"})
_PREFIX: Final = "/opt/env"
_FILES: Final = "/tmp/envspec"  # noqa: S108 (inside a stage that is thrown away)
_APT_LEFTOVERS: Final = "/var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /etc/ssh/ssh_host_*"
# In double quotes builders take a backslash before these for an escape. Source: moby, shell lexer of dockerfiles.
_ESCAPED: Final = re.compile(r'["\\$]')
#: What a Dockerfile has of a lock.
_CARRIED: Final = frozenset(
    {Content.BASE, Content.INSTALLED, Content.SYSTEM, Content.DRIVER, Content.VARIABLES, Content.START}
)


class _Part(Struct, frozen=True):
    """One platform of the image, as the template reads it.

    lock: with the base image and the driver of this platform.
    apt: what is installed of the system, with versions once the system layer has been built.
    suffix: of the names of its stages.
    """

    lock: Lock
    resolution: Resolution
    base: BaseImage
    digest: str
    apt: tuple[str, ...]
    suffix: str

    @property
    def platform(self) -> Platform:
        return self.resolution.target.platform

    @property
    def base_name(self) -> str:
        """The base without its registry."""
        tag = f":{self.base.tag}" if self.base.tag else ""
        return f"{parse(self.base.repository).repository}{tag}@{self.digest}"

    @property
    def snapshot(self) -> str:
        """The time of apt's archives as snapshots name it; empty if nothing is installed, or no date counts."""
        time = self.lock.image.snapshot
        return f"{time.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}" if self.apt and time else ""

    @property
    def python(self) -> Python:
        return self.resolution.target.python

    @property
    def interpreter(self) -> str:
        """The image's Python, as a word of a shell."""
        below = self.resolution.on_top_of
        name = f"python{self.python.series}"
        return shlex.quote(f"{below.home}/{name}") if below else name

    @property
    def site_packages(self) -> str:
        return f"{_PREFIX}/lib/python{self.python.series}/site-packages"

    @property
    def built_wheels(self) -> list[WheelFile]:
        """The wheels of git and local projects: they are on no index."""
        return [package.file for package in self.resolution.packages if is_project(package)]

    @property
    def own_indexes(self) -> list[str]:
        """The hosts of the spec's own indexes from which packages are installed."""
        used = {package.file.index for package in self.resolution.packages}
        return sorted({urlsplit(each.url).netloc for each in self.lock.indexes if each.name in used})

    def pip_commands(self) -> Iterator[str]:
        """Commands of a shell that install the wheels."""
        if self.resolution.on_top_of:
            # The lock's versions fit a base's constraints already, which have no hashes.
            yield "export PIP_CONSTRAINT="
        if self.own_indexes:
            yield "export NETRC=/run/secrets/netrc"
        # Not a pip of the environment, but for a standalone Python's own. A folder or a wheel is run as pip by any
        # Python of its series. What lies beside it is not in the environment, and so not installed.
        pip, into_environment = '"$pip"', " --ignore-installed"
        if self.python.source == "standalone":
            pip, into_environment = "-m pip", ""
        else:
            yield f"pip={self._pip_outside()}"
        install = (
            f"PIP_ROOT_USER_ACTION=ignore {_PREFIX}/bin/python {pip} install --no-cache-dir "
            "--disable-pip-version-check --no-deps --require-hashes"
        )
        if self.built_wheels:
            install += f" --find-links {_FILES}/wheels"
        yield f"{install} --requirement {_FILES}/requirements.txt{into_environment}"
        for owner in sorted({each.owner for each in self.resolution.shared if each.owner}):
            yield from self._owner_commands(owner, install)

    def _pip_outside(self) -> str:
        """A word of a shell: the path of a pip outside of the environment."""
        if self.python.source == "conda":
            return f"$(ls {_PREFIX}/lib/python{self.python.series}*/ensurepip/_bundled/pip-*.whl)/pip"
        of_system = "$(ls /usr/share/python-wheels/pip-*.whl)/pip"
        if self.python.source == "system":
            return of_system
        of_base = f"python{self.python.series} -c 'import os, pip; print(os.path.dirname(pip.__file__))'"
        return f"$({of_base} || echo {of_system})"

    def _owner_commands(self, owner: str, install: str) -> Iterator[str]:
        """Put an owner's files where several packages have different ones: pip leaves those that it installs last.

        A second installation into the environment would put other files of the owner over those of theirs: it is
        installed beside it.
        """
        source, listed = f"{_FILES}/owner/{owner}", f"{_FILES}/{owner}.txt"
        yield f"sed -n '/^{owner}[ =]/,/--hash=/p' {_FILES}/requirements.txt > {listed}"
        yield f"{install} --target {source} --requirement {listed}"
        paths: list[str] = []
        for shared in self.resolution.shared:
            if shared.owner == owner:
                paths += shared.paths
        in_site, in_data = [], []
        for path in paths:
            if path.startswith(DATA):
                in_data.append(path.removeprefix(DATA))
            else:
                in_site.append(path)
        for target, inner in ((self.site_packages, in_site), (_PREFIX, in_data)):
            if inner:
                words = _lines(map(shlex.quote, sorted(inner)))
                yield f"cd {source} && cp --parents --preserve=mode --target-directory {target}{words}"


def files(lock: Lock, container: ContainerConfig) -> dict[str, str]:
    """The Dockerfile of the lock's folder, if the spec requires one; without it while the base's digest is unknown.

    Raises:
        UsageError: the lock has no base image, or an image with content that a Dockerfile can't have.
    """
    if lock.export is None or not lock.export.dockerfile:
        return {}
    if not lock.base_images:
        raise UsageError(f"[export] dockerfile: {lock.name} has no base image", hint="set [cuda] or [image] base")
    if without_image(lock):
        return {}
    lock = canonical(lock)
    return {DOCKERFILE_NAME: text(ExportRequest(lock, _on_linux(lock), container=container)).text}


def _on_linux(lock: Lock) -> list[Resolution]:
    return [each for each in lock.resolutions if each.target.platform.is_linux]


def text(request: ExportRequest) -> Exported:
    """The Dockerfile of a request's platforms.

    Raises:
        UsageError: the lock has no image, or one with content that a Dockerfile can't have.
    """
    lock = request.lock
    _refuse_other_contents(lock)
    parts = _parts(lock, request.resolutions)
    if not parts:
        why = without_image(lock) or "it has no image for this platform"
        raise UsageError(f"{lock.name} has no Dockerfile: {why}", hint="change the spec, and lock again")
    variables = dict(request.container.env) | dict(lock.image.env)
    shown = {}
    missing = request.missing(_CARRIED)
    for name, value in variables.items():
        if _has_line_feed(value):
            missing.append(f"the variable {name}, whose value has a line feed: set it when the container is started")
        else:
            shown[name] = value
    template = read_template(
        _TEMPLATE, word=quoted, lines=_lines, commands=_join_commands, written=written, exec_form=json.dumps
    )
    rendered = template.render(
        comments=[*request.header(missing), *_usage(lock, parts)],
        registry=parse(parts[0].base.repository).registry,
        parts=parts,
        architectures=_ARCHITECTURES,
        apt_sources=_apt_sources(),
        apt_leftovers=_APT_LEFTOVERS,
        explicit_name=explicit_name,
        requirements_name=requirements_name,
        tool=load_facts().tool,
        container=request.container,
        variables=shown,
        lock_id=identity(lock),
    )
    return Exported(rendered, missing)


def without_image(lock: Lock) -> str | None:
    """Why a lock has no image; None if it has one, and if it has no linux platform."""
    linux = _on_linux(lock)
    if not linux or _parts(lock, linux):
        return None
    if not lock.base_images:
        return "the lock names no base image: add [cuda], or [image] base"
    if not any(each.target.python.source in _IN_IMAGES for each in linux):
        return 'install Python yourself: set [env] python_source = "standalone", or use a base that has it'
    names = dict.fromkeys(f"{image.repository}:{image.tag}" for image in lock.base_images)
    return f"the digest of {' and '.join(names)} is not known"


def _refuse_other_contents(lock: Lock) -> None:
    image = lock.image
    contents = {"[image] copy": image.copy, "[image] project": image.project, "[services]": image.services}
    named = [name for name, value in contents.items() if value]
    if named:
        hint = "build the image by `envspec image build`"
        if lock.export is not None:
            hint += ", and remove `dockerfile` from [export]"
        elif lock.is_adopted and image.project:
            hint += ', or leave the project out: `project = "none"` in [tool.envspec.image]'
        raise UsageError(f"a Dockerfile of {lock.name} can't have {' and '.join(named)}", hint=hint)


def _parts(lock: Lock, resolutions: Iterable[Resolution]) -> list[_Part]:
    built = {layer.platform: layer.packages for layer in lock.system}
    found = []
    for resolution in resolutions:
        platform = resolution.target.platform
        own = lock.on(platform)
        if own.base_image is None or resolution.target.python.source not in _IN_IMAGES:
            continue
        digest = next((each.digest for each in own.base_image.digests if each.platform is platform), None)
        if digest:
            apt = built.get(platform, lock.image.apt)
            found.append(_Part(own, resolution, own.base_image, digest, apt, f"-{_ARCHITECTURES[platform]}"))
    return [replace(found[0], suffix="")] if len(found) == 1 else found


def _usage(lock: Lock, parts: Sequence[_Part]) -> Iterator[str]:
    """The comments that say how to build it."""
    yield "To build it, where DIR is the lock's folder:"
    yield f"  docker build --tag {lock.name} --file {DOCKERFILE_NAME} DIR"
    if len(parts) > 1:
        yield "It needs BuildKit; a file for one platform (`envspec export --platform`) does not."
    hosts: set[str] = set()
    for part in parts:
        hosts.update(part.own_indexes)
    if hosts:
        names = " or ".join(sorted(hosts))
        yield f"It needs BuildKit. If {names} needs a login, pass a netrc file, which no layer contains:"
        yield "  --secret id=netrc,src=$HOME/.netrc"
    yield "To use another registry, and another index for pip:"
    yield "  --build-arg REGISTRY=HOST --build-arg PIP_INDEX_URL=URL"
    if any(part.snapshot for part in parts):
        yield "To install system packages from another archive with snapshots:"
        yield "  --build-arg ENVSPEC_APT_SNAPSHOT='https://HOST/{archive}/{time}/'"
    if any(part.built_wheels for part in parts):
        yield "Wheels of git and local projects are on no index. They are read from this folder of DIR:"
        yield "  wheels/<sha256>/"
        yield "or from a server of the folder `archives` of the cache that they were built in:"
        yield "  --build-arg BUILT_WHEELS=URL"


def _apt_sources() -> File:
    """The script that gives apt the sources of a date, without its comments."""
    lines = (DATA_FILES / _SOURCES_NAME).read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.lstrip().startswith("#")]
    return File(f"{_FILES}/{_SOURCES_NAME}", 0o644, "\n".join(commands))


def _join_commands(commands: Iterable[str]) -> str:
    """Commands of a shell, each on a line of its own; the first that fails ends them."""
    return " \\\n && ".join(commands)


def written(file: File) -> str:
    """Commands of a shell that write a file.

    Each line is in quotes: without them, one that begins with `#` would be a comment of the Dockerfile.
    """
    words = []
    for line in file.text.removesuffix("\n").split("\n"):
        escaped = line.replace("'", "'\\''")
        words.append(f"'{escaped}'")
    commands = (
        f"mkdir -p {posixpath.dirname(file.path)}",
        f"printf '%s\\n'{_lines(words)} \\\n      >{file.path}",
        f"chmod {file.mode:04o} {file.path}",
    )
    return _join_commands(commands)


def quoted(text: str) -> str:
    """A word of ENV or LABEL that stands for itself, whatever is in it.

    Raises:
        ValueError: it holds a line feed, which no word of a Dockerfile can.
    """
    if _has_line_feed(text):
        raise ValueError(f"a Dockerfile can't contain a line feed: {text!r}")
    return '"' + _ESCAPED.sub(lambda found: f"\\{found[0]}", text) + '"'


def _has_line_feed(value: str) -> bool:
    return "\n" in value or "\r" in value


def _lines(words: Iterable[str]) -> str:
    """The words of a command, each on a line of its own."""
    return "".join(f" \\\n      {word}" for word in words)
