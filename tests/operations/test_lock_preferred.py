"""`prefer`: versions that are locked wherever everything else allows them, and the reason where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.reasons import words
from tests.support.builders import ecosystem
from tests.support.builders.conda_channel import row, write_channel
from tests.support.builders.ecosystem import releases
from tests.support.builders.projects import PLAIN
from tests.support.golden_locks import read_why
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, succeeded

AS_OF = "2026-06-01T00:00:00Z"


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    strict = releases("strict 1.0.0 2024-01-01: base<1.1\nlate 1.0.0\nlate 2.0.0 2026-09-01\nbase 1.0.0\nbase 1.1.0")
    files = [
        *ecosystem.torch_family(),
        *ecosystem.dated(),
        *ecosystem.yanked(),
        *ecosystem.requires_python(),
        *strict,
    ]
    with IndexServer(files) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    return User(tmp_path, index.url)


def preferring(user: User, *dependencies: str, prefer: list[str], as_of: str | None = AS_OF, rest: str = "") -> None:
    user.wants(*dependencies, as_of=as_of, pip=f"prefer = {prefer}\n", rest=rest)


def moved(user: User) -> dict[str, tuple[str, str]]:
    """Name -> the preferred version that is not locked, and why."""
    return {
        name: (package["preferred"]["version"], words(read_why(package["preferred"]["why"])))
        for name, package in user.packages().items()
        if "preferred" in package
    }


def test_a_preferred_version_is_locked_if_everything_allows_it(user: User) -> None:
    preferring(user, "weekly", "modern", prefer=["weekly==1.3.0", "modern==1.0.0", "absent==1"])
    user.locked()
    assert (user.pins(), moved(user)) == ({"weekly": "1.3.0", "modern": "1.0.0"}, {})
    assert user.packages()["weekly"]["rejected"]["why"] == [{"code": "kept", "version": "1.3.0"}]
    assert succeeded(user.runs("lock", "spec.toml", "--verify"))


@pytest.mark.parametrize(
    ("dependencies", "prefer", "version", "why"),
    [
        ("weekly", "weekly==1.0.5", "1.12.0", "index default does not have it"),
        ("late", "late==2.0.0", "1.0.0", "it was uploaded after as_of (2026-09-01)"),
        ("weekly<1.5", "weekly==1.6.0", "1.4.0", "the spec requires weekly<1.5"),
        ("strict base", "base==1.1.0", "1.0.0", "strict needs base<1.1"),
        ("modern", "modern==3.0.0", "2.0.0", "needs Python >=3.13, the target has 3.11.7"),
        (
            "torch==2.9.1 torchaudio",
            "torchaudio==2.11.0",
            "2.9.1",
            "needs torch>=2.11, and the spec requires torch==2.9.1",
        ),
    ],
)
def test_the_lock_has_the_reason_for_what_moves(
    user: User, dependencies: str, prefer: str, version: str, why: str
) -> None:
    preferring(user, *dependencies.split(), prefer=[prefer], rest="[cuda]\n")
    ran = user.locked()
    name, _, preferred = prefer.partition("==")
    assert user.pins()[name] == version
    assert moved(user) == {name: (preferred, why)}
    assert f"{name} {preferred}: {why}" in ran.stderr


def test_a_yanked_release_that_is_preferred_is_locked_with_a_warning(user: User) -> None:
    preferring(user, "pulled", prefer=["pulled==1.1.0"])
    ran = user.locked()
    assert user.pins() == {"pulled": "1.1.0"} or moved(user)["pulled"][1].startswith("it was yanked")
    assert "yanked" in ran.stderr


def test_labels_of_the_torch_family_follow_the_build(user: User) -> None:
    """Installed from PyTorch's index for CUDA 12.8, or from PyPI: the same release either way."""
    prefer = ["torch==2.7.0+cu128", "torchvision==0.22.0+cu128"]
    with IndexServer(ecosystem.pytorch_index("cu128"), PLAIN, prefix="/whl/cu128") as index:
        user.environ["ENVSPEC_PYTORCH_INDEX"] = index.url.replace("cu128", "{variant}")
        preferring(user, "torch", "torchvision", prefer=prefer, rest='[cuda]\nversion = "12.8"\n')
        user.locked()
        assert {"torch": "2.7.0+cu128", "torchvision": "0.22.0+cu128"}.items() <= user.pins().items()
    preferring(user, "torch", "torchvision", prefer=prefer, rest="[cuda]\n")
    user.locked()
    assert ({"torch": "2.7.0", "torchvision": "0.22.0"}.items() <= user.pins().items(), moved(user)) == (True, {})


