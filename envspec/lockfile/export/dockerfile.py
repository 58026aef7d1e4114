"""Dockerfile: the environment by `docker build` alone, with BuildKit, or, without code and logins, with the builder
before it.

What is fetched is checked: the base by digest, Python and micromamba by SHA-256, wheels and conda packages by the
hashes in the lock's own files. The image differs from that of `envspec image build`, for times are the build's own;
what is in site-packages is the same.

Sources: Dockerfile reference of Docker 28; moby 20.10's builder, which knows neither heredocs nor `ADD --checksum` and
builds every stage, also those of other platforms: those contain files and run nothing.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import Final
from urllib.parse import urlsplit

from envspec.data import DATA as DATA_FILES
from envspec.facts import load_facts
from envspec.lockfile.document import canonical, identity
from envspec.lockfile.export.conda import explicit_name
from envspec.lockfile.export.requirements import requirements_name
from envspec.models import (
    EDITABLE,
    GIT,
    LOCAL,
    BaseImage,
    Driver,
    Lock,
    Platform,
    Python,
    Resolution,
    WheelFile,
)
from envspec.registry.reference import parse
from envspec.spec.document import in_project, project_of
from envspec.verifier.record import DATA

DOCKERFILE_NAME: Final = "Dockerfile"
#: Gives apt the sources of a date.
_SOURCES_NAME: Final = "apt-sources.sh"
#: The names of the files here.
NAMES: Final = rf"{DOCKERFILE_NAME}|{re.escape(_SOURCES_NAME)}"
#: A mirror with snapshots: also the variable of `envspec image build`.
_SNAPSHOTS: Final = "ENVSPEC_APT_SNAPSHOT"
#: The environment's folder in every image.
_PREFIX: Final = "/opt/env"
#: Platform -> what Docker calls its architecture.
_ARCHITECTURES: Final = {Platform.LINUX_64: "amd64", Platform.LINUX_AARCH64: "arm64"}

#: Where the wheels of git and local projects are: a URL, or a folder beside the Dockerfile.
_BUILT_WHEELS: Final = "BUILT_WHEELS"
_BUILT_FOLDER: Final = "wheels"

#: Sources of Python that an image can be built with; for `spec`, whoever installs the lock brings it.
_IN_IMAGES: Final = frozenset({"standalone", "system", "base", "conda"})
_FILES: Final = "/tmp/envspec"  # noqa: S108 (inside a stage that is thrown away)
_INSTALL: Final = "install --no-cache-dir --disable-pip-version-check"
#: The build context of the project's folder.
_CODE: Final = "code"
# pip's wheel as Debian and Ubuntu package it, for programs that bring pip into environments.
_SYSTEM_PIP: Final = "python3-pip-whl"
_NS: Final = 1_000_000_000
# In double quotes both builders take a backslash before these for an escape. Source: moby, shell lexer of dockerfiles.
_ESCAPED: Final = re.compile(r'["\\$]')
_INDENT: Final = "    "
#: A netrc file that no layer contains; without it, the build sends no login.
_LOGINS: Final = "--mount=type=secret,id=netrc"


@dataclass(frozen=True, slots=True)
class Health:
    """A health check. test: the command. Times in nanoseconds, as engines have them."""

    test: tuple[str, ...]
    interval_ns: int
    timeout_ns: int
    start_ns: int
    retries: int


@dataclass(frozen=True, slots=True)
class File:
    """A text file of the image. path: absolute."""

    path: str
    mode: int
    text: str


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """How a container of the image starts; by default, as one of the base does.

    user: `uid:gid`. name, home: of that user, for the system's list of users. folders: (path, mode) of those that are
    the user's, or that everybody may write to if there is none. path_file: gets the image's PATH. ports: `8888/tcp`.
    """

    entrypoint: tuple[str, ...] = ()
    user: str = ""
    name: str = ""
    home: str = ""
    ports: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    health: Health | None = None
    folders: tuple[tuple[str, int], ...] = ()
    files: tuple[File, ...] = ()
    path_file: str = ""


#: A container starts as one of the base does.
DEFAULT: Final = ContainerConfig()


@dataclass(frozen=True, slots=True)
class _Part:
    """One platform of the image. base, digest: its base image. apt: what the system layer installs there."""

    resolution: Resolution
    base: BaseImage
    digest: str
    driver: Driver | None
    apt: tuple[str, ...]

    @property
    def platform(self) -> Platform:
        return self.resolution.target.platform

    @property
    def architecture(self) -> str:
        return _ARCHITECTURES[self.platform]

    @property
    def python(self) -> Python:
        return self.resolution.target.python


def files(lock: Lock, container: ContainerConfig) -> dict[str, str]:
    """The Dockerfile of a lock's linux platforms, with the script that it needs if apt's archives have a date; nothing
    if `without_dockerfile` says why there is none.

    container: how a container of the image starts.
    """
    lock = canonical(lock)
    parts = _parts(lock)
    if not parts:
        return {}
    lines = [
        *_header(lock, parts),
        f"ARG REGISTRY={parse(parts[0].base.repository).registry}",
        *(["ARG ARCHITECTURE=${TARGETARCH:-amd64}"] if len(parts) > 1 else []),
        "",
        *_code_stage(lock),
        *_base_stages(parts),
        *_system_stage(lock, parts, container),
        *_files_stages(parts),
        *_environment_stage(parts, with_logins=bool(_own_indexes(lock, parts))),
        *_project_stage(lock, parts),
        *_image_stage(lock, parts, container),
    ]
    found = {DOCKERFILE_NAME: "\n".join(lines) + "\n"}
    if lock.image.snapshot:
        found[_SOURCES_NAME] = (DATA_FILES / _SOURCES_NAME).read_text(encoding="utf-8")
    return found


def without_dockerfile(lock: Lock) -> str | None:
    """Why a lock has no Dockerfile; None if it has one, and if it has no linux platform."""
    linux = [resolution for resolution in lock.resolutions if resolution.target.platform.is_linux]
    if not linux or _parts(lock):
        return None
    if not lock.base_images:
        return "the lock names no base image: add [cuda], or [image] base"
    if not any(resolution.target.python.source in _IN_IMAGES for resolution in linux):
        return 'install Python yourself: set [env] python_source = "standalone", or use a base that has it'
    names = dict.fromkeys(f"{image.repository}:{image.tag}" for image in lock.base_images)
    return f"the digest of {' and '.join(names)} is not known"


def _parts(lock: Lock) -> list[_Part]:
    pinned = {each.platform: (image, each.digest) for image in lock.base_images for each in image.digests}
    # Every package with its version, once the system layer has been built.
    built = {layer.platform: layer.packages for layer in lock.system}
    return [
        _Part(resolution, image, digest, lock.on(platform).driver, built.get(platform, lock.image.apt))
        for resolution in lock.resolutions
        if (platform := resolution.target.platform) in pinned and resolution.target.python.source in _IN_IMAGES
        for image, digest in [pinned[platform]]
        if digest
    ]


def _header(lock: Lock, parts: Sequence[_Part]) -> Iterator[str]:
    platforms = " and ".join(part.platform.value for part in parts)
    yield f"# {lock.name} for {platforms}: written by `envspec lock`. Edit the spec, not this file."
    has_code = lock.image.has_code
    folder = (project_of(lock.spec) or ".") if lock.spec else "FOLDER"
    context = f" --build-context {_CODE}={shlex.quote(folder)}" if has_code else ""
    yield "# To build it, in this folder:"
    yield f"#   docker build --tag {lock.name}{context} ."
    if has_code:
        yield "# It needs BuildKit: the last layers are of the project's folder, without what its .dockerignore lists."
        if lock.image.project:
            yield "# pip builds the project by whatever build backend the index has on that day."
    if names := _own_indexes(lock, parts):
        yield f"# It needs BuildKit. If {' or '.join(names)} needs a login, pass a netrc file, which no layer contains:"
        yield f"#   docker build --tag {lock.name}{context} --secret id=netrc,src=$HOME/.netrc ."
    if len(parts) > 1 and not has_code and not names:
        yield "# Without BuildKit, it is built for amd64; for arm64:"
        yield f"#   docker build --tag {lock.name} --build-arg ARCHITECTURE=arm64 ."
    yield "# To use another registry, and another index for pip:"
    yield "#   --build-arg REGISTRY=HOST --build-arg PIP_INDEX_URL=URL"
    if lock.image.snapshot:
        yield "# To install system packages from another archive with snapshots:"
        yield f"#   --build-arg {_SNAPSHOTS}='https://HOST/{{archive}}/{{time}}/'"
    if any(map(_built_in, parts)):
        yield "# Wheels of git and local projects are on no index. They are read from this folder beside this file:"
        yield f"#   {_BUILT_FOLDER}/<sha256>/"
        yield "# or from a server of the folder `archives` of the cache that they were built in:"
        yield f"#   --build-arg {_BUILT_WHEELS}=URL"
    yield ""


def _own_indexes(lock: Lock, parts: Iterable[_Part]) -> list[str]:
    """The hosts of the spec's own indexes from which packages are installed."""
    used = {package.file.index for part in parts for package in part.resolution.packages}
    return sorted({urlsplit(each.url).netloc for each in lock.indexes if each.name in used})


