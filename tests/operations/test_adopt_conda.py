"""pixi.lock and conda-lock.yml as LOCK of every command, with real archives on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envspec.diagnostics.machine import this_platform
from envspec.lockfile.folder import read_lock
from envspec.models import Lock, Platform
from tests.support.builders import conda_packages
from tests.support.builders.adopted import FILES
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.conda_locks import Conda, Wheel, conda_lock, pixi_lock
from tests.support.builders.environments import RUNNING, SERIES, run_in
from tests.support.builders.images import ImageServers, ImageUser, image_servers, small_wheel
from tests.support.servers.channel import CondaServer
from tests.support.user import refused, succeeded

pytestmark = pytest.mark.skipif(
    this_platform() is not Platform.LINUX_64, reason="the test channel's programs are those of linux-64"
)

ALPHA = small_wheel("alpha", requires=["numpy"])
NAMES = ("tzdata", "python_abi", "python", "numpy", "greet", "pathwise", "libpathwise")
TWO_PYTHONS = "pixi.lock has a Python of conda, and the spec names another one"
GPU = ("cuda-version", "cuda-cudart", "filelock", "pytorch")


@dataclass
class Scene:
    servers: ImageServers
    channel: CondaChannel
    address: str
    folder: Path

    def user(self, name: str = "user") -> ImageUser:
        return self.servers.user_in(self.folder / name)

    def packages(self, *names: str, cuda: str = "") -> list[Conda | Wheel]:
        """The newest archives of these names for linux-64. cuda: in the build of pytorch: `cuda130`."""
        found: list[Conda | Wheel] = []
        for name in names:
            held = [each for each in self.channel.archives if each.name == name]
            held = [each for each in held if each.subdir in ("linux-64", "noarch")]
            if name == "pytorch":
                held = [each for each in held if cuda in each.build]
            found.append(Conda(held[-1], self.address))
        return found

    @property
    def wheel(self) -> Wheel:
        return Wheel("alpha", f"{FILES}{ALPHA.filename}", ALPHA.sha256)

    def writes(self, name: str, text: str, settings: str = "") -> Path:
        """A project with a lock and settings for the base."""
        folder = self.folder / "project"
        folder.mkdir(exist_ok=True)
        base = f'base = "docker.io/nvidia/cuda:1@{self.servers.base.digest}"\nglibc = "2.36"\n'
        (folder / "pyproject.toml").write_text(f"[tool.envspec.image]\n{base}{settings}")
        (folder / name).write_text(text)
        return folder / name

    def pixi(self, *extra: Conda | Wheel, names: Sequence[str] = NAMES) -> Path:
        packages = {"linux-64": [*self.packages(*names), *extra]}
        return self.writes("pixi.lock", pixi_lock({"default": packages}, channels=[self.address]))

    def conda_lock(self, *extra: Conda | Wheel) -> Path:
        packages = {"linux-64": [*self.packages(*NAMES), *extra]}
        return self.writes("conda-lock.yml", conda_lock(packages, [self.address]))


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge())


@pytest.fixture
def scene(tmp_path: Path, channel: CondaChannel) -> Iterator[Scene]:
    with CondaServer({"forge": channel}) as server, image_servers(ALPHA) as servers:
        yield Scene(servers, channel, server.channel_url("forge"), tmp_path)


def adopted(user: ImageUser) -> Lock:
    """The one lock that was made of another tool's."""
    (folder,) = (user.cache / "adopted").iterdir()
    return read_lock(folder / "lock")


@pytest.mark.parametrize("kind", ["pixi", "conda_lock"])
def test_its_packages_are_those_of_the_lock(scene: Scene, kind: str) -> None:
    user, lock = scene.user(), getattr(scene, kind)(scene.wheel)
    ran = succeeded(user.runs("explain", lock, "--format", "json"))
    found = adopted(user)
    (part,) = found.resolutions
    assert {each.name: each.sha256 for each in part.conda} == {
        each.archive.name: each.archive.sha256 for each in scene.packages(*NAMES) if isinstance(each, Conda)
    }
    assert [each.name for each in part.packages] == ["alpha"]
    assert (part.target.python.version, part.target.python.source) == (RUNNING, "conda")
    assert [each.url for each in found.channels] == [scene.address]
    by_name = {each.name: each for each in part.conda}
    assert [str(each.name) for each in by_name["greet"].required_by] == ["spec"]
    assert "greet" in {each.name for each in by_name["python"].required_by}
    assert [each.name for each in by_name["numpy"].provides] == ["numpy"]
    decisions = {each["what"]: each["value"] for each in json.loads(ran.stdout)["decisions"]}
    assert decisions["packages"] == lock.name


