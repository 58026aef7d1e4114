"""One spec, one lock, byte for byte: whatever the machine is set to, wherever the folder is, and whoever resolves it.

Every case locks a spec in a folder, a home and a cache of its own, and is compared with the plainest run. The spec
with conda varies with the machine, the one of indexes alone with how the index answers and by which engine.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from envspec.documents import parse_toml
from tests.support.builders import conda_packages, ecosystem
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.builders.ecosystem import compiled, release
from tests.support.builders.projects import MIRROR, Dialect, File, Hrefs, MetadataFiles, Pages, Ranges, Sizes, day
from tests.support.builders.wheels import sdist, wheel
from tests.support.machines.conda_shim import calls, shim
from tests.support.servers.channel import CondaServer
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.user import User, routed

#: client 2 needs a corp-tools-py that conda's corp-toolkit is not; only its archive names that distribution.
PUBLIC: Final = [
    *ecosystem.diamond(),
    *ecosystem.extras(),
    *ecosystem.markers(),
    *ecosystem.yanked(),
    *ecosystem.prereleases(),
    *ecosystem.build_numbers(),
    *ecosystem.dated(),
    *compiled("native", "1.0.0", "2023-01-01"),
    *ecosystem.public_twin()[:2],
    File(sdist("native", "1.1.0"), day("2024-01-01")),
    release("client", "1.0.0", requires=["corp-tools-py>=3", "numpy"]),
    release("client", "2.0.0", "2025-01-01", requires=["corp-tools-py>=4"]),
    File(wheel("report", "1.0.0", requires=["transformers", "torch>=2.8"], extras={"fast": ()}), day("2024-01-01")),
]
ASKED: Final = ("app", "kit[all]", "portable", "pulled", "steady", "rebuilt", "weekly<1.9", "native<1.1", "corp-app")
CONDA: Final = """
[conda]
channels = ["{channel}"]
dependencies = ["transformers", "ffmpeg", "corp-toolkit"]

[conda.platform.linux-64]
dependencies = ["simd"]

