"""A project's own files -> what is wrong with its environment today: the stages of `envspec audit-project`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct
from packaging.specifiers import SpecifierSet

from envspec.conformance.text import counted
from envspec.context import SILENT, Context
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
from envspec.importers.python_locks import allows, python_versions
from envspec.importers.spec_text import spec_of
from envspec.importers.types import PYTHON_SERIES, Choices, Clue, Draft, DraftRequirement, Import, Source
from envspec.io.http_settings import default_index_url
from envspec.io.lazy_http import open_lazy_http
from envspec.io.store import Store, StoredPage
from envspec.io.tasks import run_interruptible
from envspec.models import DEFAULT_INDEX, Platform, Python, Resolution, Target
from envspec.resolve import cache, resolver
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import PageListing, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex, Rules
from envspec.resolve.pypi.index.selection import own_files
from envspec.resolve.pypi.resolve import resolve_all
from envspec.resolve.pypi.types import Bound, BoundKind, PypiRequest, TargetRequest
from envspec.spec.conda import name_of
from envspec.spec.pip_lines import name_in
from envspec.spec.requirements import Requirement, RequirementKind, read_constraint, read_override, read_requirement
from envspec.spec.targets import MACOS, marker_environment, wheel_tags
from envspec.structs import replace

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


class AuditRequest(Struct, frozen=True):
    """What to examine.

    root: the folder of the project if there are no sources.
    sources: files, environments, and folders of projects.
    gpus, driver, python: of the machine that is meant; by default what the sources name.
    ignored: codes of findings.
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
    not_run: list[SkippedCheck] = []
    for folder in _projects(request.root, request.sources):
        not_run += _unread_files(folder, imports)
    found: dict[tuple[object, ...], Finding] = {}
    examined: list[str] = []
    files: list[str] = []
    pythons: list[str] = []
    with closing(Store(context.cache)) as store:
        for imported in imports:
            audit = run_interruptible(_audit(request, imported, facts, store, context, as_of))
            findings, missing, checks = examine(audit)
            for finding in findings:
                # A line can be part of several environments.
                found.setdefault((finding.rule.code, finding.source, finding.what), finding)
            where = f"{audit.top.file}: " if len(imports) > 1 else ""
            for skipped in missing:
                not_run.append(skipped._replace(what=f"{where}{skipped.what}"))
            examined += checks
            files += [entry.source.file for entry in imported.ledger]
            assumed = " (assumed)" if audit.is_python_assumed else ""
            pythons.append(f"{audit.target.python.series}{assumed}")
        store.save()
    wanted = [each for each in worst_first(found.values()) if not _is_ignored(each, request, imports[0])]
    return AuditReport(
        findings=tuple(wanted),
        not_run=tuple(not_run),
        examined=tuple(dict.fromkeys(examined)),
        sources=tuple(dict.fromkeys(files)),
        python=", ".join(dict.fromkeys(pythons)),
        platform=request.platform.value,
        as_of=as_of.date().isoformat(),
        ignored=len(found) - len(wanted),
    )


def read_sources(root: Path, sources: Sequence[Path]) -> list[Import]:
    """The drafts and the ledgers of the environments that the sources describe.

    Raises:
        UsageError: there is none, or envspec does not read it. Unreadable: it can't be read.
    """
    projects = _projects(root, sources)
    named = [each for each in sources if each not in projects]
    groups = [named] if named else []
    for folder in projects:
        groups += [[path] for path in _usual_files(folder)]
    found: list[Import] = []
    done: set[Path] = set()
    for group in groups:
        if done.issuperset(map(Path.resolve, group)):
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
    folders = []
    for path in sources:
        if path.is_dir() and not is_environment(path):
            folders.append(path)
    return folders


def _usual_files(folder: Path) -> list[Path]:
    found = [folder / name for name in USUAL if (folder / name).is_file()]
    if not found:
        raise UsageError(
            f"{folder} has none of the files that envspec looks for",
            hint=f"name the files or the folder of an environment; usual ones: {', '.join(USUAL)}",
        )
    return found


def _unread_files(folder: Path, imports: Sequence[Import]) -> Iterator[SkippedCheck]:
    """Other files of the folder that envspec reads: what they are for is not known, such as requirements-dev.txt."""
    for path in sources_in(folder):
        real = path.resolve()
        if not any(real in each.done for each in imports):
            yield SkippedCheck(imports[0].shown(path), "name it to examine it")


