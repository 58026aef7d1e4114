"""Wheels of CUDA extensions: what the local versions in their names say, and which builds of torch they fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct, field
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.facts.gpu import gpus_without_code
from envspec.facts.tables import ExtensionRow, Facts, GpuRow, rows_on
from envspec.models import CudaVersion, Platform
from envspec.names import normalised

#: The words of a row's `label`; a local version is lower case, with dots for dashes (PEP 440).
_WORDS: Final[Mapping[str, str]] = {
    "variant": r"(?P<variant>cpu|cu\d{2,3})",
    "torch": r"(?P<torch>\d+\.\d+)",
    "torch28": r"(?P<torch28>\d{2,3})",
    "torch280": r"(?P<torch280>\d{3,5})",
    "abi": r"(?P<abi>true|false)",
}
#: What begins the local version that resolvers see: the numbers by which one wheel goes before another.
_ORDER: Final = re.compile(r"(?<=\+)(?:\d+\.){5}")

#: `flash-attn == 2.8.3+cu12torch2.8cxx11abiTRUE; sys_platform == "linux"`
_LABELLED: Final = re.compile(r"(([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*==\s*)([^\s,;+]+\+[^\s,;]+)(.*)", re.DOTALL)
_VARIANT: Final = re.compile(r"cpu|cu\d{3}")


class TorchVariant(Struct, frozen=True):
    """cuda: None for the CPU alone. new_abi: whether C++ strings are those of 2011 (`cxx11abiTRUE`)."""

    version: Version
    cuda: CudaVersion | None
    new_abi: bool


class Label(Struct, frozen=True):
    """What a wheel was built for, as far as its label says it.

    torch: a minor version. variant: `cu12`, `cu128`, `cpu`. new_abi: see `TorchVariant`.
    """

    torch: str = ""
    variant: str = ""
    new_abi: bool | None = None

    def fits(self, build: TorchVariant) -> bool:
        """A program for a CUDA release runs with the libraries of a later one of the same major version, not of an
        earlier one (CUDA Compatibility, minor version compatibility).
        """
        if self.torch and self.torch != f"{build.version.major}.{build.version.minor}":
            return False
        if self.new_abi not in (None, build.new_abi):
            return False
        return not self.variant or self.serves(build.cuda)

    def serves(self, cuda: CudaVersion | None) -> bool:
        if cuda is None or self.variant == "cpu":
            return cuda is None and self.variant == "cpu"
        major, minor = int(self.variant[2:4]), self.variant[4:]
        return major == cuda.major and int(minor or 0) <= cuda.minor

    @property
    def cuda(self) -> str:
        """`CUDA 12`, `CUDA 12.8`, `the CPU`."""
        if self.variant == "cpu":
            return "the CPU"
        digits = self.variant.removeprefix("cu")
        return f"CUDA {digits[:2]}.{digits[2:]}" if digits[2:] else f"CUDA {digits}"

    def __str__(self) -> str:
        parts = []
        if self.torch:
            parts.append(f"torch {self.torch}")
        if self.variant:
            parts.append(self.cuda)
        if self.new_abi is False:
            parts.append("C++ ABI before 2011")
        return ", ".join(parts)

    @property
    def order(self) -> str:
        """Five numbers: a newer torch goes before an older one, then a newer CUDA."""
        digits = f"{self.cuda_number:03}"
        return f"{self.torch or '0.0'}.{digits[:2]}.{digits[2]}.{int(self.new_abi or 0)}."

    @property
    def cuda_number(self) -> int:
        """To order variants by: 128 for cu128, 120 for cu12, 0 for cpu."""
        if not self.variant.startswith("cu"):
            return 0
        return int(self.variant.removeprefix("cu").ljust(3, "0"))

    def fill(self, page: str, version: str) -> str:
        """A row's `page` for this build and release."""
        digits = self.torch.replace(".", "")
        words = {"torch": self.torch, "torch28": digits, "torch280": f"{digits}0", "variant": self.variant}
        return page.format(version=version, **words)


