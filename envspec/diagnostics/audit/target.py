"""The Python, and the build of torch, that a project's sources mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envspec.diagnostics.audit.cuda import pytorch_indexes
from envspec.diagnostics.audit.index import accepts_python
from envspec.diagnostics.audit.python import series_of, specifier_of
from envspec.diagnostics.audit.types import Audit, Required, TorchBuild
from envspec.errors import UsageError
from envspec.facts.tables import numeric
from envspec.facts.torch import CudaChoice, choose_build
from envspec.models import CudaVersion, Python, Target
from envspec.resolve.pypi.index.page import SDIST_SUFFIXES, PageListing
from envspec.resolve.pypi.index.selection import TagRanks, version_of
from envspec.spec.targets import wheel_tags

#: The Python that is used if no source names one and it suits: this system's own.
_USUAL: Final = "ubuntu24.04"
#: `pytorch/pytorch:2.4.0-cuda12.4-cudnn9-devel`
_IMAGE: Final = re.compile(r"\bpytorch/pytorch:(\d+\.\d+\.\d+)-cuda(\d+\.\d+)")
#: Older ones are not tried.
_OLDEST: Final = (3, 8)


def named_python(audit: Audit, option: str | None) -> str:
    """The Python of the command's option, else the first that a source names, else that of the system whose python3 a
    source installs; empty if there is none.

    Raises:
        UsageError: the option is no version.
    """
    if option is not None and not series_of(option):
        raise UsageError(f"--python {option}: not a version", hint="write it as 3.12 or 3.12.4")
    named = (clue.value for clue in audit.draft.pythons if series_of(clue.value))
    systems = (audit.facts.system(clue.value) for clue in audit.draft.systems)
    is_installed = any(each.text == "python3" for each in audit.ledger)
    own = (row.python for row in systems if row and row.python and is_installed)
    return option or next(named, next(own, ""))


def assumed_pythons(audit: Audit) -> list[str]:
    """Series that the sources allow, in the order in which they suit: those for which most requirements have a wheel
    or an sdist; of equal ones the usual Python, then the newest. At most three: where one has no solution, a much older
    one may have it.
    """
    bounds = [bound for clue in audit.draft.pythons if (bound := specifier_of(clue)) is not None]
    known = {series for row in audit.facts.torch for series in row.pythons if numeric(series) >= _OLDEST}
    everyone = sorted((series for series in known if not series.endswith("t")), key=numeric)
    allowed = [series for series in everyone if all(_allows(bound, series) for bound in bounds)] or everyone
    system = audit.facts.system(_USUAL)
    usual = system.python if system else None
    files = [found for each in audit.required if (found := _candidates(audit, each)) is not None]

    def rank(series: str) -> tuple[int, bool, tuple[int, ...]]:
        target = replace(audit.target, python=Python(f"{series}.20", "spec"))
        return _points(files, target), series == usual, numeric(series)

    best = max(allowed, key=rank)
    older = [series for series in reversed(allowed) if numeric(series) < numeric(best)]
    return [best, *older[1:4:2]]


def _allows(bound: SpecifierSet, series: str) -> bool:
    return any(bound.contains(f"{series}.{patch}", prereleases=True) for patch in (0, 5, 20))


def _candidates(audit: Audit, required: Required) -> tuple[PageListing, Sequence[int]] | None:
    """The files that a requirement allows, newest first; None if its page is not known."""
    page = (audit.pages or {}).get(required.requirement.name)
    if page is None:
        return None
    versions = {version for name in page.names if (version := version_of(name)) is not None}
    allowed = set(required.requirement.specifier.filter(versions))
    numbers = [number for number, name in enumerate(page.names) if version_of(name) in allowed]
    return page, numbers[::-1]


def _points(files: Sequence[tuple[PageListing, Sequence[int]]], target: Target) -> int:
    """Two for each requirement with a wheel that the target loads, one for an sdist."""
    ranks, python = TagRanks(tuple(wheel_tags(target))), target.python.version
    points = 0
    for page, numbers in files:
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
    variants = {each.variant for each in pytorch_indexes(audit.ledger) if each.variant and not each.is_extra}
    if not bounds or len(variants) != 1:
        return ()
    variant = variants.pop()
    cuda = CudaChoice.CPU if variant == "cpu" else CudaVersion.parse(variant)
    together = SpecifierSet(",".join(str(each) for each in bounds if str(each)))
    choice = choose_build(audit.facts, together, cuda, audit.target.platform)
    return (f"torch<={choice.versions[-1]}",) if choice.versions else ()


def torch_build(audit: Audit) -> TorchBuild | None:
    """The build of torch that installers choose; of a pinned one also if nothing else is known of them."""
    pinned = next((each.pin for each in audit.required if each.requirement.name == "torch"), "")
    found = (audit.taken or {}).get("torch")
    version = _public(found.version if found else pinned)
    row = audit.facts.torch_release(version) if version else None
    if row is None:
        return None
    label = next((text.partition("+")[2] for text in _labelled(audit, found.version if found else pinned)), "")
    # An index of a tool's table is for what the project requires itself.
    is_direct = audit.first("torch") is not None
    named = [each.variant for each in pytorch_indexes(audit.ledger) if each.variant and (is_direct or each.is_option)]
    # An index for the CPU beside one for CUDA is for other platforms.
    meant = [each for each in named if each != "cpu"] or named
    index = next((each for each in meant if each in row.published), "")
    variant = label or _of_image(audit, version) or index or row.default.get(audit.target.platform.value, "")
    if not re.fullmatch(r"cpu|cu\d{2,3}", variant):
        return None
    return TorchBuild(row, version, variant, audit.bringing("torch"), index)


def _of_image(audit: Audit, version: str) -> str:
    """The CUDA of a base image that has this torch; empty if none has it."""
    found = (_IMAGE.search(each.text) for each in audit.ledger)
    images = ((each[1], f"cu{each[2].replace('.', '')}") for each in found if each)
    return next((variant for torch, variant in images if torch == version), "")


def _labelled(audit: Audit, version: str) -> Iterator[str]:
    """Versions with a label: what is chosen, and what the sources name."""
    found: Mapping[str, str] = audit.draft.versions
    yield from (text for text in (version, found.get("torch", "")) if "+" in text)


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version
