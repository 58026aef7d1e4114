"""`[pip] on_top_of`: the packages of a system, from a list of pip's, and an environment on top of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.builders import ecosystem
from tests.support.builders.base_packages import Link, distribution
from tests.support.builders.ecosystem import release
from tests.support.builders.environments import RUNNING
from tests.support.builders.projects import PLAIN
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

SERIES = ".".join(RUNNING.split(".")[:2])
TORCH = "2.8.0+cu128"


@pytest.fixture(scope="module")
def public() -> Iterator[IndexServer]:
    own = [
        release("needs-torch", "1.0.0", requires=["torch>=2.8", "numpy<2", "extra-part"]),
        release("extra-part", "1.0.0"),
        release("extra-part", "2.0.0"),
    ]
    with IndexServer([*ecosystem.torch_family(), *own]) as index:
        yield index


@pytest.fixture
def user(tmp_path: Path, public: IndexServer) -> User:
    return User(tmp_path, public.url)


def wants(user: User, *dependencies: str, rest: str = "", file: str = "system.txt") -> None:
    user.wants(
        *dependencies,
        as_of="2026-06-01T00:00:00Z",
        python=SERIES,
        pip=f'on_top_of = "{file}"\n',
        rest=rest,
    )


def inspected(*packages: tuple[str, str, Sequence[str]], python: str = RUNNING) -> str:
    """The report of `pip inspect`."""
    rows = [
        {"metadata": {"name": name, "version": version, "requires_dist": list(requires)}, "installer": "pip"}
        for name, version, requires in packages
    ]
    return json.dumps({"version": "1", "installed": rows, "environment": {"python_full_version": python}})


LISTS = {
    "inspect": inspected(("torch", TORCH, ["numpy"]), ("numpy", "1.26.4", [])),
    "list": json.dumps([{"name": "torch", "version": TORCH}, {"name": "numpy", "version": "1.26.4"}]),
    "freeze": f"# system\ntorch=={TORCH}\nnumpy @ file:///wheels/numpy-1.26.4-cp311-cp311-linux_x86_64.whl#sha256=ab\n",
}


@pytest.mark.parametrize("form", LISTS)
def test_what_is_listed_is_never_locked(user: User, form: str) -> None:
    (user.folder / "system.txt").write_text(LISTS[form])
    wants(user, "needs-torch", "torch")
    ran = user.locked()
    assert user.pins() == {"needs-torch": "1.0.0", "extra-part": "2.0.0"}
    part = user.document()["resolution"][0]
    assert {each["name"]: each["version"] for each in part["installed"]} == {"torch": TORCH, "numpy": "1.26.4"}
    assert part["on_top_of"] == {"source": "system.txt", "torch_build": "cu128"}
    assert part["python"]["source"] == "spec"
    assert any("does not have what its packages require" in text for text in ran.warnings) is (form != "inspect")


def test_the_file_belongs_to_the_spec(user: User) -> None:
    path = user.folder / "system.txt"
    path.write_text(LISTS["freeze"])
    wants(user, "needs-torch")
    user.locked()
    assert user.locks("--check").status == 0
    path.write_text(LISTS["freeze"] + "extra-part==1.0.0\n")
    assert user.locks("--check").status == 3
    user.locked()
    assert user.pins() == {"needs-torch": "1.0.0"}


def test_the_option_writes_the_key(user: User) -> None:
    (user.folder / "lists").mkdir()
    (user.folder / "lists" / "colab.json").write_text(LISTS["inspect"])
    user.wants("needs-torch", as_of="2026-06-01T00:00:00Z", python=SERIES)
    user.locked("--on-top-of", "lists/colab.json")
    assert '\non_top_of = "lists/colab.json"\n' in user.spec.read_text()
    assert user.pins() == {"needs-torch": "1.0.0", "extra-part": "2.0.0"}
    assert user.locks("--check").status == 0


def test_the_family_comes_from_the_index_of_that_torch(user: User) -> None:
    (user.folder / "system.txt").write_text(inspected(("torch", "2.8.0+cu126", []), ("numpy", "1.26.4", [])))
    with IndexServer(ecosystem.pytorch_index("cu126"), PLAIN, prefix="/whl/cu126") as index:
        user.environ["ENVSPEC_PYTORCH_INDEX"] = index.url.replace("cu126", "{variant}")
        wants(user, "torchvision", rest='[cuda]\ngpus = ["H100"]\n')
        user.locked()
        assert user.pins() == {"torchvision": "0.23.0+cu126"}
        # Nobody has read its libraries: the facts about that release count.
        assert [each["package"] for each in user.document()["gpu_code"]] == ["torch"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff\xfe\x00", "it is not UTF-8"),
        (b"{", "it is not JSON"),
        (b'{"installed": [1]}', "neither the report of `pip inspect`"),
        (b'{"installed": [{"metadata": 1}]}', "has no metadata"),
        (b"-e git+https://host/x.git@abc\n", "no package with a version"),
        (b"[" * 5000, "it is not JSON"),
        (None, "can't be read"),
    ],
    ids=["bytes", "json", "rows", "metadata", "editable", "deep", "missing"],
)
def test_files_that_list_nothing(user: User, content: bytes | None, expected: str) -> None:
    if content is not None:
        (user.folder / "system.txt").write_bytes(content)
    wants(user, "extra-part")
    error = refused(user.locks(), 2)
    assert expected in error and "spec.toml:" in error


def test_another_python(user: User) -> None:
    (user.folder / "system.txt").write_text(inspected(("numpy", "1.26.4", []), python="3.99.1"))
    wants(user, "extra-part")
    assert f"system.txt has Python 3.99.1, but env.python is {SERIES}" in refused(user.locks(), 2)


class System:
    """A virtual environment that stands for a system's Python, with made packages."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        self.site = next(folder.glob("lib/python3*/site-packages"))

    def has(self, name: str, version: str) -> None:
        for path, content in distribution(name, version, site="site").items():
            target = self.site / path.removeprefix("site/")
            target.parent.mkdir(exist_ok=True)
            assert not isinstance(content, Link)
            target.write_bytes(content)


