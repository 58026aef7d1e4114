"""Spec, target and facts -> request: which names from which index, which versions, up to when. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial

from msgspec import Struct, field
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.version import Version

from envspec.facts import Facts
from envspec.facts.extensions import Extensions
from envspec.facts.gpu import find_gpu
from envspec.facts.torch import (
    ANY_MACHINE,
    MEMBERS,
    BuildChoice,
    CudaChoice,
    FamilyMismatch,
    Machines,
    NoSuchBuild,
    choose_build,
    cuda_of_label,
    excludes_torch,
    family_mismatch,
    split_label,
)
from envspec.models import DEFAULT_INDEX, SPEC, CudaVersion, Decision, Dependent, NamedIndex, Override, Target
from envspec.origins import INDEX_FAMILY, PYTORCH, PYTORCH_INDEX
from envspec.reasons import Why, reason, words
from envspec.resolve.pypi.errors import check_conflicts, torch_family_conflict
from envspec.resolve.pypi.found import bounds_of, is_release, shown_packages
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import (
    OWN_VERSION,
    BuiltSource,
    Correction,
    PackageIndex,
    Route,
    Rules,
    routes_of,
)
from envspec.resolve.pypi.index.selection import TagRanks, version_of
from envspec.resolve.pypi.metadata import Overrides
from envspec.resolve.pypi.types import Bound, BoundKind, PypiRequest, TargetRequest
from envspec.resolve.types import Cutoffs, FoundEnvironment, ProvidedPackage
from envspec.spec import Requirement, RequirementKind, Spec, UndatedFiles
from envspec.spec.errors import KeyPath, RefusedValues
from envspec.spec.requirements import read_override, without_label
from envspec.spec.sections import IndexFormat
from envspec.spec.targets import has_cuda, marker_environment, wheel_tags
from envspec.structs import replace


class GivenPackages(Struct, frozen=True):
    """Packages that come from no index.

    wheels: those that the spec names, by their URL without credentials.
    sources: what the spec names to be built, by the requirement's text without credentials.
    provided: what conda installs on the platform, by PyPI's names.
    found: what the environment is installed on top of.
    """

    wheels: Mapping[str, ListedFile] = field(default_factory=dict)
    sources: Mapping[str, BuiltSource] = field(default_factory=dict)
    provided: Mapping[str, ProvidedPackage] = field(default_factory=dict)
    found: FoundEnvironment | None = None


class IndexUrls(Struct, frozen=True):
    """The simple pages of the default index, and of PyTorch's indexes, with `{variant}`."""

    default: str
    pytorch: str = PYTORCH_INDEX


def wheel_urls(spec: Spec) -> tuple[Requirement, ...]:
    return tuple(r for r in spec.pip.dependencies if r.kind is RequirementKind.WHEEL_URL)


def sources_of(spec: Spec, target: Target) -> tuple[Requirement, ...]:
    """What is built for a target: git and local projects, and sdists by URL."""
    environment = marker_environment(target)
    kinds = (RequirementKind.GIT, RequirementKind.LOCAL, RequirementKind.SDIST_URL)
    return tuple(r for r in spec.pip.dependencies if r.kind in kinds and r.applies_to(environment))


def indexes_of(spec: Spec) -> tuple[NamedIndex, ...]:
    """The spec's own indexes; their URLs may contain credentials."""
    found: list[NamedIndex] = []
    for each in spec.pip.index:
        links = each.format is IndexFormat.LINKS
        undated = links or each.undated is UndatedFiles.ACCEPT
        form = "links" if links else ""
        found.append(NamedIndex(each.name, each.url, each.packages, undated, each.files, form))
    return tuple(found)


