"""Which CUDA the sources name, which one installers take, and how often an image has it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from packaging.specifiers import SpecifierSet

from envspec.base_image.cuda import FLAVOR_LIBRARIES, LIBRARIES, PackageSource
from envspec.diagnostics.audit.types import Audit, Finding, Rule, Severity, Taken
from envspec.facts.gpu import has_wheel
from envspec.facts.tables import FactRow
from envspec.facts.torch import MEMBERS, split_label
from envspec.importers.types import Clue, DraftIndex, Source
from envspec.models import CudaVersion
from envspec.origins import PYTORCH_INDEX, PYTORCH_PAGES
from envspec.spec.requirements import RequirementKind

OTHER: Final = Rule("ENV302", Severity.WARNING, "installers take a torch for another CUDA than the sources name")
CPU: Final = Rule("ENV303", Severity.WARNING, "torch is a CPU build, and the sources mean GPUs")
LABEL: Final = Rule("ENV304", Severity.ERROR, "a label such as +cu124 without an index that has it")
EITHER: Final = Rule(
    "ENV305", Severity.WARNING, "two indexes have the torch family, and installers differ in their choice"
)
NO_BUILD: Final = Rule("ENV306", Severity.ERROR, "this torch was never published for that CUDA")
TWICE: Final = Rule("ENV401", Severity.WARNING, "the image has CUDA twice")
CONDA: Final = Rule("ENV402", Severity.WARNING, "CUDA or torch comes from conda and from wheels")
COMPILER: Final = Rule("ENV403", Severity.ERROR, "nvcc of the image is of another CUDA major than torch")
TAG: Final = Rule("ENV404", Severity.WARNING, "the CUDA image is past its end of life, or was never published")

RULES: Final = (OTHER, CPU, LABEL, EITHER, NO_BUILD, TWICE, CONDA, COMPILER, TAG)

_FAMILY: Final = ("torch", *MEMBERS)
_VARIANT: Final = re.compile(r"cpu|cu\d{3}")
#: `FROM docker.io/nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04 AS build`
_IMAGE: Final = re.compile(r"(?:^|[\s/\"'])nvidia/cuda:([\w.-]+)")
_TAG: Final = re.compile(r"(\d+(?:\.\d+)+)-(?:(cudnn)\d*-)?(base|runtime|devel)-(\w+[\d.]*)")
#: conda packages that bring CUDA's libraries.
_CONDA_CUDA: Final = frozenset(
    {"cudatoolkit", "cuda-toolkit", "cuda", "pytorch-cuda", "cuda-runtime", "cuda-libraries"}
)
_CONDA_TORCH: Final = frozenset({"pytorch", "pytorch-gpu", "torchvision", "torchaudio"})
_PIP: Final = "pip: an extra index is asked together with the first, and the highest version wins; uv: the first index that has a name wins"


def variant_of(index: DraftIndex) -> str:
    """`cu128` or `cpu` of an index of PyTorch's; empty for any other."""
    found = PYTORCH_PAGES.fullmatch(index.url)
    variant = found[1].rstrip("/").rpartition("/")[2] if found else ""
    return variant if _VARIANT.fullmatch(variant) else ""


def labels(audit: Audit) -> Iterator[Finding]:
    """Labels, and the indexes that have them."""
    variants = {variant_of(each) for each in audit.draft.indexes} - {""}
    links = [each for each in audit.draft.indexes if PYTORCH_PAGES.fullmatch(each.url) and not variant_of(each)]
    for each in audit.required:
        _, label = split_label(each.requirement.specifier)
        if each.requirement.name not in _FAMILY or label is None or not _VARIANT.fullmatch(label) or links:
            continue
        if label not in variants and not _elsewhere(audit):
            has = f"the sources name {', '.join(sorted(variants))}" if variants else "the sources name no such index"
            url = PYTORCH_INDEX.format(variant=label)
            yield Finding(
                LABEL,
                each.source,
                f"no index of the sources has `{each.requirement}`",
                f"only PyTorch's own index of {label} has releases with that label; {has}",
                "PEP 440 and the default index: it accepts no local versions",
                f"add `--extra-index-url {url}`",
            )


def _elsewhere(audit: Audit) -> bool:
    """Whether an index that is not PyTorch's may have the family."""
    own = (each for each in audit.draft.indexes if not PYTORCH_PAGES.fullmatch(each.url))
    return any(not each.packages or set(each.packages) & set(_FAMILY) for each in own)


