"""What is said where there is no solution: the spec's own words, the chain, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from envspec.context import Context
from envspec.errors import EnvspecError, UsageError
from envspec.models import CudaVersion, Platform
from envspec.resolve.conda.errors import Chain, ChainStep, CpuFallback, chains
from envspec.resolve.conda.solve import solve_all
from envspec.resolve.conda.solver import Rattler
from envspec.resolve.types import Channel
from tests.support.builders.conda_channel import Row, request, row, write_channel

LATE = datetime(2026, 12, 1, tzinfo=timezone.utc)
ROWS = [
    *(row("python", version) for version in ("3.12.1", "3.13.1")),
    row("numpy", "2.3.5"),
    row("foo", "1", depends=["baz >=2"]),
    row("bar", "1.5", depends=["baz <2"]),
    row("far", "1", depends=["mid"]),
    row("mid", "1", depends=["baz <1.5"]),
    *(row("baz", version) for version in ("1", "2")),
    row("strict", "1", constrains=["baz <2"]),
    row("new", "2", built=LATE),
    row("needs-new", "1", depends=["new"]),
    row("undated", "1", built=None),
    row("young", "1", depends=["__glibc >=2.39,<3"]),
    row("over", "1", depends=["young"]),
    row("py12", "1", "py312_0", depends=["python >=3.12,<3.13.0a0"]),
    row("torch", "2.8.0", "cuda129_0", depends=["__cuda", "cuda-version >=12.9,<13"]),
    row("torch", "2.8.0", "cpu_0", build_number=1),
    row("torch", "2.8.0", "cpu_0", subdir="linux-aarch64"),
    row("models", "1", subdir="noarch", depends=["torch >=2"]),
    row("jax", "1", "cuda126_0", depends=["__cuda", "cuda-version >=12.6,<13"], built=LATE),
    row("jax", "1", "cpu_0"),
    row("cuda-version", "12.6", subdir="noarch"),
    row("cuda-version", "12.9", subdir="noarch"),
    row("cuda-version", "13.0", subdir="noarch"),
    row("orphan", "1", depends=["gone >1"]),
]
ON_X86 = "no solution for conda's packages on linux-64: "
CPU = "on linux-64 the spec's [cuda] would have no effect: a build for the CPU of torch 2.8.0 (cpu_0); "
LOOSEN = "loosen one of the requirements named above, or move as_of"
RAISE = "raise [cuda] version, or allow an older package"


@dataclass(frozen=True)
class Case:
    asked: Sequence[str]
    said: str
    hint: str = LOOSEN
    more: Mapping[str, Any] = field(default_factory=dict)


CUDA_12_8 = {"cuda": CudaVersion(12, 8)}
CASES = {
    "no_such_package": Case(["nunpy"], f"{ON_X86}no such package: nunpy (conda.dependencies)", "did you mean numpy?"),
    "nothing_like_it": Case(
        ["ffmpeg"],
        f"{ON_X86}no such package: ffmpeg (conda.dependencies)",
        "correct the name, or add the channel that has it",
    ),
    "on_another_platform": Case(
        ["numpy"],
        "no solution for conda's packages on linux-aarch64: no such package: numpy (conda.dependencies)",
        "move numpy to [conda.platform.linux-64], which has it",
        {"platform": Platform.LINUX_AARCH64},
    ),
    "no_such_version": Case(
        ["numpy >=3"],
        f"{ON_X86}nothing fits numpy >=3 (conda.dependencies): the newest numpy by 2026-01-01T00:00:00Z is 2.3.5 (0)",
    ),
    "no_such_python": Case(
        ["python 3.9.*"],
        f"{ON_X86}nothing fits python 3.9.* (env.python): the newest python by 2026-01-01T00:00:00Z is 3.13.1 (0)",
    ),
    "no_such_build": Case(
        ["torch 2.8.* cuda126*"],
        f"{ON_X86}nothing fits torch 2.8.* cuda126* (conda.dependencies): "
        "the builds of that version are cpu_0, cuda129_0",
    ),
    "build_in_the_place_of_the_version": Case(
        ["torch cuda*"],
        f"{ON_X86}nothing fits torch cuda* (conda.dependencies): the newest torch by 2026-01-01T00:00:00Z is 2.8.0 "
        "(cpu_0), and a build string comes third: `torch * cuda*`",
    ),
    "built_after_as_of": Case(
        ["new"],
        f"{ON_X86}nothing that fits new (conda.dependencies) is in time: it was built on 2026-12-01T00:00:00Z at the "
        "earliest, after as_of 2026-01-01T00:00:00Z",
        "move as_of, or loosen the requirement",
    ),
    "needs_what_was_built_after_as_of": Case(
        ["needs-new"],
        f"{ON_X86}needs-new (conda.dependencies): needs-new 1 (0) needs new, which was built on 2026-12-01T00:00:00Z "
        "at the earliest, after as_of 2026-01-01T00:00:00Z",
        "move as_of, or loosen the requirement",
    ),
    "undated": Case(
        ["undated"],
        f"{ON_X86}nothing that fits undated (conda.dependencies) is in time: it has no build time",
        'set undated = "accept" in [conda] to include records without a build time',
    ),
    "conflict": Case(
        ["foo", "bar 1.*"],
        f"{ON_X86}these conflict: foo (conda.dependencies): foo 1 needs baz >=2; "
        "bar 1.* (conda.dependencies): bar 1.5 needs baz <2",
    ),
    "conflict_over_a_chain": Case(
        ["foo", "far"],
        f"{ON_X86}these conflict: foo (conda.dependencies): foo 1 needs baz >=2; "
        "far (conda.dependencies): far 1 needs mid, mid 1 needs baz <1.5",
    ),
    "conflict_by_a_constraint": Case(
        ["baz >=2", "strict"],
        f"{ON_X86}these conflict: baz >=2 (conda.dependencies); "
        "strict (conda.dependencies): strict 1 allows only baz <2",
    ),
    "another_python": Case(
        ["python 3.13.*", "py12"],
        f"{ON_X86}py12 (conda.dependencies): py12 1 (py312_0) needs python >=3.12,<3.13.0a0, "
        "which is excluded by python 3.13.* (env.python)",
    ),
    "gone": Case(["orphan"], f"{ON_X86}orphan (conda.dependencies): orphan 1 (0) needs gone >1, which no channel has"),
    "old_glibc": Case(
        ["young"],
        f"{ON_X86}young (conda.dependencies): young 1 (0) needs __glibc >=2.39,<3, and the base has 2.31",
        "use a newer base: [cuda] os or [image] base",
    ),
    "old_glibc_over_a_chain": Case(
        ["over"],
        f"{ON_X86}over (conda.dependencies): over 1 needs young, young 1 needs __glibc >=2.39,<3, "
        "and the base has 2.31",
        "use a newer base: [cuda] os or [image] base",
    ),
    "no_cuda_in_the_spec": Case(
        ["torch 2.8.* cuda*"],
        f"{ON_X86}torch 2.8.* cuda* (conda.dependencies): torch 2.8.0 (cuda129_0) needs __cuda, "
        "which needs [cuda] in the spec",
        "add [cuda] to the spec, or require a build for the CPU",
    ),
    "cuda_version_above_the_cap": Case(
        ["cuda-version 13.*"],
        f'{ON_X86}cuda-version 13.* (conda.dependencies) is above [cuda] version = "12.8"',
        RAISE,
        CUDA_12_8,
    ),
    "builds_above_the_cap": Case(
        ["torch 2.8.* cuda*"],
        f"{ON_X86}torch 2.8.* cuda* (conda.dependencies): torch 2.8.0 (cuda129_0) needs cuda-version >=12.9,<13, "
        'above [cuda] version = "12.8"',
        RAISE,
        CUDA_12_8,
    ),
    "cpu_fallback": Case(
        ["torch"],
        f"{CPU}the newest CUDA build, torch 2.8.0 (cuda129_0), needs cuda-version >=12.9,<13, "
        'above [cuda] version = "12.8"',
        RAISE,
        CUDA_12_8,
    ),
    "cpu_fallback_of_a_dependency": Case(
        ["models"],
        f"{CPU}the newest CUDA build, torch 2.8.0 (cuda129_0), needs cuda-version >=12.9,<13, "
        'above [cuda] version = "12.8"',
        RAISE,
        CUDA_12_8,
    ),
    "cuda_builds_for_another_platform": Case(
        ["models"],
        "on linux-aarch64 the spec's [cuda] would have no effect: torch 2.8.0 (cpu_0), no CUDA build; "
        "linux-64 has torch 2.8.0 (cuda129_0)",
        "remove the platform, or build on a package that has CUDA builds there",
        {"cuda": CudaVersion(12, 9), "platform": Platform.LINUX_AARCH64},
    ),
}


def refused(asked: Sequence[str], folder: Path, rows: Sequence[Row] = ROWS, **more: Any) -> EnvspecError:
    url = write_channel(folder / "forge", rows).as_uri()
    question = request(*asked, channels=[Channel("forge", url, url)], **more)
    with pytest.raises(EnvspecError) as raised:
        asyncio.run(solve_all([question], Rattler(), Context({}, folder, folder / "cache")))
    return raised.value


@pytest.mark.parametrize("name", CASES)
def test_refusals(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    error = refused(case.asked, tmp_path, **case.more)
    assert error.message == case.said
    assert error.hint == case.hint
    assert error.exit_code == 4
    assert isinstance(error, CpuFallback) == ("would have no effect" in case.said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("numpy 2.3", "missing range specifier for '2.3'"),
        ("numpy ==", "unable to parse version spec"),
        ("numpy 2.* py_0 more", "is not valid"),
        ("", "missing package name"),
    ],
)
def test_what_is_no_match_spec_is_the_users_mistake(asked: str, said: str, tmp_path: Path) -> None:
    error = refused([asked], tmp_path)
    assert isinstance(error, UsageError)
    assert error.message.startswith(f'conda.dependencies: "{asked}" is not a match spec: ')
    assert said in error.message


TOLD = """Cannot solve the request because of: The following packages are incompatible
├─ foo * can be installed with any of the following options:
│  └─ foo 1 would require
│     └─ baz >=2, which can be installed with any of the following options:
│        └─ baz 2
├─ strict * cannot be installed because there are no viable options:
│  └─ strict 1 would constrain
│     └─ baz <2, which conflicts with any installable versions previously reported
├─ late >=1 cannot be installed because there are no viable options:
│  └─ late 2 is excluded because the package is uploaded after the cutoff date of 2026-01-01 00:00:00
└─ the constraint cuda-version <=12.6 cannot be fulfilled
"""


def test_a_tree_is_read_as_chains() -> None:
    assert chains(TOLD) == [
        Chain("foo", (ChainStep("foo 1", "needs", "baz >=2"),)),
        Chain("strict", (ChainStep("strict 1", "allows only", "baz <2"),)),
        Chain("late >=1"),
    ]
    assert [chain.last for chain in chains(TOLD)] == ["baz >=2", "baz <2", "late >=1"]


def test_a_requirement_on_the_first_line_is_above_the_rest() -> None:
    expected_message = (
        "Cannot solve the request because of: a 1.* cannot be installed because there are no viable options:\n"
        "└─ a 1.5 would require\n   └─ b >2, for which no candidates were found.\n"
    )
    assert chains(expected_message) == [Chain("a 1.*", (ChainStep("a 1.5", "needs", "b >2"),))]
    assert chains("Cannot solve the request because of: No candidates were found for a 1.*.") == [Chain("a 1.*")]
