"""The stages of a Dockerfile that make the environment's folder: Python from its source, then the wheels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envspec.facts import load_facts
from envspec.lock.docker_words import by_architecture, run
from envspec.lock.explicit import explicit_name
from envspec.lock.requirements import requirements_name
from envspec.models import GIT, LOCAL, Platform, Python, Resolution, WheelFile

#: The environment's folder in every image.
PREFIX: Final = "/opt/env"
#: Platform -> what Docker calls its architecture.
ARCHITECTURES: Final = {Platform.LINUX_64: "amd64", Platform.LINUX_AARCH64: "arm64"}

#: Names where the wheels are that were built of git and local projects: a URL, or a folder beside the Dockerfile.
BUILT_WHEELS: Final = "BUILT_WHEELS"
BUILT_FOLDER: Final = "wheels"

_FILES: Final = "/tmp/envspec"  # noqa: S108 (inside a stage that is thrown away)
_INSTALL: Final = "install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes"
# pip's wheel as Debian and Ubuntu package it, for programs that bring pip into environments.
_SYSTEM_PIP: Final = "python3-pip-whl"


@dataclass(frozen=True, slots=True)
class Part:
    """One platform of the image. digest: of its base. apt: what the system layer installs there."""

    resolution: Resolution
    digest: str
    apt: tuple[str, ...]

    @property
    def platform(self) -> Platform:
        return self.resolution.target.platform

    @property
    def architecture(self) -> str:
        return ARCHITECTURES[self.platform]

    @property
    def python(self) -> Python:
        return self.resolution.target.python


def files_stages(parts: Sequence[Part]) -> Iterator[str]:
    """A stage of files alone for each architecture, and `files`, the one that is built for."""
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


def built_in(part: Part) -> list[WheelFile]:
    """The wheels that were built of git and local projects: no index has them."""
    return [package.file for package in part.resolution.packages if package.file.index in {GIT, LOCAL}]


def _wheel_files(part: Part) -> Iterator[str]:
    wheels = built_in(part)
    if wheels:
        yield f"ARG {BUILT_WHEELS}={BUILT_FOLDER}"
    yield from (f"ADD ${{{BUILT_WHEELS}}}/{each.sha256}/{each.filename} /wheels/" for each in wheels)


def _python_files(part: Part) -> Iterator[str]:
    if part.python.source == "conda":
        yield f"COPY {explicit_name(part.platform)} /conda.lock"
        yield f"ARG MICROMAMBA_URL={load_facts().tool('micromamba', part.platform).url}"
        yield "ADD ${MICROMAMBA_URL} /micromamba"
    if part.python.source == "standalone":
        yield f"ARG PYTHON_URL={part.python.url}"
        yield "ADD ${PYTHON_URL} /python.tar.gz"


def environment_stage(parts: Sequence[Part]) -> Iterator[str]:
    """The stage `environment`, with the whole environment in PREFIX."""
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
        yield from _venv(parts[0].python)
    if any(part.resolution.packages for part in parts):
        yield "ARG PIP_INDEX_URL"
        yield run(*_pip(parts[0].python, _found(parts)))
    yield ""


def _standalone(parts: Sequence[Part]) -> str:
    return run(
        f"cd {_FILES}",
        *_checked("python.tar.gz", {part.architecture: part.python.sha256 or "" for part in parts}),
        f"mkdir -p {PREFIX}",
        f"tar --extract --gzip --file python.tar.gz --directory {PREFIX} --strip-components=1 --no-same-owner",
    )


def _conda(parts: Sequence[Part]) -> str:
    facts = load_facts()
    sums = {part.architecture: facts.tool("micromamba", part.platform).sha256 for part in parts}
    return run(
        f"cd {_FILES}",
        *_checked("micromamba", sums),
        "chmod +x micromamba",
        f"MAMBA_ROOT_PREFIX={_FILES}/root ./micromamba create --yes --no-rc --prefix {PREFIX} --file conda.lock",
    )


def _venv(python: Python) -> Iterator[str]:
    """An environment of the Python that the image has, without a pip in it."""
    install = (
        "apt-get update",
        f"DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends {_SYSTEM_PIP}",
    )
    interpreter = f"python{python.series}"
    if python.source == "system":
        yield run(*install)
    else:
        yield f"RUN {interpreter} -c 'import pip' || (" + " && ".join(install) + ")"
    yield run(f"{interpreter} -m venv --without-pip {PREFIX}")


def _found(parts: Sequence[Part]) -> str:
    return f" --find-links {_FILES}/wheels" if any(map(built_in, parts)) else ""


def _pip(python: Python, more: str) -> Sequence[str]:
    """Install the wheels by a pip that is no part of the environment, but for a standalone Python's own.

    A folder or a wheel is run as pip by any Python of its series. What lies beside it is not in the environment, and so
    not installed. more: options for pip.
    """
    wheels = f"{_INSTALL}{more} --requirement {_FILES}/requirements.txt"
    start = f"PIP_ROOT_USER_ACTION=ignore {PREFIX}/bin/python"
    if python.source == "standalone":
        return (f"{start} -m pip {wheels}",)
    of_system = "$(ls /usr/share/python-wheels/pip-*.whl)/pip"
    if python.source == "conda":
        found = f"$(ls {PREFIX}/lib/python{python.series}*/ensurepip/_bundled/pip-*.whl)/pip"
    elif python.source == "system":
        found = of_system
    else:
        own = f"python{python.series} -c 'import os, pip; print(os.path.dirname(pip.__file__))'"
        found = f"$({own} || echo {of_system})"
    return (f"pip={found}", f'{start} "$pip" {wheels} --ignore-installed')


def _checked(name: str, sums: Mapping[str, str]) -> Sequence[str]:
    return (*by_architecture(sums, "sum=%s"), f'echo "$sum  {name}" | sha256sum --check -')
