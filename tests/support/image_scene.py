"""What whoever builds images needs of others: an index with wheels, and a registry with a base.

with standing(small_wheel("one")) as around:
    builder = around.builder_in(tmp_path)
    builder.id_of(builder.writes_lock(around.lock_of(small_wheel("one"))))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envspec.models import Lock
from tests.support.environments import pin
from tests.support.image_builds import X86, BaseMade, Builder, Standing, hold_base, image_lock, make_base
from tests.support.index_server import IndexServer
from tests.support.projects import File
from tests.support.push_registry import PushRegistry
from tests.support.wheels import Artifact


@dataclass
class Around:
    """registry: has the base, and takes pushes."""

    index: IndexServer
    registry: Standing
    base: BaseMade

    def builder_in(self, folder: Path, **environ: str) -> Builder:
        """Somebody who gets everything from here."""
        return Builder(folder, self.index.url, self.registry.host, **environ)

    def lock_of(self, *wheels: Artifact, **others: Any) -> Lock:
        """A lock of these on the base. others: fields of Lock to set."""
        return image_lock({X86: [pin(each) for each in wheels]}, self.base.named(), **others)


@contextmanager
def standing(*wheels: Artifact) -> Iterator[Around]:
    """An index that has these wheels, and a registry."""
    with IndexServer([File(each) for each in wheels]) as index, Standing(PushRegistry()) as registry:
        yield Around(index, registry, hold_base(registry.held, make_base()))
