"""PyPI's packages on top of conda's: what conda provides is taken as it is, by both engines, and never installed twice.

Real engines against a real index on loopback; what conda provides is stated, as its solver would have found it.
"""

from __future__ import annotations

import asyncio
import io
import os
import platform
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.context import Connectivity, Context
from envspec.errors import EnvspecError, NetworkError, NoSolution
from envspec.facts import load_facts
from envspec.io.store import Store
from envspec.models import Dependent, Package, Platform, Python, Resolution, Target
from envspec.resolve import resolver
from envspec.resolve.pypi.errors import PypiCondaConflict
from envspec.resolve.pypi.request import GivenPackages, IndexUrls, target_request
from envspec.resolve.pypi.resolve import TargetRequest, resolve_all
from envspec.resolve.types import CondaProvided, Cutoffs
from envspec.spec import parse_spec
from tests.conftest import Serve
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import compiled, release
from tests.support.builders.projects import PLAIN, File, day
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.servers.faults import Body, Fault, Status
from tests.support.servers.index import IndexServer
from tests.support.user import CUT_OFF, HASTY

AS_OF = datetime(2026, 6, 1, tzinfo=timezone.utc)
NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)
HERE = {("linux", "x86_64"): Platform.LINUX_64, ("linux", "aarch64"): Platform.LINUX_AARCH64}.get(
    (sys.platform, platform.machine())
)
#: What pip resolves for is the machine that runs it.
TARGET = Target(HERE or Platform.LINUX_64, Python(platform.python_version(), "conda"), glibc=(2, 39))
needs_pip_here = pytest.mark.skipif(HERE is None, reason="pip resolves for its own platform, and this one is no target")


@pytest.fixture(params=["uv", pytest.param("pip-tools", marks=needs_pip_here)])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def from_conda(
    name: str, version: str, package: str = "", askers: Sequence[str] = ("scipy",)
) -> dict[str, CondaProvided]:
    """What a platform has of conda, to be joined with `|`. askers: who asks for it; `spec` is the spec itself."""
    package = package or name
    asked = tuple(Dependent(asker, f"{package} >=1") for asker in askers)
    return {name: CondaProvided(name, version, package, "conda-forge", asked)}


class Project:
    """A spec's [pip] and what conda provides, resolved in a folder with a memory of its own."""

    def __init__(self, folder: Path, index: IndexServer, engine: str = "uv") -> None:
        self.folder = folder
        self.index = index
        self.engine = engine

    def composed(
        self, *asked: str, provided: Mapping[str, CondaProvided], pip: str = "", rest: str = "", target: Target = TARGET
    ) -> TargetRequest:
        text = (
            f'[env]\nname = "x"\npython = "{target.python.version}"\nplatforms = ["{target.platform.value}"]\n'
            f'[pip]\ndependencies = {list(asked)}\n{pip}\n{rest}\n[conda]\nchannels = ["conda-forge"]\n'
        )
        spec = parse_spec(text, "spec.toml", NOW)
        urls = IndexUrls(self.index.url, "http://127.0.0.1:9/whl/{variant}")
        return target_request(spec, target, load_facts(), Cutoffs(AS_OF, {}), GivenPackages(provided=provided), urls)

    def resolves(
        self, *asked: str, provided: Mapping[str, CondaProvided], pip: str = "", rest: str = "", offline: bool = False
    ) -> Resolution:
        return self.answers([self.composed(*asked, provided=provided, pip=pip, rest=rest)], offline=offline)[0]

    def answers(self, questions: Sequence[TargetRequest], *, offline: bool = False) -> tuple[Resolution, ...]:
        store = Store(self.folder)
        environ = {"PATH": os.defpath, "HOME": str(self.folder), **HASTY, **CUT_OFF}
        connectivity = Connectivity.OFFLINE if offline else Connectivity.ONLINE
        context = Context(environ, self.folder, self.folder, connectivity, now=lambda: NOW)
        try:
            return asyncio.run(resolve_all(questions, resolver(self.engine), store, context))
        finally:
            store.close()

    def refuses(
        self, *asked: str, provided: Mapping[str, CondaProvided], pip: str = "", rest: str = ""
    ) -> EnvspecError:
        with pytest.raises(EnvspecError) as caught:
            self.resolves(*asked, provided=provided, pip=pip, rest=rest)
        return caught.value


def pins(resolution: Resolution) -> dict[str, str]:
    return {package.name: package.version for package in resolution.packages}


