"""Spec, target and facts -> the question for an engine: which names from where, which versions, up to when. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.errors import NoSolution
from envspec.facts import Facts
from envspec.facts.torch import MEMBERS, BuildChoice, CudaChoice, choose_build, family_mismatch
from envspec.facts.torch import TorchIndex as Home
from envspec.models import DEFAULT_INDEX, SPEC, CudaVersion, Decision, Dependent, NamedIndex, Target
from envspec.origins import INDEX_FAMILY, PYTORCH_INDEX
from envspec.resolve.pypi.conflicts import check_halves, members_beside_condas_torch
from envspec.resolve.pypi.index.client import Index
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import Correction, Route, Rules, Source, routes_of
from envspec.resolve.pypi.index.selection import TagRanks, version_of
from envspec.resolve.pypi.resolve import Question
from envspec.resolve.pypi.resolver import Request
from envspec.resolve.types import Provider
from envspec.spec import Requirement, RequirementKind, Spec, UndatedFiles
from envspec.spec.targets import has_cuda, marker_environment, wheel_tags


@dataclass(frozen=True, slots=True)
class Moments:
    """Up to when releases are considered.

    names: names with a moment of their own, by `--upgrade-package`. others: the moment of all other names, while it is
    not yet known which of them must move too; None: `as_of`.
    """

    as_of: datetime
    names: Mapping[str, datetime]
    others: datetime | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Where indexes are on this machine. default: the default index's pages. pytorch: PyTorch's, with `{variant}`."""

    default: str
    pytorch: str = PYTORCH_INDEX


@dataclass(frozen=True, slots=True)
class Given:
    """What is there before any index is asked.

    wheels: those that the spec names, by their URL without credentials. sources: what the spec names to be built, by
    the requirement's text without credentials. provided: the Python packages that conda installs on the platform, by
    PyPI's names.
    """

    wheels: Mapping[str, ListedFile] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    provided: Mapping[str, Provider] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Composed:
    """A question, and what was decided on the way to it."""

    question: Question
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()


def wheel_urls(spec: Spec) -> tuple[Requirement, ...]:
    """The wheels that the spec names by URL."""
    return tuple(r for r in spec.pip.dependencies if r.kind is RequirementKind.WHEEL_URL)


def sources_of(spec: Spec, target: Target) -> tuple[Requirement, ...]:
    """What the spec names to be built for a target: git and local projects, and sdists by URL."""
    environment = marker_environment(target)
    kinds = (RequirementKind.GIT, RequirementKind.LOCAL, RequirementKind.SDIST_URL)
    return tuple(r for r in spec.pip.dependencies if r.kind in kinds and r.applies_to(environment))


def indexes_of(spec: Spec) -> tuple[NamedIndex, ...]:
    """The spec's own indexes; their addresses may hold credentials."""
    return tuple(
        NamedIndex(each.name, each.url, each.packages, each.undated is UndatedFiles.ACCEPT, each.files)
        for each in spec.pip.index
    )


def compose(spec: Spec, target: Target, facts: Facts, moments: Moments, places: Places, given: Given) -> Composed:
    """The question for one target.

    Where conda provides torch, no build of it is chosen.

    Raises:
        BothHalves: what [pip] asks for and what conda installs exclude each other.
        FamilyMismatch: the torch family can't be had as it is asked for.
        NoSuchBuild: no torch of the CUDA that is asked for.
        NoSolution: a package that its index can't give, or a wheel that the target can't load.
    """
    environment = marker_environment(target)
    asked = [requirement for requirement in spec.pip.dependencies if requirement.applies_to(environment)]
    bounds = [requirement for requirement in spec.pip.constraints if requirement.applies_to(environment)]
    tags = tuple(wheel_tags(target))
    provided = given.provided
    check_halves(asked, bounds, spec.pip, provided)
    direct = {
        r.name: given.wheels[str(r.without_credentials().url)] for r in asked if r.kind is RequirementKind.WHEEL_URL
    }
    _loadable(direct, TagRanks(tags), target)
    sources = {r.name: given.sources[str(r)] for r in asked if str(r) in given.sources}
    direct |= {name: _served(source, name) for name, source in sources.items()}
    own = frozenset(direct) | provided.keys() | {r.name for r in (*asked, *bounds) if spec.pip.index_for(r.name)}
    if mixed := members_beside_condas_torch(
        {r.name: (Dependent(SPEC, str(r)),) for r in asked if r.name not in own}, provided
    ):
        raise mixed
    _refuse_unavailable([r.name for r in asked if r.name not in own], spec, facts)
    wanted = _specifiers(r for r in (*asked, *bounds) if r.name not in own)
    names = {r.name for r in asked}
    family = {name: specifier for name, specifier in wanted.items() if name in names}
    family_facts = facts if has_cuda(spec, target.platform) else facts.without_cuda()
    if "torch" not in own and (mismatch := family_mismatch(family_facts, family)):
        raise mismatch
    torch_moment = moments.names.get("torch", moments.as_of)
    build = (
        None
        if "torch" in own
        else choose_build(facts, wanted.get("torch", SpecifierSet()), _wish(spec), target.platform, torch_moment)
    )
    pytorch = _pytorch(build, places)
    routes = (*routes_of(indexes_of(spec)), *(Route(name, pytorch) for name in INDEX_FAMILY if pytorch))
    constraints = [str(r) for r in bounds]
    if build is not None and build.constraint:
        constraints.append(f"torch{build.constraint}")
    rules = Rules(
        as_of=moments.others or moments.as_of,
        tags=tags,
        default=Index(DEFAULT_INDEX, places.default),
        routes=routes,
        cuts=moments.names,
        direct=direct,
        corrections=_corrections(family_facts),
        sdists=frozenset(spec.pip.allow_sdist) - provided.keys(),
        provided=provided,
        sources=sources,
    )
    request = Request(target, tuple(_line(r, direct) for r in asked), tuple(sorted(constraints)), rules.sdists)
    decisions = () if build is None or not build.source else (_decision(build, target),)
    warnings = (build.warning,) if build is not None and build.warning else ()
    # Beside a bound torch, an engine tries these from the newest release down until one takes that torch.
    walked = tuple(name for name in MEMBERS if {name, "torch"} <= family.keys())
    question = Question(request, rules, environment, _identity(spec, rules, family_facts), walked)
    return Composed(question, decisions, warnings)


