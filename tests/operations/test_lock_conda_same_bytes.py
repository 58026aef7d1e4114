"""One spec with [conda], one lock, byte for byte: whatever conda, mamba and rattler are set to on the machine.

Both halves are in it: conda's rows from a channel of real archives, wheels from an index on top of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from envspec.documents import parse_toml
from tests.support.ahead import ahead
from tests.support.builders import conda_packages, ecosystem
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.builders.ecosystem import release
from tests.support.machines.conda_shim import calls, shim
from tests.support.servers.channel import CondaServer
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

#: "{forge}" is the address of the channel. corp-toolkit and transformers are known by their archives alone.
SPEC: Final = """
[env]
name = "small"
python = "3.12"
platforms = ["linux-64", "linux-aarch64"]
as_of = 2025-12-01T00:00:00Z

[conda]
channels = ["{forge}"]
dependencies = ["transformers", "ffmpeg", "corp-toolkit"]

[conda.platform.linux-64]
dependencies = ["simd"]

[pip]
dependencies = ["app", "client", "report[fast]"]
"""

NOWHERE: Final = "http://127.0.0.1:9/evil"
CONDARC: Final = (
    f"channels: [{NOWHERE}]\nchannel_alias: {NOWHERE}\noverride_channels_enabled: false\noffline: true\n"
    f"default_channels: [{NOWHERE}]\ncustom_channels: {{forge: {NOWHERE}}}\nsubdir: win-64\n"
    "channel_priority: disabled\npinned_packages: [numpy 1.26.4]\nadd_pip_as_python_dependency: true\n"
    "proxy_servers: {http: http://127.0.0.1:9}\n"
)
AUTH: Final = json.dumps({"127.0.0.1": {"BasicHTTP": {"username": "wrong", "password": "wrong"}}})
HOSTILE: Final[Mapping[str, str]] = {
    "CONDA_OVERRIDE_CUDA": "11.0",
    "CONDA_OVERRIDE_GLIBC": "2.5",
    "CONDA_OVERRIDE_LINUX": "2.6",
    "CONDA_OVERRIDE_ARCHSPEC": "x86_64_v3",
    "CONDA_OVERRIDE_OSX": "10.9",
    "CONDA_OVERRIDE_WIN": "10",
    "CONDA_SUBDIR": "win-64",
    "CONDA_CHANNELS": NOWHERE,
    "CONDA_CHANNEL_ALIAS": NOWHERE,
    "CONDA_DEFAULT_CHANNELS": NOWHERE,
    "CONDA_CHANNEL_PRIORITY": "disabled",
    "CONDA_PINNED_PACKAGES": "numpy=1.26.4",
    "CONDA_OFFLINE": "true",
    "CONDA_PREFIX": "/nowhere",
    "CONDA_PKGS_DIRS": "/nowhere",
    "CONDA_SOLVER": "classic",
    "CONDARC": "{folder}/condarc",
    "MAMBARC": "{folder}/condarc",
    "MAMBA_ROOT_PREFIX": "/nowhere",
    "MAMBA_CHANNELS": NOWHERE,
    "MAMBA_PLATFORM": "win-64",
    "RATTLER_CACHE_DIR": "/nowhere",
    "PIXI_CACHE_DIR": "/nowhere",
    "PIXI_HOME": "/nowhere",
    "XDG_CACHE_HOME": "/nowhere",
    "XDG_CONFIG_HOME": "{folder}/home/.config",
    "SOURCE_DATE_EPOCH": "1",
    "UV_PYTHON": "2.7",
    "PIP_CONSTRAINT": "{folder}/condarc",
}
FILES: Final[Mapping[str, str]] = {
    "condarc": CONDARC,
    ".condarc": CONDARC,
    "home/.condarc": CONDARC,
    "home/.mambarc": CONDARC,
    "home/.conda/.condarc": CONDARC,
    "home/.config/conda/.condarc": CONDARC,
    "home/.pixi/config.toml": f'default-channels = ["{NOWHERE}"]\n',
    "home/.config/pixi/config.toml": f'default-channels = ["{NOWHERE}"]\n',
    "conda-lock.yml": "version: 1\n",
    "environment.yml": f"channels: [{NOWHERE}]\ndependencies: [numpy=1.26.4]\n",
    "pixi.toml": f'[workspace]\nchannels = ["{NOWHERE}"]\n',
}


@dataclass(frozen=True)
class Case:
    """How this run differs from the plainest. files: written into the user's folder before. runs: the last counts."""

    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[tuple[str, ...], ...] = ((),)
    folder: str = "folder"
    umask: int = -1
    from_folder: bool = False