def package(resolution: Resolution, name: str) -> Package:
    return next(package for package in resolution.packages if package.name == name)


BOUND = [
    release("lib", "1.0.0", "2023-01-01", requires=["numpy"]),
    release("lib", "2.0.0", "2024-01-01", requires=["numpy<2"]),
    release("lone", "1.0.0", "2024-01-01"),
    release("lone", "2.0.0", "2024-06-01", requires=["numpy<2"]),
    release("strict", "1.0.0", "2024-01-01", requires=["numpy<2"]),
    *compiled("numpy", "1.26.4", "2024-02-05"),
    *compiled("numpy", "2.2.0", "2024-12-08"),
]


@pytest.fixture(scope="module")
def public() -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.diamond(), *ecosystem.extras(), *BOUND]) as index:
        yield index


def test_what_conda_provides_is_no_package(tmp_path: Path, public: IndexServer, engine: str) -> None:
    public.forget()
    project = Project(tmp_path, public, engine)
    found = project.resolves("app", provided=from_conda("base", "1.4.0") | from_conda("numpy", "2.2.6"))
    assert pins(found) == {"app": "1.0.0", "left": "1.0.0", "right": "1.0.0"}
    assert package(found, "left").required_by == (Dependent("app", "left"),)
    # The end of each for its RECORD, and no whole one.
    assert not [each for each in public.requests if each.path.endswith(".whl") and not each.range]
    assert not [request for request in public.requests if "numpy" in request.path]


def test_what_is_required_and_provided_is_not_installed_twice(tmp_path: Path, public: IndexServer) -> None:
    project = Project(tmp_path, public)
    provided = from_conda("base", "2.0.0") | from_conda("left", "0.9.0")
    assert pins(project.resolves("base>=1.2", "right", provided=provided)) == {"right": "1.0.0"}
    assert project.resolves("base", "left", provided=provided).packages == ()


def test_a_name_that_no_index_has(tmp_path: Path, public: IndexServer) -> None:
    found = Project(tmp_path, public).resolves("corp-tools", "lone==1.*", provided=from_conda("corp-tools", "3.1"))
    assert pins(found) == {"lone": "1.0.0"}


def test_versions_of_every_kind(tmp_path: Path, public: IndexServer, engine: str) -> None:
    odd = {"base": "3.0.0rc1", "left": "1!1.0", "right": "2.1.0+cu128", "app": "1.0.post1.dev2"}
    provided = {name: provider for each in odd.items() for name, provider in from_conda(*each).items()}
    found = Project(tmp_path, public, engine).resolves(
        "lone==1.*", "app", "base", "left", "right>=2", provided=provided
    )
    assert pins(found) == {"lone": "1.0.0"}


@pytest.mark.parametrize("name", ["lib", "lone"])
def test_what_conda_holds_back(tmp_path: Path, public: IndexServer, engine: str, name: str) -> None:
    """`lone` 1.0.0 needs no numpy at all: nothing that is locked says what excludes 2.0.0."""
    found = Project(tmp_path, public, engine).resolves(name, provided=from_conda("numpy", "2.2.6"))
    assert pins(found) == {name: "1.0.0"}
    newest = package(found, name).rejected
    assert newest is not None
    assert (newest.version, newest.why) == ("2.0.0", "needs numpy<2, and numpy 2.2.6 comes from conda-forge")


def test_what_conda_excludes(tmp_path: Path, public: IndexServer, engine: str) -> None:
    """What an engine's words only mention is no reason: nobody asks for another `because`."""
    provided = from_conda("numpy", "2.2.6") | from_conda("because", "1.0") | from_conda("these", "1.0")
    error = Project(tmp_path, public, engine).refuses("strict", "lone==1.*", provided=provided)
    assert isinstance(error, NoSolution)
    assert "numpy 2.2.6 comes from conda-forge (conda's numpy, required by scipy)" in error.message
    assert "strict" in error.message
    assert error.message.count("comes from") == 1
    assert error.hint == "bound numpy in [conda] dependencies, or put what requires another numpy there as well"


def test_what_only_conda_could_bring_newer(tmp_path: Path, public: IndexServer) -> None:
    error = Project(tmp_path, public).refuses("app", provided=from_conda("base", "2.0.0", "base-lib"))
    assert "base 2.0.0 comes from conda-forge (conda's base-lib, required by scipy)" in error.message
    assert "bound base-lib in [conda]" in (error.hint or "")


