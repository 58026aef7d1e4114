"""The conda packages of a lock for other programs: conda-<platform>.lock and conda-lock.yml.

conda-<platform>.lock has every archive's URL and SHA-256, for micromamba, conda and rattler, without a solver.
`#sha256:` behind a URL is read by mamba and micromamba (libmamba/src/specs/package_info.cpp), by rattler
(conda/rattler#45) and by conda from 24.9 on (conda/conda#14048); an older conda refuses the file. The format is
described by the draft conda/ceps#79.

conda-lock.yml has version 1 of conda-lock's format, for `conda-lock install`, micromamba and mamba. Its source:
`conda_lock.lockfile.v1.models` of conda-lock 4.0.3. Its models are not imported: that costs more CPU than the rest of a
lock. Tests compare with conda-lock, and try `conda-lock render` on the file. Dependencies have the versions in the
channel's words, where conda-lock may spell them in another way; installers use only the names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from envspec.conformance.text import some_of
from envspec.lockfile.document import canonical
from envspec.models import CondaPackage, Lock, Platform, Resolution

CONDA_LOCK_NAME: Final = "conda-lock.yml"

# YAML folds some of the line ends that JSON leaves as they are, and knows no escapes in pairs.
_NOT_ASCII: Final = re.compile("[^\x20-\x7e]")
# A requirement of a channel's record: `name`, `name >=1,<2`, `name 1.2.* build`, `name[version='>=1']`.
_REQUIREMENT: Final = re.compile(r"(?:\S*::)?(?P<name>[^\s=<>!~\[]+)\s*(?:\[version=)?(?P<version>[^\s\[\]#]*)")


def explicit_files(lock: Lock) -> dict[str, str]:
    """A conda-<platform>.lock for every platform with conda packages, in an order in which they can be linked."""
    files = {}
    for resolution in canonical(lock).resolutions:
        if resolution.conda:
            name = explicit_name(resolution.target.platform)
            files[name] = lines_text(_explicit_lines(lock, resolution))
    return files


def lines_text(lines: Iterable[str], prefix: str = "") -> str:
    """The text of a file's lines, each with the same prefix."""
    return "".join(f"{prefix}{line}\n" for line in lines)


def explicit_name(platform: Platform) -> str:
    """The file's name in the lock's folder."""
    return f"conda-{platform.value}.lock"


def unexpanded(url: str) -> str:
    """`url` without a `$`: conda and conda-lock replace environment variables in URLs."""
    return url.replace("$", "%24")


def _explicit_lines(lock: Lock, resolution: Resolution) -> Iterator[str]:
    platform = resolution.target.platform
    name = explicit_name(platform)
    yield f"# {lock.name} for {platform.value}: written by `envspec lock`. Edit the spec, not this file."
    yield "# To install it:"
    yield f"#   micromamba create --prefix PREFIX --file {name}"
    yield f"#   conda create --prefix PREFIX --file {name}        (conda 24.9 or newer)"
    if resolution.packages:
        yield "# and on top of it the wheels, with its own Python:"
        yield f"#   python -m pip install --no-deps --require-hashes -r requirements.{platform.value}.txt"
    # Both conda and rattler look for this line.
    yield f"# platform: {platform.value}"
    yield "@EXPLICIT"
    for package in in_link_order(resolution.conda):
        yield f"{unexpanded(package.url)}#sha256:{package.sha256}"


def in_link_order(packages: Iterable[CondaPackage]) -> tuple[CondaPackage, ...]:
    """What a package depends on comes before it, and Python before every `noarch: python` package; else by name.

    In a cycle of packages that need each other, those with the later names come too late.
    """
    by_name = {package.name: package for package in sorted(packages, key=lambda item: item.name)}
    needs = {}
    for_python = set()
    for name, package in by_name.items():
        needs[name] = _needs(package, by_name)
        if package.noarch == "python":
            for_python.add(name)
    order: dict[str, None] = {}
    # Python may depend on pip, which is linked by Python.
    _add("python", needs, order, without=for_python)
    for name in by_name:
        _add(name, needs, order)
    return tuple(by_name[name] for name in order)


def _needs(package: CondaPackage, by_name: Collection[str]) -> Sequence[str]:
    required = set(dependencies(package.depends))
    if package.noarch == "python":
        required.add("python")
    return sorted(required.intersection(by_name) - {package.name})


