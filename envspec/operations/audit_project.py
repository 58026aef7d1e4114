"""A project's own files -> what is wrong with its environment today: the stages of `envspec audit-project`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from packaging.markers import UndefinedEnvironmentName
from packaging.specifiers import SpecifierSet

from envspec.context import SILENT, Context, counted
from envspec.diagnostics.audit import examine
from envspec.diagnostics.audit.cuda import pytorch_indexes
from envspec.diagnostics.audit.index import GONE, NO_FILE, comes_from_another, pins_of, releases
from envspec.diagnostics.audit.target import assumed_pythons, named_python, torch_bound, torch_build
from envspec.diagnostics.audit.types import Audit, AuditReport, Finding, NotRun, Required, Taken
from envspec.errors import NetworkError, NoSolution, UsageError
from envspec.facts import Facts, load_facts
from envspec.facts.gpu import UnknownGpu, find_gpu
from envspec.facts.tables import GpuRow, numeric
from envspec.facts.torch import NoSuchBuild
from envspec.importers import known_importer, new_import, sources_in
from envspec.importers.prefix import is_environment
from envspec.importers.types import Clue, DraftRequirement, Import, Source
from envspec.io.http import open_http
from envspec.io.http_settings import default_index_url
from envspec.io.store import Store, StoredPage
from envspec.io.tasks import run_interruptible
from envspec.models import DEFAULT_INDEX, SPEC, Platform, Python, Target
from envspec.resolve import cache, resolver
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import PageListing, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex, Rules
from envspec.resolve.pypi.index.selection import own_files
from envspec.resolve.pypi.resolve import TargetRequest, resolve_all
from envspec.resolve.pypi.resolver import PypiRequest
from envspec.spec.conda import name_of
from envspec.spec.errors import BadValue
from envspec.spec.requirements import Requirement, RequirementKind, read_requirement
from envspec.spec.targets import MACOS, marker_environment, wheel_tags

#: Looked for in a folder if no source is named: what a project's tools read by themselves.
USUAL: Final = (
    "pyproject.toml",
    "uv.lock",
    "poetry.lock",
    "pylock.toml",
    "requirements.txt",
    "environment.yml",
    "environment.yaml",
    "conda-lock.yml",
    "pixi.toml",
    "cog.yaml",
    "Dockerfile",
    ".devcontainer/devcontainer.json",
)
#: The system if no source names one; its glibc bounds the wheels.
_SYSTEM: Final = "ubuntu22.04"
_IGNORED: Final = re.compile(r"#\s*envspec:\s*ignore\[([A-Za-z0-9,\s]+)\]")
#: Of a build of torch, in a resolver's message.
_LABEL: Final = re.compile(r"\+(?:cu\d+|cpu)")
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
    """Read the sources, ask the index for what they name, and examine both.

    Releases count up to the beginning of today, so that a second run on the same day asks the index for nothing.

    Raises:
        UsageError: no source, one that can't be read, an unknown GPU or Python.
    """
    facts = load_facts()
    imported = read_sources(request.root, request.sources)
    as_of = context.now().replace(hour=0, minute=0, second=0, microsecond=0)
    others = tuple(each for folder in _projects(request.root, request.sources) for each in _unread(folder, imported))
    audit = Audit(
        imported.draft,
        tuple(imported.ledger),
        facts,
        _target(request.platform, "3.12", imported, facts),
        gpus=tuple(_gpus(request, imported, facts)),
        driver=_driver(request, imported),
        left_out=others,
    )
    with closing(Store(context.cache)) as store:
        audit = run_interruptible(_asked(audit, request, imported, store, context, as_of))
        store.save()
    findings, not_run, examined = examine(audit)
    wanted = tuple(each for each in findings if not _is_ignored(each, request, imported))
    return AuditReport(
        wanted,
        not_run,
        examined,
        tuple(dict.fromkeys(each.source.file for each in imported.ledger)),
        f"{audit.target.python.series}{' (assumed)' if audit.is_python_assumed else ''}",
        request.platform.value,
        as_of.date().isoformat(),
        len(findings) - len(wanted),
    )


def read_sources(root: Path, sources: Sequence[Path]) -> Import:
    """The draft and the ledger of the sources.

    Raises:
        UsageError: there is none, or envspec does not read it. Unreadable: it can't be read.
    """
    projects = _projects(root, sources)
    imported = new_import(root)
    for source in sources or projects:
        imported.allow(source)
        for path in _usual(source) if source in projects else [source]:
            imported.run(known_importer(path), path)
    return imported


def _projects(root: Path, sources: Sequence[Path]) -> list[Path]:
    """The folders of projects among the sources; `root` if there is no source."""
    return [path for path in sources if path.is_dir() and not is_environment(path)] if sources else [root]


def _usual(folder: Path) -> list[Path]:
    if found := [folder / name for name in USUAL if (folder / name).is_file()]:
        return found
    raise UsageError(
        f"{folder} has none of the files that envspec looks for",
        hint=f"name the files or the folder of an environment; usual ones: {', '.join(USUAL)}",
    )


def _unread(folder: Path, imported: Import) -> Iterator[NotRun]:
    """Other files of the folder that envspec reads: what they are for is not known, such as requirements-dev.txt."""
    for path in sources_in(folder):
        if path.resolve() not in imported.done:
            yield NotRun(imported.shown(path), "name it to examine it")


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
    version = python if python.count(".") > 1 else facts.newest_python(python) or f"{python}.0"
    systems = (row for clue in imported.draft.systems if (row := facts.system(clue.value)))
    system = next(systems, None) or facts.system(_SYSTEM)
    major, minor = numeric(system.glibc if system else "2.35")[:2]
    return Target(
        platform,
        Python(version, "spec"),
        (major, minor) if platform.is_linux else None,
        MACOS if platform is Platform.OSX_ARM64 else None,
    )


async def _asked(
    audit: Audit, request: AuditRequest, imported: Import, store: Store, context: Context, as_of: datetime
) -> Audit:
    """The audit with the index's answers, the Python that they suit, and what installers choose."""
    lines, unread = _read(imported.draft.dependencies)
    bounds, _ = _read(imported.draft.constraints)
    audit = replace(audit, required=tuple(lines), bounds=tuple(bounds))
    index = PackageIndex(DEFAULT_INDEX, default_index_url(context.environ))
    pages, missing = await _pages(audit, index, store, context, as_of)
    audit = replace(audit, pages=pages, left_out=(*audit.left_out, *unread, *missing))
    named = named_python(audit, request.python)
    tried: list[Audit] = []
    for python in [named] if named else assumed_pythons(audit):
        target = _target(request.platform, python, imported, audit.facts)
        environment = marker_environment(target)
        chosen = replace(
            audit,
            target=target,
            is_python_assumed=not named,
            required=tuple(each for each in lines if _applies(each.requirement, environment)),
            bounds=tuple(each for each in bounds if _applies(each.requirement, environment)),
        )
        tried.append(await _taken(chosen, index, store, context, as_of))
        if not tried[-1].unresolved:
            break
    # Without a solution for any of them, the first is the one that suits most requirements.
    found = tried[0] if tried[-1].taken is None else tried[-1]
    return replace(found, torch=torch_build(found))


