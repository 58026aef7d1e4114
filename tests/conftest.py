"""Fixtures for every group of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.index_server import FRIENDLY, IndexServer
from tests.support.projects import Dialect, File

#: Start an index with these files, in this dialect; it stops when the test ends.
Serve = Callable[..., IndexServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(files, dialect, credentials=...)` starts an index on loopback for the length of the test."""
    with ExitStack() as running:

        def start(
            files: Iterable[File] = (),
            dialect: Dialect = FRIENDLY,
            *,
            credentials: tuple[str, str] | None = None,
            delay_s: float = 0.0,
        ) -> IndexServer:
            return running.enter_context(IndexServer(files, dialect, credentials=credentials, delay_s=delay_s))

        yield start
