"""Differences between two locks: packages, files, image, driver and decisions.

Publishers do not change published files, so each has another reason: another index or channel, a file uploaded later, a
tag that moved, or a lock that was tampered with.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from envspec.errors import UsageError
from envspec.lockfile.decided import all_decisions
from envspec.lockfile.diff_packages import (
    Change,
    Detail,
    Move,
    attributes,
    by_name,
    conda_changes,
    grouped,
    is_replaced_wheel,
    package_changes,
)
from envspec.lockfile.document import load
from envspec.lockfile.folder import find_lock, read_lock
from envspec.lockfile.header import LOCK_FILE
from envspec.lockfile.toml_writer import string
from envspec.models import BaseImage, CondaPackage, Driver, ImageSettings, Lock, Package, Platform, Resolution
from envspec.reasons import words
from envspec.spec.dates import time_text
from envspec.spec.owner import LOCKS
from envspec.structs import replace


class _ReplacedFile(NamedTuple):
    """A file of one platform that was replaced at the same version. value: the one that says no more, if any."""

    platform: Platform
    change: Change
    value: str = ""


def _replaced_files(old: Lock, new: Lock, before: Resolution, after: Resolution) -> Iterator[_ReplacedFile]:
    """before, after: what the locks have of one platform."""
    platform = before.target.platform
    image = _replaced_image(old.on(platform).base_image, new.on(platform).base_image, platform)
    if image is not None:
        yield _ReplacedFile(platform, image, "image.digest")
    pythons = before.target.python, after.target.python
    if (pythons[0].version, pythons[0].source) == (pythons[1].version, pythons[1].source):
        details = attributes(*pythons, "url", "sha256")
        if details:
            python = _replaced("Python", "Python", pythons[1].version, details)
            yield _ReplacedFile(platform, python, "python.sha256")
    for conda_package, details in _replaced_conda(before, after):
        version = f"{conda_package.version} {conda_package.build}"
        yield _ReplacedFile(platform, _replaced("conda package", conda_package.name, version, details))
    for kind, package, details in _replaced_wheels(before, after):
        value = f"built.{package.name}" if kind == _BUILT_WHEEL else ""
        yield _ReplacedFile(platform, _replaced(kind, package.name, package.version, details), value)


_BUILT_WHEEL: Final = "built wheel"


def _replaced(kind: str, name: str, version: str, details: tuple[Detail, ...]) -> Change:
    """version: empty if the name has it."""
    return Change(name, version or None, version or None, Move.REPLACED, kind=kind, details=details)


def _replaced_image(old: BaseImage | None, new: BaseImage | None, platform: Platform) -> Change | None:
    if old is None or new is None or (old.repository, old.tag) != (new.repository, new.tag):
        return None
    was, now = _digest_on(old, platform), _digest_on(new, platform)
    # One that was not resolved yet had nothing that could be replaced.
    if not was or not now or was == now:
        return None
    return _replaced("base image", new.name, "", (Detail("digest", was, now),))


def _digest_on(image: BaseImage, platform: Platform) -> str | None:
    return next((pinned.digest for pinned in image.digests if pinned.platform is platform), None)


def _replaced_conda(old: Resolution, new: Resolution) -> Iterator[tuple[CondaPackage, tuple[Detail, ...]]]:
    olds = by_name(old.conda)
    for after in new.conda:
        before = olds.get(after.name)
        if before and (before.version, before.build) == (after.version, after.build):
            details = attributes(before, after, "channel", "filename", "url", "sha256", "md5")
            if details:
                yield after, details


def _replaced_wheels(old: Resolution, new: Resolution) -> Iterator[tuple[str, Package, tuple[Detail, ...]]]:
    olds = by_name(old.packages)
    for after in new.packages:
        before = olds.get(after.name)
        if before is None or before.version != after.version:
            continue
        if is_replaced_wheel(before, after, old.target, new.target):
            yield "wheel", after, attributes(before.file, after.file, "index", "filename", "url", "sha256")
        elif before.file == after.file and before.built and after.built:
            details = attributes(before.built, after.built, "filename", "sha256")
            if details:
                yield _BUILT_WHEEL, after, details


class LockDiff(Struct, frozen=True):
    """All differences, in the order of reports.

    platforms: those of both locks. A platform of one lock only is a change of `environment`, and its packages are not
    listed.
    environment: values that are no packages and no decisions.
    packages: from PyPI.
    replaced: files replaced at the same version; the other lists do not repeat them.
    """

    old_name: str
    new_name: str
    platforms: tuple[Platform, ...]
    environment: tuple[Change, ...]
    packages: tuple[Change, ...]
    decisions: tuple[Change, ...]
    conda: tuple[Change, ...] = ()
    replaced: tuple[Change, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.replaced or self.environment or self.conda or self.packages or self.decisions)


def diff_locks(old: Lock, new: Lock) -> LockDiff:
    """Compare two locks of one environment, or of two."""
    olds, news = _by_platform(old), _by_platform(new)
    both = tuple(sorted(olds.keys() & news.keys(), key=lambda platform: platform.value))
    reasons: _Values = {}
    for decision in (*all_decisions(old), *all_decisions(new)):
        reasons[decision.what, decision.platform] = reasons[decision.what, None] = words(decision.why)
    replaced: list[_ReplacedFile] = []
    for platform in both:
        replaced += _replaced_files(old, new, olds[platform], news[platform])
    before, after = _environment(old, new, both), _environment(new, old, both)
    listed = set()
    for each in replaced:
        before.pop((each.value, each.platform), None)
        after.pop((each.value, each.platform), None)
        listed.add(each.value)
    environment = _values(before, after, both, reasons)
    listed.update(change.name for change in environment)
    decisions = _values(_decided(old, both), _decided(new, both), both, reasons)
    return LockDiff(
        old_name=old.name,
        new_name=new.name,
        platforms=both,
        environment=environment,
        packages=package_changes(olds, news, both),
        decisions=tuple(change for change in decisions if change.name not in listed),
        conda=conda_changes(olds, news, both),
        replaced=grouped((each.platform, each.change) for each in replaced),
    )


def _by_platform(lock: Lock) -> dict[Platform, Resolution]:
    return {resolution.target.platform: resolution for resolution in lock.resolutions}


#: (what, platform or none) -> value. What has no value is not there.
_Values: TypeAlias = dict[tuple[str, Platform | None], str]


def _environment(lock: Lock, other: Lock, both: Sequence[Platform]) -> _Values:
    """Everything but packages and decisions, under the keys that decisions have where there is one for it.

    other: the lock to compare with. both: the platforms of the two.
    """
    found: _Values = {}

    def add(name: str, value: str | None, platform: Platform | None = None) -> None:
        if value and (platform is None or platform in both):
            found[name, platform] = value

    _add_sources(add, lock)
    _add_cuda(add, lock.base_image, lock.driver, None)
    for own in lock.platform_cuda:
        _add_cuda(add, own.base_image, own.driver, own.platform)
    _add_requested(add, lock)
    for part in lock.resolutions:
        _add_target(add, part)
    for image in lock.base_images:
        for pinned in image.digests:
            add("image.digest", pinned.digest or "unresolved", pinned.platform)
    # Settings are listed unless both locks have the default ones.
    if {lock.image, other.image} != {ImageSettings()}:
        _add_settings(add, lock.image)
    _add_builds(add, lock, other)
    _add_pip(add, lock)
    _add_times(add, lock)
    _add_gpu_code(add, lock)
    return found


class _Add(Protocol):
    """Adds a value of a lock, unless it is empty or of a platform that the other lock does not have."""

    def __call__(self, name: str, value: str | None, platform: Platform | None = None) -> None: ...


def _add_sources(add: _Add, lock: Lock) -> None:
    add("name", lock.name)
    add("spec", lock.input_sha256[:12])
    add("as_of", time_text(lock.as_of))
    add("as_of_spec", lock.as_of_spec)
    add("facts", lock.facts)
    add("platforms", ", ".join(sorted(platform.value for platform in lock.platforms)))
    add("gpus", ", ".join(lock.gpus))
    add("channels", ", ".join(channel.name for channel in lock.channels))


def _add_cuda(add: _Add, image: BaseImage | None, driver: Driver | None, platform: Platform | None) -> None:
    if image is not None:
        add("image.tag", image.name, platform)
        add("image.os", image.os, platform)
        add("image.flavor", image.flavor, platform)
        add("cuda.release", image.cuda_release, platform)
    if driver is not None:
        add("driver.minimum", driver.minimum, platform)
        add("driver.bundled", driver.bundled, platform)


def _add_requested(add: _Add, lock: Lock) -> None:
    """[conformance] and [export] of the spec."""
    if lock.conformance is not None:
        add("conformance.checks", ", ".join(lock.conformance.checks) or "all, none required")
        add("conformance.world_size", str(lock.conformance.world_size or "all"))
    if lock.export is not None and lock.export.dockerfile:
        add("export.dockerfile", "true")


def _add_target(add: _Add, part: Resolution) -> None:
    """What a platform's packages are installed into, and what is there before them."""
    target, platform = part.target, part.target.platform
    add("python", target.python.version, platform)
    add("python.source", target.python.source, platform)
    add("python.sha256", target.python.sha256, platform)
    for name, level in (("glibc", target.glibc), ("macos", target.macos)):
        if level is not None:
            add(name, f"{level[0]}.{level[1]}", platform)
    for installed in part.installed:
        add(f"base.{installed.name}", installed.version, platform)
    if part.on_top_of is not None:
        add("base", part.on_top_of.source, platform)


