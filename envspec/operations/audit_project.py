"""A project's own files -> what is wrong with its environment today: the stages of `envspec audit-project`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from packaging.specifiers import SpecifierSet

from envspec.context import SILENT, Context, counted
from envspec.diagnostics.audit import examine, worst_first
from envspec.diagnostics.audit.cuda import labels
from envspec.diagnostics.audit.index import (
    GONE,
    NO_FILE,
    comes_from_another,
    is_elsewhere,
    pins_of,
    releases,
)
from envspec.diagnostics.audit.python import series_of, specifier_of
from envspec.diagnostics.audit.target import by_files, torch_bound, torch_build
from envspec.diagnostics.audit.types import Audit, AuditReport, Finding, Required, Severity, SkippedCheck, Taken
from envspec.documents import parse_toml
from envspec.errors import NetworkError, NoSolution, UsageError
from envspec.facts import Facts, load_facts
from envspec.facts.gpu import UnknownGpu, find_gpu
from envspec.facts.tables import GpuRow, numeric
from envspec.facts.torch import NoSuchBuild
from envspec.importers import known_importer, new_import, sources_in
from envspec.importers.prefix import is_environment
from envspec.importers.python_locks import python_versions
from envspec.importers.spec_text import spec_of
from envspec.importers.types import PYTHON_SERIES, Choices, Clue, DraftRequirement, Import, Source
from envspec.io.http import open_http
from envspec.io.http_settings import default_index_url
from envspec.io.store import Store, StoredPage
from envspec.io.tasks import run_interruptible
from envspec.models import DEFAULT_INDEX, SPEC, Platform, Python, Target
from envspec.names import normalised
from envspec.resolve import cache, resolver
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import PageListing, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex, Rules
from envspec.resolve.pypi.index.selection import own_files
from envspec.resolve.pypi.resolve import TargetRequest, resolve_all
from envspec.resolve.pypi.resolver import Bound, BoundKind, PypiRequest
from envspec.spec.conda import name_of
from envspec.spec.requirements import Requirement, RequirementKind, read_constraint, read_override, read_requirement
from envspec.spec.targets import MACOS, marker_environment, wheel_tags

#: Looked for in a folder if no source is named: what a project's tools read by themselves, first those that include
#: others.
USUAL: Final = (
    ".devcontainer/devcontainer.json",
    "Dockerfile",
    "cog.yaml",
    "conda-lock.yml",
    "environment.yml",
    "environment.yaml",
    "pixi.toml",
    "pyproject.toml",
    "uv.lock",
    "poetry.lock",
    "pylock.toml",
    "requirements.txt",
)
#: The system if no source names one; its glibc bounds the wheels.
_SYSTEM: Final = "ubuntu24.04"
_IGNORED: Final = re.compile(r"#\s*envspec:\s*ignore\[([A-Za-z0-9,\s]+)\]")
#: Series that projects still require, and no spec can have.
_OLD_PYTHONS: Final = ("3.7", "3.6", "3.5", "2.7")
#: Names in the ledger after which the system's Python is the image's.
_SYSTEM_PYTHONS: Final = ("python3", "python3-pip", "python3-dev", "python3-venv")
#: Lines that let installers choose pre-releases.
_PRERELEASES: Final = re.compile(r"(?:^|\s)--pre\b|prerelease|PIP_PRE\b", re.IGNORECASE)
#: Files whose commands install packages one after the other, and these commands.
_WITH_COMMANDS: Final = re.compile(r"(?:Docker|Container)file[^/]*$|devcontainer\.json$|cog\.ya?ml$|\.sh$")
_INSTALLING: Final = re.compile(r"\b(?:pip3?|uv|poetry|pdm|conda|mamba)\s+(?:pip\s+)?(?:install|sync|add|create)\b")
_OPTION: Final = Source("")


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What to examine. sources: files, environments, and folders of projects; none: `root`, as a project's folder.

    gpus, driver, python: of the machine that is meant; else what the sources name. ignored: codes.
    """

    root: Path
    sources: tuple[Path, ...] = ()
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    platform: Platform = Platform.LINUX_64
    python: str | None = None
    ignored: tuple[str, ...] = ()


