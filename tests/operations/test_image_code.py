"""The project's code in an image: what a change of it moves, and the ID that follows from lock and code."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.build.wheel import check_copy, folder_source
from envspec.context import Context
from envspec.documents import parse_toml
from envspec.errors import UsageError
from envspec.io.files import tree_sha256
from envspec.models import ImageId, ImageSettings, Lock, Platform, Service
from envspec.operations.image_cache import ImageRequest
from envspec.structs import replace
from tests.support import preloaded
from tests.support.builders.environments import RUNNING, SERIES
from tests.support.builders.images import ImageServers, ImageUser, image_servers, small_wheel
from tests.support.builders.wheels import padding, wheel
from tests.support.machines.confinement import confined
from tests.support.servers.faults import Stall
from tests.support.user import refused, succeeded
from tests.support.waits import wait_for

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

BIG: Final = wheel("big", "1.0", files={"big/__init__.py": b"", "big/data.bin": padding(2_200_000)})
SMALL: Final = small_wheel("alpha")
PROJECT: Final = """[project]
name = "my-trainer"
version = "1.2"
dependencies = ["alpha>=1"]

[project.optional-dependencies]
gpu = ["unknown; python_version >= '3'"]

[project.scripts]
train = "my_trainer.main:run"

[tool.envspec]
dependencies_from = ["project"]
"""
CODE: Final = {
    "src/my_trainer/__init__.py": "",
    "src/my_trainer/main.py": "def run():\n    print('one')\n",
    "src/my_trainer/__pycache__/main.pyc": "of this machine",
    "src/.git/config": "of git",
    "configs/a.yaml": "a: 1\n",
    "data/set.bin": "not copied",
    "pyproject.toml": PROJECT,
}
EDITABLE: Final = ImageSettings(project="editable", copy=("configs",))
SITE: Final = f"opt/env/lib/python{SERIES}/site-packages"


@dataclass
class Scene(ImageServers):
    """A project of each user; their locks are in `locks/small`."""

    folder: Path

    def new_user(self, name: str) -> ImageUser:
        builder = self.user_in(self.folder / name)
        for path, text in CODE.items():
            (builder.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (builder.folder / path).write_text(text)
        return builder

    def lock(self, builder: ImageUser, image: ImageSettings, spec: str = "../../pyproject.toml", **others: Any) -> Path:
        return builder.writes_lock(self.locked(image, spec, **others), "locks/small")

    def locked(self, image: ImageSettings, spec: str = "../../pyproject.toml", **others: Any) -> Lock:
        return self.lock_of(BIG, SMALL, **{"image": image, "spec": spec, "name": "my-trainer", **others})

    def document(self, name: str) -> Any:
        return json.loads(self.registry.held.blobs["team/app"][name])

    def files(self, builder: ImageUser, lock: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
        """The files, folders and links of an image's layers, the uppermost of each path."""
        builder.id_of(lock, "--layout", "layout", "--compression", "none")
        [row] = json.loads((builder.folder / "layout/index.json").read_bytes())["manifests"]
        blobs = builder.folder / "layout/blobs/sha256"
        found: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
        for each in json.loads((blobs / row["digest"][7:]).read_bytes())["layers"]:
            with tarfile.open(blobs / each["digest"][7:]) as layer:
                for member in layer:
                    file = layer.extractfile(member) if member.isfile() else None
                    found[member.name] = (member, file.read() if file else b"")
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with image_servers(BIG, SMALL) as servers:
        yield Scene(**vars(servers), folder=tmp_path)


def edit(builder: ImageUser, text: str = "two") -> None:
    path = builder.folder / "src/my_trainer/main.py"
    path.write_text(path.read_text().replace("one", text))


