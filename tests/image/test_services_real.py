"""JupyterLab and TensorBoard themselves, from the index, started by an image's init."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from uv import find_uv_bin

from envspec.models import Service
from tests.support.machines.services import Place, lay
from tests.support.waits import free_port, wait_for

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(sys.platform != "linux", reason="not run: images are for Linux"),
]

TOKEN = "0123456789abcdefghijklmnopqrstuvwxyz"
#: What a home may hold by mistake or from another machine: no token, no password. (Tests may run as root.)
CARELESS = {
    "ServerApp": {"token": "", "password": "", "allow_root": True},
    "IdentityProvider": {"token": ""},
    "PasswordIdentityProvider": {"token": "", "hashed_password": ""},
}


@dataclass(frozen=True, slots=True)
class Served:
    place: Place
    jupyter: int
    tensorboard: int
    message: list[str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    uv, python = find_uv_bin(), folder / "env/bin/python"
    for words in (
        ["venv", "--quiet", "--python", sys.executable, str(folder / "env")],
        # TensorBoard asks for pkg_resources, which later ones have not.
        ["pip", "install", "--quiet", "--python", str(python), "jupyterlab", "tensorboard", "setuptools<81"],
    ):
        subprocess.run([uv, *words], check=True)
    (folder / "work/runs").mkdir(parents=True)
    (folder / "work/note.txt").write_text("hello")
    jupyter, tensorboard = free_port(), free_port()
    services = (Service("jupyter", jupyter), Service("tensorboard", tensorboard, "runs"))
    place = lay(folder / "image", *services, workdir=str(folder / "work"), python=python)
    config = Path(place.environ["HOME"], ".jupyter/jupyter_server_config.json")
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(CARELESS))
    message: list[str] = []
    with place.running(environ={"JUPYTER_TOKEN": TOKEN}) as init:
        assert init.stderr is not None
        os.set_blocking(init.stderr.fileno(), False)

        def ready() -> bool:
            assert init.poll() is None, "".join(message)
            message.extend(init.stderr or ())
            return place.health().returncode == 0

        wait_for(ready, 90)
        message.extend(init.stderr)
        yield Served(place, jupyter, tensorboard, message)
        init.terminate()
        os.set_blocking(init.stderr.fileno(), True)
        assert init.wait(15) == 0


def _status(port: int, path: str, **headers: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_jupyter_lets_in_who_has_the_token_and_nobody_else(served: Served) -> None:
    contents = "/api/contents/note.txt"
    assert _status(served.jupyter, contents, Authorization=f"token {TOKEN}") == 200
    assert _status(served.jupyter, f"{contents}?token={TOKEN}") == 200
    for refused in (contents, f"{contents}?token=", f"{contents}?token=wrong"):
        assert _status(served.jupyter, refused) == 403
    assert _status(served.jupyter, contents, Authorization="token ") == 403


def test_the_token_is_told_once(served: Served) -> None:
    text = "".join(served.message)
    assert len(re.findall(TOKEN, text)) == 1
    assert f"http://127.0.0.1:{served.jupyter}/lab?token={TOKEN}" in text


def test_tensorboard_serves_the_runs_of_the_working_folder(served: Served) -> None:
    assert _status(served.tensorboard, "/") == 200
    url = f"http://127.0.0.1:{served.tensorboard}/data/environment"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        message = json.load(answer)
    assert message["data_location"] == str(served.place.root.parent / "work/runs")