def test_extras_come_from_the_index(tmp_path: Path, public: IndexServer, engine: str) -> None:
    """What the package itself needs is conda's affair; what an extra of it needs is not."""
    found = Project(tmp_path, public, engine).resolves("kit[all]", provided=from_conda("kit", "2.0.0"))
    older = {"web-compat": "1.0.0"} if TARGET.python.series == "3.10" else {}
    assert pins(found) == {"speedups": "1.0.0", "web-lib": "1.0.0", **older}
    assert package(found, "speedups").required_by == (Dependent("kit", "speedups>=1"),)


@pytest.mark.parametrize(("asked", "installed"), [("kit", set()), ("Kit[FAST]>=2", {"speedups"})])
def test_only_what_its_extra_needs(tmp_path: Path, public: IndexServer, asked: str, installed: set[str]) -> None:
    found = Project(tmp_path, public).resolves(asked, provided=from_conda("kit", "2.0.0"))
    assert pins(found).keys() == installed


def test_an_extra_of_what_is_not_published(tmp_path: Path, public: IndexServer, engine: str) -> None:
    project = Project(tmp_path, public, engine)
    assert pins(project.resolves("kit[fast]", "lone==1.*", provided=from_conda("kit", "7.0.0"))) == {"lone": "1.0.0"}
    assert project.resolves("unheard-of[fast]", provided=from_conda("unheard-of", "1.0")).packages == ()


def test_an_extra_that_was_published_after_as_of(tmp_path: Path, serve: Serve) -> None:
    kit = File(wheel("kit", "2.0.0", extras={"fast": ["speedups"]}), day("2026-08-01"))
    index = serve([kit, release("speedups", "1.0.0")])
    assert Project(tmp_path, index).resolves("kit[fast]", provided=from_conda("kit", "2.0.0")).packages == ()


def test_an_index_that_fails_where_extras_are_looked_up(tmp_path: Path, serve: Serve, engine: str) -> None:
    index = serve(ecosystem.extras())
    index.fail("*.metadata", Status(500))
    error = Project(tmp_path, index, engine).refuses("kit[fast]", provided=from_conda("kit", "2.0.0"))
    assert isinstance(error, NetworkError)
    assert error.exit_code == 5


@pytest.mark.parametrize("fault", [Status(500), Body(b"<html>no index")])
def test_a_page_that_fails_where_extras_are_looked_up(tmp_path: Path, serve: Serve, fault: Fault) -> None:
    index = serve(ecosystem.extras())
    index.fail(index.page_path("kit"), fault)
    error = Project(tmp_path, index).refuses("kit", provided=from_conda("kit", "2.0.0"))
    assert isinstance(error, NetworkError)


def test_a_private_name_is_looked_up_at_its_own_index(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    """A name that a spec sends to one index is never sent to another, also where conda provides it."""
    private = serve(
        [
            release("corp-app", "3.0.0", requires=["corp-core[fast]"]),
            File(wheel("corp-core", "1.2.0", extras={"fast": ["speedups"]})),
        ],
        PLAIN,
    )
    public.forget()
    routed = f'[[pip.index]]\nname = "corp"\nurl = "{private.url}"\npackages = ["corp-*"]\nundated = "accept"\n'
    found = Project(tmp_path, public).resolves("corp-app", provided=from_conda("corp-core", "1.2.0"), rest=routed)
    assert pins(found) == {"corp-app": "3.0.0", "speedups": "1.0.0"}
    assert not [request for request in public.requests if "corp" in request.path]


def test_answers_are_remembered_for_what_conda_provided(tmp_path: Path, public: IndexServer) -> None:
    project = Project(tmp_path, public)
    old = project.resolves("lib", provided=from_conda("numpy", "2.2.6"))
    public.forget()
    assert project.resolves("lib", provided=from_conda("numpy", "2.2.6"), offline=True) == old
    # Who asks for conda's numpy changes nothing; another version of it does.
    assert project.resolves("lib", provided=from_conda("numpy", "2.2.6", askers=["pandas"]), offline=True) == old
    assert public.requests == []
    assert pins(project.resolves("lib", provided=from_conda("numpy", "1.26.4"))) == {"lib": "2.0.0"}
    assert pins(project.resolves("lib", provided={})) == {"lib": "2.0.0", "numpy": "1.26.4"}


def test_each_platform_has_its_own_conda(tmp_path: Path, public: IndexServer) -> None:
    project = Project(tmp_path, public)
    mac = replace(TARGET, platform=Platform.OSX_ARM64, glibc=None, macos=(14, 0))
    linux = replace(TARGET, platform=Platform.LINUX_64)
    found = project.answers(
        [
            project.composed("lib", provided=from_conda("numpy", "2.2.6"), target=linux),
            project.composed("lib", provided={}, target=mac),
        ]
    )
    assert [pins(resolution) for resolution in found] == [{"lib": "1.0.0"}, {"lib": "2.0.0", "numpy": "1.26.4"}]


def needing(artifact: Artifact, *requires: str) -> Artifact:
    """An sdist whose build imports what it requires."""
    modules = [name.replace("-", "_") for name in requires]
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(artifact.data)) as archive:
        for member in archive.getmembers():
            held = archive.extractfile(member)
            members[member.name] = held.read() if held else b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            data = content.replace(b"requires = []", f"requires = {list(requires)}".encode())
            data = (f"import {', '.join(modules)}\n".encode() if name.endswith("backend.py") else b"") + data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return replace(artifact, data=buffer.getvalue())


