"""The init of images with services: as processes of this machine, with small servers in the services' place."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envspec.models import Service
from tests.support.machines.services import Place, lay
from tests.support.waits import free_port, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run: images are for Linux")

LONG = "0123456789abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    jupyter, tensorboard = Service("jupyter", free_port()), Service("tensorboard", free_port(), "runs")
    return lay(tmp_path / "image", jupyter, tensorboard, workdir="/work")


def _noted(place: Place, name: str) -> dict[str, Any]:
    path = place.notes / name
    wait_for(lambda: path.is_file() and path.read_text().endswith("}"))
    return dict(json.loads(path.read_text()))


def _is_healthy(place: Place) -> bool:
    return place.health().returncode == 0


def _children(pid: int) -> dict[int, str]:
    """State (`S`, `Z`) of every child, by its id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest[1]) == pid:
            found[int(path.parent.name)] = rest[0]
    return found


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_the_container_ends_as_the_command_does(place: Place, script: str, status: int) -> None:
    done = place.run("sh", "-c", f"echo out; {script}")
    assert (done.returncode, done.stdout) == (status, "out\n")


def test_what_can_not_start_says_so(place: Place) -> None:
    done = place.run("no-such-program")
    assert done.returncode == 127
    assert "no-such-program: No such file or directory" in done.stderr
    done = place.run(environ={"ENVSPEC_STATE_DIR": "/proc/none"})
    assert (done.returncode, "can't write to /proc/none" in done.stderr) == (78, True)
    home = place.root / "home/envspec"
    assert f"--tmpfs /tmp --tmpfs {home}:uid={os.getuid()} --tmpfs /var/lib/envspec:uid=" in done.stderr
    (place.root / "bin/tensorboard").unlink()
    done = place.run()
    assert (done.returncode, "tensorboard is not in this environment" in done.stderr) == (78, True)


def test_a_command_runs_although_services_can_not_start(place: Place) -> None:
    done = place.run("sh", "-c", "echo out; exit 7", environ={"ENVSPEC_STATE_DIR": "/proc/none"})
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "can't write to /proc/none" in done.stderr
    (place.root / "bin/tensorboard").unlink()
    wait = f"while ! [ -s {place.notes}/jupyter-lab ]; do sleep 0.02; done; exit 5"
    done = place.run("sh", "-c", wait)
    assert done.returncode == 5
    assert "tensorboard is not in this environment: add it to the spec; the command runs without it" in done.stderr


def test_jupyter_answers_below_the_prefix_that_the_container_gets(place: Place) -> None:
    prefix = "/notebook/team/nb"
    with place.running(environ={"NB_PREFIX": prefix}):
        wait_for(lambda: place.health(NB_PREFIX=prefix).returncode == 0)
        assert "jupyter answers with HTTP status 302" in place.health().stdout
        assert f"--ServerApp.base_url={prefix}/" in _noted(place, "jupyter-lab")["argv"]


def test_with_a_command_services_write_to_files_and_end_with_it(place: Place) -> None:
    wait = f"while ! [ -s {place.notes}/tensorboard ] || ! [ -s {place.notes}/jupyter-lab ]; do sleep 0.02; done"
    done = place.run("sh", "-c", wait)
    assert (done.returncode, done.stdout) == (0, "")
    assert "serves" not in done.stderr
    for name in ("jupyter", "tensorboard"):
        log = place.state / f"{name}.log"
        assert f"(log: {log})" in done.stderr
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "tensorboard serves" in (place.state / "tensorboard.log").read_text()
    for name in ("jupyter-lab", "tensorboard"):
        with pytest.raises(ProcessLookupError):
            os.kill(_noted(place, name)["pid"], 0)


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "WINCH"])
def test_signals_are_handed_on_to_the_command(place: Place, name: str) -> None:
    ready = place.notes / "ready"
    script = f"trap 'exit 42' {name}; : > {ready}; while :; do sleep 0.02; done"
    with place.running("bash", "-c", script) as init:
        wait_for(ready.exists)
        init.send_signal(signal.Signals[f"SIG{name}"])
        assert init.wait(15) == 42


def test_orphans_are_taken_in_and_leave_no_zombies(place: Place) -> None:
    left = place.notes / "left"
    script = f"for i in 1 2 3; do (sleep 0.05 & echo $! >> {left}); done; exec sleep 60"
    with place.running("sh", "-c", script) as init:
        wait_for(lambda: left.exists() and len(left.read_text().split()) == 3)
        orphans = [int(word) for word in left.read_text().split()]
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))
        states = _children(init.pid)
        assert "Z" not in states.values()
        assert len(states) == 3  # the command and two services


