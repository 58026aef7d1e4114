"""Differences between two locks: packages, files, image, driver and decisions.

Publishers do not change published files, so each has another reason: another index or channel, a file uploaded later, a
tag that moved, or a lock that was tampered with.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from envspec.errors import UsageError
from envspec.lockfile.diff_packages import (
    CondaChange,
    PackageChange,
    Resolutions,
    conda_changes,
    is_replaced_wheel,
    package_changes,
)
from envspec.lockfile.document import load
from envspec.lockfile.folder import find_lock, read_lock
from envspec.lockfile.header import LOCK_FILE
from envspec.lockfile.toml_writer import string, time_text
from envspec.models import BaseImage, Driver, ImageSettings, Lock, Platform, Resolution, Target
from envspec.spec.owner import LOCKS


def image_values(lock: Lock, other: Lock) -> dict[tuple[str, Platform | None], str | None]:
    """(what, platform or none) -> value, of settings, system layers, IDs and built wheels.

    other: the lock to compare with. Settings are listed unless both locks have the default ones. Packages of a system
    layer are listed singly only if both locks have them: beside a lock that has made none, they would bury the rest.
    """
    values: dict[tuple[str, Platform | None], str | None] = {}
    image = lock.image
    if {image, other.image} != {ImageSettings()}:
        values["image.workdir", None] = image.workdir
        values["image.compiler", None] = image.compiler
        values["image.apt", None] = " ".join(image.apt)
        values["image.snapshot", None] = time_text(image.snapshot) if image.snapshot else None
        values["image.undated", None] = " ".join(image.undated) or None
        # On one line, and not mistaken for nothing.
        shown = ((name, text if text and text.isprintable() else string(text)) for name, text in image.env)
        values |= {(f"image.env.{name}", None): text for name, text in shown}
        services = ((each.name, str(each.port), each.logdir) for each in image.services)
        values["image.project", None] = image.project
        paths = (path if path.isprintable() and " " not in path else string(path) for path in image.copy)
        values["image.copy", None] = " ".join(paths)
        values["image.services", None] = " ".join(":".join(filter(None, words)) for words in services)
    made = {layer.platform for layer in other.system}
    for layer in lock.system:
        values["system_layer", layer.platform] = layer.diff_id
        for name, _, version in (package.partition("=") for package in layer.packages):
            values[f"system_layer.{name}", layer.platform] = version if layer.platform in made else None
    for found in lock.images:
        values["image.id" if found.pyc else "image.id.no_pyc", found.platform] = found.id
    for resolution in lock.resolutions:
        for package in resolution.packages:
            what = f"built.{package.name}", resolution.target.platform
            if package.built:
                values[what] = package.built.sha256
            elif package.unbuilt:
                values[what] = f"unbuilt ({package.unbuilt.value})"
    return values


#: (what, old, new) of one file; empty if there is none.
Changes = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Replaced:
    """One file that was replaced at the same version, on the platforms with equal changes.

    kind: `wheel`, `conda package`, `built wheel`, `Python` or `base image`. changes: (what, old, new): index, channel,
    file, url, sha256, digest; those that differ.
    """

    kind: str
    name: str
    version: str
    platforms: tuple[Platform, ...]
    changes: Changes

    @property
    def title(self) -> str:
        if self.kind == "base image":
            return f"{self.kind} {self.name}:{self.version}"
        return f"{self.kind} {self.name} {self.version}".replace("Python Python", "Python")


def replaced_files(old: Lock, new: Lock, olds: Resolutions, news: Resolutions) -> tuple[Replaced, ...]:
    """olds, news: the resolutions by platform. Only platforms of both locks are compared."""
    found: dict[tuple[str, str, str, Changes], list[Platform]] = {}
    for platform in sorted(olds.keys() & news.keys(), key=lambda each: each.value):
        before, after = olds[platform], news[platform]
        for kind, name, version, changes in (
            *_replaced_image(old.on(platform).base_image, new.on(platform).base_image, platform),
            *_replaced_python(before.target, after.target),
            *_replaced_conda(before, after),
            *_replaced_wheels(before, after),
        ):
            differing = tuple(each for each in changes if each[1] != each[2])
            if differing:
                found.setdefault((kind, name, version, differing), []).append(platform)
    return tuple(
        Replaced(kind, name, version, tuple(p), changes) for (kind, name, version, changes), p in found.items()
    )


_Found = tuple[str, str, str, Changes]


def _attributes(old: object, new: object, *names: str) -> Changes:
    """What two values of one class have under these names."""
    return tuple(
        ("file" if name == "filename" else name, getattr(old, name) or "", getattr(new, name) or "") for name in names
    )


def _replaced_image(old: BaseImage | None, new: BaseImage | None, platform: Platform) -> Iterator[_Found]:
    if old is None or new is None or (old.repository, old.tag) != (new.repository, new.tag):
        return
    before, after = ({each.platform: each.digest for each in image.digests} for image in (old, new))
    # One that was not resolved yet had nothing that could be replaced.
    if (was := before.get(platform)) and (now := after.get(platform)):
        yield "base image", new.repository, new.tag, (("digest", was, now),)


def _replaced_python(old: Target, new: Target) -> Iterator[_Found]:
    before, after = old.python, new.python
    if before.version == after.version and before.source == after.source:
        yield "Python", "Python", after.version, _attributes(before, after, "url", "sha256")


def _replaced_conda(old: Resolution, new: Resolution) -> Iterator[_Found]:
    olds = {each.name: each for each in old.conda}
    for after in new.conda:
        before = olds.get(after.name)
        if before and (before.version, before.build) == (after.version, after.build):
            changes = _attributes(before, after, "channel", "filename", "url", "sha256", "md5")
            yield "conda package", after.name, f"{after.version} {after.build}", changes


def _replaced_wheels(old: Resolution, new: Resolution) -> Iterator[_Found]:
    olds = {each.name: each for each in old.packages}
    for after in new.packages:
        before = olds.get(after.name)
        if before is None or before.version != after.version:
            continue
        if is_replaced_wheel(before, after, old.target, new.target):
            changes = _attributes(before.file, after.file, "index", "filename", "url", "sha256")
            yield "wheel", after.name, after.version, changes
        elif before.file == after.file and before.built and after.built:
            yield "built wheel", after.name, after.version, _attributes(before.built, after.built, "filename", "sha256")


@dataclass(frozen=True, slots=True)
class ValueChange:
    """One value of the lock. old, new: None if it is missing. platforms: empty if it does not depend on them.

    why: the reason in the new lock, or in the old one if the value was removed.
    """

    what: str
    old: str | None
    new: str | None
    platforms: tuple[Platform, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class LockDiff:
    """All differences, in the order of reports.

    platforms: those of both locks. A platform of one lock only is a change of `environment`, and its packages are not
    listed. packages: from PyPI. replaced: files replaced at the same version; the other lists do not repeat them.
    """

    old_name: str
    new_name: str
    platforms: tuple[Platform, ...]
    environment: tuple[ValueChange, ...]
    packages: tuple[PackageChange, ...]
    decisions: tuple[ValueChange, ...]
    conda: tuple[CondaChange, ...] = ()
    replaced: tuple[Replaced, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.replaced or self.environment or self.conda or self.packages or self.decisions)


def diff_locks(old: Lock, new: Lock) -> LockDiff:
    """Compare two locks of one environment, or of two."""
    olds, news = _by_platform(old), _by_platform(new)
    both = tuple(sorted(olds.keys() & news.keys(), key=lambda platform: platform.value))
    reasons = {
        (decision.what, platform): decision.why
        for lock in (old, new)
        for decision in lock.decisions
        for platform in (decision.platform, None)
    }
    environment = _values(_environment(old, new, both), _environment(new, old, both), reasons)
    decisions = _values(_decided(old, both), _decided(new, both), reasons)
    listed = {change.what for change in environment}
    replaced = replaced_files(old, new, olds, news)
    shown = {(what, platform) for each in replaced for what in _values_of(each) for platform in each.platforms}
    return LockDiff(
        old_name=old.name,
        new_name=new.name,
        platforms=both,
        environment=tuple(
            each for each in environment if not each.platforms or {(each.what, p) for p in each.platforms} - shown
        ),
        packages=package_changes(olds, news, both),
        decisions=tuple(change for change in decisions if change.what not in listed),
        conda=conda_changes(olds, news, both),
        replaced=replaced,
    )


def _values_of(each: Replaced) -> tuple[str, ...]:
    """The values that say no more than what was replaced."""
    values = {"base image": ("image.digest",), "Python": ("python.sha256",), "built wheel": (f"built.{each.name}",)}
    return values.get(each.kind, ())


def _by_platform(lock: Lock) -> dict[Platform, Resolution]:
    return {resolution.target.platform: resolution for resolution in lock.resolutions}


#: (what, platform or none) -> value. What has no value is not there.
_Values: TypeAlias = Mapping[tuple[str, Platform | None], str]


def _cuda_values(
    image: BaseImage | None, driver: Driver | None, platform: Platform | None
) -> dict[tuple[str, Platform | None], str | None]:
    return {
        ("image.tag", platform): image_name(image) if image else None,
        ("image.os", platform): image.os if image else None,
        ("image.flavor", platform): image.flavor if image else None,
        ("cuda.release", platform): image.cuda_release if image else None,
        ("driver.minimum", platform): driver.minimum if driver else None,
        ("driver.bundled", platform): driver.bundled if driver else None,
    }


def _conformance_values(lock: Lock) -> dict[tuple[str, Platform | None], str]:
    if lock.conformance is None:
        return {}
    size = lock.conformance.world_size
    return {
        ("conformance.checks", None): ", ".join(lock.conformance.checks) or "all, none required",
        ("conformance.world_size", None): "all" if size is None else str(size),
    }


def _environment(lock: Lock, other: Lock, both: Sequence[Platform]) -> _Values:
    """Everything but packages and decisions, under the keys that decisions have where there is one for it."""
    resolutions = _by_platform(lock)
    values: dict[tuple[str, Platform | None], str | None] = {
        ("name", None): lock.name,
        ("spec", None): lock.input_sha256[:12],
        ("as_of", None): time_text(lock.as_of),
        ("as_of_spec", None): lock.as_of_spec,
        ("facts", None): lock.facts,
        ("platforms", None): ", ".join(sorted(platform.value for platform in resolutions)),
        ("gpus", None): ", ".join(lock.gpus),
        ("channels", None): ", ".join(channel.name for channel in lock.channels),
        **_cuda_values(lock.base_image, lock.driver, None),
    }
    for each in lock.platform_cuda:
        values |= _cuda_values(each.base_image, each.driver, each.platform)
    values |= _conformance_values(lock)
    for platform in both:
        target = resolutions[platform].target
        values["python", platform] = target.python.version
        values["python.source", platform] = target.python.source
        values["python.sha256", platform] = target.python.sha256
        values["glibc", platform] = _level(target.glibc)
        values["macos", platform] = _level(target.macos)
        values |= _beneath(resolutions[platform])
    for pinned in (pinned for image in lock.base_images for pinned in image.digests):
        values["image.digest", pinned.platform] = pinned.digest or "unresolved"
    values |= image_values(lock, other)
    values |= _pip_values(lock)
    for name, as_of in lock.package_as_of:
        values[f"as_of.{name}", None] = time_text(as_of)
    for name, as_of in lock.conda_as_of:
        values[f"conda_as_of.{name}", None] = time_text(as_of)
    for package in lock.package_ages:
        values[f"as_of_spec.{package.name}", None] = package.age
    for channel in lock.channels:
        if channel.part:
            values[f"channel.{channel.name}.part", None] = (
                f"{channel.part.records:,} records, sha256:{channel.part.sha256}"
            )
    for code in lock.gpu_code:
        values[f"gpu_code.{code.package}", code.platform] = " ".join((f"{code.variant}:", *code.sm, *code.ptx))
    values |= {(f"cpu_build.{each.package}", each.platform): each.version for each in lock.cpu_builds}
    return {key: value for key, value in values.items() if value and (key[1] is None or key[1] in both)}


def _beneath(part: Resolution) -> _Values:
    """What a platform's part is installed on top of, and its packages."""
    platform = part.target.platform
    values: _Values = {(f"base.{each.name}", platform): each.version for each in part.installed}
    return {**values, ("base", platform): part.on_top_of.source} if part.on_top_of else values


