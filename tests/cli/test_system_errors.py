"""The limit of open files: raised at the start. A cause that is the system's is reported, whoever met it."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest

from envspec.cli.system_errors import FileRefused, TooManyOpenFiles, system_error
from envspec.errors import EnvspecError, NetworkError
from tests.support.user import ROOT

_PROGRAM = """
import resource
from envspec.cli import terminal
terminal._MOST = 150
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
terminal.raise_limit()
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


_UV = EnvspecError("uv exited: failed to write to file `/cache/a`: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/cache/b"), "disk-full", "/cache/b"),
        (_UV, "disk-full", "/cache/a"),
        (EnvspecError("failed", details="OSError: [Errno 122] Disk quota exceeded"), "disk-full", "a file"),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/shadow"), "file-refused", "/etc/shadow"),
        (EnvspecError("open `/cache/uv`: Read-only file system (os error 30)"), "file-refused", "/cache/uv"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), "file-refused", "TMPDIR"),
        (caused(RuntimeError("x"), OSError(errno.EIO, "Input/output error", "/disk")), "file-refused", "/disk"),
    ],
)
def test_other_errors_of_the_system(error: Exception, code: str, says: str) -> None:
    found = system_error(error)
    assert found is not None and (found.code, found.exit_code) == (code, 6)
    assert says in str(found) and "\n  hint: " in str(found)


def test_an_error_that_states_its_cause_stays() -> None:
    assert system_error(caused(FileRefused("the lock can't be written"), OSError(errno.EROFS, "Read-only"))) is None
