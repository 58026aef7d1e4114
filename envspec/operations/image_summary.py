"""What `envspec image build` shows at its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from envspec.diagnostics.image_summary import BuiltSize, ImageSummary, InstalledBy, LeftOutSummary, summarize
from envspec.errors import EnvspecError
from envspec.lockfile import toml_writer
from envspec.models import Lock, Platform
from envspec.operations.inspect import facts_of
from envspec.spec.document import PYPROJECT
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.adopt.rows import ForeignLock
    from envspec.operations.adopt import Adopted

_DOCKERFILES: Final = ("Dockerfile", "docker/Dockerfile")


def image_summary(
    lock: Lock, platforms: Sequence[Platform], sizes: Sequence[tuple[int, int]], adopted: Adopted | None
) -> ImageSummary:
    """What the images of a lock have. sizes: layers and bytes of each, if they were built. adopted: the lock of another
    tool that it was made of.
    """
    facts = facts_of(lock)
    images = []
    for number, platform in enumerate(platforms):
        size = BuiltSize(*sizes[number]) if sizes else None
        images.append(summarize(lock, platform, facts, size))
    found = ImageSummary(lock.name, tuple(images))
    if lock.is_adopted and (adopted is None or adopted.found.name):
        found = replace(found, project=_project(lock))
    if adopted is None:
        return found
    left_out = [LeftOutSummary(each.words, len(each.packages)) for each in adopted.found.left_out]
    settings = toml_writer.table("tool.envspec", adopted.unwritten).strip() if adopted.unwritten else ""
    installed_by = _installed_by(adopted.found)
    return replace(found, left_out=tuple(left_out), installed_by=installed_by, settings=settings)


def _project(lock: Lock) -> str:
    """What of the project is in the image, as `ImageSummary.project`."""
    if lock.image.project:
        return lock.image.project
    return "copy" if lock.image.copy else "none"


def _installed_by(found: ForeignLock) -> InstalledBy | None:
    """The project's Dockerfile, if it installs extras or groups that are not selected."""
    folder = found.path.parent
    for name in _DOCKERFILES:
        if not (folder / name).is_file():
            continue
        from envspec.importers.dockerfile import read_dockerfile
        from envspec.importers.types import Import

        imported = Import(folder, lambda _: None)
        with suppress(EnvspecError):
            imported.run(read_dockerfile, folder / name)
        extras, groups = imported.installed.get((folder / PYPROJECT).resolve(), ((), ()))
        words = []
        for each in found.left_out:
            if each.name in (extras if each.kind == "extra" else groups):
                words.append(each.words)
        if words:
            return InstalledBy(name, tuple(words))
    return None