def _pip_values(lock: Lock) -> _Values:
    """The spec's indexes and overrides."""
    indexes: dict[tuple[str, Platform | None], str] = {
        (f"index.{index.name}", None): " ".join(
            [index.url, *index.packages, *(["undated"] if index.undated else []), *filter(None, [index.format])]
        )
        for index in lock.indexes
    }
    return indexes | {(each.what, None): each.value for each in lock.decisions if each.what.startswith("override.")}


def image_name(image: BaseImage) -> str:
    """`docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04`; without a tag where the spec names a digest alone."""
    return f"{image.repository}:{image.tag}" if image.tag else image.repository


def _level(level: tuple[int, int] | None) -> str | None:
    return level and f"{level[0]}.{level[1]}"


def _decided(lock: Lock, both: Sequence[Platform]) -> _Values:
    return {
        (decision.what, decision.platform): decision.value
        for decision in lock.decisions
        if decision.platform is None or decision.platform in both
    }


def _values(old: _Values, new: _Values, reasons: Mapping[tuple[str, Platform | None], str]) -> tuple[ValueChange, ...]:
    """What differs, in the order of the keys; platforms on which the same happened together."""
    changes: dict[tuple[str, str | None, str | None], list[Platform]] = {}
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if before != after:
            changes.setdefault((key[0], before, after), []).extend([key[1]] if key[1] else [])
    # All changes of one key are together, at its first position.
    order = {key[0]: position for position, key in reversed(list(enumerate(changes)))}
    return tuple(
        ValueChange(what, before, after, tuple(platforms), _reason(what, platforms, reasons))
        for (what, before, after), platforms in sorted(changes.items(), key=lambda item: order[item[0][0]])
    )


def _reason(what: str, platforms: Sequence[Platform], reasons: Mapping[tuple[str, Platform | None], str]) -> str:
    listed = (reasons.get((what, platform)) for platform in (*platforms[:1], None))
    return next(filter(None, listed), "")


#: Runs a command in a folder and gives its standard output, as `envspec.io.process.output_of` does: FileNotFoundError
#: without the program, CalledProcessError when it fails.
RunGit: TypeAlias = Callable[[Sequence[str], Path], bytes]


def load_revision(argument: str, cwd: Path, git: RunGit) -> Lock:
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
    return _at_revision(revision, path, cwd, git)


def _at_revision(revision: str, path: str, cwd: Path, git: RunGit) -> Lock:
    git_error = ""
    for candidate in _candidates(path):
        where = f"{revision}:{candidate}"
        try:
            text = git(["git", "show", where], cwd)
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
    under_locks = [] if "/" in given else [f"{LOCKS}/{given}/{LOCK_FILE}"]
    return [f"{given}/{LOCK_FILE}", *under_locks]


def _git_error(error: subprocess.CalledProcessError) -> str:
    output = error.stderr or b""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else str(output)
    return (text.strip().splitlines() or [f"git ended with status {error.returncode}"])[0]