def audit_project(request: AuditRequest, context: Context) -> AuditReport:
    """Read the sources, request from the index what they name, and examine both.

    Each file of a folder is an environment of its own, with the files that it includes; files that are named are one
    together. Releases count up to the beginning of today, so that a second run on the same day needs no network.

    Raises:
        UsageError: no source, one that can't be read, an unknown GPU or Python.
    """
    if request.python is not None and not series_of(request.python):
        raise UsageError(f"--python {request.python}: not a version", hint="write it as 3.12 or 3.12.4")
    facts = load_facts()
    as_of = context.now().replace(hour=0, minute=0, second=0, microsecond=0)
    imports = read_sources(request.root, request.sources)
    done = {path for imported in imports for path in imported.done}
    folders = _projects(request.root, request.sources)
    not_run = [each for folder in folders for each in _unread(folder, imports[0], done)]
    found: list[Finding] = []
    examined: list[str] = []
    audits = []
    with closing(Store(context.cache)) as store:
        for imported in imports:
            audit = run_interruptible(_audit(request, imported, facts, store, context, as_of))
            findings, missing, checks = examine(audit)
            found += [each for each in findings if not any(map(each.is_same, found))]
            where = f"{audit.top.file}: " if len(imports) > 1 else ""
            not_run += [each._replace(what=f"{where}{each.what}") for each in missing]
            examined += [each for each in checks if each not in examined]
            audits.append(audit)
        store.save()
    wanted = tuple(each for each in worst_first(found) if not _is_ignored(each, request, imports[0]))
    pythons = [f"{each.target.python.series}{' (assumed)' if each.is_python_assumed else ''}" for each in audits]
    return AuditReport(
        wanted,
        tuple(not_run),
        tuple(examined),
        tuple(dict.fromkeys(entry.source.file for each in imports for entry in each.ledger)),
        ", ".join(dict.fromkeys(pythons)),
        request.platform.value,
        as_of.date().isoformat(),
        len(found) - len(wanted),
    )


def read_sources(root: Path, sources: Sequence[Path]) -> list[Import]:
    """The drafts and the ledgers of the environments that the sources describe.

    Raises:
        UsageError: there is none, or envspec does not read it. Unreadable: it can't be read.
    """
    projects = _projects(root, sources)
    named = [each for each in sources if each not in projects]
    groups = [named] if named else []
    groups += [[path] for folder in projects for path in _usual(folder)]
    found: list[Import] = []
    done: set[Path] = set()
    for group in groups:
        if done.issuperset(path.resolve() for path in group):
            continue
        imported = new_import(root)
        for path in (*projects, *group):
            imported.allow(path)
        for path in group:
            imported.run(known_importer(path), path)
        done |= imported.done
        found.append(imported)
    return found


def _projects(root: Path, sources: Sequence[Path]) -> list[Path]:
    """The folders of projects among the sources; `root` if there is no source."""
    if not sources:
        return [root]
    folders = [path for path in sources if path.is_dir()]
    return [path for path in folders if not is_environment(path)]


def _usual(folder: Path) -> list[Path]:
    if found := [folder / name for name in USUAL if (folder / name).is_file()]:
        return found
    raise UsageError(
        f"{folder} has none of the files that envspec looks for",
        hint=f"name the files or the folder of an environment; usual ones: {', '.join(USUAL)}",
    )


def _unread(folder: Path, imported: Import, done: Collection[Path]) -> Iterator[SkippedCheck]:
    """Other files of the folder that envspec reads: what they are for is not known, such as requirements-dev.txt."""
    for path in sources_in(folder):
        if path.resolve() not in done:
            yield SkippedCheck(imported.shown(path), "name it to examine it")


def _gpus(request: AuditRequest, imported: Import, facts: Facts) -> Iterator[tuple[GpuRow, Source]]:
    """Those of the command, else those that the sources name."""
    for name in request.gpus:
        yield find_gpu(facts, name), _OPTION
    for clue in () if request.gpus else imported.draft.gpus:
        with suppress(UnknownGpu):
            yield find_gpu(facts, clue.value), clue.source


def _driver(request: AuditRequest, imported: Import) -> Clue | None:
    if request.driver:
        return Clue(request.driver, _OPTION, "--driver")
    return next(iter(imported.draft.drivers), None)


