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
from packaging.version import InvalidVersion, Version

from envspec.context import SILENT, Context, counted
from envspec.diagnostics.audit import examine
from envspec.diagnostics.audit.cuda import is_extra, variant_of
from envspec.diagnostics.audit.index import accepts_python, is_elsewhere, pins_of, release_files
from envspec.diagnostics.audit.python import series_of, specifier_of
from envspec.diagnostics.audit.types import Audit, AuditReport, Finding, NotRun, Required, Taken, TorchBuild
from envspec.errors import NetworkError, NoSolution, UsageError
from envspec.facts import Facts, load_facts
from envspec.facts.gpu import UnknownGpu, find_gpu
from envspec.facts.tables import GpuRow, numeric
from envspec.facts.torch import CudaChoice, NoSuchBuild, choose_build, split_label
from envspec.importers import importer_of, new_import
from envspec.importers.types import Clue, DraftRequirement, Import, Source
from envspec.io.http import open_http
from envspec.io.http_settings import default_index_url
from envspec.io.store import Store
from envspec.io.tasks import run_interruptible
from envspec.models import DEFAULT_INDEX, SPEC, CudaVersion, Platform, Python, Target
from envspec.resolve import resolver
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import BadPage, PageListing, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex, Rules
from envspec.resolve.pypi.index.selection import TagRanks, own_files
from envspec.resolve.pypi.resolve import TargetRequest, resolve_all
from envspec.resolve.pypi.resolver import PypiRequest
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
#: Pythons that are tried if no source names one, the newest last.
_OLDEST: Final = (3, 8)
_IGNORED: Final = re.compile(r"#\s*envspec:\s*ignore\[([A-Za-z0-9,\s]+)\]")
_OPTION: Final = Source("")


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What to examine. sources: files and folders; none: those in `root` that tools read by themselves.

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
    audit = Audit(
        imported.draft,
        tuple(imported.ledger),
        facts,
        _target(request.platform, "3.12", imported, facts),
        gpus=tuple(_gpus(request, imported, facts)),
        driver=_driver(request, imported),
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
    paths = sources or tuple(root / name for name in USUAL if (root / name).is_file())
    if not paths:
        raise UsageError(
            f"{root} has none of the files that envspec looks for", hint=f"name them; usual ones: {', '.join(USUAL)}"
        )
    imported = new_import(root)
    for path in paths:
        importer = importer_of(path) if path.exists() else None
        if importer is None:
            reason = "envspec does not read it" if path.exists() else "it does not exist"
            raise UsageError(f"{path}: {reason}", hint="name a requirements file, pyproject.toml, environment.yml, ...")
        imported.run(importer, path)
    return imported


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
    """The audit with the index's answers, the Python that they suit, and what installers take."""
    lines, unread = _read(imported.draft.dependencies)
    bounds, _ = _read(imported.draft.constraints)
    audit = replace(audit, required=tuple(lines), bounds=tuple(bounds))
    index = PackageIndex(DEFAULT_INDEX, default_index_url(context.environ))
    pages, missing = await _pages(audit, index, store, context, as_of)
    audit = replace(audit, pages=pages, left_out=(*unread, *missing))
    python, is_assumed = _python(request, audit)
    target = _target(request.platform, python, imported, audit.facts)
    environment = marker_environment(target)
    audit = replace(
        audit,
        target=target,
        is_python_assumed=is_assumed,
        required=tuple(each for each in lines if _applies(each.requirement, environment)),
        bounds=tuple(each for each in bounds if _applies(each.requirement, environment)),
    )
    audit = await _taken(audit, index, store, context, as_of)
    return replace(audit, torch=_torch(audit))


def _read(drafts: Iterable[DraftRequirement]) -> tuple[list[Required], list[NotRun]]:
    """The requirements, and those that can't be examined."""
    found, left_out = [], []
    for each in drafts:
        if each.project is not None:
            left_out.append(NotRun(f"{each.source}: the project in {each.project.name}", "it is not built"))
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
    wanted = sorted(name for name in names if not is_elsewhere(audit, name))
    found: dict[str, PageListing | None] = {}
    failed: list[str] = []

    async def one(client: IndexClient, name: str) -> None:
        try:
            page = await client.page(index, name, as_of)
            found[name] = own_files(parse_page(page.body, page.content_type, page.url), name)
        except NotListed:
            found[name] = None
        except (NetworkError, BadPage) as error:
            failed.append(f"{name}: {error.message if isinstance(error, NetworkError) else error}")

    async with AsyncExitStack() as stack:
        http = None if context.is_offline else await stack.enter_async_context(open_http(context.environ))
        client = IndexClient(store, context.now, http, context.environ)
        await asyncio.gather(*(one(client, name) for name in wanted))
        await client.close()
    elsewhere = len(names) - len(wanted)
    left_out = [NotRun(f"versions of {counted(elsewhere, 'package')}", "an index of the sources may have them")]
    failures = [NotRun(f"versions of {counted(len(failed), 'package')}", min(failed))] if failed else []
    return (found or None) if wanted else {}, [*(left_out if elsewhere else []), *failures]


def _python(request: AuditRequest, audit: Audit) -> tuple[str, bool]:
    """The Python to examine, and whether nothing names it: then the newest for which most pinned versions have files.

    Raises:
        UsageError: --python is no version.
    """
    if request.python is not None:
        if not series_of(request.python):
            raise UsageError(f"--python {request.python}: not a version", hint="write it as 3.12 or 3.12.4")
        return request.python, False
    for clue in audit.draft.pythons:
        if series_of(clue.value):
            return clue.value, False
    bounds = [bound for clue in audit.draft.pythons if (bound := specifier_of(clue)) is not None]
    known = [*audit.facts.python_series, *audit.facts.released, *("3.9", "3.10", "3.11", "3.12")]
    everyone = sorted({series for series in known if numeric(series) >= _OLDEST}, key=numeric)
    allowed = [series for series in everyone if all(_allows(bound, series) for bound in bounds)]
    found = max(allowed or everyone, key=lambda series: (_loadable(audit, series), _usual(audit, series)))
    return found, True


def _usual(audit: Audit, series: str) -> tuple[int, ...]:
    """To choose between Pythons that suit alike: the newest that torch's newest release but one has wheels for."""
    torch = audit.facts.torch[-2]
    return (series in torch.pythons, *numeric(series))


def _allows(bound: SpecifierSet, series: str) -> bool:
    return any(bound.contains(f"{series}.{patch}", prereleases=True) for patch in (0, 5, 20))


def _loadable(audit: Audit, series: str) -> int:
    """How many pinned versions have a file for a Python; wheels count twice."""
    target = replace(audit.target, python=Python(f"{series}.20", "spec"))
    ranks = TagRanks(tuple(wheel_tags(target)))
    points = 0
    for name, text, _ in pins_of(audit):
        page = (audit.pages or {}).get(name)
        with suppress(InvalidVersion):
            files = release_files(page, Version(text)) if page is not None else []
            usable = [file for file in files if accepts_python(file, target.python.version)]
            has_wheel = any(ranks.rank(file.filename) is not None for file in usable)
            points += 2 * has_wheel + any(not file.filename.endswith(".whl") for file in usable)
    return points


async def _taken(audit: Audit, index: PackageIndex, store: Store, context: Context, as_of: datetime) -> Audit:
    """What installers take: the versions of a lock file if there is one, else what resolves today.

    The resolution is by the metadata alone, as pip's and uv's: without the corrections that `envspec lock` applies.
    """
    what = "versions that installers take"

    def without(reason: str) -> Audit:
        return replace(audit, left_out=(*audit.left_out, NotRun(what, reason)))

    named = [each for each in audit.required if each.requirement.kind is RequirementKind.NAME]
    locked = audit.draft.versions
    if locked and all(each.requirement.name in locked for each in named):
        return replace(audit, taken={name: Taken(name, version) for name, version in locked.items()})
    if not named:
        return without("no source requires a package of an index by its name")
    if any(name_of_conda(text) not in ("python", "pip") for text, _ in audit.draft.conda):
        return without("conda brings packages, too; `envspec init` and `envspec lock` solve both")
    if elsewhere := sorted({each.requirement.name for each in named if is_elsewhere(audit, each.requirement.name)}):
        return without(f"an index of the sources may have {', '.join(elsewhere[:3])}")
    if broken := _broken(audit):
        return without(f"{broken} can't be installed")
    try:
        constraint = _torch_constraint(audit)
    except NoSuchBuild as error:
        return without(error.message)
    target = audit.target
    # A build's label is on PyTorch's index; the release on the default one has the same requirements but CUDA's.
    lines = tuple(re.sub(r"\+[\w.]+", "", str(each.requirement)) for each in named)
    constraints = tuple(re.sub(r"\+[\w.]+", "", str(each.requirement)) for each in audit.bounds)
    request = TargetRequest(
        PypiRequest(target, lines, (*constraints, *constraint)),
        Rules(as_of, tuple(wheel_tags(target)), index, overrides=_overrides(audit)),
        marker_environment(target),
        ["audit", as_of.isoformat(), index.key, sorted(audit.draft.overrides)],
    )
    try:
        resolutions = await resolve_all([request], resolver("uv"), store, replace(context, reporter=SILENT))
    except NoSolution as error:
        return replace(without("the requirements have no solution"), unresolved=error.message)
    except NetworkError as error:
        return without(error.message)
    sources = [each.requirement.name for each in audit.required if each.requirement.kind is not RequirementKind.NAME]
    left_out = [NotRun(f"requirements of {', '.join(sources)}", "they are built from sources")] if sources else []
    found = {each.name: Taken.of(each, SPEC) for each in resolutions[0].packages}
    return replace(audit, taken=found, left_out=(*audit.left_out, *left_out))


def name_of_conda(text: str) -> str:
    """The name in a match spec."""
    return re.split(r"[\s=<>!~\[]", text.rpartition("::")[2].strip(), maxsplit=1)[0].lower()


def _broken(audit: Audit) -> str:
    """What no installer can take, of what the pages show; empty if there is nothing."""
    from envspec.diagnostics.audit import index

    found = [*index.projects(audit), *index.releases(audit)]
    fatal = (index.NO_PROJECT, index.GONE, index.NO_FILE)
    return ", ".join(dict.fromkeys(each.what.split(" has ")[0] for each in found if each.rule in fatal))


def _overrides(audit: Audit) -> dict[str, SpecifierSet | None]:
    found: dict[str, SpecifierSet | None] = {}
    for text, _ in audit.draft.overrides:
        with suppress(BadValue):
            requirement = read_requirement(text)
            found[requirement.name] = requirement.specifier
    return found


def _torch_constraint(audit: Audit) -> tuple[str, ...]:
    """The releases of torch that are published for the only index of PyTorch's that the sources name.

    Raises:
        NoSuchBuild: there is none.
    """
    wanted = [each.requirement.specifier for each in audit.required if each.requirement.name == "torch"]
    variants = {variant_of(each) for each in audit.draft.indexes if not is_extra(audit, each)} - {""}
    if not wanted or len(variants) != 1:
        return ()
    bound, _ = split_label(SpecifierSet(",".join(str(each) for each in wanted if str(each))))
    variant = variants.pop()
    cuda = CudaChoice.CPU if variant == "cpu" else CudaVersion.parse(variant)
    choice = choose_build(audit.facts, bound, cuda, audit.target.platform)
    return (f"torch<={choice.versions[-1]}",) if choice.versions else ()


def _torch(audit: Audit) -> TorchBuild | None:
    """The build of torch that installers take; of a pinned one also if nothing else is known of them."""
    pinned = next((each.pin for each in audit.required if each.requirement.name == "torch"), "")
    found = (audit.taken or {}).get("torch")
    version = found.version if found else pinned
    row = audit.facts.torch_release(_normal(version)) if version else None
    if row is None:
        return None
    label = version.partition("+")[2] or pinned.partition("+")[2]
    variants = [variant for each in audit.draft.indexes if (variant := variant_of(each)) in row.published]
    default = row.default.get(audit.target.platform.value, "")
    variant = label or next(iter(variants), default)
    if not re.fullmatch(r"cpu|cu\d{3}", variant):
        return None
    return TorchBuild(row, version, variant, audit.bringing("torch"), next(iter(variants), ""))


def _normal(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version


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
