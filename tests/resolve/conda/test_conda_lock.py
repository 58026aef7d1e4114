"""The second conda engine: the real conda-lock, and its agreement with the first one row by row."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec.io.process import Finished
from envspec.models import CondaPackage, CudaVersion, Platform
from envspec.resolve.conda.channels import opened
from envspec.resolve.conda.conda_lock import CondaLock, allowed, failure
from envspec.resolve.conda.records import cuda_constraint, package_of
from envspec.resolve.conda.solver import CondaSolver, CondaUnsolvable, Rattler
from envspec.resolve.pypi.resolver import ResolverError
from envspec.resolve.types import Channel, CondaRequest, VirtualPackage
from tests.support.builders import conda_packages
from tests.support.builders.conda_archive import milliseconds
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.machines.conda_shim import calls, shim
from tests.support.servers.channel import CondaServer


@dataclass(frozen=True)
class World:
    """Two channels and a `conda`. cache: the gateway's."""

    forge: CondaChannel
    corp: CondaChannel
    conda: Path
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{self.conda.parent}{os.pathsep}{os.defpath}"}

    def request(self, *requirements: str, channels: Sequence[str] = ("forge",), cuda: str = "12.9") -> CondaRequest:
        known = {"forge": self.forge.url, "corp": self.corp.url}
        return CondaRequest(
            platform=Platform.LINUX_64,
            channels=tuple(Channel(name, known[name], known[name]) for name in channels),
            requirements=(f"python {'.'.join(conda_packages.running().split('.')[:2])}.*", *requirements),
            virtual_packages=(
                VirtualPackage("__archspec", "1", "x86_64"),
                *((VirtualPackage("__cuda", cuda),) if cuda else ()),
                VirtualPackage("__glibc", "2.39"),
                VirtualPackage("__linux", "5.10"),
                VirtualPackage("__unix", "0"),
            ),
            as_of=datetime(2025, 12, 1, tzinfo=timezone.utc),
        )

    async def solved(self, engine: CondaSolver, request: CondaRequest, name: str) -> list[CondaPackage]:
        work = self.folder / "work" / name
        work.mkdir(parents=True)
        async with opened(request.channels, self.folder / "cache", {}, offline=False) as channels:
            rows = await engine.solve(request, channels, work)
        return sorted((package_of(row, request.channels) for row in rows), key=lambda package: package.name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("conda lock")
    forge = write(folder / "channels" / "forge", conda_packages.forge())
    corp = write(folder / "channels" / "corp", conda_packages.corp())
    return World(forge, corp, shim(folder / "bin"), folder)


def _requests(world: World) -> Mapping[str, CondaRequest]:
    """Each a second of conda-lock's time, so each shows several things."""
    plain = world.request("transformers", "pathwise", "oldstyle", "simd", "undated")
    cuda = world.request("pytorch * cuda*", "transformers", "numpy >=1.26", "numpy <2.3")
    return {
        "as_of": replace(plain, as_of=datetime(2025, 7, 10, tzinfo=timezone.utc)),
        "CUDA with a cap": replace(
            cuda, cuda=CudaVersion(12, 9), constraints=("cuda-version <=12.6", cuda_constraint("libtorch"))
        ),
        "another platform": replace(
            plain, platform=Platform.LINUX_AARCH64, requirements=(plain.requirements[0], "pytorch", "greet")
        ),
        "two channels": world.request(
            "corp-models", "transformers", f"{world.forge.url}::filelock", channels=("corp", "forge")
        ),
        "undated, and a moment of its own": replace(
            world.request("undated", "filelock", "ffmpeg"),
            undated=True,
            cutoffs={"filelock": datetime(2026, 3, 1, tzinfo=timezone.utc)},
        ),
    }


@pytest.fixture(scope="module")
def answers(world: World) -> Mapping[str, tuple[list[CondaPackage], list[CondaPackage]]]:
    """What rattler and conda-lock say to each request, by its name."""

    async def ask() -> Mapping[str, tuple[list[CondaPackage], list[CondaPackage]]]:
        turns = asyncio.Semaphore(2)

        async def both(name: str, request: CondaRequest) -> tuple[list[CondaPackage], list[CondaPackage]]:
            async with turns:
                first = await world.solved(Rattler(), request, f"rattler, {name}")
                return first, await world.solved(CondaLock(world.environ), request, f"conda-lock, {name}")

        requests = _requests(world)
        found = await asyncio.gather(*(both(name, request) for name, request in requests.items()))
        return dict(zip(requests, found, strict=True))

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("as_of", {"pytorch": "2.7.1", "transformers": "4.46.0", "typing_extensions": "4.14.0", "undated": "0.9"}),
        ("CUDA with a cap", {"pytorch": "2.7.1", "libtorch": "2.7.1", "cuda-version": "12.6", "numpy": "2.2.6"}),
        ("another platform", {"pytorch": "2.8.0", "greet": "1.0"}),
        ("two channels", {"corp-models": "1.0", "numpy": "2.2.6", "filelock": "3.18.0", "transformers": "4.57.1"}),
        ("undated, and a moment of its own", {"undated": "1.0", "filelock": "3.20.0", "ffmpeg": "7.1.1"}),
    ],
)
def test_both_engines_choose_the_same_rows(
    name: str, expected: Mapping[str, str], answers: Mapping[str, tuple[list[CondaPackage], list[CondaPackage]]]
) -> None:
    first, second = answers[name]
    assert {package.name: package.version for package in second}.items() >= expected.items()
    assert second == first
    assert not [package.name for package in second if package.name.startswith("__")]


