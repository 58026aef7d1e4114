"""The limit of open files: raised at the start; too low a one is the reported cause, whoever met it."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest

from envspec.cli.system_errors import TooManyOpenFiles, system_error
from envspec.errors import EnvspecError, NetworkError
from tests.support.user import ROOT

_PROGRAM = """
import resource
from envspec.cli import file_limit
file_limit._MOST = 150
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
file_limit.raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(64, 100, 100), (100, 100, 100), (64, 200, 150), (180, 200, 180)])
def test_it_is_raised_to_what_the_user_may_have_and_not_beyond_all_use(soft: int, hard: int, raised: int) -> None:
    program = [sys.executable, "-c", _PROGRAM.format(soft=soft, hard=hard)]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(raised), str(hard)]


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


_EMFILE = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    "error",
    [
        _EMFILE,
        OSError(errno.ENFILE, "File table overflow"),
        caused(NetworkError("no connection"), _EMFILE),
        caused(RuntimeError("x"), caused(NetworkError("no connection"), _EMFILE)),
        NetworkError("tcp open error: Too many open files (os error 24)"),
        EnvspecError("uv failed", details="error: Failed\n  Caused by: Too many open files (os error 24)"),
    ],
)
def test_it_is_found_in_errors_of_every_kind(error: Exception) -> None:
    found = system_error(error)
    assert isinstance(found, TooManyOpenFiles) and found.exit_code == 6
    assert f"the limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}" in found.message


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "No such file"), NetworkError("down"), RuntimeError("24")])
def test_other_errors_stay(error: Exception) -> None:
    assert system_error(error) is None
