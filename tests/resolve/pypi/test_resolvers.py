"""The tables of resolvers, and uv's reason on one line."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from packaging.version import Version

from envspec.models import Platform, Python, Target
from envspec.resolve import RESOLVERS, SOLVERS, resolver, solver
from envspec.resolve.pypi.index.routing import PackageIndex, Rules
from envspec.resolve.pypi.resolver import uv_reason
from envspec.resolve.pypi.types import PypiRequest, TargetRequest, exclusions_of
from envspec.structs import replace

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


OLD_PYTHON = (
    "error: No solution found when resolving dependencies\n  cause: Because the {} Python version ({}) is old.\n"
)


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (OLD_PYTHON.format("current", "3.11.7"), "Because the target's Python (3.11.7) is old."),
        (OLD_PYTHON.format("requested", ">=3.11.7"), "Because the target's Python (3.11.7) is old."),
        ("error: Failed to parse `a b`\n  cause: Expected\n", "Failed to parse `a b` cause: Expected"),
        ("\n", "uv found no solution and gave no reason"),
    ],
)
def test_other_reasons(stderr: str, reason: str) -> None:
    assert uv_reason(stderr) == reason


@pytest.mark.parametrize("name", [*RESOLVERS, *SOLVERS])
def test_every_resolver_and_solver_has_a_version(name: str) -> None:
    of_name = resolver(name) if name in RESOLVERS else solver(name)
    assert of_name.version.partition(" ")[0].removeprefix("py-") == name


def test_another_reason_of_a_bound_is_another_question() -> None:
    rules = Rules(datetime(2026, 1, 1, tzinfo=timezone.utc), (), PackageIndex("default", "https://index.example.com/"))
    plain = TargetRequest(PypiRequest(Target(Platform.LINUX_64, Python("3.12.3", "spec")), ("app",)), rules, "identity")
    keys: set[str] = set()
    for problem in ("its build calls cc", "it requires Python 3.9"):
        bounds = exclusions_of({("app", Version("2.0")): problem})
        keys.add(replace(plain, request=plain.request.with_bounds(bounds)).answer_key(resolver("uv").version))
    assert len(keys) == 2
