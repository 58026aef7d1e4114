"""`envspec init --prefix` of conda environments that were installed from a test channel some time ago."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import pytest

from envspec import documents
from envspec.diagnostics.machine import this_platform
from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.environments import SERIES
from tests.support.user import User

pytestmark = pytest.mark.skipif(not this_platform().is_linux, reason="the test channel's programs are Linux's")

NAMES: Final = ("ffmpeg", "numpy", "filelock", "greet", "pathwise", "modernlib", "typing_extensions", "simd")
DATES: Final = ("2024-12-01", "2025-03-15", "2025-08-01", "2026-06-01")


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge())


def conda_of(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Version, build and hash of each conda package of a lock."""
    [resolution] = documents.parse_toml((folder / "envspec.lock").read_text())["resolution"]
    return {each["name"]: (each["version"], each["build"], each["sha256"]) for each in resolution["conda"]}


@pytest.mark.parametrize("seed", range(4))
def test_every_package_stays_as_it_was_installed(tmp_path: Path, channel: CondaChannel, seed: int) -> None:
    drawn = random.Random(seed)
    names = sorted(drawn.sample(NAMES, 3))
    user = User(tmp_path, "http://127.0.0.1:9/simple")
    user.writes(
        f'[env]\nname = "small"\npython = "{SERIES}"\nplatforms = ["{this_platform().value}"]\n'
        f"as_of = {DATES[seed]}\n[conda]\nchannels = ['{channel.url}']\ndependencies = {names}\n"
    )
    user.locked()
    ran = user.runs("install", "locks/small", "--prefix", "env")
    assert ran.status == 0, ran.stderr
    # As `conda install` leaves it: the lock alone knows what of it was required.
    ran = user.runs("init", "--prefix", "env", "--name", "mine", "--format", "json")
    assert ran.status == 0, ran.stderr + ran.stdout
    found: dict[str, Any] = json.loads(ran.stdout)
    assert conda_of(user.folder / "locks" / "mine") == conda_of(user.lock)
    assert (found["moved"], found["compared"]) == ([], len(conda_of(user.lock)))
    [proof] = found["proofs"]
    assert (proof["same"], proof["counts"]["conda"]) == (True, len(conda_of(user.lock)))
    assert {each["outcome"] for each in found["ledger"]} <= {"kept", "translated"}
