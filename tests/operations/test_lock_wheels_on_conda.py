"""PyPI's packages on top of conda's: what conda provides is taken as it is, by both engines, and never installed twice.

Real engines against a real index on loopback; what conda provides is stated, as its solver would have found it. Whole
locks are in golden/: lock_conda_decisions and lock_conda_refusals.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.context import Connectivity, Context
from envspec.errors import NetworkError, NoSolution
from envspec.facts import load_facts
from envspec.io.store import Store
from envspec.models import Dependent, Package, Platform, Python, Rejected, Resolution, Target
from envspec.reasons import reason
from envspec.resolve import resolver
from envspec.resolve.pypi.request import GivenPackages, IndexUrls, target_request
from envspec.resolve.pypi.resolve import resolve_all
from envspec.resolve.pypi.types import TargetRequest
from envspec.resolve.types import CondaProvided, Cutoffs
from envspec.spec import parse_spec
from envspec.structs import replace
from tests.conftest import Serve
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import compiled, release
from tests.support.builders.projects import PLAIN, File, day
from tests.support.builders.wheels import sdist, wheel
from tests.support.servers.faults import Body, Fault, Status
from tests.support.servers.index import IndexServer
from tests.support.user import CUT_OFF, SHORT_BACKOFF, routed

AS_OF = datetime(2026, 6, 1, tzinfo=timezone.utc)
NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)
TARGET = Target(Platform.LINUX_64, Python("3.11.7", "conda"), glibc=(2, 39))


@pytest.fixture(params=["uv", "pip-tools"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def from_conda(
    name: str, version: str, package: str = "", askers: Sequence[str] = ("scipy",)
) -> dict[str, CondaProvided]:
    """What a platform has of conda, to be joined with `|`. askers: who requires it; `spec` is the spec itself."""
    package = package or name
    required_by = tuple(Dependent(asker, f"{package} >=1") for asker in askers)
    return {name: CondaProvided(name, version, package, "conda-forge", required_by)}


def provided(**versions: str) -> dict[str, CondaProvided]:
    return {name: each for key, version in versions.items() for name, each in from_conda(key, version).items()}


class Project:
    """A spec's [pip] and what conda provides, resolved in a folder with a cache of its own."""

    def __init__(self, folder: Path, index: IndexServer, engine: str = "uv") -> None:
        self.folder, self.index, self.engine = folder, index, engine

    def request(
        self, *asked: str, conda: Mapping[str, CondaProvided], pip: str = "", rest: str = "", target: Target = TARGET
    ) -> TargetRequest:
        text = (
            f'[env]\nname = "x"\npython = "{target.python.version}"\nplatforms = ["{target.platform.value}"]\n'
            f'[pip]\ndependencies = {list(asked)}\n{pip}\n{rest}\n[conda]\nchannels = ["conda-forge"]\n'
        )
        spec = parse_spec(text, "spec.toml", NOW)
        urls = IndexUrls(self.index.url, "http://127.0.0.1:9/whl/{variant}")
        return target_request(spec, target, load_facts(), Cutoffs(AS_OF, {}), GivenPackages(provided=conda), urls)

    def resolves(
        self, *asked: str, conda: Mapping[str, CondaProvided], pip: str = "", rest: str = "", offline: bool = False
    ) -> Resolution:
        return self.resolves_all([self.request(*asked, conda=conda, pip=pip, rest=rest)], offline=offline)[0]

    def resolves_all(self, requests: Sequence[TargetRequest], *, offline: bool = False) -> tuple[Resolution, ...]:
        store = Store(self.folder)
        environ = {"PATH": os.defpath, "HOME": str(self.folder), **SHORT_BACKOFF, **CUT_OFF}
        connectivity = Connectivity.OFFLINE if offline else Connectivity.ONLINE
        context = Context(environ, self.folder, self.folder, connectivity, now=lambda: NOW)
        try:
            return asyncio.run(resolve_all(requests, resolver(self.engine), store, context))
        finally:
            store.close()


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
]
LONE = {"lone": "1.0.0"}
TORCH = from_conda("torch", "2.8.0", "pytorch", ["spec"])
FAMILY = [
    *ecosystem.torch_family(),
    release("trainer", "1.0.0", requires=["torch>=2.1"]),
    *compiled("kernels", "0.5.0", requires=["torch==2.8.0"]),
    *compiled("tokens", "1.0.0", requires=['torch; extra == "torch"']),
]