def _line(requirement: Requirement, direct: Mapping[str, ListedFile]) -> str:
    """What the engine is asked: what has a URL is, in our index, the only version of its name."""
    if requirement.kind is RequirementKind.NAME:
        return str(requirement)
    extras = f"[{','.join(requirement.extras)}]" if requirement.extras else ""
    version = requirement.wheel_version or version_of(direct[requirement.name].filename)
    return f"{requirement.name}{extras}=={version}"


def _served(source: Source, name: str) -> ListedFile:
    """A wheel that was built for this very target, as our index shows it: no engine need look at its tags."""
    wheel = source.built
    version = wheel.filename.split("-")[1]
    served = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return ListedFile(served, source.file.url or served, wheel.sha256, wheel.size_bytes, None, None, None, None)


def _wish(spec: Spec) -> CudaVersion | CudaChoice:
    if spec.cuda is None:
        return CudaChoice.CPU
    return spec.cuda.version or CudaChoice.ANY


def _specifiers(requirements: Iterable[Requirement]) -> dict[str, SpecifierSet]:
    found: dict[str, SpecifierSet] = {}
    for requirement in requirements:
        found[requirement.name] = found.get(requirement.name, SpecifierSet()) & requirement.specifier
    return found


def _refuse_unavailable(names: Iterable[str], spec: Spec, facts: Facts) -> None:
    for name in names:
        rule = facts.rules.get(name)
        if rule is not None and name not in spec.pip.allow_sdist:
            raise NoSolution(f"{name}: {rule.reason}", hint=rule.advice)


def _loadable(direct: Mapping[str, ListedFile], ranks: TagRanks, target: Target) -> None:
    for name, file in direct.items():
        if ranks.rank(file.filename) is None:
            level = f" (glibc {target.glibc[0]}.{target.glibc[1]})" if target.glibc else ""
            raise NoSolution(
                f"{name}: {file.filename} can't be loaded by Python {target.python.series} "
                f"on {target.platform.value}{level}",
                hint="name a wheel for that Python and platform, or give each platform its own with a marker",
            )


def _pytorch(build: BuildChoice | None, places: Places) -> Index | None:
    """PyTorch's own index. It gives no upload times: the facts say which releases `as_of` allows."""
    if build is None or build.index is Home.DEFAULT or build.variant is None:
        return None
    name = f"pytorch-{build.variant}"
    url = places.pytorch.format(variant=build.variant).rstrip("/") + "/"
    original = PYTORCH_INDEX.format(variant=build.variant).rstrip("/") + "/"
    return Index(name, url, dated=False, stands_for=original if url != original else None)


def _corrections(facts: Facts) -> dict[str, tuple[Correction, ...]]:
    found: dict[str, tuple[Correction, ...]] = {}
    for edge in facts.edges:
        found[edge.package] = (*found.get(edge.package, ()), Correction(_within(edge.versions), edge.requires))
    return found


def _within(specifier: str) -> Callable[[Version], bool]:
    bound = SpecifierSet(specifier)
    return lambda version: bound.contains(version, prereleases=True)


def _decision(build: BuildChoice, target: Target) -> Decision:
    where = "the default index" if build.url is None else f"PyTorch's index of {build.variant}"
    return Decision(
        "torch.build", f"{build.variant or 'default'} from {where}", build.why, build.source, target.platform
    )


def _identity(spec: Spec, rules: Rules, facts: Facts) -> object:
    """All that decides what a view shows. The facts that a spec adds stand for themselves, ours for their version."""
    return {
        "as_of": rules.as_of,
        "cuts": sorted(rules.cuts.items()),
        "default": rules.default.key,
        "routes": [[route.pattern, route.index.name, route.index.key, route.index.dated] for route in rules.routes],
        "direct": sorted((name, file.url, file.sha256) for name, file in rules.direct.items()),
        **(
            {
                "sources": sorted(
                    (name, source.file.index, source.file.filename) for name, source in rules.sources.items()
                )
            }
            if rules.sources
            else {}
        ),
        "sdists": sorted(rules.sdists),
        "facts": [facts.version, spec.facts.tables()],
        "provided": sorted((p.name, p.version, p.package, p.channel) for p in rules.provided.values()),
        "corrections": [[edge.package, edge.versions, edge.requires] for edge in facts.edges],
    }
