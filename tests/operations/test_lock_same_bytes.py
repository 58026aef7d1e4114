"""One spec, one lock, byte for byte: whatever the machine is set to, wherever it stands, and whoever resolves it.

Every case locks the same spec in a folder, a home and a cache of its own, and is compared with the plainest run.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support.ahead import ahead
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import compiled, release
from tests.support.builders.projects import MIRROR, Dialect, File, Hrefs, MetadataFiles, Pages, Ranges, Sizes, day
from tests.support.builders.wheels import sdist, wheel
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.user import User, refused, routed

AS_OF: Final = "2026-03-01T00:00:00Z"
PYTHON: Final = platform.python_version()
EVIL: Final = "http://127.0.0.1:9/simple/"


def public() -> list[File]:
    return [
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
    ]


ASKED: Final = ("app", "kit[all]", "portable", "pulled", "steady", "rebuilt", "weekly<1.9", "native<1.1", "corp-app")

#: A wheel that a hostile configuration points at: newer than all that the index has.
TRAP: Final = wheel("app", "9.9.9")

HOSTILE: Final[Mapping[str, str]] = {
    "PIP_INDEX_URL": EVIL,
    "PIP_EXTRA_INDEX_URL": EVIL,
    "PIP_FIND_LINKS": "{folder}/trap",
    "PIP_PRE": "1",
    "PIP_NO_BINARY": ":all:",
    "PIP_CONSTRAINT": "{folder}/constraints.txt",
    "PIP_REQUIRE_HASHES": "1",
    "PIP_NO_INDEX": "1",
    "PIP_PROXY": EVIL,
    "PIP_UPLOADED_PRIOR_TO": "2020-01-01",
    "PIP_TOOLS_CACHE_DIR": "/nowhere",
    "CUSTOM_COMPILE_COMMAND": "make locks",
    "UV_INDEX_URL": EVIL,
    "UV_DEFAULT_INDEX": EVIL,
    "UV_INDEX": EVIL,
    "UV_EXTRA_INDEX_URL": EVIL,
    "UV_FIND_LINKS": "{folder}/trap",
    "UV_PRERELEASE": "allow",
    "UV_RESOLUTION": "lowest",
    "UV_EXCLUDE_NEWER": "2020-01-01T00:00:00Z",
    "UV_CONSTRAINT": "{folder}/constraints.txt",
    "UV_OVERRIDE": "{folder}/constraints.txt",
    "UV_OFFLINE": "1",
    "UV_NO_BINARY": "1",
    "UV_PYTHON": "2.7",
    "UV_PYTHON_PLATFORM": "windows",
    "UV_CACHE_DIR": "/nowhere",
    "UV_CONFIG_FILE": "{folder}/uv.toml",
    "UV_CUSTOM_COMPILE_COMMAND": "make locks",
    "UV_SYSTEM_PYTHON": "1",
    "VIRTUAL_ENV": "/nowhere",
    "CONDA_PREFIX": "/nowhere",
    "MACOSX_DEPLOYMENT_TARGET": "10.6",
    "SOURCE_DATE_EPOCH": "1",
    "PYTHONUSERBASE": "/nowhere",
    "NETRC": "{folder}/home/.netrc",
    "XDG_CONFIG_HOME": "{folder}/home/.config",
}

UV_TOML: Final = f'index-url = "{EVIL}"\nprerelease = "allow"\nresolution = "lowest"\nfind-links = ["trap"]\n'
PIP_CONF: Final = f"[global]\nindex-url = {EVIL}\nfind-links = trap\npre = true\nno-index = true\n"
FILES: Final[Mapping[str, str]] = {
    "home/.config/pip/pip.conf": PIP_CONF,
    "home/.pip/pip.conf": PIP_CONF,
    "home/.config/uv/uv.toml": UV_TOML,
    "home/.netrc": "machine 127.0.0.1 login wrong password wrong\n",
    "uv.toml": UV_TOML,
    "pip.conf": PIP_CONF,
    "pyproject.toml": f'[tool.uv]\nindex-url = "{EVIL}"\n[tool.pip-tools]\npre = true\nindex-url = "{EVIL}"\n',
    ".pip-tools.toml": f'[tool.pip-tools]\npre = true\nindex-url = "{EVIL}"\n',
    "constraints.txt": "app==9.9.9\nbase==1.0.0\n",
    "requirements.txt": "app==9.9.9\n",
    ".python-version": "2.7\n",
}


@dataclass(frozen=True)
class Case:
    """How this run differs from the plainest. files: written into the user's folder before.

    Where it differs by what Python reads when it starts, Python is started anew.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    dialect: Dialect = FRIENDLY
    folder: str = "folder"
    umask: int = -1
    runs: int = 1


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
    "west": Case(
        {"TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "4294967295", "PYTHONOPTIMIZE": "2"}
    ),
    "latin-1": Case({"LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0", "TERM": "dumb", "NO_COLOR": "1"}),
    "colours": Case({"TERM": "xterm-256color", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "COLUMNS": "20"}),
    "hostile-variables": Case(HOSTILE, FILES),
    "hostile-files": Case(files=FILES),
    "jobs-1": Case(words=("--jobs", "1")),
    "jobs-8": Case(words=("--jobs", "8")),
    "warm-memory": Case(runs=2),
    "warm-pages": Case(words=("--upgrade",), runs=2),
    "html": Case(dialect=MIRROR),
    "html-with-base": Case(dialect=Dialect(pages=Pages.HTML, hrefs=Hrefs.BASE)),
    "json-without-sizes": Case(dialect=Dialect(pages=Pages.JSON, sizes=Sizes.HIDDEN)),
    "metadata-by-ranges": Case(dialect=Dialect(metadata=MetadataFiles.NONE)),
    "metadata-by-whole-wheels": Case(dialect=Dialect(metadata=MetadataFiles.NONE, ranges=Ranges.IGNORED)),
    "no-compression": Case(dialect=Dialect(hrefs=Hrefs.ABSOLUTE)),
}


