"""The public Python API: the examples of its page in order, every name of it, and where notebooks differ."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import envspec
from envspec.api import _binary
from tests.support.builders.environments import BASE, RUNNING, SERIES
from tests.support.builders.images import ImageServers, image_servers, small_wheel
from tests.support.user import ROOT

PAGE: Final = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
#: Where the image's base is, which in the example is chosen by envspec.
IMAGE: Final = f"""
[image]
base = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04"
glibc = "2.36"
python = "{RUNNING}"
"""
NUMPY: Final = [small_wheel("numpy", version) for version in ("2.0.0", "2.1.0")]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="images and conformance are for Linux")


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageServers]:
    """A folder with specs/mine.toml, an index and a registry, for this process."""
    with image_servers(*NUMPY) as servers:
        user = servers.user_in(tmp_path)
        for name in [name for name in os.environ if name.startswith(("ENVSPEC_", "PIP_", "UV_"))]:
            monkeypatch.delenv(name)
        for name, value in user.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{BASE.parent}:{os.environ['PATH']}")
        monkeypatch.chdir(tmp_path)
        (spec,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        Path("specs").mkdir()
        Path("specs", "mine.toml").write_text(spec.replace('"3.11"', f'"{SERIES}"') + IMAGE, encoding="utf-8")
        Path("requirements.txt").write_text("numpy==2.1.*\n", encoding="utf-8")
        yield servers


def test_a_process_that_locks_often_keeps_nothing_of_each_lock(servers: ImageServers) -> None:
    def views() -> int:
        gc.collect()
        return sum(type(each).__name__ == "View" for each in gc.get_objects())

    before = views()
    envspec.lock("mine")
    assert views() == before


def test_the_examples_run(servers: ImageServers, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "example"}
    blocks = re.findall(r"(<!-- not run: .*? -->\n)?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 6
    for reason, code in blocks:
        if "tests/test_api.py" in reason:
            exec(code.replace("registry.example.com", servers.registry.host), names)
    shown = capsys.readouterr().out
    assert shown.startswith("numpy 2.1.0\n")
    assert re.search(r"^\[\('linux-64', 'sha256:[0-9a-f]{64}'\)\]$", shown, re.MULTILINE), shown
    assert re.search(r"^not known \[.*\('lock', 'passed'\)", shown, re.MULTILINE), shown
    assert shown.rstrip().splitlines()[-1].startswith("package nunpy is not in mine"), shown
    assert servers.registry.tagged("team/mine:1")
    assert str(names["name"]).startswith(f"{servers.registry.host}/team/mine@sha256:")


def test_in_a_notebook_whose_loop_runs(servers: ImageServers) -> None:
    async def cell() -> envspec.Lock:
        return envspec.lock("mine")

    assert asyncio.run(cell()) == envspec.read_lock("mine")


def test_no_module_hides_a_function() -> None:
    """`import envspec.lock` would replace the function of that name by a module."""
    code = (
        "import envspec, importlib, pkgutil, types\n"
        "for each in pkgutil.walk_packages(envspec.__path__, 'envspec.'):\n"
        "    if not each.name.endswith('__main__'):\n"
        "        importlib.import_module(each.name)\n"
        "assert not [name for name in envspec.__all__ if isinstance(getattr(envspec, name), types.ModuleType)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_names_are_imported_on_first_use() -> None:
    code = "import sys, envspec; dir(envspec); print(*(name for name in sys.modules if name.startswith('envspec.')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == []
    with pytest.raises(AttributeError, match="no attribute 'locks'"):
        envspec.locks  # noqa: B018


def test_every_function_is_on_the_page_with_its_command() -> None:
    functions = {name for name in envspec.__all__ if inspect.isfunction(getattr(envspec, name))}
    assert functions == set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE))
    described = re.findall(r"^\.\. auto(?:function|class|exception):: envspec\.(\w+)$", PAGE, re.MULTILINE)
    assert sorted(described) == sorted(envspec.__all__)
    assert all(inspect.getdoc(getattr(envspec, name)) for name in functions)


def test_a_stream_of_text_takes_the_output_of_containers() -> None:
    text = io.StringIO()
    to = _binary(text)
    euro = "€".encode()
    to.write(euro[:1])
    to.write(euro[1:])
    to.flush()
    assert text.getvalue() == "€"