def read_label(row: ExtensionRow, version: Version) -> Label | None:
    """What the local version says; None if there is none, or if it has another form than the row's."""
    if not (row.label and version.local):
        return None
    found = _pattern(row.label).fullmatch(version.local)
    if found is None:
        return None
    words = found.groupdict()
    torch = words.get("torch") or ""
    if digits := words.get("torch28") or (words.get("torch280") or "")[:-1]:
        torch = f"{digits[0]}.{digits[1:]}"
    return Label(torch, words.get("variant") or "", {"true": True, "false": False}.get(words.get("abi") or ""))


@lru_cache(maxsize=64)
def _pattern(label: str) -> re.Pattern[str]:
    # `re.escape` writes the braces around a word as `\{` and `\}`.
    return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda word: _WORDS[word[1]], re.escape(label.lower())))


@lru_cache(maxsize=64)
def torch_builds(facts: Facts, platform: Platform, variant: str | None) -> tuple[TorchVariant, ...]:
    """The builds that a target's torch may be, oldest first. variant: None for the default one of each release."""
    builds = []
    for row in facts.torch:
        name = variant or row.default_on(platform)
        if name and row.is_published(name, platform):
            builds.append(torch_build(facts, Version(row.version), name, platform))
    return tuple(builds)


@lru_cache(maxsize=1024)
def torch_build(facts: Facts, version: Version, variant: str, platform: Platform) -> TorchVariant:
    new_abi = True
    for row in rows_on(facts.old_abis, platform):
        is_of_variant = not row.variants or variant in row.variants
        if is_of_variant and SpecifierSet(row.torch).contains(version.public, prereleases=True):
            new_abi = False
    cuda = None if variant == "cpu" else CudaVersion.parse(variant)
    return TorchVariant(version, cuda, new_abi)


