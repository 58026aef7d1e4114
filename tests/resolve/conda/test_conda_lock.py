"""The second conda solver: the real conda-lock, which chooses the same records as the first one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec.io.process import Finished
from envspec.models import CondaPackage, CudaVersion, Platform
from envspec.resolve.conda.channels import open_channels
from envspec.resolve.conda.conda_lock import CondaLock, allowed_records, conda_lock_error
from envspec.resolve.conda.records import cuda_constraint, package_of
from envspec.resolve.conda.solver import CondaSolver, CondaUnsolvable, Rattler
from envspec.resolve.pypi.resolver import ResolverError
from envspec.resolve.types import Channel, CondaRequest, VirtualPackage
from envspec.structs import replace
from tests.support.builders import conda_packages
from tests.support.builders.conda_archive import milliseconds
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.machines.conda_shim import calls, shim
from tests.support.servers.channel import CondaServer

MACHINE = (
    VirtualPackage("__cuda", "12.9"),
    VirtualPackage("__glibc", "2.39"),
    VirtualPackage("__linux", "5.10"),
    VirtualPackage("__unix", "0"),
)


@dataclass(frozen=True)
class World:
    """Two channels and a `conda`."""

    forge: CondaChannel
    corp: CondaChannel
    conda: Path
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{self.conda.parent}{os.pathsep}{os.defpath}"}

    def request(self, *requirements: str, channels: Sequence[str] = ("forge",)) -> CondaRequest:
        known = {"forge": self.forge.url, "corp": self.corp.url}
        return CondaRequest(
            platform=Platform.LINUX_64,
            channels=tuple(Channel(name, known[name], known[name]) for name in channels),
            requirements=(f"python {'.'.join(conda_packages.running().split('.')[:2])}.*", *requirements),
            virtual_packages=(VirtualPackage("__archspec", "1", "x86_64"), *MACHINE),
            as_of=datetime(2025, 12, 1, tzinfo=timezone.utc),
        )

    async def solved(self, engine: CondaSolver, request: CondaRequest) -> list[CondaPackage]:
        work = Path(tempfile.mkdtemp(dir=self.folder))
        async with open_channels(request.channels, self.folder / "cache", {}, offline=False) as channels:
            records = await engine.solve(request, channels, work)
        return sorted((package_of(each, request.channels) for each in records), key=lambda package: package.name)

    def solve(self, engine: CondaSolver, request: CondaRequest) -> list[CondaPackage]:
        return asyncio.run(self.solved(engine, request))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("conda lock")
    forge = write(folder / "channels" / "forge", conda_packages.forge())
    corp = write(folder / "channels" / "corp", conda_packages.corp())
    return World(forge, corp, shim(folder / "bin"), folder)


def as_of(world: World) -> CondaRequest:
    request = world.request("transformers", "pathwise", "oldstyle", "simd", "undated")
    return replace(request, as_of=datetime(2025, 7, 10, tzinfo=timezone.utc))


def cuda_with_a_cap(world: World) -> CondaRequest:
    request = world.request("pytorch * cuda*", "transformers", "numpy >=1.26", "numpy <2.3")
    constraints = ("cuda-version <=12.6", cuda_constraint("libtorch"))
    return replace(request, cuda=CudaVersion(12, 9), constraints=constraints)


def another_platform(world: World) -> CondaRequest:
    return replace(world.request("pytorch", "greet"), platform=Platform.LINUX_AARCH64)


def two_channels(world: World) -> CondaRequest:
    named = f"{world.forge.url}::filelock"
    return world.request("corp-models", "transformers", named, channels=("corp", "forge"))


def undated_and_a_cutoff_of_its_own(world: World) -> CondaRequest:
    cutoffs = {"filelock": datetime(2026, 3, 1, tzinfo=timezone.utc)}
    return replace(world.request("undated", "filelock", "ffmpeg"), undated=True, cutoffs=cutoffs)


@pytest.mark.parametrize(
    ("request_of", "expected"),
    [
        (as_of, "forge/pytorch-2.7.1 forge/transformers-4.46.0 forge/typing_extensions-4.14.0 forge/undated-0.9"),
        (
            cuda_with_a_cap,
            "forge/pytorch-2.7.1-cuda126_ forge/libtorch-2.7.1 forge/cuda-version-12.6 forge/numpy-2.2.6",
        ),
        (another_platform, "forge/pytorch-2.8.0-cpu_ forge/greet-1.0"),
        (two_channels, "corp/corp-models-1.0 corp/numpy-2.2.6 forge/filelock-3.18.0 forge/transformers-4.57.1"),
        (undated_and_a_cutoff_of_its_own, "forge/undated-1.0 forge/filelock-3.20.0 forge/ffmpeg-7.1.1"),
    ],
)
def test_both_solvers_choose_the_same_records(
    request_of: Callable[[World], CondaRequest], expected: str, world: World
) -> None:
    found = world.solve(CondaLock(world.environ), request_of(world))
    assert found == world.solve(Rattler(), request_of(world))
    files = [f"{package.channel}/{package.filename}" for package in found]
    assert [text for text in expected.split() if not any(file.startswith(text) for file in files)] == []
    assert not [package.name for package in found if package.name.startswith("__")]
    if request_of is as_of:
        assert any(file.startswith("forge/oldstyle-") and file.endswith(".tar.bz2") for file in files)


def test_locked_records_stay_if_they_can(world: World) -> None:
    request = replace(world.request("transformers", "ffmpeg"), as_of=datetime(2025, 7, 10, tzinfo=timezone.utc))
    before = world.solve(Rattler(), request)
    later = replace(
        request,
        as_of=datetime(2026, 6, 1, tzinfo=timezone.utc),
        locked=tuple(before),
        requirements=(*request.requirements, "greet", "ffmpeg >=8"),
    )
    after = world.solve(CondaLock(world.environ), later)
    assert after == world.solve(Rattler(), later)
    moved = {package.name for package in before} - {package.name for package in after if package in before}
    assert moved == {"ffmpeg"}


def test_a_channel_over_http_is_not_named_to_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials stay with envspec, and so does what the user's own configuration says."""
    monkeypatch.setenv("CONDA_CHANNELS", "elsewhere")
    monkeypatch.setenv("CONDA_FLAGS", "--no-such-flag")
    monkeypatch.setenv("CONDA_OVERRIDE_GLIBC", "2.12")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    with CondaServer({"forge": world.forge}, credentials=("me", "secret")) as server:
        channel = Channel("corp", server.channel_url("forge"), server.channel_url_with_credentials("forge"))
        request = replace(world.request("greet"), channels=(channel,))
        program = shim(world.folder / "private")
        engine = CondaLock({"PATH": f"{program.parent}{os.pathsep}{os.defpath}"})
        found = world.solve(engine, request)
    assert [package.url for package in found if package.name == "greet"] == [
        f"{channel.url}/noarch/{world.forge.find('greet').filename}"
    ]
    (asked,) = [call for call in calls(program) if "create" in call["words"]]
    assert not [text for text in ("secret", "127.0.0.1") if text in json.dumps(asked)]
    assert asked["environ"].keys().isdisjoint({"CONDA_CHANNELS", "CONDA_FLAGS", "PIP_INDEX_URL"})
    assert asked["environ"]["CONDA_OVERRIDE_GLIBC"] == "2.39"
    assert asked["environ"]["HOME"].startswith(str(world.folder))


