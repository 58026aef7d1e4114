"""Files, URLs and hashes that differ at the same version: a reviewer has to look at them.

Publishers do not change published files, so each has another reason: another index or channel, a file uploaded later, a
tag that moved, or a lock that was tampered with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envspec.models import BaseImage, CondaPackage, Lock, Package, Platform, Resolution, Target
from envspec.origins import origin_of

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


def replaced_files(
    old: Lock, new: Lock, olds: Mapping[Platform, Resolution], news: Mapping[Platform, Resolution]
) -> tuple[Replaced, ...]:
    """olds, news: the resolutions by platform. Only platforms of both locks are compared."""
    found: dict[tuple[str, str, str, Changes], list[Platform]] = {}
    for platform in sorted(olds.keys() & news.keys(), key=lambda each: each.value):
        before, after = olds[platform], news[platform]
        for kind, name, version, changes in (
            *_image(old.base_image, new.base_image, platform),
            *_python(before.target, after.target),
            *_conda(before, after),
            *_wheels(before, after),
        ):
            differing = tuple(each for each in changes if each[1] != each[2])
            if differing:
                found.setdefault((kind, name, version, differing), []).append(platform)
    return tuple(
        Replaced(kind, name, version, tuple(p), changes) for (kind, name, version, changes), p in found.items()
    )


_Found = tuple[str, str, str, Changes]


def _values(old: object, new: object, *names: str) -> Changes:
    """What two values of one class have under these names."""
    return tuple(
        ("file" if name == "filename" else name, getattr(old, name) or "", getattr(new, name) or "") for name in names
    )


def _image(old: BaseImage | None, new: BaseImage | None, platform: Platform) -> Iterator[_Found]:
    if old is None or new is None or (old.repository, old.tag) != (new.repository, new.tag):
        return
    before, after = ({each.platform: each.digest for each in image.digests} for image in (old, new))
    # One that was not resolved yet had nothing that could be replaced.
    if (was := before.get(platform)) and (now := after.get(platform)):
        yield "base image", new.repository, new.tag, (("digest", was, now),)


def _python(old: Target, new: Target) -> Iterator[_Found]:
    before, after = old.python, new.python
    if before.version == after.version and before.source == after.source:
        yield "Python", "Python", after.version, _values(before, after, "url", "sha256")


def _conda(old: Resolution, new: Resolution) -> Iterator[_Found]:
    olds = {each.name: each for each in old.conda}
    for after in new.conda:
        before = olds.get(after.name)
        if before is not None and is_replaced_row(before, after):
            yield (
                "conda package",
                after.name,
                f"{after.version} {after.build}",
                _values(before, after, "channel", "filename", "url", "sha256", "md5"),
            )


def is_replaced_row(old: CondaPackage, new: CondaPackage) -> bool:
    """Whether two rows of one version and build have another file."""
    files = ((each.channel, each.filename, each.url, each.sha256, each.md5) for each in (old, new))
    return (old.version, old.build) == (new.version, new.build) and len(set(files)) > 1


def _wheels(old: Resolution, new: Resolution) -> Iterator[_Found]:
    olds = {each.name: each for each in old.packages}
    for after in new.packages:
        before = olds.get(after.name)
        if before is None or before.version != after.version:
            continue
        if is_replaced_wheel(before, after, old.target, new.target):
            yield (
                "wheel",
                after.name,
                after.version,
                _values(before.file, after.file, "index", "filename", "url", "sha256"),
            )
        elif before.file == after.file and before.built and after.built:
            yield "built wheel", after.name, after.version, _values(before.built, after.built, "filename", "sha256")


def is_replaced_wheel(old: Package, new: Package, before: Target, after: Target) -> bool:
    """Whether a package has another file than its version and its target explain.

    Another Python, glibc or macOS takes another wheel of the same release, from the same place.
    """
    files = ((each.file.index, each.file.filename, each.file.url, each.file.sha256) for each in (old, new))
    if old.version != new.version or len(set(files)) == 1:
        return False
    targets = ((each.python.series, each.glibc, each.macos) for each in (before, after))
    places = ((each.file.index, origin_of(each.file.url or "")) for each in (old, new))
    return len(set(targets)) == 1 or len(set(places)) > 1 or old.file.filename == new.file.filename
