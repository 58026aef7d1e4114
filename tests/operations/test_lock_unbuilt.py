"""sdists on machines where nothing confines builds: locked by what they state, built later, and compared then."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envspec.lockfile.folder import read_lock, write_folder
from envspec.models import Unbuilt
from envspec.operations.lock.complete import lock_files
from envspec.structs import replace
from tests.operations.test_build_sdists import AS_OF, COMPILES, built_of, index_of, serving, with_files
from tests.support.builders.environments import BASE, RUNNING, run_in
from tests.support.builders.images import ImageUser, keep_base, make_base
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.machines.confinement import confined
from tests.support.servers.index import IndexServer
from tests.support.user import refused, succeeded

#: What setuptools' wheel requires, of which its PKG-INFO of version 1.0 says nothing.
REQUIRES_LIB = """
from pathlib import Path
_info = Path("PKG-INFO").read_text()
Path("PKG-INFO").write_text("Requires-Dist: lib\\n" + _info)
"""


def with_egg_info(requires: str, on_build: str = REQUIRES_LIB) -> Artifact:
    """An sdist as setuptools wrote them for years."""
    source = sdist("own", "1.0.0", metadata_version="1.0", on_build=on_build)
    return with_files(source, {"own.egg-info/requires.txt": requires.encode()})


HEAD = "Metadata-Version: 2.2\nName: own\nVersion: 1.0.0\n"
SOURCES: dict[str, tuple[Callable[[], Artifact], str]] = {
    "static": (lambda: sdist("own", "1.0.0", requires=["lib"], metadata_version="2.2"), "static"),
    "dynamic": (
        lambda: with_files(
            sdist("own", "1.0.0"),
            {"PKG-INFO": f"{HEAD}Dynamic: Requires-Dist\nRequires-Dist: lib\n".encode()},
        ),
        "stated",
    ),
    "PKG-INFO": (lambda: sdist("own", "1.0.0", requires=["lib"], metadata_version="2.1"), "stated"),
    "egg-info": (lambda: with_egg_info("lib\n"), "stated"),
}
#: For tests of what follows from a form, not of how it is read.
one_of_each = pytest.mark.parametrize("source", ["static", "egg-info"], indirect=True)
#: Written by distutils: whether it requires anything is in its setup.py alone.
SILENT = sdist("own", "1.0.0", metadata_version="1.0")


@dataclass(frozen=True, slots=True)
class Machine:
    """A user's machine. nothing: variables with which nothing on it confines builds."""

    user: ImageUser
    nothing: dict[str, str]

    def locks(self, *words: str) -> Any:
        return self.user.locks(*words, **self.nothing)

    def package(self) -> dict[str, Any]:
        return self.user.packages()["own"]


def machine(folder: Path, index: IndexServer, pip: str = "", name: str = "own") -> Machine:
    base = make_base()
    user = ImageUser(folder, index.url)
    keep_base(user.cache, base)
    image = f'[image]\nbase = "docker.io/nvidia/cuda:1@{base.digest}"\nglibc = "2.36"\npython = "{RUNNING}"\n'
    user.wants(name, as_of=AS_OF, python=RUNNING, pip=pip, rest=image)
    (folder / "bin").mkdir()
    return Machine(user, {"PATH": str(folder / "bin"), "DOCKER_HOST": "unix:///nowhere/docker.sock"})


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Iterator[tuple[IndexServer, str]]:
    """An index with the sdist, and how its requirements are known."""
    make, code = SOURCES[request.param]
    with index_of(make()) as index:
        yield index, code


def test_an_sdist_that_states_its_requirements_is_locked_unbuilt(
    tmp_path: Path, source: tuple[IndexServer, str]
) -> None:
    index, code = source
    one = machine(tmp_path, index)
    ran = succeeded(one.locks())
    assert (one.package()["unbuilt"], "built" in one.package()) == (code, False)
    assert one.user.pins() == {"own": "1.0.0", "lib": "1.0.0"}
    assert "locked without a build, since bubblewrap does not work on this machine" in ran.stderr
    assert one.package()["file"]["sha256"] in (one.user.lock / "requirements.linux-64.txt").read_text()
    before = one.user.files()
    assert "nothing changed" in succeeded(one.locks()).stderr
    succeeded(one.locks("--check"))
    assert "verified" in succeeded(one.locks("--verify")).stderr
    assert one.user.files() == before