def _target(platform: Platform, python: str, imported: Import, facts: Facts) -> Target:
    """python: a series or an exact version."""
    version = python if python.count(".") > 1 else facts.newest_python(python) or f"{python}.20"
    systems = (row for clue in imported.draft.systems if (row := facts.system(clue.value)))
    system = next(systems, None) or facts.system(_SYSTEM)
    major, minor = numeric(system.glibc if system else "2.35")[:2]
    return Target(
        platform,
        Python(version, "spec"),
        (major, minor) if platform.is_linux else None,
        MACOS if platform is Platform.OSX_ARM64 else None,
    )


async def _audit(
    request: AuditRequest, imported: Import, facts: Facts, store: Store, context: Context, as_of: datetime
) -> Audit:
    """An environment with the index's pages, the Python that they suit, and what installers choose."""
    pythons = [request.python] if request.python else _pythons(imported, facts)
    audits = [_drafted(request, imported, python, facts, as_of) for python in pythons]
    index = PackageIndex(DEFAULT_INDEX, default_index_url(context.environ))
    pages, missing = await _pages(audits, index, store, context, as_of)
    audits = [
        replace(each, pages=pages, left_out=(*each.left_out, *missing), is_python_assumed=len(audits) > 1)
        for each in audits
    ]
    tried: list[Audit] = []
    for audit in by_files(audits):
        tried.append(await _taken(audit, index, store, context, as_of))
        if not tried[-1].unresolved:
            break
    # Without a solution for any of them, the first is the one that suits most requirements.
    found = tried[0] if tried[-1].taken is None else tried[-1]
    return replace(found, torch=torch_build(found))


def _pythons(imported: Import, facts: Facts) -> list[str]:
    """Empty for what `envspec init` chooses, alone if a source states it; then series that the sources allow too."""
    systems = (facts.system(clue.value) for clue in imported.draft.systems[:1])
    has_own = any(row is not None and row.python for row in systems)
    is_installed = any(entry.text in _SYSTEM_PYTHONS for entry in imported.ledger)
    named = list(filter(None, (series_of(clue.value) for clue in imported.draft.pythons)))
    old = _old_python(imported, named)
    if old:
        return [old]
    if named or (has_own and is_installed):
        return [""]
    return ["", *map(series_of, python_versions(imported))]


def _old_python(imported: Import, named: Sequence[str]) -> str:
    """The series that the sources require if no spec can have it; empty if one can. named: those that they name."""
    if named:
        return "" if named[0] in PYTHON_SERIES else named[0]
    bounds = [bound for clue in imported.draft.pythons if (bound := specifier_of(clue)) is not None]
    for series in (*PYTHON_SERIES, *_OLD_PYTHONS):
        if all(_may_be_in(bound, series) for bound in bounds):
            return series if series in _OLD_PYTHONS else ""
    return ""


def _may_be_in(bound: SpecifierSet, series: str) -> bool:
    """Whether an early or a late release of a series is within a bound."""
    return bound.contains(f"{series}.0") or bound.contains(f"{series}.9")


def _drafted(request: AuditRequest, imported: Import, python: str, facts: Facts, now: datetime) -> Audit:
    """An environment as `envspec init` writes it. python: empty for its choice."""
    copied = replace(imported, ledger=[*imported.ledger])
    choices = Choices(now, "audit", python, (request.platform,))
    spec = parse_toml(spec_of(copied, choices, facts, request.root, now).text)
    target = _target(request.platform, spec["env"]["python"], imported, facts)
    environment = marker_environment(target)
    pip = spec.get("pip", {})
    required, left_out = [], []
    for text in pip.get("dependencies", []):
        requirement = read_requirement(text)
        source = _source_of(requirement, imported.draft.dependencies)
        if requirement.kind is RequirementKind.LOCAL:
            left_out.append(SkippedCheck(f"{source}: a local project", "it is not built"))
        elif requirement.applies_to(environment):
            required.append(Required(requirement, source))
    bounds = [read_constraint(text) for text in pip.get("constraints", [])]
    return Audit(
        imported.draft,
        tuple(copied.ledger),
        facts,
        target,
        tuple(required),
        tuple(
            Required(each, _source_of(each, imported.draft.constraints))
            for each in bounds
            if each.applies_to(environment)
        ),
        gpus=tuple(_gpus(request, imported, facts)),
        driver=_driver(request, imported),
        commands=_commands(imported),
        overrides=tuple(_overrides(pip.get("overrides", []), environment)),
        left_out=tuple(left_out),
    )