def target_request(
    spec: Spec, target: Target, facts: Facts, cutoffs: Cutoffs, given: GivenPackages, urls: IndexUrls
) -> TargetRequest:
    """The request for one target. No build of torch is chosen if conda provides it.

    Raises:
        PypiCondaConflict: the requirements of [pip] and the packages that conda installs exclude each other.
        FamilyMismatch: the requirements on the torch family exclude each other.
        NoSuchBuild: no torch for the required CUDA, and the spec requires torch or one of its family.
        NoSolution: a package that its index cannot provide.
        RefusedValues: wheels by URL that the target cannot load, a package with two addresses or two overrides.
    """
    lines = _lines_of(spec, target, given)
    overrides = _overrides(spec, target)
    of_cuda = has_cuda(spec, target.platform) or bool(given.found and given.found.torch_build.startswith("cu"))
    family_facts = facts if of_cuda else facts.without_cuda()
    requested = SpecifierSet()
    if "torch" not in lines.elsewhere:
        requested = lines.specifiers.get("torch", SpecifierSet()) & (overrides.get("torch") or SpecifierSet())
        if mismatch := family_mismatch(family_facts, lines.family):
            raise mismatch
        build = _torch_build(spec, target, facts, cutoffs, requested, lines)
    elif given.found is not None and "torch" in given.found.packages:
        build = _build_of_found(given.found, lines.family, family_facts, target)
    else:
        build = BuildChoice(None, (reason("torch-elsewhere"),), "")
    torch = SpecifierSet(",".join(filter(None, (str(split_label(requested)[0]), build.constraint))))
    rules = Rules(
        as_of=cutoffs.others or cutoffs.as_of,
        tags=lines.tags,
        default=PackageIndex(DEFAULT_INDEX, urls.default),
        routes=_routes(spec, build, urls.pytorch),
        cutoffs=cutoffs.names,
        direct=lines.direct,
        corrections=_corrections(family_facts),
        provided=lines.provided,
        sources=lines.sources,
        overrides=overrides,
        extensions=_extensions(spec, target, facts, build, torch, _given_torch(lines.direct, lines.provided)),
        unfit=_unfit(spec, family_facts, lines, overrides, torch),
        environment=lines.environment,
    )
    required = tuple(_line(each, lines.direct) for each in lines.required)
    return TargetRequest(
        PypiRequest(target, required, tuple(_bounds(spec, lines, build, given.found))),
        rules,
        _identity(spec, rules, family_facts),
        _decisions(build, target),
        tuple(filter(None, (words(build.left_out), build.warning))),
        build.serves_gpus,
        build.refused,
    )


class _Lines(Struct, frozen=True):
    """The lines of a spec that apply to one target.

    environment: for markers.
    tags: of the wheels that the target loads.
    required: requirements; without labels that name the build of the torch family.
    bounds: constraints, likewise.
    labelled: the lines with such labels, as they are written.
    direct: what is from no index and installed, by name.
    sources: what of it is built.
    provided: what is there without being installed.
    elsewhere: the names that neither the default index nor PyTorch's decides.
    """

    environment: Mapping[str, str]
    tags: tuple[Tag, ...]
    required: Sequence[Requirement]
    bounds: Sequence[Requirement]
    labelled: Sequence[Requirement]
    direct: Mapping[str, ListedFile]
    sources: Mapping[str, BuiltSource]
    provided: Mapping[str, ProvidedPackage]
    elsewhere: Set[str]

    @property
    def specifiers(self) -> dict[str, SpecifierSet]:
        """What all lines on a name allow together."""
        found: dict[str, SpecifierSet] = {}
        for line in (*self.required, *self.bounds):
            if line.name not in self.elsewhere:
                found[line.name] = found.get(line.name, SpecifierSet()) & line.specifier
        return found

    @property
    def family(self) -> dict[str, SpecifierSet]:
        """The same for the names that are required."""
        names = {line.name for line in self.required}
        return {name: specifier for name, specifier in self.specifiers.items() if name in names}


def _lines_of(spec: Spec, target: Target, given: GivenPackages) -> _Lines:
    environment = marker_environment(target)
    required = [line for line in spec.pip.dependencies if line.applies_to(environment)]
    bounds = [line for line in spec.pip.constraints if line.applies_to(environment)]
    provided = dict(given.provided)
    if given.found is not None:
        provided |= shown_packages(given.found, environment)
    check_conflicts(required, bounds, spec.pip, provided)
    _check_addresses(spec, target)
    tags = tuple(wheel_tags(target))
    direct, sources = _from_no_index(spec, required, given, TagRanks(tags), target)
    of_index = {line.name for line in (*required, *bounds) if spec.pip.index_for(line.name)}
    elsewhere = {*direct, *provided, *of_index}
    labelled: list[Requirement] = []
    if "torch" not in elsewhere:
        labelled = [line for line in (*required, *bounds) if _names_build(line, elsewhere)]
        required = _without_labels(required, labelled)
        bounds = _without_labels(bounds, labelled)
    from_default = {line.name: (Dependent(SPEC, str(line)),) for line in required if line.name not in elsewhere}
    if conflict := torch_family_conflict(from_default, provided):
        raise conflict
    return _Lines(environment, tags, required, bounds, labelled, direct, sources, provided, elsewhere)