def test_an_environment_on_top_of_a_system(user: User, tmp_path: Path) -> None:
    system = System(tmp_path / "system")
    system.has("torch", TORCH)
    system.has("numpy", "1.26.4")
    (user.folder / "system.txt").write_text(LISTS["inspect"])
    wants(user, "needs-torch")
    user.locked()
    prefix = tmp_path / "env"
    words = ("install", user.lock, "--prefix", prefix, "--python", system.python)
    ran = user.runs(*words)
    assert ran.status == 0, ran.stderr
    code = "import needs_torch, torch, numpy; print(needs_torch.__file__); print(torch.__file__)"
    own, below = subprocess.run(
        [prefix / "bin" / "python", "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert Path(own).is_relative_to(prefix) and Path(below).is_relative_to(system.site)
    verified = user.runs("verify", user.lock, "--prefix", prefix)
    assert verified.status == 0, verified
    system.has("numpy", "1.26.5")
    for path in system.site.glob("numpy-1.26.4.dist-info/*"):
        path.unlink()
    (system.site / "numpy-1.26.4.dist-info").rmdir()
    verified = user.runs("verify", user.lock, "--prefix", prefix)
    assert verified.status == 8
    assert "numpy\n  1.26.5 is on Python's path, the lock is on top of 1.26.4" in verified.stdout


def test_a_system_without_the_packages(user: User, tmp_path: Path) -> None:
    system = System(tmp_path / "system")
    system.has("torch", "2.9.1")
    (user.folder / "system.txt").write_text(LISTS["inspect"])
    wants(user, "needs-torch")
    user.locked()
    error = refused(user.runs("install", user.lock, "--prefix", tmp_path / "env", "--python", system.python), 6)
    assert "does not have the packages of system.txt" in error
    assert f"torch: 2.9.1 is on Python's path, the lock is on top of {TORCH}" in error
    assert "numpy: 1.26.4, on top of which the lock is, is not on Python's path" in error
    assert not (tmp_path / "env").exists()