def test_builds_get_what_is_published_of_what_conda_provides(tmp_path: Path, serve: Serve, engine: str) -> None:
    """A build has an environment of its own, in which there is nothing of conda."""
    built = needing(sdist("built", "1.0.0", requires=["helper"]), "helper")
    index = serve([File(built), release("helper", "4.0.0"), release("helper", "5.0.0")])
    found = Project(tmp_path, index, engine).resolves(
        "built", provided=from_conda("helper", "4.0.0"), pip='allow_sdist = ["built"]'
    )
    assert pins(found) == {"built": "1.0.0"}


TORCH = from_conda("torch", "2.8.0", "pytorch", ["spec"])
FAMILY = [
    *ecosystem.torch_family(),
    release("timm", "1.0.0", requires=["torch", "torchvision"]),
    release("trainer", "1.0.0", requires=["torch>=2.1"]),
    release("future-trainer", "1.0.0", requires=["torch>=2.9"]),
    *compiled("kernels", "0.5.0", requires=["torch==2.8.0"]),
    *compiled("tokens", "1.0.0", requires=['torch; extra == "torch"']),
]


@pytest.fixture(scope="module")
def family() -> Iterator[IndexServer]:
    with IndexServer(FAMILY) as index:
        yield index


@pytest.mark.parametrize("cuda", ["", "[cuda]\n", '[cuda]\nversion = "12.6"\n'])
def test_condas_torch_needs_no_build_of_pypis(tmp_path: Path, family: IndexServer, cuda: str) -> None:
    """Also PyTorch's own index is left alone: nobody listens at the address that stands for it."""
    project = Project(tmp_path, family)
    assert pins(project.resolves("trainer", provided=TORCH, rest=cuda)) == {"trainer": "1.0.0"}
    assert project.composed("trainer", provided=TORCH, rest=cuda).decisions == ()


def test_members_of_the_family_go_with_condas_torch_only(tmp_path: Path, family: IndexServer, engine: str) -> None:
    project = Project(tmp_path, family, engine)
    error = project.refuses("timm", provided=TORCH)
    assert isinstance(error, PypiCondaConflict)
    assert error.message == (
        "torchvision is required by timm; torch 2.8.0 comes from conda-forge, "
        "but PyPI's torchvision is built for PyPI's torch"
    )
    assert error.hint == "put torchvision into [conda] dependencies"
    both = TORCH | from_conda("torchvision", "0.23.0", askers=["spec"])
    assert pins(project.resolves("timm", provided=both)) == {"timm": "1.0.0"}


def test_a_torch_that_conda_does_not_have(tmp_path: Path, family: IndexServer) -> None:
    error = Project(tmp_path, family).refuses("future-trainer", provided=TORCH)
    assert "torch 2.8.0 comes from conda-forge (conda's pytorch, required by the spec)" in error.message
    assert "bound pytorch in [conda] dependencies" in (error.hint or "")


def test_wheels_that_are_compiled_beside_pypis_torch(tmp_path: Path, family: IndexServer) -> None:
    project = Project(tmp_path, family)
    found = project.resolves("kernels", "tokens", "trainer", provided=TORCH)
    assert found.warnings == (
        "kernels 0.5.0 is compiled and needs torch: its wheel was built against PyPI's, and torch 2.8.0 comes from "
        "conda-forge; if it does not load, take kernels from conda as well",
    )
    assert project.resolves("tokens", "numpy", provided=from_conda("numpy", "2.2.0")).warnings == ()
