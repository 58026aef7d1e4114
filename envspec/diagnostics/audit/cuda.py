"""Which CUDA the sources name, which one installers choose, and how often an image has it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from envspec.base_image.cuda import FLAVOR_LIBRARIES, LIBRARIES, PackageSource
from envspec.diagnostics.audit.types import FROM, Audit, Finding, InstalledTorch, Rule, Severity, Taken
from envspec.facts.gpu import has_wheel
from envspec.facts.tables import FactRow, ImageRow, TorchRelease, matching_rows, rows_with
from envspec.importers.types import Clue, LabelledPin, Source
from envspec.models import CudaVersion
from envspec.origins import PYTORCH_INDEX, PYTORCH_PAGES
from envspec.spec.conda import name_of
from envspec.spec.requirements import RequirementKind

OTHER: Final = Rule("ENV302", Severity.WARNING, "installers choose a torch for another CUDA than the sources name")
CPU: Final = Rule("ENV303", Severity.WARNING, "torch is a CPU build, but the sources are for GPUs")
LABEL: Final = Rule("ENV304", Severity.ERROR, "a label such as +cu124 without an index that has such builds")
EITHER: Final = Rule("ENV305", Severity.WARNING, "two indexes have torch, and installers choose differently")
NO_BUILD: Final = Rule("ENV306", Severity.ERROR, "this torch was never published for that CUDA")
TWICE: Final = Rule("ENV401", Severity.WARNING, "the image has CUDA twice")
CONDA: Final = Rule("ENV402", Severity.WARNING, "CUDA or torch comes from conda and from wheels")
COMPILER: Final = Rule("ENV403", Severity.ERROR, "the image's nvcc has another CUDA major version than torch")
TAG: Final = Rule("ENV404", Severity.WARNING, "the CUDA image is past its end of life, or was never published")


#: The label of a build that the facts know of.
_VARIANT: Final = re.compile(r"cpu|cu\d{2,3}")
#: `FROM docker.io/nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04 AS build`
_IMAGE: Final = re.compile(r"(?:^|[\s/\"'])nvidia/cuda:([\w.-]+)")
_TAG: Final = re.compile(r"(\d+(?:\.\d+)+)-(?:(cudnn)\d*-)?(base|runtime|devel)-(\w+[\d.]*)")
#: Options and variables beside which installers read the default index, too.
_EXTRA: Final = re.compile(r"extra[-_]index|find[-_]links|(?:^|\s)-f\s", re.IGNORECASE)
#: conda packages that bring CUDA's libraries.
_CONDA_CUDA: Final = frozenset(
    {"cudatoolkit", "cuda-toolkit", "cuda", "pytorch-cuda", "cuda-runtime", "cuda-libraries"}
)
_CONDA_TORCH: Final = frozenset({"pytorch", "pytorch-gpu", "torchvision", "torchaudio"})
#: Files of cog, which adds the index for a label itself.
_COG: Final = ("cog.yaml", "cog.yml")
_PIP: Final = "pip reads both indexes and chooses the highest version; uv uses the first index that has the name"


class PytorchIndex(NamedTuple):
    """An index of PyTorch's that a source names. variant: `cu128`, `cpu`; empty for a page of all, or of no release.

    is_extra: whether pip reads the default index, too. is_option: of pip, and so for what packages require, too.
    """

    variant: str
    source: Source
    is_extra: bool
    is_option: bool


def pytorch_indexes(audit: Audit) -> list[PytorchIndex]:
    """Those of all lines from which something comes: importers make a version of CUDA of them."""
    used = {(each.value, each.source.file) for each in audit.draft.cudas}
    found = []
    for index in named_indexes(audit):
        cuda = index.variant
        if cuda not in ("", "cpu"):
            cuda = str(CudaVersion.parse(cuda))
        if not cuda or (cuda, index.source.file) in used:
            found.append(index)
    return found


def named_indexes(audit: Audit) -> list[PytorchIndex]:
    """Those that any line names."""
    found = []
    for entry in audit.ledger:
        for page in PYTORCH_PAGES.finditer(entry.text):
            variant = re.split(r"[^\w./-]", page[1], maxsplit=1)[0].strip("/")
            if not _VARIANT.fullmatch(variant):
                variant = ""
            is_extra = bool(_EXTRA.search(entry.text))
            found.append(PytorchIndex(variant, entry.source, is_extra, entry.text.startswith("-")))
    return found


def labels(audit: Audit) -> Iterator[Finding]:
    """Labels: builds that were never published, and indexes that have the others."""
    variants = {index.variant for index in pytorch_indexes(audit)}
    for each in audit.draft.labelled:
        row = _torch_of(audit, each)
        has_origin = each.is_url or each.source.file.endswith(_COG)
        if audit.has_other_index(each.name) or not _VARIANT.fullmatch(each.label):
            continue
        if row is not None and not row.is_published(each.label, audit.target.platform):
            yield _never_published(audit, each, row)
        elif variants.isdisjoint({"", each.label}) and not has_origin:
            named = ", ".join(sorted(variants)) or "no index of PyTorch's"
            what = f"no index of the sources has `{each}`"
            why = f"only PyTorch's own index of {each.label} has releases with that label; the sources name {named}"
            fact = "PEP 440: public indexes have no local versions"
            todo = f"add `--extra-index-url {PYTORCH_INDEX.format(variant=each.label)}`"
            yield Finding(LABEL, each.source, what, why, fact, todo)


def _torch_of(audit: Audit, pin: LabelledPin) -> TorchRelease | None:
    """The release of torch of which a build is named; None if it is not known."""
    if pin.name == "torch":
        return audit.facts.torch_release(pin.version)
    for member in rows_with(audit.facts.members, package=pin.name, version=pin.version):
        exact = re.fullmatch(r"==([\d.]+)", member.torch)
        return audit.facts.torch_release(exact[1]) if exact else None
    return None


def _never_published(audit: Audit, pin: LabelledPin, row: TorchRelease) -> Finding:
    default = audit.default_of(row)
    todo = f"write `{pin.name}=={pin.version}`"
    if _VARIANT.fullmatch(default):
        todo += f", whose build on the default index is {default}"
    why = f"torch {row.version} was published for {', '.join(row.published)}"
    if pin.name != "torch":
        why = f"{pin.name} {pin.version} is for torch {row.version}; {why}"
    what = f"`{pin}` was never published"
    return Finding(NO_BUILD, pin.source, what, why, row.source, f"{todo}, or one of these builds")


def builds(audit: Audit) -> Iterator[Finding]:
    """The CUDA of torch, and the CUDA that the sources name."""
    torch = audit.torch
    if torch is None:
        return
    if torch.cuda is None:
        yield from _cpu_build(audit, torch)
        return
    # Of images, ENV401 and ENV403 report; of indexes of PyTorch's, ENV305 and ENV306.
    reported = set()
    for entry in audit.ledger:
        if FROM.match(entry.text) or _IMAGE.search(entry.text) or PYTORCH_PAGES.search(entry.text):
            reported.add(entry.source)
    for clue in audit.draft.cudas:
        cuda = _cuda(clue)
        if cuda is None or cuda == torch.cuda or clue.source in reported:
            continue
        # CUDA runs what was built for another minor version of it.
        is_url = any(each.source == clue.source and each.requirement.url is not None for each in audit.required)
        if cuda.major == torch.cuda.major and is_url:
            continue
        what = f"installers choose {torch}, and {clue.source} names CUDA {cuda}"
        why = f"the default index has torch {torch.row.version} for CUDA {torch.cuda} alone"
        if torch.variant != audit.default_of(torch.row):
            why = f"the sources name torch's build for CUDA {torch.cuda}"
        todo = f"use what is built for CUDA {torch.cuda}, or another torch"
        if cuda.variant in torch.row.variants:
            todo = f"use torch from {PYTORCH_INDEX.format(variant=cuda.variant)}"
        yield Finding(OTHER, clue.source, what, why, torch.row.source, todo)
        break


def _cpu_build(audit: Audit, torch: InstalledTorch) -> Iterator[Finding]:
    gpu = audit.means_gpu
    if gpu is None:
        return
    what = f"installers choose {torch}, and {gpu.source if gpu.source.file else 'the command'} names {gpu.value}"
    why = f"it is the default index's build for {audit.target.platform.value}"
    if torch.index:
        why = "the sources name PyTorch's index of builds for the CPU"
    todo = f"use an index of PyTorch's with CUDA, such as {PYTORCH_INDEX.format(variant='cu128')}"
    yield Finding(CPU, torch.source, what, why, torch.row.source, todo)


def _cuda(clue: Clue) -> CudaVersion | None:
    try:
        return CudaVersion.parse(clue.value)
    except ValueError:
        return None


def indexes(audit: Audit) -> Iterator[Finding]:
    """An index of PyTorch's beside the default one, where the choice between both changes the build."""
    bound = audit.bound("torch")
    if bound is None or any(each.name == "torch" for each in audit.draft.labelled) or audit.has_other_index("torch"):
        return
    platform, series = audit.target.platform, audit.target.python.series
    matching = [row for row in matching_rows(audit.facts.torch, bound) if has_wheel(row, platform, series)]
    if not matching:
        return
    newest = matching[-1]
    for index in pytorch_indexes(audit):
        if not index.variant or index.variant in newest.published:
            continue
        published = [row.version for row in matching if index.variant in row.published]
        if not published:
            what = f"torch{bound} was never published for {index.variant}"
            why = f"torch {newest.version} was published for {', '.join(newest.published)}"
            todo = "name the index of one of these, or another torch"
            yield Finding(NO_BUILD, index.source, what, why, newest.source, todo)
        elif index.is_extra:
            what = f"pip chooses torch {newest.version} for {audit.default_of(newest) or '?'} from the default index, "
            what += f"and uv torch {published[-1]} for {index.variant} from this one"
            fact = "documentation of pip (--extra-index-url) and of uv (index strategy first-index)"
            todo = f"write `torch=={published[-1]}+{index.variant}`"
            yield Finding(EITHER, index.source, what, _PIP, fact, todo)