def _gpus(request: AuditRequest, imported: Import, facts: Facts) -> Iterator[tuple[GpuRow, Source]]:
    """Those of the command, else those that the sources name."""
    if request.gpus:
        for name in request.gpus:
            yield find_gpu(facts, name), _OPTION
        return
    for clue in imported.draft.gpus:
        with suppress(UnknownGpu):
            yield find_gpu(facts, clue.value), clue.source


def _driver(request: AuditRequest, imported: Import) -> Clue | None:
    if request.driver:
        return Clue(request.driver, _OPTION, "--driver")
    return next(iter(imported.draft.drivers), None)


def _target(platform: Platform, python: str, imported: Import, facts: Facts) -> Target:
    """python: a series or an exact version."""
    version = python
    if python.count(".") < 2:
        version = facts.newest_python(python) or f"{python}.20"
    macos = MACOS if platform is Platform.OSX_ARM64 else None
    if not platform.is_linux:
        return Target(platform, Python(version, "spec"), None, macos)
    systems = [facts.system(clue.value) for clue in imported.draft.systems]
    system = next(filter(None, systems), None) or facts.system(_SYSTEM)
    major, minor = numeric(system.glibc if system else "2.35")[:2]
    return Target(platform, Python(version, "spec"), (major, minor), None)


async def _audit(
    request: AuditRequest, imported: Import, facts: Facts, store: Store, context: Context, as_of: datetime
) -> Audit:
    """An environment with the index's pages, the Python that they suit, and what installers choose."""
    pythons = [request.python] if request.python else _pythons(imported, facts)
    drafts = [_draft_audit(request, imported, python, facts, as_of) for python in pythons]
    index = PackageIndex(DEFAULT_INDEX, default_index_url(context.environ))
    pages, missing = await _fetch_pages(drafts, index, store, context, as_of)
    audits: list[Audit] = []
    for draft in drafts:
        left_out = (*draft.left_out, *missing)
        audits.append(replace(draft, pages=pages, left_out=left_out, is_python_assumed=len(drafts) > 1))
    tried: list[Audit] = []
    for audit in by_files(audits):
        tried.append(await _choose_versions(audit, index, store, context, as_of))
        if not tried[-1].unresolved:
            break
    # Without a solution for any of them, the first is the one that suits most requirements.
    found = tried[0] if tried[-1].taken is None else tried[-1]
    return replace(found, torch=torch_build(found))


def _pythons(imported: Import, facts: Facts) -> list[str]:
    """Empty for what `envspec init` chooses, alone if a source states it; then series that the sources allow too."""
    old = _old_python(imported)
    if old:
        return [old]
    if any(series_of(clue.value) for clue in imported.draft.pythons) or _is_python_of_system(imported, facts):
        return [""]
    return ["", *map(series_of, python_versions(imported))]


def _is_python_of_system(imported: Import, facts: Facts) -> bool:
    """Whether the sources install the Python of the system that they name first."""
    if not imported.draft.systems:
        return False
    system = facts.system(imported.draft.systems[0].value)
    if system is None or not system.python:
        return False
    return any(entry.text in _SYSTEM_PYTHONS for entry in imported.ledger)


def _old_python(imported: Import) -> str:
    """The series that the sources require if no spec can have it; empty if one can."""
    bounds: list[SpecifierSet] = []
    for clue in imported.draft.pythons:
        series = series_of(clue.value)
        if series:
            return "" if series in PYTHON_SERIES else series
        bound = specifier_of(clue)
        if bound is not None:
            bounds.append(bound)
    for series in (*PYTHON_SERIES, *_OLD_PYTHONS):
        if all(allows(bound, series) for bound in bounds):
            return series if series in _OLD_PYTHONS else ""
    return ""


def _draft_audit(request: AuditRequest, imported: Import, python: str, facts: Facts, now: datetime) -> Audit:
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
    if imported.draft.pip_from is not None:
        required += _locked(imported.draft, target)
    bounds = []
    for text in pip.get("constraints", []):
        constraint = read_constraint(text)
        if constraint.applies_to(environment):
            bounds.append(Required(constraint, _source_of(constraint, imported.draft.constraints)))
    return Audit(
        imported.draft,
        tuple(copied.ledger),
        facts,
        target,
        tuple(required),
        tuple(bounds),
        gpus=tuple(_gpus(request, imported, facts)),
        driver=_driver(request, imported),
        commands=_commands(imported),
        overrides=tuple(_overrides(pip.get("overrides", []), environment)),
        left_out=tuple(left_out),
    )


