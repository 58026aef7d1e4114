from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.errors import NetworkError
from envspec.io.store import Store
from envspec.models import Platform
from envspec.resolve.conda.channels import ChannelTimestamps
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


def test_a_cache_is_valid_up_to_the_time_of_the_last_read(store: Store) -> None:
    timestamps = ChannelTimestamps(store, [FORGE], PLATFORMS)
    timestamps.save(at(10))
    store.save()
    timestamps.check(at(10))
    expected = r"the state of channel forge on 2026-11-11T00:00:00Z.* from 2026-11-10"
    with pytest.raises(NetworkError, match=expected) as message:
        timestamps.check(at(11))
    assert "secret" not in str(message.value) and "run once with a network" in str(message.value)


def test_each_platform_has_its_own_time(store: Store) -> None:
    ChannelTimestamps(store, [FORGE], PLATFORMS[:1]).save(at(12))
    ChannelTimestamps(store, [FORGE], PLATFORMS[1:]).save(at(10))
    store.save()
    with pytest.raises(NetworkError, match="2026-11-10"):
        ChannelTimestamps(store, [FORGE], PLATFORMS).check(at(11))


def test_folders_and_channels_that_were_never_read(store: Store) -> None:
    ChannelTimestamps(store, [FOLDER], PLATFORMS).save(at(10))
    store.save()
    ChannelTimestamps(store, [FOLDER, FORGE], PLATFORMS).check(at(20))