def test_a_torch_that_another_platform_prefers_binds_no_other(user: User) -> None:
    preferring(user, "torch", prefer=['torch==2.7.0; sys_platform == "darwin"'], rest="[cuda]\n")
    user.locked()
    newest = user.pins()["torch"]
    preferring(user, "torch", prefer=['torch==2.7.0; sys_platform == "linux"'], rest="[cuda]\n")
    user.locked()
    assert (user.pins()["torch"], newest != "2.7.0") == ("2.7.0", True)


@pytest.mark.parametrize("as_of", [AS_OF, None])
def test_upgrades_remove_preferences(user: User, as_of: str | None) -> None:
    preferring(user, "weekly", "modern", prefer=["weekly==1.3.0", "modern==1.0.0"], as_of=as_of)
    user.locked()
    assert user.locked_pins("--upgrade-package", "weekly") == {"weekly": "1.12.0", "modern": "1.0.0"}
    assert "weekly==1.3.0" not in user.spec.read_text() and "modern==1.0.0" in user.spec.read_text()
    assert succeeded(user.runs("lock", "spec.toml", "--check"))
    assert user.locked_pins("--upgrade") == {"weekly": "1.12.0", "modern": "2.0.0"}
    assert "prefer" not in user.spec.read_text()


def test_an_older_lock_goes_before_preferences(user: User) -> None:
    """The first lock takes them; later ones stay as they are."""
    user.wants("weekly", as_of=AS_OF)
    user.locked()
    preferring(user, "weekly", prefer=["weekly==1.3.0"], as_of=None)
    assert user.locked_pins() == {"weekly": "1.12.0"}
    assert moved(user) == {"weekly": ("1.3.0", "the lock that this one follows has another version")}


@pytest.mark.parametrize(
    "text", ["weekly", "weekly>=1", "weekly==1.*", "weekly==1,!=2", "weekly @ https://e.com/a.whl"]
)
def test_a_preference_is_one_version(user: User, text: str) -> None:
    preferring(user, "weekly", prefer=[text])
    assert "spec.toml:9: pip.prefer[0]" in refused(user.locks(), 2)


def test_conda_packages_are_preferred_by_version_and_build(tmp_path: Path, index: IndexServer) -> None:
    day = datetime(2025, 1, 1, tzinfo=timezone.utc)
    rows = [row("python", "3.12.11", "h0_0", built=day)]
    for name in ("alpha", "beta"):
        for version in ("1.0", "2.0"):
            rows += [row(name, version, f"h{n}_{n}", built=day, build_number=n) for n in (0, 1)]
    rows += [row("gamma", "1.0", "h0_0", depends=["beta >=2"], built=day)]
    channel = write_channel(tmp_path / "forge", rows).as_uri()
    user = User(tmp_path, index.url)
    prefer = ["alpha ==1.0 h0_0", "beta ==1.0", "gamma ==0.9", "python ==3.12.11"]
    user.writes(
        f'[env]\nname = "small"\npython = "3.12"\nas_of = {AS_OF}\n[conda]\nchannels = ["{channel}"]\n'
        f'dependencies = ["alpha", "gamma"]\nprefer = {prefer}\n'
    )
    user.locked()
    [resolution] = user.document()["resolution"]
    found = {each["name"]: each for each in resolution["conda"]}
    assert {name: (each["version"], each["build"]) for name, each in found.items() if name != "python"} == {
        "alpha": ("1.0", "h0_0"),
        "beta": ("2.0", "h1_1"),
        "gamma": ("1.0", "h0_0"),
    }
    needed = {"code": "needed-by", "package": "gamma 1.0", "requirement": "beta >=2"}
    assert {name: each["preferred"] for name, each in found.items() if "preferred" in each} == {
        "beta": {"version": "1.0", "why": [needed]},
        "gamma": {"version": "0.9", "why": [{"code": "conda-not-in-channel"}]},
    }
    assert succeeded(user.runs("lock", "spec.toml", "--verify"))
    user.locked("--upgrade-package", "alpha")
    assert '"alpha ==1.0 h0_0"' not in user.spec.read_text()


def test_a_preferred_record_is_one_version(user: User) -> None:
    user.writes('[env]\nname = "small"\npython = "3.12"\n[conda]\ndependencies = ["alpha"]\nprefer = ["alpha >=1"]\n')
    assert "conda.prefer[0]" in refused(user.locks(), 2)
