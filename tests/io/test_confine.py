"""What a sandbox shows, and the Python that runs in it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from envspec.io.confine import PORT, Sandbox, bubblewrap, run_confined
from envspec.io.confine_types import Unconfined
from envspec.io.process import Finished
from tests.support.builders.environments import BASE
from tests.support.machines.confinement import confined

pytestmark = confined


def run(folder: Path, python: Path, program: str, *reads: Path) -> tuple[Finished, list[socket.socket]]:
    """A program, run confined by a Python; what was handed out is given as well."""
    given: list[socket.socket] = []

    async def listen(listener: socket.socket) -> None:
        given.append(listener)

    async def inside() -> Finished:
        found = await bubblewrap({"PATH": os.defpath}, Unconfined.REFUSED, "this test")
        assert found is not None
        sandbox = Sandbox(found, reads, folder)
        return await run_confined(sandbox, python, [str(python), "-c", program], listen, environ={"A": "b"})

    return asyncio.run(inside()), given


def pythons(folder: Path) -> list[Path]:
    """The same kind of program by several ways: a venv's, its base, a link, and one below a folder that is a link."""
    link, below = folder / "link", folder / "elsewhere"
    link.symlink_to(BASE)
    below.symlink_to(BASE.parent)
    system = [Path("/bin/python3")] if shutil.which("python3", path="/bin") else []
    return [Path(sys.executable), BASE, link, below / BASE.name, *system]


def test_each_path_of_a_python_runs_there(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for python in pythons(tmp_path):
        done, given = run(work, python, "import encodings, os, sys; print(os.getcwd(), sys.prefix == sys.base_prefix)")
        assert done.stdout == f"{work} True\n", (python, done)
        assert [each.getsockname() for each in given] == [("127.0.0.1", PORT)]
        given[0].close()


def test_files_are_what_was_named(tmp_path: Path) -> None:
    work, shown, hidden = (tmp_path / name for name in ("work", "shown", "hidden"))
    for folder in (work, shown, hidden):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    program = f"""
import os, pathlib
for name in ("work", "shown", "hidden"):
    path = pathlib.Path({str(tmp_path)!r}, name, "file")
    try:
        print(path.read_text(), end=" ")
        path.write_text("changed")
        print("written", end=" ")
    except OSError as fault:
        print(type(fault).__name__, fault.errno, end=" ")
print(sorted(os.environ), os.getuid(), len([each for each in os.listdir("/proc") if each.isdigit()]))
"""
    done, (listener,) = run(work, BASE, program, shown)
    listener.close()
    assert done.stdout.startswith("work written shown OSError 30 FileNotFoundError 2 "), done
    assert "'A'" in done.stdout and "HOME" not in done.stdout and done.stdout.endswith(" 1000 2\n"), done
    assert (shown / "file").read_text() == "shown"


def test_there_are_no_further_namespaces(tmp_path: Path) -> None:
    message = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout
    if "--disable-userns" not in message:
        pytest.skip("not run: bubblewrap is older than 0.8")
    done, (listener,) = run(tmp_path, BASE, "import os; os.execvp('unshare', ['unshare', '-Ur', 'echo', 'nested'])")
    listener.close()
    assert done.status and "nested" not in done.stdout and "unshare" in done.stderr, done


@pytest.mark.parametrize(("end", "status"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)])
def test_how_it_ends_is_reported(end: str, status: int, tmp_path: Path) -> None:
    done, (listener,) = run(tmp_path, BASE, f"import os; {end}")
    listener.close()
    assert done.status == status
