"""The one form of a lock that is written, whatever order its stages finished in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from envspec.credentials import channels_without_credentials, without_credentials
from envspec.models import (
    Asker,
    BaseImage,
    CondaChannel,
    CondaPackage,
    Decision,
    ImageSettings,
    Lock,
    NamedIndex,
    Package,
    Python,
    Resolution,
    WheelFile,
)


def canonical(lock: Lock) -> Lock:
    """The same lock, sorted, and with no URL that carries a user name, a password or a channel's token.

    Resolutions, digests and images by platform, packages, askers and services by name, decisions by key. The spec's
    lists of GPUs, of channels and of indexes, what a conda package depends on and a resolution's warnings keep their
    order, which carries meaning.
    """
    return replace(
        lock,
        resolutions=tuple(sorted(map(_resolution, lock.resolutions), key=lambda item: item.target.platform.value)),
        decisions=tuple(sorted(lock.decisions, key=_decision_key)),
        base_image=_base_image(lock.base_image) if lock.base_image else None,
        gpu_code=tuple(sorted(lock.gpu_code, key=lambda item: (item.platform.value, item.package, item.version))),
        package_as_of=tuple(sorted(lock.package_as_of)),
        conda_as_of=tuple(sorted(lock.conda_as_of)),
        channels=tuple(map(_channel, lock.channels)),
        indexes=public_indexes(lock.indexes),
        image=_image(lock.image),
        system=tuple(sorted(lock.system, key=lambda item: item.platform.value)),
        images=tuple(sorted(lock.images, key=lambda item: (item.platform.value, item.pyc))),
    )


def public_indexes(indexes: Iterable[NamedIndex]) -> tuple[NamedIndex, ...]:
    """The spec's own indexes as a lock may hold them."""
    return tuple(replace(each, url=without_credentials(each.url)) for each in indexes)


def _decision_key(decision: Decision) -> tuple[str, ...]:
    platform = decision.platform.value if decision.platform else ""
    return decision.what, platform, decision.value, decision.why, decision.source


def _base_image(image: BaseImage) -> BaseImage:
    return replace(image, digests=tuple(sorted(image.digests, key=lambda item: item.platform.value)))


def _image(image: ImageSettings) -> ImageSettings:
    return replace(
        image,
        env=tuple(sorted(image.env)),
        apt=tuple(sorted(image.apt)),
        services=tuple(sorted(image.services, key=lambda item: item.name)),
    )


def _resolution(resolution: Resolution) -> Resolution:
    target = replace(resolution.target, python=_python(resolution.target.python))
    packages = sorted(map(_package, resolution.packages), key=lambda item: (item.name, item.version))
    conda = sorted(map(_conda_package, resolution.conda), key=lambda item: item.name)
    return replace(resolution, target=target, packages=tuple(packages), conda=tuple(conda))


def _python(python: Python) -> Python:
    return replace(python, url=_bare(python.url))


def _package(package: Package) -> Package:
    file: WheelFile = replace(package.file, url=_bare(package.file.url))
    # A requirement may be a URL that the spec gives in full.
    askers = {Asker(asker.name, without_credentials(asker.requirement)) for asker in package.askers}
    return replace(package, file=file, askers=tuple(sorted(askers)), extras=tuple(sorted(package.extras)))


def _conda_package(package: CondaPackage) -> CondaPackage:
    # A requirement may name its channel by URL, before `::`.
    askers = {Asker(asker.name, channels_without_credentials(asker.requirement)) for asker in package.askers}
    return replace(
        package,
        channel=channels_without_credentials(package.channel),
        url=channels_without_credentials(package.url),
        provides=tuple(sorted(package.provides)),
        askers=tuple(sorted(askers)),
    )


def _channel(channel: CondaChannel) -> CondaChannel:
    return replace(
        channel, name=channels_without_credentials(channel.name), url=channels_without_credentials(channel.url)
    )


def _bare(url: str | None) -> str | None:
    return None if url is None else without_credentials(url)