def _code_stage(lock: Lock) -> Iterator[str]:
    if lock.image.has_code:
        yield f"# Without --build-context {_CODE}=FOLDER, which replaces it, nothing can be copied from it."
        yield f"FROM scratch AS {_CODE}"
        yield ""


def _base_stages(parts: Sequence[_Part]) -> Iterator[str]:
    if len(parts) == 1:
        # Named, so that a Mac's engine does not put this platform's packages on a base for its own.
        yield f"FROM --platform=linux/{parts[0].architecture} {_base_name(parts[0])} AS base"
    elif len({part.digest for part in parts}) == 1:
        yield f"FROM {_base_name(parts[0])} AS base"
    else:
        for part in parts:
            yield f"FROM {_base_name(part)} AS base-{part.architecture}"
            if part.driver and _driver_of(parts) is None:
                yield _pairs("ENV", {"NVIDIA_REQUIRE_CUDA": _required(part.driver)})
        yield "FROM base-${ARCHITECTURE} AS base"
    yield ""


def _base_name(part: _Part) -> str:
    tag = f":{part.base.tag}" if part.base.tag else ""
    return f"${{REGISTRY}}/{parse(part.base.repository).repository}{tag}@{part.digest}"


def _driver_of(parts: Sequence[_Part]) -> Driver | None:
    """The driver that all platforms need; None if they differ."""
    first = parts[0].driver
    return first if all(part.driver and first and part.driver.minimum == first.minimum for part in parts) else None