def _add_settings(add: _Add, image: ImageSettings) -> None:
    add("image.workdir", image.workdir)
    add("image.compiler", image.compiler)
    add("image.apt", " ".join(image.apt))
    if image.snapshot:
        add("image.snapshot", time_text(image.snapshot))
    add("image.undated", " ".join(image.undated))
    for name, text in image.env:
        # On one line, and not mistaken for nothing.
        is_plain = text and text.isprintable()
        add(f"image.env.{name}", text if is_plain else string(text))
    add("image.project", image.project)
    add("image.copy", " ".join(map(_path_text, image.copy)))
    for key, arguments in (("entrypoint", image.entrypoint), ("command", image.command)):
        if arguments:
            add(f"image.{key}", json.dumps(arguments))
    services = []
    for service in image.services:
        services.append(":".join(filter(None, (service.name, str(service.port), service.logdir))))
    add("image.services", " ".join(services))


def _path_text(path: str) -> str:
    return path if path.isprintable() and " " not in path else string(path)


def _add_builds(add: _Add, lock: Lock, other: Lock) -> None:
    """System layers, IDs and built wheels.

    Packages of a system layer are listed singly only if both locks have them: beside a lock that has made none, they
    would bury the rest.
    """
    made = {layer.platform for layer in other.system}
    for layer in lock.system:
        add("system_layer", layer.diff_id, layer.platform)
        if layer.platform not in made:
            continue
        for package in layer.packages:
            name, _, version = package.partition("=")
            add(f"system_layer.{name}", version, layer.platform)
    for image in lock.images:
        add("image.id" if image.pyc else "image.id.no_pyc", image.id, image.platform)
    for part in lock.resolutions:
        for locked in part.packages:
            if locked.built:
                add(f"built.{locked.name}", locked.built.sha256, part.target.platform)
            elif locked.unbuilt:
                add(f"built.{locked.name}", f"unbuilt ({locked.unbuilt.value})", part.target.platform)


