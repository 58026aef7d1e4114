"""Names of base images -> what a spec has of them: CUDA, flavor, system, Python, torch.

Only the name is read, nothing is pulled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from envspec.facts import Facts, load_facts
from envspec.facts.tables import BaseImageRow
from envspec.facts.torch import fitting_set
from envspec.importers.pip import add_cuda
from envspec.importers.types import Clue, DraftRequirement, Import, Outcome, Rank, Source
from envspec.importers.unsupported import SUPPORTED, note_unsupported
from envspec.models import CudaVersion
from envspec.registry.reference import BadReference, Reference, parse
from envspec.spec.sections import Flavor, Os


class BaseImage(NamedTuple):
    """A row of the table; what releases contain is in data/base_images.toml.

    repository, tag: patterns; named groups of the tag are keys of `_GROUPS`.

    note: what else to know of the image. outcome: of images whose packages a spec does not need or can't have.
    """

    repository: str
    tag: str
    note: str = ""
    outcome: Outcome = Outcome.TRANSLATED


_TAG: Final = "the tag of"
_SERIES: Final = r"(?P<python>3\.\d+(?:\.\d+)?)"
_CODE_NAMES: Final = {"focal": "20.04", "jammy": "22.04", "noble": "24.04", "resolute": "26.04"}
_UBUNTU: Final = rf"(?:ubuntu-?)?(?P<ubuntu>\d\d\.\d\d|{'|'.join(_CODE_NAMES)})"
_CUDA_SYSTEM: Final = r"(?P<system>[a-z]+\d+(?:\.\d+)?)"
_RELEASE: Final = r"\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?"
_CONDA: Final = "conda's packages are those of [conda]"

#: The first that matches. Forms of tags: the images' pages on their registries, and Dockerfiles that use them.
BASE_IMAGES: Final = (
    BaseImage(r"(docker\.io|nvcr\.io)/nvidia/cuda", r"(?P<cuda>\d+\.\d+)(\.\d+)?"),
    BaseImage(
        r"(docker\.io|nvcr\.io)/nvidia/cuda",
        rf"(?P<cuda>\d+\.\d+)(\.\d+)?-(?P<flavor>(cudnn\d*-)?(base|runtime|devel))-{_CUDA_SYSTEM}",
    ),
    BaseImage(
        r"(docker\.io|ghcr\.io)/pytorch/pytorch",
        r"(?P<torch>\d+\.\d+\.\d+)-cuda(?P<cuda>\d+\.\d+)-cudnn(?P<cudnn>\d+)-(?P<kind>runtime|devel)",
    ),
    BaseImage(r"docker\.io/vllm/vllm-openai", rf"v(?P<release>{_RELEASE})([-_].*)?"),
    BaseImage(r"docker\.io/lmsysorg/sglang", rf"v(?P<release>{_RELEASE})(-(?P<label>cu\d+))?(-.*)?"),
    BaseImage(
        r"docker\.io/runpod/pytorch",
        rf"(?P<torch>\d+\.\d+\.\d+)-py{_SERIES}-cuda(?P<cuda>\d+\.\d+)\.\d+-(?P<flavor>devel|runtime)(-{_CUDA_SYSTEM})?",
    ),
    BaseImage(
        r"docker\.io/runpod/pytorch",
        r"[\d.]+(-dev)?-(?P<label>cu\d{3})\d-torch(?P<digits>\d{3,4})-(?P<joined>ubuntu\d{4})",
    ),
    BaseImage(
        r"nvcr\.io/nvidia/(pytorch|l4t-pytorch|jax|tensorflow|nemo|tritonserver|physicsnemo/.+|rapidsai/.+)",
        r"(?P<base>.+)",
    ),
    BaseImage(
        r"docker\.io/tensorflow/tensorflow",
        r"(?P<release>\d+\.\d+\.\d+)(-gpu)?(-jupyter)?",
        "the tag does not show which CUDA and Python it has",
    ),
    BaseImage(
        r"docker\.io/library/python",
        rf"{_SERIES}(-alpine[\d.]*)",
        "musl: a spec's images have glibc, so its apk lines have no counterpart",
        Outcome.REFUSED,
    ),
    BaseImage(r"docker\.io/library/python", rf"{_SERIES}(-.+)?", "on Ubuntu in place of Debian"),
    BaseImage(r"docker\.io/library/ubuntu", _UBUNTU),
    BaseImage(
        r"docker\.io/library/debian", r".+", "a spec's system is Ubuntu: `[image] base` and `glibc` keep this one"
    ),
    BaseImage(r"ghcr\.io/astral-sh/uv", rf"([\d.]+-)?python{_SERIES}(-.+)?"),
    BaseImage(
        r"ghcr\.io/astral-sh/uv|docker\.io/astral/uv", r".+", "envspec installs packages without uv in the image"
    ),
    BaseImage(r"docker\.io/(continuumio|anaconda)/(mini|ana)conda3?", r".+", f"{_CONDA}; its channel is `defaults`"),
    BaseImage(r"docker\.io/condaforge/(miniforge3|mambaforge)", r".+", f"{_CONDA}; its channel is conda-forge"),
    BaseImage(
        r"(docker\.io|ghcr\.io)/(mambaorg|mamba-org)/micromamba",
        rf"(.+-)?{_UBUNTU}-cuda-(?P<cuda>\d+\.\d+)(\.\d+)?",
        _CONDA,
    ),
    BaseImage(r"(docker\.io|ghcr\.io)/(mambaorg|mamba-org)/micromamba", r".+", _CONDA),
    BaseImage(r"mcr\.microsoft\.com/(vscode/)?devcontainers/python", rf"([\d.]+-)?{_SERIES}(-.+)?"),
    BaseImage(r"mcr\.microsoft\.com/(vscode/)?devcontainers/base", rf"([\d.]+-)?{_UBUNTU}"),
)


def read_base_image(text: str, source: Source, line: str, imported: Import) -> None:
    """Add what a base image's name implies to the draft, and an entry to the ledger.

    text: the reference. line: the line as it is written.
    """
    try:
        reference = parse(text)
    except BadReference as error:
        imported.add(source, line, Outcome.NOT_UNDERSTOOD, str(error))
        return
    if note_unsupported(imported, text, source):
        imported.add(source, line, Outcome.REFUSED, f"{imported.draft.unsupported[-1].value}: {SUPPORTED}")
        return
    same_name = [row for row in BASE_IMAGES if re.fullmatch(row.repository, reference.name)]
    for row in same_name:
        if found := re.fullmatch(row.tag, reference.tag or ""):
            _take(row, found, reference, source, line, imported)
            return
    known = f"the tag {reference.tag!r} names no version" if same_name else f"the contents of {text} are not known"
    hint = "name it as `[image] base`, and its Python as `[image] python`, if the environment belongs on top of it"
    imported.add(source, line, Outcome.NOT_UNDERSTOOD, f"{known}; {hint}")


def leave_replaced(imported: Import) -> None:
    """Leave out the torch of a base image that a requirement replaces, with its family and its CUDA."""
    draft = imported.draft
    version = draft.versions.get("torch")
    tags = {each.source for each in draft.cudas if each.why.startswith(_TAG)}
    of_image = [each for each in draft.dependencies if each.text in _FAMILY and each.source in tags]
    if not of_image or version is None:
        return
    by = next((each for each in draft.dependencies if _excludes(each.text, version)), None)
    if by is None:
        return
    for name in _FAMILY:
        draft.versions.pop(name, None)
    sources = {each.source for each in of_image}
    draft.dependencies = [each for each in draft.dependencies if each not in of_image]
    draft.cudas = [each for each in draft.cudas if each.source not in sources]
    for at, entry in enumerate(imported.ledger):
        if entry.source in sources:
            reason = f"{by.text} ({by.source}) replaces its torch {version}, and with it its CUDA"
            imported.ledger[at] = entry._replace(reason=reason)


#: Images of PyTorch's releases have the three, of the same release. Source: pytorch/pytorch, Dockerfile.
_FAMILY: Final = ("torch", "torchvision", "torchaudio")


def _excludes(text: str, version: str) -> bool:
    """Whether a requirement is for torch, and not for this version."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return False
    return requirement.name == "torch" and not requirement.specifier.contains(version, prereleases=True)


