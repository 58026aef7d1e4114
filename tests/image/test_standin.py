"""The stand-in for NVIDIA's base image: the same bytes every time, and what tests count on is in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from docker import DockerClient

from tests.support.machines import program, standin
from tests.support.machines.engine import removed, run_in

pytestmark = pytest.mark.engine


def test_the_same_packages_give_the_same_image(standin_layout: standin.Layout, tmp_path: Path) -> None:
    assert standin.make(tmp_path / "again").diff_ids == standin_layout.diff_ids


def test_it_runs_with_the_system_and_the_python_that_the_spec_says(
    engine: DockerClient, standin_base: standin.Pushed
) -> None:
    name = f"{standin_base.name.rpartition(':')[0]}@{standin_base.digest}"
    engine.images.pull(name)
    with removed(engine, name):
        told = run_in(
            engine, name, "python3.11", "-c", "import platform as p; print(p.python_version(), *p.libc_ver())"
        )
        assert (told.status, told.output.split()) == (0, [standin.PYTHON, "glibc", standin.GLIBC])
        absent = run_in(engine, name, "python3.11", "-c", "import pip")
        assert absent.status == 1, absent.output
        seen = run_in(engine, name, "python3.11", "-I", "-v", "-c", "pass").output
        assert "matches /usr/lib/python3.11/encodings/__init__.py" in seen
        assert "stale" not in seen
        environ = run_in(engine, name, "env").output.splitlines()
        assert {"NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12.8.1"} <= set(environ)


def test_skopeo_reads_it(standin_base: standin.Pushed) -> None:
    command = [program("skopeo"), "inspect", "--tls-verify=false", f"docker://{standin_base.name}"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert told["Digest"] == standin_base.digest
    assert len(told["Layers"]) == len(standin_base.layout.diff_ids)