def _locked(draft: Draft, target: Target) -> Iterator[Required]:
    """The packages of the default index that a lock has for a Python on linux-64, which is installed as it is."""
    if target.platform is not Platform.LINUX_64:
        return
    for name, locked in draft.locked.items():
        if locked.is_default and target.python.series in locked.pythons and name in draft.versions:
            yield Required(read_requirement(f"{name}=={draft.versions[name]}"), locked.source)


def _commands(imported: Import) -> int:
    """How many commands install packages: of other files than those with commands, one does."""
    count = 0
    has_cog = False
    for name in dict.fromkeys(entry.source.file for entry in imported.ledger):
        if not _WITH_COMMANDS.search(name):
            continue
        path = imported.root / name
        if path.is_file():
            count += len(_INSTALLING.findall(imported.read(path)))
        has_cog = has_cog or path.name.startswith("cog.")
    # cog installs its lists itself.
    return count + has_cog


def _source_of(requirement: Requirement, lines: Sequence[DraftRequirement]) -> Source:
    """The line of a requirement; of one that an override replaces, the first of its name."""
    for each in lines:
        if each.text == requirement.text:
            return each.source
    for each in lines:
        if name_in(each.text) == requirement.name:
            return each.source
    return _OPTION


def _overrides(
    rows: Sequence[Mapping[str, object]], environment: Mapping[str, str]
) -> Iterator[tuple[str, SpecifierSet | None]]:
    for row in rows:
        override = read_override(str(row["requirement"]))
        if override.applies_to(environment):
            specifier = None if row.get("remove") else override.specifier
            yield override.name, specifier


async def _fetch_pages(
    audits: Sequence[Audit], index: PackageIndex, store: Store, context: Context, as_of: datetime
) -> tuple[dict[str, PageListing | None] | None, list[SkippedCheck]]:
    """The pages of all names that the sources require, and of what their locks name; None if there is none at all."""
    names = set[str]()
    for audit in audits:
        for each in _named_packages(audit):
            names.add(each.requirement.name)
        for name, _, _ in pins_of(audit):
            names.add(name)
    wanted = [name for name in sorted(names) if not comes_from_another(audits[0], name)]
    if not wanted:
        return {}, []
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
        http = None if context.is_offline else await stack.enter_async_context(open_lazy_http(context.environ))
        client = IndexClient(store, context.now, http, context.environ)
        await asyncio.gather(*(one(client, name) for name in wanted))
        await client.close()
    if not failed:
        return found, []
    return found or None, [SkippedCheck(f"versions of {counted(len(failed), 'package')}", min(failed))]


def _named_packages(audit: Audit) -> list[Required]:
    """What is required by its name, not as a file, a folder or a repository."""
    return [each for each in audit.required if each.requirement.kind is RequirementKind.NAME]


async def _choose_versions(audit: Audit, index: PackageIndex, store: Store, context: Context, as_of: datetime) -> Audit:
    """What installers choose: the versions of a lock file if there is one, else what resolves today.

    The resolution is by the metadata alone, as pip's and uv's: without the corrections that `envspec lock` applies.
    """
    named = _named_packages(audit)
    locked = audit.versions()
    has_more = audit.draft.pip_from is not None or len(locked) > len(named)
    if has_more and all(each.requirement.name in locked for each in named):
        return replace(audit, taken={name: Taken(name, version) for name, version in locked.items()})
    resolved = [each for each in named if not comes_from_another(audit, each.requirement.name)]
    reason = _unresolvable(audit, resolved)
    if reason:
        return _skip_versions(audit, reason)
    try:
        request = _resolver_request(audit, resolved, index, as_of)
    except NoSuchBuild as error:
        return _skip_versions(audit, error.message)
    key = cache.key_of(["audit", request.answer_key(resolver("uv").version)])
    try:
        if (stored := store.answer(key)) is not None:
            raise NoSolution(stored["unsolvable"])
        resolutions = await resolve_all([request], resolver("uv"), store, replace(context, reporter=SILENT))
    except NoSolution as error:
        # Valid for this day's audits alone, as the whole answer is: the key has the date.
        store.put_answer(key, {"unsolvable": error.message})
        why = _may_be_solved(audit, resolved)
        if why:
            return _skip_versions(audit, f"the default index has no solution, and {why}")
        return replace(_skip_versions(audit, "the requirements have no solution"), unresolved=error.message)
    except NetworkError as error:
        return _skip_versions(audit, error.message)
    return _with_resolution(audit, resolved, resolutions[0])


