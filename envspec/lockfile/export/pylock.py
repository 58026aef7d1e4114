"""pylock.<name>.toml (PEP 751): the PyPI packages of all platforms, for pip, uv and scanners.

Written on demand: it names the URL of every file, which a lock does not for the default index.

Source: Python Packaging User Guide, "pylock.toml Specification", version 1.0. What differs between platforms has two or
more entries, whose markers exclude each other. An entry of several platforms has a wheel for each of them, of which an
installer takes by its tags the one that was locked: the only one that the platform can load, or its best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from packaging.markers import Marker
from packaging.pylock import Package as Entry
from packaging.pylock import (
    PackageArchive,
    PackageDirectory,
    PackageSdist,
    PackageVcs,
    PackageWheel,
    Pylock,
    PylockValidationError,
)
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec.conformance.text import counted
from envspec.errors import UsageError
from envspec.escaping import one_line
from envspec.lockfile import toml_writer
from envspec.lockfile.document import identity
from envspec.lockfile.export.conda import explicit_name, lines_text
from envspec.lockfile.export.requirements import is_overridden, public_url
from envspec.lockfile.export.types import (
    Content,
    Exported,
    ExportRequest,
    Location,
    git_of,
    is_project,
    is_source,
    project_of,
)
from envspec.lockfile.toml_writer import Value
from envspec.models import DIRECT_URL, GIT, LOCAL, SPEC, GpuCode, Package, Resolution, Target
from envspec.spec.targets import marker_environment
from envspec.structs import replace

_VERSION: Final = Version("1.0")
#: Keys of a marker whose values differ between platforms.
_MARKERS: Final = ("sys_platform", "platform_machine")


class _OnTarget(NamedTuple):
    target: Target
    package: Package


#: The packages of one entry.
_Group: TypeAlias = Sequence[_OnTarget]


def text(request: ExportRequest) -> Exported:
    """The file of all platforms of a request, and what of their builds it can't say.

    Raises:
        UsageError: a package that the standard does not allow, such as a wheel whose name is that of another release.
    """
    resolutions = request.resolutions
    targets = [each.target for each in resolutions]
    missing = [*request.missing({Content.DRIVER}), *_own_missing(request)]
    comments = [*request.header(missing), *_commands(request)]
    series = {target.python.series for target in targets}
    groups = _groups(resolutions)
    pylock = Pylock(
        lock_version=_VERSION,
        environments=[_marker([target]) for target in targets],
        requires_python=SpecifierSet(f"=={min(series)}.*") if len(series) == 1 else None,
        created_by="envspec",
        packages=[_entry(request, group, groups, targets) for group in groups],
        tool={"envspec": _about(request)},
    )
    try:
        pylock.validate()
    except PylockValidationError as error:
        raise UsageError(
            f"{request.lock.name} can't be exported as pylock: {error}",
            hint="use --format pixi, or the lock's own files",
        ) from error
    values = dict(pylock.to_dict())
    packages, tool = values.pop("packages"), values.pop("tool")
    body = toml_writer.pairs(values) + toml_writer.tables("packages", packages)
    about = toml_writer.table("tool.envspec", tool["envspec"])
    return Exported(lines_text(comments, "# ") + body + about, missing)


def _marker(targets: Sequence[Target]) -> Marker:
    """A marker that holds on these platforms and on no other one that envspec locks for."""
    found = []
    for target in targets:
        environment = marker_environment(target)
        clauses = " and ".join(f"{key} == '{environment[key]}'" for key in _MARKERS)
        found.append(f"({clauses})")
    return Marker(" or ".join(found))


def _groups(resolutions: Sequence[Resolution]) -> list[_Group]:
    """The packages that are one entry, sorted by name."""
    groups: dict[tuple[str, ...], list[_OnTarget]] = {}
    for resolution in resolutions:
        for package in resolution.packages:
            groups.setdefault(_key(package), []).append(_OnTarget(resolution.target, package))
    return [groups[key] for key in sorted(groups)]


def _key(package: Package) -> tuple[str, ...]:
    """What has to be the same for platforms to share an entry: all, except for the wheel of an index."""
    file = package.file
    key = (package.name, package.version, file.index)
    is_listed = file.index not in {DIRECT_URL, GIT, LOCAL} and file.filename.endswith(".whl")
    return key if is_listed else (*key, file.sha256, file.url or "")


def _entry(request: ExportRequest, group: _Group, groups: Sequence[_Group], targets: Sequence[Target]) -> Entry:
    first = group[0].package
    location = request.locations.get(first.file.sha256, Location(""))
    wheels = _built_wheels(group)
    entry = Entry(
        name=canonicalize_name(first.name),
        # A project's own version may change with its sources.
        version=None if is_project(first) else Version(first.version),
        marker=_marker_of(group, targets),
        dependencies=[_reference(each, groups, targets) for each in groups if _requires(group, each)],
        index=location.pages or None,
        tool={"envspec": {"built-wheels": wheels}} if wheels else None,
    )
    return _with_source(entry, request, [each.package for each in group])


def _built_wheels(group: _Group) -> list[Mapping[str, Value]]:
    """The wheels that envspec built for an entry's platforms."""
    hashes = {}
    for _, package in group:
        if is_source(package) and package.wheel.filename.endswith(".whl"):
            hashes[package.wheel.filename] = package.wheel.sha256
    return [{"name": name, "hashes": {"sha256": sha256}} for name, sha256 in hashes.items()]