def _required(driver: Driver) -> str:
    return quoted(f"driver>={driver.minimum}")


def _system_stage(lock: Lock, parts: Sequence[_Part], container: ContainerConfig) -> Iterator[str]:
    yield "FROM base AS system"
    if lock.image.apt:
        apt, sources, made = "apt-get", [], ""
        if lock.image.snapshot:
            yield f"COPY {_SOURCES_NAME} {_FILES}/"
            yield f"ARG {_SNAPSHOTS}"
            time = f"{lock.image.snapshot.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"
            sources = [f'sh {_FILES}/{_SOURCES_NAME} {_FILES} {time} "${_SNAPSHOTS}"']
            apt, made = f"apt-get -c {_FILES}/apt.conf", f"{_FILES} "
        install = f"DEBIAN_FRONTEND=noninteractive {apt} install --yes --no-install-recommends"
        clean = f"rm -rf {made}/var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /etc/ssh/ssh_host_*"
        if len({part.apt for part in parts}) == 1:
            yield _run(*sources, f"{apt} update", _words(install, parts[0].apt), clean)
        else:
            yield "ARG ARCHITECTURE"
            packages = _by_architecture({part.architecture: f'"{" ".join(part.apt)}"' for part in parts}, "packages=%s")
            yield _run(*sources, f"{apt} update", *packages, f"{install} $packages", clean)
        yield from _user_lines(container)
    yield ""