def _add_times(add: _Add, lock: Lock) -> None:
    """The times and ages of single packages, and the parts of channels."""
    for name, as_of in lock.package_as_of:
        add(f"as_of.{name}", time_text(as_of))
    for name, as_of in lock.conda_as_of:
        add(f"conda_as_of.{name}", time_text(as_of))
    for package in lock.package_ages:
        add(f"as_of_spec.{package.name}", package.age)
    for channel in lock.channels:
        if channel.part:
            add(f"channel.{channel.name}.part", f"{channel.part.records:,} records, sha256:{channel.part.sha256}")


def _add_gpu_code(add: _Add, lock: Lock) -> None:
    for code in lock.gpu_code:
        add(f"gpu_code.{code.package}", " ".join((f"{code.variant}:", *code.sm, *code.ptx)), code.platform)
    for build in lock.cpu_builds:
        add(f"cpu_build.{build.package}", build.version, build.platform)


def _add_pip(add: _Add, lock: Lock) -> None:
    """The spec's indexes and overrides."""
    for index in lock.indexes:
        words = [index.url, *index.packages]
        if index.undated:
            words.append("undated")
        if index.format:
            words.append(index.format)
        add(f"index.{index.name}", " ".join(words))
    for override in lock.overrides:
        add(f"override.{override.name}", str(override))