def test_a_changed_line_moves_the_code_alone(scene: Scene) -> None:
    builder = scene.new_user("one")
    lock, name = scene.lock(builder, EDITABLE), f"{scene.registry.host}/team/app"
    first = builder.id_of(lock, "--push", f"{name}:1")
    before = scene.registry.stored("team/app")
    edit(builder)
    scene.registry.forget()
    scene.index.forget()
    second = builder.id_of(lock, "--push", f"{name}:1")
    new = scene.registry.stored("team/app") - before
    manifest = scene.registry.tagged("team/app:1")
    assert manifest is not None and second != first
    last = manifest["layers"][-1]
    assert new == {last["digest"], second}
    assert last["size"] < 2000 and scene.document(second)["history"][-1]["created_by"].startswith("envspec: code of")
    # Two uploads, each begun and ended, and the manifest; of the packages nothing is requested.
    assert sorted(ask.method for ask in scene.registry.changes()) == ["POST", "POST", "PUT", "PUT", "PUT"]
    assert scene.index.requests == []
    # As before again: everything is there.
    edit(builder, "one")
    (builder.folder / "src/my_trainer/main.py").write_text(CODE["src/my_trainer/main.py"])
    scene.registry.forget()
    assert builder.id_of(lock, "--push", f"{name}:2") == first
    assert [ask.method for ask in scene.registry.changes()] == ["PUT"]


def test_the_id_follows_from_lock_and_code(scene: Scene) -> None:
    one, other = scene.new_user("one"), scene.new_user("other")
    lock = scene.lock(one, EDITABLE)
    first = one.id_of(lock)
    other_lock = scene.lock(other, EDITABLE)
    # Of another machine: times, modes beside the executable bit, and what no build reads.
    for path in (other.folder / "src").rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    (other.folder / "src/my_trainer/__pycache__/main.pyc").write_text("of that machine")
    (other.folder / "README.md").write_text("Not copied.")
    assert other.id_of(other_lock) == first
    ids = {first}
    changes: dict[str, Callable[[], object]] = {
        "code": lambda: edit(one),
        "a mode": lambda: (one.folder / "configs/a.yaml").chmod(0o755),
        "a new file": lambda: (one.folder / "configs/b.yaml").write_text(""),
        "a version": lambda: (one.folder / "pyproject.toml").write_text(PROJECT.replace("1.2", "1.3")),
    }
    for number, (what, change) in enumerate(changes.items()):
        change()
        for words in (("id", lock), ("build", lock)):
            ids.add(one.image(*words).stdout.strip())
        assert len(ids) == number + 2, what
    planned = json.loads(one.image("build", lock, "--dry-run", "--format", "json").stdout)
    assert planned["images"][0]["id"] == one.id_of(lock)
    edit(one, "three")
    (one.folder / "configs/b.yaml").unlink()
    assert json.loads(one.image("build", lock, "--dry-run", "--format", "json").stdout)["images"] == []
    compared = one.image("diff", lock, other_lock, "--format", "json")
    assert compared.status == 10 and len(json.loads(compared.stdout)["moved"]) in (1, 2), compared.stderr


def test_the_lock_stays_as_it_is_when_code_changes(scene: Scene) -> None:
    """The ID that it records is that of the image without code."""
    builder = scene.new_user("one")

    def recorded(identity: str) -> Path:
        return scene.lock(builder, EDITABLE, images=(ImageId(Platform.LINUX_64, identity, pyc=True),))

    error = refused(builder.image("build", recorded(f"sha256:{'0' * 64}")), 3)
    found = re.search(r"on linux-64, without the project's code, is (sha256:[0-9a-f]{64})", error)
    assert found
    lock = recorded(found[1])
    first = builder.id_of(lock)
    edit(builder)
    assert len({first, builder.id_of(lock), found[1]}) == 3


@pytest.mark.parametrize("services", [(), (Service("ssh", 2222),)])
def test_what_an_editable_project_is(services: tuple[Service, ...], scene: Scene) -> None:
    builder = scene.new_user("one")
    (builder.folder / "src/my_trainer/link.py").symlink_to("main.py")
    (builder.folder / "src/my_trainer/run").write_text("#!/bin/sh\n")
    (builder.folder / "src/my_trainer/run").chmod(0o775)
    found = scene.files(builder, scene.lock(builder, replace(EDITABLE, services=services, workdir="/srv/app")))
    info = f"{SITE}/my_trainer-1.2.dist-info"
    assert found[f"{SITE}/__editable__.my_trainer-1.2.pth"][1] == b"/srv/app/src\n"
    assert b'Requires-Dist: unknown; python_version >= "3" and extra == "gpu"' in found[f"{info}/METADATA"][1].replace(
        b"(", b""
    ).replace(b")", b"")
    assert json.loads(found[f"{info}/direct_url.json"][1])["url"] == "file:///srv/app/src"
    assert b"from my_trainer.main import run" in found["opt/env/bin/train"][1]
    code = {path: each for path, (each, _) in found.items() if path.startswith("srv")}
    assert sorted(code) == [
        *("srv", "srv/app", "srv/app/configs", "srv/app/configs/a.yaml", "srv/app/src", "srv/app/src/my_trainer"),
        *(f"srv/app/src/my_trainer/{name}" for name in ("__init__.py", "link.py", "main.py", "run")),
    ]
    owner = 1000 if services else 0
    assert {(each.uid, each.gid) for path, each in code.items() if path != "srv"} == {(owner, owner)}
    assert {each.mtime for each in code.values()} == {315_532_800}
    modes = {path.rpartition("/")[2]: each.mode for path, each in code.items()}
    assert (modes["main.py"], modes["run"], modes["src"]) == (0o644, 0o755, 0o755)
    assert code["srv/app/src/my_trainer/link.py"].linkname == "main.py"


