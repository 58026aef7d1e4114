"""Generated conda environments with wheels on top: made by `envspec install`, imported by `envspec init`, compared."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.diagnostics.machine import this_platform
from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.environments import SERIES
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.servers.index import IndexServer
from tests.support.user import User

pytestmark = pytest.mark.skipif(this_platform().value != "linux-64", reason="the CUDA builds are for linux-64")

#: Packages of the channel, in versions of which some are not the newest.
VERSIONS = {
    "numpy": ("1.26.4", "2.1.3", "2.3.4"),
    "filelock": ("3.13.1", "3.18.0"),
    "typing_extensions": ("4.12.2", "4.14.0"),
    "ffmpeg": ("7.0.2", "7.1.1"),
    "greet": ("1.0",),
    "pytorch": ("2.7.1", "2.8.0"),
    "transformers": ("4.46.0", "4.57.1"),
}
WHEELS = (
    *(wheel("tool", version) for version in ("1.0", "1.1", "2.0")),
    *(wheel("app", version, requires=["tool"]) for version in ("3.0", "3.1")),
)
ON_TOP: tuple[list[str], ...] = (["app==3.0", "tool==1.1"], ["tool==1.0"], ["app"], [])


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channel") / "forge", conda_packages.forge())


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([File(each) for each in WHEELS]) as server:
        yield server


def spec(seed: int, channel: CondaChannel) -> str:
    """The spec of a seed: the same in every run."""
    drawn = random.Random(seed)
    names = drawn.sample(sorted(VERSIONS), drawn.randint(2, 5))
    conda = [f"{name} =={drawn.choice(VERSIONS[name])}" for name in names]
    has_cuda = drawn.random() < 0.5 and not {"pytorch", "transformers"}.isdisjoint(names)
    cuda = ["[cuda]", 'version = "12.9"'] if has_cuda else []
    env = ["[env]", 'name = "old"', f'python = "{SERIES}"', "as_of = 2026-11-20"]
    pip = ["[pip]", f"dependencies = {json.dumps(drawn.choice(ON_TOP))}"]
    lines = ["[conda]", f'channels = ["{channel.url}"]', f"dependencies = {json.dumps(conda)}"]
    return "\n".join([*env, *cuda, *pip, *lines, ""])


@pytest.mark.parametrize("seed", range(3))
def test_no_version_moves(seed: int, channel: CondaChannel, index: IndexServer, tmp_path: Path) -> None:
    user = User(tmp_path, index.url, NO_PROXY="127.0.0.1")
    (tmp_path / "old.toml").write_text(spec(seed, channel))
    for words in (("lock", "old.toml"), ("install", "locks/old", "--prefix", "env")):
        ran = user.runs(*words)
        assert ran.status == 0, ran.stderr
    ran = user.runs("init", "--prefix", "env", "--name", "moved", "--format", "json")
    assert ran.status == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["moved"] == []
    assert found["compared"] == len([each for each in found["ledger"] if "preferred version" in each["reason"]])
    assert packages(tmp_path / "locks" / "moved") == packages(tmp_path / "locks" / "old")


def packages(lock: Path) -> dict[str, list[str]]:
    """The exports of a lock, which name each file with its hash, without comments."""
    files = [*lock.glob("conda-*.lock"), *lock.glob("requirements.*.txt")]
    lines = {file.name: file.read_text().splitlines() for file in files}
    return {name: [line for line in text if not line.lstrip().startswith("#")] for name, text in lines.items()}
