"""`envspec doctor` as a process, with nothing around it but loopback."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Serve
from tests.support.user import environment, envspec, on_a_terminal


def surroundings(home: Path, index_url: str, proxy: str = "http://127.0.0.1:9") -> dict[str, str]:
    """No program but what envspec brings, and no way out but to loopback: nobody listens at the proxy."""
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    variables = {"ENVSPEC_DEFAULT_INDEX": index_url, "HTTPS_PROXY": proxy, "NO_PROXY": "127.0.0.1"}
    return environment(home, PATH=str(programs), **variables)


def test_doctor(tmp_path: Path, serve: Serve) -> None:
    environ = surroundings(tmp_path, serve().url)
    message = envspec(tmp_path, "doctor", "--format", "json", environ=environ)
    rows = {row["what"]: row for row in json.loads(message.stdout)["findings"]}
    assert message.stderr == ""
    assert rows["package index"]["state"] == "ok"
    assert rows["registry docker.io"]["state"] == "warning"
    assert {"Python", "disk", "shared memory", "NVIDIA driver", "uv"} <= rows.keys()
    missing = [what for what, row in rows.items() if row["state"] == "missing"]
    assert message.status == (6 if missing else 0)
    text = envspec(tmp_path, "doctor", environ=environ)
    assert (text.status, text.stderr) == (message.status, "")
    assert all(what in text.stdout for what in rows)
    assert "\x1b" not in text.stdout


def test_doctor_writes_no_password(tmp_path: Path, serve: Serve) -> None:
    url = serve().url.replace("http://", "http://me:hunter2@")
    ran = envspec(tmp_path, "doctor", environ=surroundings(tmp_path, url, "http://it:swordfish@127.0.0.1:9"))
    assert "127.0.0.1:9" in ran.stdout
    assert "hunter2" not in ran.stdout + ran.stderr
    assert "swordfish" not in ran.stdout + ran.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="terminals are POSIX's here")
def test_doctor_on_a_terminal_is_a_table(tmp_path: Path, serve: Serve) -> None:
    seen = on_a_terminal(tmp_path, "doctor", columns=70, environ=surroundings(tmp_path, serve().url))
    table = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", seen).rpartition("checking this machine")[2]
    assert "\x1b[32mok" in seen
    assert "-> " in table
    # A path is not broken, also that of this Python.
    assert all(len(line) <= 70 for line in table.splitlines() if len(line.split()) > 1), table
