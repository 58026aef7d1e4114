"""pylock.<name>.toml (PEP 751): the PyPI packages of all platforms, for pip, uv and scanners.

Written on demand: it names the URL of every file, which a lock does not for the default index.

Source: Python Packaging User Guide, "pylock.toml Specification", version 1.0. What differs between platforms has two or
more entries, whose markers exclude each other. An entry of several platforms has a wheel for each of them, of which an
installer takes by its tags the one that was locked: the only one that the platform can load, or its best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from envspec.context import counted
from envspec.escaping import one_line
from envspec.lockfile import toml_writer
from envspec.lockfile.document import canonical, identity
from envspec.lockfile.export.conda import explicit_name
from envspec.lockfile.export.requirements import is_overridden, public_url
from envspec.lockfile.export.types import Content, Exported, ExportRequest, git_of, is_project, is_source, project_of
from envspec.lockfile.toml_writer import Value
from envspec.models import DIRECT_URL, GIT, LOCAL, SPEC, Package, Resolution, Target
from envspec.spec.targets import marker_environment

_VERSION: Final = "1.0"
#: Keys of a marker whose values differ between platforms.
_MARKERS: Final = ("sys_platform", "platform_machine")


class _OnTarget(NamedTuple):
    target: Target
    package: Package


#: The packages of one entry.
_Group: TypeAlias = Sequence[_OnTarget]


def text(request: ExportRequest) -> Exported:
    """The file of all platforms of a request, and what of their builds it can't say."""
    resolutions = canonical(request.lock).resolutions
    wanted = {each.target.platform for each in request.resolutions}
    resolutions = tuple(each for each in resolutions if each.target.platform in wanted)
    targets = [each.target for each in resolutions]
    missing = [*request.missing({Content.DRIVER}), *_own_missing(resolutions)]
    comments = [*request.header(missing), *_commands(resolutions)]
    series = sorted({target.python.series for target in targets})
    head: Mapping[str, Value] = {
        "lock-version": _VERSION,
        "environments": [_marker([target]) for target in targets],
        "requires-python": f"=={series[0]}.*" if len(series) == 1 else None,
        "created-by": "envspec",
    }
    lines = "".join(f"# {line}\n" for line in comments)
    groups = _groups(resolutions)
    packages = [_entry(request, group, groups, targets) for group in groups]
    tool = toml_writer.table("tool.envspec", _about(request))
    return Exported(f"{lines}{toml_writer.pairs(head)}{toml_writer.tables('packages', packages)}{tool}", missing)


def _marker(targets: Sequence[Target]) -> str:
    """A marker that holds on these platforms and on no other one that envspec locks for."""
    found = []
    for target in targets:
        environment = marker_environment(target)
        found.append(" and ".join(f"{key} == '{environment[key]}'" for key in _MARKERS))
    return found[0] if len(found) == 1 else " or ".join(f"({each})" for each in found)


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
    is_listed = file.index not in {DIRECT_URL, GIT, LOCAL} and file.filename.endswith(".whl")
    return (package.name, package.version, file.index, *(() if is_listed else (file.sha256, file.url or "")))


def _entry(
    request: ExportRequest, group: _Group, groups: Sequence[_Group], targets: Sequence[Target]
) -> Mapping[str, Value]:
    first = group[0].package
    location = request.locations.get(first.file.sha256)
    built = {each.package.wheel.filename: each.package.wheel.sha256 for each in group if is_source(each.package)}
    wheels: list[Value] = [
        {"name": name, "hashes": {"sha256": sha256}} for name, sha256 in built.items() if name.endswith(".whl")
    ]
    return {
        "name": first.name,
        # A project's own version may change with its sources.
        "version": None if is_project(first) else first.version,
        "marker": _marker_of(group, targets),
        "index": (location.pages or None) if location else None,
        "dependencies": [_reference(each, groups, targets) for each in groups if _requires(group, each)],
        **_source(request, [each.package for each in group]),
        "tool": {"envspec": {"built-wheels": wheels}} if wheels else None,
    }


def _marker_of(group: _Group, targets: Sequence[Target]) -> str | None:
    own = [each.target for each in group]
    return None if len(own) == len(targets) else _marker(own)


def _reference(group: _Group, groups: Sequence[_Group], targets: Sequence[Target]) -> Mapping[str, Value]:
    """What no other entry has: the name, and the marker if there are several of that name."""
    name = group[0].package.name
    is_one_of_several = sum(each[0].package.name == name for each in groups) > 1
    return {"name": name, "marker": _marker_of(group, targets) if is_one_of_several else None}