@confined
def test_an_sdist_by_url_is_locked_as_one_of_an_index(tmp_path: Path) -> None:
    source, words = with_egg_info("lib\n"), ("--prefix", "env", "--python", BASE, "--no-sandbox")
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "any.tar.gz").write_bytes(source.data)
    with index_of() as index, serving(tmp_path / "www") as url:
        one, other = (machine(tmp_path / name, index, name=f"own @ {url}any.tar.gz") for name in ("one", "other"))
        succeeded(one.locks())
        assert one.package()["unbuilt"] == "stated" and one.package()["file"]["sha256"] == source.sha256
        assert one.user.pins() == {"own": "1.0.0", "lib": "1.0.0"}
        for options in ((), ("--check",), ("--verify",), ("--upgrade",)):
            succeeded(one.locks(*options))
        assert f"own @ {url}any.tar.gz" in (one.user.lock / "requirements.linux-64.txt").read_text()
        succeeded(one.user.runs("install", one.user.lock, *words, environ=one.nothing))
        built = succeeded(one.user.runs("image", "build", one.user.lock, "--no-sandbox", environ=one.nothing)).stdout
        shutil.copytree(one.user.lock, other.user.lock)
        succeeded(other.user.locks("--verify"))
        succeeded(other.user.locks())
        assert "built" in other.package() and other.user.id_of(other.user.lock) == built.strip()
        recorded = other.user.files()
        shutil.copytree(other.user.lock, one.user.lock, dirs_exist_ok=True)
        shutil.rmtree(one.user.cache)
        succeeded(one.locks())
        assert one.user.files() == recorded


@pytest.mark.parametrize("source", [SILENT, sdist("other", "1.0.0")], ids=["states nothing", "another project"])
def test_an_sdist_by_url_that_is_not_locked(source: Artifact, tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / source.filename).write_bytes(source.data)
    with index_of() as index, serving(tmp_path / "www") as url:
        one = machine(tmp_path / "one", index, name=f"own @ {url}{source.filename}")
        message = refused(one.locks(), 6 if source is SILENT else 4)
    assert (
        "runs foreign code" if source is SILENT else "the PKG-INFO of its sdist has another name: 'other'"
    ) in message


def test_an_sdist_that_states_nothing_is_refused(tmp_path: Path) -> None:
    with index_of(SILENT) as index:
        one = machine(tmp_path, index)
        message = refused(one.locks(), 6)
    assert "bubblewrap is not installed" in message and "--no-sandbox" in message
    assert "these do not:\n  own 1.0.0 (required by the spec)" in message
    assert not one.user.lock.exists()


def test_what_may_be_compiled_is_left_to_the_image(tmp_path: Path) -> None:
    """As where its build is tried without compilers and needs one: the lock does not say that it needs none."""
    with index_of(sdist("own", "1.0.0", requires=["lib"])) as index:
        one = machine(tmp_path, index, 'build.packages = ["own"]\n')
        succeeded(one.locks())
    assert "unbuilt" not in one.package() and "built" not in one.package()


@one_of_each
@confined
def test_where_builds_are_confined_the_lock_differs_by_the_wheel_alone(
    tmp_path: Path, source: tuple[IndexServer, str]
) -> None:
    index, _ = source
    one, other = machine(tmp_path / "one", index), machine(tmp_path / "other", index)
    succeeded(one.locks())
    succeeded(other.user.locks())
    [first], [second] = (read_lock(each.user.lock).resolutions for each in (one, other))
    [own] = (each for each in second.packages if each.name == "own")
    assert own.built is not None and own.unbuilt is None

    def bare(part: Any) -> list[Any]:
        return [(each.name, each.version, each.file, each.required_by, each.rejected) for each in part.packages]

    assert bare(first) == bare(second)
    # Each machine accepts the lock of the other; the one that confines builds adds the wheel, the other one keeps it.
    shutil.copytree(one.user.lock, other.user.lock, dirs_exist_ok=True)
    succeeded(other.user.locks("--check"))
    assert "verified" in succeeded(other.user.locks("--verify")).stderr
    succeeded(other.user.locks())
    recorded = other.user.files()
    assert built_of(other.user)["sha256"] == own.built.sha256
    shutil.copytree(other.user.lock, one.user.lock, dirs_exist_ok=True)
    for words in (("--check",), ("--verify",), ()):
        succeeded(one.locks(*words))
    assert one.user.files() == recorded


