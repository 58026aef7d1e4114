"""An engine of the tests' own beside the machine's, and how GPUs are asked for: up to the toolkit's hook."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import APIError
from docker.types import DeviceRequest

from tests.support.machines.driver import records
from tests.support.machines.engine import OwnEngine, connect, image_of_programs, own_engine, run_in

pytestmark = pytest.mark.engine

ALL = DeviceRequest(count=-1, capabilities=[["gpu"]])


def test_a_device_request_reaches_the_hook(gpu_engine: OwnEngine) -> None:
    client = connect(gpu_engine.url)
    with image_of_programs(client, "env") as image:
        before = len(records(gpu_engine))
        with_gpus = run_in(client, image, "env", device_requests=[ALL], environment={"ASKED": "yes"})
        (seen,) = records(gpu_engine)[before:]
        assert seen.words == ("prestart",)
        assert seen.environ["NVIDIA_VISIBLE_DEVICES"] == "all"
        assert seen.environ["ASKED"] == "yes"
        assert with_gpus.status == 0, with_gpus.output
        assert "NVIDIA_VISIBLE_DEVICES=all" in with_gpus.output.splitlines()

        some = DeviceRequest(device_ids=["0", "2"], capabilities=[["gpu", "utility"]])
        run_in(client, image, "env", device_requests=[some])
        assert records(gpu_engine)[-1].environ["NVIDIA_VISIBLE_DEVICES"] == "0,2"

        without = run_in(client, image, "env")
        assert without.status == 0, without.output
        assert len(records(gpu_engine)) == before + 2


def test_without_the_hook_no_gpus_are_offered() -> None:
    with own_engine() as engine:
        client = connect(engine.url)
        with image_of_programs(client, "env") as image, pytest.raises(APIError, match="could not select device driver"):
            run_in(client, image, "env", device_requests=[ALL])


def test_it_leaves_nothing_behind_and_the_machines_engine_alone(engine: DockerClient) -> None:
    before = engine.info()["DockerRootDir"]
    with own_engine() as own:
        assert connect(own.url).info()["DockerRootDir"] == str(own.folder / "data")
    assert not own.folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(own.pid, 0)
    assert str(own.folder) not in Path("/proc/self/mountinfo").read_text()
    assert engine.info()["DockerRootDir"] == before
    assert "bridge" in {network.name for network in engine.networks.list()}