def _from_no_index(
    spec: Spec, required: Sequence[Requirement], given: GivenPackages, ranks: TagRanks, target: Target
) -> tuple[dict[str, ListedFile], dict[str, BuiltSource]]:
    """What the required lines name by URLs, folders and repositories, by name; what of it is built.

    Raises:
        RefusedValues: the target cannot load a wheel.
    """
    direct: dict[str, ListedFile] = {}
    sources: dict[str, BuiltSource] = {}
    for line in required:
        if line.kind is RequirementKind.WHEEL_URL:
            direct[line.name] = given.wheels[str(line.without_credentials().url)]
        if str(line) in given.sources:
            sources[line.name] = given.sources[str(line)]
    _check_loadable(spec, direct, ranks, target)
    return direct | {name: _served_file(source, name) for name, source in sources.items()}, sources


def _without_labels(lines: Sequence[Requirement], labelled: Sequence[Requirement]) -> list[Requirement]:
    found = list(lines)
    for at, line in enumerate(lines):
        if line in labelled:
            found[at], _ = without_label(line)
    return found


def _routes(spec: Spec, build: BuildChoice, pytorch_url: str) -> tuple[Route, ...]:
    routes = routes_of(indexes_of(spec))
    pytorch = _pytorch_index(build, pytorch_url)
    if pytorch is not None:
        routes += tuple(Route(name, pytorch) for name in INDEX_FAMILY)
    return routes


def _bounds(spec: Spec, lines: _Lines, build: BuildChoice, found: FoundEnvironment | None) -> Iterator[Bound]:
    for line in lines.bounds:
        yield Bound(str(line))
    if found is not None:
        yield from bounds_of(found, lines.environment)
    if build.constraint:
        yield Bound(f"torch{build.constraint}", why=_why(build) if build.left_out else ())
    for line in spec.pip.prefer:
        if line.applies_to(lines.environment):
            yield Bound(f"{line.name}=={_of_build(line, build)}", BoundKind.PREFERRED)


def _why(build: BuildChoice) -> Why:
    return (*build.why, *build.left_out)


def _decisions(build: BuildChoice, target: Target) -> tuple[Decision, ...]:
    if not build.source:
        return ()
    origin = "the default index" if build.url is None else f"PyTorch's index of {build.variant}"
    value = f"{build.variant or 'default'} from {origin}"
    return (Decision("torch.build", value, _why(build), build.source, target.platform),)


def _names_build(requirement: Requirement, elsewhere: Set[str]) -> bool:
    """Whether a label of a requirement names the build of the torch family: `torchvision==0.24.1+cu128`."""
    is_of_family = requirement.name in INDEX_FAMILY and requirement.name not in elsewhere
    return is_of_family and bool(without_label(requirement)[1])


def _torch_build(
    spec: Spec, target: Target, facts: Facts, cutoffs: Cutoffs, requested: SpecifierSet, lines: _Lines
) -> BuildChoice:
    """A spec may state a CUDA for other packages alone: it is an error if one of them brings torch.

    requested: versions of torch, with no label but that of an override.

    Raises:
        NoSuchBuild: there is none for the CUDA, and the spec requires torch or one of its family.
        FamilyMismatch: they name several.
    """
    cuda, as_of = spec.cuda_on(target.platform), cutoffs.names.get("torch", cutoffs.as_of)
    wish: CudaVersion | CudaChoice = CudaChoice.CPU
    if cuda is not None:
        wish = cuda.version or CudaChoice.ANY
    labels = {label: bare for bare, label in map(without_label, lines.labelled)}
    if len(labels) > 1:
        texts = " and ".join(line.text for line in lines.labelled)
        raise FamilyMismatch(f"{texts} name different builds of torch", hint="write the same label, or none")
    for label, bare in labels.items():
        wish = cuda_of_label(lines.labelled[0].text, label, wish)
        rows = [row for row in facts.members if row.package == bare.name and bare.specifier.contains(row.version)]
        if len(rows) == 1:
            requested &= SpecifierSet(rows[0].torch)
    machines = ANY_MACHINE
    if cuda is not None:
        gpus = tuple(map(partial(find_gpu, facts), cuda.gpus))
        machines = Machines(cuda.driver, gpus, target.python.series)
    try:
        build = choose_build(facts, requested, wish, target.platform, as_of, machines)
    except NoSuchBuild as error:
        if not lines.specifiers.keys().isdisjoint(INDEX_FAMILY):
            raise
        return BuildChoice(None, (), "", refused=error)
    if split_label(requested)[1] and build.variant:
        # What packages require is replaced by a version that only PyTorch's index has.
        return replace(build, url=PYTORCH_INDEX.format(variant=build.variant))
    return build