def _image_stage(lock: Lock, parts: Sequence[_Part], container: ContainerConfig) -> Iterator[str]:
    yield "FROM system"
    yield f"COPY --from=environment {_PREFIX} {_PREFIX}"
    if (python := parts[0].python).source == "standalone":
        # Wheels need it by its name; see `envspec.image.sources.python`.
        yield _run(f"ln -sf {_PREFIX}/lib/libpython{python.series}.so.1.0 /usr/lib/")
    if below := parts[0].resolution.on_top_of:
        site = f"{_PREFIX}/lib/python{python.series}/site-packages"
        files = below.path_files(site).items()
        yield _run(*(f"echo {shlex.quote(line)} > {shlex.quote(path)}" for path, line in files))
    yield from files_lines(container)
    variables = {"PATH": f'"{_PREFIX}/bin:$PATH"'}
    if lock.is_for_gpus:
        variables |= {
            "NVIDIA_VISIBLE_DEVICES": '"${NVIDIA_VISIBLE_DEVICES:-all}"',
            "NVIDIA_DRIVER_CAPABILITIES": '"${NVIDIA_DRIVER_CAPABILITIES:-compute,utility}"',
        }
    if driver := _driver_of(parts):
        variables["NVIDIA_REQUIRE_CUDA"] = _required(driver)
    requested = dict(container.env) | dict(lock.image.env)
    own = {name: value for name, value in requested.items() if not set(value) & {"\n", "\r"}}
    yield _pairs("ENV", variables | {name: quoted(value) for name, value in own.items()})
    for name in requested:
        if name not in own:
            yield f"# {name} has a line feed, which a Dockerfile can't contain: set it when the container is started."
    if container.path_file:
        yield _run(
            f"mkdir -p {posixpath.dirname(container.path_file)}", f"printf '%s\\n' \"$PATH\" >{container.path_file}"
        )
    yield _pairs("LABEL", {name: quoted(value) for name, value in _labels(lock, parts).items()})
    # The rest of the line, with variables and escapes in it.
    yield f"WORKDIR {quoted(lock.image.workdir)[1:-1]}"
    yield from _start_lines(container)
    yield from _code_lines(lock, container)


def _labels(lock: Lock, parts: Sequence[_Part]) -> dict[str, str]:
    digests = {part.digest for part in parts}
    names = {f"{base.repository}:{base.tag}" if base.tag else base.repository for base in (part.base for part in parts)}
    return {
        "envspec.name": lock.name,
        "envspec.lock": identity(lock),
        "org.opencontainers.image.title": lock.name,
        **({"org.opencontainers.image.base.name": next(iter(names))} if len(names) == 1 else {}),
        **({"org.opencontainers.image.base.digest": next(iter(digests))} if len(digests) == 1 else {}),
    }


def _files_stages(parts: Sequence[_Part]) -> Iterator[str]:
    """A stage of files alone for each architecture, and `files`, that of the architecture that is built."""
    with_wheels = any(part.resolution.packages for part in parts)
    for part in parts:
        yield f"FROM scratch AS {'files' if len(parts) == 1 else f'files-{part.architecture}'}"
        if with_wheels:
            yield f"COPY {requirements_name(part.platform)} /requirements.txt"
        yield from _wheel_files(part)
        yield from _python_files(part)
        yield ""
    if len(parts) > 1:
        yield "FROM files-${ARCHITECTURE} AS files"
        yield ""


def _built_in(part: _Part) -> list[WheelFile]:
    """The wheels of git and local projects: they are on no index."""
    return [package.file for package in part.resolution.packages if package.file.index in {GIT, LOCAL}]


def _wheel_files(part: _Part) -> Iterator[str]:
    wheels = _built_in(part)
    if wheels:
        yield f"ARG {_BUILT_WHEELS}={_BUILT_FOLDER}"
    yield from (f"ADD ${{{_BUILT_WHEELS}}}/{each.sha256}/{each.filename} /wheels/" for each in wheels)


