"""Every case of tests/diagnostics/golden/image_summary: a lock in, the screen out; and what has no case there."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.diagnostics.image_summary import (
    BuiltSize,
    BuiltSource,
    ImageSummary,
    InstalledBy,
    LeftOutSummary,
    PlatformSummary,
    summarize,
)
from envspec.facts import Facts, load_facts
from envspec.models import GIT, LOCAL, InstalledPackage, Lock, OnTopOf, Platform, Unbuilt
from envspec.report import IMAGE_SUMMARY
from envspec.structs import replace
from tests.support.builders.locks import lock, package, resolution, wheel
from tests.support.cuda_cases import facts_of, lock_of
from tests.support.golden import GoldenCase, read_case, read_cases

GOLDEN = Path(__file__).parent / "golden" / "image_summary"
X86 = Platform.LINUX_64


def summaries(found: Lock, facts: Facts) -> tuple[PlatformSummary, ...]:
    return tuple(summarize(found, platform, facts) for platform in found.linux_platforms)


@pytest.mark.parametrize("case", read_cases(GOLDEN), ids=lambda case: case.name)
def test_case(case: GoldenCase) -> None:
    values = case.table("case.toml")
    found = lock_of(values)
    case.check(IMAGE_SUMMARY.render("text", ImageSummary(found.name, summaries(found, facts_of(values)))))


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ((2_000_000, 1_000_000), "2 (3 MB)"),
        ((2_000_000, None), "2 (2 MB and 1 of unknown size)"),
        ((None, None), "2 (size unknown)"),
    ],
)
def test_sizes_that_a_lock_does_not_have_are_not_nothing(sizes: tuple[int | None, ...], shown: str) -> None:
    packages = []
    for name, size_bytes in zip("ab", sizes, strict=True):
        file = replace(wheel(name, "1.0"), size_bytes=size_bytes)
        packages.append(package(name, "1.0", file=file))
    found = summarize(lock(resolution(X86, *packages)), X86, load_facts())
    text = IMAGE_SUMMARY.render("text", ImageSummary("small", (found,)))
    [line] = [each for each in text.splitlines() if each.startswith("  packages")]
    assert line.split(maxsplit=1)[1] == shown


def test_cuda_of_packages_that_the_base_image_has() -> None:
    below = OnTopOf("nvcr.io/nvidia/pytorch:25.09-py3", torch_build="cu130")
    there = (InstalledPackage("torch", "2.9.0"), InstalledPackage("torchvision", "0.24.0"))
    part = replace(resolution(X86, package("a", "1.0")), on_top_of=below, installed=there)
    found = lock(part)
    text = IMAGE_SUMMARY.render("text", ImageSummary(found.name, summaries(found, load_facts())))
    assert "  CUDA      13.0, of the base image's packages\n" in text
    assert "torch 2.9.0, torchvision 0.24.0: torch is cu130\n" in text


def test_what_is_built_from_source() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    sdist = replace(wheel("a", "1.0"), filename="a-1.0.tar.gz")
    git = replace(wheel("b", "0"), index=GIT, url=f"git+https://example.com/b.git@{commit}#subdirectory=b")
    folder = replace(wheel("c", "2.0"), index=LOCAL, url="packages/c")
    packages = (
        package("a", "1.0", file=sdist),
        replace(package("b", "0", file=git), unbuilt=Unbuilt.LOCKED),
        package("c", "2.0", file=folder),
        package("d", "1.0"),
    )
    found = summarize(lock(resolution(X86, *packages)), X86, load_facts())
    assert found.built == (
        BuiltSource("a", "1.0", "sdist"),
        BuiltSource("b", "", "git 0123456789"),
        BuiltSource("c", "2.0", "folder packages/c"),
    )


def test_a_screen_has_at_most_twenty_lines() -> None:
    """With all of its parts, as long as they get."""
    values = read_case(GOLDEN / "libraries-of-the-system.txtar").table("case.toml")
    found = lock_of(values)
    (platform,) = summaries(found, facts_of(values))
    platform = replace(
        platform,
        built=tuple(BuiltSource(f"package-with-a-name-{number}", "1.0.0", "sdist") for number in range(50)),
        missing_libraries=platform.missing_libraries * 20,
        image=BuiltSize(100, 10**9),
    )
    left_out = tuple(LeftOutSummary(f"--extra part-{number}", number) for number in range(50))
    settings = "[tool.envspec]\npip = 1\nenv = 1\ncuda = 1\nimage = 1"
    by = InstalledBy("docker/Dockerfile", ("--extra part-1", "--group dev"))
    lines = IMAGE_SUMMARY.render("text", ImageSummary(found.name, (platform,), left_out, by, settings)).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100
    shortened = [line.split()[0] for line in lines if line.endswith(" more")]
    assert shortened == ["from", "libraries", "left"]
