"""The whole of pytorch-2.9 as an image: assembled, pushed, pulled by the engine and run; then one package changes.

196 wheels, 9 GB unpacked, from the package index and back through a registry and an engine: minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient
from packaging.utils import canonicalize_name

from envspec.lockfile.folder import read_lock, write_folder
from envspec.operations.lock.complete import lock_files
from envspec.structs import replace
from tests.support import e2e
from tests.support.machines import standin
from tests.support.machines.engine import Done, removed, run_in
from tests.support.user import User, refused
from tests.support.workflows import WHOLE, Repository

pytestmark = [pytest.mark.engine, pytest.mark.network]

#: What the suite can't run on the CPU, and extensions, of which the lock has none.
NOT_RUN = {"device", "extensions", "health", "runtime"}


@dataclass(frozen=True, slots=True)
class Stack:
    """The image where it came to. name: with registry and tag. stored: where the registry keeps what it has."""

    user: User
    lock: Path
    id: str
    name: str
    registry: str
    stored: Path

    @property
    def document(self) -> dict[str, Any]:
        return e2e.read(self.lock / "envspec.lock")


@pytest.fixture(scope="module")
def stack(
    engine: DockerClient,
    standin_base: standin.Pushed,
    registry_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    folder, host = tmp_path_factory.mktemp("stack"), standin_base.registry
    e2e.enough_disk(folder, Path(engine.info()["DockerRootDir"]))
    user = e2e.online(folder, ENVSPEC_REGISTRY_MIRRORS=f"docker.io={host}")
    user.writes(e2e.spec_text(host))
    locked = user.runs("lock", user.spec, "--output", "lock")
    assert locked.status == 0, locked.stderr
    name = f"{host}/e2e/pytorch:one"
    built = user.runs("image", "build", "lock", "--push", name)
    assert built.status == 0, built.stderr
    with removed(engine, name):
        engine.images.pull(name)
        yield Stack(user, folder / "lock", built.stdout.strip(), name, host, registry_folder / "data")
    # pytest keeps its folders for a while, and this one has gigabytes.
    shutil.rmtree(folder)


def inside(engine: DockerClient, stack: Stack, *words: str, **settings: Any) -> Done:
    done = run_in(engine, stack.name, *words, timeout_s=1800, **settings)
    assert done.status == 0, done.output
    return done


def by_pip(engine: DockerClient, stack: Stack, *words: str) -> str:
    environ = {"PYTHONPATH": "/tmp/pip.whl", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = ("python", "-m", "pip", *words)
    return inside(engine, stack, *command, files={"/tmp/pip.whl": e2e.pip_wheel()}, environment=environ).stdout


def test_the_engine_pulls_the_image_that_was_built(engine: DockerClient, stack: Stack) -> None:
    assert engine.images.get(stack.name).id == stack.id
    result = stack.user.runs("image", "id", stack.lock)
    assert result.stdout.strip() == stack.id, result.stderr


def test_every_package_can_be_imported(engine: DockerClient, stack: Stack) -> None:
    result = json.loads(inside(engine, stack, "python", "-c", e2e.IMPORTS).stdout)
    assert not result["failed"]
    assert {"torch", "torchvision", "torchaudio", "torch_geometric", "pytorch_widedeep", "cv2"} <= set(
        result["imported"]
    )
    assert len(result["imported"]) > 180


def test_site_packages_are_what_pip_installs(engine: DockerClient, stack: Stack, tmp_path: Path) -> None:
    wheels, files = tmp_path / "wheels", [file for _, file in e2e.rows(stack.document).values()]
    wheels.mkdir()
    # Where tests share a cache, it is not the user's own.
    archives = Path(stack.user.environ["ENVSPEC_CACHE_DIR"]) / "archives"
    for file in files:
        kept = archives / file["sha256"] / file["filename"]
        (wheels / file["filename"]).symlink_to(Path("/archives", *kept.parts[-2:]))
    lines = [
        f"{name}=={version} --hash=sha256:{file['sha256']}  # {file['size_bytes']}"
        for name, (version, file) in e2e.rows(stack.document).items()
    ]
    (tmp_path / "requirements.txt").write_text("\n--\n".join(lines))
    done = inside(
        engine,
        stack,
        *("python", "-c", e2e.SAME),
        files={"/tmp/pip.whl": e2e.pip_wheel()},
        environment={"PYTHONPATH": "/tmp/pip.whl", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        volumes=[f"{tmp_path}:/given:ro", f"{archives}:/archives:ro"],
    )
    result = json.loads(done.stdout)
    assert not result["wrong"]
    assert result["seen"] > 30_000


def test_pip_finds_what_the_lock_holds_and_nothing_broken(engine: DockerClient, stack: Stack) -> None:
    assert by_pip(engine, stack, "check").strip() == "No broken requirements found."
    rows = json.loads(by_pip(engine, stack, "list", "--format=json"))
    listed = {str(canonicalize_name(row["name"])): row["version"] for row in rows if row["name"] != "pip"}
    locked = {name: version for name, (version, _) in e2e.rows(stack.document).items()}
    assert listed == locked


def test_a_model_learns_on_the_cpu(engine: DockerClient, stack: Stack) -> None:
    first, last = map(float, inside(engine, stack, "python", "-c", e2e.TRAINING).stdout.split())
    assert last < first / 2


def test_torch_compile_finds_its_compiler(engine: DockerClient, stack: Stack) -> None:
    assert inside(engine, stack, "python", "-c", e2e.COMPILE).stdout.strip() == "1"


def test_the_conformance_suite_passes_in_it_by_nox(stack: Stack, tmp_path: Path) -> None:
    """nox end to end: the lock is checked, the image made, the suite run in it on the CPU, the receipt written."""
    copy = Repository(tmp_path / "copy", WHOLE)
    name = "pytorch-2.9-standin"
    copy.writes(f"specs/{name}.toml", e2e.spec_text(stack.registry))
    lock = copy.folder / "locks" / name
    # The same lock, whose spec is elsewhere: its image is the same.
    write_folder(lock, lock_files(replace(read_lock(stack.lock), spec=f"../../specs/{name}.toml")))
    done = subprocess.run(
        [sys.executable, "-m", "nox", "-s", "gpu_conformance", "--", name, "--device", "cpu"],
        cwd=copy.folder,
        env={**stack.user.environ, "PATH": os.environ["PATH"], "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    receipt = json.loads((copy.folder / "receipts" / name / "receipt.json").read_text())
    statuses = {each["check"]: each["status"] for each in receipt["checks"]}
    assert {check for check, status in statuses.items() if status == "not run"} == NOT_RUN
    assert set(statuses.values()) == {"passed", "not run"}
    assert receipt["image"]["id"] == stack.id
    assert receipt["lock"]["sha256"] == hashlib.sha256((lock / "envspec.lock").read_bytes()).hexdigest()


def test_a_gpu_is_asked_for_and_there_is_none(stack: Stack) -> None:
    message = refused(stack.user.runs("conformance", stack.lock, "--image", stack.name), 6)
    assert "`--device cpu` tests what needs no GPU" in message


def test_what_is_pushed_again_uploads_nothing(stack: Stack) -> None:
    before = stored(stack)
    again = stack.user.runs("image", "build", stack.lock, "--push", stack.name)
    assert (again.status, again.stdout.strip()) == (0, stack.id), again.stderr
    assert stored(stack) == before


def test_another_wcwidth_is_one_layer_and_the_config(engine: DockerClient, stack: Stack) -> None:
    user, before = stack.user, stored(stack)
    user.writes(e2e.spec_text(stack.registry).replace('"numpy<2",', '"numpy<2",\n  "wcwidth<0.9.4",'))
    locked = user.runs("lock", user.spec, "--output", "other")
    assert locked.status == 0, locked.stderr
    ours, theirs = e2e.rows(e2e.read(user.folder / "other" / "envspec.lock")), e2e.rows(stack.document)
    assert [name for name in ours if ours[name] != theirs[name]] == ["wcwidth"]

    name = stack.name.replace(":one", ":two")
    built = user.runs("image", "build", "other", "--push", name)
    assert built.status == 0, built.stderr
    new = stored(stack) - before
    # A layer, the config, and the manifest that names them.
    assert len({path for path in new if path.startswith("blobs/")}) == 3
    result = user.runs("image", "diff", stack.name, name)
    assert result.status == 10, result.stderr
    assert "a pull moves 1 layer and the config" in result.stdout
    with removed(engine, name):
        engine.images.pull(name)
        assert engine.images.get(name).id == built.stdout.strip()


def stored(stack: Stack) -> set[str]:
    """Every file of the registry, by what it is of: `blobs/<digest>`, or a repository's link to one."""
    root = stack.stored / "docker" / "registry" / "v2"
    assert root.is_dir()
    files = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    assert not [name for name in files if "/_uploads/" in name]
    return set(files)