def _add(
    first: str, needs: dict[str, Sequence[str]], order: dict[str, None], without: Collection[str] = frozenset()
) -> None:
    """Append `first` to `order`, after everything that it needs and that is not in it yet."""
    if first not in needs:
        return
    waiting = [(first, False)]
    begun: set[str] = set()
    while waiting:
        name, is_ready = waiting.pop()
        if is_ready:
            order[name] = None
        elif name not in order and name not in begun:
            begun.add(name)
            waiting.append((name, True))
            waiting += [(each, False) for each in reversed(needs[name]) if each not in without]


def conda_lock_files(lock: Lock) -> dict[str, str]:
    """conda-lock.yml with the conda packages of all platforms, unless there are none or `without_md5` says why not.

    The wheels on top are not in it: it requires each file's URL, and a lock has none for the default index.
    """
    lock = canonical(lock)
    packages = sorted(_packages(lock), key=lambda each: (each[1].name, each[0].value))
    if not packages or without_md5(lock):
        return {}
    return {CONDA_LOCK_NAME: lines_text(_conda_lock_lines(lock, packages))}


def _conda_lock_lines(lock: Lock, packages: Iterable[tuple[Platform, CondaPackage]]) -> Iterator[str]:
    platforms = [platform.value for platform in lock.platforms]
    yield f"# {lock.name}: written by `envspec lock`. Edit the spec, not this file. To install it:"
    yield f"#   conda-lock install --prefix PREFIX {CONDA_LOCK_NAME}"
    yield f"#   micromamba create --prefix PREFIX --file {CONDA_LOCK_NAME}"
    if any(resolution.packages for resolution in lock.resolutions):
        yield "# and on top of it the wheels, with its own Python:"
        yield "#   python -m pip install --no-deps --require-hashes -r requirements.PLATFORM.txt"
    yield "version: 1"
    yield "metadata:"
    yield "  content_hash:"
    for platform in platforms:
        yield f"    {yaml_text(platform)}: {yaml_text(lock.input_sha256)}"
    yield "  channels:"
    for channel in lock.channels:
        yield f"  - url: {yaml_text(unexpanded(channel.url))}"
        yield "    used_env_vars: []"
    yield "  platforms:"
    for platform in platforms:
        yield f"  - {yaml_text(platform)}"
    yield "  sources: []"
    yield "package:"
    for on_platform, package in packages:
        yield from _package_lines(on_platform, package)


def without_md5(lock: Lock) -> str | None:
    """Why a lock with conda packages has no conda-lock.yml; None if it has one."""
    names = sorted({package.name for _, package in _packages(lock) if package.md5 is None})
    if not names:
        return None
    return (
        f"no {CONDA_LOCK_NAME} is written: its format requires an MD5, and the channel has none of "
        f"{some_of(names, 3)}; install from conda-PLATFORM.lock, or by envspec"
    )


def _packages(lock: Lock) -> Iterator[tuple[Platform, CondaPackage]]:
    for resolution in lock.resolutions:
        for package in resolution.conda:
            yield resolution.target.platform, package


def _package_lines(platform: Platform, package: CondaPackage) -> Iterator[str]:
    needs = dependencies(package.depends)
    yield f"- name: {yaml_text(package.name)}"
    yield f"  version: {yaml_text(package.version)}"
    yield '  manager: "conda"'
    yield f"  platform: {yaml_text(platform.value)}"
    yield "  dependencies:" if needs else "  dependencies: {}"
    for name, version in needs.items():
        yield f"    {yaml_text(name)}: {yaml_text(version)}"
    yield f"  url: {yaml_text(unexpanded(package.url))}"
    yield "  hash:"
    yield f"    md5: {yaml_text(package.md5 or '')}"
    yield f"    sha256: {yaml_text(package.sha256)}"
    yield '  category: "main"'
    yield "  optional: false"


def yaml_text(text: str) -> str:
    """A JSON string that YAML reads as the same text."""
    return _NOT_ASCII.sub(_escape, json.dumps(text, ensure_ascii=False))


def _escape(found: re.Match[str]) -> str:
    point = ord(found[0])
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def dependencies(depends: Iterable[str]) -> dict[str, str]:
    """name -> versions of a package's `depends`, sorted by name, in the words of the channel; empty for any.

    Several requirements of one name are joined by commas. Builds are left out.
    """
    by_name: dict[str, list[str]] = {}
    for text in depends:
        found = _REQUIREMENT.match(text)
        if found:
            by_name.setdefault(found["name"].lower(), []).append(found["version"].strip("'\""))
    return {name: ",".join(sorted(filter(None, versions))) for name, versions in sorted(by_name.items())}
