"""What the image is to hold beside the packages, where no case of golden/lock_decisions can have it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import pytest

from envspec.base_image.plan import decide_settings
from envspec.errors import UsageError
from envspec.facts import load_facts
from envspec.models import ImageSettings, Platform, Resolution
from envspec.spec import parse_spec
from tests.support.builders.locks import ARM, X86, conda, conda_resolution, package, resolution

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
ENV = '[env]\nname = "small"\npython = "3.12"\nplatforms = ["linux-64"]\n'


def compiler_of(*resolutions: Resolution) -> str:
    return decide_settings(parse_spec(f"{ENV}[conda]\n", "spec.toml", NOW), resolutions, load_facts())[0].compiler


def on_conda(*names: str, triton: bool = True) -> Resolution:
    return conda_resolution(X86, [conda(name, "1.0") for name in (*names, *(["triton"] if triton else []))])


@pytest.mark.parametrize("name", ["gcc", "clang", "c-compiler", "compilers"])
def test_a_compiler_of_condas_is_taken(name: str) -> None:
    assert compiler_of(on_conda(name)) == "conda"


@pytest.mark.parametrize("name", ["gcc_linux-64", "gcc_impl_linux-64", "libgcc"])
def test_one_that_is_on_no_path_is_none(name: str) -> None:
    assert compiler_of(on_conda(name)) == "apt"


def test_a_platform_whose_triton_has_no_compiler_needs_the_systems() -> None:
    arm = conda_resolution(ARM, [conda("triton", "1.0")])
    assert compiler_of(on_conda("gcc"), arm) == "apt"
    assert compiler_of(on_conda("gcc"), conda_resolution(ARM, [conda("numpy", "2.0")])) == "conda"


def test_without_triton_there_is_none() -> None:
    assert compiler_of(on_conda("gcc", triton=False)) == "none"
    assert compiler_of(resolution(X86, package("torch", "2.9.1"))) == "none"


def test_triton_on_top_of_conda_counts() -> None:
    assert compiler_of(conda_resolution(X86, [conda("python", "3.12.11")], package("triton", "3.5.1"))) == "apt"


@pytest.mark.parametrize(
    "resolutions",
    [[conda_resolution(X86, [conda("jupyterlab", "4.5.0")])], [resolution(X86, package("jupyterlab", "4.5.0"))]],
)
def test_a_service_may_come_from_either_half(resolutions: Sequence[Resolution]) -> None:
    spec = parse_spec(f"{ENV}[services]\njupyter = {{}}\n", "spec.toml", NOW)
    image, _ = decide_settings(spec, resolutions, load_facts())
    assert [(service.name, service.port) for service in image.services] == [("jupyter", 8888)]


def test_a_service_that_one_platform_lacks_is_refused_with_its_name() -> None:
    spec = parse_spec(f"{ENV}[services]\ntensorboard = {{}}\n", "spec.toml", NOW)
    has, lacks = resolution(X86, package("tensorboard", "2.20.0")), resolution(ARM, package("torch", "2.9.1"))
    with pytest.raises(UsageError, match="tensorboard, which is not in the lock for linux-aarch64"):
        decide_settings(spec, [has, lacks], load_facts())


def test_what_the_spec_names_with_a_version_is_not_asked_for_twice() -> None:
    spec = parse_spec(f'{ENV}[system]\napt = ["gcc=4:12.2.0-3"]\n[image]\ncompiler = "apt"\n', "spec.toml", NOW)
    image, _ = decide_settings(spec, [resolution(X86)], load_facts())
    assert image.apt == ("g++", "gcc=4:12.2.0-3", "libc6-dev")


def test_off_linux_nothing_is_decided() -> None:
    spec = parse_spec(f'{ENV}[system]\napt = ["git"]\n', "spec.toml", NOW)
    assert decide_settings(spec, [resolution(Platform.OSX_ARM64)], load_facts()) == (ImageSettings(), ())
