"""What a project has today -> a spec, and its first lock, in which nothing moves that need not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec import documents
from envspec.build.types import OtherPackage
from envspec.diagnostics.machine import read_machine, this_platform
from envspec.errors import EnvspecError, NetworkError, UsageError
from envspec.facts import Facts, load_facts
from envspec.facts.gpu import find_gpu, match_gpu
from envspec.importers import importer_of, known_importer, new_import, sources_in
from envspec.importers.result import Imported, Proof, moves
from envspec.importers.spec_lines import with_extras, with_name_of_wheel
from envspec.importers.spec_text import spec_of
from envspec.importers.types import Choices, Clue, Draft, Import, Outcome, Source, SpecDecision
from envspec.io.files import replace_user_file
from envspec.lockfile.folder import read_lock
from envspec.models import Lock, Resolution
from envspec.operations.environment import verify
from envspec.operations.lock.all import ContextOf, lock_all
from envspec.operations.lock_state import LockRequest, find_package
from envspec.resolve.pypi.errors import is_absent
from envspec.resolve.upgrade import names_of
from envspec.spec.document import PYPROJECT
from envspec.spec.pip_lines import project_name, setup_cfg
from envspec.spec.requirements import read_requirement
from envspec.spec.setup_py import read_setup_py
from envspec.structs import replace

#: Of projects in one spec whose name is not in their files: each costs another try.
_MOST_NAMES: Final = 20
#: Of requirements in a message.
_MOST_SHOWN: Final = 20


class InitRequest(Struct, frozen=True):
    """What to make a spec of.

    root: the current folder.
    sources: files, and folders of environments.
    output: the spec's file; None: specs/<name>.toml below `root`.
    extras, groups: of every pyproject.toml that is read.
    overwrite: whether a spec that exists is replaced.
    target: the stage of Dockerfiles; empty for the last.
    kind: of `KINDS`: what files of other names are.
    """

    root: Path
    sources: tuple[Path, ...]
    choices: Choices
    output: Path | None = None
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    overwrite: bool = False
    target: str = ""
    kind: str = ""

    @property
    def prefixes(self) -> tuple[Path, ...]:
        """The environments among the sources."""
        return tuple(each for each in self.sources if each.is_dir())


def read_sources(request: InitRequest, facts: Facts) -> Import:
    """Draft and ledger of all sources.

    Raises:
        UsageError: a source is missing, can't be read, or is of no kind that is known; no project has the extras.
    """
    imported = new_import(request.root, request.extras, request.groups, request.target)
    unknown = [path for path in request.sources if path.is_file() and importer_of(path) is None]
    imported.platforms = tuple(each.value for each in request.choices.platforms)
    for path in request.sources:
        imported.allow(path)
        kind = request.kind if path in unknown or not unknown else ""
        imported.run(known_importer(path, kind), path)
    for option, names in (("--extra", request.extras), ("--group", request.groups)):
        has_project = imported.draft.pip_from is not None or any(path.name == PYPROJECT for path in imported.done)
        if names and not has_project:
            raise UsageError(
                f"{option} {names[0]}: no source is or names a pyproject.toml, which has extras and groups",
                hint=f"name it as a source too: `envspec init pyproject.toml {option} {names[0]}`",
            )
    if request.prefixes and not (request.choices.gpus or imported.draft.gpus):
        _add_machine(imported.draft, facts)
    return imported


def _add_machine(draft: Draft, facts: Facts) -> None:
    """The GPUs and the driver of this machine, on which the environment is installed."""
    machine = read_machine()
    source = Source("this machine")
    for each in machine.gpus:
        if (row := match_gpu(facts, each.name)) is not None:
            draft.gpus.append(Clue(row.name, source, "the GPUs of this machine, by NVML"))
    if machine.gpus and machine.driver and not draft.drivers:
        draft.drivers.append(Clue(machine.driver, source, "the driver of this machine"))


def write_spec(request: InitRequest, now: datetime, *, dry_run: bool = False) -> tuple[Imported, Draft]:
    """Read the sources and write the spec.

    Raises:
        UsageError: as `read_sources`; the spec exists, and is not to be replaced; the project is for other GPUs; a GPU
            of the request is unknown.
    """
    facts = load_facts()
    for name in request.choices.gpus:
        find_gpu(facts, name)
    imported = read_sources(request, facts)
    if imported.draft.unsupported and (imported.draft.pip_from or not request.choices.cuda):
        kind, source, why, *_ = imported.draft.unsupported[0]
        hint = "`--cuda 12.8` writes a spec for CUDA without such lines; for a project with both, leave out that source"
        if imported.draft.pip_from is not None:
            hint = "name another extra or group of the project: `--extra NAME`"
        raise UsageError(f"the project is for {kind}, which envspec does not support: {source}: {why}", hint=hint)
    if imported.draft.pip_from and request.choices.as_of is not None:
        name = imported.shown(imported.draft.pip_from.path)
        raise UsageError(f"{name} decides the versions, so `--as-of` has no effect", hint="leave out one of them")
    folder = request.output.parent if request.output else request.root / "specs"
    if not request.prefixes:
        _note_empty(imported, request.sources, folder)
    found = spec_of(imported, request.choices, facts, folder, now)
    if request.output:
        found = replace(found, spec=request.output)
    if dry_run:
        return found, imported.draft
    if found.spec.exists() and not request.overwrite:
        hint = "write another file with --output FILE, or replace it with --force"
        raise UsageError(f"{found.spec} exists", hint=hint)
    replace_user_file(found.spec, found.text.encode())
    return found, imported.draft


def _note_empty(imported: Import, sources: Sequence[Path], folder: Path) -> None:
    """Add a lost line to the ledger if no source has a package. folder: of the spec."""
    draft = imported.draft
    is_conda = bool({*draft.match_specs} - {"pip"})
    if draft.dependencies or draft.pip_from or is_conda or draft.apt or draft.bases or not sources:
        return
    first = imported.shown(sources[0])
    reason = "; ".join(_elsewhere(imported, sources, folder)) or "add what the project needs to the spec"
    imported.add(Source(first), first, Outcome.REFUSED, f"no package was found: {reason}")


def _setup_files(place: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The files of setuptools that require packages, and which; none if they are computed."""
    setup = read_setup_py(place)
    if setup is not None and setup.requires != ():
        yield "setup.py", setup.requires or ()
    if requires := setup_cfg(place, "options", "install_requires"):
        yield "setup.cfg", tuple(filter(None, map(str.strip, requires.splitlines())))


