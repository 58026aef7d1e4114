"""A channel on loopback and a user of it, for tests that install conda packages and have `channel` and `index`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders.conda_channel import CondaChannel
from tests.support.servers.channel import CondaServer
from tests.support.servers.index import IndexServer
from tests.support.user import User


@pytest.fixture
def server(channel: CondaChannel) -> Iterator[CondaServer]:
    with CondaServer({"forge": channel}) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    # rattler's client knows no exemption of loopback from proxies, and the tests' proxy reaches nothing.
    return User(tmp_path, index.url, NO_PROXY="127.0.0.1")
