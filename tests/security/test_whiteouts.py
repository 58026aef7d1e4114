"""Names that hide files of an image's lower layers, in what is neither a wheel nor a conda package nor an sdist.

For those see the tables of hostile archives.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.image.services import workdir_path
from envspec.image.sources.bytecode import BadPython
from envspec.image.sources.python import StandalonePython
from envspec.image.sources.system import read_changes
from envspec.image.sources.system_container import tar_files
from envspec.models import Python
from tests.image.test_system_changes import Given
from tests.support.builders import standalone
from tests.support.builders.environments import RUNNING, installs, make_lock, write_lock
from tests.support.builders.standalone import SERIES, VERSION
from tests.support.user import User, refused

MARKS = ("lib/.wh.os.py", "lib/.wh..wh..opq", ".wh.lib/os.py")


@pytest.mark.parametrize("mark", MARKS)
def test_a_standalone_python_hides_nothing(mark: str, tmp_path: Path) -> None:
    archive = tmp_path / "cpython.tar.gz"
    sha256 = standalone.write(archive, {**standalone.made_up(), f"python/{mark}": b""})
    with pytest.raises(BadPython, match="would hide files of an image's lower layers"):
        list(StandalonePython(archive, sha256, VERSION, frozenset(), None).entries())


def test_nor_is_it_installed(tmp_path: Path) -> None:
    archive = tmp_path / "cpython.tar.gz"
    sha256 = standalone.write(archive, {f"python/lib/python{SERIES}/.wh.os.py": b""})
    user = User(tmp_path, "http://127.0.0.1:9")
    python = Python(RUNNING, "standalone", archive.as_uri(), sha256)
    ran = installs(user, write_lock(tmp_path / "lock", make_lock(python=python)))
    assert "would hide files of an image's lower layers" in refused(ran, 1)
    assert not (tmp_path / "env").exists()


def test_a_package_of_the_system_hides_what_it_removed_alone(tmp_path: Path) -> None:
    warned: list[str] = []
    given = Given(("etc",), {"etc/.wh.passwd": b"", "etc/.wh.ssh/key": b"", "etc/own": b"1"}, gone=["etc/old"])
    changes, _ = read_changes(tar_files(given.stream()), tmp_path, warned.append)
    assert [change.path for change in changes if ".wh." in change.path] == ["etc/.wh.old"]
    assert [text.partition(" is excluded")[0] for text in warned] == [
        "system layer: /etc/.wh.passwd",
        "system layer: /etc/.wh.ssh/key",
    ]


@pytest.mark.parametrize("workdir", ["/.wh.usr", "/data/.wh..wh..opq"])
def test_a_working_folder_hides_nothing(workdir: str) -> None:
    with pytest.raises(UsageError, match="would hide files of the base image"):
        workdir_path(workdir)
