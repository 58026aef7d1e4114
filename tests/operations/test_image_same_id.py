"""One lock, one image ID: whoever builds it, where, when, how often, and whatever surrounds them."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from envspec.models import Lock, Python
from tests.conftest import Serve
from tests.support import preloaded
from tests.support.builders.environments import RUNNING, pin
from tests.support.builders.images import (
    X86,
    ImageServers,
    ImageUser,
    image_lock,
    image_servers,
    keep_base,
    make_base,
    small_wheel,
)
from tests.support.builders.projects import File
from tests.support.builders.wheels import Method, padding, wheel
from tests.support.machines import interpreters

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

ROOT: Final = Path(__file__).parents[2]
SERIES: Final = ("3.10", "3.11", "3.12", "3.13")
BIG: Final = wheel("big", "1.0", files={"big/__init__.py": b"x = 1\n", "big/data.bin": padding(2_200_000)})
WHEELS: Final = (
    BIG,
    small_wheel("alpha"),
    small_wheel("beta-kit"),
    small_wheel("gamma", method=Method.DEFLATED),
    small_wheel("delta"),
)


@dataclass
class Scene(ImageServers):
    """Where everybody here gets the same from. ids: of the lock's image with bytecode, and without."""

    lock: Lock
    ids: tuple[str, str] = ("", "")

    def new_user(self, folder: Path, **environ: str) -> tuple[ImageUser, Path]:
        """A builder with nothing but the lock."""
        folder.mkdir(parents=True, exist_ok=True)
        builder = self.user_in(folder, **environ)
        return builder, builder.writes_lock(self.lock)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with image_servers(*WHEELS) as servers:
        made = Scene(**vars(servers), lock=servers.lock_of(*WHEELS))
        builder, folder = made.new_user(tmp_path_factory.mktemp("first"))
        made.ids = (builder.id_of(folder), builder.id_of(folder, "--no-compile-bytecode"))
        yield made


def both(ran: Callable[..., str], *words: str) -> tuple[str, str]:
    return ran(*words), ran(*words, "--no-compile-bytecode")


def test_bytecode_is_part_of_it(scene: Scene) -> None:
    assert len(set(scene.ids)) == 2


def test_a_cold_a_warm_and_an_incomplete_cache(scene: Scene, tmp_path: Path) -> None:
    builder, lock = scene.new_user(tmp_path / "a folder" / "of another ñame")
    for _ in ("cold", "warm"):
        assert both(builder.id_of, str(lock)) == scene.ids
    shutil.rmtree(builder.cache / "image-known")
    shutil.rmtree(builder.cache / "image-layers")
    nobody = {"ENVSPEC_DEFAULT_INDEX": "http://127.0.0.1:9/", "ENVSPEC_REGISTRY_MIRRORS": "docker.io=127.0.0.1:9"}
    assert builder.id_of(lock, "--offline", **nobody) == scene.ids[0]
    for lost in ("image-known", "image-owners", "archives", "image-layers", "blobs"):
        shutil.rmtree(builder.cache / "image-known", ignore_errors=True)
        shutil.rmtree(builder.cache / lost, ignore_errors=True)
        assert builder.id_of(lock) == scene.ids[0], lost


@pytest.mark.parametrize("jobs", ["1", "8"])
@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_jobs_and_compressions(jobs: str, compression: str, scene: Scene, tmp_path: Path) -> None:
    builder, lock = scene.new_user(tmp_path)
    assert builder.id_of(lock, "--jobs", jobs, "--compression", compression) == scene.ids[0]


#: Python reads these when it starts, so each is a process of its own.
VARIABLES: Final = {
    "time zone": "TZ=Pacific/Kiritimati SOURCE_DATE_EPOCH=12345",
    "locale": "LC_ALL=tr_TR.UTF-8 LANG=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0",
    "python": "PYTHONHASHSEED=4711 PYTHONOPTIMIZE=2 PYTHONNODEBUGRANGES=1 PYTHONPYCACHEPREFIX=/nowhere "
    "PYTHONMALLOC=debug PYTHONWARNINGS=always PYTHONINTMAXSTRDIGITS=640 PYTHONSTARTUP=/nowhere.py "
    "PYTHONBREAKPOINT=nothing.at_all",
    "pip": "PIP_INDEX_URL=http://127.0.0.1:9/ PIP_NO_INDEX=1 PIP_FIND_LINKS=/nowhere PIP_TARGET=/nowhere "
    "PIP_PREFIX=/nowhere PIP_CONSTRAINT=/nowhere PIP_REQUIRE_VIRTUALENV=1 UV_INDEX_URL=http://127.0.0.1:9/ "
    "CONDA_PREFIX=/nowhere VIRTUAL_ENV=/nowhere DOCKER_HOST=tcp://127.0.0.1:9",
}


