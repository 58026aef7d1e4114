"""Without a date in the spec, locked versions stay wherever it allows them, until `--upgrade` moves them."""

from __future__ import annotations

import os
import platform
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement

from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import release, releases
from tests.support.builders.projects import PLAIN, File, day
from tests.support.builders.wheels import wheel
from tests.support.servers.index import IndexServer
from tests.support.user import User, routed, succeeded

#: `low` and others have a newer release than the first lock takes: nothing but that lock keeps them.
FILES: Final = """
low 1.0.0
low 2.0.0 2024-06-01
apart 1.0.0
apart 2.0.0 2024-06-01
capper 1.0.0: low<2
taker 1.0.0: low
hungry 1.0.0: low>=2, apart
"""


def _kit(version: str, uploaded: str) -> File:
    return File(wheel("kit", version, requires=["low"], extras={"fast": ["apart"]}), day(uploaded))


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    kits = [_kit("1.0.0", "2024-01-01"), _kit("2.0.0", "2024-06-01")]
    with IndexServer([*releases(FILES), *kits, *ecosystem.dated(), *ecosystem.torch_family()]) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    return User(tmp_path, index.url)


def assert_settled(user: User) -> None:
    """What another machine makes of a lock is the same, in every byte."""
    files = user.files()
    shutil.rmtree(user.cache)
    assert "moved although" not in user.locked().stderr
    assert user.files() == files


