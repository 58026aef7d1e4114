"""Files that packages of a lock share: the owners that its spec names, and what to do about conflicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from posixpath import commonpath, dirname
from typing import TYPE_CHECKING

from envspec.base_image.cuda import is_of_two_cudas, read_pins
from envspec.conformance.text import counted
from envspec.facts import Facts
from envspec.io.archives import FileConflict
from envspec.io.store import Store
from envspec.models import SPEC, Package, Resolution, SharedFiles, dependents_of
from envspec.operations.lock_state import find_package
from envspec.resolve.pypi.shared_files import decide, is_named, shared_files
from envspec.resolve.types import required_by
from envspec.spec.errors import KeyPath, RefusedValues, quoted
from envspec.spec.targets import has_cuda
from envspec.structs import replace
from envspec.verifier.owned import overlaps
from envspec.verifier.record import DATA

if TYPE_CHECKING:
    # A lock is installed, and its image is built, without pydantic.
    from envspec.spec import Spec

#: Parts of names that tell variants of one package apart: for CUDA, and all.
_CUDA = re.compile(r"gpu|cuda\d*x?|cu\d+")
_VARIANT = re.compile(rf"{_CUDA.pattern}|cpu|rocm|xpu|openvino|directml|headless|contrib|binary")


async def with_built(part: Resolution, store: Store, cache: Path, before: Resolution | None) -> Resolution:
    """A platform's packages, with the files that wheels built of sdists share with others: indexes don't list them.

    cache: has the wheels that were built on this machine.
    before: of the lock from which other ones are taken.
    """
    built: dict[str, Package] = {}
    for package in part.packages:
        if package.built and not package.file.filename.endswith(".whl"):
            built[package.name] = package
    if not built:
        return part
    unread = _read_records(built.values(), store, cache)
    hashes = {each.name: each.wheel.sha256 for each in part.packages}
    tops = {name: store.wheel_tops(sha256) for name, sha256 in hashes.items()}
    found = overlaps(tops, lambda name: store.wheel_files(hashes[name]))

    async def read(_: str, __: str) -> bytes | None:
        return None

    rows = [*await shared_files([each for each in found if built.keys() & each.contents], read)]
    if before is not None:
        rows += [each for each in before.shared if unread.intersection(each.packages)]
    return replace(part, shared=(*rows, *_other_files(part.shared, rows)))


def _read_records(built: Iterable[Package], store: Store, cache: Path) -> set[str]:
    """Store which files built wheels have; the names of those of which neither the cache nor the store has them."""
    from envspec.build.reproducible import record_of
    from envspec.fetch.wheels import wheel_path

    unread = set[str]()
    for each in built:
        path = wheel_path(cache, each)
        if path.is_file():
            store.put_record(each.wheel.sha256, record_of(path))
        elif not store.wheel_tops(each.wheel.sha256):
            unread.add(each.name)
    return unread


def _other_files(shared: Iterable[SharedFiles], rows: Iterable[SharedFiles]) -> Iterator[SharedFiles]:
    """What is known of shared files, without those that `rows` have."""
    replaced = set[str]()
    for row in rows:
        replaced.update(row.paths)
    for each in shared:
        paths = tuple(path for path in each.paths if path not in replaced)
        if paths:
            yield replace(each, paths=paths)


def with_owners(part: Resolution, spec: Spec) -> Resolution:
    """A platform's packages, with the owners of their shared files by `[pip] file_owner`."""
    names = [each.name for each in part.packages]
    return replace(part, shared=decide(part.shared, spec.pip.file_owner, names))


def check_owners(parts: Sequence[Resolution], spec: Spec) -> None:
    """Raises RefusedValues for a key of `file_owner` whose package has none of the files that the key names."""
    found: list[tuple[KeyPath, str, str]] = []
    for key, owner in spec.pip.file_owner.items():
        named = list(_matching_files(parts, key))
        if not named or any(owner in each.packages for each, _ in named):
            continue
        each, path = named[0]
        text = f"{owner} does not have {path.removeprefix(DATA)}"
        hint = f"name a package that has it: {' or '.join(each.packages)}"
        found.append((("pip", "file_owner", key), text, hint))
    if found:
        raise RefusedValues(*found)


def idle_owners(parts: Sequence[Resolution], spec: Spec) -> Iterator[str]:
    """A warning for each key of `file_owner` without an effect."""
    for key in spec.pip.file_owner:
        if next(_matching_files(parts, key), None) is None:
            yield (
                f"pip.file_owner: {quoted(key)} changes nothing: it names no file that packages of the lock have with "
                "different content"
            )


def _matching_files(parts: Sequence[Resolution], key: str) -> Iterator[tuple[SharedFiles, str]]:
    for part in parts:
        for each in part.shared:
            for path in each.paths:
                if is_named(path, each.packages, key):
                    yield each, path


def refuse_conflicts(part: Resolution) -> None:
    """Raises FileConflict if a lock says that two of its packages can't be installed together."""
    for each in part.shared:
        if not each.owner:
            one, other = each.packages[:2]
            raise FileConflict(_first_path(each), _name_version(one, part), _name_version(other, part))


def _name_version(name: str, part: Resolution) -> str:
    package = find_package(part, name)
    return f"{name} {package.version}" if package else name