@pytest.fixture(scope="module")
def public() -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.diamond(), *ecosystem.extras(), *BOUND, *FAMILY]) as index:
        yield index


#: requirements, what conda provides, the wheels that are locked
RESOLVED: Mapping[str, tuple[str, Mapping[str, CondaProvided], Mapping[str, str]]] = {
    "required and provided": ("base>=1.2 right", provided(base="2.0.0", left="0.9.0"), {"right": "1.0.0"}),
    "all of it is provided": ("base left", provided(base="2.0.0", left="0.9.0"), {}),
    "a name that no index has": ("corp-tools lone==1.*", from_conda("corp-tools", "3.1"), LONE),
    "versions of every kind": (
        "lone==1.* app base left right>=2",
        provided(base="3.0.0rc1", left="1!1.0", right="2.1.0+cu128", app="1.0.post1.dev2"),
        LONE,
    ),
    "no extra": ("kit", provided(kit="2.0.0"), {}),
    "an extra": ("Kit[FAST]>=2", provided(kit="2.0.0"), {"speedups": "1.0.0"}),
    "an extra of a version that is not published": ("kit[fast] lone==1.*", provided(kit="7.0.0"), LONE),
    "an extra of a name that no index has": ("unheard-of[fast]", from_conda("unheard-of", "1.0"), {}),
}


@pytest.mark.parametrize("case", RESOLVED)
def test_the_wheels_on_top(tmp_path: Path, public: IndexServer, engine: str, case: str) -> None:
    asked, conda, expected = RESOLVED[case]
    assert pins(Project(tmp_path, public, engine).resolves(*asked.split(), conda=conda)) == expected


def test_what_conda_provides_is_no_package(tmp_path: Path, public: IndexServer, engine: str) -> None:
    public.forget()
    found = Project(tmp_path, public, engine).resolves("app", conda=provided(base="1.4.0", numpy="2.2.6"))
    assert pins(found) == {"app": "1.0.0", "left": "1.0.0", "right": "1.0.0"}
    assert package(found, "left").required_by == (Dependent("app", "left"),)
    # The end of each for its RECORD, and no whole one.
    assert not [each for each in public.requests if each.path.endswith(".whl") and not each.range]
    assert not [request for request in public.requests if "numpy" in request.path]


@pytest.mark.parametrize("name", ["lib", "lone"])
def test_what_conda_holds_back(tmp_path: Path, public: IndexServer, engine: str, name: str) -> None:
    """`lone` 1.0.0 needs no numpy at all: nothing that is locked says what excludes 2.0.0."""
    found = Project(tmp_path, public, engine).resolves(name, conda=provided(numpy="2.2.6"))
    assert pins(found) == {name: "1.0.0"}
    numpy = {"package": "numpy", "version": "2.2.6", "channel": "conda-forge"}
    why = reason("needs-of-conda", requirement="numpy<2", **numpy)
    assert package(found, name).rejected == Rejected("2.0.0", (why,))


def test_what_conda_excludes(tmp_path: Path, public: IndexServer, engine: str) -> None:
    """What an engine's words only mention is no reason: nothing requires another `because`."""
    conda = provided(numpy="2.2.6", because="1.0", these="1.0")
    with pytest.raises(NoSolution, match="strict") as caught:
        Project(tmp_path, public, engine).resolves("strict", "lone==1.*", conda=conda)
    assert "numpy 2.2.6 comes from conda-forge (conda's numpy, required by scipy)" in caught.value.message
    assert caught.value.message.count("comes from") == 1


def test_extras_come_from_the_index(tmp_path: Path, public: IndexServer, engine: str) -> None:
    """Conda decides what the package itself needs, not what an extra of it needs."""
    found = Project(tmp_path, public, engine).resolves("kit[all]", conda=provided(kit="2.0.0"))
    assert pins(found) == {"speedups": "1.0.0", "web-lib": "1.0.0"}
    assert package(found, "speedups").required_by == (Dependent("kit", "speedups>=1"),)


def test_an_extra_that_was_published_after_as_of(tmp_path: Path, serve: Serve) -> None:
    kit = File(wheel("kit", "2.0.0", extras={"fast": ["speedups"]}), day("2026-08-01"))
    index = serve([kit, release("speedups", "1.0.0")])
    assert Project(tmp_path, index).resolves("kit[fast]", conda=provided(kit="2.0.0")).packages == ()