def test_without_a_command_a_signal_ends_the_services_and_the_container_well(place: Place) -> None:
    with place.running() as init:
        wait_for(lambda: _is_healthy(place))
        assert {"--host=0.0.0.0", "--logdir=/work/runs"} <= set(_noted(place, "tensorboard")["argv"])
        init.send_signal(signal.SIGTERM)
        assert init.wait(15) == 0


def test_without_a_command_a_failed_service_ends_the_container_with_its_status(place: Place) -> None:
    with place.running() as init:
        wait_for(lambda: _is_healthy(place))
        (place.notes / "fail").touch()
        place.health()
        assert init.wait(15) == 9
        assert init.stderr is not None
        assert "exited with status 9" in init.stderr.read()


def test_a_command_goes_on_without_a_failed_service(place: Place) -> None:
    with place.running("sleep", "60") as init:
        wait_for(lambda: _is_healthy(place))
        (place.notes / "fail").touch()
        check = place.health()
        assert check.returncode == 1
        assert re.search(r"^jupyter does not answer: ", check.stdout, re.MULTILINE)
        assert init.poll() is None


def test_a_service_that_does_not_end_is_killed(tmp_path: Path) -> None:
    place = lay(tmp_path / "image", Service("tensorboard", free_port(), "runs"))
    program = place.root / "bin/tensorboard"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ > {place.notes}/pid\nwhile :; do sleep 0.1; done\n")
    # The grace is ten seconds less what engines need; a test need not wait for it.
    init = place.root / "opt/envspec/init.py"
    init.write_text(init.read_text().replace("GRACE_S = 8.0", "GRACE_S = 0.2"))
    done = place.run("sh", "-c", f"while ! [ -s {place.notes}/pid ]; do sleep 0.02; done; exit 3")
    assert done.returncode == 3
    with pytest.raises(ProcessLookupError):
        os.kill(int((place.notes / "pid").read_text()), 0)


def test_the_command_has_the_terminal(place: Place) -> None:
    script = "ps -o tpgid=,pgid= -p $$"
    shown = subprocess.run(
        ["script", "-qec", " ".join([*(f"'{word}'" for word in place.command("sh", "-c", script))]), "/dev/null"],
        env=place.environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    ).stdout
    foreground, group = re.findall(r"^ *(\d+) +(\d+)\s*$", shown, re.MULTILINE)[0]
    assert foreground == group


def test_a_token_is_made_at_each_start_and_told_once(place: Place) -> None:
    seen = set()
    for _ in range(2):
        done = place.run("sh", "-c", f"while ! [ -s {place.notes}/jupyter-lab ]; do sleep 0.02; done; sleep 0.1")
        tokens = re.findall(r"lab\?token=(\w+)", done.stderr)
        assert len(tokens) == 1
        seen |= set(tokens)
        assert len(tokens[0]) == 64
        noted = _noted(place, "jupyter-lab")
        assert tokens[0] not in " ".join(noted["argv"])
        assert tokens[0] not in json.dumps(noted["environ"])
        config = place.state / "jupyter/jupyter_server_config.json"
        assert json.loads(config.read_text())["IdentityProvider"]["token"] == tokens[0]
        assert stat.S_IMODE(config.stat().st_mode) == 0o600
        (place.notes / "jupyter-lab").unlink()
    assert len(seen) == 2


def test_a_token_that_is_given_to_the_container_is_taken(place: Place, tmp_path: Path) -> None:
    done = place.run("true", environ={"JUPYTER_TOKEN": LONG})
    assert f"token={LONG}\n" in done.stderr.replace(" (log", "\n(log")
    (tmp_path / "secret").write_text(f"{LONG}\n")
    done = place.run("true", environ={"JUPYTER_TOKEN_FILE": str(tmp_path / "secret")})
    assert f"token={LONG}" in done.stderr


@pytest.mark.parametrize("token", ["", "secret", "a" * 64, "ab" * 32, LONG[:31]])
def test_a_token_that_can_be_guessed_is_refused(place: Place, token: str) -> None:
    done = place.run(environ={"JUPYTER_TOKEN": token})
    assert done.returncode == 78
    assert "JUPYTER_TOKEN is too easy to guess" in done.stderr
    assert not token or token not in done.stderr.replace("JUPYTER_TOKEN", "")
    assert not list(place.notes.iterdir())


def test_a_port_that_is_taken_says_so(place: Place, tmp_path: Path) -> None:
    with place.running():
        wait_for(lambda: _is_healthy(place))
        done = place.run()
    assert done.returncode == 78
    assert re.search(r"jupyter: port \d+: Address already in use", done.stderr)
