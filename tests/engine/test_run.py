"""Containers as `run` and `shell` start them: exit codes, signals, terminals, ids, folders, ports, memory, GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Any

import pytest
from docker import DockerClient

from envspec.engine.container import LABEL
from tests.support.machines import NotRun, program
from tests.support.machines.driver import records
from tests.support.machines.engine import OwnEngine, connect, image_of_programs
from tests.support.waits import free_port, wait_for

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PROGRAMS = ("sh", "cat", "id", "env", "sleep", "stty", "df", "whoami", "head", "stat", "touch")
PYTHON = os.path.realpath(sys.executable)
#: Of a machine that does other things as well.
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def service_port() -> int:
    """Free when it was looked for."""
    return free_port()


@pytest.fixture(scope="module")
def image(engine: DockerClient, service_port: int) -> Iterator[str]:
    """With the file by which services know their ports."""
    message = {"services": [{"name": "jupyter", "port": service_port}]}
    files = {"opt/envspec/services.json": json.dumps(message).encode()}
    with image_of_programs(engine, *PROGRAMS, PYTHON, files=files) as image:
        yield image


@pytest.fixture(autouse=True)
def nothing_left(engine: DockerClient) -> Iterator[None]:
    """Every test here ends with no container of ours."""
    yield
    left = engine.api.containers(all=True, filters={"label": f"{LABEL}=tiny-1.0"})
    for row in left:
        engine.api.remove_container(row["Id"], force=True)
    assert not left


def command(image: str, *words: str, **more: Any) -> list[str]:
    asked = json.dumps({"image": image, "command": words, **more})
    return [sys.executable, "-m", "tests.support.machines.run_container", asked]


def ran(
    image: str,
    *words: str,
    stdin: bytes = b"",
    host: str | None = None,
    within: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    **more: Any,
) -> subprocess.CompletedProcess[bytes]:
    """within: a program, with its words, that starts it."""
    environ = {**environ, **({"DOCKER_HOST": host} if host else {})}
    return subprocess.run(
        [*within, *command(image, *words, **more)],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        env=environ,
        timeout=PATIENCE_S,
        check=False,
    )


@contextlib.contextmanager
def running(image: str, *words: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command(image, *words, **more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def test_a_device_of_the_machine_is_there(image: str) -> None:
    """/dev/kmsg, which containers do not have by default, stands for those of RDMA."""
    show = ("stat", "-c", "%F", "/dev/kmsg")
    assert b"No such file" in ran(image, *show).stderr
    done = ran(image, *show, devices=["/dev/kmsg"])
    assert done.stdout == b"character special file\n", done.stderr


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("sh", "-c", "exit 0"), 0, b""),
        (("sh", "-c", "exit 7"), 7, b""),
        (("sh", "-c", "kill -9 $$"), 137, b""),
        (("sh", "-c", "kill -TERM $$"), 143, b""),
        (("nosuch",), 127, b"nosuch"),
    ],
)
def test_the_exit_code_is_the_commands(image: str, words: Sequence[str], code: int, error: bytes) -> None:
    done = ran(image, *words)
    assert (done.returncode, done.stdout) == (code, b"")
    assert error in done.stderr


def test_output_and_errors_stay_apart_and_input_goes_in(image: str) -> None:
    done = ran(image, "sh", "-c", "cat; echo fault >&2", stdin=b"one\ntwo\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"one\ntwo\n", b"fault\n", 0)


def test_bytes_arrive_as_they_are(image: str) -> None:
    sent = os.urandom(3_000_017)
    assert ran(image, "cat", stdin=sent).stdout == sent


def test_input_that_nobody_reads_does_not_hang(image: str) -> None:
    assert ran(image, "sh", "-c", "exit 3", stdin=bytes(5_000_000)).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_command(image: str, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 42' {name}; echo ready; while :; do sleep 0.05; done"
    with running(image, "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == (f"got {name}\n".encode(), 42), err


def test_ctrl_c_ends_a_command_that_does_not_handle_it(image: str) -> None:
    """As the first process of a container it would not even notice."""
    with running(image, "sleep", "60") as process:
        wait_for_container()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGINT


def test_nobody_reads_the_output_any_more(image: str) -> None:
    with running(image, "sh", "-c", "while :; do echo line; done") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=PATIENCE_S)
    assert process.returncode != 0


def wait_for_container() -> None:
    client = connect()
    try:
        wait_for(lambda: client.api.containers(filters={"label": f"{LABEL}=tiny-1.0", "status": "running"}))
    finally:
        client.close()


def test_a_run_that_is_killed_leaves_no_container(image: str, engine: DockerClient) -> None:
    with running(image, "sleep", "600") as process:
        wait_for_container()
        process.kill()
        process.wait(PATIENCE_S)
        wait_for(lambda: not engine.api.containers(all=True, filters={"label": f"{LABEL}=tiny-1.0"}))


def test_what_waits_for_that_goes_with_the_run(image: str) -> None:
    with running(image, "cat") as process:
        wait_for_container()
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(children) == 1
        # as whoever ends all of a job does it first
        os.kill(children[0], signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert not Path(f"/proc/{children[0]}").exists()


#: A terminal's keys make signals for the session that has taken it.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Screen:
    """A terminal with a process on it."""

    def __init__(self, words: Sequence[str], cwd: Path, environ: Mapping[str, str], size: tuple[int, int]) -> None:
        self.main, second = pty.openpty()
        ioctl(second, TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        environ = {key: value for key, value in environ.items() if key not in {"LINES", "COLUMNS"}}

        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *words],
            stdin=second,
            stdout=second,
            stderr=second,
            cwd=cwd,
            env=environ,
            start_new_session=True,
        )
        os.close(second)
        self.seen = b""

    def until(self, *texts: bytes) -> None:
        end = time.monotonic() + PATIENCE_S
        while not any(text in self.seen for text in texts):
            ready, _, _ = select.select([self.main], [], [], max(0.0, end - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self.main, 4096)

    def type(self, keys: bytes) -> None:
        os.write(self.main, keys)

    def resize(self, rows: int, columns: int) -> None:
        ioctl(self.main, TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)


@contextlib.contextmanager
def screen(words: Sequence[str], cwd: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Iterator[Screen]:
    made = Screen(words, cwd, environ, (31, 97))
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait(10)
        os.close(made.main)


def test_a_terminal_of_its_own(image: str) -> None:
    with screen(command(image, "sh", "-i")) as terminal:
        terminal.until(b"$ ")
        terminal.type(b"stty size; echo a$((1+1))b\n")
        terminal.until(b"a2b")
        assert b"31 97" in terminal.seen
        terminal.resize(40, 120)
        for _ in range(50):
            terminal.type(b"stty size; echo m$((3+4))m\n")
            terminal.until(b"m7m")
            if b"40 120" in terminal.seen:
                break
            terminal.seen = b""
        assert b"40 120" in terminal.seen
        # ctrl-p is the shell's, and lets go of nothing
        terminal.type(b"\x10\x11\x15echo still $((5+5)) here\n")
        terminal.until(b"still 10 here")
        terminal.type(b"exit 9\n")
        assert terminal.process.wait(PATIENCE_S) == 9


def test_ctrl_c_on_a_terminal_is_the_commands(image: str) -> None:
    script = "trap 'echo int; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    with screen(command(image, "sh", "-c", script)) as terminal:
        terminal.until(b"ready")
        terminal.type(b"\x03")
        assert terminal.process.wait(PATIENCE_S) == 5


def test_the_terminal_is_as_it_was(image: str) -> None:
    words = command(image, "sh", "-c", "exit 4")
    script = 'before=$(stty -g); "$@"; code=$?; [ "$before" = "$(stty -g)" ] && echo "same $code"'
    with screen(["sh", "-c", script, "sh", *words]) as terminal:
        terminal.until(b"same 4")


def test_who_it_is_and_where(image: str, tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1235)
    script = "id; whoami; echo $HOME $USER $LOGNAME; pwd; touch made $HOME/own; stat -c %u:%g made $HOME $HOME/own"
    done = ran(image, "sh", "-c", script, work=str(tmp_path), groups=[4321])
    assert done.stderr == b""
    assert done.stdout.decode().splitlines() == [
        "uid=1234(jane) gid=1235(jane) groups=1235(jane),4321",
        "jane",
        "/home/jane jane jane",
        "/workspace",
        "1234:1235",
        "1234:1235",
        "1234:1235",
    ]
    made = (tmp_path / "made").stat()
    assert (made.st_uid, made.st_gid) == (1234, 1235)


def test_without_a_work_folder_the_users_own_is_made(image: str) -> None:
    assert ran(image, "sh", "-c", "pwd; touch here; stat -c %u here").stdout == b"/workspace\n1234\n"


def test_folders_that_may_only_be_read(image: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("data")
    done = ran(
        image, "sh", "-c", "cat /data/data; touch /data/x", mounts=[[str(tmp_path), "/data", "ro"]], uid=0, gid=0
    )
    assert done.stdout == b"data"
    assert b"Read-only file system" in done.stderr


def test_a_folder_that_the_engine_does_not_see(image: str, tmp_path: Path) -> None:
    done = ran(image, "cat", work=str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert f"error: {tmp_path}/nowhere, which was to be mounted, is not on the engine's machine" in done.stderr.decode()


#: A service: it listens where services.json says. Without what needs libraries that are not in the image.
SERVER = r"""
import json, pathlib, signal, socket, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit())
[service] = json.loads(pathlib.Path("/opt/envspec/services.json").read_text())["services"]
listening = socket.create_server(("0.0.0.0", service["port"]))
print("listening at", service["port"], flush=True)
while True:
    peer, _ = listening.accept()
    peer.recv(4096)
    peer.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + pathlib.Path("/workspace/it").read_bytes())
    peer.close()