def images(audit: Audit) -> Iterator[Finding]:
    """Images of PyTorch that were never published; NVIDIA's: their CUDA beside that of the wheels, and their age."""
    for clue in audit.draft.unpublished:
        fact = "pytorch/pytorch, Dockerfile; envspec/data/base_images.toml"
        todo = "use a tag that exists"
        yield Finding(NO_BUILD, clue.source, f"{clue.value} was never published", clue.why, fact, todo)
    seen = set()
    for entry in audit.ledger:
        found = _IMAGE.search(entry.text)
        if found is None or found[1] in seen:
            continue
        seen.add(found[1])
        tag = _TAG.fullmatch(found[1])
        if tag is None:
            continue
        release, cudnn, flavor, system = tag.groups()
        if cudnn:
            flavor = f"{cudnn}-{flavor}"
        yield from _age(audit, found[1], release, system, entry.source)
        # Of several stages, the draft has the flavor of the last one alone.
        if any(clue.source == entry.source for clue in audit.draft.flavors):
            yield from _twice(audit, release, flavor, entry.source)
        if "devel" in flavor:
            yield from _compiler(audit, release, entry.source)


def _age(audit: Audit, tag: str, release: str, system: str, source: Source) -> Iterator[Finding]:
    images = audit.facts.images
    of_system: dict[str, ImageRow] = {}
    for row in images:
        if row.cuda == release and system in row.os:
            of_system.setdefault(row.status, row)
    version = CudaVersion.parse(release)
    is_two_parts = release.count(".") == 1 and version.major >= 12
    newest = next(reversed(audit.facts.releases_of(version)), "")
    if "ended" in of_system and "supported" not in of_system:
        yield _tag_finding(source, f"nvidia/cuda:{tag} is past its end of life", of_system["ended"], newest, release)
    elif is_two_parts and images:
        yield _tag_finding(source, f"nvidia/cuda:{tag} was never published", images[0], newest, release)


