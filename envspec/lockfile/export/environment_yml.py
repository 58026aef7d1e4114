"""environment.yml: the packages of one platform for `conda env create`, mamba and what reads such files.

conda and mamba write the lines of `pip:` into a requirements file as they are, and run `pip install -r` in the file's
folder: so a line may have a hash. pip then requires one of every line, and a repository or a folder has none. Sources:
conda/env/installers/pip.py of conda 26, libmamba/src/api/install.cpp of mamba 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envspec.lockfile.export.conda import explicit_name, lines_text, yaml_text
from envspec.lockfile.export.requirements import is_overridden, pin
from envspec.lockfile.export.types import Content, Exported, ExportRequest, git_of, is_project, project_of
from envspec.models import GIT, CondaPackage, Lock, Package, Resolution

#: The channel of Python for a lock that has no conda packages.
FALLBACK: Final = "conda-forge"


def text(request: ExportRequest) -> Exported:
    """The file of the one platform of a request."""
    lock = request.lock
    [resolution] = request.resolutions
    missing = [*request.missing({Content.VARIABLES}), *_own_missing(resolution)]
    comments = [
        *request.header(missing),
        "To install it:",
        "  conda env create --file FILE --prefix PREFIX        (or: mamba, micromamba)",
    ]
    text = lines_text(comments, "# ") + f"name: {yaml_text(lock.name)}\nchannels:\n"
    text += lines_text(map(yaml_text, (*channels_of(lock), "nodefaults")), "- ")
    text += "dependencies:\n" + lines_text(map(yaml_text, _conda(lock, resolution)), "- ")
    if resolution.packages:
        text += "- pip:\n" + lines_text(map(yaml_text, _pip(request, resolution)), "  - ")
    if lock.image.env:
        text += "variables:\n"
        for name, value in lock.image.env:
            text += f"  {yaml_text(name)}: {yaml_text(value)}\n"
    return Exported(text, missing)


def channels_of(lock: Lock) -> list[str]:
    """The channels as conda and pixi read them: names, or URLs without credentials."""
    return list(channel_names(lock).values()) or [FALLBACK]


def channel_names(lock: Lock) -> dict[str, str]:
    """Channel -> its name, or its URL if the spec gives that."""
    names = {}
    for each in lock.channels:
        names[each.name] = each.url if "://" in each.name else each.name
    return names


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
    names = channel_names(lock)
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


def _pip(request: ExportRequest, resolution: Resolution) -> Iterator[str]:
    hashed = not any(map(is_project, resolution.packages))
    for package in resolution.packages:
        yield _line(request, package, hashed=hashed)


def _line(request: ExportRequest, package: Package, *, hashed: bool) -> str:
    if package.file.index == GIT:
        address = git_of(package)
        return f"{package.name} @ {address.pinned(address.ref)}"
    if is_project(package):
        return request.projects[project_of(package)]
    if hashed:
        return f"{pin(package)} --hash=sha256:{package.file.sha256}"
    return pin(package)