"""

EVIL: Final = "http://127.0.0.1:9/simple/"
#: A wheel that a hostile configuration points at: newer than all that the index has.
TRAP: Final = wheel("app", "9.9.9")
HOSTILE: Final[Mapping[str, str]] = {
    **dict.fromkeys(["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_PROXY", "UV_INDEX_URL", "UV_DEFAULT_INDEX"], EVIL),
    **dict.fromkeys(["UV_INDEX", "UV_EXTRA_INDEX_URL", "CONDA_CHANNELS", "CONDA_CHANNEL_ALIAS"], EVIL),
    **dict.fromkeys(["CONDA_DEFAULT_CHANNELS", "MAMBA_CHANNELS"], EVIL),
    **dict.fromkeys(["PIP_TOOLS_CACHE_DIR", "UV_CACHE_DIR", "VIRTUAL_ENV", "PYTHONUSERBASE"], "/nowhere"),
    **dict.fromkeys(["CONDA_PREFIX", "CONDA_PKGS_DIRS", "MAMBA_ROOT_PREFIX", "RATTLER_CACHE_DIR"], "/nowhere"),
    **dict.fromkeys(["PIXI_CACHE_DIR", "PIXI_HOME", "XDG_CACHE_HOME"], "/nowhere"),
    **dict.fromkeys(["PIP_FIND_LINKS", "UV_FIND_LINKS"], "{folder}/trap"),
    **dict.fromkeys(["PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE"], "{folder}/constraints.txt"),
    **dict.fromkeys(["PIP_PRE", "PIP_REQUIRE_HASHES", "PIP_NO_INDEX", "UV_OFFLINE", "UV_NO_BINARY"], "1"),
    **dict.fromkeys(["UV_SYSTEM_PYTHON", "SOURCE_DATE_EPOCH"], "1"),
    **dict.fromkeys(["CUSTOM_COMPILE_COMMAND", "UV_CUSTOM_COMPILE_COMMAND"], "make locks"),
    **dict.fromkeys(["CONDARC", "MAMBARC"], "{folder}/condarc"),
    **dict.fromkeys(["CONDA_SUBDIR", "MAMBA_PLATFORM"], "win-64"),
    "PIP_NO_BINARY": ":all:",
    "PIP_UPLOADED_PRIOR_TO": "2020-01-01",
    "UV_PRERELEASE": "allow",
    "UV_RESOLUTION": "lowest",
    "UV_EXCLUDE_NEWER": "2020-01-01T00:00:00Z",
    "UV_PYTHON": "2.7",
    "UV_PYTHON_PLATFORM": "windows",
    "UV_CONFIG_FILE": "{folder}/uv.toml",
    "MACOSX_DEPLOYMENT_TARGET": "10.6",
    "NETRC": "{folder}/home/.netrc",
    "XDG_CONFIG_HOME": "{folder}/home/.config",
    "CONDA_OVERRIDE_CUDA": "11.0",
    "CONDA_OVERRIDE_GLIBC": "2.5",
    "CONDA_OVERRIDE_LINUX": "2.6",
    "CONDA_OVERRIDE_ARCHSPEC": "x86_64_v3",
    "CONDA_OVERRIDE_OSX": "10.9",
    "CONDA_OVERRIDE_WIN": "10",
    "CONDA_CHANNEL_PRIORITY": "disabled",
    "CONDA_PINNED_PACKAGES": "numpy=1.26.4",
    "CONDA_OFFLINE": "true",
    "CONDA_SOLVER": "classic",
}
UV_TOML: Final = f'index-url = "{EVIL}"\nprerelease = "allow"\nresolution = "lowest"\nfind-links = ["trap"]\n'
PIP_CONF: Final = f"[global]\nindex-url = {EVIL}\nfind-links = trap\npre = true\nno-index = true\n"
PIP_TOOLS: Final = f'[tool.pip-tools]\npre = true\nindex-url = "{EVIL}"\n'
CONDARC: Final = (
    f"channels: [{EVIL}]\nchannel_alias: {EVIL}\noverride_channels_enabled: false\noffline: true\n"
    f"default_channels: [{EVIL}]\ncustom_channels: {{forge: {EVIL}}}\nsubdir: win-64\n"
    "channel_priority: disabled\npinned_packages: [numpy 1.26.4]\nadd_pip_as_python_dependency: true\n"
    "proxy_servers: {http: http://127.0.0.1:9}\n"
)
CONDARCS: Final = ("condarc", ".condarc", "home/.condarc", "home/.mambarc", "home/.conda/.condarc")
PIXI: Final = f'default-channels = ["{EVIL}"]\n'
FILES: Final[Mapping[str, str]] = {
    **dict.fromkeys(["home/.config/pip/pip.conf", "home/.pip/pip.conf", "pip.conf"], PIP_CONF),
    **dict.fromkeys(["home/.config/uv/uv.toml", "uv.toml"], UV_TOML),
    **dict.fromkeys([*CONDARCS, "home/.config/conda/.condarc"], CONDARC),
    **dict.fromkeys(["home/.pixi/config.toml", "home/.config/pixi/config.toml"], PIXI),
    "home/.netrc": "machine 127.0.0.1 login wrong password wrong\n",
    "pyproject.toml": f'[tool.uv]\nindex-url = "{EVIL}"\n{PIP_TOOLS}',
    ".pip-tools.toml": PIP_TOOLS,
    "constraints.txt": "app==9.9.9\nbase==1.0.0\n",
    "requirements.txt": "app==9.9.9\n",
    ".python-version": "2.7\n",
    "conda-lock.yml": "version: 1\n",
    "environment.yml": f"channels: [{EVIL}]\ndependencies: [numpy=1.26.4]\n",
    "pixi.toml": f'[workspace]\nchannels = ["{EVIL}"]\n',
}


@dataclass(frozen=True)
class Case:
    """How this run differs from the plainest. files: written into the user's folder before. runs: the last counts.

    Where it differs by what Python reads when it starts, Python is started anew.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[tuple[str, ...], ...] = ((),)
    dialect: Dialect = FRIENDLY
    folder: str = "folder"
    umask: int = -1


