"""Fixtures of the conformance suite's tests: real stacks, and the rule that what is missing skips with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines import netns
from tests.support.machines.stack import cpu_torch, stack


@pytest.fixture(scope="session")
def torch_29() -> Path:
    """The Python of an environment of the lock pytorch-2.9."""
    return stack("pytorch-2.9")


@pytest.fixture(scope="session")
def torch_26() -> Path:
    """The Python of an environment of the lock pytorch-2.6."""
    return stack("pytorch-2.6")


@pytest.fixture(scope="session", params=["pytorch-2.9", "pytorch-2.6"])
def torch_any(request: pytest.FixtureRequest) -> Path:
    """Each of them."""
    return stack(str(request.param))


@pytest.fixture(scope="session")
def torch_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with a torch for the CPU, and nothing beside it."""
    return cpu_torch(tmp_path_factory.mktemp("torch") / "cpu")


@pytest.fixture
def nodes() -> Iterator[tuple[netns.Namespace, netns.Namespace]]:
    """Two machines, as far as the network goes; none of them is left."""
    with netns.two() as both:
        yield both