def _take(
    row: BaseImage, found: re.Match[str], reference: Reference, source: Source, line: str, imported: Import
) -> None:
    parts, is_lost = [], False
    for group, value in found.groupdict().items():
        if value is not None:
            part = _GROUPS[group](value, reference, source, imported)
            parts.append(part.text)
            is_lost |= part.is_lost
    outcome = Outcome.REFUSED if is_lost else row.outcome
    imported.add(source, line, outcome, "; ".join([*parts, *([row.note] if row.note else [])]))


class _Part(NamedTuple):
    """What a part of a tag became, for the ledger. is_lost: no spec has it."""

    text: str
    is_lost: bool = False


def _cuda(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    add_cuda(value, source, imported, f"{_TAG} {reference}")
    return _Part(f"[cuda] version {value}")


def _flavor(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    flavor = re.sub(r"^cudnn\d+", "cudnn", value)
    known = [each.value for each in Flavor]
    # NVIDIA has no cudnn-base; every flavor of the table is one of the spec's.
    if flavor not in known:
        return _Part(f"no spec has the flavor {value}", is_lost=True)
    imported.draft.flavors.append(Clue(flavor, source, f"{_TAG} {reference}"))
    return _Part(f"[cuda] flavor {flavor}")


def _kind(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    """pytorch/pytorch: nvcc is in its devel images; the libraries of the others are torch's own."""
    return (
        _flavor(value, reference, source, imported) if value == "devel" else _Part("CUDA's libraries are torch's own")
    )


def _system(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    if value not in [each.value for each in Os]:
        return _Part(f"a base with CUDA is Ubuntu in a spec, not {value}: `[image] base` keeps it", is_lost=True)
    imported.draft.systems.append(Clue(value, source, f"{_TAG} {reference}"))
    return _Part(f"system {value}")


def _ubuntu(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    return _system(f"ubuntu{_CODE_NAMES.get(value, value)}", reference, source, imported)


def _joined(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    """`ubuntu2404`."""
    return _system(f"{value[:-2]}.{value[-2:]}", reference, source, imported)


def _python(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    imported.draft.pythons.append(Clue(value, source, f"{_TAG} {reference}", Rank.IMAGE))
    return _Part(f"[env] python {value}")


def _base(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    imported.draft.bases.append(Clue(str(reference), source, "its packages, torch among them, are part of it"))
    part = _Part(f"[image] base {reference}, whose packages stay")
    month = re.match(r"\d\d\.\d\d", value)
    row = load_facts().base_image("nvcr.io/nvidia", month[0]) if month else None
    return _with_python(part, row, reference, source, imported)


def _label(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    """`cu128`."""
    return _cuda(str(CudaVersion.parse(value)), reference, source, imported)


def _cudnn(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    """The last part that decides whether the tag can exist."""
    why = why_unpublished(load_facts(), reference)
    if not why:
        return _Part(f"cuDNN {value} of torch's wheels")
    imported.draft.unpublished.append(Clue(str(reference), source, why))
    return _Part(f"was never published: {why}", is_lost=True)


def why_unpublished(facts: Facts, reference: Reference) -> str:
    """Why a tag of pytorch/pytorch was never published; empty if it may have been, and for other images.

    An image has a build of PyTorch's own indexes, and the cuDNN for which its release is built.
    """
    found = re.fullmatch(r"(\d+\.\d+\.\d+)-cuda(\d+\.\d+)-cudnn(\d+)-(?:runtime|devel)", reference.tag or "")
    row = facts.torch_release(found[1]) if found and reference.name.endswith("/pytorch/pytorch") else None
    image = facts.base_image("pytorch/pytorch", row.version) if row else None
    if found is None or row is None or image is None:
        return ""
    cudas = [str(CudaVersion.parse(each)) for each in row.variants if each.startswith("cu")]
    unsure = [str(CudaVersion.parse(each)) for each in row.unsure if each.startswith("cu")]
    if found[2] not in (*cudas, *unsure):
        return f"torch {row.version} has builds for CUDA {', '.join(cudas)}"
    if image.cudnn and found[3] != image.cudnn:
        return f"the images of torch {row.version} have cuDNN {image.cudnn}"
    return ""


def _release(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    """The release of a project, whose image it is."""
    repository = reference.name.partition("/")[2]
    row = load_facts().base_image(repository, value)
    text = row.requires.format(release=value) if row else ""
    imported.draft.dependencies.append(DraftRequirement(text, source))
    return _with_python(_Part(f"{text} is required"), row, reference, source, imported)


def _torch(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    fitting = fitting_set(load_facts(), value)
    family = {"torch": value, **{name: fitting[name] for name in _FAMILY if name in fitting}}
    for name, version in family.items():
        imported.draft.versions.setdefault(name, version)
        imported.draft.dependencies.append(DraftRequirement(name, source))
    names = ", ".join(f"{name} {version}" for name, version in family.items())
    row = load_facts().base_image(reference.name.partition("/")[2], value)
    return _with_python(_Part(f"required and preferred are {names}"), row, reference, source, imported)


def _digits(value: str, reference: Reference, source: Source, imported: Import) -> _Part:
    """`280`, `2110`: a release of torch without its dots."""
    return _torch(f"{value[0]}.{value[1:-1]}.{value[-1]}", reference, source, imported)


def _with_python(
    part: _Part, row: BaseImageRow | None, reference: Reference, source: Source, imported: Import
) -> _Part:
    if row is None or not row.python:
        return part
    imported.draft.pythons.append(Clue(row.python, source, f"the Python of {reference}", Rank.IMAGE))
    return _Part(f"{part.text}; [env] python {row.python}")


_GROUPS: Final[dict[str, Callable[[str, Reference, Source, Import], _Part]]] = {
    "cuda": _cuda,
    "flavor": _flavor,
    "kind": _kind,
    "system": _system,
    "ubuntu": _ubuntu,
    "python": _python,
    "joined": _joined,
    "base": _base,
    "label": _label,
    "cudnn": _cudnn,
    "release": _release,
    "torch": _torch,
    "digits": _digits,
}
