"""What `envspec image build` shows at its end: text on stderr, fields in the JSON object."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders.adopted import TEXT, settings_of, write_project
from tests.support.builders.images import ImageUser, image_servers, small_wheel
from tests.support.user import Ran, succeeded

WHEELS = (small_wheel("alpha"), small_wheel("beta", requires=["alpha"]), small_wheel("gamma"), small_wheel("delta"))
KEEP = "to keep this selection, add to pyproject.toml:"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[ImageUser]:
    """In a folder with a project of two extras."""
    with image_servers(*WHEELS) as servers:
        write_project(tmp_path, TEXT + settings_of(servers.base), servers.index)
        yield servers.user_in(tmp_path)


def built(user: ImageUser, *words: str) -> Ran:
    return succeeded(user.runs("image", "build", user.folder / "uv.lock", *words))


def kept(ran: Ran) -> str:
    """The text to paste."""
    return ran.stderr.partition(f"{KEEP}\n")[2]


def test_an_image_of_another_tools_lock(user: ImageUser) -> None:
    for _ in ("built", "known"):
        ran = built(user, "--extra", "more")
        assert ran.stdout.startswith("sha256:")
        assert ran.stdout.count("\n") == 1
        assert "\n  packages    3 (" in ran.stderr
        assert re.search(r"\), image: \d+ layers, [\d.]+ [kM]B\n", ran.stderr)
        assert kept(ran) == '[tool.envspec]\npip = { from = "uv.lock", extras = ["more"] }\n'
    planned = built(user, "--dry-run")
    assert planned.stdout.startswith("would build app for linux-64\n")
    assert "  left out    --extra more (+1), --group dev (+1)\n" in planned.stderr
    assert KEEP not in planned.stderr


def test_an_image_of_an_ordinary_lock(user: ImageUser, tmp_path: Path) -> None:
    built(user)
    (folder,) = (user.cache / "adopted").iterdir()
    shutil.copytree(folder / "lock", tmp_path / "lock")
    ran = succeeded(user.image("build", tmp_path / "lock"))
    assert "\n  packages    2 (" in ran.stderr
    assert "\n  project     not in the image: " in ran.stderr
    assert "left out" not in ran.stderr


def test_quiet_and_json(user: ImageUser) -> None:
    assert built(user, "-q").stderr == ""
    for words in ((), ("--dry-run",)):
        summary = json.loads(built(user, "-q", "--format", "json", *words).stdout)["summary"]
        assert [each["packages"] for each in summary["platforms"]] == [2]
        assert summary["left_out"][0] == {"words": "--extra more", "packages": 1}
    assert json.loads(built(user, "--format", "json", "--dry-run").stdout)["missing_unsized"] == 0


def test_the_text_to_paste_selects_the_same(user: ImageUser) -> None:
    ran = built(user, "--extra", "more", "--group", "dev")
    pyproject = user.folder / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + "\n" + kept(ran))
    again = built(user)
    assert again.stdout == ran.stdout
    assert KEEP not in again.stderr
    assert kept(built(user, "--gpu", "H100", "--dry-run")) == '[tool.envspec]\ncuda = { gpus = ["H100"] }\n'


def test_what_of_the_project_is_in_the_image(user: ImageUser) -> None:
    pyproject = user.folder / "pyproject.toml"
    assert "  project     not in the image: [image] copy adds files" in built(user, "--dry-run").stderr
    (user.folder / "app").mkdir()
    (user.folder / "app" / "__init__.py").write_text("")
    assert "  project     its modules, in the last layer\n" in built(user, "--dry-run", "--project", "editable").stderr
    (user.folder / "main.py").write_text("print(1)\n")
    text = pyproject.read_text()
    pyproject.write_text(text.replace("[tool.envspec.image]\n", '[tool.envspec.image]\ncopy = ["main.py"]\n'))
    assert "  project     files of it, in the last layer\n" in built(user, "--dry-run").stderr


@pytest.mark.parametrize("name", ["Dockerfile", "docker/Dockerfile"])
def test_what_the_dockerfile_installs(user: ImageUser, name: str) -> None:
    path = user.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("FROM python:3.12\nARG PART=more\nCOPY . /app\nWORKDIR /app\nRUN uv sync --frozen --extra $PART\n")
    found = f"  Dockerfile  {name} installs more: add"
    assert f"{found} --extra more --group dev\n" in built(user, "--dry-run").stderr
    assert f"{found} --group dev\n" in built(user, "--dry-run", "--extra", "more").stderr
    path.write_text(path.read_text().replace("--frozen", "--no-dev"))
    assert "Dockerfile" not in built(user, "--dry-run", "--extra", "more").stderr
