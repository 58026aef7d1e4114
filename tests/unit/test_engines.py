from __future__ import annotations

import pytest

from envspec.models import Platform
from envspec.resolve.engines import CONDA_ENGINES, ENGINES, conda_engine, engine


@pytest.mark.parametrize("name", ENGINES)
def test_every_pypi_engine_is_there_and_tells_its_version(name: str) -> None:
    assert engine(name).version.partition(" ")[0] == name


@pytest.mark.parametrize("name", CONDA_ENGINES)
def test_every_conda_engine_is_there_and_tells_its_version(name: str) -> None:
    assert conda_engine(name).version.partition(" ")[0].endswith(name)


def test_no_name_is_in_both_tables() -> None:
    assert not ENGINES.keys() & CONDA_ENGINES.keys()


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(KeyError, match=Platform.LINUX_64.value):
        engine(Platform.LINUX_64.value)