def conflict_warnings(part: Resolution, spec: Spec, facts: Facts) -> Iterator[str]:
    """What to do about files that several packages have and nothing decides, a line for each group of packages."""
    conflicts = [each for each in part.shared if not each.owner]
    if not conflicts:
        return
    for_gpus = has_cuda(spec, part.target.platform)
    has_two_cudas = for_gpus and len({each.cuda.major for each in read_pins(part, facts).cudas}) > 1
    advice = _Advice({each.name: each for each in part.packages}, for_gpus, facts)
    for each in conflicts:
        if has_two_cudas and is_of_two_cudas(each):
            # The base image's plan warns of two CUDAs, with these packages.
            continue
        names = " and ".join(_name_version(name, part) for name in each.packages)
        files = _first_path(each)
        if len(each.paths) > 1:
            files += f" and {counted(len(each.paths) - 1, 'more file')}"
        yield (
            f"{names} install {files} with different content: this lock can't be "
            f"installed, and no image can be built of it. {advice.on(each)}"
        )


def _first_path(shared: SharedFiles) -> str:
    """A path for messages."""
    return min(shared.paths, key=lambda path: (path.startswith(DATA), path)).removeprefix(DATA)


class _Advice:
    """What to do about a conflict.

    packages: those of one platform, by name.
    for_gpus: whether they are for CUDA.
    """

    def __init__(self, packages: Mapping[str, Package], for_gpus: bool, facts: Facts) -> None:  # noqa: FBT001
        self._packages = packages
        self._for_gpus = for_gpus
        self._facts = facts

    def on(self, shared: SharedFiles) -> str:
        names = shared.packages
        required, only_spec = [], []
        for name in names:
            askers = ", ".join(required_by(self._packages[name].required_by))
            required.append(f"{name} by {askers}")
            if self._askers(name) == {SPEC}:
                only_spec.append(name)
        by = ", ".join(required)
        if is_of_two_cudas(shared):
            return f"They are for two versions of CUDA: select releases that need one (required: {by})"
        if len(names) == 2 and self._are_variants(*names):
            kept, removed = self._preferred(*names)
            dependents = {package.name: package.required_by for package in self._packages.values()}
            if "torch" not in dependents_of(removed, dependents):
                return self._removal(kept, removed)
        if len(only_spec) == 1 and not (self._for_gpus and self._is_of_cuda(only_spec[0])):
            return f"Only the spec requires {only_spec[0]}: remove it; or {self._owner(shared)}"
        return f"If they work together, {self._owner(shared)} (required: {by})"

    def _removal(self, kept: str, removed: str) -> str:
        override = f'overrides = [{{ requirement = "{removed}", remove = true, reason = "{kept} is installed" }}]'
        askers = self._askers(removed)
        if SPEC not in askers:
            return f"They are variants of one package: keep {kept}, and remove the other one in [pip]: {override}"
        from_spec = f"keep {kept}, and remove {removed} from the spec"
        if askers == {SPEC}:
            return f"They are variants of one package: {from_spec}; if a package requires it later: {override}"
        return f"They are variants of one package: {from_spec} and from what requires it: {override}"

    def _owner(self, shared: SharedFiles) -> str:
        """The line of a spec that names an owner."""

        # What something requires is rather what was meant than a package that the spec alone has.
        def rank(name: str) -> tuple[int, bool, str]:
            return self._distance(name), self._askers(name) == {SPEC}, name

        first, *others = sorted(shared.packages, key=rank)
        paths = [path.removeprefix(DATA) for path in shared.paths]
        folder = commonpath(map(dirname, paths))
        if len(paths) == 1:
            key = paths[0]
        elif folder:
            key = f"{folder}/*"
        else:
            key = others[0]
        line = f"file_owner = {{ {quoted(key)} = {quoted(first)} }}"
        return f"name the owner of these files in [pip]: {line}, or {' or '.join(map(quoted, others))} as the owner"

    def _distance(self, name: str) -> int:
        """How far a package is from what the lock is for: CUDA, or none."""
        is_of_cuda = self._is_of_cuda(name)
        if not self._for_gpus:
            return int(is_of_cuda)
        return 1 + ("cpu" in name.split("-")) - is_of_cuda

    def _askers(self, name: str) -> set[str]:
        return {asker.name for asker in self._packages[name].required_by}

    def _is_of_cuda(self, name: str) -> bool:
        return any(_CUDA.fullmatch(word) for word in name.split("-"))

    def _are_variants(self, one: str, other: str) -> bool:
        """Whether two packages contain the same modules, built differently: by their names, or by the facts."""
        if _stem(one) == _stem(other):
            return True
        return any({row.package, row.instead} == {one, other} for row in self._facts.cpu_builds)

    def _preferred(self, one: str, other: str) -> tuple[str, str]:
        """Of two variants, the one to keep, then the other one.

        First that for CUDA if the lock is for CUDA, then that of the spec, then that with more modules, or without a
        display, which needs fewer system libraries.
        """

        def rank(name: str) -> tuple[int, bool, int, str]:
            words = {"contrib", "headless"}.intersection(name.split("-"))
            return self._distance(name), SPEC not in self._askers(name), -len(words), name

        kept, removed = sorted((one, other), key=rank)
        return kept, removed


def _stem(name: str) -> list[str]:
    return [word for word in name.split("-") if not _VARIANT.fullmatch(word)]
