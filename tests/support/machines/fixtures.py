"""Fixtures of tests with real engines and registries, made once; what is missing skips the test with its reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from tests.support.machines import driver as nvidia_hook
from tests.support.machines import program, slurm, standin
from tests.support.machines.engine import OwnEngine, connect, own_engine
from tests.support.servers import docker_registry


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    """This machine's engine. Leave nothing in it: others use it, too."""
    client = connect()
    yield client
    client.close()


@pytest.fixture(scope="session")
def gpu_engine() -> Iterator[OwnEngine]:
    """An engine of the tests' own that offers GPUs, by a hook that only takes notes; it reaches no network."""
    with own_engine({nvidia_hook.HOOK: nvidia_hook.recording()}) as engine:
        yield engine


@pytest.fixture(scope="session")
def registry_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `registry` keeps what it is given, in `data`."""
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="session")
def registry(registry_folder: Path) -> Iterator[str]:
    """Host and port of a registry on loopback, empty at first."""
    program("docker-registry")
    with docker_registry.docker_registry(registry_folder) as host:
        yield host
    shutil.rmtree(registry_folder)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[slurm.Cluster]:
    """A Slurm cluster with idle nodes. Leave them idle; a test that kills or drains one starts its own."""
    with slurm.cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def standin_layout() -> standin.Layout:
    """The stand-in for NVIDIA's base image, as an OCI layout that is kept between sessions."""
    return standin.layout()


@pytest.fixture(scope="session")
def standin_base(registry: str, standin_layout: standin.Layout) -> standin.Pushed:
    """The same in the registry, under the name that NVIDIA's has."""
    return standin.push(standin_layout, registry)
