"""environment.yml: the packages of one platform for `conda env create`, mamba and what reads such files.

conda and mamba write the lines of `pip:` into a requirements file as they are, and run `pip install -r` in the file's
folder: so a line may have a hash. pip then requires one of every line, and a repository or a folder has none. Sources:
conda/env/installers/pip.py of conda 26, libmamba/src/api/install.cpp of mamba 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from envspec.lockfile.export.conda import explicit_name, yaml_text
from envspec.lockfile.export.requirements import is_overridden, pin
from envspec.lockfile.export.types import Content, Exported, ExportRequest, git_of, is_project, project_of
from envspec.models import GIT, CondaChannel, CondaPackage, Lock, Package, Resolution

#: The channel of Python for a lock that has no conda packages.
FALLBACK: Final = "conda-forge"


def text(request: ExportRequest) -> Exported:
    """The file of the one platform of a request."""
    lock = request.lock
    [resolution] = request.resolutions
    missing = [*request.missing({Content.VARIABLES}), *_own_missing(resolution)]
    lines = [
        *(f"# {line}" for line in request.header(missing)),
        "# To install it:",
        "#   conda env create --file FILE --prefix PREFIX        (or: mamba, micromamba)",
        f"name: {yaml_text(lock.name)}",
        "channels:",
        *(f"- {yaml_text(each)}" for each in [*channels_of(lock), "nodefaults"]),
        "dependencies:",
        *(f"- {yaml_text(each)}" for each in _conda(lock, resolution)),
        *_pip(request, resolution),
    ]
    if lock.image.env:
        lines += ["variables:", *(f"  {yaml_text(name)}: {yaml_text(value)}" for name, value in lock.image.env)]
    return Exported("".join(f"{line}\n" for line in lines), missing)


def channels_of(lock: Lock) -> list[str]:
    """The channels as conda and pixi read them: names, or URLs without credentials."""
    return [channel_name(each) for each in lock.channels] or [FALLBACK]


def channel_name(channel: CondaChannel) -> str:
    """A channel's name, or its URL if the spec gives that."""
    return channel.url if "://" in channel.name else channel.name


def python_missing(resolution: Resolution) -> str:
    """What is not locked if conda has to install the Python of a lock that has none of conda's."""
    python = resolution.target.python
    return f"Python {python.version}, which is not of {FALLBACK}: its newest {python.series} is installed"


def _own_missing(resolution: Resolution) -> Iterator[str]:
    if resolution.conda:
        name = explicit_name(resolution.target.platform)
        yield f"hashes of conda packages ({name} in the lock's folder has them)"
    else:
        yield python_missing(resolution)
    if any(map(is_project, resolution.packages)):
        yield "hashes of wheels: pip accepts none if one of the packages is a repository or a folder"
    if is_overridden(resolution):
        yield "the spec's overrides: pip refuses what the packages' metadata excludes"


def _conda(lock: Lock, resolution: Resolution) -> Iterator[str]:
    names = {each.name: channel_name(each) for each in lock.channels}
    for each in resolution.conda:
        yield _match_spec(each, names[each.channel] if len(names) > 1 else "")
    own = {each.name for each in resolution.conda}
    if "python" not in own:
        yield f"python={resolution.target.python.series}"
    if resolution.packages and "pip" not in own:
        yield "pip"


def _match_spec(package: CondaPackage, channel: str) -> str:
    # A URL before `::` is not understood by every reader, and the build identifies a package nearly as well.
    prefix = f"{channel}::" if channel and "://" not in channel else ""
    return f"{prefix}{package.name}={package.version}={package.build}"


def _pip(request: ExportRequest, resolution: Resolution) -> Sequence[str]:
    packages = resolution.packages
    if not packages:
        return ()
    hashed = not any(map(is_project, packages))
    return ["- pip:", *(f"  - {yaml_text(_line(request, each, hashed=hashed))}" for each in packages)]


def _line(request: ExportRequest, package: Package, *, hashed: bool) -> str:
    if package.file.index == GIT:
        address = git_of(package)
        return f"{package.name} @ {address.pinned(address.ref)}"
    if is_project(package):
        return request.projects[project_of(package)]
    return f"{pin(package)} --hash=sha256:{package.file.sha256}" if hashed else pin(package)
