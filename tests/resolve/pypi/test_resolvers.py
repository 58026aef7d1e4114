"""The tables of resolvers, and uv's reason on one line."""

from __future__ import annotations

import pytest

from envspec.resolve import RESOLVERS, SOLVERS, resolver, solver
from envspec.resolve.pypi.resolver import uv_reason

BECAUSE = "Because torch==2.9.1 depends on cudnn==9 and you require torch, we can conclude that you require cudnn==9."
AND = "And because you require cudnn==8, we can conclude that your requirements are unsatisfiable."


@pytest.mark.parametrize(
    "stderr",
    [
        f"error: No solution found when resolving dependencies\n  cause: {BECAUSE}\n         {AND}\n",
        f"  × No solution found when resolving dependencies:\n  ╰─▶ {BECAUSE}\n      {AND}\n",  # noqa: RUF001 (uv's sign)
        f"  × No solution found when resolving dependencies:\n  ╰─▶ {BECAUSE}\n  │   {AND}\n"  # noqa: RUF001
        "\n      hint: use --prerelease=allow\n",
        f"Using CPython 3.11.7\nerror: No solution found when resolving dependencies\n  cause: {BECAUSE}\n  {AND}\n",
    ],
)
def test_the_reason_stands_alone(stderr: str) -> None:
    assert uv_reason(stderr) == f"{BECAUSE} {AND}"


@pytest.mark.parametrize("how", ["current Python version (3.11.7)", "requested Python version (>=3.11.7)"])
def test_whether_uv_runs_on_the_targets_python_makes_no_difference(how: str) -> None:
    assert uv_reason(f"error: No solution found when resolving dependencies\n  cause: Because the {how} is old.\n") == (
        "Because the target's Python (3.11.7) is old."
    )


def test_another_failure_is_reported_as_it_is() -> None:
    assert uv_reason("error: Failed to parse `a b`\n  cause: Expected a version\n") == (
        "Failed to parse `a b` cause: Expected a version"
    )


def test_silence_is_said() -> None:
    assert uv_reason("\n") == "uv found no solution and gave no reason"


@pytest.mark.parametrize("name", RESOLVERS)
def test_every_pypi_resolver_is_there_and_tells_its_version(name: str) -> None:
    assert resolver(name).version.partition(" ")[0] == name


@pytest.mark.parametrize("name", SOLVERS)
def test_every_conda_resolver_is_there_and_tells_its_version(name: str) -> None:
    assert solver(name).version.partition(" ")[0].endswith(name)