@pytest.mark.parametrize("variables", VARIABLES.values(), ids=VARIABLES)
def test_neither_variables_nor_umask_matter(variables: str, scene: Scene, tmp_path: Path) -> None:
    builder, lock = scene.new_user(tmp_path)
    environ = dict(each.split("=", 1) for each in variables.split())
    ran = builder.runs_anew("image", "build", lock, environ=environ, umask=0o077)
    assert (ran.status, ran.stdout) == (0, f"{scene.ids[0]}\n"), ran.stderr


def test_push_layout_tar_and_a_mirrored_base(scene: Scene, tmp_path: Path) -> None:
    builder, lock = scene.new_user(tmp_path)
    name = f"{scene.registry.host}/team/outputs:1"
    words = ("--push", name, "--layout", "layout", "--output", "image.tar", "--tag", "team/outputs:1")
    assert builder.id_of(lock, *words) == scene.ids[0]
    pushed = scene.registry.tagged("team/outputs:1")
    assert pushed is not None and pushed["config"]["digest"] == scene.ids[0]
    inside = tmp_path / "layout" / "blobs" / "sha256"
    [entry] = json.loads((tmp_path / "layout" / "index.json").read_bytes())["manifests"]
    assert json.loads((inside / entry["digest"][7:]).read_bytes()) == pushed
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in inside.iterdir())
    with tarfile.open(tmp_path / "image.tar") as archive:
        held = {member.name for member in archive}
        assert held >= {f"blobs/sha256/{path.name}" for path in inside.iterdir()}
        [row] = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert row["Config"] == f"blobs/sha256/{scene.ids[0][7:]}" and row["RepoTags"] == ["team/outputs:1"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    # The same through another name of the base's registry: the image tells of the original.
    assert builder.image("mirror", lock, f"{scene.registry.host}/kept/cuda:1").status == 0
    shutil.rmtree(builder.cache)
    mirrored = {"ENVSPEC_REGISTRY_MIRRORS": "", "NO_PROXY": "127.0.0.1"}
    mirror = ("--mirror", f"docker.io={scene.registry.host}")
    assert builder.id_of(lock, *mirror, **mirrored) == scene.ids[0]


def test_two_outputs_of_the_same_tar_are_the_same_bytes(scene: Scene, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        builder, lock = scene.new_user(tmp_path / name)
        assert builder.id_of(lock, "--output", "image.tar", "--jobs", "1" if name == "one" else "8") == scene.ids[0]
        made.append((tmp_path / name / "image.tar").read_bytes())
    assert made[0] == made[1]


@cache
def pythons() -> dict[str, Path]:
    """Interpreters by their exact version: the running one, pyenv's, and those on PATH."""
    found = {RUNNING: Path(sys.executable)}
    for series in SERIES:
        found = interpreters(series) | found
    return found


# Builders on other Pythons

#: Exact versions of the target -> the image's ID with bytecode and without. A new form of locks or layers makes new
#: ones: those that the failing test tells are then written there.
GOLDEN: Final[dict[str, dict[str, str]]] = json.loads((ROOT / "tests/operations/golden/image_ids.json").read_bytes())
#: All stored: how zlib packs is not the same on every machine, and what a lock tells of is the packed file.
STORED: Final = tuple(small_wheel(each.name) for each in WHEELS[1:])


@pytest.fixture
def fixed(serve: Serve, tmp_path: Path) -> Callable[[str], tuple[ImageUser, Path]]:
    """A builder, and a lock whose every byte is written down here."""

    def made(python: str) -> tuple[ImageUser, Path]:
        base = make_base()
        pins = [pin(each) for each in STORED]
        lock = image_lock({X86: pins}, base.named(), python=Python(python, "system"), name="golden")
        builder = ImageUser(tmp_path / python, serve([File(each) for each in STORED]).url)
        keep_base(builder.cache, base)
        return builder, builder.writes_lock(lock)

    return made


@pytest.mark.parametrize("version", GOLDEN)
def test_the_id_that_every_python_gave_so_far(version: str, fixed: Callable[[str], tuple[ImageUser, Path]]) -> None:
    """The tests run on CPython 3.10 to 3.13, and each has to come to these."""
    builder, lock = fixed(version)
    assert builder.id_of(lock, "--no-compile-bytecode") == GOLDEN[version]["no-pyc"]
    if version not in pythons():
        pytest.skip(f"no Python {version} is at hand to compile with; without bytecode the ID is right")
    assert builder.id_of(lock, "--python", pythons()[version]) == GOLDEN[version]["pyc"]