"""
SERVE = (PYTHON, "-I", "-S", "-c", SERVER)


def serving(image: str, **more: Any) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    return running(image, *SERVE, **more)


def fetched(port: int, process: subprocess.Popen[bytes]) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with opener.open(f"http://127.0.0.1:{port}/it", timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            assert time.monotonic() < until
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)


@pytest.fixture
def served(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "it").write_text("served")
    prefix = str(Path(PYTHON).parents[1])
    return {"work": str(tmp_path), "mounts": [[prefix, prefix, "ro"]], "uid": 0, "gid": 0}


def listens_at(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline().rpartition(b" ")[2])


def ended(process: subprocess.Popen[bytes]) -> str:
    """What it had said on stderr."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE_S)[1].decode()


def test_a_services_port_is_on_loopback_and_the_same(image: str, served: dict[str, Any], service_port: int) -> None:
    with serving(image, services=[["jupyter", service_port]], **served) as process:
        assert fetched(service_port, process) == b"served"
        assert listens_at(process) == service_port
        assert ended(process) == ""


def test_a_service_listens_at_the_port_that_leads_to_it(image: str, served: dict[str, Any], service_port: int) -> None:
    """So that the address that it tells is the user's."""
    port = free_port()
    with serving(image, services=[["jupyter", service_port]], ports=[[service_port, port]], **served) as process:
        assert fetched(port, process) == b"served"
        assert listens_at(process) == port
        assert ended(process) == ""