def _commands(imported: Import) -> int:
    """How many commands install packages: of other files than those with commands, one does."""
    files = dict.fromkeys(entry.source.file for entry in imported.ledger)
    paths = [imported.root / name for name in files if _WITH_COMMANDS.search(name)]
    count = sum(len(_INSTALLING.findall(imported.read(path))) for path in paths if path.is_file())
    # cog installs its lists itself.
    return count + any(path.name.startswith("cog.") for path in paths)


def _source_of(requirement: Requirement, lines: Sequence[DraftRequirement]) -> Source:
    """The line of a requirement; of one that an override replaces, the first of its name."""
    same = [each.source for each in lines if each.text == requirement.text]
    named = [each.source for each in lines if _name_of(each) == requirement.name]
    return next(iter([*same, *named]), _OPTION)


def _name_of(line: DraftRequirement) -> str:
    found = re.match(r"[\w.-]+", line.text)
    return normalised(found[0]) if found else ""


def _overrides(
    rows: Sequence[Mapping[str, object]], environment: Mapping[str, str]
) -> Iterator[tuple[str, SpecifierSet | None]]:
    for row in rows:
        override = read_override(str(row["requirement"]))
        if override.applies_to(environment):
            yield override.name, None if row.get("remove") else override.specifier


async def _pages(
    audits: Sequence[Audit], index: PackageIndex, store: Store, context: Context, as_of: datetime
) -> tuple[dict[str, PageListing | None] | None, list[SkippedCheck]]:
    """The pages of all names that the sources require, and of what their locks name; None if there is none at all."""
    names = set[str]()
    for audit in audits:
        names |= {each.requirement.name for each in audit.required if each.requirement.kind is RequirementKind.NAME}
        names |= {name for name, _, _ in pins_of(audit)}
    wanted = sorted(name for name in names if not comes_from_another(audits[0], name))
    found: dict[str, PageListing | None] = {}
    failed: list[str] = []

    async def one(client: IndexClient, name: str) -> None:
        async def read(page: StoredPage) -> PageListing:
            return own_files(parse_page(page.body, page.content_type, page.url), name)

        try:
            found[name] = await client.page(index, name, as_of, read)
        except NotListed:
            found[name] = None
        except NetworkError as error:
            failed.append(f"{name}: {error.message}")

    async with AsyncExitStack() as stack:
        http = None if context.is_offline else await stack.enter_async_context(open_http(context.environ))
        client = IndexClient(store, context.now, http, context.environ)
        await asyncio.gather(*(one(client, name) for name in wanted))
        await client.close()
    failures = [SkippedCheck(f"versions of {counted(len(failed), 'package')}", min(failed))] if failed else []
    return (found or None) if wanted else {}, failures


