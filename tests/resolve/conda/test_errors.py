"""Why there is no solution, beyond the cases of tests/operations/golden/lock_conda_refusals."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from envspec.context import Context
from envspec.errors import EnvspecError
from envspec.models import CudaVersion
from envspec.resolve.conda.errors import Chain, CpuFallback, chains
from envspec.resolve.conda.solve import solve_all
from envspec.resolve.conda.solver import CondaUnsolvable, Rattler
from envspec.resolve.types import Channel
from tests.support.builders.conda_channel import request, row, write_channel

LATE = datetime(2026, 12, 1, tzinfo=timezone.utc)
ROWS = [
    row("new", "2", built=LATE),
    row("needs-new", "1", depends=["new"]),
    row("torch", "2.8.0", "cuda129_0", depends=["__cuda", "cuda-version >=12.9,<13"]),
    row("torch", "2.8.0", "cpu_0", build_number=1),
    row("models", "1", subdir="noarch", depends=["torch >=2"]),
    row("cuda-version", "12.9", subdir="noarch"),
    row("young", "1", depends=["__glibc >=2.39,<3"]),
    row("over", "1", depends=["young"]),
    row("user", "1", depends=["cuda-version >=12"]),
    row("strict", "1", constrains=["cuda-version <12"]),
]
ON_X86 = "no solution for conda's packages on linux-64: "
#: Requirement, message and hint.
CASES = [
    (
        "torch cuda*",
        f"{ON_X86}nothing fits torch cuda* (conda.dependencies): the newest torch by 2026-01-01T00:00:00Z is 2.8.0 "
        "(cpu_0), and a build string comes third: `torch * cuda*`",
        "loosen one of the requirements named above, or move as_of",
    ),
    (
        "needs-new",
        f"{ON_X86}needs-new (conda.dependencies): needs-new 1 (0) needs new, which was built on 2026-12-01T00:00:00Z "
        "at the earliest, after as_of 2026-01-01T00:00:00Z",
        "move as_of, or loosen the requirement",
    ),
    (
        "over",
        f"{ON_X86}over (conda.dependencies): over 1 needs young, young 1 needs __glibc >=2.39,<3, "
        "and the base has 2.31",
        "use a newer base: [cuda] os or [image] base",
    ),
]


def error_of(*requirements: str, folder: Path, **more: Any) -> EnvspecError:
    url = write_channel(folder / "forge", ROWS).as_uri()
    question = request(*requirements, channels=[Channel("forge", url, url)], **more)
    with pytest.raises(EnvspecError) as raised:
        asyncio.run(solve_all([question], Rattler(), Context({}, folder, folder / "cache")))
    return raised.value


@pytest.mark.parametrize(("requirement", "message", "hint"), CASES, ids=[case[0] for case in CASES])
def test_no_solution(requirement: str, message: str, hint: str, tmp_path: Path) -> None:
    error = error_of(requirement, folder=tmp_path)
    assert (error.message, error.hint, error.exit_code) == (message, hint, 4)
    assert not isinstance(error, CpuFallback)


def test_a_build_for_the_cpu_of_a_dependency(tmp_path: Path) -> None:
    error = error_of("models", folder=tmp_path, cuda=CudaVersion(12, 8))
    assert isinstance(error, CpuFallback)
    assert error.message == (
        "on linux-64 the spec's [cuda] would have no effect: a build for the CPU of torch 2.8.0 (cpu_0); the newest "
        'CUDA build, torch 2.8.0 (cuda129_0), needs cuda-version >=12.9,<13, above [cuda] version = "12.8"'
    )


#: Requirements, and what rattler's own message says of them.
CONFLICTS = [
    (["over"], [Chain("over", (("over 1", "needs", "young"), ("young 1", "needs", "__glibc >=2.39,<3")))]),
    (
        ["user", "strict"],
        [
            Chain("user", (("user 1", "needs", "cuda-version >=12"),)),
            Chain("strict", (("strict 1", "allows only", "cuda-version <12"),)),
        ],
    ),
    (["models >=2"], [Chain("models >=2")]),
]


@pytest.mark.parametrize(("requirements", "expected"), CONFLICTS)
def test_messages_of_rattler(requirements: list[str], expected: list[Chain], tmp_path: Path) -> None:
    cause = error_of(*requirements, folder=tmp_path).__cause__
    assert isinstance(cause, CondaUnsolvable)
    assert chains(cause.message) == expected, cause.message


TREE = """Cannot solve the request because of: The following packages are incompatible
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
    assert chains(TREE) == [
        Chain("foo", (("foo 1", "needs", "baz >=2"),)),
        Chain("strict", (("strict 1", "allows only", "baz <2"),)),
        Chain("late >=1"),
    ]
    assert [chain.last for chain in chains(TREE)] == ["baz >=2", "baz <2", "late >=1"]


def test_a_requirement_on_the_first_line_is_above_the_rest() -> None:
    expected_message = (
        "Cannot solve the request because of: a 1.* cannot be installed because there are no viable options:\n"
        "└─ a 1.5 would require\n   └─ b >2, for which no candidates were found.\n"
    )
    assert chains(expected_message) == [Chain("a 1.*", (("a 1.5", "needs", "b >2"),))]
    assert chains("Cannot solve the request because of: No candidates were found for a 1.*.") == [Chain("a 1.*")]


def test_a_second_tree_is_not_below_the_first_line() -> None:
    text = (
        "Cannot solve the request because of: a 1.* cannot be installed because there are no viable options:\n"
        "└─ a 1.5 would require\n   └─ python >=3.11,<3.12.0a0, for which no candidates were found.\n"
        "The following packages are incompatible\n"
        "└─ a 1.* can be installed with any of the following options:\n"
        "   └─ a 1.5 would require\n      └─ b >2, for which no candidates were found.\n"
    )
    assert chains(text) == [
        Chain("a 1.*", (("a 1.5", "needs", "python >=3.11,<3.12.0a0"),)),
        Chain("a 1.*", (("a 1.5", "needs", "b >2"),)),
    ]
