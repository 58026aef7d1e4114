"""[cuda] of a draft: which CUDA, flavor, system, GPUs and driver, or why the spec has none. Corrects the ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from packaging.specifiers import SpecifierSet

from envspec.facts import Facts
from envspec.facts.gpu import UnknownGpu, find_gpu
from envspec.facts.tables import TorchRelease
from envspec.facts.torch import nearest_cuda
from envspec.importers.pip import pinned
from envspec.importers.types import CPU, Choices, Clue, Draft, Import, Outcome, SpecDecision
from envspec.lockfile.toml_writer import Value
from envspec.models import CudaVersion, Platform
from envspec.origins import INDEX_FAMILY
from envspec.spec.conda import name_of as conda_name
from envspec.spec.requirements import read_requirement
from envspec.spec.sections import Os

_DEFAULT_SYSTEM: Final = Os.UBUNTU_24_04.value
_KEYS: Final = """# gpus = ["A100", "H100"]  # the GPUs that must run it
# driver = "535"           # the oldest driver that must run it
"""
#: The table of a spec if the sources say nothing of GPUs: with packages that use CUDA, and without.
WITH_CUDA: Final = f"\n[cuda]\n{_KEYS}"
WITHOUT_CUDA: Final = f"\n# [cuda]\n{_KEYS}"
#: conda's packages of torch and CUDA.
_OF_CONDA: Final = re.compile(r"(py)?torch.*|libtorch|cuda.*|tensorflow.*|jax.*|cupy|.*cudnn|nvidia-.*")


class TableWriter:
    """Writes tables of the spec of one draft. decisions: that were made, each with its reason."""

    def __init__(self, imported: Import, choices: Choices, facts: Facts) -> None:
        self._imported = imported
        self._draft: Draft = imported.draft
        self._choices = choices
        self._facts = facts
        self.decisions: list[SpecDecision] = []

    def _decide(self, what: str, value: str, why: str, source: str = "") -> str:
        self.decisions.append(SpecDecision(what, value, why, source))
        return value


class CudaTable(TableWriter):
    """[cuda]."""

    def values(self, torch: SpecifierSet, dependencies: Sequence[str]) -> Mapping[str, Value] | str:
        """The values, or the text of a table without any. torch: the versions that the sources allow."""
        draft, choices = self._draft, self._choices
        is_chosen = bool(choices.cuda or choices.gpus or choices.driver)
        if not is_chosen and draft.cudas and draft.cudas[0].value == CPU:
            first = draft.cudas[0]
            self._decide("cuda", "none", first.why, str(first.source))
            return ""
        version = choices.cuda or self._version(torch)
        gpus = list(choices.gpus) or self._gpus()
        driver = choices.driver or self._first("cuda.driver", draft.drivers)
        # A base has its own CUDA and system.
        found: dict[str, Value] = {"gpus": gpus, "version": version}
        if not draft.bases:
            names_cuda = any((version, gpus, driver, draft.flavors, draft.cudas))
            if not names_cuda and not self._uses_cuda(dependencies):
                self._decide("cuda", "none", "no source names torch, GPUs, a driver or a CUDA version")
                return WITHOUT_CUDA
            found = {"version": version, "driver": driver, "gpus": gpus}
            found["flavor"] = self._first("cuda.flavor", draft.flavors)
            found["os"] = self._system(version, torch, dependencies)
        table = {key: value for key, value in found.items() if value}
        if table:
            return table
        if not draft.cudas:
            self._decide("cuda", "as torch's wheels require", "no source names GPUs, a driver or a CUDA version")
        return WITH_CUDA

    def _first(self, what: str, clues: Sequence[Clue]) -> str:
        if not clues:
            return ""
        first, why = clues[0], clues[0].why
        others = sorted({each.value for each in clues} - {first.value})
        if others:
            why += f" ({', '.join(others)} in the sources too)"
        return self._decide(what, first.value, why, str(first.source))

    def _uses_cuda(self, dependencies: Sequence[str]) -> bool:
        """Whether a package of the sources is torch, requires it, or is built for CUDA, as far as its name says."""
        facts, draft = self._facts, self._draft
        names = {read_requirement(text).name for text in dependencies} | draft.versions.keys()
        known = {*INDEX_FAMILY}
        known.update(row.package for row in facts.extensions)
        known.update(row.package for row in facts.cuda_builds)
        for row in facts.on_torch:
            known.update(row.packages)
        names.update(map(conda_name, draft.match_specs))
        return not names.isdisjoint(known) or self._has_cuda_of_conda()

    def _has_cuda_of_conda(self) -> bool:
        return any(map(_OF_CONDA.fullmatch, map(conda_name, self._draft.match_specs)))

    def _version(self, torch: SpecifierSet) -> str:
        """The CUDA that a source names, if torch has a build for it. Base images come last: their CUDA is often another
        one than that of torch's wheels, which bring their own.
        """
        draft = self._draft
        of_base = {each.source for each in (*draft.flavors, *draft.systems)}
        cudas = [each for each in draft.cudas if each.value != CPU]
        found = sorted(cudas, key=lambda each: each.source in of_base)
        if not found or self._has_cuda_of_conda():
            return self._first("cuda.version", found)
        first, wanted = found[0], CudaVersion.parse(found[0].value)
        if draft.pip_from is not None and "torch" in draft.versions:
            # It moves when the lock does.
            self._decide("cuda.version", "of torch's build", "torch is as it is locked", str(first.source))
            return ""
        rows = self._releases(torch)
        if rows:
            why = self._why_not_torchs(wanted, rows, torch, first, is_of_base=first.source in of_base)
            if not why:
                return self._first("cuda.version", found)
            self._decide("cuda.version", "of torch's build", why, str(first.source))
            return ""
        nearest = nearest_cuda(self._facts, wanted)
        if torch or nearest == wanted:
            return self._first("cuda.version", found)
        why = f"{first.why} has CUDA {wanted}, for which packages have no builds or NVIDIA no image"
        if nearest is None:
            self._decide("cuda.version", "none", why, str(first.source))
            return ""
        why += f"; {nearest} is the nearest of the same major version, whose drivers run both"
        return self._decide("cuda.version", str(nearest), why, str(first.source))

    def _releases(self, torch: SpecifierSet) -> list[TorchRelease]:
        """The releases of torch that the sources allow; none if they bound nothing."""
        if not torch:
            return []
        return [row for row in self._facts.torch if torch.contains(row.version)]

    def _why_not_torchs(
        self, wanted: CudaVersion, rows: Sequence[TorchRelease], torch: SpecifierSet, clue: Clue, *, is_of_base: bool
    ) -> str:
        """Why the CUDA of a source is not that of torch's build; empty if a build of torch has it."""
        defaults = {self._facts.default_variant(row.version, Platform.LINUX_64) for row in rows}
        if wanted.variant in defaults:
            if self._facts.releases_of(wanted):
                return ""
            return f"torch's wheels bring CUDA {wanted}, and no image of NVIDIA has it: one of a newer CUDA does"
        if not is_of_base and any(wanted.variant in row.variants for row in rows):
            return ""
        return f"{clue.why} has CUDA {wanted}; the wheels of torch{torch} on PyPI bring another one of their own"

    def _system(self, version: str, torch: SpecifierSet, dependencies: Sequence[str]) -> str:
        """The system that a source names, or another one if NVIDIA has no image of it for the CUDA."""
        wanted, source = _DEFAULT_SYSTEM, ""
        if self._draft.systems:
            first = self._draft.systems[0]
            wanted, source = first.value, str(first.source)
        version = version or self._cuda_of_pins(torch, dependencies)
        found: set[str] = set()
        for row in self._facts.images:
            if version and row.cuda.startswith(f"{version}."):
                found.update(row.os)
        found.intersection_update(each.value for each in Os)
        if not found or wanted in found:
            return self._first("cuda.os", self._draft.systems)
        return self._decide("cuda.os", max(found), f"NVIDIA has no image of CUDA {version} on {wanted}", source)

    def _cuda_of_pins(self, torch: SpecifierSet, dependencies: Sequence[str]) -> str:
        """The CUDA of torch's wheels on the default index, else that of another package of a known version."""
        if releases := self._releases(torch):
            variant = self._facts.default_variant(releases[-1].version, Platform.LINUX_64)
            if variant and variant.startswith("cu"):
                return str(CudaVersion.parse(variant))
        pins = dict(self._draft.versions)
        for line in map(read_requirement, dependencies):
            if version := pinned(line):
                pins[line.name] = version
        for name, version in sorted(pins.items()):
            build = self._facts.cuda_build(name, version, Platform.LINUX_64)
            if build is not None:
                return build.cuda
        return ""

    def _gpus(self) -> list[str]:
        clues = self._draft.gpus
        found: dict[str, None] = {}
        for each in clues:
            try:
                find_gpu(self._facts, each.value)
            except UnknownGpu:
                self._imported.add(each.source, each.value, Outcome.NOT_UNDERSTOOD, "no GPU of this name is known")
                continue
            found[each.value] = None
        if found:
            why = "; ".join(dict.fromkeys(each.why for each in clues))
            sources = dict.fromkeys(str(each.source) for each in clues)
            self._decide("cuda.gpus", ", ".join(found), why, ", ".join(sources))
        return list(found)