def _tag_finding(source: Source, what: str, row: FactRow, newest: str, release: str) -> Finding:
    why = "NVIDIA deletes tags six months after their end of life; tags name a patch release (X.Y.Z)"
    todo = "use a newer release, or mirror the image"
    if newest and newest != release:
        todo = f"use {newest}, or pin the digest and mirror the image"
    return Finding(TAG, source, what, why, row.source, todo)


def _twice(audit: Audit, release: str, flavor: str, source: Source) -> Iterator[Finding]:
    """Libraries both in the image and in wheels."""
    # CUDA library -> the wheel that brings it.
    both: dict[str, Taken] = {}
    for each in (audit.taken or {}).values():
        for library, form in LIBRARIES[PackageSource.PYPI].items():
            if form.fullmatch(each.name) and library in FLAVOR_LIBRARIES.get(flavor, ()):
                both[library] = each
    # The runtime library alone is small.
    if not set(both) - {"cudart"}:
        return
    chosen = ", ".join(f"{each.name} {each.version}" for each in both.values())
    size_bytes = sum(each.size_bytes or 0 for each in both.values())
    if size_bytes:
        chosen += f", {size_bytes / 1e6:,.0f} MB of compressed wheels"
    what = f"the image of CUDA {release} ({flavor}) and the wheels both have {', '.join(both)}"
    why = f"installers choose {chosen}; torch loads those of the wheels"
    fact = "Dockerfiles of nvidia/cuda (libraries of each flavor); files on the index"
    todo = "use the flavor `base`"
    if "devel" in flavor:
        todo += " (build in a `devel` stage, and copy)"
    yield Finding(TWICE, source, what, why, fact, todo)


