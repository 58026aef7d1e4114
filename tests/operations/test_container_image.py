"""Which image is known as that of a lock."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envspec.context import Context
from envspec.engine.client import Engine
from envspec.lockfile.folder import read_lock
from envspec.models import Lock, Platform
from envspec.operations import container
from envspec.operations.container import ContainerOptions, ContainerRequest
from envspec.operations.image_cache import ImageRequest
from envspec.structs import replace
from tests.support.builders.environments import make_lock, write_lock


@pytest.mark.parametrize("is_changed", [False, True])
def test_an_image_is_not_that_of_a_lock_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    def build(engine: Engine, built: Lock, *_: object, bytecode: bool) -> Any:
        image = SimpleNamespace(layers=(), platform=Platform.LINUX_64, id="sha256:1")
        return image.id, SimpleNamespace(images=(image,), digest=image.id)

    monkeypatch.setattr(container, "_loaded_image", build)
    lock = make_lock(where=Platform.LINUX_64)
    folder, context = tmp_path / "lock", Context({}, tmp_path, tmp_path / "cache")
    write_lock(folder, lock)
    lock = read_lock(folder)
    if is_changed:
        write_lock(folder, replace(lock, name="other"))
    request = ContainerRequest(cast("ContainerOptions", None), folder=folder)
    container._image(cast("Engine", None), lock, Platform.LINUX_64, request, context)
    known = ImageRequest(str(folder), context, platforms=(Platform.LINUX_64.value,)).cached()
    assert (known is None) == is_changed
