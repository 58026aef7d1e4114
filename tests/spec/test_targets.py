"""Tags and markers of a target, held against what packaging says of the machine that runs this."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone

import pytest
from packaging import tags
from packaging.markers import default_environment
from packaging.utils import parse_wheel_filename

from envspec.facts import load_facts
from envspec.models import Platform, Python, Target
from envspec.spec import parse_spec
from envspec.spec.targets import MACOS, marker_environment, targets_of, wheel_tags

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
HERE = {("Linux", "x86_64"): Platform.LINUX_64, ("Linux", "aarch64"): Platform.LINUX_AARCH64}.get(
    (platform.system(), platform.machine())
)
needs_linux = pytest.mark.skipif(HERE is None, reason="compares with this machine, which is no Linux that is a target")


def target(place: Platform = Platform.LINUX_64, python: str = "3.11.7", glibc: tuple[int, int] = (2, 35)) -> Target:
    source = Python(python, "spec")
    if place.is_linux:
        return Target(place, source, glibc)
    return Target(place, source, macos=MACOS if place is Platform.OSX_ARM64 else None)


def this_machine() -> Target:
    assert HERE is not None
    major, minor = os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")[:2]  # type: ignore[union-attr]
    return target(HERE, platform.python_version(), (int(major), int(minor)))


@needs_linux
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="the targets are CPython's")
def test_tags_are_those_of_this_machine_without_bare_linux() -> None:
    """Those come last here: another wheel of the release says which glibc it needs."""
    own = [tag for tag in tags.sys_tags() if not tag.platform.startswith(("linux_", "musllinux"))]
    ours = wheel_tags(this_machine())
    assert [tag for tag in ours if not tag.platform.startswith("linux_")] == own
    assert len(ours) > len(own)


@needs_linux
def test_markers_are_those_of_this_machine_without_its_kernel() -> None:
    own = {**default_environment(), "platform_release": "", "platform_version": ""}
    assert marker_environment(this_machine()) == own


TORCH = "torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl"


X86, ARM, MAC, WINDOWS = Platform.LINUX_64, Platform.LINUX_AARCH64, Platform.OSX_ARM64, Platform.WIN_64


@pytest.mark.parametrize(
    ("wheel", "place", "python", "glibc", "fits"),
    [
        (TORCH, X86, "3.11.7", (2, 28), True),
        (TORCH, X86, "3.11.7", (2, 27), False),
        (TORCH, X86, "3.12.3", (2, 31), False),
        ("x-1-cp311-cp311-linux_x86_64.whl", X86, "3.11.7", (2, 39), True),
        ("x-1-cp311-cp311-musllinux_1_2_x86_64.whl", X86, "3.11.7", (2, 39), False),
        ("x-1-cp38-abi3-manylinux2014_x86_64.whl", X86, "3.14.0", (2, 17), True),
        ("x-1-py2.py3-none-manylinux1_x86_64.whl", X86, "3.11.7", (2, 5), True),
        ("x-1-py3-none-manylinux2010_aarch64.whl", ARM, "3.11.7", (2, 39), False),
        ("x-1-py3-none-any.whl", WINDOWS, "3.13.1", (0, 0), True),
        ("x-1-cp311-cp311-win_amd64.whl", WINDOWS, "3.11.7", (0, 0), True),
        ("x-1-cp311-cp311-win32.whl", WINDOWS, "3.11.7", (0, 0), False),
        ("x-1-cp311-cp311-macosx_14_0_arm64.whl", MAC, "3.11.7", (0, 0), True),
        ("x-1-cp311-cp311-macosx_10_9_universal2.whl", MAC, "3.11.7", (0, 0), True),
        ("x-1-cp311-cp311-macosx_15_0_arm64.whl", MAC, "3.11.7", (0, 0), False),
        ("x-1-cp313-cp313t-manylinux_2_28_x86_64.whl", X86, "3.13.1", (2, 39), False),
    ],
)
def test_which_wheels_load(wheel: str, place: Platform, python: str, glibc: tuple[int, int], fits: bool) -> None:
    tagged = parse_wheel_filename(wheel)[3]
    assert bool(tagged & set(wheel_tags(target(place, python, glibc)))) is fits


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        (X86, ("posix", "linux", "Linux", "x86_64")),
        (ARM, ("posix", "linux", "Linux", "aarch64")),
        (MAC, ("posix", "darwin", "Darwin", "arm64")),
        (WINDOWS, ("nt", "win32", "Windows", "AMD64")),
    ],
)
def test_markers(place: Platform, seen: tuple[str, str, str, str]) -> None:
    found = marker_environment(target(place, "3.10.19"))
    assert tuple(found[key] for key in ("os_name", "sys_platform", "platform_system", "platform_machine")) == seen
    assert (found["python_version"], found["python_full_version"]) == ("3.10", "3.10.19")
    assert found["implementation_version"] == "3.10.19"
    assert set(found) == set(default_environment())


SERIES = '[env]\nname = "x"\npython = "3.11"\nplatforms = ["linux-64", "linux-aarch64", "osx-arm64", "win-64"]\n'


def test_the_moment_of_a_resolution_bounds_python_where_the_spec_has_none() -> None:
    facts = load_facts()
    builds = facts.standalone_pythons("3.11", Platform.LINUX_64)
    assert len(builds) > 1
    second = datetime.strptime(builds[1].build, "%Y%m%d").replace(tzinfo=timezone.utc)
    free = parse_spec(SERIES, "spec.toml", NOW)
    bound = parse_spec(f"{SERIES}as_of = {NOW:%Y-%m-%dT%H:%M:%SZ}\n", "spec.toml", NOW)
    assert targets_of(free, facts)[0][0].python.version == builds[0].version
    assert targets_of(free, facts, second)[0][0].python.version == builds[1].version
    assert targets_of(bound, facts, second)[0][0].python.version == builds[0].version


def test_every_series_of_the_data_gives_whole_targets() -> None:
    facts = load_facts()
    for series in sorted({".".join(row.version.split(".")[:2]) for row in facts.pythons}):
        spec = parse_spec(SERIES.replace("3.11", series), "spec.toml", NOW)
        targets, decisions = targets_of(spec, facts)
        assert [found.platform for found in targets] == list(spec.env.platforms)
        assert all((found.python.source == "standalone") == bool(found.python.url) for found in targets)
        assert [found.glibc for found in targets] == [(2, 39), (2, 39), None, None]
        assert [found.macos for found in targets] == [None, None, MACOS, None]
        assert all(decision.why and decision.source for decision in decisions)
        assert [decision.what for decision in decisions].count("python") == 4
