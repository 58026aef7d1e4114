"""The Python packages of a folder: versions, and which of them were asked for. Nothing of them is imported."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from packaging.markers import InvalidMarker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from envspec.documents import table_of
from envspec.facts.tables import pep440
from envspec.importers.graph import roots
from envspec.importers.pip import add_cuda, add_requirement, note_build
from envspec.importers.types import CPU, MAX_SOURCE_BYTES, Clue, DraftRequirement, Import, Outcome, Source
from envspec.models import Platform, Python, Target
from envspec.names import normalised
from envspec.spec.targets import marker_environment
from envspec.verifier.regular import read_regular
from envspec.verifier.scan import Distribution, distributions

#: Requirements of one package that are read. The largest real packages have 500, with all of their extras.
_MOST_REQUIREMENTS: Final = 5000
#: Tags of wheels -> the platform that they are for.
_TAGS: Final = (
    (re.compile(r"linux\w*_x86_64"), Platform.LINUX_64),
    (re.compile(r"linux\w*_aarch64"), Platform.LINUX_AARCH64),
    (re.compile(r"macosx_\w+_arm64"), Platform.OSX_ARM64),
    (re.compile(r"win_amd64"), Platform.WIN_64),
)
#: In torch/version.py. Source: torch 1.13 to 2.9.
_TORCH: Final = re.compile(r"^(cuda|hip|xpu)\b[^=\n]*= *(?:None|['\"]([\w.+-]+)['\"]) *$", re.MULTILINE)
#: Files that virtualenv and uv write into an environment of theirs.
_OF_VENVS: Final = ("_virtualenv.pth", "distutils-precedence.pth")


class Site(Struct, frozen=True):
    """site-packages of a prefix.

    prefix: the environment's folder.
    path: of site-packages itself.
    python: its version, empty if it is not known.
    seeds: packages that the tool which made the environment installed.
    owned: paths of conda's packages, relative to the prefix.
    """

    prefix: Path
    path: Path
    python: str
    seeds: frozenset[str]
    owned: frozenset[str]

    def is_of_conda(self, name: str) -> bool:
        inner = (self.path / name).relative_to(self.prefix).as_posix()
        return any(f"{inner}{end}" in self.owned for end in ("", "/METADATA", "/PKG-INFO", "/RECORD"))


class _Package(Struct):
    """An installed package.

    name: normalised.
    version: empty if it is not known.
    source, folder: of its metadata.
    installer: its name in small letters; is_requested: whether it marked the package so.
    origin: what direct_url.json says.
    requires: requirements that apply to this Python.
    extras: extra -> the requirements that it adds.
    unread: requirements that are none.
    """

    name: str
    version: str
    source: Source
    folder: Path
    installer: str = ""
    is_requested: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    requires: list[Requirement] = field(default_factory=list)
    extras: dict[str, list[Requirement]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def read_site(site: Site, imported: Import) -> None:
    """Add the packages that conda did not install."""
    packages = _packages(site, imported)
    _platform(packages.values(), imported)
    environment = _environment(site, imported)
    for each in packages.values():
        _read_metadata(each, environment)
    graph = {name: _needs(packages, each.requires) for name, each in packages.items()}
    direct = _direct(packages, graph, site.seeds)
    required_by: dict[str, list[str]] = {}
    for other, needs in sorted(graph.items()):
        for name in needs - {other}:
            required_by.setdefault(name, []).append(other)
    for name, each in packages.items():
        _add(each, direct, required_by.get(name, []), site, imported)
    if torch := packages.get("torch"):
        _read_torch(site.path / "torch" / "version.py", torch, imported)
    for name, each in packages.items():
        note_build(name, each.version, each.source, imported)
    _read_paths(site, imported)


def _packages(site: Site, imported: Import) -> dict[str, _Package]:
    """By name; entries for what is not a package, or twice there."""
    found: dict[str, _Package] = {}
    for each in distributions(site.path):
        source = Source(imported.shown(site.path / each.folder))
        if site.is_of_conda(each.folder):
            continue
        if each.folder.startswith(("~", "-")):
            reason = "left by an installation that was interrupted; pip ignores it"
            imported.add(source, each.folder, Outcome.TRANSLATED, reason)
            continue
        package = _package(each, source)
        if package is None:
            reason = "it has no readable metadata: its installation is broken; install it again"
            imported.add(source, each.folder, Outcome.NOT_UNDERSTOOD, reason)
        elif (other := found.get(package.name)) is None:
            found[package.name] = package
        else:
            dropped, kept = sorted((other, package), key=lambda each: pep440(each.version) or Version("0"))
            found[package.name] = kept
            reason = f"{kept.version} is installed too, and the newer one is used: install one of them again"
            imported.add(dropped.source, f"{dropped.name} {dropped.version}", Outcome.NOT_UNDERSTOOD, reason)
    return found


def _package(found: Distribution, source: Source) -> _Package | None:
    """A distribution with what its installer recorded; None if it is broken."""
    folder = found.site / found.folder
    if folder.suffix == ".egg-link":
        lines = _text(folder).splitlines()
        if not lines or not Path(lines[0]).is_absolute():
            return None
        origin = {"url": Path(lines[0]).as_uri(), "dir_info": {"editable": True}}
        return _Package(found.name, "", source, folder, origin=origin)
    has_metadata = folder.is_file() or any((folder / name).is_file() for name in ("METADATA", "PKG-INFO"))
    if not has_metadata or not found.version:
        return None
    # distutils wrote the Python's series behind the version.
    package = _Package(found.name, re.sub(r"-py3[\d.]*$", "", found.version), source, folder)
    package.installer = _text(folder / "INSTALLER").strip().lower()
    package.is_requested = (folder / "REQUESTED").is_file()
    try:
        package.origin = table_of(json.loads(_text(folder / "direct_url.json") or "{}"))
    except (ValueError, RecursionError):
        package.origin = {}
    return package


def _text(path: Path) -> str:
    """A file of an environment; empty if it is none, too large, or can't be read."""
    try:
        return read_regular(path, MAX_SOURCE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _platform(packages: Iterable[_Package], imported: Import) -> None:
    """The platform that wheels were built for, which the spec is for."""
    for each in packages:
        for tag in re.findall(r"^Tag: (\S+)", _text(each.folder / "WHEEL"), re.MULTILINE):
            platform = next((platform for form, platform in _TAGS if form.search(tag)), None)
            if platform is not None:
                clue = Clue(platform.value, each.source, f"{each.name} is built for {tag}")
                if platform.value not in (known.value for known in imported.draft.platforms):
                    imported.draft.platforms.append(clue)
                return


def _environment(site: Site, imported: Import) -> dict[str, str]:
    """What markers see; empty if the Python is not known."""
    if not site.python:
        return {}
    platform = Platform.LINUX_64
    if imported.draft.platforms:
        platform = Platform(imported.draft.platforms[0].value)
    return marker_environment(Target(platform, Python(site.python, "spec")))


def _read_metadata(package: _Package, environment: Mapping[str, str]) -> None:
    """Fill in what a package requires."""
    if package.folder.is_file() or (package.folder / "METADATA").is_symlink():
        return
    if not any(_text(package.folder / name) for name in ("METADATA", "PKG-INFO")):
        return
    for text in (metadata.Distribution.at(package.folder).requires or [])[:_MOST_REQUIREMENTS]:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            package.unread.append(text)
            continue
        if _applies(requirement, environment, ""):
            package.requires.append(requirement)
            continue
        named = re.findall(r"""extra\s*==\s*["']([^"']+)""", str(requirement.marker))
        for extra in dict.fromkeys(map(normalised, named)):
            if _applies(requirement, environment, extra):
                package.extras.setdefault(extra, []).append(requirement)


def _applies(requirement: Requirement, environment: Mapping[str, str], extra: str) -> bool:
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({**environment, "extra": extra})
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, ValueError):
        return not extra