def test_no_solution_is_reported_in_the_executables_words(world: World) -> None:
    request = world.request("pytorch 2.8.*", "numpy <1.20")
    with pytest.raises(CondaUnsolvable) as raised:
        world.solve(CondaLock(world.environ), request)
    assert "numpy" in raised.value.message
    assert not [text for text in (str(world.folder), "file:") if text in raised.value.message]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {
                "exception_name": "PackagesNotFoundError",
                "message": "The following packages are missing from the target environment:\n  - xyz\n\n"
                "Current channels:\n\n  - file://WORK/channel\n\nTo search for alternate channels, visit ...",
            },
            "The following packages are missing from the target environment:\n  - xyz",
        ),
        ({"success": False, "solver_problems": ["a-1-0 requires b", "and c"]}, "a-1-0 requires b; and c"),
        ({"exception_name": "LibMambaUnsatisfiableError", "message": "found:\n  - nothing"}, "found:\n  - nothing"),
    ],
)
def test_no_solution_of_conda_and_of_mamba(answer: Mapping[str, object], expected: str, tmp_path: Path) -> None:
    """As conda-lock's `print_proc` passes them on; the words are those of conda 25 and mamba 2 in their trackers."""
    text = json.dumps(answer, indent=2).replace("WORK", str(tmp_path))
    stderr = f"Could not lock\n    Command: ['conda']\n    STDOUT:\n{text}\n    STDERR:\nx\nTraceback: {tmp_path}\n"
    found = conda_lock_error(Finished(1, "", stderr), tmp_path, "/usr/bin/conda")
    assert isinstance(found, CondaUnsolvable)
    assert found.message == expected