def _compiler(audit: Audit, release: str, source: Source) -> Iterator[Finding]:
    """What is compiled with the image's nvcc beside a torch for another CUDA."""
    torch, cuda = audit.torch, CudaVersion.parse(release)
    if torch is None or torch.cuda is None or torch.cuda.major == cuda.major:
        return
    if compiled := compiled_extensions(audit):
        are = "is" if len(compiled) == 1 else "are"
        what = f"{', '.join(compiled)} {are} compiled by CUDA {cuda}, beside {torch}"
        why = "torch.utils.cpp_extension refuses a compiler of another major version than torch's"
        fact = "torch/utils/cpp_extension.py, _check_cuda_version"
        todo = f"use an image of CUDA {torch.cuda}, or torch for CUDA {cuda} from "
        todo += PYTORCH_INDEX.format(variant=cuda.variant)
        yield Finding(COMPILER, source, what, why, fact, todo)


def compiled_extensions(audit: Audit) -> list[str]:
    """Extensions of torch that installers compile: from git, or for which they choose an sdist."""
    sources = (RequirementKind.GIT, RequirementKind.SDIST_URL)
    names = []
    for required in audit.required:
        if required.requirement.kind in sources:
            names.append(required.name)
    for taken in (audit.taken or {}).values():
        if taken.is_sdist:
            names.append(taken.name)
    compiled: list[str] = []
    for name in dict.fromkeys(names):
        row = audit.facts.extension(name)
        # A build that imports nothing compiles nothing: deepspeed's operators are compiled at their first use.
        if row is not None and row.requires:
            compiled.append(name)
    return compiled


def conda(audit: Audit) -> Iterator[Finding]:
    """conda's CUDA or torch, and pip's torch in the same environment."""
    wanted = audit.first("torch")
    if wanted is None or "torch" in audit.of_images:
        return
    names = set(map(name_of, audit.draft.match_specs))
    torch = sorted(names & _CONDA_TORCH)
    toolkit = sorted(names & _CONDA_CUDA)
    if torch or toolkit:
        what = f"conda's {', '.join((*torch, *toolkit))} and pip's torch are in one environment"
        why = "pip's torch brings CUDA's libraries as wheels, and replaces a conda torch of another version"
        todo = "remove pip's torch"
        if not torch:
            todo = f"remove conda's {', '.join(toolkit)}"
        yield Finding(CONDA, wanted, what, why, "metadata of torch's wheels: it requires nvidia-*", todo)