class Extensions(Struct, frozen=True):
    """The extensions of one target, whose wheels are chosen by their labels.

    facts: without any, nothing is an extension.
    variant: of the target's torch; None for each release's default one.
    given: the version of a torch that comes from no index.
    torch: the releases that the spec allows.
    gpus: what must run the wheels.
    """

    facts: Facts | None = None
    platform: Platform = Platform.LINUX_64
    variant: str | None = None
    given: Version | None = None
    torch: SpecifierSet = field(default_factory=SpecifierSet)
    gpus: tuple[GpuRow, ...] = ()

    @property
    def builds(self) -> tuple[TorchVariant, ...]:
        """The builds that the target's torch may be."""
        if self.facts is None:
            return ()
        if self.given is None:
            return torch_builds(self.facts, self.platform, self.variant)
        variant = self.given.local if _VARIANT.fullmatch(self.given.local or "") else self.variant
        return (torch_build(self.facts, self.given, variant, self.platform),) if variant else ()

    def __contains__(self, name: str) -> bool:
        return self.row(name) is not None

    def row(self, name: str, version: str = "") -> ExtensionRow | None:
        """The row of a release (see `Facts.extension`)."""
        return self.facts.extension(name, version) if self.facts else None

    def _labelling(self, name: str, version: Version) -> ExtensionRow | None:
        """The row with the form of a release's labels: of one that no row describes, that of the newest ones."""
        return self.row(name, version.public) or self.row(name)

    @property
    def identity(self) -> object:
        """All that decides which wheels fit; the rows are those of the facts."""
        return [self.variant, str(self.given), [gpu.compute_capability for gpu in self.gpus]]

    def label(self, name: str, version: Version) -> Label | None:
        """What the label of a release's wheel says; None if it has none, or one of another form."""
        if not version.local:
            return None
        row = self._labelling(name, version)
        return read_label(row, version) if row else None

    def fits(self, name: str, version: Version) -> bool:
        """Whether a wheel of this version may be chosen: all without a label, and of the others those that fit."""
        return not self.obstacle(name, version)

    def obstacle(self, name: str, version: Version) -> str:
        """Why a wheel of this version is not chosen; empty if it may be."""
        row = self._labelling(name, version)
        if row is None or version.local is None or not row.label:
            return ""
        label = read_label(row, version)
        if label is None:
            return f"the label +{version.local} has another form than {row.label}"
        if row.confidence == "unverified":
            return "what its label means was not verified"
        if not any(map(label.fits, self.builds)):
            return f"its wheel +{version.local} is for {label}"
        if without := self._without_code(self.row(name, version.public)):
            return f"its wheels have no code for {' and '.join(without)}"
        return ""

    def _without_code(self, row: ExtensionRow | None) -> tuple[str, ...]:
        """The GPUs that a release's wheels do not serve, as far as it is known."""
        if row is None or not row.sm:
            return ()
        return gpus_without_code(self.gpus, row.sm, row.ptx)

    def requirement(self, name: str, version: Version) -> str | None:
        """The requirement on torch that a wheel's label implies; None for none."""
        label = self.label(name, version)
        if label is None:
            return None
        fitting = self._fitting_torch(label)
        if not label.torch:
            return _between(fitting, [build.version for build in self.builds])
        requirement = f"torch=={label.torch}.*"
        for torch in self._fitting_torch(Label(label.torch)):
            if torch not in fitting:
                requirement += f",!={torch}"
        return requirement

    def _fitting_torch(self, label: Label) -> list[Version]:
        """The versions of the builds that a label fits."""
        return [build.version for build in self.builds if label.fits(build)]

    def allows(self, name: str, version: Version) -> bool:
        """Whether the spec allows a torch that a labelled wheel fits."""
        label = self.label(name, version)
        if label is None:
            return False
        return any(self.torch.filter(self._fitting_torch(label), prereleases=True))

    def shown(self, name: str, version: str) -> str:
        """A version as resolvers see it: they take the highest one, and `torch2.10` is a lower text than `torch2.9`."""
        if "+" not in version:
            return version
        label = self.label(name, Version(version))
        return version.replace("+", f"+{label.order}") if label else version

    def shown_line(self, line: str) -> str:
        """A requirement as resolvers see it, if it names a label."""
        found = _LABELLED.match(line)
        return f"{found[1]}{self.shown(normalised(found[2]), found[3])}{found[4]}" if found else line

    def changes(self, label: Label) -> tuple[int, tuple[int, ...], tuple[str, ...]] | None:
        """What has to be changed in the spec so that a wheel with this label fits: how much, and the lines.

        None if no known build of torch fits it. The newest torch is the least of equal changes.
        """
        changes = []
        for build, cuda in self._possible_builds():
            if not label.fits(build):
                continue
            lines = []
            if not self.torch.contains(build.version, prereleases=True):
                pin = f"torch=={label.torch}.*" if label.torch else f"torch=={build.version}"
                lines.append(f'"{pin}"')
            if cuda:
                lines.append(cuda)
            age = tuple(-number for number in build.version.release)
            changes.append((len(lines), age, tuple(lines)))
        return min(changes, default=None)

    def _possible_builds(self) -> Iterator[tuple[TorchVariant, str]]:
        """The builds that the spec may require, each with the line of `[cuda]` for it; empty for the target's own."""
        for build in self.builds:
            yield build, ""
        if self.facts is None or self.variant == "cpu" or self.given is not None:
            return
        for row in self.facts.torch:
            for name in row.variants:
                build = torch_build(self.facts, Version(row.version), name, self.platform)
                if build.cuda is not None:
                    yield build, f'[cuda] version = "{build.cuda}"'


def without_order(text: str) -> str:
    """A resolver's text with the versions as they are."""
    return _ORDER.sub("", text)


def _between(fitting: Sequence[Version], known: Sequence[Version]) -> str | None:
    """The requirement on torch that allows these of the known releases, and what is newer than all of them."""
    if len(fitting) == len(known) or not fitting:
        return None
    requirement = f"torch>={fitting[0]}"
    if fitting[-1] != known[-1]:
        requirement += f",<={fitting[-1]}"
    for version in known:
        if fitting[0] <= version <= fitting[-1] and version not in fitting:
            requirement += f",!={version}"
    return requirement
