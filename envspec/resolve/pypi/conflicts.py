"""Where the halves meet: what [pip] asks for and conda installs. Pure.

A name that both halves would bring is installed by conda alone, and only where nothing in the spec says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from envspec.errors import NoSolution
from envspec.facts.torch import MEMBERS
from envspec.models import SPEC, Dependent
from envspec.resolve.types import Provider
from envspec.spec import Requirement, RequirementKind
from envspec.spec.sections import Pip


class BothHalves(NoSolution):
    """One Python package of which [pip] and [conda] want different things."""


def check_halves(
    asked: Sequence[Requirement], bounds: Iterable[Requirement], pip: Pip, provided: Mapping[str, Provider]
) -> None:
    """Refuse what [pip] asks for where conda's packages can't be it.

    asked, bounds: the requirements and constraints that apply on the platform.

    Raises:
        BothHalves: [conda] asks for it as well; or it has a file or an index of its own; or conda's version is another.
    """
    for requirement in asked:
        provider = provided.get(requirement.name)
        if provider is not None:
            _check_asked(requirement, pip, provider)
    for bound in bounds:
        provider = provided.get(bound.name)
        if provider is not None and not bound.specifier.contains(provider.version, prereleases=True):
            raise BothHalves(f"{provider.whence}, and pip.constraints say {bound}", hint=_bound_in_conda(provider))


def _check_asked(requirement: Requirement, pip: Pip, provider: Provider) -> None:
    name = requirement.name
    by_spec = [asker.requirement for asker in provider.askers if asker.name == SPEC]
    if by_spec:
        holds = "" if provider.package == name else f", which holds {name}"
        raise BothHalves(
            f"{name} is asked for twice: [pip] dependencies say {requirement}, "
            f"[conda] dependencies say {by_spec[0]}{holds}",
            hint=f"leave one of the two out; what else comes from conda needs conda's {provider.package}",
        )
    index = pip.index_for(name)
    if requirement.kind is not RequirementKind.NAME or index is not None:
        own = f"from the index {index.name}" if index else "by its URL"
        raise BothHalves(
            f"[pip] dependencies ask for {name} {own}, and {provider.whence}",
            hint=f"take {name} from conda alone, or take from [pip] what asks for conda's {provider.package}",
        )
    if not requirement.specifier.contains(provider.version, prereleases=True):
        raise BothHalves(
            f"{provider.whence}, and [pip] dependencies ask for {requirement}", hint=_bound_in_conda(provider)
        )


def _bound_in_conda(provider: Provider) -> str:
    return f"bound {provider.package} in [conda] dependencies, and leave it out of [pip]"


def members_beside_condas_torch(
    asked: Mapping[str, Iterable[Dependent]], provided: Mapping[str, Provider]
) -> BothHalves | None:
    """The error to raise where PyPI's builds of the torch family would come beside conda's torch.

    asked: names that come from the default index, with who asks for them.
    """
    torch = provided.get("torch")
    found = [name for name in MEMBERS if name in asked and name not in provided]
    if torch is None or not found:
        return None
    told = [f"{name} is asked by {_told(asked[name])}" for name in found]
    names = ", ".join(found)
    return BothHalves(
        f"{'; '.join(told)}; {torch}, and PyPI's {names} {'is' if len(found) == 1 else 'are'} built for PyPI's torch",
        hint=f"put {names} into [conda] dependencies",
    )


def _told(askers: Iterable[Dependent]) -> str:
    names = sorted({"the spec" if asker.name == SPEC else asker.name for asker in askers})
    return ", ".join(names)