def _elsewhere(imported: Import, sources: Sequence[Path], folder: Path) -> Iterator[str]:
    """What else in the folders of the sources has packages."""
    for place in dict.fromkeys(each.parent for each in sources if each.is_file()):
        for file, requires in _setup_files(place):
            name, path = project_name(place), Path(os.path.relpath(place, folder)).as_posix()
            named = f" ({', '.join(requires[:_MOST_SHOWN])})" if requires else ""
            shown = imported.shown(place / file)
            yield f'{shown} has install_requires{named}: write "{name} @ {path}" in [pip] dependencies'
        for other in sources_in(place):
            if other.resolve() not in imported.done and other.name != PYPROJECT:
                yield f"{imported.shown(other)} is not among the sources: name it too"


def lock_imported(found: Imported, draft: Draft, request: InitRequest, context_of: ContextOf) -> Imported:
    """Lock the spec, and compare the lock with the versions of the sources, and with their environments.

    Raises:
        EnvspecError: the spec can't be locked.
    """
    directory = request.root / "locks" / found.name
    try:
        found = _lock(found, directory, context_of)
    except NetworkError:
        # Without [cuda], torch is the build for the CPU, of PyTorch's index: if that is not reached, the default index
        # may be, which has builds for CUDA.
        if not found.with_cuda:
            raise
        found = _lock_with_cuda(found, directory, context_of)
    if found.with_cuda and "torch" in names_of(read_lock(directory).resolutions):
        found = _lock_with_cuda(found, directory, context_of)
    lock = read_lock(directory)
    without = _without_absent_extras(found, draft, lock)
    if without.text != found.text:
        replace_user_file(found.spec, without.text.encode())
        found = _lock(without, directory, context_of)
        lock = read_lock(directory)
    part = _part(lock)
    moved, compared = moves(draft, part, load_facts())
    proofs = tuple(Proof(prefix, verify(lock, prefix, platform=part.target.platform)) for prefix in request.prefixes)
    return replace(found, lock=directory, moved=moved, compared=compared, proofs=proofs)