def test_builds_and_channels_are_the_ones_that_were_asked_for(
    answers: Mapping[str, tuple[list[CondaPackage], list[CondaPackage]]],
) -> None:
    def of(name: str) -> dict[str, CondaPackage]:
        return {package.name: package for package in answers[name][1]}

    assert of("CUDA with a cap")["pytorch"].build.startswith("cuda126_")
    assert of("another platform")["pytorch"].build.startswith("cpu_")
    assert of("two channels")["numpy"].channel == "corp"
    assert of("two channels")["filelock"].channel == "forge"
    assert of("as_of")["oldstyle"].filename.endswith(".tar.bz2")


def test_locked_rows_stay_where_they_can(world: World) -> None:
    request = replace(world.request("transformers", "ffmpeg"), as_of=datetime(2025, 7, 10, tzinfo=timezone.utc))
    before = asyncio.run(world.solved(Rattler(), request, "before"))
    later = replace(
        request,
        as_of=datetime(2026, 6, 1, tzinfo=timezone.utc),
        locked=tuple(before),
        requirements=(*request.requirements, "greet", "ffmpeg >=8"),
    )
    after = asyncio.run(world.solved(CondaLock(world.environ), later, "after"))
    assert after == asyncio.run(world.solved(Rattler(), later, "after, by rattler"))
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
        found = asyncio.run(world.solved(engine, request, "http"))
    assert [package.url for package in found if package.name == "greet"] == [
        f"{channel.url}/noarch/{world.forge.find('greet').filename}"
    ]
    (asked,) = [call for call in calls(program) if "create" in call["words"]]
    found_text = json.dumps(asked)
    assert "secret" not in found_text
    assert "127.0.0.1" not in found_text
    assert asked["environ"].keys().isdisjoint({"CONDA_CHANNELS", "CONDA_FLAGS", "PIP_INDEX_URL"})
    assert asked["environ"]["CONDA_OVERRIDE_GLIBC"] == "2.39"
    assert asked["environ"]["HOME"].startswith(str(world.folder))