@pytest.mark.parametrize(
    ("path", "fault"),
    [("*.metadata", Status(500)), ("/simple/kit/", Status(500)), ("/simple/kit/", Body(b"<html>no index"))],
)
def test_an_index_that_fails_where_extras_are_looked_up(
    tmp_path: Path, serve: Serve, engine: str, path: str, fault: Fault
) -> None:
    index = serve(ecosystem.extras())
    index.fail(path, fault)
    with pytest.raises(NetworkError):
        Project(tmp_path, index, engine).resolves("kit[fast]", conda=provided(kit="2.0.0"))


def test_a_private_name_is_looked_up_at_its_own_index(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    """A name that a spec sends to one index is never sent to another, also if conda provides it."""
    core = File(wheel("corp-core", "1.2.0", extras={"fast": ["speedups"]}))
    private = serve([release("corp-app", "3.0.0", requires=["corp-core[fast]"]), core], PLAIN)
    public.forget()
    rest = routed("corp", private.url, "corp-*", undated="accept")
    found = Project(tmp_path, public).resolves("corp-app", conda=from_conda("corp-core", "1.2.0"), rest=rest)
    assert pins(found) == {"corp-app": "3.0.0", "speedups": "1.0.0"}
    assert not [request for request in public.requests if "corp" in request.path]


def test_answers_are_cached_for_what_conda_provided(tmp_path: Path, public: IndexServer) -> None:
    project = Project(tmp_path, public)
    old = project.resolves("lib", conda=provided(numpy="2.2.6"))
    public.forget()
    assert project.resolves("lib", conda=provided(numpy="2.2.6"), offline=True) == old
    # What requires conda's numpy changes nothing; another version of it does.
    assert project.resolves("lib", conda=from_conda("numpy", "2.2.6", askers=["pandas"]), offline=True) == old
    assert public.requests == []
    assert pins(project.resolves("lib", conda=provided(numpy="1.26.4"))) == {"lib": "2.0.0"}
    assert pins(project.resolves("lib", conda={})) == {"lib": "2.0.0", "numpy": "1.26.4"}


def test_each_platform_has_its_own_conda(tmp_path: Path, public: IndexServer) -> None:
    project = Project(tmp_path, public)
    mac = replace(TARGET, platform=Platform.OSX_ARM64, glibc=None, macos=(14, 0))
    linux = replace(TARGET, platform=Platform.LINUX_64)
    requests = [("2.2.6", linux), (None, mac)]
    found = project.resolves_all(
        [
            project.request("lib", conda=provided(numpy=numpy) if numpy else {}, target=target)
            for numpy, target in requests
        ]
    )
    assert [pins(resolution) for resolution in found] == [{"lib": "1.0.0"}, {"lib": "2.0.0", "numpy": "1.26.4"}]


def test_builds_get_what_is_published_of_what_conda_provides(tmp_path: Path, serve: Serve, engine: str) -> None:
    """A build has an environment of its own, which has nothing of conda."""
    built = sdist("built", "1.0.0", requires=["helper"], build_requires=["helper"], on_build="import helper")
    index = serve([File(built), release("helper", "4.0.0"), release("helper", "5.0.0")])
    project = Project(tmp_path, index, engine)
    found = project.resolves("built", conda=provided(helper="4.0.0"), pip='build.packages = ["built"]')
    assert pins(found) == {"built": "1.0.0"}


@pytest.mark.parametrize("cuda", ["", "[cuda]\n", '[cuda]\nversion = "12.6"\n'])
def test_condas_torch_needs_no_build_of_pypis(tmp_path: Path, public: IndexServer, cuda: str) -> None:
    """PyTorch's own index is not requested either: nobody listens at the address that stands for it."""
    project = Project(tmp_path, public)
    assert pins(project.resolves("trainer", conda=TORCH, rest=cuda)) == {"trainer": "1.0.0"}
    assert project.request("trainer", conda=TORCH, rest=cuda).decisions == ()


def test_wheels_that_are_compiled_beside_pypis_torch(tmp_path: Path, public: IndexServer) -> None:
    project = Project(tmp_path, public)
    found = project.resolves("kernels", "tokens", "trainer", conda=TORCH)
    assert tuple(map(str, found.warnings)) == (
        "kernels 0.5.0 is compiled and needs torch: its wheel was built against PyPI's, and torch 2.8.0 comes from "
        "conda-forge; if it does not load, install kernels from conda as well",
    )
    assert project.resolves("tokens", "numpy", conda=provided(numpy="2.2.0")).warnings == ()