def test_a_services_port_that_is_taken_becomes_another(image: str, served: dict[str, Any], service_port: int) -> None:
    with socket.socket() as taken:
        # Connections of the test before may linger there.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", service_port))
        taken.listen()
        with serving(image, services=[["jupyter", service_port]], **served) as process:
            other = listens_at(process)
            assert other != service_port
            assert fetched(other, process) == b"served"
            message = f"warning: port {service_port} of this machine is in use, and jupyter gets another one\n"
            assert ended(process) == message


def test_a_port_of_the_engines_choice_is_told(image: str) -> None:
    with running(image, "cat", ports=[[80, 0]]) as process:
        assert process.stderr is not None
        assert re.fullmatch(rb"port 80 of the container: 127\.0\.0\.1:\d+\n", process.stderr.readline())
        process.communicate(timeout=PATIENCE_S)


def test_a_port_of_the_users_that_is_taken(image: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        done = ran(image, "cat", ports=[[8888, port]])
    assert done.returncode == 6
    assert done.stderr.decode().startswith(f"error: port {port} of this machine is in use\n  hint: ")


def test_gpus_where_the_engine_has_no_toolkit(image: str, engine: DockerClient) -> None:
    if "nvidia" in engine.info().get("Runtimes", {}):
        pytest.skip("not run: this machine's engine has an NVIDIA runtime")
    done = ran(image, "cat", cuda=True)
    assert done.returncode == 6
    assert done.stdout == b""
    assert "no NVIDIA container toolkit" in done.stderr.decode()
    assert "--gpus none" in done.stderr.decode()
    assert ran(image, "cat", cuda=True, gpus="none").returncode == 0


def test_gpus_are_asked_for_where_the_lock_has_cuda(gpu_engine: OwnEngine) -> None:
    client = connect(gpu_engine.url)
    with image_of_programs(client, "env") as image:
        before = len(records(gpu_engine))
        assert ran(image, "env", host=gpu_engine.url).returncode == 0
        assert len(records(gpu_engine)) == before
        done = ran(image, "env", host=gpu_engine.url, cuda=True)
        assert done.returncode == 0, done.stderr
        assert records(gpu_engine)[-1].environ["NVIDIA_VISIBLE_DEVICES"] == "all"
        message = ran(image, "env", host=gpu_engine.url, gpus="all")
        assert message.returncode == 0
        assert message.stderr == b"warning: tiny-1.0 has no CUDA: the container gets no GPU\n"


@pytest.mark.parametrize(
    ("host", "code", "said"),
    [
        ("unix:///nowhere/docker.sock", 6, "no engine responds at unix:///nowhere/docker.sock (DOCKER_HOST)"),
        ("tcp://127.0.0.1:1", 6, "no engine responds at tcp://127.0.0.1:1 (DOCKER_HOST): connection refused"),
        ("carrier://pigeon", 6, "carrier://pigeon (DOCKER_HOST) is not an engine's address"),
        ("tcp://engine.invalid:2375", 5, "the engine at tcp://engine.invalid:2375 (DOCKER_HOST) does not respond"),
    ],
)
def test_no_engine_where_the_user_says(host: str, code: int, said: str) -> None:
    done = ran("none", "true", host=host)
    assert done.returncode == code
    assert done.stderr.decode().startswith(f"error: {said}")
    assert done.stderr.decode().count("error:") == 1


def test_no_engine_runs_here() -> None:
    if os.geteuid() != 0:
        raise NotRun("only root can hide the machine's engine from a process")
    script = f'{program("mount")} -t tmpfs none /var/run && exec "$@"'
    hidden = [program("unshare"), "--mount", program("sh"), "-c", script, "sh"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    done = ran("none", "true", within=hidden, environ=environ)
    assert done.returncode == 6
    assert b"error: Docker is installed but not running: no such file or directory" in done.stderr
    done = ran("none", "true", within=hidden, environ={**environ, "PATH": "/nowhere"})
    assert done.returncode == 6
    assert b"error: no container engine is installed" in done.stderr