class Same:
    """One private index for all cases: its address is in the lock."""

    def __init__(self, root: Path, private: str) -> None:
        self.root = root
        self.private = private

    def lock(self, name: str, case: Case, platforms: tuple[str, ...] = ("linux-64", "win-64")) -> dict[str, bytes]:
        with IndexServer(public(), case.dialect) as index:
            user = User(self.root / name / case.folder, index.url)
            for path, text in case.files.items():
                place = user.folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            trap = user.folder / "trap"
            trap.mkdir()
            (trap / TRAP.filename).write_bytes(TRAP.data)
            (user.home / ".netrc").touch()
            (user.home / ".netrc").chmod(0o600)
            user.wants(
                *ASKED,
                as_of=AS_OF,
                python=PYTHON,
                platforms=platforms,
                rest=routed("corp", self.private, "corp-*"),
            )
            environ = {key: value.format(folder=user.folder) for key, value in case.environ.items()}
            for run in range(case.runs):
                if run:
                    for file in user.lock.iterdir():
                        file.unlink()
                    user.lock.rmdir()
                if environ or case.umask >= 0:
                    ran = user.runs_anew("lock", user.spec.name, *case.words, environ=environ, umask=case.umask)
                else:
                    ran = user.locks(*case.words)
                assert ran.status == 0, ran.stderr
            return user.files()


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Same]:
    with IndexServer(ecosystem.private()) as corp:
        yield Same(tmp_path_factory.mktemp("same"), corp.url)


@pytest.fixture(scope="module")
def plainest(same: Same) -> dict[str, bytes]:
    return same.lock("plainest", Case())


@pytest.fixture(scope="module")
def locked(request: pytest.FixtureRequest, same: Same) -> Iterator[Callable[[str], dict[str, bytes]]]:
    with ahead(request, lambda case: same.lock(case, CASES[case])) as results:
        yield results


@pytest.mark.parametrize("case", CASES)
def test_the_same_bytes(plainest: dict[str, bytes], locked: Callable[[str], dict[str, bytes]], case: str) -> None:
    assert locked(case) == plainest


def test_the_plainest_is_what_it_should_be(plainest: dict[str, bytes], same: Same) -> None:
    assert set(plainest) == {"envspec.lock", "requirements.linux-64.txt", "requirements.win-64.txt"}
    whole = b"".join(plainest.values())
    assert b"9.9.9" not in whole
    assert str(same.root).encode() not in whole
    # The private index's address is in it, that of the default one is not.
    assert whole.count(b"127.0.0.1") == whole.count(same.private.removesuffix("/simple/").encode())


HERE: Final = {("linux", "x86_64"): "linux-64", ("linux", "aarch64"): "linux-aarch64", ("darwin", "arm64"): "osx-arm64"}
machine = HERE.get((sys.platform, platform.machine()))


@pytest.mark.skipif(machine is None, reason="no conda subdir is known for this machine")
@pytest.mark.parametrize("environ", [{}, HOSTILE], ids=["plain", "hostile"])
def test_both_engines_write_the_same(same: Same, environ: Mapping[str, str]) -> None:
    name = "hostile" if environ else "plain"
    uv = same.lock(f"uv-{name}", Case(environ, FILES), (str(machine),))
    other = same.lock(f"pip-tools-{name}", Case(environ, FILES, ("--resolver", "pip-tools")), (str(machine),))
    assert other == uv


def test_pip_tools_is_refused_where_it_can_not_resolve(tmp_path: Path) -> None:
    with IndexServer([release("app", "1.0.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("app", python=PYTHON, platforms=["win-64"])
        assert "pip resolves only for the platform that it runs on" in refused(user.locks("--resolver", "pip-tools"), 2)
        user.wants("app", python="3.10.0", platforms=[machine or "linux-64"])
        error = refused(user.locks("--resolver", "pip-tools"), 2)
        assert "no Python 3.10.0 is on PATH" in error and "--resolver uv" in error
        assert index.requests == []