@pytest.mark.parametrize("kind", ["pixi", "conda_lock"])
def test_one_image_whoever_builds_it(scene: Scene, kind: str) -> None:
    lock = getattr(scene, kind)(scene.wheel)
    # The channel's Python is a link to one that a confined process does not see.
    plain = "--no-compile-bytecode"
    first = scene.user("first").id_of(lock, plain)
    assert scene.user("second").id_of(lock, plain) == first
    assert getattr(scene, kind)() == lock
    assert scene.user("second").id_of(lock, plain) != first


def test_an_image_is_verified_by_its_lock(scene: Scene) -> None:
    lock, user, layout = scene.pixi(scene.wheel), scene.user(), scene.folder / "layout"
    succeeded(user.image("build", lock, "--no-compile-bytecode", "--layout", layout))
    succeeded(user.image("verify", layout, lock))
    message = user.image("verify", layout, scene.pixi())
    assert message.status == 8
    assert "alpha" in message.stdout


def test_dry_run_reaches_no_channel(scene: Scene) -> None:
    lock, user = scene.pixi(scene.wheel), scene.user()
    ran = succeeded(user.image("build", lock, "--dry-run", "--offline"))
    assert "linux-64" in ran.stdout + ran.stderr


def test_install_and_verify(scene: Scene) -> None:
    user, prefix, lock = scene.user(), scene.folder / "env", scene.pixi(scene.wheel)
    succeeded(user.runs("install", lock, "--prefix", prefix))
    assert run_in(prefix, "greet") == "greet 1.0"
    succeeded(user.runs("verify", lock, "--prefix", prefix))


def test_environments_are_groups(scene: Scene) -> None:
    plain, gpu = scene.packages(*NAMES), scene.packages(*NAMES, *GPU, cuda="cuda130")
    text = pixi_lock({"default": {"linux-64": plain}, "gpu": {"linux-64": gpu}}, channels=[scene.address])
    lock, user = scene.writes("pixi.lock", text), scene.user()
    message = refused(user.runs("fit", lock), 2)
    assert "torch is only in group gpu, and none is selected" in message
    assert "--group gpu" in message
    ran = succeeded(user.runs("explain", lock, "--group", "gpu"))
    assert "left out: --group default" in ran.stderr
    found = adopted(user)
    decisions = {each.what: each.value for each in found.decisions}
    assert decisions["cuda.release"].startswith("13.0")
    assert found.driver is not None
    assert found.driver.minimum == "580"
    # The other environment has a Python and no torch, and that is what its name asks for.
    succeeded(user.runs("fit", lock, "--group", "default"))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('python = "3.11.7"\n', TWO_PYTHONS),
        (
            '\n[tool.envspec.env]\npython_source = "standalone"\n',
            TWO_PYTHONS,
        ),
        ('\n[tool.envspec.env]\npython = "3.9"\n', f"3.9 is not the Python of pixi.lock: {RUNNING} for linux-64"),
    ],
)
def test_another_python_is_refused(scene: Scene, settings: str, problem: str) -> None:
    text = pixi_lock({"default": {"linux-64": scene.packages(*NAMES)}}, channels=[scene.address])
    ran = scene.user().runs("fit", scene.writes("pixi.lock", text, settings))
    assert ran.status == 2, ran.stderr
    assert problem in ran.error
    assert "\n  hint: " in ran.error


