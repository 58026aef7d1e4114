"""The benchmark's instruments, on real processes and a real server."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from bench import proxy
from bench.environment import clean
from bench.measure import run
from tests.conftest import Serve
from tests.support import ecosystem

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")


@linux_only
def test_cpu_wall_and_exit_code(tmp_path: Path) -> None:
    busy = "import sys, time\nwhile time.process_time() < 0.25: pass\nsys.exit('so it ends')"
    cost = run([sys.executable, "-c", busy], cwd=tmp_path, env=os.environ, limit_s=20)
    assert cost.exit_code == 1
    assert cost.said == "so it ends"
    assert 0.25 <= cost.cpu_s <= cost.wall_s + 0.5


@linux_only
def test_memory_is_that_of_the_tree(tmp_path: Path) -> None:
    hold = "import time; held = bytearray(60_000_000); time.sleep(0.4)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    alone = run([sys.executable, "-c", hold], cwd=tmp_path, env=os.environ, limit_s=20)
    below = run([sys.executable, "-c", parent], cwd=tmp_path, env=os.environ, limit_s=20)
    assert alone.peak_bytes > 60_000_000
    assert below.peak_bytes > alone.peak_bytes


@linux_only
def test_a_run_over_its_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    child = "import time, pathlib; time.sleep(0.8); pathlib.Path('alive').touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    cost = run([sys.executable, "-c", parent], cwd=tmp_path, env=os.environ, limit_s=0.3)
    assert cost.exit_code is None
    assert not cost.is_done
    subprocess.run([sys.executable, "-c", "import time; time.sleep(0.8)"], check=True)
    assert not (tmp_path / "alive").exists()


def test_the_proxy_counts_what_comes_in(serve: Serve) -> None:
    index = serve(ecosystem.big(500_000))
    with proxy.running() as counter:
        before = counter.counts()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": counter.url}))
        body = opener.open(index.file_url("heavy-1.0.0-py3-none-any.whl"), timeout=10).read()
        after = counter.counts()
    assert after.connections == before.connections + 1
    assert len(body) <= after.received - before.received <= len(body) + 1000
    assert after.received - before.received == index.sent_bytes("/files/*")


def test_the_proxy_tunnels(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    with proxy.running() as counter:
        connection = http.client.HTTPConnection("127.0.0.1", counter.port, timeout=10)
        connection.set_tunnel("127.0.0.1", index.port)
        for _ in range(3):
            connection.request("GET", "/simple/base/")
            assert b"base-1.5.0" in connection.getresponse().read()
        counts = counter.counts()
        connection.close()
    assert counts.connections == 1
    assert counts.received == index.sent_bytes()


def test_a_measured_command_sees_nothing_of_the_machine_s_configuration(tmp_path: Path) -> None:
    machine = {
        "PATH": "/bin",
        "SSL_CERT_FILE": "/certs.pem",
        "PIP_FIND_LINKS": "/wheels",
        "PIP_INDEX_URL": "http://a",
        "UV_INDEX": "http://b",
        "HOME": "/home/me",
        "POETRY_HOME": "/p",
    }
    environ = clean(machine, home=tmp_path, proxy="http://127.0.0.1:1")
    assert environ["SSL_CERT_FILE"] == "/certs.pem"
    assert environ["HOME"] == str(tmp_path)
    assert environ["HTTPS_PROXY"] == "http://127.0.0.1:1"
    assert not {"PIP_FIND_LINKS", "PIP_INDEX_URL", "UV_INDEX", "POETRY_HOME"} & set(environ)
    assert environ["PIP_CONFIG_FILE"] == os.devnull