def _decided(lock: Lock, both: Sequence[Platform]) -> _Values:
    values: _Values = {}
    for decision in all_decisions(lock):
        if decision.platform is None or decision.platform in both:
            values[decision.what, decision.platform] = decision.value
    return values


def _values(old: _Values, new: _Values, both: Sequence[Platform], reasons: _Values) -> tuple[Change, ...]:
    """What differs, in the order of the names; platforms on which the same happened together."""

    def changes() -> Iterator[tuple[Platform | None, Change]]:
        for name in dict.fromkeys(name for name, _ in (*old, *new)):
            for platform in (None, *both):
                before, after = old.get((name, platform)), new.get((name, platform))
                if before != after:
                    yield platform, Change(name, before, after)

    return tuple(replace(change, why=_reason(change.name, change.platforms, reasons)) for change in grouped(changes()))


def _reason(name: str, platforms: Sequence[Platform], reasons: _Values) -> str:
    for platform in (*platforms[:1], None):
        if listed := reasons.get((name, platform)):
            return listed
    return ""


def load_revision(argument: str, cwd: Path) -> Lock:
    """The lock that OLD or NEW names: a folder, its envspec.lock, a name under `locks/`, or `REV:` before any of them.

    After `REV:` a path counts from the repository's root, as git has it, or from `cwd` when it begins with `./`.

    Raises:
        UsageError: there is no such lock, revision or repository, or no git.
        StaleLock: what is there is not what envspec wrote.
    """
    revision, colon, path = argument.partition(":")
    # One letter before a colon and a backslash after it is a Windows drive.
    if not colon or (cwd / argument).exists() or path.startswith("\\"):
        return read_lock(find_lock(argument, cwd))
    if not revision or not path or revision.startswith("-"):
        raise UsageError(
            f"{argument} is not a revision and a lock", hint="write it as REV:locks/NAME, such as HEAD:locks/cpu"
        )
    return _at_revision(revision, path, cwd)


def _at_revision(revision: str, path: str, cwd: Path) -> Lock:
    # Imports asyncio, which a comparison of two folders does not need.
    from envspec.io.process import output_of

    git_error = ""
    for candidate in _candidates(path):
        where = f"{revision}:{candidate}"
        try:
            text = output_of(["git", "show", where], cwd)
        except FileNotFoundError as error:
            raise UsageError("git is not installed", hint="name two folders, or install git") from error
        except subprocess.CalledProcessError as error:
            git_error = git_error or _git_error(error)
            continue
        return load(text.decode("utf-8", "replace"), where)
    raise UsageError(
        f"{revision}:{path} contains no {LOCK_FILE}: {git_error}", hint=f"see `git ls-tree -r {revision} {LOCKS}`"
    )


def _candidates(path: str) -> list[str]:
    given = path.rstrip("/")
    if PurePosixPath(given).name == LOCK_FILE:
        return [given]
    candidates = [f"{given}/{LOCK_FILE}"]
    if "/" not in given:
        candidates.append(f"{LOCKS}/{given}/{LOCK_FILE}")
    return candidates


def _git_error(error: subprocess.CalledProcessError) -> str:
    output = error.stderr or b""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else str(output)
    return (text.strip().splitlines() or [f"git ended with status {error.returncode}"])[0]