def _marker_of(group: _Group, targets: Sequence[Target]) -> Marker | None:
    if len(group) == len(targets):
        return None
    return _marker([each.target for each in group])


def _reference(group: _Group, groups: Sequence[_Group], targets: Sequence[Target]) -> Mapping[str, str]:
    """What no other entry has: the name, and the marker if there are several of that name."""
    name = group[0].package.name
    marker = _marker_of(group, targets)
    is_one_of_several = sum(each[0].package.name == name for each in groups) > 1
    if marker and is_one_of_several:
        return {"name": name, "marker": str(marker)}
    return {"name": name}


def _requires(group: _Group, other: _Group) -> bool:
    """Whether a package of one entry requires that of the other on the same platform."""
    name, own = group[0].package.name, {each.target for each in group}
    on_same = (package for target, package in other if target in own)
    return any(by.name == name for package in on_same for by in package.required_by)


def _with_source(entry: Entry, request: ExportRequest, packages: Sequence[Package]) -> Entry:
    """The entry with the files of its packages, or with the place that they were built from."""
    file = packages[0].file
    if file.index == GIT:
        address = git_of(packages[0])
        subdirectory = address.subdirectory or None
        vcs = PackageVcs(type="git", url=address.url, commit_id=address.ref, subdirectory=subdirectory)
        return replace(entry, vcs=vcs)
    if file.index == LOCAL:
        return replace(entry, directory=PackageDirectory(path=request.projects[project_of(packages[0])]))
    if file.index == DIRECT_URL:
        return replace(entry, archive=PackageArchive(url=public_url(file.url or ""), **_file(packages[0])))
    if not file.filename.endswith(".whl"):
        return replace(entry, sdist=PackageSdist(**_listed(request, packages[0])))
    of_files = {package.file.sha256: package for package in packages}
    wheels = [PackageWheel(**_listed(request, package)) for package in of_files.values()]
    return replace(entry, wheels=wheels)


def _listed(request: ExportRequest, package: Package) -> dict[str, Any]:
    url = public_url(request.locations[package.file.sha256].url)
    return {"name": package.file.filename, "url": url, **_file(package)}


def _file(package: Package) -> dict[str, Any]:
    file = package.file
    return {"upload_time": package.uploaded, "size": file.size_bytes, "hashes": {"sha256": file.sha256}}


def _commands(request: ExportRequest) -> Iterator[str]:
    below = [explicit_name(each.target.platform) for each in request.resolutions if each.conda]
    for part in request.resolutions:
        if part.on_top_of and part.installed and part.on_top_of.source not in below:
            below.append(part.on_top_of.source)
    # pip resolves what it installs by pylock (26.3): it refuses what the metadata excludes, and looks for what is not
    # listed, such as conda's packages.
    no_deps = "--no-deps " if below or any(map(is_overridden, request.resolutions)) else ""
    where = f" on top of {' or '.join(map(one_line, below))}" if below else ""
    yield f"To install it{where}:"
    if any(map(is_project, request.packages)):
        yield "  (pip 26.3 can't: it requires hashes, and a repository or a folder has none)"
    else:
        yield f"  pip install {no_deps}-r FILE        (pip 26.1 or newer)"
    # A sync would remove what is there before.
    yield "  uv pip install -r FILE" if below else "  uv pip sync FILE"


def _own_missing(request: ExportRequest) -> Iterator[str]:
    """Conda packages, and wheels that every installer builds anew, in an environment that is not the locked one."""
    conda: set[tuple[str, str]] = set()
    for part in request.resolutions:
        for package in part.conda:
            conda.add((package.name, package.version))
    if conda:
        yield f"{counted(len(conda), 'conda package')}, on which the wheels depend"
    names = dict.fromkeys(f"{each.name} {each.version}" for each in filter(is_source, request.packages))
    if names:
        yield f"wheels that envspec builds: {', '.join(names)} (an installer builds its own from the same sources)"


def _about(request: ExportRequest) -> Mapping[str, Value]:
    """What no key of the standard is for: informing only."""
    lock = request.lock
    required: set[str] = set()
    pythons: dict[str, str] = {}
    drivers: dict[str, str] = {}
    for part in request.resolutions:
        platform = part.target.platform
        pythons[platform.value] = part.target.python.version
        driver = lock.on(platform).driver
        if driver is not None:
            drivers[platform.value] = driver.minimum
        for package in part.packages:
            required |= {by.requirement for by in package.required_by if by.name == SPEC}
    return {
        "name": lock.name,
        "requires": sorted(required),
        "lock": f"sha256:{identity(lock)}",
        "as-of": lock.as_of,
        "gpus": list(lock.gpus),
        "python": pythons,
        "driver": drivers,
        "gpu-code": [_gpu_code(code) for code in lock.gpu_code if code.platform.value in pythons],
    }


def _gpu_code(code: GpuCode) -> Mapping[str, Value]:
    return {
        "package": code.package,
        "version": code.version,
        "platform": code.platform.value,
        "variant": code.variant,
        "sm": list(code.sm),
        "ptx": list(code.ptx),
    }