def _read(drafts: Iterable[DraftRequirement]) -> tuple[list[Required], list[NotRun]]:
    """The requirements, and those that can't be examined."""
    found, left_out = [], []
    for each in drafts:
        if each.project is not None:
            left_out.append(NotRun(f"{each.source}: a local project", "it is not built"))
            continue
        try:
            found.append(Required(read_requirement(each.text), each.source))
        except BadValue as error:
            left_out.append(NotRun(f"{each.source}: {each.text}", str(error)))
    return found, left_out


def _applies(requirement: Requirement, environment: Mapping[str, str]) -> bool:
    try:
        return requirement.applies_to(environment)
    except UndefinedEnvironmentName:
        # Of an extra that nothing asks for.
        return False


async def _pages(
    audit: Audit, index: PackageIndex, store: Store, context: Context, as_of: datetime
) -> tuple[dict[str, PageListing | None] | None, list[NotRun]]:
    """The pages of all names that the sources require, and of what their locks name; None if there is none at all."""
    names = {each.requirement.name for each in audit.required if each.requirement.kind is RequirementKind.NAME}
    names |= {name for name, _, _ in pins_of(audit)}
    wanted = sorted(name for name in names if not comes_from_another(audit, name))
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
    failures = [NotRun(f"versions of {counted(len(failed), 'package')}", min(failed))] if failed else []
    return (found or None) if wanted else {}, failures


