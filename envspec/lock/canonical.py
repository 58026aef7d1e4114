"""The one form of a lock that is written, whatever order its stages finished in."""

from __future__ import annotations

from dataclasses import replace

from envspec.model import Asker, BaseImage, Decision, Lock, Package, Python, Resolution, WheelFile
from envspec.spec_hash import without_credentials


def canonical(lock: Lock) -> Lock:
    """The same lock, sorted, and with no URL that carries a user name or password.

    Resolutions and digests by platform, packages and askers by name, decisions by key. The spec's list of GPUs and a
    resolution's warnings keep their order, which carries meaning.
    """
    return replace(
        lock,
        resolutions=tuple(sorted(map(_resolution, lock.resolutions), key=lambda item: item.target.platform.value)),
        decisions=tuple(sorted(lock.decisions, key=_decision_key)),
        base_image=_base_image(lock.base_image) if lock.base_image else None,
        gpu_code=tuple(sorted(lock.gpu_code, key=lambda item: (item.platform.value, item.package, item.version))),
        package_as_of=tuple(sorted(lock.package_as_of)),
    )


def _decision_key(decision: Decision) -> tuple[str, ...]:
    platform = decision.platform.value if decision.platform else ""
    return decision.what, platform, decision.value, decision.why, decision.source


def _base_image(image: BaseImage) -> BaseImage:
    return replace(image, digests=tuple(sorted(image.digests, key=lambda item: item.platform.value)))


def _resolution(resolution: Resolution) -> Resolution:
    target = replace(resolution.target, python=_python(resolution.target.python))
    packages = sorted(map(_package, resolution.packages), key=lambda item: (item.name, item.version))
    return replace(resolution, target=target, packages=tuple(packages))


def _python(python: Python) -> Python:
    return replace(python, url=_bare(python.url))


def _package(package: Package) -> Package:
    file: WheelFile = replace(package.file, url=_bare(package.file.url))
    # A requirement may be a URL that the spec gives in full.
    askers = {Asker(asker.name, without_credentials(asker.requirement)) for asker in package.askers}
    return replace(package, file=file, askers=tuple(sorted(askers)), extras=tuple(sorted(package.extras)))


def _bare(url: str | None) -> str | None:
    return None if url is None else without_credentials(url)
