"""The Pythons that suit a project's sources, and the build of torch that installers choose. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envspec.diagnostics.audit.cuda import labelled, pytorch_indexes
from envspec.diagnostics.audit.index import accepts_python
from envspec.diagnostics.audit.types import Audit, InstalledTorch, Required
from envspec.facts.tables import pep440
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
    page = (audit.pages or {}).get(required.requirement.name)
    if page is None:
        return None
    versions = {version for name in page.names if (version := version_of(name)) is not None}
    locked = pep440(audit.versions().get(required.requirement.name, "").partition("+")[0])
    allowed = {locked} if locked else set(required.requirement.specifier.filter(versions))
    numbers = [number for number, name in enumerate(page.names) if version_of(name) in allowed]
    return page, numbers[::-1]


def _points(audit: Audit) -> int:
    """Two for each requirement with a wheel that the target loads, one for an sdist."""
    ranks, python = TagRanks(tuple(wheel_tags(audit.target))), audit.target.python.version
    points = 0
    for page, numbers in filter(None, (_candidates(audit, each) for each in audit.required)):
        if any(ranks.rank(page.names[n]) is not None and accepts_python(page.file(n), python) for n in numbers):
            points += 2
        else:
            sdists = (page.file(n) for n in numbers if page.names[n].endswith(SDIST_SUFFIXES))
            points += any(accepts_python(file, python) for file in sdists)
    return points


def torch_bound(audit: Audit) -> tuple[str, ...]:
    """The releases of torch that are published for the only index of PyTorch's that the sources name.

    Raises:
        NoSuchBuild: there is none.
    """
    bounds = [each.requirement.specifier for each in audit.required if each.requirement.name == "torch"]
    indexes = [each for each in pytorch_indexes(audit) if not each.is_extra]
    variants = {each.variant for each in indexes} - {""}
    if not bounds or len(variants) != 1:
        return ()
    variant = variants.pop()
    cuda = CudaChoice.CPU if variant == "cpu" else CudaVersion.parse(variant)
    together = SpecifierSet(",".join(filter(None, map(str, bounds))))
    choice = choose_build(audit.facts, together, cuda, audit.target.platform)
    return (f"torch<={choice.versions[-1]}",) if choice.versions else ()


def torch_build(audit: Audit) -> InstalledTorch | None:
    """The build of torch that installers choose; of a pinned one also if nothing else is known of them. None if there
    is no such build.
    """
    pinned = next((each.pin for each in audit.required if each.requirement.name == "torch"), "")
    if "torch" in audit.of_images:
        pinned = audit.draft.versions.get("torch", "")
    found = (audit.taken or {}).get("torch")
    version = _public(found.version if found else pinned)
    row = audit.facts.torch_release(version) if version else None
    if row is None:
        return None
    # An index of a tool's table is for what the project requires itself.
    is_direct = audit.first("torch") is not None
    indexes = [each for each in pytorch_indexes(audit) if is_direct or each.is_option]
    named = [each.variant for each in indexes if each.variant]
    # An index for the CPU beside one for CUDA is for other platforms.
    meant = [each for each in named if each != "cpu"] or named
    index = next((each for each in meant if each in row.published), "")
    default = row.default.get(audit.target.platform.value, "")
    label = _label(audit, found.version if found else pinned)
    variant = label or _of_image(audit) or index or default
    if variant != default and variant not in row.published:
        return None
    if not re.fullmatch(r"cpu|cu\d{2,3}", variant):
        return None
    return InstalledTorch(row, version, variant, audit.bringing("torch"), index)


def _label(audit: Audit, version: str) -> str:
    """The label of torch's version, or of the version that the sources name; empty if it has none."""
    named = [version, audit.draft.versions.get("torch", "")]
    labels = [each.partition("+")[2] for each in named if "+" in each]
    return next(iter([*labels, *(each.label for each in labelled(audit) if each.name == "torch")]), "")


def _of_image(audit: Audit) -> str:
    """The CUDA of the base image whose torch is used; empty if none has it."""
    if "torch" not in audit.of_images:
        return ""
    line = audit.first("torch")
    found = (each.value for each in audit.draft.cudas if each.source == line)
    return next((CudaVersion.parse(each).variant for each in found if each != "cpu"), "")


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version
