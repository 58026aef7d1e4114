"""What `image build` says and leaves where wheels, indexes, registries and outputs are not as they should be."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.models import BaseImage, Lock, Python
from envspec.structs import replace
from tests.support import preloaded
from tests.support.builders.images import (
    ARM,
    CUDA,
    TAG,
    X86,
    BaseMade,
    ImageServers,
    ImageUser,
    hold_base,
    image_servers,
    make_base,
    small_wheel,
)
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, Method, padding, wheel
from tests.support.builders.zips import FILE, wheel_members, zipped
from tests.support.servers.faults import Corrupt, Drop, Status, Truncate
from tests.support.servers.faults import Fault as IndexFault
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import Cut, Fault, Mute, Say
from tests.support.user import Ran, refused

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

ONE, TWO = small_wheel("one"), small_wheel("two")
#: Bytecode has no part in any of this.
QUICKLY: Final = ("--no-compile-bytecode", "--jobs", "2")


@dataclass
class Scene(ImageServers):
    """Somebody who builds, and everything that they need, of which one thing is broken. right: the image's ID."""

    builder: ImageUser
    right: str
    wheels: tuple[Artifact, ...] = (ONE, TWO)
    outputs: tuple[str, ...] = field(default=("--output", "image.tar", "--layout", "layout"))

    @property
    def name(self) -> str:
        return f"{self.registry.host}/team/app:1"

    def lock(self, *wheels: Artifact, **others: Any) -> Lock:
        return self.lock_of(*(wheels or self.wheels), **others)

    def builds(self, lock: Lock | None = None, *words: str, **environ: str) -> Ran:
        """With every output that there is."""
        folder = self.builder.writes_lock(lock or self.lock())
        return self.builder.image("build", folder, *QUICKLY, *self.outputs, "--push", self.name, *words, **environ)

    def fails(self, status: int, lock: Lock | None = None, *words: str, **environ: str) -> str:
        """The message of a build that leaves nothing anywhere."""
        before = self.registry.tagged("team/app:1")
        text = refused(self.builds(lock, *words, **environ), status)
        assert self.registry.tagged("team/app:1") == before
        assert self.left() == []
        return text

    def left(self) -> list[str]:
        """Outputs, and what is half of one, in the folder and in the cache."""
        files = [path for path in self.builder.folder.iterdir() if path.name.startswith((".", "image"))]
        # What came of a base's layer is kept: the next run asks for the rest.
        files += (self.builder.cache / "archives").rglob("*.part")
        if (self.builder.folder / "layout/index.json").exists():
            files.append(self.builder.folder / "layout")
        return [str(path) for path in files]

    def comes_right(self) -> None:
        """With everything mended, what is in the cache is good for the same image as somebody else's."""
        self.index.heal()
        self.registry.held.fault = lambda _: None
        hold_base(self.registry.held, self.base)
        ran = self.builds()
        assert (ran.status, ran.stdout) == (0, f"{self.right}\n"), ran.stderr
        pushed = self.registry.tagged("team/app:1")
        assert pushed is not None and pushed["config"]["digest"] == self.right
        for path in (self.builder.folder / "layout/blobs/sha256").iterdir():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        for path in (self.builder.cache / "blobs/sha256").iterdir():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The ID of the image of `Scene.lock`, as somebody has it to whom nothing happens."""
    with image_servers(ONE, TWO) as servers:
        builder = servers.user_in(tmp_path_factory.mktemp("right"))
        return builder.id_of(builder.writes_lock(servers.lock_of(ONE, TWO)), *QUICKLY)


@pytest.fixture
def scene(tmp_path: Path, right: str) -> Iterator[Scene]:
    with image_servers(ONE, TWO) as servers:
        yield Scene(**vars(servers), builder=servers.user_in(tmp_path), right=right)


# Wheels on their way


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Corrupt(), "SHA-256"),
        (Truncate(50), "50 of"),
        (Drop(100), "the response ended early"),
        (Status(404), "404"),
        (Status(500), "500"),
    ],
    ids=["wrong hash", "truncated", "half", "gone", "500"],
)
def test_a_wheel_that_does_not_come_right(fault: IndexFault, words: str, scene: Scene) -> None:
    scene.index.fail(scene.index.file_path(TWO.filename), fault)
    text = scene.fails(5)
    assert words in text and "two" in text
    assert not (scene.builder.cache / "archives" / TWO.sha256 / TWO.filename).exists()
    scene.comes_right()


def test_an_index_that_lists_another_hash(scene: Scene) -> None:
    other = replace(TWO, data=wheel("two", "1.0").data)
    scene.index.remove("two")
    scene.index.add(File(other))
    text = scene.fails(5)
    assert TWO.sha256 in text and other.sha256 in text and TWO.filename in text
    scene.index.remove("two")
    scene.index.add(File(TWO))
    scene.comes_right()


# Wheels that must not be unpacked


def bad(*members: tuple[str, bytes, int], **options: int) -> Artifact:
    data = zipped(wheel_members("bad", "1.0", members), **options)
    return Artifact("bad", "1.0", "bad-1.0-py3-none-any.whl", data, b"")


#: Readers of wheels refuse many more: tests/image/test_wheel_zip.py, tests/security/hostile_wheels.py.
BAD: Final[dict[str, tuple[Callable[[], Artifact], str]]] = {
    "dots": (lambda: bad(("../../../etc/passwd", b"root", FILE)), "outside"),
    "another": (lambda: replace(wheel("good", "1.0"), name="bad", filename="bad-1.0-py3-none-any.whl"), "good"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wheel_that_must_not_be_unpacked(what: str, scene: Scene) -> None:
    make, words = BAD[what]
    made = make()
    scene.index.add(File(made))
    text = scene.fails(5, scene.lock(ONE, TWO, made))
    assert text.startswith(f"{made.filename}: ") and words in text, text
    assert scene.registry.changes() == []
    scene.comes_right()


def test_two_wheels_that_own_one_path(scene: Scene) -> None:
    first = wheel("nv-one", "1.0", files={"nv/__init__.py": b"", "nv/one.py": b"x = 1\n"})
    same = wheel("nv-two", "2.0", files={"nv/__init__.py": b"", "nv/two.py": b"x = 2\n"})
    # Alone in its layer: who writes one layer does not see both.
    big = wheel("nv-big", "4.0", files={"nv/one.py": b"x = 4\n", "nv/data": padding(2_200_000)})
    folder = wheel("nv-folder", "5.0", files={"nv/one.py/inside.py": b""})
    for each in (first, same, big, folder):
        scene.index.add(File(each))
    message = scene.fails(4, scene.lock(first, same, big))
    assert "opt/env/lib/python" in message and "/nv/one.py " in message
    assert "nv-one 1.0" in message and "nv-big 4.0" in message
    assert "nv-folder 5.0" in scene.fails(4, scene.lock(first, folder))
    assert scene.registry.changes() == []
    assert scene.builds(scene.lock(first, same)).status == 0


# The base


def always(fault: Fault, method: str, word: str) -> Callable[[Asked], Fault | None]:
    return lambda ask: fault if ask.method == method and word in ask.path else None


def flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


def last_layer(base: BaseMade) -> str:
    return str(json.loads(base.manifests[0])["layers"][-1]["digest"])


LOGIN: Final[dict[str, tuple[Fault, str]]] = {
    "login": (Say(401, {"WWW-Authenticate": 'Basic realm="x"'}), "docker login"),
    "forbidden": (Say(403), "docker login"),
}
BASE_FAULTS: Final[dict[str, tuple[Fault, str]]] = {
    "429": (Say(429, {"Retry-After": "3600"}), "3600"),
    "500": (Say(500), "500"),
    "half": (Cut(100), "the response ended early"),
    "mute": (Mute(), ""),
    **LOGIN,
    "gone": (Say(404, {}, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'), "deleted it"),
}


@pytest.mark.parametrize("what", BASE_FAULTS)
@pytest.mark.parametrize("part", ["manifests", "blobs"])
def test_a_base_that_can_not_be_had(what: str, part: str, scene: Scene) -> None:
    fault, words = BASE_FAULTS[what]
    scene.registry.held.knows_ranges = False
    where = f"nvidia/cuda/manifests/{scene.base.digest}" if part == "manifests" else last_layer(scene.base)
    scene.registry.held.fault = always(fault, "GET", where)
    text = scene.fails(5)
    assert words in text and ("nvidia/cuda" in text or what == "429")
    scene.comes_right()


@pytest.mark.parametrize("part", ["manifest", "config", "layer"])
def test_a_base_whose_bytes_are_others(part: str, scene: Scene) -> None:
    held, digest = scene.registry.held, scene.base.digest
    config = str(json.loads(scene.base.manifests[0])["config"]["digest"])
    if part == "manifest":
        kind, body = held.tags["nvidia/cuda"][digest]
        held.tags["nvidia/cuda"][digest] = (kind, flipped(body))
    else:
        name = config if part == "config" else last_layer(scene.base)
        held.blobs["nvidia/cuda"][name] = flipped(held.blobs["nvidia/cuda"][name])
    text = scene.fails(5)
    assert {"manifest": digest, "config": config, "layer": last_layer(scene.base)}[part] in text
    scene.comes_right()


@pytest.mark.parametrize(
    ("base", "status", "words"),
    [
        (make_base(ARM), 5, ("linux/arm64", "linux/amd64", TAG)),
        (make_base(ARM, ARM), 5, ("not published for linux-64", "linux/arm64")),
        (make_base(layers=119), 2, ("119 layers", "120")),
        (None, 2, ("no base image",)),
        (BaseImage(CUDA, TAG, None, "base", "ubuntu24.04", ()), 2, (TAG,)),
    ],
    ids=["another platform", "an index without it", "too many layers", "none", "no digest"],
)
def test_a_base_that_does_not_fit(
    base: BaseMade | BaseImage | None, status: int, words: tuple[str, ...], scene: Scene
) -> None:
    if isinstance(base, BaseMade):
        base = hold_base(scene.registry.held, base).named((X86,))
    message = scene.fails(status, replace(scene.lock(), base_image=base))
    assert all(word in message for word in words), message
    scene.comes_right()


def test_no_network_allowed(scene: Scene) -> None:
    assert "--push" in scene.fails(2, None, "--offline")
    words = ("build", scene.builder.writes_lock(scene.lock()), *QUICKLY)
    assert "run once with a network" in refused(scene.builder.image(*words, "--offline", *scene.outputs), 5)
    assert scene.left() == []
    ran = scene.builder.image(*words)
    assert ran.status == 0, ran.stderr
    for name in ("archives", "image-layers", "image-known"):
        shutil.rmtree(scene.builder.cache / name)
    assert "not in the cache" in refused(scene.builder.image(*words, "--offline"), 5)


# The registry that it is pushed to

PUSH_FAULTS: Final[dict[str, tuple[Fault, str]]] = {
    "429": (Say(429, {"Retry-After": "3600"}), "3600"),
    "500": (Say(500), "500"),
    "half": (Cut(10), ""),
    "no answer": (Mute(), ""),
    **LOGIN,
    "another digest": (Say(201, {"Docker-Content-Digest": f"sha256:{'0' * 64}"}), "0" * 64),
}
#: More of them: tests/registry/test_push.py.
PUSHES: Final = (
    *(("429", "POST"), ("no answer", "POST"), ("login", "POST"), ("500", "PUT blobs"), ("forbidden", "PUT blobs")),
    *(("half", "PUT manifests"), ("500", "PUT manifests"), ("another digest", "PUT manifests")),
)


@pytest.mark.parametrize(("what", "method"), PUSHES)
def test_a_registry_that_takes_nothing(what: str, method: str, scene: Scene) -> None:
    fault, words = PUSH_FAULTS[what]
    scene.outputs = ()
    if "manifests" in method:
        # The tag names an image already, which it keeps.
        assert scene.builds(scene.lock(ONE)).status == 0
    verb, _, word = method.partition(" ")
    old = scene.registry.tagged("team/app:1")
    scene.registry.held.fault = always(fault, verb, f"team/app/{word}")
    text = refused(scene.builds(), 5)
    assert words in text and (scene.registry.host if what == "429" else "team/app") in text
    assert scene.registry.tagged("team/app:1") == old
    scene.registry.held.fault = lambda _: None
    assert scene.builds().stdout == f"{scene.right}\n"


def test_a_registry_with_faults_that_pass(scene: Scene) -> None:
    seen: dict[tuple[str, str], int] = {}

    def now_and_then(ask: Asked) -> Fault | None:
        kind = (ask.method, ask.path.rpartition("/")[0])
        seen[kind] = seen.get(kind, 0) + 1
        return (Say(429), Cut(30), None)[min(seen[kind], 3) - 1]

    scene.registry.held.fault = now_and_then
    ran = scene.builds()
    assert ran.status == 0, ran.stderr
    assert "trying again in" in ran.stderr
    scene.comes_right()


def test_a_login_that_is_there(scene: Scene) -> None:
    wanted = base64.b64encode(b"tester:s3cret").decode()

    def guarded(ask: Asked) -> Fault | None:
        right = ask.headers.get("authorization") == f"Basic {wanted}"
        return None if right else Say(401, {"WWW-Authenticate": 'Basic realm="x"'})

    scene.registry.held.fault = guarded
    assert f"docker login {scene.registry.host}" in scene.fails(5)
    (scene.builder.home / ".docker").mkdir()
    login = {"auths": {scene.registry.host: {"auth": wanted}}}
    (scene.builder.home / ".docker/config.json").write_text(json.dumps(login))
    ran = scene.builds()
    assert ran.status == 0, ran.stderr
    assert "s3cret" not in ran.stderr and wanted not in ran.stderr


# Outputs and options


def test_outputs_that_can_not_be_written(scene: Scene) -> None:
    lock = scene.builder.writes_lock(scene.lock())
    (scene.builder.folder / "file").write_text("")
    (scene.builder.folder / "full").mkdir()
    (scene.builder.folder / "full/mine.txt").write_text("mine")
    for words, status, text in (
        (("--output", "file/image.tar"), 6, "file"),
        (("--output", "full"), 2, "full is a folder"),
        (("--output", "image.tar", "--tag", "team/app:1:2"), 2, "team/app:1:2"),
        (("--layout", "file"), 2, "is a file"),
        (("--layout", "file/below"), 6, "file"),
        (("--layout", "full"), 2, "neither empty nor an OCI layout"),
        (("--push", "not a reference"), 2, "not a reference"),
    ):
        assert text in refused(scene.builder.image("build", lock, *QUICKLY, *words), status), words
    assert [path.name for path in (scene.builder.folder / "full").iterdir()] == ["mine.txt"]
    assert scene.left() == [] and scene.registry.changes() == []


def test_no_python_to_compile_with(scene: Scene) -> None:
    nobody = {"HOME": str(scene.builder.home), "PYENV_ROOT": "/nowhere", "PATH": "/nowhere"}
    old = Python("3.9.99", "system")
    text = scene.builder.image("build", scene.builder.writes_lock(scene.lock(python=old)), **nobody)
    assert "3.9.99" in refused(text, 6) and "--no-compile-bytecode" in text.stderr


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_cache_that_is_damaged(how: str, scene: Scene) -> None:
    """It is noticed, and then fetched or made again; nothing that was damaged gets into an image."""
    big = wheel("big", "1.0", files={"big/x": padding(60_000) + bytes(60_000)}, method=Method.DEFLATED)
    scene.index.add(File(big))
    lock = scene.builder.writes_lock(scene.lock(ONE, TWO, big))
    words = ("build", lock, *QUICKLY, "--layout", "layout")
    first = scene.builder.image(*words)
    assert first.status == 0, first.stderr
    folders = ("archives", "blobs", "image-layers", "image-owned")
    files = [path for name in folders for path in sorted((scene.builder.cache / name).rglob("*")) if path.is_file()]
    assert len(files) > 10
    again = 0
    for path in filter(Path.exists, files):
        body = path.read_bytes()
        half = len(body) // 2
        path.write_bytes(body[:half] + (b"" if how == "cut" else bytes([body[half] ^ 1]) + body[half + 1 :]))
        for _ in range(2):
            shutil.rmtree(scene.builder.folder / "layout", ignore_errors=True)
            shutil.rmtree(scene.builder.cache / "image-known", ignore_errors=True)
            ran = scene.builder.image(*words)
            if ran.status == 0:
                break
            again += 1
            assert "run the same command again" in refused(ran, ran.status), (path, ran.stderr)
        assert (ran.status, ran.stdout) == (0, first.stdout), (path, ran.stderr)
        for made in (scene.builder.folder / "layout/blobs/sha256").iterdir():
            assert hashlib.sha256(made.read_bytes()).hexdigest() == made.name, path
    assert again < len(files)