def test_a_spec_in_specs_belongs_to_the_folder_above(scene: Scene) -> None:
    builder = scene.new_user("one")
    (builder.folder / "specs").mkdir()
    (builder.folder / "specs/small.toml").write_text('[env]\nname = "my-trainer"\n')
    (builder.folder / "tool.py").write_text("")
    image = ImageSettings(copy=("../tool.py", "../src/my_trainer", "../src"))
    found = scene.files(builder, scene.lock(builder, image, "../../specs/small.toml"))
    assert {path for path in found if path.startswith("workspace/") and path.count("/") < 3} == {
        *("workspace/tool.py", "workspace/src", "workspace/src/my_trainer")
    }
    error = refused(
        builder.image("build", scene.lock(builder, ImageSettings(copy=("../../x",)), "../../specs/small.toml")), 2
    )
    assert "[image] copy: ../../x is outside of the project's folder" in error


@pytest.mark.parametrize("flat", ["my_trainer", "my_trainer.py"])
def test_modules_beside_pyproject(flat: str, scene: Scene) -> None:
    builder = scene.new_user("one")
    (builder.folder / "src").rename(builder.folder / "other")
    if flat.endswith(".py"):
        (builder.folder / flat).write_text("")
    else:
        (builder.folder / "other/my_trainer").rename(builder.folder / flat)
    found = scene.files(builder, scene.lock(builder, replace(EDITABLE, copy=())))
    assert found[f"{SITE}/__editable__.my_trainer-1.2.pth"][1] == b"/workspace\n"
    assert f"workspace/{flat}" in found and "workspace/configs" not in found


def _link(to: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "src/link").symlink_to(to)

    return change