BOUND: Final = ("low<2", "apart<2", "kit<2")
OLD: Final = {"low": "1.0.0", "apart": "1.0.0", "kit": "1.0.0"}
#: What of the spec changes, and what is locked then: all of OLD stays.
EDITS: Final[dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, str]]]] = {
    "bounds loosened": (("low", "apart", "kit"), {}, {}),
    "bounds widened": (("low<3", "apart>=1", "kit!=1.5"), {}, {}),
    "a package added": (("low", "apart", "kit", "taker"), {}, {"taker": "1.0.0"}),
    "an extra added": (("low", "kit[fast]"), {}, {}),
    "a constraint": (("low", "apart", "kit"), {"pip": "constraints = ['low<3']\n"}, {}),
    "a preference": (("low", "apart", "kit"), {"pip": "prefer = ['low==2.0.0']\n"}, {}),
    "an override": (
        ("low", "apart", "kit"),
        {"pip": "overrides = [{ requirement = 'low>=1', reason = 'x' }]\n"},
        {},
    ),
    "another patch of Python": (("low", "apart", "kit"), {"python": "3.11.9"}, {}),
    "a base image": (("low", "apart", "kit"), {"rest": "[cuda]\n"}, {}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_moves_nothing(edit: str, user: User) -> None:
    dependencies, others, added = EDITS[edit]
    assert user.pins_of(*BOUND) == OLD
    user.wants(*dependencies, **others)
    ran = user.locked()
    assert user.pins() == {**OLD, **added}
    assert "moved although" not in ran.stderr
    assert_settled(user)
    verified = succeeded(user.locks("--verify"))
    assert "low 1.0.0 was kept by the lock" in verified.stdout + verified.stderr
    assert user.locked_pins("--upgrade")["low"] == "2.0.0"


def test_a_package_removed_moves_none_that_it_capped(user: User) -> None:
    assert user.pins_of("capper", "taker") == {"capper": "1.0.0", "taker": "1.0.0", "low": "1.0.0"}
    assert user.pins_of("taker") == {"taker": "1.0.0", "low": "1.0.0"}
    rejected = user.packages()["low"]["rejected"]
    assert rejected == {"version": "2.0.0", "why": [{"code": "kept", "version": "1.0.0"}]}


def test_what_has_to_move_moves_and_nothing_else_with_its_reason(user: User) -> None:
    assert user.pins_of(*BOUND) == OLD
    user.wants("low", "apart", "kit", "hungry")
    ran = user.locked()
    assert user.pins() == {**OLD, "low": "2.0.0", "hungry": "1.0.0"}
    assert "moved although the spec allows the locked versions:\n  low 1.0.0 -> 2.0.0: hungry needs low" in ran.stderr
    # What the spec's own lines exclude needs no words.
    user.wants("low", "apart>=2", "kit", "hungry")
    assert "moved although" not in user.locked().stderr
    assert user.pins() == {**OLD, "low": "2.0.0", "apart": "2.0.0", "hungry": "1.0.0"}


def test_a_lock_that_follows_from_spec_and_date_is_that_of_a_first_run(tmp_path: Path, index: IndexServer) -> None:
    """Versions that are locked are no preferences then: the lock is the same in every byte."""
    one, other = User(tmp_path / "one", index.url), User(tmp_path / "other", index.url)
    one.wants("capper", "apart<2")
    one.locked()
    one.wants("capper", "apart<2", "taker")
    one.locked()
    shutil.copytree(one.lock, other.lock)
    other.wants("capper", "apart<2", "taker")
    moment = one.document()["as_of"]
    other.locked()
    assert other.files() == one.files()
    one.wants("capper", "apart<2", "taker", as_of=f"{moment:%Y-%m-%dT%H:%M:%SZ}")
    shutil.rmtree(one.lock)
    one.locked()
    assert [each["package"] for each in one.document()["resolution"]] == [
        each["package"] for each in other.document()["resolution"]
    ]


def test_with_a_date_the_lock_follows_from_the_spec_alone(user: User) -> None:
    as_of = "2025-01-01T00:00:00Z"
    assert user.pins_of("low<2", as_of=as_of) == {"low": "1.0.0"}
    assert user.pins_of("low", as_of=as_of) == {"low": "2.0.0"}


def test_another_age_in_the_spec_moves_the_locks_time_and_its_versions(user: User) -> None:
    assert user.pins_of("low<2", as_of='"7 days ago"') == {"low": "1.0.0"}
    assert user.pins_of("low", as_of='"7 days ago"') == {"low": "1.0.0"}
    assert user.pins_of("low", as_of='"6 days ago"') == {"low": "2.0.0"}


def test_a_platform_that_is_added_gets_the_versions_of_the_others(user: User) -> None:
    assert user.pins_of(*BOUND) == OLD
    user.wants("low", "apart", "kit", platforms=["linux-64", "osx-arm64"])
    user.locked()
    assert (user.pins("linux-64"), user.pins("osx-arm64")) == (OLD, OLD)


def test_variants_keep_their_own_and_the_specs(user: User) -> None:
    variant = "[variants.more.pip]\ndependencies = ['apart{}']\n"
    user.wants("low<2", rest=variant.format("<2"))
    user.locked()
    user.wants("low", rest=variant.format(""))
    user.locked()
    lock = (user.folder / "locks" / "small-more" / "requirements.linux-64.txt").read_text()
    assert "apart==1.0.0" in lock and "low==1.0.0" in lock and user.pins() == {"low": "1.0.0"}


def test_another_index_that_has_the_version(user: User, tmp_path: Path) -> None:
    with IndexServer(releases(FILES), PLAIN) as own:
        assert user.pins_of("low<2") == {"low": "1.0.0"}
        user.wants("low", rest=routed("own", own.url, "low", undated="accept"))
        user.locked()
        assert user.packages()["low"]["file"]["index"] == "own"
        assert user.pins() == {"low": "1.0.0"}


def test_a_release_that_was_yanked_since_stays_with_a_warning(tmp_path: Path) -> None:
    files = releases("low 1.0.0\nlow 1.1.0 2024-06-01\nother 1.0.0")
    with IndexServer(files) as index:
        user = User(tmp_path, index.url)
        assert user.pins_of("low") == {"low": "1.1.0"}
        with IndexServer([files[0], File(files[1].artifact, files[1].uploaded, yanked="broken"), files[2]]) as later:
            user.environ["ENVSPEC_DEFAULT_INDEX"] = later.url
            user.wants("low", "other")
            ran = user.locked()
            assert user.pins() == {"low": "1.1.0", "other": "1.0.0"}
            assert "low 1.1.0 was yanked by its publisher (broken)" in ran.stderr


def test_by_the_other_resolver(user: User) -> None:
    words = ("--resolver", "pip-tools")
    assert user.pins_of(*BOUND, words=words) == OLD
    assert user.pins_of("low", "apart", "kit", "taker", words=words) == {**OLD, "taker": "1.0.0"}
    # And by one after the other.
    assert user.pins_of("low", "apart", "kit") == OLD


FAMILY: Final = {"torch": "2.7.0", "torchvision": "0.22.0"}


def test_the_torch_family_stays_when_gpus_are_added(user: User) -> None:
    """Another build of the same release, from PyTorch's index; and the same back again."""
    with IndexServer(ecosystem.pytorch_index("cu128"), PLAIN, prefix="/whl/cu128") as pytorch:
        user.environ["ENVSPEC_PYTORCH_INDEX"] = pytorch.url.replace("cu128", "{variant}")
        gpus = '[cuda]\nversion = "12.8"\ngpus = ["H100"]\n'
        assert FAMILY.items() <= user.pins_of("torch==2.7.0", "torchvision", rest="[cuda]\n").items()
        of_gpus = user.pins_of("torch", "torchvision", rest=gpus)
        assert {name: f"{version}+cu128" for name, version in FAMILY.items()}.items() <= of_gpus.items()
        assert FAMILY.items() <= user.pins_of("torch", "torchvision", rest="[cuda]\n").items()
        assert user.packages()["torchvision"]["rejected"]["why"] == [
            {"code": "lock-keeps", "requirement": "torchvision==0.22.0"}
        ]
        assert_settled(user)


def test_what_the_familys_coherence_excludes_moves_with_its_reason(user: User) -> None:
    user.wants("torch==2.7.0", "torchaudio", "numpy<2", rest="[cuda]\n")
    user.locked()
    user.wants("torch>2.7.0", "torchaudio", "numpy", rest="[cuda]\n")
    ran = user.locked()
    pins = user.pins()
    assert pins["torch"] == pins["torchaudio"] != "2.7.0" and pins["numpy"] == "1.26.4"
    assert (
        f"\n  torchaudio 2.7.0 -> {pins['torchaudio']}: needs torch==2.7.0, and torch is {pins['torch']}\n"
        in ran.stderr
    )


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="the wheel is for linux-64")
def test_an_extension_for_another_torch_stays_the_same_release(tmp_path: Path) -> None:
    series = f"cp{sys.version_info.major}{sys.version_info.minor}"
    labels = [f"{version}+cu12torch{torch}cxx11abitrue" for version in ("2.8.2", "2.8.3") for torch in ("2.7", "2.8")]
    tag = f"{series}-{series}-linux_x86_64"
    wheels = [wheel("flash-attn", version, requires=["torch"], tag=tag) for version in labels]
    torches = [wheel("torch", version) for version in ("2.7.0", "2.8.0")]
    with IndexServer([File(each, day("2025-09-01")) for each in (*wheels, *torches)]) as index:
        user = User(tmp_path, index.url)
        usual: dict[str, Any] = {"python": platform.python_version(), "rest": "[cuda]\n"}
        first = user.pins_of("flash-attn<2.8.3", "torch<2.8", **usual)
        assert first == {"flash-attn": labels[0], "torch": "2.7.0"}
        assert user.pins_of("flash-attn", "torch", **usual) == first
        assert user.pins_of("flash-attn", "torch>=2.8", **usual) == {"flash-attn": labels[1], "torch": "2.8.0"}
        assert_settled(user)


@pytest.mark.parametrize("seed", range(2))
def test_random_edits_move_only_what_something_excludes(seed: int, tmp_path: Path) -> None:
    """A version that moved is one that a requirement of the new lock excludes."""
    chance = random.Random(seed)
    names = ("one", "two", "three", "four")
    files = [release(name, f"{n}.0.0", f"2024-0{n}-01") for name in names for n in range(1, 5)]
    files += [
        release(f"user-of-{name}-{n}", "1.0.0", requires=[f"{name}<{n}", chance.choice(names)])
        for name in names
        for n in (3, 4, 5)
    ]
    with IndexServer(files) as index:
        user = User(tmp_path, index.url)
        before: dict[str, str] = {}
        for _ in range(6):
            bounds = [f"{name}{chance.choice(('', '<3', '<4', '>=2', '!=4'))}" for name in chance.sample(names, 3)]
            users = chance.sample([file.artifact.name for file in files if file.artifact.name.startswith("user")], 2)
            user.wants(*bounds, *(name.split("-1.0.0")[0].replace("_", "-") for name in users))
            user.locked()
            for name, package in user.packages().items():
                old = before.get(name, package["version"])
                allowed = [Requirement(by["requirement"]).specifier.contains(old) for by in package["required_by"]]
                assert package["version"] == old or not all(allowed), (name, old, package)
            before = user.pins()
            assert_settled(user)


def test_a_python_without_ctypes_locks_too(tmp_path: Path, index: IndexServer) -> None:
    without = tmp_path / "without"
    without.mkdir()
    (without / "ctypes.py").write_text("raise ImportError('built without libffi')\n")
    user = User(tmp_path, index.url)
    search = os.pathsep.join([str(without), user.environ["PYTHONPATH"]])
    for dependency in ("low<2", "low"):
        user.wants(dependency)
        succeeded(user.runs_anew("lock", user.spec, "--upgrade", environ={"PYTHONPATH": search}))
    assert user.pins() == {"low": "2.0.0"}
