"""What holds for every command: streams, pipes, encodings, colours, Ctrl-C, and mistakes in the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import pytest

from envspec.cli.main import COMMANDS
from envspec.lockfile.document import dump
from envspec.lockfile.folder import write_folder
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Decision
from envspec.reasons import reason
from envspec.structs import replace
from tests.support.builders.locks import example
from tests.support.user import command_line, environment, envspec, on_a_terminal

#: Letters that neither ASCII nor Latin-1 nor Windows's Cyrillic page all have.
FOREIGN = "größer als 2.9 — ≥ 3.0 😀"

TERMINATED: Final = """\
error: ended by SIGTERM
  hint: run the same command again: it continues with what is complete
  more: envspec explain-error terminated
"""

on_posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes, signals and terminals are POSIX's here")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with one lock, `foreign`, whose reasons are not ASCII."""
    lock = replace(example(), name="foreign", decisions=(Decision("python", "3.11.14", (reason(FOREIGN),), "«data»"),))
    write_folder(tmp_path / "locks" / "foreign", {LOCK_FILE: dump(lock, {}).encode()})
    return tmp_path


def test_alone_it_prints_help(tmp_path: Path) -> None:
    alone = envspec(tmp_path)
    assert (alone.status, alone.stderr) == (0, "")
    assert alone.stdout.startswith("Usage: envspec ")
    assert alone.stdout == envspec(tmp_path, "--help").stdout == envspec(tmp_path, "-h").stdout
    assert all(f"  {name}  " in alone.stdout for name in COMMANDS)


def run(
    project: Path,
    command: Sequence[str | bytes],
    stdout: int | IO[bytes] = subprocess.PIPE,
    variables: Mapping[str, str] = {},
) -> tuple[int, bytes | None, bytes]:
    environ = environment(project, **variables)
    done = subprocess.run(command, cwd=project, env=environ, stdout=stdout, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stdout, done.stderr


@on_posix
@pytest.mark.parametrize("words", [("--help",), ("explain", "foreign")], ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(project: Path, words: tuple[str, ...]) -> None:
    """141, like programs that SIGPIPE ends, and no message."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        assert run(project, command_line(words), pipe) == (141, None, b"")


@on_posix
def test_a_closed_stdout_is_no_error(project: Path) -> None:
    line = " ".join(f"'{word}'" for word in command_line(("explain", "foreign")))
    assert run(project, ["/bin/sh", "-c", f"{line} >&-"]) == (0, b"", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_full_disk_is_an_error(project: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        status, _, stderr = run(project, command_line(("explain", "foreign")), full)
    assert status == 6
    assert stderr.decode().splitlines() == [
        "error: the result can't be written to standard output: No space left on device",
        "  hint: free space, or redirect it elsewhere",
        "  more: envspec explain-error output-not-writable",
    ]


POOR: Final = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.mark.parametrize("variables", POOR, ids=str)
def test_no_encoding_is_too_small_for_text(project: Path, variables: dict[str, str]) -> None:
    status, stdout, stderr = run(project, command_line(("explain", "foreign")), variables=variables)
    assert (status, stderr) == (0, b"")
    assert stdout and b"als 2.9" in stdout


@pytest.mark.parametrize("variables", POOR[1:], ids=str)
def test_json_is_utf8_in_every_encoding(project: Path, variables: dict[str, str]) -> None:
    status, stdout, stderr = run(project, command_line(("explain", "foreign", "--format", "json")), variables=variables)
    assert (status, stderr) == (0, b"")
    assert stdout is not None
    assert FOREIGN in [each["why"][0]["text"] for each in json.loads(stdout.decode("utf-8"))["decisions"]]


@pytest.mark.parametrize("word", ["größer".encode(), pytest.param(b"caf\xe9", marks=on_posix)])
def test_an_error_in_any_encoding_about_a_name_in_any_encoding(project: Path, word: bytes) -> None:
    status, stdout, stderr = run(project, [*map(os.fsencode, command_line(("explain",))), word], variables=POOR[3])
    assert (status, stdout) == (2, b"")
    assert stderr.startswith(b"error: there is no lock ")
    assert b"Traceback" not in stderr


@on_posix
@pytest.mark.parametrize("words", [("explain", "foreign"), ("explain", "no")], ids=" ".join)
def test_colours_are_for_terminals_of_those_who_want_them(project: Path, words: tuple[str, ...]) -> None:
    coloured = on_a_terminal(project, *words)
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert on_a_terminal(project, *words, NO_COLOR="1") == bare
    assert on_a_terminal(project, *words, TERM="dumb") == bare
    piped = envspec(project, *words, environ=environment(project, COLUMNS="80", FORCE_COLOR="1"))
    assert piped.stdout + piped.stderr == bare


@on_posix
@pytest.mark.parametrize("columns", [60, 120])
def test_text_is_as_wide_as_the_terminal(project: Path, columns: int) -> None:
    seen = on_a_terminal(project, "fit", "foreign", "--gpu", "T4", "--driver", "470.1", columns=columns, NO_COLOR="1")
    longest = max(map(len, seen.splitlines()))
    assert columns - 25 < longest <= columns


@on_posix
@pytest.mark.parametrize(
    ("number", "status", "message"), [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, TERMINATED)]
)
def test_a_signal_ends_any_command_with_a_message(
    tmp_path: Path, number: signal.Signals, status: int, message: str
) -> None:
    """The doctor waits for an index that takes the call and never answers."""
    empty = tmp_path / "bin"
    empty.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple/"
        environ = environment(tmp_path, PATH=str(empty), ENVSPEC_DEFAULT_INDEX=url, HTTPS_PROXY="http://127.0.0.1:9")
        with subprocess.Popen(
            command_line(("doctor",)),
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            silent.settimeout(30)
            call, _ = silent.accept()
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=30)
            call.close()
    assert (process.returncode, stdout, stderr) == (status, "", message)