def test_the_python_that_is_named(scene: Scene) -> None:
    user, lock = scene.user(), scene.pixi()
    succeeded(user.runs("fit", lock, "--python-version", SERIES))
    assert "3.9 is not the Python of pixi.lock" in refused(user.runs("fit", lock, "--python-version", "3.9"), 2)


def test_packages_without_a_hash_and_twice(scene: Scene) -> None:
    packages = scene.packages("greet")
    assert isinstance(packages[0], Conda)
    bare = Conda(packages[0].archive, scene.address, {"sha256": None})
    other = [each for each in scene.channel.archives if (each.name, each.version) == ("filelock", "3.13.1")]
    lock = scene.pixi(bare, Conda(other[0], scene.address), *scene.packages("filelock"), names=NAMES[:4])
    message = refused(scene.user().runs("fit", lock), 4)
    assert "can't be installed on linux-64 as it is locked" in message
    assert "greet 1.0: it has no SHA-256" in message
    assert "(pyhd8ed1ab_0) is locked beside it" in message


@pytest.mark.parametrize("kind", ["pixi", "conda_lock"])
def test_a_conda_package_for_a_newer_glibc(scene: Scene, kind: str) -> None:
    message = refused(scene.user().runs("fit", getattr(scene, kind)(*scene.packages("modernlib"))), 4)
    assert "and glibc 2.36 as it is locked" in message
    assert "modernlib 2.0 requires __glibc >=2.41" in message


def test_a_lock_without_python_and_of_another_platform(scene: Scene) -> None:
    assert "no conda package `python`" in refused(scene.user().runs("fit", scene.pixi(names=("tzdata",))), 4)
    words = ("--platform", "linux-aarch64")
    message = refused(scene.user().image("build", scene.pixi(), *words), 4)
    assert "can't be installed on linux-aarch64" in message


def spec_beside(lock: Path, scene: Scene, rest: str = "") -> Path:
    path = lock.with_name("spec.toml")
    base = f'base = "docker.io/nvidia/cuda:1@{scene.servers.base.digest}"\nglibc = "2.36"\n'
    path.write_text(
        f'[env]\nname = "small"\npython = "{SERIES}"\n\n[image]\n{base}\n[cuda]\n\n[pip]\nfrom = "{lock.name}"\n{rest}'
    )
    return path


def checked(user: ImageUser, spec: Path, folder: Path) -> Any:
    return user.runs("lock", "--check", spec, "--output", folder)


@pytest.mark.parametrize("kind", ["pixi", "conda_lock"])
def test_lock_copies_the_rows_and_check_compares_them(scene: Scene, kind: str) -> None:
    user, folder = scene.user(), scene.folder / "locked"
    lock = getattr(scene, kind)(scene.wheel)
    spec = spec_beside(lock, scene)
    succeeded(user.runs("lock", spec, "--output", folder))
    written = (folder / "envspec.lock").read_bytes()
    succeeded(checked(user, spec, folder))
    # Another machine compares every row.
    succeeded(checked(scene.user("other"), spec, folder))
    succeeded(user.runs("lock", spec, "--output", folder))
    assert (folder / "envspec.lock").read_bytes() == written
    getattr(scene, kind)()
    assert checked(user, spec, folder).status == 3


def test_check_finds_a_conda_row_that_is_not_the_locks(scene: Scene) -> None:
    """As somebody would who edits the lock and its checksums: nothing but the rows tells."""
    from envspec.operations.lock.complete import lock_files
    from envspec.structs import replace

    user, folder = scene.user(), scene.folder / "locked"
    spec = spec_beside(scene.pixi(scene.wheel), scene)
    succeeded(user.runs("lock", spec, "--output", folder))
    lock = read_lock(folder)
    (part,) = lock.resolutions
    for conda in (
        (replace(part.conda[0], sha256="0" * 64), *part.conda[1:]),
        (replace(part.conda[0], url=part.conda[0].url.replace("forge", "evil")), *part.conda[1:]),
        part.conda[1:],
    ):
        changed = replace(lock, resolutions=(replace(part, conda=conda),))
        for name, content in lock_files(changed).items():
            (folder / name).write_bytes(content)
        assert checked(scene.user("other"), spec, folder).status == 3