UNDECODED: Final = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "1"}
TURKISH: Final = {"LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "4294967295", "PYTHONOPTIMIZE": "2"}
MACHINES: Final[Mapping[str, Case]] = {
    "another-folder": Case(folder="a folder/mit Ümläuten & $HOME"),
    "umask-077": Case(umask=0o077),
    "east": Case({"TZ": "Pacific/Kiritimati", **UNDECODED}),
    "west": Case({"TZ": "America/St_Johns", **TURKISH}),
    "latin-1": Case({"LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0", "TERM": "dumb", "NO_COLOR": "1"}),
    "colours": Case({"TERM": "xterm-256color", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "COLUMNS": "20"}),
    "hostile-variables": Case(HOSTILE, FILES),
    "hostile-files": Case(files=FILES),
    "jobs-1": Case(runs=(("--jobs", "1"),)),
    "jobs-8": Case(runs=(("--jobs", "8"),)),
    "warm": Case(runs=((), ())),
    "warm-and-upgraded": Case(runs=((), ("--upgrade",))),
    "warm-and-offline": Case(runs=((), ("--offline",))),
}
DIALECTS: Final[Mapping[str, Case]] = {
    "html": Case(dialect=MIRROR),
    "html-with-base": Case(dialect=Dialect(pages=Pages.HTML, hrefs=Hrefs.BASE)),
    "json-without-sizes": Case(dialect=Dialect(pages=Pages.JSON, sizes=Sizes.HIDDEN)),
    "metadata-by-ranges": Case(dialect=Dialect(metadata=MetadataFiles.NONE)),
    "metadata-by-whole-wheels": Case(dialect=Dialect(metadata=MetadataFiles.NONE, ranges=Ranges.IGNORED)),
    "no-compression": Case(dialect=Dialect(hrefs=Hrefs.ABSOLUTE)),
    "warm": Case(runs=((), ())),
}


@dataclass(frozen=True)
class Same:
    """One private index and one channel for all cases: their addresses are in the lock."""

    root: Path
    private: str
    channel: CondaChannel
    server: CondaServer

    def user(self, name: str, case: Case, index: IndexServer) -> User:
        user = User(self.root / name / case.folder, index.url, NO_PROXY="127.0.0.1")
        for path, text in {"home/.netrc": "", **case.files}.items():
            (user.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (user.folder / path).write_text(text, encoding="utf-8")
        (user.home / ".netrc").chmod(0o600)
        (user.folder / "trap").mkdir()
        (user.folder / "trap" / TRAP.filename).write_bytes(TRAP.data)
        return user

    def locked(self, user: User, case: Case) -> dict[str, bytes]:
        environ = {key: value.format(folder=user.folder) for key, value in case.environ.items()}
        for words in case.runs:
            shutil.rmtree(user.lock, ignore_errors=True)
            if environ or case.umask >= 0:
                ran = user.runs_anew("lock", user.spec.name, *words, environ=environ, umask=case.umask)
                assert ran.status == 0, ran.stderr
            else:
                user.locked(*words)
        return user.files()

    def with_conda(self, name: str, case: Case, channel: str = "") -> dict[str, bytes]:
        with IndexServer(PUBLIC, case.dialect) as index:
            user = self.user(name, case, index)
            user.wants(
                *("app", "client", "report[fast]", "corp-app"),
                as_of="2025-12-01T00:00:00Z",
                python="3.12",
                platforms=("linux-64", "linux-aarch64"),
                rest=CONDA.format(channel=channel or self.server.channel_url("forge"))
                + routed("corp", self.private, "corp-app", "corp-core"),
            )
            return self.locked(user, case)

    def of_indexes(self, name: str, case: Case, *platforms: str) -> dict[str, bytes]:
        with IndexServer(PUBLIC, case.dialect) as index:
            user = self.user(name, case, index)
            rest = routed("corp", self.private, "corp-*")
            user.wants(*ASKED, as_of="2026-03-01T00:00:00Z", python="3.11.7", platforms=platforms, rest=rest)
            return self.locked(user, case)


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Same]:
    root = tmp_path_factory.mktemp("same")
    channel = write(root / "channels" / "forge", conda_packages.forge(GOLDEN_PYTHON))
    with CondaServer({"forge": channel}) as server, IndexServer(ecosystem.private()) as corp:
        yield Same(root, corp.url, channel, server)


@pytest.fixture(scope="module")
def plainest(same: Same) -> dict[str, bytes]:
    return same.with_conda("plainest", Case())


@pytest.mark.parametrize("case", MACHINES)
def test_on_every_machine(plainest: dict[str, bytes], same: Same, case: str) -> None:
    assert same.with_conda(case, MACHINES[case]) == plainest


@pytest.fixture(scope="module")
def plainest_of_indexes(same: Same) -> dict[str, bytes]:
    return same.of_indexes("plainest-of-indexes", Case(), "linux-64", "win-64")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_from_every_index(plainest_of_indexes: dict[str, bytes], same: Same, dialect: str) -> None:
    assert same.of_indexes(f"dialect-{dialect}", DIALECTS[dialect], "linux-64", "win-64") == plainest_of_indexes


def test_the_plainest_are_what_they_should_be(
    plainest: dict[str, bytes], plainest_of_indexes: dict[str, bytes], same: Same
) -> None:
    platforms = ("linux-64", "linux-aarch64")
    exports = {name for each in platforms for name in (f"conda-{each}.lock", f"requirements.{each}.txt")}
    assert set(plainest) == {"envspec.lock", "conda-lock.yml", *exports}
    assert set(plainest_of_indexes) == {"envspec.lock", "requirements.linux-64.txt", "requirements.win-64.txt"}
    lock = plainest["envspec.lock"].decode()
    assert 'provides = [{ name = "corp-tools-py", version = "3.1" }]' in lock
    assert 'name = "client"\nversion = "1.0.0"' in lock
    pattern = r'code = "needs-of-conda", channel = ".+?", package = "(.+?)", requirement = "(.+?)", version = "(.+?)"'
    assert set(re.findall(pattern, lock)) == {("corp-tools-py", "corp-tools-py>=4", "3.1")}
    address = f"{same.server.channel_url('forge')}/noarch/corp-toolkit-3.1-pyhd8ed1ab_0.conda#"
    explicit = plainest["conda-linux-64.lock"].decode()
    assert address in explicit and same.channel.find("corp-toolkit").sha256 in explicit
    # The private index's address is in a lock, that of the default one is not.
    whole = b"".join(plainest_of_indexes.values())
    assert whole.count(b"127.0.0.1") == whole.count(same.private.removesuffix("/simple/").encode())
    for text in (whole, b"".join(plainest.values())):
        assert b"9.9.9" not in text and b"127.0.0.1:9/" not in text and str(same.root).encode() not in text


def test_from_a_folder_only_the_address_differs(plainest: dict[str, bytes], same: Same) -> None:
    ours = without_address(plainest, same.server.channel_url("forge"))
    files = same.with_conda("channel-in-a-folder", Case(), same.channel.url)
    assert without_address(files, same.channel.url) == ours


def without_address(files: Mapping[str, bytes], address: str) -> dict[str, str]:
    """The files without the channel's address, and without the hashes of what has it: of the spec, and of the files."""
    texts = {name: data.decode() for name, data in files.items()}
    checksum, _, rest = texts["envspec.lock"].partition("\n")
    assert "sha256:" in checksum
    texts["envspec.lock"] = rest
    shown = {address: "<forge>", parse_toml(rest)["input_sha256"]: "<spec>"}
    shown |= {hashlib.sha256(data).hexdigest(): f"<{name}>" for name, data in files.items()}
    for hidden, instead in shown.items():
        texts = {name: text.replace(hidden, instead) for name, text in texts.items()}
    return texts


def test_conda_lock_writes_the_same(plainest: dict[str, bytes], same: Same) -> None:
    """The real conda-lock, on a hostile machine, through a `conda` on PATH that solves with the same solver."""
    program = shim(same.root / "conda-lock" / "bin")
    environ = {**HOSTILE, "PATH": f"{program.parent}{os.pathsep}{os.defpath}"}
    assert same.with_conda("conda-lock", Case(environ, FILES, (("--resolver", "conda-lock"),))) == plainest
    solved = [call["environ"]["CONDA_SUBDIR"] for call in calls(program) if "create" in call["words"]]
    assert sorted(solved) == ["linux-64", "linux-aarch64"]


@pytest.mark.parametrize("environ", [{}, HOSTILE], ids=["plain", "hostile"])
def test_both_engines_write_the_same(
    plainest_of_indexes: dict[str, bytes], same: Same, environ: Mapping[str, str]
) -> None:
    for name, words in (("uv", ()), ("pip-tools", ("--resolver", "pip-tools"))):
        case = Case(environ, FILES, (words,))
        files = same.of_indexes(f"{name}-{'hostile' if environ else 'plain'}", case, "linux-64", "win-64")
        assert files == plainest_of_indexes