CASES: Final[Mapping[str, Case]] = {
    "another-folder": Case(folder="a folder/mit Ümläuten & $HOME"),
    "umask-077": Case(umask=0o077),
    "east": Case(
        {
            "TZ": "Pacific/Kiritimati",
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONHASHSEED": "1",
        }
    ),
    "west": Case({"TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "4294967295"}),
    "hostile-variables": Case(HOSTILE, FILES),
    "hostile-files": Case(files=FILES),
    "jobs-1": Case(runs=(("--jobs", "1"),)),
    "jobs-8": Case(runs=(("--jobs", "8"),)),
    "warm": Case(runs=((), ())),
    "warm-and-offline": Case(runs=((), ("--offline",))),
    "channel-in-a-folder": Case(from_folder=True),
}


class Same:
    """One server and one index for all cases: the channel's address is in the lock."""

    def __init__(self, root: Path, channel: CondaChannel, server: CondaServer, index: IndexServer) -> None:
        self.root = root
        self.channel = channel
        self.server = server
        self.index = index

    def user(self, name: str, case: Case) -> User:
        user = User(self.root / name / case.folder, self.index.url, NO_PROXY="127.0.0.1")
        for path, text in case.files.items():
            place = user.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        user.writes(SPEC.format(forge=self.channel.url if case.from_folder else self.server.channel_url("forge")))
        return user

    def lock(self, name: str, case: Case) -> dict[str, bytes]:
        user = self.user(name, case)
        environ = {key: value.format(folder=user.folder) for key, value in case.environ.items()}
        for words in case.runs:
            for file in user.lock.iterdir() if user.lock.exists() else ():
                file.unlink()
            if environ or case.umask >= 0:
                ran = user.runs_anew("lock", user.spec.name, *words, environ=environ, umask=case.umask)
            else:
                ran = user.locks(*words)
            assert ran.status == 0, ran.stderr
        return user.files()


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Same]:
    root = tmp_path_factory.mktemp("same")
    channel = write(root / "channels" / "forge", conda_packages.forge(GOLDEN_PYTHON))
    wheels = [
        *ecosystem.diamond(),
        release("client", "1.0.0", requires=["corp-tools-py>=3", "numpy"]),
        release("client", "2.0.0", "2025-01-01", requires=["corp-tools-py>=4"]),
        release("report", "1.0.0", requires=["transformers", "torch>=2.8"]),
    ]
    with CondaServer({"forge": channel}) as server, IndexServer(wheels) as index:
        yield Same(root, channel, server, index)


@pytest.fixture(scope="module")
def plainest(same: Same) -> dict[str, bytes]:
    return same.lock("plainest", Case())


@pytest.fixture(scope="module")
def locked(request: pytest.FixtureRequest, same: Same) -> Iterator[Callable[[str], dict[str, bytes]]]:
    with ahead(request, lambda case: same.lock(case, CASES[case])) as results:
        yield results


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if not case.from_folder])
def test_the_same_bytes(plainest: dict[str, bytes], locked: Callable[[str], dict[str, bytes]], case: str) -> None:
    assert locked(case) == plainest


def test_the_plainest_is_what_it_should_be(plainest: dict[str, bytes], same: Same) -> None:
    assert set(plainest) == {
        "conda-linux-64.lock",
        "conda-linux-aarch64.lock",
        "conda-lock.yml",
        "envspec.lock",
        "requirements.linux-64.txt",
        "requirements.linux-aarch64.txt",
    }
    lock = plainest["envspec.lock"].decode()
    assert 'provides = [{ name = "corp-tools-py", version = "3.1" }]' in lock
    assert 'name = "client"\nversion = "1.0.0"' in lock
    assert "needs corp-tools-py>=4, and corp-tools-py 3.1 comes from" in lock
    assert str(same.root) not in lock
    assert "evil" not in lock
    explicit = plainest["conda-linux-64.lock"].decode()
    assert f"{same.server.channel_url('forge')}/noarch/corp-toolkit-3.1-pyhd8ed1ab_0.conda#" in explicit
    assert same.channel.find("corp-toolkit").sha256 in explicit


@pytest.mark.parametrize("case", ["channel-in-a-folder"])
def test_from_a_folder_only_the_address_differs(
    plainest: dict[str, bytes], locked: Callable[[str], dict[str, bytes]], same: Same, case: str
) -> None:
    ours = without_address(plainest, same.server.channel_url("forge"))
    assert without_address(locked(case), same.channel.url) == ours


def without_address(files: Mapping[str, bytes], address: str) -> dict[str, str]:
    """The files without the channel's address, and without the hashes of what has it: of the spec, and of the files."""
    texts = {name: data.decode() for name, data in files.items()}
    seal, _, rest = texts["envspec.lock"].partition("\n")
    assert "sha256:" in seal
    texts["envspec.lock"] = rest
    shown = {address: "<forge>", parse_toml(rest)["input_sha256"]: "<spec>"}
    shown |= {hashlib.sha256(data).hexdigest(): f"<{name}>" for name, data in files.items()}
    for hidden, instead in shown.items():
        texts = {name: text.replace(hidden, instead) for name, text in texts.items()}
    return texts


def test_conda_lock_writes_the_same(plainest: dict[str, bytes], same: Same) -> None:
    """The real conda-lock, on a hostile machine, through a `conda` on PATH that solves with the same solver."""
    program = shim(same.root / "conda-lock" / "bin")
    path = {"PATH": f"{program.parent}{os.pathsep}{os.defpath}"}
    assert same.lock("conda-lock", Case({**HOSTILE, **path}, FILES, (("--resolver", "conda-lock"),))) == plainest
    assert sorted(call["environ"]["CONDA_SUBDIR"] for call in calls(program) if "create" in call["words"]) == [
        "linux-64",
        "linux-aarch64",
    ]


def test_conda_lock_without_an_executable(same: Same) -> None:
    user = same.user("no-executable", Case())
    error = refused(user.locks("--resolver", "conda-lock"), 2)
    assert "conda-lock: no conda, mamba or micromamba on PATH" in error
    assert user.files() == {}