def _lock_with_cuda(found: Imported, directory: Path, context_of: ContextOf) -> Imported:
    """Lock the spec with [cuda], since a package requires torch although no name of the sources says so. If that fails,
    the spec stays as it was.
    """
    others = tuple(each for each in found.decisions if each.what != "cuda")
    decision = SpecDecision("cuda", "as torch's wheels require", "a package requires torch", "the index")
    before = found.spec.read_bytes()
    replace_user_file(found.spec, found.with_cuda.encode())
    try:
        return _lock(
            replace(found, text=found.with_cuda, with_cuda="", decisions=(*others, decision)), directory, context_of
        )
    except EnvspecError:
        replace_user_file(found.spec, before)
        raise


def _lock(found: Imported, directory: Path, context_of: ContextOf) -> Imported:
    """Lock the spec, with the names that local projects and repositories turn out to have."""
    for _ in range(_MOST_NAMES + 1):
        try:
            lock_all(LockRequest(found.spec, directory), context_of)
        except OtherPackage as error:  # raised by `lock_all`
            # Only its build knows the name of a project that computes it, or of a repository.
            renamed = with_name_of_wheel(found.text, error.requested, error.found)
            if renamed == found.text:
                raise
            decision = SpecDecision("pip.dependencies", error.found, f"the name of {error.requested}, by its wheel")
            with_cuda = with_name_of_wheel(found.with_cuda, error.requested, error.found)
            found = replace(found, text=renamed, with_cuda=with_cuda, decisions=(*found.decisions, decision))
            replace_user_file(found.spec, renamed.encode())
        else:
            return found
    raise UsageError(
        f"more than {_MOST_NAMES} projects have other names than their sources say",
        hint=f"write the names of their wheels into {found.spec}, and lock it",
    )


def _without_absent_extras(found: Imported, draft: Draft, lock: Lock) -> Imported:
    """Without the extras that the locked releases do not have, each named in the ledger."""
    sources = {line.text: line.source for line in draft.dependencies}
    text, ledger = found.text, list(found.ledger)
    lines = documents.parse_toml(text).get("pip", {}).get("dependencies", [])
    for line in map(read_requirement, lines):
        extras = [extra for extra in line.extras if _lacks_extra(lock, line.name, extra)]
        if not extras:
            continue
        for quote in ("'", '"'):
            text = text.replace(f"{quote}{line.text}{quote}", f"{quote}{with_extras(line, extras)}{quote}")
        reason = f"without [{', '.join(extras)}]: {line.name} has no such extra"
        for at, entry in enumerate(ledger):
            if entry.source == sources.get(line.text) and not entry.outcome.is_lost:
                ledger[at] = entry._replace(outcome=Outcome.TRANSLATED, reason=reason)
    return replace(found, text=text, ledger=tuple(ledger))


def _lacks_extra(lock: Lock, name: str, extra: str) -> bool:
    """Whether the lock warns on each of the platforms with a package that it does not have an extra."""
    parts = [part for part in lock.resolutions if find_package(part, name)]
    for part in parts:
        if not any(is_absent(warning, name, extra) for warning in part.warnings):
            return False
    return bool(parts)


def _part(lock: Lock) -> Resolution:
    """This machine's platform, else the lock's first."""
    here = this_platform()
    return next((each for each in lock.resolutions if each.target.platform is here), lock.resolutions[0])