def _pyproject(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "pyproject.toml"
        path.write_text(path.read_text().replace(old, new))

    return change


def _project_called(line: str) -> Callable[[Path], object]:
    """Another name of the project, while that of the environment stays the lock's."""
    named = '[tool.envspec.env]\nname = "my-trainer"\n\n[tool.envspec]'
    text = PROJECT.replace('name = "my-trainer"', line).replace("[tool.envspec]", named)
    return lambda folder: (folder / "pyproject.toml").write_text(text)


def _many(folder: Path) -> None:
    for name in ("one.bin", "two.bin"):
        with (folder / "src" / name).open("wb") as file:
            file.truncate(150 << 20)


REFUSED: Final[dict[str, tuple[str, ImageSettings, Callable[[Path], object]]]] = {
    "missing": ("there is no conf in", ImageSettings(copy=("conf",)), lambda _: None),
    "empty": ("there is nothing to copy in", ImageSettings(copy=("empty",)), lambda folder: (folder / "empty").mkdir()),
    "outside": ("../x is outside of the project's folder", ImageSettings(copy=("../x",)), lambda _: None),
    "absolute": ("/etc is outside of the project's folder", ImageSettings(copy=("/etc",)), lambda _: None),
    "a link to elsewhere": (
        "etc leads out of",
        ImageSettings(copy=("etc",)),
        lambda folder: (folder / "etc").symlink_to("/etc"),
    ),
    "a link in it": ("leads to '/etc/passwd', which is not copied", EDITABLE, _link("/etc/passwd")),
    "a relative link": ("leads to '../../../x', which is not copied", EDITABLE, _link("../../../x")),
    "a link to what is not copied": ("leads to '../data/set.bin'", EDITABLE, _link("../data/set.bin")),
    "a pipe": ("not a regular file", EDITABLE, lambda folder: os.mkfifo(folder / "src/pipe")),
    "a whiteout": ("would hide files of an image's lower", EDITABLE, lambda folder: (folder / "src/.wh.a").touch()),
    "a line feed": ("has a control character in its name", EDITABLE, lambda folder: (folder / "src/a\nb").touch()),
    "no text": (
        "has a control character",
        EDITABLE,
        lambda folder: Path(os.fsdecode(bytes(folder / "src/\udcff"))).touch(),
    ),
    "too much": ("the code has more than 256 MiB, with", EDITABLE, _many),
    "a system's folder": ("workdir: /srv is a folder of the system", replace(EDITABLE, workdir="/srv"), lambda _: None),
    "no spec": ("and there is no such file", EDITABLE, lambda folder: (folder / "pyproject.toml").unlink()),
    "no name": ("it has no [project] name", EDITABLE, _project_called("")),
    "dynamic": ("leaves version to its", EDITABLE, _pyproject('version = "1.2"', 'dynamic = ["version"]')),
    "no version": ("leaves version to its", EDITABLE, _pyproject('version = "1.2"', "")),
    "no requirement": ("pyproject.toml: ", EDITABLE, _pyproject("alpha>=1", "alpha =1")),
    "a version that is none": ("Invalid version: 'one'", EDITABLE, _pyproject("1.2", "one")),
    "a key with lines": ("has a control character", EDITABLE, _pyproject("train =", '"a\\n[x]\\nb" =')),
    "not in the lock": ('"beta" (not in the lock)', EDITABLE, _pyproject("alpha>=1", "beta")),
    "in the lock": ("alpha is a package of the lock already", EDITABLE, _project_called('name = "alpha"')),
    "no modules": (
        "has neither src nor my_trainer",
        replace(EDITABLE, copy=()),
        lambda folder: (folder / "src").rename(folder / "lib"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, scene: Scene) -> None:
    message, image, change = REFUSED[case]
    builder = scene.new_user("one")
    change(builder.folder)
    error = refused(builder.image("build", scene.lock(builder, image)), 2)
    assert message in error and "internal" not in error


def test_a_lock_without_its_project(scene: Scene) -> None:
    """Somewhere else, such as a lock that was sent alone."""
    builder = scene.new_user("one")
    for image in (EDITABLE, ImageSettings(copy=("src",)), ImageSettings(project="wheel")):
        error = refused(builder.image("id", scene.lock(builder, image, "")), 2)
        assert "contains the project's code, and where that is is not known" in error


BACKEND: Final = '''"""A build backend that needs nothing."""
import zipfile


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "my_trainer-1.2-py3-none-any.whl"
    info = "my_trainer-1.2.dist-info"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as archive:
        for module in ("__init__", "main"):
            archive.write(f"src/my_trainer/{module}.py", f"my_trainer/{module}.py")
        metadata = "Metadata-Version: 2.1\\nName: my-trainer\\nVersion: 1.2\\nRequires-Dist: alpha\\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tag = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    return name
'''


@confined
def test_a_wheel_of_the_project(scene: Scene) -> None:
    builder = scene.new_user("one")
    system = '\n[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (builder.folder / "backend.py").write_text(BACKEND)
    (builder.folder / "pyproject.toml").write_text(PROJECT + system)
    image = ImageSettings(project="wheel", copy=("configs",))
    lock = scene.lock(builder, image)
    found = scene.files(builder, lock)
    assert b"print('one')" in found[f"{SITE}/my_trainer/main.py"][1] and "workspace/configs/a.yaml" in found
    assert f"{SITE}/my_trainer/__pycache__/main.cpython-{SERIES.replace('.', '')}.pyc" in found
    assert not any(path.startswith("workspace/src") for path in found)
    first = builder.id_of(lock)
    edit(builder)
    name = f"{scene.registry.host}/team/app:1"
    assert builder.id_of(lock, "--push", name) != first
    manifest = scene.registry.tagged("team/app:1")
    assert manifest is not None
    assert b"print('two')" in scene.files(builder, lock)[f"{SITE}/my_trainer/main.py"][1]


def test_the_projects_layer_does_not_wait_for_downloads(scene: Scene) -> None:
    builder = scene.new_user("one")
    lock = scene.lock(builder, EDITABLE)
    scene.index.fail(scene.index.file_path(BIG.filename), Stall(60))
    run = builder.begins("build", lock)
    heads = partial(builder.cache.glob, "image-layers/*/*/*.json")
    wait_for(lambda: any(b"my-trainer 1.2" in head.read_bytes() for head in heads()))
    run.child.signal(signal.SIGTERM)
    assert run.ends().status == 143


def test_an_edit_during_the_build_is_not_remembered_as_the_code_before(scene: Scene) -> None:
    builder = scene.new_user("one")
    context = Context({}, builder.home, builder.folder / "known")
    lock = str(scene.lock(builder, EDITABLE))
    request = ImageRequest(lock, context)
    edit(builder)
    request.remember((), "sha256:of the edited code")
    edit(builder, "three")
    (builder.folder / "src/my_trainer/main.py").write_text(CODE["src/my_trainer/main.py"])
    assert ImageRequest(lock, context).cached() is None


def test_a_folder_that_changes_between_its_hash_and_its_copy_is_not_built(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.py").write_text("a = 1\n")
    source = folder_source(project, tree_sha256(project))
    asyncio.run(source.lay_out(tmp_path / "same", "a"))
    (project / "a.py").write_text("a = 2\n")
    with pytest.raises(UsageError, match="changed while"):
        asyncio.run(source.lay_out(tmp_path / "other", "a"))
    copied = tmp_path / "a.whl"
    copied.write_bytes(b"of another build")
    with pytest.raises(UsageError, match="changed while"):
        check_copy(copied, tmp_path / "b.whl", "0" * 64)
    assert not copied.exists()


def test_from_pyproject_to_an_image(scene: Scene) -> None:
    """All of it by the user's own commands; the lock records the ID of the image without code."""
    builder = scene.new_user("one")
    table = f"""
[tool.envspec.env]
python = "{SERIES}"
as_of = 2026-06-01

[tool.envspec.image]
base = "docker.io/{scene.base.named().repository.partition("/")[2]}@{scene.base.digest}"
glibc = "2.36"
python = "{RUNNING}"
project = "editable"
copy = ["configs"]
"""
    (builder.folder / "pyproject.toml").write_text(PROJECT + table)
    succeeded(builder.runs("lock", ".", "--image"))
    first = builder.id_of("my-trainer")
    [recorded] = parse_toml((builder.folder / "locks/my-trainer/envspec.lock").read_text())["image_id"]
    assert recorded["id"] != first
    edit(builder)
    assert builder.id_of("my-trainer") != first
    succeeded(builder.runs("lock", ".", "--check"))
    exported = builder.runs("export", "my-trainer", "--format", "dockerfile")
    assert "[image] copy and [image] project" in refused(exported, 2)


SECRETS: Final = (
    ".aws/credentials",
    ".docker/config.json",
    ".env",
    ".env.production",
    ".netrc",
    ".pypirc",
    "keys/id_ed25519",
    "keys/id_rsa",
    "src/.ssh/config",
)
HARMLESS: Final = (".docker/buildx", ".env.example", "env.py", "src/id_map.py", "keys/id_rsa.pub", "keys/ids")


def test_files_with_names_of_secrets_are_warned_of(scene: Scene) -> None:
    builder = scene.new_user("one")
    for name in (*SECRETS, *HARMLESS):
        (builder.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (builder.folder / name).write_text("x")
    lock = scene.lock(builder, ImageSettings(copy=(".",)))
    # The second run knows the image already.
    for words in ((lock, "--dry-run"), (lock,), (lock,)):
        ran = succeeded(builder.image("build", *words, "--format", "json"))
        document = json.loads(ran.stdout)
        assert document["secret_files"] == list(SECRETS)
        # The lock's hash of its spec is made up.
        [warning] = [each for each in document["warnings"] if "is stale" not in each]
        assert warning in ran.stderr and ".env" in warning and "and 4 more" in warning
    for name in SECRETS:
        (builder.folder / name).unlink()
    ran = succeeded(builder.image("build", lock, "--format", "json"))
    assert json.loads(ran.stdout)["secret_files"] == [] and all("is stale" in each for each in ran.warnings)