def _of_build(preferred: Requirement, build: BuildChoice) -> str:
    """A preferred version, as the index from which the torch family comes writes it."""
    [exact] = preferred.specifier
    version = Version(exact.version)
    if preferred.name not in INDEX_FAMILY or version.local is None:
        return str(version)
    if build.url is None:
        return version.public
    return f"{version.public}+{build.variant}"


def _build_of_found(
    found: FoundEnvironment, family: Mapping[str, SpecifierSet], facts: Facts, target: Target
) -> BuildChoice:
    """The build of a torch that is there: which index has its family, if it is a release of its project.

    Raises:
        FamilyMismatch: the spec requires members of the family that do not fit it.
    """
    torch = found.packages["torch"]
    unknown = BuildChoice(
        found.torch_build or None, (reason("torch-found", place=torch.place, torch=torch.version),), ""
    )
    if not is_release(torch.version):
        return unknown
    exact = SpecifierSet(f"=={Version(torch.version).public}")
    if mismatch := family_mismatch(facts, {**family, "torch": exact}):
        mismatch.message = f"{torch}; {mismatch.message}"
        raise mismatch
    cuda: CudaVersion | CudaChoice = CudaChoice.CPU
    if found.torch_build.startswith("cu"):
        cuda = CudaVersion.parse(found.torch_build)
    if found.torch_build:
        with suppress(NoSuchBuild):
            return replace(unknown, url=choose_build(facts, exact, cuda, target.platform).url)
    return unknown


def _given_torch(direct: Mapping[str, ListedFile], provided: Mapping[str, ProvidedPackage]) -> Version | None:
    """The version of a torch that is from no index."""
    if (torch := provided.get("torch")) is not None:
        return Version(torch.version)
    if "torch" not in direct:
        return None
    return version_of(direct["torch"].filename)


def _extensions(
    spec: Spec, target: Target, facts: Facts, build: BuildChoice, torch: SpecifierSet, given: Version | None
) -> Extensions:
    """Which builds of torch the target may have.

    torch: the versions that the spec and the build allow.
    given: a torch from no index; unless its version names its build, it is for the CUDA that the spec names.
    """
    cuda, platform = spec.cuda_on(target.platform), target.platform
    gpus = tuple(map(partial(find_gpu, facts), cuda.gpus)) if cuda else ()
    variant = build.variant
    if variant is None and cuda is None:
        variant = "cpu"
    elif variant is None and cuda and cuda.version:
        variant = cuda.version.variant
    return Extensions(facts, platform, variant, given, torch, gpus)


def _unfit(
    spec: Spec, facts: Facts, lines: _Lines, overrides: Overrides, torch: SpecifierSet
) -> dict[str, Callable[[Version], bool]]:
    """As `Rules.unfit`. torch: the versions that the spec and the build allow."""
    decided = lines.elsewhere | overrides.keys()
    if "torch" in decided:
        return {}
    # What an index of the spec has under a member's name may be another build, for another torch; no line need name it.
    names = [name for name in MEMBERS if name not in decided and spec.pip.index_for(name) is None]
    return {name: partial(excludes_torch, facts, name, torch) for name in names}


def _line(requirement: Requirement, direct: Mapping[str, ListedFile]) -> str:
    """The resolver's requirement: in our index, what has a URL is the only version of its name."""
    if requirement.kind is RequirementKind.NAME:
        return str(requirement)
    extras = f"[{','.join(requirement.extras)}]" if requirement.extras else ""
    version = requirement.wheel_version or version_of(direct[requirement.name].filename)
    return f"{requirement.name}{extras}=={version}"


def _served_file(source: BuiltSource, name: str) -> ListedFile:
    """A wheel that was built for this target, as our index shows it: resolvers need not match its tags. An unbuilt
    sdist is shown as those of indexes are.
    """
    wheel = source.built
    if wheel is None:
        filename = f"{name}-{source.version}.tar.gz"
        return ListedFile(filename, source.file.url or filename, source.file.sha256, source.file.size_bytes)
    version = wheel.filename.split("-")[1]
    served = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return ListedFile(served, source.file.url or served, wheel.sha256, wheel.size_bytes)


