"""From the spec to its packages, and from packages to the lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from envspec.errors import UsageError
from envspec.models import Lock, Resolution, Target
from envspec.names import normalised
from envspec.operations.lock.inputs import spec_error_of
from envspec.operations.lock_state import (
    CondaResult,
    Hints,
    LockRequest,
    LockState,
    PypiResult,
    Resolved,
    pypi_names_of,
)
from envspec.resolve.types import RefusedLines
from envspec.resolve.upgrade import names_in_conda
from envspec.spec import Spec
from envspec.spec.conda import name_of
from envspec.spec.errors import RefusedValues
from envspec.spec.sections import BasePackages
from envspec.spec.targets import targets_of


def resolve_spec(state: LockState) -> Resolved:
    """The packages that a spec compiles to.

    Raises:
        SpecError: lines of the spec that nothing satisfies. NoSolution: nothing satisfies all of them.
    """
    with _errors_of(state.request, state.spec):
        return resolve(state, Hints.TRIED)


def assemble_lock(packages: Resolved) -> Lock:
    """The lock of resolved packages; writes nothing."""
    # Imported by now, while the engines ran.
    from envspec.operations.lock.assemble import assemble

    with _errors_of(packages.state.request, packages.state.spec):
        return assemble(packages)


def resolve(state: LockState, hints: Hints = Hints.NONE) -> Resolved:
    """As `resolve_spec`, with RefusedValues and RefusedLines instead of SpecError."""
    given = None
    if state.spec.pip.on_top_of or state.spec.image.packages is BasePackages.KEEP:
        from envspec.operations.lock.base_packages import pythons_of, with_beneath

        state = with_beneath(state)
        given = pythons_of(state.beneath.found, state.spec)
    of_conda = names_in_conda(state.upgraded, state.old, conda_names_of(state.spec))
    conda = _conda(state, of_conda)
    targets, decisions = targets_of(state.spec, state.facts, state.as_of, conda.pythons, given)
    of_pypi = [name for name in state.upgraded if name not in of_conda]
    pypi = _pypi(state, targets, conda, of_pypi, hints)
    if state.spec.pip.source:
        from envspec.operations.lock.adopted import decision_of

        decisions = (*decisions, decision_of(state.spec))
    return Resolved(state, decisions, conda, pypi)


@contextmanager
def _errors_of(request: LockRequest, spec: Spec) -> Iterator[None]:
    """Errors about values of the spec, with their places in its file."""
    try:
        yield
    except RefusedValues as error:
        raise spec_error_of(request, error.found) from None
    except RefusedLines as error:
        raise spec_error_of(request, error.of_lines(spec.pip.dependencies)) from None


def _conda(state: LockState, upgraded: Sequence[str]) -> CondaResult:
    if state.spec.conda is None:
        if state.request.channel_repodata:
            raise UsageError(
                "--channel-repodata: the spec has no [conda]", hint="remove it, or add [conda] to the spec"
            )
        if state.spec.pip.source:
            from envspec.operations.lock.adopted import adopted_conda, read_adopted, with_python_packages

            found = adopted_conda(read_adopted(state.spec, state.request.spec_path), state.spec)
            return with_python_packages(found, state.store)
        return CondaResult()
    from envspec.operations.lock.conda import resolve_conda

    return resolve_conda(state, upgraded)


def _pypi(
    state: LockState, targets: Sequence[Target], conda: CondaResult, upgraded: Sequence[str], hints: Hints
) -> PypiResult:
    if state.spec.pip.source:
        from envspec.adopt.stale import check_is_current
        from envspec.operations.lock.adopted import adopted_packages, read_adopted
        from envspec.operations.lock.listed_files import with_listed_files

        if not state.request.is_adopted:
            check_is_current(state.request.spec_path.parent / state.spec.pip.source)
        found = with_listed_files(read_adopted(state.spec, state.request.spec_path), state)
        return PypiResult(tuple(adopted_packages(found, target, state.spec) for target in targets))
    if not state.spec.pip.dependencies:
        return PypiResult(tuple(Resolution(target, ()) for target in targets))
    from envspec.operations.lock.pypi import Pypi

    return Pypi(state, targets, conda.provided, upgraded).resolve(hints)


def names_required(spec: Spec) -> set[str]:
    return pypi_names_of(spec) | conda_names_of(spec)


def conda_names_of(spec: Spec) -> set[str]:
    """The conda packages that the spec requires, normalised."""
    names: set[str] = set()
    if spec.conda is None:
        return names
    for platform in spec.env.platforms:
        for text in spec.conda.dependencies_on(platform):
            names.add(normalised(name_of(text)))
    return names