def test_another_failure_of_conda_is_a_fault(tmp_path: Path) -> None:
    answer = {"exception_name": "NoSpaceLeftError", "message": f"no space left at {tmp_path}/tmp/x, go away"}
    stderr = f"    STDOUT:\n{json.dumps(answer)}\nsubprocess.CalledProcessError: returned non-zero\n"
    found = conda_lock_error(Finished(1, "", stderr), tmp_path, "/usr/bin/mamba")
    assert isinstance(found, ResolverError)
    assert found.message == "conda-lock with mamba exited with status 1: no space left at ..., go away"


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = CondaLock()
    assert engine.unable({"PATH": str(shim(tmp_path / "mm", "micromamba").parent)}) is None
    assert engine.unable({}) == engine.unable({"PATH": "/nonexistent"}) == "no conda, mamba or micromamba on PATH"
    monkeypatch.setitem(sys.modules, "conda_lock", None)  # what an interpreter without it finds
    assert engine.unable({"PATH": str(tmp_path)}) == "not installed; get it with `pip install 'envspec[conda-lock]'`"


def with_conda(folder: Path, script: str) -> CondaLock:
    conda = folder / "conda"
    conda.write_text(f"#!/bin/sh\n{script}\n")
    conda.chmod(0o755)
    return CondaLock({"PATH": f"{folder}{os.pathsep}{os.defpath}"})


def test_a_broken_executable_is_no_missing_solution(world: World, tmp_path: Path) -> None:
    engine = with_conda(tmp_path, "echo 'cannot open shared object' >&2\nexit 127")
    with pytest.raises(ResolverError, match="conda-lock with conda exited with status 1"):
        world.solve(engine, world.request("greet"))


def test_a_cancelled_run_leaves_no_process(world: World, tmp_path: Path) -> None:
    engine = with_conda(tmp_path, f"case $1 in create) echo $$ > {tmp_path}/pid; exec sleep 600;; esac")

    async def cancelled() -> int:
        running = asyncio.ensure_future(world.solved(engine, world.request("greet")))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert not running.done(), running.exception()
            await asyncio.sleep(0.02)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return int((tmp_path / "pid").read_text())

    pid = asyncio.run(cancelled())
    with contextlib.suppress(FileNotFoundError):
        # Its parent was ended with it, so it may wait to be reaped.
        assert Path(f"/proc/{pid}/stat").read_text().split()[2] in ("Z", "X")


def test_the_day_of_a_row_decides_as_it_does_for_rattler(world: World) -> None:
    """To the millisecond: what conda-lock is shown of a name is what rattler picks from."""
    built = datetime.fromtimestamp(milliseconds("2025-03-14") / 1000, timezone.utc)
    for as_of, newest in ((built, "3.18.0"), (built - timedelta(milliseconds=1), "3.16.1")):
        request = replace(world.request("filelock"), as_of=as_of)
        found = world.solve(Rattler(), request)
        assert {package.name: package.version for package in found}["filelock"] == newest
        shown = asyncio.run(_shown(world, request))
        assert max(row.version for row in shown if row.name == "filelock") == newest


async def _shown(world: World, request: CondaRequest) -> list[CondaPackage]:
    async with open_channels(request.channels, world.folder / "cache", {}, offline=False) as channels:
        return [
            package_of(row, request.channels) for row in allowed_records(request, await channels.reachable(request))
        ]