@confined
def test_a_recorded_wheel_that_requires_something_else_than_stated_is_not_kept_by_what_is_stated(
    tmp_path: Path,
) -> None:
    """Its lock followed from the wheel, that of a machine that cannot build it from the sdist: compared again then."""
    with index_of(with_egg_info("lib\n", on_build="")) as index:
        one, other = machine(tmp_path / "one", index), machine(tmp_path / "other", index)
        succeeded(other.user.locks())
        assert other.user.pins() == {"own": "1.0.0"} and "built" in other.package()
        shutil.copytree(other.user.lock, one.user.lock)
        one.user.writes(one.user.spec.read_text().replace('["own"]', '["own>=1"]'))
        succeeded(one.locks())
    assert one.user.pins() == {"own": "1.0.0", "lib": "1.0.0"} and one.package()["unbuilt"] == "stated"


def test_an_image_without_a_base_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    with index_of(with_egg_info("lib\n")) as index:
        one = machine(tmp_path, index)
        one.user.writes(one.user.spec.read_text().partition("[image]")[0])
        succeeded(one.locks())
        message = one.user.runs("image", "build", one.user.lock, environ=one.nothing).error
    assert "base" in message and "foreign code" not in message


@one_of_each
@confined
def test_an_image_is_the_same_wherever_the_sdist_is_built(tmp_path: Path, source: tuple[IndexServer, str]) -> None:
    index, _ = source
    one, other = machine(tmp_path / "one", index), machine(tmp_path / "other", index)
    succeeded(one.locks())
    words = ("image", "build", one.user.lock, "--layout", tmp_path / "layout")
    message = refused(one.user.runs(*words, environ=one.nothing), 6)
    assert "building own 1.0.0 runs foreign code" in message and "--no-sandbox" in message
    assert not (tmp_path / "layout").exists()
    built = succeeded(one.user.runs(*words, "--no-sandbox", environ=one.nothing)).stdout
    assert (tmp_path / "layout" / "index.json").is_file()
    # The lock is as it was: an image does not change it.
    assert "unbuilt" in one.package()
    # Confined, from the lock without the wheel, and from one that has it.
    shutil.copytree(one.user.lock, other.user.lock)
    assert other.user.id_of(other.user.lock) == built.strip()
    succeeded(other.user.locks())
    assert "built" in other.package()
    assert other.user.id_of(other.user.lock) == built.strip()


@one_of_each
def test_an_environment_is_installed_unconfined_if_that_is_allowed(
    tmp_path: Path, source: tuple[IndexServer, str]
) -> None:
    index, _ = source
    one = machine(tmp_path, index)
    succeeded(one.locks())
    words = ("install", one.user.lock, "--prefix", "env", "--python", BASE)
    assert "--no-sandbox" in refused(one.user.runs(*words, environ=one.nothing), 6)
    assert not (tmp_path / "env").exists()
    succeeded(one.user.runs(*words, "--no-sandbox", environ=one.nothing))
    assert run_in(tmp_path / "env", "python", "-c", "import own, lib; print(own.__version__)") == "1.0.0"
    succeeded(one.user.runs("verify", one.user.lock, "--prefix", "env"))


