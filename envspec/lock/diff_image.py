"""What two locks say of their images, value by value."""

from __future__ import annotations

from envspec.lockfile.toml_writer import string, time_text
from envspec.models import ImageSettings, Lock, Platform, Service


def image_values(lock: Lock, other: Lock) -> dict[tuple[str, Platform | None], str | None]:
    """(what, platform or none) -> value, of settings, system layers, IDs and built wheels.

    other: the lock to compare with. Packages of a system layer are told one by one only where both locks have them:
    beside a lock that has made none, they would bury the rest.
    """
    values: dict[tuple[str, Platform | None], str | None] = {}
    image = lock.image
    if image != ImageSettings():
        values["image.workdir", None] = image.workdir
        values["image.compiler", None] = image.compiler
        values["image.apt", None] = " ".join(image.apt)
        values["image.snapshot", None] = time_text(image.snapshot) if image.snapshot else None
        values |= {(f"image.env.{name}", None): _shown(value) for name, value in image.env}
        values["image.services", None] = " ".join(map(_service, image.services))
    made = {layer.platform for layer in other.system}
    for layer in lock.system:
        values["system_layer", layer.platform] = layer.diff_id
        for name, _, version in (package.partition("=") for package in layer.packages):
            values[f"system_layer.{name}", layer.platform] = version if layer.platform in made else None
    for found in lock.images:
        values["image.id" if found.pyc else "image.id.no_pyc", found.platform] = found.id
    for resolution in lock.resolutions:
        for package in resolution.packages:
            if package.built:
                values[f"built.{package.name}", resolution.target.platform] = package.built.sha256
    return values


def _shown(text: str) -> str:
    """On one line, and not mistaken for nothing."""
    return text if text and text.isprintable() else string(text)


def _service(service: Service) -> str:
    return ":".join(filter(None, (service.name, str(service.port), service.logdir)))
