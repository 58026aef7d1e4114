"""What the error of a failed build shows of its log, and with which tools it is tried again."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.build.runners import build_error
from envspec.build.types import BuildRequest
from envspec.build.wheel import sdist_source, time_of_tools
from envspec.models import Platform, Python, Target

LOG = """\
Building wheel...
running egg_info
Traceback (most recent call last):
  File "/tmp/x/cache/builds-v0/.tmp1/lib/python3.11/site-packages/setuptools/build_meta.py", line 317, in run_setup
    exec(code, locals())  # noqa: S102
    ^^^^^^^^^^^^^^^^^^^^
  File "<string>", line 22, in <module>
ModuleNotFoundError: No module named 'torch.utils'
  \u00d7 Failed to build `/tmp/x/src`
  \u251c\u2500\u25b6 The build backend returned an error
  \u2570\u2500\u25b6 Call to `setuptools.build_meta.get_requires_for_build_wheel` failed (exit status: 1)

      [stderr]
      a last word
      hint: This error likely indicates that `src` depends on `torch`:

      [tool.uv.extra-build-dependencies]
      src = ["torch"]
"""


def test_the_step_the_last_lines_and_the_way_out() -> None:
    error = build_error("own 1.0", LOG.splitlines(), " in BASE")
    assert error.message.splitlines() == [
        "own 1.0: its build failed (get_requires_for_build_wheel) in BASE:",
        "  running egg_info",
        "  Traceback (most recent call last):",
        '    File "<string>", line 22, in <module>',
        "  ModuleNotFoundError: No module named 'torch.utils'",
        "        a last word",
    ]
    assert error.hint is not None and error.hint.startswith("its build imports torch without requiring it")


def test_the_compilers_error_is_shown_not_the_frames_of_torch_below_it() -> None:
    site = "/.envspec-build/env/lib/python3.11/site-packages"
    frames = [
        line
        for number in range(12)
        for line in (f'  File "{site}/torch/utils/cpp_extension.py", line {number}, in f', "    run(", "    ^^^^")
    ]
    log = [
        "FAILED: [code=1] own.o",
        f"{site}/torch/include/x.h:1:10: error: 'y' was not declared",
        "ninja: build stopped: subcommand failed.",
        "Traceback (most recent call last):",
        *frames,
        "RuntimeError: Error compiling objects for extension",
    ]
    error = build_error("own 1.0", log)
    assert error.message.splitlines()[1:] == [f"  {line}" for line in (*log[:4], log[-1])]


def test_requirements_that_cannot_be_had() -> None:
    log = [
        "error: Failed to build `/tmp/x/src`",
        "  cause: Failed to resolve requirements from `build-system.requires`",
    ]
    log += ["  cause: No solution found when resolving: `helper`"]
    error = build_error("own 1.0", log)
    assert error.message == (
        "own 1.0: its build failed: what it requires can't be installed:\n  No solution found when resolving: `helper`"
    )


@pytest.mark.parametrize(
    ("python", "written", "tools"),
    [("3.9.25", 2023, 2023), ("3.12.1", 2021, 2023), ("3.99.1", 2021, 2021), ("3.9.25", 2099, 2026)],
)
def test_tools_are_of_the_source_and_its_python(python: str, written: int, tools: int) -> None:
    async def fetch() -> Path:
        raise AssertionError

    target, as_of = (
        Target(Platform.LINUX_64, Python(python, "spec"), glibc=(2, 36)),
        datetime(2026, 6, 1, tzinfo=timezone.utc),
    )
    request = BuildRequest("own", "1.0", target, as_of, sdist_source("", fetch))
    assert time_of_tools(request, datetime(written, 1, 1, tzinfo=timezone.utc)).year == tools