def _needs(packages: Mapping[str, _Package], requires: Iterable[Requirement]) -> set[str]:
    """The installed packages that requirements name, with those of the extras in them."""
    found: set[str] = set()
    done: set[tuple[str, str]] = set()
    queue = [*requires]
    while queue:
        requirement = queue.pop()
        name = normalised(requirement.name)
        if name not in packages:
            continue
        found.add(name)
        for extra in map(normalised, requirement.extras):
            if (name, extra) not in done:
                done.add((name, extra))
                queue += packages[name].extras.get(extra, [])
    return found


def _direct(packages: Mapping[str, _Package], graph: Mapping[str, set[str]], seeds: Collection[str]) -> set[str]:
    """The packages that were asked for.

    pip marks them by a file REQUESTED. Installers that mark every package, such as uv, mark nothing: of theirs, those
    that no other package requires are taken. So are those that are left of packages that are not installed any more.
    """
    direct: set[str] = set()
    for name, each in packages.items():
        is_marked = each.is_requested and each.installer == "pip"
        if (each.origin or is_marked) and name not in seeds:
            direct.add(name)
    return {*direct, *roots(graph, direct)} - {*seeds}


def _add(package: _Package, direct: Collection[str], by: list[str], site: Site, imported: Import) -> None:
    """Add a package to the draft and the ledger. by: those that require it."""
    name, text = package.name, f"{package.name} {package.version}".strip()
    notes = []
    if package.version:
        imported.draft.versions.setdefault(name, package.version)
        notes.append(f"preferred version {package.version}")
    notes += [f"its requirement `{each[:80]}` can't be read" for each in package.unread[:3]]
    if name not in direct:
        if by:
            verb = "requires" if len(by) == 1 else "require"
            notes.append(f"{' and '.join(by[:2])} {verb} it")
        else:
            notes.insert(0, f"of the tool that made the environment: add `{name}` to [pip] if code imports it")
        imported.add(package.source, text, Outcome.TRANSLATED, ", ".join(notes))
    elif address := _address(package.origin):
        outcome, reason = add_requirement(f"{name} @ {address}", package.source, imported, site.prefix)
        reason = reason or f"`{name} @ {address}`"
        if not outcome.is_lost:
            outcome, reason = Outcome.TRANSLATED, ", ".join([reason, *notes])
        imported.add(package.source, text, outcome, reason)
    else:
        imported.draft.dependencies.append(DraftRequirement(name, package.source))
        imported.add(package.source, text, Outcome.TRANSLATED, ", ".join([f"`{name}`", *notes]))


