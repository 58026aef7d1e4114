from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.errors import NetworkError
from envspec.io.store import Store
from envspec.models import Platform
from envspec.resolve.conda.channels import Seen
from envspec.resolve.types import Channel

FORGE = Channel("forge", "https://example.com/forge", "https://u:secret@example.com/forge")
FOLDER = Channel("mine", "file:///channels/mine", "file:///channels/mine")
PLATFORMS = (Platform.LINUX_64, Platform.OSX_ARM64)


def at(day: int) -> datetime:
    return datetime(2026, 11, day, tzinfo=timezone.utc)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


def test_a_cache_answers_for_moments_up_to_the_last_look(store: Store) -> None:
    seen = Seen(store, [FORGE], PLATFORMS)
    seen.remember(at(10))
    store.save()
    seen.check(at(9))
    seen.check(at(10))
    with pytest.raises(NetworkError, match=r"channel forge had on 2026-11-11T00:00:00Z.* of 2026-11-10") as told:
        seen.check(at(11))
    assert "secret" not in str(told.value) and "without --offline" in str(told.value)


def test_each_platform_has_its_own_look(store: Store) -> None:
    Seen(store, [FORGE], PLATFORMS[:1]).remember(at(12))
    Seen(store, [FORGE], PLATFORMS[1:]).remember(at(10))
    store.save()
    with pytest.raises(NetworkError, match="2026-11-10"):
        Seen(store, [FORGE], PLATFORMS).check(at(11))


def test_folders_are_as_they_are(store: Store) -> None:
    Seen(store, [FOLDER], PLATFORMS).remember(at(10))
    store.save()
    Seen(store, [FOLDER], PLATFORMS).check(at(20))


def test_what_was_never_asked_is_the_solvers_to_tell(store: Store) -> None:
    Seen(store, [FORGE], PLATFORMS).check(at(20))
