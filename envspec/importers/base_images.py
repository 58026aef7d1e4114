"""Names of base images -> what a spec has of them: CUDA, flavor, system, Python, torch.

Only the name is read, nothing is pulled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct, field
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


class KnownImage(NamedTuple):
    """A row of the table; what releases contain is in data/base_images.toml.

    repository, tag: patterns; named groups of the tag are methods of `_Tag`.
    note: what else to know of the image.
    outcome: of images whose packages a spec does not need or can't have.
    """

    repository: str
    tag: str
    note: str = ""
    outcome: Outcome = Outcome.TRANSLATED


_SERIES: Final = r"(?P<python>3\.\d+(?:\.\d+)?)"
_CODE_NAMES: Final = {"focal": "20.04", "jammy": "22.04", "noble": "24.04", "resolute": "26.04"}
_UBUNTU: Final = rf"(?:ubuntu-?)?(?P<ubuntu>\d\d\.\d\d|{'|'.join(_CODE_NAMES)})"
_CUDA_SYSTEM: Final = r"(?P<system>[a-z]+\d+(?:\.\d+)?)"
_RELEASE: Final = r"\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?"
_CONDA: Final = "conda's packages are those of [conda]"

#: The first that matches. Forms of tags: the images' pages on their registries, and Dockerfiles that use them.
BASE_IMAGES: Final = (
    KnownImage(r"(docker\.io|nvcr\.io)/nvidia/cuda", r"(?P<cuda>\d+\.\d+)(\.\d+)?"),
    KnownImage(
        r"(docker\.io|nvcr\.io)/nvidia/cuda",
        rf"(?P<cuda>\d+\.\d+)(\.\d+)?-(?P<flavor>(cudnn\d*-)?(base|runtime|devel))-{_CUDA_SYSTEM}",
    ),
    KnownImage(
        r"(docker\.io|ghcr\.io)/pytorch/pytorch",
        r"(?P<torch>\d+\.\d+\.\d+)-cuda(?P<cuda>\d+\.\d+)-cudnn(?P<cudnn>\d+)-(?P<kind>runtime|devel)",
    ),
    KnownImage(r"docker\.io/vllm/vllm-openai", rf"v(?P<release>{_RELEASE})([-_].*)?"),
    KnownImage(r"docker\.io/lmsysorg/sglang", rf"v(?P<release>{_RELEASE})(-(?P<label>cu\d+))?(-.*)?"),
    KnownImage(
        r"docker\.io/runpod/pytorch",
        rf"(?P<torch>\d+\.\d+\.\d+)-py{_SERIES}-cuda(?P<cuda>\d+\.\d+)\.\d+-(?P<flavor>devel|runtime)(-{_CUDA_SYSTEM})?",
    ),
    KnownImage(
        r"docker\.io/runpod/pytorch",
        r"[\d.]+(-dev)?-(?P<label>cu\d{3})\d-torch(?P<digits>\d{3,4})-(?P<joined>ubuntu\d{4})",
    ),
    KnownImage(
        r"nvcr\.io/nvidia/(pytorch|l4t-pytorch|jax|tensorflow|nemo|tritonserver|physicsnemo/.+|rapidsai/.+)",
        r"(?P<base>.+)",
    ),
    KnownImage(
        r"docker\.io/tensorflow/tensorflow",
        r"(?P<release>\d+\.\d+\.\d+)(-gpu)?(-jupyter)?",
        "the tag does not show which CUDA and Python it has",
    ),
    KnownImage(
        r"docker\.io/library/python",
        rf"{_SERIES}(-alpine[\d.]*)",
        "musl: a spec's images have glibc, so its apk lines have no counterpart",
        Outcome.REFUSED,
    ),
    KnownImage(r"docker\.io/library/python", rf"{_SERIES}(-.+)?", "on Ubuntu in place of Debian"),
    KnownImage(r"docker\.io/library/ubuntu", _UBUNTU),
    KnownImage(
        r"docker\.io/library/debian", r".+", "a spec's system is Ubuntu: `[image] base` and `glibc` keep this one"
    ),
    KnownImage(r"ghcr\.io/astral-sh/uv", rf"([\d.]+-)?python{_SERIES}(-.+)?"),
    KnownImage(
        r"ghcr\.io/astral-sh/uv|docker\.io/astral/uv", r".+", "envspec installs packages without uv in the image"
    ),
    KnownImage(r"docker\.io/(continuumio|anaconda)/(mini|ana)conda3?", r".+", f"{_CONDA}; its channel is `defaults`"),
    KnownImage(r"docker\.io/condaforge/(miniforge3|mambaforge)", r".+", f"{_CONDA}; its channel is conda-forge"),
    KnownImage(
        r"(docker\.io|ghcr\.io)/(mambaorg|mamba-org)/micromamba",
        rf"(.+-)?{_UBUNTU}-cuda-(?P<cuda>\d+\.\d+)(\.\d+)?",
        _CONDA,
    ),
    KnownImage(r"(docker\.io|ghcr\.io)/(mambaorg|mamba-org)/micromamba", r".+", _CONDA),
    KnownImage(r"mcr\.microsoft\.com/(vscode/)?devcontainers/python", rf"([\d.]+-)?{_SERIES}(-.+)?"),
    KnownImage(r"mcr\.microsoft\.com/(vscode/)?devcontainers/base", rf"([\d.]+-)?{_UBUNTU}"),
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
    known = f"the contents of {text} are not known"
    if same_name:
        known = f"the tag {reference.tag!r} names no version"
    hint = "name it as `[image] base`, and its Python as `[image] python`, if the environment belongs on top of it"
    imported.add(source, line, Outcome.NOT_UNDERSTOOD, f"{known}; {hint}")


def leave_replaced(imported: Import) -> None:
    """Leave out the torch of a base image that a requirement replaces, with its family and its CUDA."""
    draft = imported.draft
    version = draft.versions.get("torch")
    tags = {each.source for each in draft.cudas if each.kind == "tag"}
    family = [each for each in draft.dependencies if each.text in _FAMILY and each.source in tags]
    sources = {each.source for each in family}
    if not sources or version is None:
        return
    by = next((each for each in draft.dependencies if _excludes(each.text, version)), None)
    if by is None:
        return
    for name in _FAMILY:
        draft.versions.pop(name, None)
    for each in family:
        draft.dependencies.remove(each)
    draft.cudas = [each for each in draft.cudas if each.source not in sources]
    reason = f"{by.text} ({by.source}) replaces its torch {version}, and with it its CUDA"
    for at, entry in enumerate(imported.ledger):
        if entry.source in sources:
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
    row: KnownImage, found: re.Match[str], reference: Reference, source: Source, line: str, imported: Import
) -> None:
    tag = _Tag(reference, source, imported)
    for group, value in found.groupdict().items():
        if value is not None:
            getattr(tag, group)(value)
    outcome = Outcome.REFUSED if tag.is_lost else row.outcome
    imported.add(source, line, outcome, "; ".join(filter(None, [*tag.parts, row.note])))


class _Tag(Struct):
    """Adds what parts of a tag mean to the draft.

    parts: what became of them, for the ledger.
    is_lost: whether no spec has one of them.
    """

    reference: Reference
    source: Source
    imported: Import
    parts: list[str] = field(default_factory=list)
    is_lost: bool = False

    def _clue(self, value: str, rank: Rank = Rank.FILE) -> Clue:
        return Clue(value, self.source, f"the tag of {self.reference}", rank, "tag")

    def _lose(self, part: str) -> None:
        self.parts.append(part)
        self.is_lost = True

    def cuda(self, value: str) -> None:
        add_cuda(value, self.source, self.imported, f"the tag of {self.reference}", kind="tag")
        self.parts.append(f"[cuda] version {value}")

    def label(self, value: str) -> None:
        """`cu128`."""
        self.cuda(str(CudaVersion.parse(value)))

    def flavor(self, value: str) -> None:
        flavor = re.sub(r"^cudnn\d+", "cudnn", value)
        # NVIDIA has no cudnn-base; every flavor of the table is one of the spec's.
        if flavor not in [each.value for each in Flavor]:
            self._lose(f"no spec has the flavor {value}")
            return
        self.imported.draft.flavors.append(self._clue(flavor))
        self.parts.append(f"[cuda] flavor {flavor}")

    def kind(self, value: str) -> None:
        """pytorch/pytorch: nvcc is in its devel images; the libraries of the others are torch's own."""
        if value == "devel":
            self.flavor(value)
        else:
            self.parts.append("CUDA's libraries are torch's own")

    def system(self, value: str) -> None:
        if value not in [each.value for each in Os]:
            self._lose(f"a base with CUDA is Ubuntu in a spec, not {value}: `[image] base` keeps it")
            return
        self.imported.draft.systems.append(self._clue(value))
        self.parts.append(f"system {value}")

    def ubuntu(self, value: str) -> None:
        self.system(f"ubuntu{_CODE_NAMES.get(value, value)}")

    def joined(self, value: str) -> None:
        """`ubuntu2404`."""
        self.system(f"{value[:-2]}.{value[-2:]}")

    def python(self, value: str) -> None:
        self.imported.draft.pythons.append(self._clue(value, Rank.IMAGE))
        self.parts.append(f"[env] python {value}")

    def base(self, value: str) -> None:
        clue = Clue(str(self.reference), self.source, "its packages, torch among them, are part of it")
        self.imported.draft.bases.append(clue)
        self.parts.append(f"[image] base {self.reference}, whose packages stay")
        if month := re.match(r"\d\d\.\d\d", value):
            self._python_of(load_facts().base_image("nvcr.io/nvidia", month[0]))

    def cudnn(self, value: str) -> None:
        """The last part that decides whether the tag can exist."""
        why = why_unpublished(load_facts(), self.reference)
        if why:
            self.imported.draft.unpublished.append(Clue(str(self.reference), self.source, why))
            self._lose(f"was never published: {why}")
        else:
            self.parts.append(f"cuDNN {value} of torch's wheels")

    def release(self, value: str) -> None:
        """The release of a project, whose image it is."""
        row = load_facts().base_image(self.reference.name.partition("/")[2], value)
        text = row.requires.format(release=value) if row else ""
        self.imported.draft.dependencies.append(DraftRequirement(text, self.source))
        self.parts.append(f"{text} is required")
        self._python_of(row)

    def torch(self, value: str) -> None:
        fitting = fitting_set(load_facts(), value)
        family = {"torch": value, **{name: fitting[name] for name in _FAMILY if name in fitting}}
        for name, version in family.items():
            self.imported.draft.versions.setdefault(name, version)
            self.imported.draft.dependencies.append(DraftRequirement(name, self.source))
        names = ", ".join(f"{name} {version}" for name, version in family.items())
        self.parts.append(f"required and preferred are {names}")
        self._python_of(load_facts().base_image(self.reference.name.partition("/")[2], value))

    def digits(self, value: str) -> None:
        """`280`, `2110`: a release of torch without its dots."""
        self.torch(f"{value[0]}.{value[1:-1]}.{value[-1]}")

    def _python_of(self, row: BaseImageRow | None) -> None:
        if row is not None and row.python:
            clue = Clue(row.python, self.source, f"the Python of {self.reference}", Rank.IMAGE)
            self.imported.draft.pythons.append(clue)
            self.parts.append(f"[env] python {row.python}")


def why_unpublished(facts: Facts, reference: Reference) -> str:
    """Why a tag of pytorch/pytorch was never published; empty if it may have been, and for other images.

    An image has a build of PyTorch's own indexes, and the cuDNN for which its release is built.
    """
    found = re.fullmatch(r"(\d+\.\d+\.\d+)-cuda(\d+\.\d+)-cudnn(\d+)-(?:runtime|devel)", reference.tag or "")
    if found is None or not reference.name.endswith("/pytorch/pytorch"):
        return ""
    torch, cuda, cudnn = found.groups()
    row = facts.torch_release(torch)
    if row is None:
        return ""
    image = facts.base_image("pytorch/pytorch", row.version)
    if image is None:
        return ""
    cudas = _cudas_of(row.variants)
    if cuda not in cudas + _cudas_of(row.unsure):
        return f"torch {row.version} has builds for CUDA {', '.join(cudas)}"
    if image.cudnn and cudnn != image.cudnn:
        return f"the images of torch {row.version} have cuDNN {image.cudnn}"
    return ""


def _cudas_of(variants: Iterable[str]) -> list[str]:
    """The CUDA of each variant of a release: `12.8` of `cu128`."""
    return [str(CudaVersion.parse(each)) for each in variants if each.startswith("cu")]
