"""Spec to lock folder: the stages of `envspec lock`, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from envspec import documents
from envspec.credentials import has_open_secret, unset
from envspec.errors import NetworkError, NoSolution, StaleLock, UsageError
from envspec.facts import Facts, load_facts
from envspec.facts.gpu import find_gpu
from envspec.io.store import Store
from envspec.lockfile.check import Why, check
from envspec.lockfile.check_entries import mismatches
from envspec.lockfile.export import files_of
from envspec.lockfile.export.dockerfile import ContainerConfig, File, Health
from envspec.lockfile.folder import read_current, read_lock, write_folder
from envspec.lockfile.header import LOCK_FILE
from envspec.models import ImageSettings, Lock, Resolution, Target
from envspec.operations.lock_cache import is_ours, key_of, remember, remember_ours
from envspec.operations.lock_state import CondaHalf, LockRequest, Network, PypiHalf, Surroundings, Upgrade, Work
from envspec.resolve.upgrade import check_names, names_in_conda
from envspec.spec import RequirementKind, Spec, load_spec
from envspec.spec.conda import name_of
from envspec.spec.errors import KeyPath, dotted
from envspec.spec.identity import input_sha256
from envspec.spec.load import read_text
from envspec.spec.positions import positions_of
from envspec.spec.targets import targets_of


@dataclass(frozen=True, slots=True)
class Locked:
    """What came of a spec. changed: the paths that were written or removed."""

    lock: Lock
    changed: tuple[Path, ...]


def lock(request: LockRequest, around: Surroundings) -> Locked:
    """Compile a spec into its lock and write it.

    Raises:
        EnvspecError: every refusal; the old lock is then as it was.
    """
    started = around.now().replace(microsecond=0)
    spec = load_spec(request.spec_path, started)
    # Its warnings are the spec's text's, and no lock's.
    check_logins(spec, request, around)
    told: list[str] = []
    around = replace(around, warn=_heard(around.warn, told))
    keeps = request.upgrade is Upgrade.KEEP and not request.upgrade_packages
    facts_at_hand = load_facts().version
    made_from = (request.spec_path, request.directory, request.resolver, facts_at_hand, around.environ)
    key = key_of(*made_from) if keeps else None
    facts = load_facts(spec.facts.tables())
    for name in spec.cuda.gpus if spec.cuda else ():
        # A name that nobody knows is told at once, not after a resolution.
        find_gpu(facts, name)
    store = Store(around.cache)
    try:
        old, before, is_looked_up = _old_lock(request, spec, facts, around, store)
        upgraded = _upgradable(request, spec, old, around)
        as_of = _as_of(spec, old, request, started)
        work = Work(request, around, store, spec, facts, old, started, as_of, upgraded, before)
        made = make(_with_what_is_new(work))
        from envspec.operations.lock_assemble import is_open

        files = lock_files(made)
        _refuse_elsewhere(request.spec_path, files)
        changed = write_folder(request.directory, files)
        if is_looked_up:
            remember_ours(store, files[LOCK_FILE])
        if key is not None and is_looked_up and store.is_settled and not is_open(made) and not _may_change(spec):
            remember(store, key, files, told)
    finally:
        store.close()
    return Locked(made, changed)


def check_logins(spec: Spec, request: LockRequest, around: Surroundings) -> None:
    """Warn of passwords that are written in the spec.

    Raises:
        UsageError: a login is to come from a variable that is not set.
    """
    found: list[tuple[KeyPath, str]] = [(("pip", "index", n, "url"), each.url) for n, each in enumerate(spec.pip.index)]
    found += [(("pip", "dependencies", n), each.text) for n, each in enumerate(spec.pip.dependencies) if each.url]
    channels = [(("conda", "channels", n), each) for n, each in enumerate(spec.conda.channels if spec.conda else ())]
    missing = [(path, name) for path, text in found if (name := unset(text, around.environ))]
    if missing and request.network is Network.USE:
        path, name = missing[0]
        raise UsageError(
            f"{_place(request.spec_path, path)}: the login is in the variable {name}, which is not set",
            hint=f"set {name} in the environment",
        )
    for path, text in (*found, *channels):
        if has_open_secret(text, channel=path[0] == "conda"):
            around.warn(
                f"{_place(request.spec_path, path)} holds a password or a token, which everybody sees who sees the "
                "spec: write a variable instead, as in https://${USER}:${PASSWORD}@host"
            )


def _place(spec_path: Path, path: KeyPath) -> str:
    return f"{spec_path}:{positions_of(read_text(spec_path)).line(path)}: {dotted(path)}"


def _may_change(spec: Spec) -> bool:
    """Whether the lock follows from more than the spec and the indexes: from branches, or from folders."""
    return any(r.kind in (RequirementKind.GIT, RequirementKind.LOCAL) for r in spec.pip.dependencies)


def _heard(warn: Callable[[str], None], told: list[str]) -> Callable[[str], None]:
    def both(text: str) -> None:
        told.append(text)
        warn(text)

    return both


def _with_what_is_new(work: Work) -> Work:
    """For `--upgrade-package`: what the spec asks for since its lock was made is locked first, as without the names.

    Else all of it would count as moved by them. Where nothing satisfies the spec without them, they come at once.
    """
    if work.old is None or not work.upgraded or work.old.input_sha256 == _identity(work.request.spec_path):
        return work
    quiet = replace(work.around, warn=lambda _: None)
    with suppress(NoSolution):
        return replace(work, old=make(replace(work, around=quiet, upgraded=())))
    return work


def make(work: Work) -> Lock:
    """The lock that a spec compiles to; nothing is written.

    Raises:
        EnvspecError: every refusal.
    """
    around = work.around
    of_conda = names_in_conda(work.upgraded, work.old, _asked_of_conda(work.spec))
    conda = _conda_half(work, of_conda)
    targets, decisions = targets_of(work.spec, work.facts, work.as_of, conda.pythons)
    of_pypi = [name for name in work.upgraded if name not in of_conda]
    pypi = _pypi_half(work, targets, conda, of_pypi)
    # Not before: by now it was imported while the engines ran.
    from envspec.operations.lock_assemble import Answered, Asker, assemble

    answered = Answered(
        work.spec,
        work.facts,
        work.as_of,
        pypi.moments,
        (*decisions, *conda.decisions, *pypi.decisions),
        pypi.questions,
        tuple(replace(r, conda=conda.packages.get(r.target.platform, ())) for r in pypi.resolutions),
        conda.channels,
        tuple(sorted(conda.moments.items())),
    )
    asker = Asker(around.environ, around.home, around.warn) if work.request.network is Network.USE else None
    kept = None if work.request.upgrade is Upgrade.ALL else work.old
    made = assemble(answered, _identity(work.request.spec_path), kept, asker, work.before)
    for text in made.warnings:
        around.warn(text)
    return made.lock


def _conda_half(work: Work, upgraded: Sequence[str]) -> CondaHalf:
    if work.spec.conda is None:
        if work.request.channel_repodata:
            raise UsageError(
                "--channel-repodata: the spec has no [conda]", hint="leave it out, or add [conda] to the spec"
            )
        return CondaHalf()
    from envspec.operations.lock_conda import conda_half

    return conda_half(work, upgraded)


def _pypi_half(work: Work, targets: Sequence[Target], conda: CondaHalf, upgraded: Sequence[str]) -> PypiHalf:
    if not work.spec.pip.dependencies:
        return PypiHalf(tuple(Resolution(target, ()) for target in targets))
    from envspec.operations.lock_pypi import Pypi

    return Pypi(work, targets, conda.provided, upgraded).resolve()


def _identity(path: Path) -> str:
    return input_sha256(documents.read_spec(path))


def _as_of(spec: Spec, old: Lock | None, request: LockRequest, started: datetime) -> datetime:
    """The spec's own `as_of`; else the old lock's, until `--upgrade`; else this moment."""
    if spec.env.as_of is not None:
        return spec.env.as_of
    if old is None or request.upgrade is Upgrade.ALL:
        return started
    return old.as_of


def _upgradable(request: LockRequest, spec: Spec, old: Lock | None, around: Surroundings) -> tuple[str, ...]:
    """The names that `--upgrade-package` may move: with an `as_of` in the spec, nothing moves until that does.

    Raises:
        UsageError: a name that neither the lock nor the spec has.
    """
    if old is not None:
        asked = {requirement.name for requirement in spec.pip.dependencies}
        check_names(request.upgrade_packages, old, asked | _asked_of_conda(spec))
    if spec.env.as_of is not None and (request.upgrade_packages or request.upgrade is Upgrade.ALL):
        around.warn(
            f"{request.spec_path}: as_of = {spec.env.as_of.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ} bounds "
            f"every release: nothing newer is taken until it moves (envspec lock --as-of now {request.spec_path})"
        )
        return ()
    return request.upgrade_packages


def _asked_of_conda(spec: Spec) -> set[str]:
    """Normalised, as `--upgrade-package` has them."""
    from packaging.utils import canonicalize_name

    asked = [text for platform in spec.env.platforms if spec.conda for text in spec.conda.dependencies_on(platform)]
    return {str(canonicalize_name(name_of(text))) for text in asked}


def _refuse_elsewhere(spec_path: Path, files: Mapping[str, bytes]) -> None:
    """Refuse what `--check` would: a page may list files that are anywhere.

    Raises:
        UsageError: names the first row that the spec does not lead to.
    """
    document = documents.parse_toml(files[LOCK_FILE].decode())
    faults = mismatches(documents.read_spec(spec_path), document, files)
    if faults:
        raise UsageError(
            f"{spec_path}: {faults[0]}",
            hint="where an index has its files on another host and you trust that, name it in its [[pip.index]] table: "
            'files = ["https://files.example.com"]',
        )


class _Old(NamedTuple):
    """The lock that stands there: what of it may decide, and whole; see `Work`. None where there is none.

    is_looked_up: whether nothing of it decides that could be looked up, and was not.
    """

    decides: Lock | None
    before: Lock | None
    is_looked_up: bool = True


def _old_lock(request: LockRequest, spec: Spec, facts: Facts, around: Surroundings, store: Store) -> _Old:
    if not (request.directory / LOCK_FILE).exists():
        return _Old(None, None)
    try:
        old = read_lock(request.directory)
    except StaleLock as error:
        around.warn(f"{error.message}: it is written anew")
        return _Old(None, None)
    if is_ours(store, read_current(request.directory, LOCK_FILE)):
        return _Old(old, old)
    from envspec.operations.old_lock import moments_of, versions_of

    found = [reason for reason in check(request.spec_path, request.directory, None).reasons if reason.why is Why.ENTRY]
    for reason in found:
        around.warn(f"{reason.text}: it is resolved again")
    if found:
        return _Old(replace(moments_of(old), decisions=(), base_image=None, resolutions=versions_of(old)), None)
    if request.upgrade is Upgrade.ALL:
        return _Old(old, old)
    return _looked_up(old, request, spec, facts, around)


def _looked_up(old: Lock, request: LockRequest, spec: Spec, facts: Facts, around: Surroundings) -> _Old:
    """A lock that this machine did not make, without those of its digests and commits that are wrong."""
    from envspec.operations.old_lock import checked

    if request.network is Network.OFFLINE:
        return _Old(old, old, is_looked_up=False)
    try:
        right = checked(old, spec, facts, around)
    except NetworkError as error:
        around.warn(f"not verified: base images and git sources of {request.directory}: {error.message}")
        return _Old(old, old, is_looked_up=False)
    for text in right.unverified:
        around.warn(f"not verified: {text}")
    return _Old(right.lock, old)


def lock_files(lock: Lock) -> dict[str, bytes]:
    """Every file of the lock's folder: `lockfile.export.files_of` with what a container of the image starts.

    Raises:
        UsageError: settings that no image can have: a working folder that is the system's, a token for everybody.
    """
    if lock.base_image is None:
        return files_of(lock)
    return files_of(lock, _container_config(lock.image))


def _container_config(settings: ImageSettings) -> ContainerConfig:
    # Only where there is an image: most that is locked by hand has one, a lock for macOS has not.
    from envspec.image.layers.types import EntryKind, InMemory
    from envspec.image.services import HOME, USER, ServicesSource, services_config

    conduct = services_config(settings)
    check = conduct.healthcheck
    health = check and Health(
        tuple(check["Test"][1:]), check["Interval"], check["Timeout"], check["StartPeriod"], check["Retries"]
    )
    entries = list(ServicesSource(settings).entries())
    return ContainerConfig(
        entrypoint=conduct.entrypoint or (),
        user=conduct.user or "",
        name=USER if conduct.user else "",
        home=f"/{HOME}" if conduct.user else "",
        ports=conduct.ports,
        env=conduct.env,
        health=health or None,
        folders=tuple((f"/{each.path}", each.mode) for each in entries if each.kind is EntryKind.FOLDER and each.uid),
        files=tuple(
            File(f"/{each.path}", each.mode, each.data.content.decode())
            for each in entries
            if isinstance(each.data, InMemory)
        ),
    )