def _python_files(part: _Part) -> Iterator[str]:
    if part.python.source == "conda":
        yield f"COPY {explicit_name(part.platform)} /conda.lock"
        yield f"ARG MICROMAMBA_URL={load_facts().tool('micromamba', part.platform).url}"
        yield "ADD ${MICROMAMBA_URL} /micromamba"
    if part.python.source == "standalone":
        yield f"ARG PYTHON_URL={part.python.url}"
        yield "ADD ${PYTHON_URL} /python.tar.gz"


def _environment_stage(parts: Sequence[_Part], *, with_logins: bool) -> Iterator[str]:
    """The stage `environment`, with the whole environment in _PREFIX. with_logins: pip reads a netrc file, if given."""
    source = parts[0].python.source
    yield "FROM system AS environment"
    if len(parts) > 1:
        yield "ARG ARCHITECTURE"
    yield f"COPY --from=files / {_FILES}/"
    if source == "standalone":
        yield _standalone(parts)
    elif source == "conda":
        yield _conda(parts)
    else:
        yield from _venv(parts[0])
    if any(part.resolution.packages for part in parts):
        yield "ARG PIP_INDEX_URL"
        found = f" --find-links {_FILES}/wheels" if any(map(_built_in, parts)) else ""
        words = f"{_INSTALL} --no-deps --require-hashes{found} --requirement {_FILES}/requirements.txt"
        commands = [
            # The lock's versions fit a base's constraints already, which have no hashes.
            *(["export PIP_CONSTRAINT="] if parts[0].resolution.on_top_of else []),
            *(["export NETRC=/run/secrets/netrc"] if with_logins else []),
            *_pip(parts[0].python, words),
            *_owners(parts),
        ]
        yield _run(*commands, options=f"{_LOGINS} " if with_logins else "")
    yield ""


def _owners(parts: Sequence[_Part]) -> Sequence[str]:
    """Commands that put the files of their owners where several packages have different ones.

    pip leaves those that it installs last. A second installation into the environment would put other files of the
    owner over those of theirs: it is installed beside it.
    """
    commands = {part.architecture: tuple(_owner_commands(part)) for part in parts}
    first = next(iter(commands.values()))
    if all(each == first for each in commands.values()):
        return first
    cases = " ".join(f"{name}) {' && '.join(each) or ':'} ;;" for name, each in commands.items())
    return [f'case "$ARCHITECTURE" in {cases} esac']


def _owner_commands(part: _Part) -> Iterator[str]:
    found = f" --find-links {_FILES}/wheels" if _built_in(part) else ""
    folders = {f"{_PREFIX}/lib/python{part.python.series}/site-packages": False, _PREFIX: True}
    for owner in sorted({each.owner for each in part.resolution.shared if each.owner}):
        paths = [path for each in part.resolution.shared if each.owner == owner for path in each.paths]
        source, listed = f"{_FILES}/owner/{owner}", f"{_FILES}/{owner}.txt"
        yield f"sed -n '/^{owner}[ =]/,/--hash=/p' {_FILES}/requirements.txt > {listed}"
        words = f"{_INSTALL} --no-deps --require-hashes{found} --target {source} --requirement {listed}"
        yield _pip(part.python, words)[-1].removesuffix(" --ignore-installed")
        for target, is_data in folders.items():
            inner = sorted(path.removeprefix(DATA) for path in paths if path.startswith(DATA) is is_data)
            if inner:
                copy = _words(f"cp --parents --preserve=mode --target-directory {target}", map(shlex.quote, inner))
                yield f"cd {source} && {copy}"


