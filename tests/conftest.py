"""Fixtures for every group of tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from tests.support.builders.projects import Dialect, File
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.tries import tries

# Differences are shown line by line there too.
pytest.register_assert_rewrite("tests.support.golden")
#: Engines, registries and base images, for tests marked `engine`.
pytest_plugins = ["tests.support.machines.fixtures"]

# A shell has what it starts in the background ignore Ctrl-C, `nohup` has it ignore more, and so does all that is begun
# from there: tests send these.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# How long an example takes says how busy the machine is.
settings.register_profile("envspec", deadline=None, max_examples=tries(100))
settings.load_profile("envspec")


def pytest_collection_finish() -> None:
    """Thousands of tests are no garbage: each collection would go through all of them, a tenth of the time."""
    gc.collect()
    gc.freeze()


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