def _requires(group: _Group, other: _Group) -> bool:
    """Whether a package of one entry requires that of the other on the same platform."""
    name, own = group[0].package.name, {each.target for each in group}
    return any(by.name == name for each in other if each.target in own for by in each.package.required_by)


def _source(request: ExportRequest, packages: Sequence[Package]) -> Mapping[str, Value]:
    """The key of a package's source and its value."""
    first = packages[0]
    if first.file.index == GIT:
        address = git_of(first)
        vcs = {
            "type": "git",
            "url": address.url,
            "commit-id": address.ref,
            "subdirectory": address.subdirectory or None,
        }
        return {"vcs": vcs}
    if first.file.index == LOCAL:
        return {"directory": {"path": request.projects[project_of(first)]}}
    if first.file.index == DIRECT_URL:
        return {"archive": {"url": public_url(first.file.url or ""), **_file(first)}}
    if not first.file.filename.endswith(".whl"):
        return {"sdist": _listed(request, first)}
    by_hash = {each.file.sha256: each for each in packages}
    return {"wheels": [_listed(request, each) for each in by_hash.values()]}


def _listed(request: ExportRequest, package: Package) -> Mapping[str, Value]:
    url = public_url(request.locations[package.file.sha256].url)
    return {"name": package.file.filename, "url": url, **_file(package)}


def _file(package: Package) -> Mapping[str, Value]:
    return {
        "upload-time": package.uploaded,
        "size": package.file.size_bytes,
        "hashes": {"sha256": package.file.sha256},
    }


def _commands(resolutions: Sequence[Resolution]) -> Iterator[str]:
    below = [explicit_name(each.target.platform) for each in resolutions if each.conda]
    below += dict.fromkeys(each.on_top_of.source for each in resolutions if each.on_top_of and each.installed)
    # pip resolves what it installs by pylock (26.3): it refuses what the metadata excludes, and looks for what is not
    # listed, such as conda's packages.
    no_deps = "--no-deps " if below or any(map(is_overridden, resolutions)) else ""
    yield f"To install it{' on top of ' + ' or '.join(map(one_line, below)) if below else ''}:"
    if any(is_project(each) for part in resolutions for each in part.packages):
        yield "  (pip 26.3 can't: it requires hashes, and a repository or a folder has none)"
    else:
        yield f"  pip install {no_deps}-r FILE        (pip 26.1 or newer)"
    # A sync would remove what is there before.
    yield "  uv pip install -r FILE" if below else "  uv pip sync FILE"


def _own_missing(resolutions: Sequence[Resolution]) -> Iterator[str]:
    """Conda packages, and wheels that every installer builds anew, in an environment that is not the locked one."""
    count = len({(each.name, each.version) for part in resolutions for each in part.conda})
    if count:
        yield f"{counted(count, 'conda package')}, on which the wheels depend"
    names = {f"{each.name} {each.version}": None for part in resolutions for each in part.packages if is_source(each)}
    if names:
        yield f"wheels that envspec builds: {', '.join(names)} (an installer builds its own from the same sources)"


def _about(request: ExportRequest) -> Mapping[str, Value]:
    """What no key of the standard is for: informing only."""
    lock = canonical(request.lock)
    parts = [(each.target, lock.on(each.target.platform)) for each in request.resolutions]
    gpu_code: list[Value] = [
        {
            "package": code.package,
            "version": code.version,
            "platform": code.platform.value,
            "variant": code.variant,
            "sm": list(code.sm),
            "ptx": list(code.ptx),
        }
        for code in lock.gpu_code
        if any(code.platform is target.platform for target, _ in parts)
    ]
    required = {
        by.requirement
        for part in lock.resolutions
        if part.target in [target for target, _ in parts]
        for package in part.packages
        for by in package.required_by
        if by.name == SPEC
    }
    return {
        "name": lock.name,
        "requires": sorted(required),
        "lock": f"sha256:{identity(lock)}",
        "as-of": lock.as_of,
        "gpus": list(lock.gpus),
        "python": {target.platform.value: target.python.version for target, _ in parts},
        "driver": {target.platform.value: own.driver.minimum for target, own in parts if own.driver},
        "gpu-code": gpu_code,
    }