def _project_stage(lock: Lock, parts: Sequence[_Part]) -> Iterator[str]:
    """The stage `project`, with the project's wheel or its editable install, by its own build backend."""
    if lock.image.project:
        folder, option = (
            (lock.image.workdir, "--editable ") if lock.image.project == EDITABLE else (f"{_FILES}/code", "")
        )
        yield "FROM environment AS project"
        yield f"COPY --from={_CODE} {json.dumps(['.', f'{folder}/'])}"
        if not any(part.resolution.packages for part in parts):
            yield "ARG PIP_INDEX_URL"
        words = f"{_INSTALL} --no-deps --root {_FILES}/root --prefix {_PREFIX} {option}{shlex.quote(folder)}"
        yield _run(*_pip(parts[0].python, words))
        yield ""


def _code_lines(lock: Lock, container: ContainerConfig) -> Iterator[str]:
    """The project, and the code that is copied: the last layers."""
    image = lock.image
    if image.project:
        yield f"COPY --from=project {_FILES}/root{_PREFIX} {_PREFIX}"
    copied = ["."] if image.project == EDITABLE else [in_project(lock.spec, each) for each in image.copy]
    for path in copied:
        owner = f" --chown={container.user}" if container.user else ""
        target = posixpath.join(image.workdir, "" if path == "." else path)
        yield f"COPY --from={_CODE}{owner} {json.dumps([path, target])}"


def _standalone(parts: Sequence[_Part]) -> str:
    return _run(
        f"cd {_FILES}",
        *_checked("python.tar.gz", {part.architecture: part.python.sha256 or "" for part in parts}),
        f"mkdir -p {_PREFIX}",
        f"tar --extract --gzip --file python.tar.gz --directory {_PREFIX} --strip-components=1 --no-same-owner",
    )


def _conda(parts: Sequence[_Part]) -> str:
    facts = load_facts()
    sums = {part.architecture: facts.tool("micromamba", part.platform).sha256 for part in parts}
    return _run(
        f"cd {_FILES}",
        *_checked("micromamba", sums),
        "chmod +x micromamba",
        f"MAMBA_ROOT_PREFIX={_FILES}/root ./micromamba create --yes --no-rc --prefix {_PREFIX} --file conda.lock",
    )


def _venv(part: _Part) -> Iterator[str]:
    """An environment of the Python that the image has, without a pip in it."""
    python, below = part.python, part.resolution.on_top_of
    install = (
        "apt-get update",
        f"DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends {_SYSTEM_PIP}",
    )
    interpreter = shlex.quote(f"{below.home}/python{python.series}") if below else f"python{python.series}"
    options = "--without-pip --system-site-packages" if below and below.site else "--without-pip"
    if python.source == "system":
        yield _run(*install)
    else:
        yield f"RUN {interpreter} -c 'import pip' || (" + " && ".join(install) + ")"
    yield _run(f"{interpreter} -m venv {options} {_PREFIX}")


def _pip(python: Python, install: str) -> Sequence[str]:
    """Install by a pip that is no part of the environment, but for a standalone Python's own.

    A folder or a wheel is run as pip by any Python of its series. What lies beside it is not in the environment, and so
    not installed. install: pip's command.
    """
    start = f"PIP_ROOT_USER_ACTION=ignore {_PREFIX}/bin/python"
    if python.source == "standalone":
        return (f"{start} -m pip {install}",)
    of_system = "$(ls /usr/share/python-wheels/pip-*.whl)/pip"
    if python.source == "conda":
        found = f"$(ls {_PREFIX}/lib/python{python.series}*/ensurepip/_bundled/pip-*.whl)/pip"
    elif python.source == "system":
        found = of_system
    else:
        own = f"python{python.series} -c 'import os, pip; print(os.path.dirname(pip.__file__))'"
        found = f"$({own} || echo {of_system})"
    return (f"pip={found}", f'{start} "$pip" {install} --ignore-installed')


def _checked(name: str, sums: Mapping[str, str]) -> Sequence[str]:
    return (*_by_architecture(sums, "sum=%s"), f'echo "$sum  {name}" | sha256sum --check -')


