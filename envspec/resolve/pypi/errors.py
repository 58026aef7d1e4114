"""Why there is no solution: conflicts between [pip] and [conda], and what a resolver cannot see in its index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from msgspec import Struct

from envspec.errors import NoSolution
from envspec.facts.torch import MEMBERS
from envspec.models import SPEC, Dependent, Target
from envspec.reasons import Reason, reason
from envspec.resolve.pypi.found import is_release
from envspec.resolve.pypi.metadata import missing_extras, parsed
from envspec.resolve.types import (
    CondaProvided,
    FoundPackage,
    ProvidedPackage,
    required_by,
)
from envspec.spec import Requirement, RequirementKind
from envspec.spec.errors import nearest
from envspec.spec.sections import Pip
from envspec.structs import replace


class PypiCondaConflict(NoSolution, code="pypi-conda-conflict"):
    """[pip] and [conda] require different things of one Python package."""


class FoundConflict(NoSolution, code="on-top-of-conflict"):
    """[pip] requires something else than what is installed already."""


def check_conflicts(
    required: Sequence[Requirement], bounds: Iterable[Requirement], pip: Pip, provided: Mapping[str, ProvidedPackage]
) -> None:
    """Refuse requirements of [pip] that packages from no index do not satisfy.

    required, bounds: the requirements and constraints that apply to the platform.
    """
    for requirement in required:
        provider = provided.get(requirement.name)
        if isinstance(provider, CondaProvided):
            _check_requirement(requirement, pip, provider)
        elif isinstance(provider, FoundPackage):
            _check_existing(requirement, pip, provider)
    for bound in bounds:
        provider = provided.get(bound.name)
        if provider is None or bound.specifier.contains(provider.version, prereleases=True):
            continue
        what = f"{provider.description}, but pip.constraints has {bound}"
        if isinstance(provider, CondaProvided):
            raise PypiCondaConflict(what, hint=_bound_in_conda(provider))
        raise FoundConflict(what, hint=_ways_out(provider))


def _check_existing(requirement: Requirement, pip: Pip, found: FoundPackage) -> None:
    name = requirement.name
    index = pip.index_for(name)
    if requirement.kind is not RequirementKind.NAME:
        raise FoundConflict(
            f"{found}, but [pip] dependencies requires {name} by its URL",
            hint=f"remove {name} from [pip] dependencies: what is there already is never installed again",
        )
    if index is not None and index.name and requirement.name in index.packages:
        raise FoundConflict(
            f"{found}, but [[pip.index]] {index.name} is to serve {name}",
            hint=f"remove {name} from its `packages`: what is there already is never installed again",
        )
    if not requirement.specifier.contains(found.version, prereleases=True):
        raise FoundConflict(f"{found}, but [pip] dependencies requires {requirement}", hint=_ways_out(found))


def _ways_out(provider: ProvidedPackage) -> str:
    name = provider.name
    return (
        f"require {name} without a version, or one that {provider.version} satisfies (a pre-release such as 2.9.0a0 "
        f"satisfies `>=2.9.0a0`, not `>=2.9`); or install on top of another one, whose {name} fits"
    )


def _check_requirement(requirement: Requirement, pip: Pip, provider: CondaProvided) -> None:
    name, package = requirement.name, provider.package
    for asker in provider.askers:
        if asker.name != SPEC:
            continue
        line = asker.requirement
        if package != name:
            line += f", which contains {name}"
        raise PypiCondaConflict(
            f"{name} is required twice: [pip] dependencies has {requirement}, [conda] dependencies has {line}",
            hint=f"remove one of the two; other conda packages need conda's {package}",
        )
    index = pip.index_for(name)
    if requirement.kind is not RequirementKind.NAME or index is not None:
        origin = f"from the index {index.name}" if index else "by its URL"
        raise PypiCondaConflict(
            f"[pip] dependencies requires {name} {origin}, but {provider.description}",
            hint=f"install {name} from conda only, or move what requires conda's {package} to [pip]",
        )
    if not requirement.specifier.contains(provider.version, prereleases=True):
        raise PypiCondaConflict(
            f"{provider.description}, but [pip] dependencies requires {requirement}", hint=_bound_in_conda(provider)
        )


def _bound_in_conda(provider: CondaProvided) -> str:
    return f"bound {provider.package} in [conda] dependencies, and remove it from [pip]"


def torch_family_conflict(
    required: Mapping[str, Iterable[Dependent]], provided: Mapping[str, ProvidedPackage]
) -> NoSolution | None:
    """The error for PyPI's builds of the torch family beside a torch that is none of its project's releases.

    required: names from the default index, with what requires them.
    """
    torch = provided.get("torch")
    found = [name for name in MEMBERS if name in required and name not in provided]
    if torch is None or not found:
        return None
    if isinstance(torch, FoundPackage) and is_release(torch.version):
        return None
    by = "; ".join(f"{name} is required by {', '.join(required_by(required[name]))}" for name in found)
    names, verb = ", ".join(found), "is" if len(found) == 1 else "are"
    text = f"{by}; {torch}, but PyPI's {names} {verb} built for PyPI's torch"
    if isinstance(torch, FoundPackage):
        hint = (
            f"leave {names} out, install on top of a torch that has it built for it, or name a [[pip.index]] that has"
        )
        return FoundConflict(text, hint=hint)
    return PypiCondaConflict(text, hint=f"put {names} into [conda] dependencies")


class UnbuiltSdist(Struct, frozen=True):
    """A release that is an sdist alone, and why there is no wheel of it.

    needs: normalised names of what requires it.
    wheels: the releases next to it that have wheels.
    error: of its build; None if the spec does not allow the build.
    """

    name: str
    version: str
    platform: str
    needs: tuple[str, ...]
    wheels: tuple[str, ...]
    error: str | None = None

    def described(self, on: Sequence[str] = ()) -> str:
        """on: the platforms, if the lock has more than these."""
        notes = [f"required by {', '.join(self.needs)}"]
        if on:
            notes.append(", ".join(on))
        if self.wheels:
            notes.append(f"wheels: {', '.join(self.wheels)}")
        return f"{self.name} {self.version} ({'; '.join(notes)})"


#: What a spec needs for builds beside a torch for CUDA.
GPUS_LINES: Final = '[cuda]\n    gpus = ["A100", "H100"]'


class UnusableSdists(NoSolution, code="unusable-sdists"):
    """Releases without a wheel, whose sdists may not be built, or whose builds failed."""

    def __init__(self, message: str, sdists: Sequence[UnbuiltSdist], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.sdists = tuple(sdists)


class NeedsSdist(UnusableSdists, code="needs-sdist"):
    """Releases without a wheel, whose sdists may not be built, or not by compilers.

    allowed: what `[pip.build] packages` lists already.
    other: further text of the message.
    hints: what to do about it.
    elsewhere: where there are wheels.
    failed: others, whose builds failed.
    """

    def __init__(  # noqa: PLR0913 (one message of all)
        self,
        found: Sequence[UnbuiltSdist],
        target: Target,
        allowed: Iterable[str],
        *,
        other: str = "",
        hints: Sequence[str] = (),
        elsewhere: str = "",
        failed: Sequence[UnbuiltSdist] = (),
    ) -> None:
        platforms: dict[UnbuiltSdist, list[str]] = {}
        names, all_platforms = set(allowed), set[str]()
        for each in found:
            platforms.setdefault(replace(each, platform=""), []).append(each.platform)
            names.add(each.name)
            all_platforms.add(each.platform)
        several = len(all_platforms) > 1
        lines: list[str] = []
        for each, on in sorted(platforms.items(), key=lambda item: (item[0].name, item[0].version)):
            line = each.described(on if several else ())
            if each.error:
                line += f": {each.error}"
            lines.append(line)
        count = f"{len(lines)} packages have" if len(lines) > 1 else "1 package has"
        text = f"{count} no wheel for Python {target.python.series}"
        if not several:
            text += f" on {found[0].platform}"
        text += ", only an sdist"
        if any(each.error for each in found):
            text += ", and must be compiled"
        text = "\n  ".join([f"{text}:", *lines])
        if other:
            text += f"\n{other}"
        listed = ", ".join(f'"{name}"' for name in sorted(names))
        allow = f"allow their builds, which run their code, in [pip.build]:\n    packages = [{listed}]"
        hint = "\n  or ".join(filter(None, (allow, elsewhere)))
        super().__init__(text, [*found, *failed], "\n  and ".join([*hints, hint]))


def unknown_extras(packages: Mapping[str, tuple[str, Set[str], Set[str], Iterable[Dependent]]]) -> list[Reason]:
    """A warning for each extra that the spec or a package requires of a package that does not have it.

    Installers pass over such an extra: what it was to install is missing.

    packages: name -> version, its extras, those of an older release that the spec allows, what requires it.
    """
    warnings: list[Reason] = []
    for name, (version, offered, former, askers) in packages.items():
        for asker in sorted(askers):
            requirement = parsed(asker.requirement)
            if requirement is None:
                continue
            for extra in missing_extras(requirement, offered):
                lacking = {
                    "requirement": asker.requirement,
                    "package": name,
                    "version": version,
                    "extra": extra,
                }
                if asker.name != SPEC:
                    warnings.append(reason("extra-of-package", dependent=asker.name, **lacking))
                elif extra in former:
                    warnings.append(reason("extra-former", **lacking))
                elif close := nearest(extra, offered):
                    warnings.append(reason("extra-misspelled", close=close, **lacking))
                elif offered:
                    warnings.append(reason("extra-unknown", extras=", ".join(sorted(offered)), **lacking))
                else:
                    warnings.append(reason("extra-none", **lacking))
    return list(dict.fromkeys(warnings))


def is_absent(warning: Reason, name: str, extra: str) -> bool:
    """Whether a warning is about that extra of that package, which the spec requires."""
    codes = ("extra-former", "extra-misspelled", "extra-unknown", "extra-none")
    values = dict(warning.values)
    return warning.code in codes and values["package"] == name and values["extra"] == extra
