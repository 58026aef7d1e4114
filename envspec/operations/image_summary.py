"""What `envspec image build` shows at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from envspec.diagnostics.image_summary import BuiltSize, ImageSummary, LeftOutSummary, summarize
from envspec.lockfile import toml_writer
from envspec.models import Lock, Platform
from envspec.operations.inspect import facts_of
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.operations.adopt import Adopted


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
    if adopted is None:
        return found
    left_out = []
    for each in adopted.found.left_out:
        left_out.append(LeftOutSummary(each.words, len(each.packages)))
    settings = toml_writer.table("tool.envspec", adopted.unwritten).strip() if adopted.unwritten else ""
    return replace(found, left_out=tuple(left_out), settings=settings)
