"""What builds have found stays in a lock as long as its image follows from the same: by the user's own commands."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envspec.errors import UnfitMachine, UsageError
from envspec.lockfile.folder import read_lock, write_folder
from envspec.lockfile.header import LOCK_FILE
from envspec.models import BuiltWheel, ImageId, Lock, Platform, SystemLayer
from envspec.operations.image import record_images
from envspec.operations.lock.complete import lock_files
from envspec.structs import replace
from tests.support.builders import ecosystem
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import sdist
from tests.support.machines.confinement import confined
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, succeeded

BASE = f'[image]\nbase = "example.org/base:1@sha256:{"ab" * 32}"\nglibc = "2.36"\npython = "3.11.7"\n'
APT = '[system]\napt = ["git"]\n'
DOCKERFILE = "[export]\ndockerfile = true\n"
X86, ARM = Platform.LINUX_64, Platform.LINUX_AARCH64


@pytest.fixture
def index() -> Iterator[IndexServer]:
    own = File(sdist("own", "1.0.0"), day("2024-01-01"))
    with IndexServer([*ecosystem.diamond(), ecosystem.release("lib", "1.0.0"), own]) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    user = User(tmp_path, index.url)
    user.wants("lib", as_of="2026-06-01T00:00:00Z", rest=BASE + APT + DOCKERFILE)
    assert user.locks().status == 0
    return user


def digest(of: str) -> str:
    return f"sha256:{hashlib.sha256(of.encode()).hexdigest()}"


def found(lock: Lock, platform: Platform) -> Lock:
    """The lock with an image of that platform, and a system layer."""
    layer = SystemLayer(platform, digest("1"), lock.image.apt, ("git=1:2.43.0-1",), digest("2"), digest("3"), 4)
    image = ImageId(platform, digest(platform.value), True)
    return replace(lock, system=(*lock.system, layer), images=(*lock.images, image))


def recorded(user: User) -> list[str]:
    return [row["id"] for row in user.document().get("image_id", ())]


def record(user: User, identify: Callable[[Lock, Platform], Lock] = found, *, anew: bool = False) -> list[str]:
    """Record the images' IDs; the warnings."""
    warnings: list[str] = []
    record_images(user.lock, identify, warnings.append, anew=anew)
    return warnings


def test_the_id_and_the_versions_of_the_system_layer_are_written(user: User) -> None:
    assert "git=1:2.43.0-1" not in (user.lock / "Dockerfile").read_text()
    assert record(user) == []
    assert recorded(user) == [digest("linux-64")]
    assert "git=1:2.43.0-1" in (user.lock / "Dockerfile").read_text()
    assert user.locks("--check").status == 0


def test_locking_again_keeps_them_and_says_the_same(user: User) -> None:
    record(user)
    before = user.files()
    for words in ((), ("--upgrade",), ("--upgrade-package", "lib"), ("--offline",)):
        (user.lock / "requirements.linux-64.txt").unlink()
        assert user.locks(*words).status == 0
        assert user.files() == before


@pytest.mark.parametrize(
    "rest",
    [BASE, APT + BASE + 'workdir = "/data"\n', APT + BASE + 'env = { A = "1" }\n', APT + BASE.replace("ab", "cd")],
    ids=["apt", "workdir", "env", "base"],
)
def test_they_go_when_anything_is_different(user: User, rest: str) -> None:
    record(user)
    user.wants("lib", as_of="2026-06-01T00:00:00Z", rest=rest)
    assert user.locks().status == 0
    assert recorded(user) == []
    assert "system_layer" not in user.document()


def test_an_upgrade_accepts_another_system_layer(user: User) -> None:
    """Unless it can't be built on this machine."""
    record(user)
    locked: list[tuple[SystemLayer, ...]] = []

    def identify(lock: Lock, platform: Platform) -> Lock:
        locked.append(lock.system)
        raise UnfitMachine("no container engine")

    before = user.files()
    for anew in (False, True):
        with pytest.raises(UnfitMachine):
            record(user, identify, anew=anew)
    assert [len(each) for each in locked] == [1, 0]
    assert user.files() == before


@confined
def test_a_built_wheel_stays_beside_its_sdist(user: User) -> None:
    def wants(*names: str) -> None:
        user.wants(*names, as_of="2026-06-01T00:00:00Z", pip='build.packages = ["own"]\n', rest=BASE)
        assert user.locks().status == 0

    wants("own")
    made = BuiltWheel("own-1.0.0-py3-none-any.whl", "ab" * 32, 1000)
    lock = read_lock(user.lock)
    part = lock.resolutions[0]
    with_wheel = replace(part, packages=tuple(replace(each, built=made) for each in part.packages))
    write_folder(user.lock, lock_files(replace(lock, resolutions=(with_wheel,))))
    wants("own", "lib")
    assert user.packages()["own"]["built"]["sha256"] == made.sha256
    assert "built" not in user.packages()["lib"]


def test_images_that_cannot_be_made_here(user: User) -> None:
    """If there are others, a warning, and what is recorded stays."""

    def nowhere(lock: Lock, platform: Platform) -> Lock:
        raise UnfitMachine("this machine runs no arm64")

    def here(lock: Lock, platform: Platform) -> Lock:
        return nowhere(lock, platform) if platform is ARM else found(lock, platform)

    before = user.files()
    with pytest.raises(UnfitMachine, match="no arm64"):
        record(user, nowhere)
    assert user.files() == before
    user.wants("lib", as_of="2026-06-01T00:00:00Z", rest=BASE, platforms=("linux-64", "linux-aarch64"))
    user.locked()
    assert record(user, here) == ["linux-aarch64: its image's ID is not recorded: this machine runs no arm64"]
    assert recorded(user) == [digest("linux-64")]


def test_a_lock_off_linux_has_no_image(user: User) -> None:
    user.wants("lib", as_of="2026-06-01T00:00:00Z", platforms=("osx-arm64",))
    assert user.locks().status == 0
    assert "Dockerfile" not in user.files()
    with pytest.raises(UsageError, match="no linux platform"):
        record(user)


def test_a_dockerfile_is_there_if_the_spec_says_so_and_another_is_not_overwritten(user: User) -> None:
    spec = user.spec.read_text()
    exported = succeeded(user.runs("export", user.lock, "--format", "dockerfile")).stdout
    assert user.files()["Dockerfile"].decode() == exported
    (user.lock / "Dockerfile").write_text("FROM scratch\n")
    assert "Dockerfile was changed after envspec wrote it" in user.locks("--check").stderr
    user.wants("lib", as_of="2026-06-01T00:00:00Z", rest=DOCKERFILE)
    assert "[export] dockerfile: small has no base image" in refused(user.locks(), 2)
    user.wants("lib", as_of="2026-06-01T00:00:00Z", rest=BASE + APT)
    user.locked()
    assert "Dockerfile" not in user.files()
    user.writes(spec)
    (user.lock / LOCK_FILE).unlink()
    (user.lock / "Dockerfile").write_text("FROM scratch\n")
    assert "Dockerfile exists" in refused(user.locks(), 2)
    assert (user.lock / "Dockerfile").read_text() == "FROM scratch\n"


def test_check_makes_no_images(user: User) -> None:
    assert "--image and --check exclude each other" in refused(user.locks("--check", "--image"), 2)