def builds(audit: Audit) -> Iterator[Finding]:
    """The CUDA of torch, and the CUDA that the sources name."""
    torch, gpu = audit.torch, audit.means_gpu
    if torch is None:
        return
    if torch.cuda is None:
        if gpu is not None:
            what = f"installers take {torch}, and {gpu.why or gpu.value}"
            why = f"the index of {torch.index} has CPU builds" if torch.index else "it is the default index's build"
            place = f"for {audit.target.platform.value}" if not torch.index else "that the sources name"
            todo = f"take an index of PyTorch's with CUDA, such as {PYTORCH_INDEX.format(variant='cu128')}"
            yield Finding(CPU, torch.source, what, f"{why} {place}", torch.row.source, todo)
        return
    for clue in audit.draft.cudas:
        cuda = _cuda(clue)
        # Of images, ENV401 and ENV403 report.
        is_image = any(each.source == clue.source and _IMAGE.search(each.text) for each in audit.ledger)
        if cuda is None or cuda == torch.cuda or is_image or torch.index == cuda.variant:
            continue
        what = f"installers take {torch}, and {clue.source} names CUDA {cuda}"
        why = f"the default index has torch {torch.row.version} for CUDA {torch.cuda} alone"
        url = PYTORCH_INDEX.format(variant=cuda.variant)
        todo = f"take torch from {url}" if cuda.variant in torch.row.published else f"name CUDA {torch.cuda}"
        yield Finding(OTHER, clue.source, what, why, torch.row.source, todo)
        break


def _cuda(clue: Clue) -> CudaVersion | None:
    try:
        return CudaVersion.parse(clue.value)
    except ValueError:
        return None


def indexes(audit: Audit) -> Iterator[Finding]:
    """An index of PyTorch's beside the default one, where the choice between both changes the build."""
    specifiers = [each.requirement.specifier for each in audit.required if each.requirement.name == "torch"]
    if not specifiers or any(split_label(each)[1] for each in specifiers):
        return
    bound = SpecifierSet(",".join(str(each) for each in specifiers if str(each)))
    series = audit.target.python.series
    rows = [row for row in audit.facts.torch if has_wheel(row, audit.target.platform, series)]
    for index in audit.draft.indexes:
        variant = variant_of(index)
        matching = [row for row in rows if bound.contains(row.version, prereleases=True)]
        published = [row for row in matching if variant in row.published]
        if not variant or not matching or matching[-1] in published:
            continue
        if not published:
            has = ", ".join(matching[-1].published)
            yield Finding(
                NO_BUILD,
                index.source,
                f"torch{bound} was never published for {variant}",
                f"torch {matching[-1].version} was published for {has}",
                matching[-1].source,
                "name the index of one of these, or another torch",
            )
        elif is_extra(audit, index):
            default = matching[-1].default.get(audit.target.platform.value, "")
            yield Finding(
                EITHER,
                index.source,
                f"pip takes torch {matching[-1].version} for {default} from the default index, and uv torch "
                f"{published[-1].version} for {variant} from this one",
                _PIP,
                "documentation of pip (--extra-index-url) and of uv (index strategy first-index)",
                f"write `torch=={published[-1].version}+{variant}`",
            )


def is_extra(audit: Audit, index: DraftIndex) -> bool:
    """Whether the default index is asked, too."""
    lines = (each.text for each in audit.ledger if each.source == index.source)
    return any("--extra-index-url" in text for text in lines)


def images(audit: Audit) -> Iterator[Finding]:
    """NVIDIA's images that the sources name: their CUDA beside that of the wheels, and their age."""
    seen = set()
    for entry in audit.ledger:
        found = _IMAGE.search(entry.text)
        tag = _TAG.fullmatch(found[1]) if found else None
        if found is None or found[1] in seen:
            continue
        seen.add(found[1])
        if tag is None:
            continue
        release, cudnn, flavor, system = tag.groups()
        flavor = f"{cudnn}-{flavor}" if cudnn else flavor
        yield from _age(audit, found[1], release, system, entry.source)
        yield from _twice(audit, release, flavor, entry.source)
        if "devel" in flavor:
            yield from _compiler(audit, release, entry.source)


def _age(audit: Audit, tag: str, release: str, system: str, source: Source) -> Iterator[Finding]:
    rows = [row for row in audit.facts.images if row.cuda == release]
    ended = [row for row in rows if system in row.os and row.status == "ended"]
    is_two_parts = release.count(".") == 1 and CudaVersion.parse(release).major >= 12
    newest = next((r for r in reversed(audit.facts.releases_of(CudaVersion.parse(release)))), "")
    if ended and not any(system in row.os and row.status == "supported" for row in rows):
        yield _tag_finding(source, f"nvidia/cuda:{tag} is past its end of life", ended[0], newest, release)
    elif is_two_parts and audit.facts.images:
        row = audit.facts.images[0]
        yield _tag_finding(source, f"nvidia/cuda:{tag} was never published", row, newest, release)


