"""The Pythons that suit a project's sources, and the build of torch that installers choose. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from envspec.diagnostics.audit.cuda import pytorch_indexes
from envspec.diagnostics.audit.index import accepts_python
from envspec.diagnostics.audit.types import Audit, InstalledTorch, Required
from envspec.facts.tables import TorchRelease, pep440
from envspec.facts.torch import CudaChoice, choose_build
from envspec.models import CudaVersion
from envspec.resolve.pypi.index.page import SDIST_SUFFIXES, PageListing
from envspec.resolve.pypi.index.selection import TagRanks, version_of
from envspec.spec.targets import wheel_tags


def by_files(audits: Sequence[Audit]) -> list[Audit]:
    """The same sources for several Pythons, first those for which most requirements have a wheel or an sdist."""
    return sorted(audits, key=_points, reverse=True)


def _candidates(audit: Audit, required: Required) -> tuple[PageListing, Sequence[int]] | None:
    """The files that a requirement and the lock allow, newest first; None if its page is not known."""
    page = (audit.pages or {}).get(required.name)
    if page is None:
        return None
    locked = pep440(audit.versions().get(required.name, "").partition("+")[0])
    versions = list(map(version_of, page.names))
    allowed = {locked}
    if locked is None:
        allowed = set(required.requirement.specifier.filter(set(filter(None, versions))))
    numbers = [number for number, version in enumerate(versions) if version in allowed]
    return page, numbers[::-1]


def _points(audit: Audit) -> int:
    """Two for each requirement with a wheel that the target loads, one for an sdist."""
    ranks = TagRanks(tuple(wheel_tags(audit.target)))

    def has_file(page: PageListing, numbers: Sequence[int], is_wanted: Callable[[str], bool]) -> bool:
        for number in numbers:
            if is_wanted(page.names[number]) and accepts_python(page.file(number), audit.target.python.version):
                return True
        return False

    points = 0
    for each in audit.required:
        found = _candidates(audit, each)
        if found is None:
            continue
        if has_file(*found, lambda name: ranks.rank(name) is not None):
            points += 2
        elif has_file(*found, lambda name: name.endswith(SDIST_SUFFIXES)):
            points += 1
    return points


def torch_bound(audit: Audit) -> tuple[str, ...]:
    """The releases of torch that are published for the only index of PyTorch's that the sources name.

    Raises:
        NoSuchBuild: there is none.
    """
    bound = audit.bound("torch")
    variants = {each.variant for each in pytorch_indexes(audit) if not each.is_extra} - {""}
    if bound is None or len(variants) != 1:
        return ()
    variant = variants.pop()
    cuda: CudaVersion | CudaChoice = CudaChoice.CPU
    if variant != "cpu":
        cuda = CudaVersion.parse(variant)
    choice = choose_build(audit.facts, bound, cuda, audit.target.platform)
    if not choice.versions:
        return ()
    return (f"torch<={choice.versions[-1]}",)


def torch_build(audit: Audit) -> InstalledTorch | None:
    """The build of torch that installers choose; of a pinned one also if nothing else is known of them. None if there
    is no such build.
    """
    version = pep440(_torch_version(audit))
    if version is None:
        return None
    row = audit.facts.torch_release(version.public)
    if row is None:
        return None
    index, default = _index(audit, row), audit.default_of(row)
    variant = _label(audit, str(version)) or _of_image(audit) or index or default
    if not row.is_published(variant, audit.target.platform):
        return None
    if not re.fullmatch(r"cpu|cu\d{2,3}", variant):
        return None
    return InstalledTorch(row, version.public, variant, audit.bringing("torch"), index)


def _torch_version(audit: Audit) -> str:
    """The version that installers choose, that a base image has, or that a line requires; empty if it is not known."""
    if found := audit.chosen("torch"):
        return found.version
    if "torch" in audit.of_images:
        return audit.draft.versions.get("torch", "")
    for each in audit.requiring("torch"):
        return each.pin
    return ""


def _index(audit: Audit, row: TorchRelease) -> str:
    """The variant of PyTorch's index of which torch's build is; empty if the sources name none that has it."""
    # An index of a tool's table is for what the project requires itself.
    is_direct = audit.first("torch") is not None
    indexes = [each for each in pytorch_indexes(audit) if is_direct or each.is_option]
    # An index for the CPU beside one for CUDA is for other platforms.
    of_cuda = [each for each in indexes if each.variant not in ("", "cpu")]
    for each in of_cuda or indexes:
        if each.variant in row.published:
            return each.variant
    return ""


def _label(audit: Audit, version: str) -> str:
    """The label of torch's version, or of the version that the sources name; empty if it has none."""
    for named in (version, audit.draft.versions.get("torch", "")):
        if "+" in named:
            return named.partition("+")[2]
    for pin in audit.draft.labelled:
        if pin.name == "torch":
            return pin.label
    return ""


def _of_image(audit: Audit) -> str:
    """The CUDA of the base image whose torch is used; empty if none has it."""
    if "torch" not in audit.of_images:
        return ""
    line = audit.first("torch")
    for clue in audit.draft.cudas:
        if clue.source == line and clue.value != "cpu":
            return CudaVersion.parse(clue.value).variant
    return ""
