"""[cuda] of a draft: which CUDA, flavor, system, GPUs and driver, or why the spec has no such table. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from packaging.specifiers import SpecifierSet

from envspec.facts import Facts
from envspec.facts.gpu import UnknownGpu, find_gpu
from envspec.facts.torch import nearest_cuda
from envspec.importers.pip import pinned
from envspec.importers.types import CPU, Choices, Clue, Draft, Import, Outcome
from envspec.lockfile.toml_writer import Value
from envspec.models import CudaVersion, Decision, Platform
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


class CudaTable:
    """The table of one draft. decisions: made by `values`, each with its reason."""

    def __init__(self, imported: Import, choices: Choices, facts: Facts) -> None:
        self._imported = imported
        self._draft: Draft = imported.draft
        self._choices = choices
        self._facts = facts
        self.decisions: list[Decision] = []

    def values(self, torch: SpecifierSet, dependencies: Sequence[str]) -> Mapping[str, Value] | str:
        """The values, or the text of a table without any. torch: the versions that the sources allow."""
        draft, choices = self._draft, self._choices
        if not choices.cuda and draft.cudas and draft.cudas[0].value == CPU:
            first = draft.cudas[0]
            self._decide("cuda", "none", first.why, str(first.source))
            return ""
        version = choices.cuda or self._version(torch)
        gpus = list(choices.gpus) or self._gpus()
        driver = choices.driver or self._first("cuda.driver", draft.drivers)
        if draft.bases:
            # The base has its own CUDA and system.
            table: dict[str, Value] = {"gpus": gpus, "version": version or None}
        else:
            names_cuda = version or gpus or driver or draft.flavors or draft.cudas
            if not names_cuda and not self._uses_cuda(dependencies):
                self._decide("cuda", "none", "no source names torch, GPUs, a driver or a CUDA version")
                return WITHOUT_CUDA
            table = {"version": version or None, "driver": driver or None, "gpus": gpus}
            table["flavor"] = self._first("cuda.flavor", draft.flavors) or None
            table["os"] = self._system(version, torch, dependencies) or None
        if not any(table.values()):
            if not draft.cudas:
                self._decide("cuda", "as torch's wheels require", "no source names GPUs, a driver or a CUDA version")
            return WITH_CUDA
        return table

    def _decide(self, what: str, value: str, why: str, source: str = "") -> str:
        self.decisions.append(Decision(what, value, why, source))
        return value

    def _first(self, what: str, clues: Sequence[Clue]) -> str:
        if not clues:
            return ""
        others = sorted({each.value for each in clues} - {clues[0].value})
        more = f" ({', '.join(others)} in the sources too)" if others else ""
        return self._decide(what, clues[0].value, clues[0].why + more, str(clues[0].source))

    def _uses_cuda(self, dependencies: Sequence[str]) -> bool:
        """Whether a package of the sources is torch, requires it, or is built for CUDA, as far as its name says."""
        facts, draft = self._facts, self._draft
        names = {read_requirement(text).name for text in dependencies} | draft.versions.keys()
        known = {*INDEX_FAMILY, *(row.package for row in facts.extensions), *(row.package for row in facts.cuda_builds)}
        for row in facts.on_torch:
            known.update(row.packages)
        conda = {conda_name(text) for text, _ in draft.conda}
        return not names.isdisjoint(known) or any(_OF_CONDA.fullmatch(name) or name in known for name in conda)

    def _version(self, torch: SpecifierSet) -> str:
        """The CUDA that a source names, if torch has a build for it. Base images come last: their CUDA is often another
        one than that of torch's wheels, which bring their own.
        """
        of_base = {each.source for each in (*self._draft.flavors, *self._draft.systems)}
        cudas = [each for each in self._draft.cudas if each.value != CPU]
        found = sorted(cudas, key=lambda each: each.source in of_base)
        if not found or any(_OF_CONDA.fullmatch(conda_name(text)) for text, _ in self._draft.conda):
            return self._first("cuda.version", found)
        first, wanted = found[0], CudaVersion.parse(found[0].value)
        rows = [row for row in self._facts.torch if torch and torch.contains(row.version)]
        if rows:
            variants = {self._facts.default_variant(row.version, Platform.LINUX_64) for row in rows}
            why = f"{first.why} has CUDA {wanted}; the wheels of torch{torch} on PyPI bring another one of their own"
            if wanted.variant in variants and not self._facts.releases_of(wanted):
                why = f"torch's wheels bring CUDA {wanted}, and no image of NVIDIA has it: one of a newer CUDA does"
                variants = set()
            elif first.source not in of_base:
                variants.update(name for row in rows for name in row.variants)
            if wanted.variant in variants:
                return self._first("cuda.version", found)
            self._decide("cuda.version", "of torch's build", why, str(first.source))
            return ""
        nearest = None if torch else nearest_cuda(self._facts, wanted)
        if nearest == wanted or (torch and nearest is None):
            return self._first("cuda.version", found)
        no_build = f"{first.why} has CUDA {wanted}, for which packages have no builds or NVIDIA no image"
        if nearest is None:
            self._decide("cuda.version", "none", no_build, str(first.source))
            return ""
        why = f"{no_build}; {nearest} is the nearest of the same major version, whose drivers run both"
        return self._decide("cuda.version", str(nearest), why, str(first.source))

    def _system(self, version: str, torch: SpecifierSet, dependencies: Sequence[str]) -> str:
        """The system that a source names, or another one if NVIDIA has no image of it for the CUDA."""
        named = self._draft.systems[0] if self._draft.systems else None
        wanted = named.value if named else _DEFAULT_SYSTEM
        version = version or self._cuda_of_pins(torch, dependencies)
        found = {os for row in self._facts.images if version and row.cuda.startswith(f"{version}.") for os in row.os}
        usable = sorted((each.value for each in Os if each.value in found), reverse=True)
        if not usable or wanted in usable:
            return self._first("cuda.os", self._draft.systems)
        source = str(named.source) if named else ""
        return self._decide("cuda.os", usable[0], f"NVIDIA has no image of CUDA {version} on {wanted}", source)

    def _cuda_of_pins(self, torch: SpecifierSet, dependencies: Sequence[str]) -> str:
        """The CUDA of torch's wheels on the default index, else that of another package of a known version."""
        of_torch = [row for row in self._facts.torch if torch and torch.contains(row.version)]
        variant = self._facts.default_variant(of_torch[-1].version, Platform.LINUX_64) if of_torch else None
        if variant and variant.startswith("cu"):
            return str(CudaVersion.parse(variant))
        pins = dict(self._draft.versions)
        pins |= {line.name: version for line in map(read_requirement, dependencies) if (version := pinned(line))}
        builds = (self._facts.cuda_build(name, pinned, Platform.LINUX_64) for name, pinned in sorted(pins.items()))
        return next((build.cuda for build in builds if build is not None), "")

    def _gpus(self) -> list[str]:
        found: dict[str, None] = {}
        for each in self._draft.gpus:
            try:
                find_gpu(self._facts, each.value)
            except UnknownGpu:
                self._imported.add(each.source, each.value, Outcome.NOT_UNDERSTOOD, "no GPU of this name is known")
                continue
            found[each.value] = None
        if found:
            self._decide(
                "cuda.gpus",
                ", ".join(found),
                "; ".join(dict.fromkeys(each.why for each in self._draft.gpus)),
                ", ".join(dict.fromkeys(str(each.source) for each in self._draft.gpus)),
            )
        return list(found)