def _tag_finding(source: Source, what: str, row: FactRow, newest: str, release: str) -> Finding:
    why = "NVIDIA deletes tags six months after their end of life; tags name a patch release (X.Y.Z)"
    todo = f"take {newest}, or pin the digest and mirror the image" if newest and newest != release else ""
    return Finding(TAG, source, what, why, row.source, todo or "take a newer release, or mirror the image")


def _twice(audit: Audit, release: str, flavor: str, source: Source) -> Iterator[Finding]:
    """Libraries both in the image and in wheels."""
    wheels = _cuda_wheels(audit)
    both = {library: wheel for library, wheel in wheels.items() if library in FLAVOR_LIBRARIES.get(flavor, ())}
    # The runtime library alone is small.
    if not set(both) - {"cudart"}:
        return
    sizes = [each.size_bytes for each in both.values() if each.size_bytes]
    amount = f", {sum(sizes) / 1e6:,.0f} MB of compressed wheels" if sizes else ""
    names = ", ".join(f"{each.name} {each.version}" for each in both.values())
    compiles = " (build in a `devel` stage, and copy)" if "devel" in flavor else ""
    yield Finding(
        TWICE,
        source,
        f"the image of CUDA {release} ({flavor}) and the wheels both have {', '.join(both)}",
        f"installers take {names}{amount}; torch loads those of the wheels",
        "Dockerfiles of nvidia/cuda (libraries of each flavor); files on the index",
        f"take the flavor `base`{compiles}",
    )


def _cuda_wheels(audit: Audit) -> dict[str, Taken]:
    """CUDA library -> the wheel that brings it."""
    names = LIBRARIES[PackageSource.PYPI]
    found = (audit.taken or {}).values()
    pairs = ((library, each) for each in found for library, form in names.items() if form.fullmatch(each.name))
    return dict(pairs)


def _compiler(audit: Audit, release: str, source: Source) -> Iterator[Finding]:
    """What is compiled with the image's nvcc beside a torch for another CUDA."""
    torch, cuda = audit.torch, CudaVersion.parse(release)
    if torch is None or torch.cuda is None or torch.cuda.major == cuda.major:
        return
    compiled = compiled_extensions(audit)
    if compiled:
        yield Finding(
            COMPILER,
            source,
            f"{', '.join(compiled)} {'is' if len(compiled) == 1 else 'are'} compiled by CUDA {cuda}, beside {torch}",
            "torch.utils.cpp_extension refuses a compiler of another major version than torch's",
            "torch/utils/cpp_extension.py, _check_cuda_version",
            f"take an image of CUDA {torch.cuda}, or torch for CUDA {cuda} from "
            f"{PYTORCH_INDEX.format(variant=cuda.variant)}",
        )


def compiled_extensions(audit: Audit) -> list[str]:
    """Extensions of torch that installers compile: from git, or of which they take an sdist."""
    from_git = (
        each.requirement.name
        for each in audit.required
        if each.requirement.kind in (RequirementKind.GIT, RequirementKind.SDIST_URL)
    )
    sdists = (each.name for each in (audit.taken or {}).values() if each.is_sdist)
    return [name for name in dict.fromkeys((*from_git, *sdists)) if audit.facts.extension(name)]


def conda(audit: Audit) -> Iterator[Finding]:
    """conda's CUDA or torch, and pip's torch in the same environment."""
    wanted = audit.first("torch")
    if wanted is None:
        return
    names = {re.split(r"[\s=<>!~\[]", each.rpartition("::")[2].strip(), maxsplit=1)[0] for each, _ in audit.draft.conda}
    torch = sorted(names & _CONDA_TORCH)
    toolkit = sorted(names & _CONDA_CUDA)
    if torch or toolkit:
        what = f"conda's {', '.join((*torch, *toolkit))} and pip's torch are in one environment"
        why = "pip's torch brings CUDA's libraries as wheels, and replaces a conda torch of another version"
        todo = f"remove {'pip' if torch else 'conda'}'s {'torch' if torch else ', '.join(toolkit)}"
        yield Finding(CONDA, wanted, what, why, "metadata of torch's wheels: it requires nvidia-*", todo)
