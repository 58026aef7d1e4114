from __future__ import annotations

import pytest

from envspec.models import Platform
from envspec.resolve import RESOLVERS, SOLVERS, resolver, solver


@pytest.mark.parametrize("name", RESOLVERS)
def test_every_pypi_resolver_is_there_and_tells_its_version(name: str) -> None:
    assert resolver(name).version.partition(" ")[0] == name


@pytest.mark.parametrize("name", SOLVERS)
def test_every_conda_resolver_is_there_and_tells_its_version(name: str) -> None:
    assert solver(name).version.partition(" ")[0].endswith(name)


def test_no_name_is_in_both_tables() -> None:
    assert not RESOLVERS.keys() & SOLVERS.keys()


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(KeyError, match=Platform.LINUX_64.value):
        resolver(Platform.LINUX_64.value)