@pytest.mark.parametrize("code", ["static", "stated"])
def test_a_wheel_that_requires_something_else_is_refused_and_locked_by_its_build(tmp_path: Path, code: str) -> None:
    """It requires `helper` instead of what the sdist states."""
    on_build = """
from pathlib import Path
_info = Path("PKG-INFO").read_text().replace("Requires-Dist: lib\\n", "")
Path("PKG-INFO").write_text("Requires-Dist: helper<2\\n" + _info)
"""
    version = {"static": "2.2", "stated": "2.1"}[code]
    lying = sdist("own", "1.0.0", requires=["lib"], metadata_version=version, on_build=on_build)
    with index_of(lying, wheel("helper", "1.5")) as index:
        one = machine(tmp_path, index)
        succeeded(one.locks())
        assert (one.package()["unbuilt"], one.user.pins()) == (code, {"own": "1.0.0", "lib": "1.0.0"})
        install = ("install", one.user.lock, "--prefix", "env", "--python", BASE, "--no-sandbox")
        for words in (install, ("image", "build", one.user.lock, "--no-sandbox")):
            assert refused(one.user.runs(*words, environ=one.nothing), 4) == (
                "own 1.0.0: it was locked on linux-64 by what its sdist states, and its wheel requires something else: "
                "helper<2 (not stated); not lib, which is stated\n"
                "  hint: run `envspec lock SPEC --no-sandbox`, or where bubblewrap works: the lock then follows from "
                "the wheel"
            )
        assert not (tmp_path / "env").exists()
        succeeded(one.locks("--no-sandbox"))
        assert one.user.pins() == {"own": "1.0.0", "helper": "1.5"} and "built" in one.package()
        succeeded(one.user.runs(*install, environ=one.nothing))


def test_spelling_and_markers_are_no_difference(tmp_path: Path) -> None:
    stated = '[:python_version >= "3"]\nLib>=1,<2\n\n[:sys_platform == "win32"]\nabsent\n\n[extra]\nmore\n'
    on_build = REQUIRES_LIB.replace("Requires-Dist: lib", "Requires-Dist: lib (<2,>=1)")
    with index_of(with_egg_info(stated, on_build)) as index:
        one = machine(tmp_path, index)
        succeeded(one.locks())
        words = ("install", one.user.lock, "--prefix", "env", "--python", BASE, "--no-sandbox")
        succeeded(one.user.runs(*words, environ=one.nothing))


def test_a_build_that_needs_a_compiler_is_not_compiled(tmp_path: Path) -> None:
    failing = sdist("own", "1.0.0", on_build=COMPILES + "raise SystemExit('not without it')")
    with index_of(failing) as index:
        one = machine(tmp_path, index)
        succeeded(one.locks())
        words = ("install", one.user.lock, "--prefix", "env", "--python", BASE, "--no-sandbox")
        message = refused(one.user.runs(*words, environ=one.nothing), 4)
        # It is known by now, without another build.
        assert "must be compiled" in refused(one.locks("--upgrade"), 4)
    assert "own 1.0.0: its build needs c++" in message
    assert 'add "own" to [pip.build] packages' in message


def test_reports_say_that_it_is_not_built(tmp_path: Path) -> None:
    with index_of(with_egg_info("lib\n")) as index:
        one = machine(tmp_path, index)
        succeeded(one.locks())
        old = tmp_path / "old"
        shutil.copytree(one.user.lock, old)
        explained = one.user.runs("explain", old, "own").stdout
        assert "not built: requirements as stated in the sdist" in " ".join(explained.split())
        pylock = one.user.runs("export", old, "--format", "pylock")
        assert "wheels that envspec builds: own 1.0.0" in pylock.stderr
        succeeded(one.locks("--no-sandbox"))
        shown = one.user.runs("diff", old, one.user.lock)
    assert shown.status == 10 and "built.own" in shown.stdout and "unbuilt (stated) -> " in shown.stdout


def test_a_mark_beside_a_wheel_is_found(tmp_path: Path) -> None:
    with index_of(with_egg_info("lib\n")) as index:
        one = machine(tmp_path, index)
        succeeded(one.locks("--no-sandbox"))
        lock = read_lock(one.user.lock)
        [part] = lock.resolutions
        packages = tuple(replace(each, unbuilt=Unbuilt.STATED) if each.built else each for each in part.packages)
        write_folder(one.user.lock, lock_files(replace(lock, resolutions=(replace(part, packages=packages),))))
        ran = one.locks("--check")
    assert ran.status == 3 and "it is marked as unbuilt (stated), and has a wheel" in ran.stderr