async def _taken(audit: Audit, index: PackageIndex, store: Store, context: Context, as_of: datetime) -> Audit:
    """What installers choose: the versions of a lock file if there is one, else what resolves today.

    The resolution is by the metadata alone, as pip's and uv's: without the corrections that `envspec lock` applies.
    """
    named = [each for each in audit.required if each.requirement.kind is RequirementKind.NAME]
    locked = audit.versions()
    if len(locked) > len(named) and all(each.requirement.name in locked for each in named):
        return replace(audit, taken={name: Taken(name, version) for name, version in locked.items()})
    resolved = [each for each in named if not comes_from_another(audit, each.requirement.name)]
    if reason := _unresolvable(audit, resolved):
        return _without(audit, reason)
    try:
        constraints = torch_bound(audit)
    except NoSuchBuild as error:
        return _without(audit, error.message)
    target = audit.target
    bounds = [Bound(str(each.requirement)) for each in audit.bounds]
    bounds += map(Bound, constraints)
    bounds += _installed(audit)
    request = TargetRequest(
        PypiRequest(target, tuple(str(each.requirement) for each in resolved), tuple(bounds)),
        Rules(as_of, tuple(wheel_tags(target)), index, overrides=dict(audit.overrides)),
        marker_environment(target),
        ["audit", as_of.isoformat(), index.key, sorted(map(str, audit.overrides))],
    )
    key = cache.key_of(["audit", request.answer_key(resolver("uv"))])
    try:
        if (stored := store.answer(key)) is not None:
            raise NoSolution(stored["unsolvable"])
        resolutions = await resolve_all([request], resolver("uv"), store, replace(context, reporter=SILENT))
    except NoSolution as error:
        # Valid for this day's audits alone, as the whole answer is: the key has the date.
        store.put_answer(key, {"unsolvable": error.message})
        if why := _may_be_solved(audit, resolved):
            return _without(audit, f"the default index has no solution, and {why}")
        return replace(_without(audit, "the requirements have no solution"), unresolved=error.message)
    except NetworkError as error:
        return _without(audit, error.message)
    sources = [each.requirement.name for each in audit.required if each not in resolved]
    why = "they are built from sources, or are from another index"
    left_out = [SkippedCheck(f"requirements of {', '.join(sources)}", why)] if sources else []
    if any(not each.packages for each in audit.draft.indexes):
        left_out.append(
            SkippedCheck("indexes that the sources name for no package", "the default index has all of the names")
        )
    found = {each.name: Taken.of(each, SPEC) for each in resolutions[0].packages}
    is_partial = bool(left_out) or any(each.project is not None for each in audit.draft.dependencies)
    return replace(audit, taken=found, is_partial=is_partial, left_out=(*audit.left_out, *left_out))


def _may_be_solved(audit: Audit, resolved: Sequence[Required]) -> str:
    """What may solve requirements that have no solution on the default index; empty if nothing is known."""
    if audit.commands > 1:
        return "later commands replace what earlier ones installed"
    if any(is_elsewhere(audit, each.requirement.name) for each in resolved):
        return "another index of the sources is not read"
    if any(_PRERELEASES.search(each.text) for each in audit.ledger):
        return "the sources allow pre-releases"
    return ""


def _installed(audit: Audit) -> list[Bound]:
    """What a base image has, and pip keeps if the requirements allow it."""
    versions = {name: version.partition("+")[0] for name, version in audit.draft.versions.items()}
    return [Bound(f"{name}=={version}", BoundKind.PINNED) for name, version in versions.items()]


def _without(audit: Audit, reason: str) -> Audit:
    return replace(audit, left_out=(*audit.left_out, SkippedCheck("versions that installers choose", reason)))


def _unresolvable(audit: Audit, resolved: Sequence[Required]) -> str:
    """Why it can't be said what installers choose; empty if it can."""
    if any(each.rule.severity is Severity.ERROR for each in labels(audit)):
        return "they find no such build of torch"
    unknown = [f"the sources are for {each.value}" for each in audit.draft.unsupported]
    unknown += [f"{each.value} has packages of its own" for each in audit.draft.bases]
    unknown += [f"the image of {name} has packages of its own" for name in sorted(audit.of_images)]
    if unknown:
        return unknown[0]
    if not resolved:
        return "no source requires a package of the default index by its name"
    if any(name_of(text) not in ("python", "pip") for text, _ in audit.draft.conda):
        return "conda brings packages, too; `envspec init` and `envspec lock` solve both"
    pages = audit.pages or {}
    missing = [each.requirement.name for each in resolved if pages.get(each.requirement.name) is None]
    if missing:
        return f"the page of {missing[0]} is not known"
    broken = [each for each in releases(audit) if each.rule in (GONE, NO_FILE)]
    return f"{broken[0].what}" if broken else ""


def _is_ignored(finding: Finding, request: AuditRequest, imported: Import) -> bool:
    """Whether the command, or a comment on the line or the one above, names the finding's code."""
    codes = {code.upper() for code in request.ignored}
    path = request.root / finding.source.file
    if finding.source.line and path.is_file():
        lines = imported.read(path).splitlines()[max(0, finding.source.line - 2) : finding.source.line]
        above, line = lines if len(lines) == 2 else ("", *lines, "")[:2]
        for text in (above if above.lstrip().startswith("#") else "", line):
            for found in _IGNORED.finditer(text):
                codes |= {code.strip().upper() for code in found[1].split(",")}
    return finding.rule.code in codes