def _resolver_request(
    audit: Audit, resolved: Sequence[Required], index: PackageIndex, as_of: datetime
) -> TargetRequest:
    """Raises NoSuchBuild if the sources name a build of torch that does not exist."""
    target = audit.target
    names = tuple(str(each.requirement) for each in resolved)
    bounds = [Bound(str(each.requirement)) for each in audit.bounds]
    bounds += map(Bound, torch_bound(audit))
    # What a base image has, and pip keeps if the requirements allow it.
    for name, version in audit.draft.versions.items():
        bounds.append(Bound(f"{name}=={version.partition('+')[0]}", BoundKind.PINNED))
    return TargetRequest(
        PypiRequest(target, names, tuple(bounds)),
        Rules(
            as_of,
            tuple(wheel_tags(target)),
            index,
            overrides=dict(audit.overrides),
            environment=marker_environment(target),
        ),
        ["audit", as_of.isoformat(), index.key, sorted(map(str, audit.overrides))],
    )


def _with_resolution(audit: Audit, resolved: Sequence[Required], resolution: Resolution) -> Audit:
    """The audit with the packages of a resolution, and with what the sources require besides."""
    left_out = list(audit.left_out)
    others = [each.requirement.name for each in audit.required if each not in resolved]
    if others:
        why = "they are built from sources, or are from another index"
        left_out.append(SkippedCheck(f"requirements of {', '.join(others)}", why))
    if any(not each.packages for each in audit.draft.indexes):
        left_out.append(
            SkippedCheck("indexes that the sources name for no package", "the default index has all of the names")
        )
    has_projects = any(each.project is not None for each in audit.draft.dependencies)
    is_partial = has_projects or len(left_out) > len(audit.left_out)
    taken = {}
    for each in resolution.packages:
        by = tuple(dependent.name for dependent in each.required_by)
        taken[each.name] = Taken(each.name, each.version, each.file.filename, each.file.size_bytes, by)
    return replace(audit, taken=taken, is_partial=is_partial, left_out=tuple(left_out))


def _may_be_solved(audit: Audit, resolved: Sequence[Required]) -> str:
    """What may solve requirements that have no solution on the default index; empty if nothing is known."""
    if audit.commands > 1:
        return "later commands replace what earlier ones installed"
    if any(is_elsewhere(audit, each.requirement.name) for each in resolved):
        return "another index of the sources is not read"
    if any(_PRERELEASES.search(each.text) for each in audit.ledger):
        return "the sources allow pre-releases"
    return ""


def _skip_versions(audit: Audit, reason: str) -> Audit:
    return replace(audit, left_out=(*audit.left_out, SkippedCheck("versions that installers choose", reason)))


def _unresolvable(audit: Audit, resolved: Sequence[Required]) -> str:
    """Why it can't be said what installers choose; empty if it can."""
    if any(each.rule.severity is Severity.ERROR for each in labels(audit)):
        return "they find no such build of torch"
    if audit.draft.unsupported:
        return f"the sources are for {audit.draft.unsupported[0].value}"
    if audit.draft.bases:
        return f"{audit.draft.bases[0].value} has packages of its own"
    if audit.of_images:
        return f"the image of {min(audit.of_images)} has packages of its own"
    return _unknown_packages(audit, resolved)


def _unknown_packages(audit: Audit, resolved: Sequence[Required]) -> str:
    """Why it is not known which packages an index gives; empty if it is."""
    if not resolved:
        return "no source requires a package of the default index by its name"
    if any(name_of(text) not in ("python", "pip") for text in audit.draft.match_specs):
        return "conda brings packages, too; `envspec init` and `envspec lock` solve both"
    pages = audit.pages or {}
    for each in resolved:
        if pages.get(each.requirement.name) is None:
            return f"the page of {each.requirement.name} is not known"
    for finding in releases(audit):
        if finding.rule in (GONE, NO_FILE):
            return finding.what
    return ""


def _is_ignored(finding: Finding, request: AuditRequest, imported: Import) -> bool:
    """Whether the command, or a comment on the line or the one above, names the finding's code."""
    codes = [*request.ignored]
    path = request.root / finding.source.file
    number = finding.source.line
    if number and path.is_file():
        # An empty one above the first, so that each line has the one above at its own number.
        lines = ["", *imported.read(path).splitlines()]
        texts = lines[number : number + 1]
        texts += [line for line in lines[number - 1 : number] if line.lstrip().startswith("#")]
        for found in _IGNORED.finditer("\n".join(texts)):
            codes += found[1].split(",")
    return finding.rule.code in [code.strip().upper() for code in codes]