async def _taken(audit: Audit, index: PackageIndex, store: Store, context: Context, as_of: datetime) -> Audit:
    """What installers choose: the versions of a lock file if there is one, else what resolves today.

    The resolution is by the metadata alone, as pip's and uv's: without the corrections that `envspec lock` applies.
    """
    named = [each for each in audit.required if each.requirement.kind is RequirementKind.NAME]
    locked = audit.draft.versions
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
    bounds = (*(str(each.requirement) for each in audit.bounds), *constraints)
    request = TargetRequest(
        PypiRequest(target, tuple(str(each.requirement) for each in resolved), bounds, _installed(audit)),
        Rules(as_of, tuple(wheel_tags(target)), index, overrides=_overrides(audit)),
        marker_environment(target),
        ["audit", as_of.isoformat(), index.key, sorted(audit.draft.overrides)],
    )
    key = cache.key_of(["audit", request.answer_key(resolver("uv"))])
    try:
        if (stored := store.answer(key)) is not None:
            raise NoSolution(stored["unsolvable"])
        resolutions = await resolve_all([request], resolver("uv"), store, replace(context, reporter=SILENT))
    except NoSolution as error:
        # Valid for this day's audits alone, as the whole answer is: the key has the date.
        store.put_answer(key, {"unsolvable": error.message})
        is_labelled = pytorch_indexes(audit.ledger) and _LABEL.search(error.message)
        if is_labelled or any(not each.packages for each in audit.draft.indexes):
            return _without(audit, "the default index has no solution, and another index of the sources is not read")
        return replace(_without(audit, "the requirements have no solution"), unresolved=error.message)
    except NetworkError as error:
        return _without(audit, error.message)
    sources = [each.requirement.name for each in audit.required if each not in resolved]
    why = "they are built from sources, or are from another index"
    left_out = [NotRun(f"requirements of {', '.join(sources)}", why)] if sources else []
    if any(not each.packages for each in audit.draft.indexes):
        left_out.append(
            NotRun("indexes that the sources name for no package", "the default index has all of the names")
        )
    found = {each.name: Taken.of(each, SPEC) for each in resolutions[0].packages}
    return replace(audit, taken=found, left_out=(*audit.left_out, *left_out))


def _installed(audit: Audit) -> tuple[tuple[str, str], ...]:
    """What a base image has, and pip keeps if the requirements allow it."""
    return tuple(sorted((name, version.partition("+")[0]) for name, version in audit.draft.versions.items()))


def _without(audit: Audit, reason: str) -> Audit:
    return replace(audit, left_out=(*audit.left_out, NotRun("versions that installers choose", reason)))


def _unresolvable(audit: Audit, resolved: Sequence[Required]) -> str:
    """Why it can't be said what installers choose; empty if it can."""
    if audit.draft.bases:
        return f"{audit.draft.bases[0].value} has packages of its own"
    if not resolved:
        return "no source requires a package of the default index by its name"
    if any(name_of(text) not in ("python", "pip") for text, _ in audit.draft.conda):
        return "conda brings packages, too; `envspec init` and `envspec lock` solve both"
    missing = [each.requirement.name for each in resolved if (audit.pages or {}).get(each.requirement.name) is None]
    if missing:
        return f"the page of {missing[0]} is not known"
    broken = [each for each in releases(audit) if each.rule in (GONE, NO_FILE)]
    return f"{broken[0].what}" if broken else ""


def _overrides(audit: Audit) -> dict[str, SpecifierSet | None]:
    found: dict[str, SpecifierSet | None] = {}
    for text, _ in audit.draft.overrides:
        with suppress(BadValue):
            requirement = read_requirement(text)
            found[requirement.name] = requirement.specifier
    return found


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