def _user_lines(container: ContainerConfig) -> Iterator[str]:
    """The user in the system's list, which sshd requires. A user that Ubuntu has under its ID is renamed.

    The password matches nothing; sshd refuses a locked account.
    """
    if not container.name:
        return
    uid, _, gid = container.user.partition(":")
    options = f"--home-dir {container.home} --gid {gid} --shell /bin/bash --password '*'"
    yield _run(
        f"old=$(getent passwd {uid} | cut -d : -f 1)",
        f"group=$(getent group {gid} | cut -d : -f 1)",
        f'if [ -z "$group" ]; then groupadd --gid {gid} {container.name}; '
        f'elif [ "$group" != {container.name} ]; then groupmod --new-name {container.name} "$group"; fi',
        f'if [ -z "$old" ]; then useradd --uid {uid} --no-create-home {options} {container.name}; '
        f"else usermod --login {container.name} {options.replace('--home-dir', '--home')} --groups '' \"$old\"; fi",
    )


def files_lines(container: ContainerConfig) -> Iterator[str]:
    """The files, and the folders that are the user's."""
    folders = dict.fromkeys(file.path.rpartition("/")[0] for file in container.files)
    commands = [f"mkdir -p {folder}" for folder in folders]
    for file in container.files:
        lines = "".join(f"    {_quoted(line)} \\\n" for line in file.text.removesuffix("\n").split("\n"))
        commands += [f"printf '%s\\n' \\\n{lines}    >{file.path}", f"chmod {file.mode:04o} {file.path}"]
    for path, mode in container.folders:
        folder = shlex.quote(path)
        commands += [f"mkdir -p {folder}", f"chmod {mode:04o} {folder}"]
        if container.user:
            commands.append(f"chown {container.user} {folder}")
    if commands:
        yield _run(*commands)


def _quoted(line: str) -> str:
    """A word of a shell; in quotes also where it needs none, for no line of a Dockerfile begins with a `#` then."""
    return "'" + line.replace("'", "'\\''") + "'"


def _start_lines(container: ContainerConfig) -> Iterator[str]:
    """User, entry point, ports and health check."""
    if container.ports:
        yield f"EXPOSE {' '.join(container.ports)}"
    if container.health:
        health = container.health
        times = f"--interval={health.interval_ns // _NS}s --timeout={health.timeout_ns // _NS}s"
        times += f" --start-period={health.start_ns // _NS}s --retries={health.retries}"
        yield f"HEALTHCHECK {times} \\\n    CMD {json.dumps(health.test)}"
    if container.user:
        yield f"USER {container.user}"
    if container.entrypoint:
        yield f"ENTRYPOINT {json.dumps(container.entrypoint)}"


def quoted(text: str) -> str:
    """A word of ENV or LABEL that stands for itself, whatever is in it.

    Raises:
        ValueError: it holds a line feed, which no word of a Dockerfile can.
    """
    if set(text) & {"\n", "\r"}:
        raise ValueError(f"a Dockerfile can't contain a line feed: {text!r}")
    return '"' + _ESCAPED.sub(lambda found: f"\\{found[0]}", text) + '"'


def _pairs(instruction: str, values: Mapping[str, str]) -> str:
    """`ENV` or `LABEL` with a line for each pair; the values are words of the Dockerfile already."""
    return f"{instruction} " + f" \\\n{_INDENT}".join(f"{name}={value}" for name, value in values.items())


def _run(*commands: str, options: str = "") -> str:
    """A RUN whose commands follow each other as long as they succeed."""
    return f"RUN {options}" + " \\\n && ".join(commands)


def _words(command: str, each: Iterable[str]) -> str:
    """A command of a shell with a line for each of its words."""
    return f" \\\n{_INDENT}  ".join((command, *each))


def _by_architecture(values: Mapping[str, str], template: str) -> Sequence[str]:
    """Commands of a shell that set what differs between architectures (Docker's names), or say it where nothing does.

    template: `NAME=%s`, the value a word of the shell's.
    """
    if len(set(values.values())) == 1:
        return (template % next(iter(values.values())),)
    cases = " ".join(f"{name}) {template % value} ;;" for name, value in values.items())
    return (f'case "$ARCHITECTURE" in {cases} esac',)
