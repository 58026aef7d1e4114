"""What `envspec lock` warns of once a lock is made."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from envspec.context import Context
from envspec.lockfile.folder import foreign_locks
from envspec.models import CondaPackage, Lock, Package, Unbuilt
from envspec.operations.lock_state import LockRequest, LockState, Upgrade, conda_in, packages_in
from envspec.reasons import words
from envspec.resolve.upgrade import moved_names
from envspec.spec.dates import time_text
from envspec.spec.document import PYPROJECT

#: A date of today has excluded hardly anything yet.
_RECENT: Final = timedelta(days=1)


def report_fixed(state: LockState) -> None:
    """Warn of an upgrade that the spec's date leaves without an effect."""
    request, as_of = state.request, state.as_of
    is_upgrade = request.upgrade is Upgrade.ALL and request.as_of is None and not request.variant
    is_fixed = state.spec.env.is_dated and not state.package_ages()
    is_recent = state.started - as_of < _RECENT
    if is_upgrade and is_fixed and not is_recent:
        state.context.reporter.warning(
            f"{request.spec_path}: as_of = {time_text(as_of)} excludes every newer release: move it "
            f"(envspec lock --as-of now {request.spec_path})"
        )


def report(lock: Lock, state: LockState) -> None:
    """Warn of what somebody may not expect of a new lock. state: with the lock before."""
    _report_unmoved(state, lock)
    _report_preferred(lock, state.context)
    _report_moved(lock, state.request, state.context)
    _report_unbuilt(lock, state.context)
    _report_empty(lock, state)


def _report_empty(lock: Lock, state: LockState) -> None:
    """Warn of a [tool.envspec] that names no packages, beside a lock that has the project's."""
    if state.spec.pip.source or any(part.packages or part.conda for part in lock.resolutions):
        return
    if state.request.spec_path.name == PYPROJECT and (names := foreign_locks(state.request.spec_path.parent)):
        state.context.reporter.warning(
            f'no packages are locked: add `from = "{names[0]}"` to [tool.envspec.pip], and they are those of {names[0]}'
        )


def _report_unmoved(state: LockState, made: Lock) -> None:
    """Warn of names of `--upgrade-package` without a newer release. state: with the lock before."""
    if state.old is None or not state.request.upgrade_packages:
        return
    moved = moved_names(state.old, made)
    for name in state.request.upgrade_packages:
        if name not in moved:
            state.context.reporter.warning(
                f"{name} stays as it is: nothing newer of it, up to {time_text(state.newest)}, fits the spec"
            )


def _report_moved(lock: Lock, request: LockRequest, context: Context) -> None:
    """Warn of versions that moved although nothing in the spec itself excludes the old ones, with the reasons."""
    lines: dict[str, None] = {}
    for part in lock.resolutions:
        for text in part.moved:
            lines[f"\n  {text}"] = None
    # A variant follows the spec's own lock, and moves with it.
    if lines and not request.variant:
        context.reporter.warning(f"moved although the spec allows the locked versions:{''.join(lines)}")


def _report_preferred(lock: Lock, context: Context) -> None:
    """Warn of the versions that the spec prefers and the lock does not have, with the reasons."""
    lines: dict[str, None] = {}
    packages: list[CondaPackage | Package] = [*conda_in(lock.resolutions), *packages_in(lock.resolutions)]
    for package in packages:
        if (each := package.preferred) is not None:
            lines[f"\n  {package.name} {each.version}: {words(each.why)}"] = None
    if lines:
        context.reporter.warning(f"not locked although the spec prefers them:{''.join(lines)}")


def _report_unbuilt(lock: Lock, context: Context) -> None:
    """Warn of the sources that are locked without a build."""
    found: dict[Unbuilt, dict[str, None]] = {}
    for package in packages_in(lock.resolutions):
        if package.unbuilt:
            found.setdefault(package.unbuilt, {})[f"{package.name} {package.version}"] = None
    if later := found.pop(Unbuilt.LOCKED, None):
        context.reporter.warning(f"built from their sources when the image is built: {', '.join(later)}")
    lines = [f"\n  {unbuilt.described}: {', '.join(names)}" for unbuilt, names in found.items()]
    if lines:
        context.reporter.warning(
            "locked without a build, since bubblewrap does not work on this machine (`envspec lock` where it does adds "
            f"the hashes of the wheels):{''.join(lines)}"
        )