def _check_addresses(spec: Spec, target: Target) -> None:
    environment, found = marker_environment(target), dict[str, str]()
    for at, r in enumerate(spec.pip.dependencies):
        address = r.without_credentials().url
        if address is None or not r.applies_to(environment):
            continue
        if (first := found.setdefault(r.name, address)) != address:
            text = f"{r.name} has two addresses on {target.platform.value}: {first} and {address}"
            hint = "keep one of them, or give them markers that exclude each other"
            raise RefusedValues((("pip", "dependencies", at), text, hint))


def _check_loadable(spec: Spec, direct: Mapping[str, ListedFile], ranks: TagRanks, target: Target) -> None:
    level = f" (glibc {target.glibc[0]}.{target.glibc[1]})" if target.glibc else ""
    where = f"by Python {target.python.series} on {target.platform.value}{level}"
    hint = "name a wheel for that Python and platform, or one for each platform, with markers"
    environment = marker_environment(target)
    found: list[tuple[KeyPath, str, str]] = []
    for at, r in enumerate(spec.pip.dependencies):
        if r.kind is not RequirementKind.WHEEL_URL or not r.applies_to(environment):
            continue
        if ranks.rank(direct[r.name].filename) is None:
            text = f"{r.name}: {direct[r.name].filename} cannot be loaded {where}"
            found.append((("pip", "dependencies", at), text, hint))
    if found:
        raise RefusedValues(*found)


def _pytorch_index(build: BuildChoice, template: str) -> PackageIndex | None:
    """PyTorch's own index. It gives no upload times: the facts list the releases that `as_of` allows."""
    if build.url is None or build.variant is None:
        return None
    url = template.format(variant=build.variant).rstrip("/") + "/"
    original = PYTORCH_INDEX.format(variant=build.variant) + "/"
    stands_for = original if url != original else None
    return PackageIndex(f"{PYTORCH}{build.variant}", url, dated=False, stands_for=stands_for)


def _overrides(spec: Spec, target: Target) -> dict[str, SpecifierSet | None]:
    environment, found = marker_environment(target), dict[str, SpecifierSet | None]()
    for at, each in enumerate(spec.pip.overrides):
        override = each.requirement
        if override.applies_to(environment):
            if override.name in found:
                text = f"{override.name} is overridden twice on {target.platform.value}"
                hint = "remove one of them, or give them markers that exclude each other"
                raise RefusedValues((("pip", "overrides", at), text, hint))
            found[override.name] = None if each.remove else override.specifier
    return found


def overrides_of(spec: Spec) -> tuple[Override, ...]:
    """The spec's overrides, as a lock records them."""
    found: list[Override] = []
    for each in spec.pip.overrides:
        found.append(Override(each.requirement.name, str(each.requirement), each.reason, each.remove))
    return tuple(found)


def recorded_overrides(overrides: Iterable[Override], target: Target) -> dict[str, SpecifierSet | None]:
    """The versions of a lock's overrides on one target, by their packages' names; None for what they remove."""
    found: dict[str, SpecifierSet | None] = {}
    for each in overrides:
        override = read_override(each.requirement)
        if override.applies_to(marker_environment(target)):
            found[each.name] = None if each.removed else override.specifier
    return found


def _corrections(facts: Facts) -> dict[str, tuple[Correction, ...]]:
    found: dict[str, tuple[Correction, ...]] = {}
    for edge in facts.edges:
        applies = partial(SpecifierSet(edge.versions).contains, prereleases=True)
        found[edge.package] = (*found.get(edge.package, ()), Correction(applies, edge.requires, edge.reason))
    for row in facts.companions:
        same = (f"{row.of}=={OWN_VERSION}",)
        found[row.package] = (*found.get(row.package, ()), Correction(lambda _: True, same, row.reason))
    return found


def _identity(spec: Spec, rules: Rules, facts: Facts) -> object:
    """All that decides what a view shows. Facts of the spec are part of it, envspec's own by their version."""
    return {
        "as_of": rules.as_of,
        "cutoffs": sorted(rules.cutoffs.items()),
        "default": rules.default.key,
        "routes": [[route.pattern, route.index.name, route.index.key, route.index.dated] for route in rules.routes],
        "direct": sorted((name, file.url, file.sha256) for name, file in rules.direct.items()),
        "sources": sorted((name, source.file.index, source.file.filename) for name, source in rules.sources.items()),
        "extensions": rules.extensions.identity,
        "facts": [facts.version, spec.facts.tables()],
        "overrides": sorted((name, str(versions)) for name, versions in rules.overrides.items()),
        "provided": [rules.provided[name].identity for name in sorted(rules.provided)],
        "corrections": [[edge.package, edge.versions, edge.requires] for edge in facts.edges],
    }