def test_no_solution_is_reported_in_the_executables_words(world: World) -> None:
    request = world.request("pytorch 2.8.*", "numpy <1.20")
    with pytest.raises(CondaUnsolvable) as raised:
        asyncio.run(world.solved(CondaLock(world.environ), request, "unsolvable"))
    assert "numpy" in raised.value.message
    assert str(world.folder) not in raised.value.message
    assert "file:" not in raised.value.message


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
        (
            {
                "success": False,
                "solver_problems": ["package a-1-0 requires b, but none of the providers can be installed"],
            },
            "package a-1-0 requires b, but none of the providers can be installed",
        ),
        (
            {
                "exception_name": "LibMambaUnsatisfiableError",
                "message": "Encountered problems:\n  - nothing provides c",
            },
            "Encountered problems:\n  - nothing provides c",
        ),
    ],
)
def test_the_refusals_of_conda_and_mamba_are_read(answer: Mapping[str, object], expected: str, tmp_path: Path) -> None:
    """As conda-lock's `print_proc` passes them on; the words are those of conda 25 and mamba 2 in their trackers."""
    found_text = json.dumps(answer, indent=2).replace("WORK", str(tmp_path))
    stderr = (
        f"Could not lock\n    Command: ['conda']\n    STDOUT:\n{found_text}\n    STDERR:\nx\nTraceback: {tmp_path}\n"
    )
    found = failure(Finished(1, "", stderr), tmp_path, "/usr/bin/conda")
    assert isinstance(found, CondaUnsolvable)
    assert found.message == expected


def test_another_failure_of_conda_is_a_fault(tmp_path: Path) -> None:
    answer = {"exception_name": "NoSpaceLeftError", "message": f"no space left at {tmp_path}/tmp/x, go away"}
    stderr = f"    STDOUT:\n{json.dumps(answer)}\nsubprocess.CalledProcessError: returned non-zero\n"
    found = failure(Finished(1, "", stderr), tmp_path, "/usr/bin/mamba")
    assert isinstance(found, ResolverError)
    assert found.message == "conda-lock with mamba exited with status 1: no space left at ..., go away"


def test_what_it_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = CondaLock()
    assert engine.unable({"PATH": str(shim(tmp_path).parent)}) is None
    assert engine.unable({"PATH": str(shim(tmp_path / "mm", "micromamba").parent)}) is None
    assert engine.unable({"PATH": "/nonexistent"}) == "no conda, mamba or micromamba on PATH"
    assert engine.unable({}) == "no conda, mamba or micromamba on PATH"
    monkeypatch.setitem(sys.modules, "conda_lock", None)  # what an interpreter without it finds
    assert engine.unable({"PATH": str(tmp_path)}) == "not installed; get it with `pip install 'envspec[conda-lock]'`"


def test_a_broken_executable_is_a_fault_not_a_refusal(world: World, tmp_path: Path) -> None:
    conda = tmp_path / "conda"
    conda.write_text("#!/bin/sh\necho 'cannot open shared object' >&2\nexit 127\n")
    conda.chmod(0o755)
    engine = CondaLock({"PATH": f"{tmp_path}{os.pathsep}{os.defpath}"})
    with pytest.raises(ResolverError, match="conda-lock with conda exited with status 1"):
        asyncio.run(world.solved(engine, world.request("greet"), "broken"))


def test_a_cancelled_run_leaves_no_process(world: World, tmp_path: Path) -> None:
    conda = tmp_path / "conda"
    conda.write_text(f"#!/bin/sh\ncase $1 in create) echo $$ > {tmp_path}/pid; exec sleep 600;; esac\n")
    conda.chmod(0o755)
    engine = CondaLock({"PATH": f"{tmp_path}{os.pathsep}{os.defpath}"})

    async def cancelled() -> int:
        running = asyncio.ensure_future(world.solved(engine, world.request("greet"), "cancelled"))
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
        found = asyncio.run(world.solved(Rattler(), request, f"day {newest}"))
        assert {package.name: package.version for package in found}["filelock"] == newest
        shown = asyncio.run(_shown(world, request))
        assert max(row.version for row in shown if row.name == "filelock") == newest


async def _shown(world: World, request: CondaRequest) -> list[CondaPackage]:
    async with opened(request.channels, world.folder / "cache", {}, offline=False) as channels:
        return [package_of(row, request.channels) for row in allowed(request, await channels.reachable(request))]