def _address(origin: Mapping[str, Any]) -> str:
    """The address of PEP 610's direct_url.json, as a requirement has it; empty if it is from an index."""
    url = origin.get("url")
    if not isinstance(url, str) or not url:
        return ""
    fragments: list[str] = []
    if isinstance(origin.get("subdirectory"), str):
        fragments.append(f"subdirectory={origin['subdirectory']}")
    vcs, archive = origin.get("vcs_info"), origin.get("archive_info")
    if isinstance(vcs, dict):
        url = f"{vcs.get('vcs')}+{url}@{vcs.get('commit_id')}"
    elif isinstance(archive, dict):
        digest = table_of(archive, "hashes").get("sha256")
        digest = digest or str(archive.get("hash") or "").removeprefix("sha256=")
        if re.fullmatch(r"[0-9a-f]{64}", str(digest)):
            fragments.append(f"sha256={digest}")
    return f"{url}#{'&'.join(fragments)}" if fragments else url


def _read_torch(path: Path, torch: _Package, imported: Import) -> None:
    """The CUDA of torch's build, which its version may lack, by the text of a module."""
    values = dict(_TORCH.findall(_text(path)[:10_000]))
    source = Source(imported.shown(path))
    if values.get("cuda"):
        add_cuda(values["cuda"], torch.source, imported, f"torch {torch.version} is built for it")
    elif others := [f"{key} {value}" for key, value in values.items() if value]:
        reason = "only builds for CUDA and the CPU are supported"
        imported.add(source, f"torch {torch.version} for {' and '.join(others)}", Outcome.REFUSED, reason)
    elif "cuda" in values:
        add_cuda(CPU, torch.source, imported, f"torch {torch.version} is built for the CPU")


def _read_paths(site: Site, imported: Import) -> None:
    """Files that add folders to Python's path and belong to no package."""
    owned: set[str] = set()
    for each in distributions(site.path):
        owned.update(entry.path for entry in each.entries or ())
    for path in sorted(site.path.glob("*.pth")):
        if path.name in owned or path.name in _OF_VENVS or site.is_of_conda(path.name):
            continue
        for line in _text(path).splitlines()[:1000]:
            if not line.strip() or line.startswith("#"):
                continue
            reason = "a folder on Python's path that no package installed: name its project in [pip] dependencies"
            if re.match(r"import[ \t]", line):
                reason = "code that runs whenever Python starts, which no package installed"
            imported.add(Source(imported.shown(path)), line, Outcome.REFUSED, reason)
