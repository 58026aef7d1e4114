"""`image verify`: 200 changes of an image or its lock, each found and named, and 50 images that are the same."""

from __future__ import annotations

import bz2
import copy
import gzip
import hashlib
import io
import itertools
import json
import lzma
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.context import Context
from envspec.image.verification import ImageVerification
from envspec.models import ImageId, Lock, Python, SystemLayer
from envspec.operations.image_source import NoImage
from envspec.operations.image_verify import Depth, verify
from envspec.registry.types import BadManifest
from envspec.structs import replace
from tests.operations.test_image_libraries import lay_system_layer
from tests.security.test_output import CODES, is_clean
from tests.support import preloaded
from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import write
from tests.support.builders.environments import RUNNING, SERIES, conda_row, pin
from tests.support.builders.images import (
    ARM,
    PYTHON,
    X86,
    ImageServers,
    ImageUser,
    hold_base,
    image_lock,
    image_servers,
    make_base,
    small_wheel,
)
from tests.support.builders.wheels import wheel
from tests.support.user import refused

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

WHEELS: Final = (
    small_wheel("alpha"),
    small_wheel("beta-kit"),
    wheel(
        "gamma",
        "1.0",
        files={
            "gamma/__init__.py": b"x = 1\n",
            "gamma/m0.py": b"def f():\n    pass\n",
            "gamma-1.0.dist-info/entry_points.txt": b"[console_scripts]\ngamma = gamma.m0:f\n",
        },
    ),
)
OTHERS: Final = (
    small_wheel("alpha", "1.1"),
    wheel("alpha", "1.0", build="1", files={"alpha/__init__.py": b"other = 1\n"}),
)
SITE: Final = f"opt/env/lib/python{SERIES}/site-packages"


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@dataclass
class Image:
    """An image in memory, its layers not packed."""

    config: dict[str, Any]
    layers: list[bytes]
    #: Of the config; None: as the layers are.
    diff_ids: list[str] | None = None

    def write(self, folder: Path, *, form: str = "oci") -> Path:
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)

        def keep(body: bytes, kind: str) -> dict[str, Any]:
            (blobs / digest(body)[7:]).write_bytes(body)
            return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(body), "size": len(body)}

        config = copy.deepcopy(self.config)
        config["rootfs"]["diff_ids"] = self.diff_ids or list(map(digest, self.layers))
        text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        rows = [keep(each, "layer.v1.tar") for each in self.layers]
        manifest = {"schemaVersion": 2, "config": keep(text, "config.v1+json"), "layers": rows}
        row = keep(json.dumps(manifest).encode(), "manifest.v1+json")
        (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [row]}))
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        return folder


def read_image(layout: Path) -> Image:
    def blob(name: str) -> bytes:
        return (layout / "blobs" / "sha256" / name[7:]).read_bytes()

    [row] = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = json.loads(blob(row["digest"]))
    config = json.loads(blob(manifest["config"]["digest"]))
    return Image(config, [blob(each["digest"]) for each in manifest["layers"]])


@dataclass
class Scene(ImageServers):
    """user: has built the lock's image. layout: of it."""

    user: ImageUser
    lock: Lock
    folder: Path
    layout: Path
    image: Image
    count: Iterator[int] = field(default_factory=itertools.count)

    def new_folder(self) -> Path:
        return self.folder / f"made-{next(self.count)}"

    def verify(self, image: Path | str, lock: Path, depth: Depth) -> ImageVerification:
        """As the user, in this process."""
        context = Context.from_environment(self.user.environ)
        return verify(str(image), str(lock), X86, context, depth)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("verify")
    with image_servers(*WHEELS, *OTHERS) as servers:
        user, lock = servers.user_in(folder / "user"), servers.lock_of(*WHEELS)
        user.folder.mkdir(exist_ok=True)
        place = user.writes_lock(lock)
        user.id_of(place, "--layout", "layout", "--compression", "none")
        layout = user.folder / "layout"
        yield Scene(**vars(servers), user=user, lock=lock, folder=folder, layout=layout, image=read_image(layout))


# What is done to the files of a layer

Member = tuple[tarfile.TarInfo, bytes]


def members_of(body: bytes) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        found = []
        for info in tar:
            file = tar.extractfile(info) if info.isreg() else None
            found.append((info, file.read() if file else b""))
        return found


def tar_with(members: list[Member]) -> bytes:
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return text.getvalue()


def other(info: tarfile.TarInfo, content: bytes) -> list[Member]:
    return [(info, content[:-1] + b"#" if content else b"#")]


def no(info: tarfile.TarInfo, content: bytes) -> list[Member]:
    return []


def whiteout(info: tarfile.TarInfo, content: bytes) -> list[Member]:
    folder, _, name = info.name.rpartition("/")
    return [(tarfile.TarInfo(f"{folder}/.wh.{name}"), b"")]


def link(info: tarfile.TarInfo, content: bytes) -> list[Member]:
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return [(info, b"")]


def beside(info: tarfile.TarInfo, content: bytes) -> list[Member]:
    return [(info, content), (tarfile.TarInfo(f"{info.name}.more"), b"more")]


def program(info: tarfile.TarInfo, content: bytes) -> list[Member]:
    info.mode = 0o4755
    return [(info, content)]


ACTS: Final = {each.__name__: each for each in (other, no, whiteout, link, beside, program)}


def own_layers(scene: Scene) -> range:
    """Numbers of the layers above the base."""
    history = scene.image.config["history"]
    return range(next(at for at, row in enumerate(history) if row["created_by"].startswith("envspec")), len(history))


def changed_files(scene: Scene, act: str) -> Iterator[tuple[Image, str]]:
    """Images with a changed file each, and its path."""
    for number in own_layers(scene):
        names = [info.name for info, _ in members_of(scene.image.layers[number]) if info.isreg()]
        for name in names:
            members: list[Member] = []
            for info, content in members_of(scene.image.layers[number]):
                members += ACTS[act](info, content) if info.name == name else [(info, content)]
            layers = [*scene.image.layers]
            layers[number] = tar_with(members)
            yield Image(scene.image.config, layers), name


def names_in(result: ImageVerification) -> str:
    return "\n".join(f"{each.drift.field} {each.package} {each.path} {each.text}" for each in result.findings)


def owner_of(path: str) -> str:
    inside = path.removeprefix(f"{SITE}/") if path.startswith(SITE) else path.rpartition("/")[2]
    found = [name for name in ("alpha", "beta_kit", "gamma") if inside.startswith(name)]
    return found[0].replace("_", "-") if found else ""


@pytest.mark.parametrize("act", ACTS)
def test_a_changed_file_is_found_by_the_id_and_named_by_its_content(act: str, scene: Scene) -> None:
    place = scene.user.folder / "lock"
    seen = 0
    for image, path in changed_files(scene, act):
        layout = image.write(scene.new_folder())
        found = scene.verify(layout, place, Depth.DOCUMENTS)
        assert [each.drift.field for each in found.findings] == ["layer"], (path, found)
        assert owner_of(path) in names_in(found)
        found = scene.verify(layout, place, Depth.FILES)
        # Modes are in the layer's digest alone.
        assert act == "program" or path in names_in(found), (path, found.findings)
        named = [each.package for each in found.findings if each.path == f"/{path}"]
        if act not in ("program", "beside"):
            assert owner_of(path) in [*named, ""], (path, found.findings)
        seen += 1
    assert seen > 30


@pytest.mark.parametrize("act", ACTS)
def test_layers_that_the_config_does_not_state_are_found_by_their_content(act: str, scene: Scene) -> None:
    """The image ID is the right one: no engine unpacks such an image."""
    place = scene.user.folder / "lock"
    diff_ids = list(map(digest, scene.image.layers))
    for image, path in itertools.islice(changed_files(scene, act), None, None, 7):
        image.diff_ids = diff_ids
        layout = image.write(scene.new_folder())
        assert scene.verify(layout, place, Depth.DOCUMENTS).is_same
        found = scene.verify(layout, place, Depth.FILES)
        assert "layer-bytes" in [each.drift.value for each in found.findings]
        assert act == "program" or path in names_in(found), (path, found.findings)


# What is done to the config


def other_labels(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for name in config["config"]["Labels"]:
        for value in ("other", None):
            found = copy.deepcopy(config)
            found["config"]["Labels"][name] = value
            if value is None:
                del found["config"]["Labels"][name]
            yield found, f"label  {name}"
    found = copy.deepcopy(config)
    found["config"]["Labels"]["more"] = "1"
    yield found, "label  more"


def other_variables(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    variables = config["config"]["Env"]
    for number, text in enumerate(variables):
        name = text.partition("=")[0]
        for instead in ([], [f"{name}=other"]):
            found = copy.deepcopy(config)
            found["config"]["Env"] = [*variables[:number], *instead, *variables[number + 1 :]]
            yield found, f"config  config.Env.{name}"
    found = copy.deepcopy(config)
    found["config"]["Env"].append("LD_PRELOAD=/x.so")
    yield found, "config  config.Env.LD_PRELOAD"


def other_keys(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    values = {
        "User": "0",
        "Entrypoint": ["/x"],
        "Cmd": ["/x"],
        "WorkingDir": "/",
        "Volumes": {"/x": {}},
        "Shell": ["x"],
    }
    for key, value in values.items():
        found = copy.deepcopy(config)
        found["config"][key] = value
        yield found, f"config  config.{key}"
    for key, value in {"created": "2020-01-01T00:00:00Z", "author": "me", "variant": "v3", "os.version": "1"}.items():
        yield {**config, key: value}, f"config  {key}"
    for number in range(len(config["history"])):
        found = copy.deepcopy(config)
        found["history"][number]["comment"] = "more"
        yield found, "its history"
    found = copy.deepcopy(config)
    found["history"].append({"created_by": "CMD x", "empty_layer": True})
    yield found, "its history"
    yield {**config, "architecture": "arm64"}, "linux/arm64"


@pytest.mark.parametrize("kind", [other_labels, other_variables, other_keys], ids=lambda kind: kind.__name__)
def test_a_changed_config_is_found_and_its_key_named(kind: Callable[..., Any], scene: Scene) -> None:
    for config, named in kind(scene.image.config):
        layout = Image(config, scene.image.layers).write(scene.new_folder())
        for depth in Depth:
            found = scene.verify(layout, scene.user.folder / "lock", depth)
            assert named in names_in(found), (named, found)


def test_another_base_is_found(scene: Scene) -> None:
    first, second, *own = scene.image.layers
    made = tar_with([(tarfile.TarInfo("etc/more"), b"more")])
    for layers in ([second, first], [first], [first, made], [first, second, made], []):
        config = copy.deepcopy(scene.image.config)
        history = [{"created_by": "ADD"} for _ in layers]
        config["history"] = [*history, *config["history"][2:]]
        layout = Image(config, [*layers, *own]).write(scene.new_folder())
        for depth in Depth:
            assert "base" in names_in(scene.verify(layout, scene.user.folder / "lock", depth))


def test_layers_in_another_order_and_layers_more_and_less_are_found(scene: Scene) -> None:
    image, own = scene.image, own_layers(scene)
    made = tar_with([(tarfile.TarInfo(f"{SITE}/alpha/m0.py"), b"other = 1")])
    rows, layers = image.config["history"], image.layers
    for at in own:
        for named, numbers in (
            ("order", [*range(own[0]), at, *(each for each in own if each != at)]),
            ("is missing", [each for each in range(len(layers)) if each != at]),
        ):
            if numbers == sorted(numbers) and named == "order":
                continue
            config = image.config | {"history": [rows[each] for each in numbers]}
            layout = Image(config, [layers[each] for each in numbers]).write(scene.new_folder())
            assert named in names_in(scene.verify(layout, scene.user.folder / "lock", Depth.DOCUMENTS))
        more = {"created_by": "envspec: alpha 1.0"}
        config = image.config | {"history": [*rows[: at + 1], more, *rows[at + 1 :]]}
        layout = Image(config, [*layers[: at + 1], made, *layers[at + 1 :]]).write(scene.new_folder())
        found = scene.verify(layout, scene.user.folder / "lock", Depth.FILES)
        assert f"file alpha /{SITE}/alpha/m0.py" in names_in(found)


# What is done to the lock


def other_locks(scene: Scene) -> Iterator[tuple[Lock, str]]:
    _, beta, gamma = WHEELS
    newer, rebuilt = OTHERS
    yield scene.lock_of(newer, beta, gamma), "package alpha  1.0 is in the image, the lock has 1.1"
    yield scene.lock_of(rebuilt, beta, gamma), "label  envspec.packages"
    for left in WHEELS:
        yield scene.lock_of(*(each for each in WHEELS if each is not left)), f"package {left.name}  1.0 is in the image"
    yield scene.lock_of(*WHEELS, small_wheel("delta")), "package delta  is not in the image"
    yield scene.lock_of(*WHEELS, python=replace(PYTHON, version=f"{SERIES}.99")), "label  envspec.python"
    yield scene.lock_of(*WHEELS, name="other"), "label  envspec.name"
    part = scene.lock.resolutions[0]
    for number, package in enumerate(part.packages):
        for key, value in {"sha256": "0" * 64, "filename": package.file.filename.replace("-py3", "-1-py3")}.items():
            row = replace(package, file=replace(package.file, **{key: value}))
            rows = (*part.packages[:number], row, *part.packages[number + 1 :])
            yield replace(scene.lock, resolutions=(replace(part, packages=rows),)), "label  envspec.packages"
    other_base = hold_base(scene.registry.held, make_base(layers=3), tag="other")
    yield image_lock({X86: list(part.packages)}, other_base.named()), "label  org.opencontainers.image.base.digest"
    yield image_lock({ARM: list(part.packages)}, scene.base.named([ARM])), "linux/amd64"


def test_another_lock_is_found_and_the_package_named(scene: Scene) -> None:
    for number, (lock, named) in enumerate(other_locks(scene)):
        place = scene.user.writes_lock(lock, f"lock-{number}")
        for depth in Depth:
            assert named in names_in(scene.verify(scene.layout, place, depth)), (number, named)


def test_another_file_of_the_same_version_is_named_by_its_content(scene: Scene) -> None:
    place = scene.user.writes_lock(scene.lock_of(OTHERS[1], *WHEELS[1:]), "rebuilt")
    found = scene.verify(scene.layout, place, Depth.FILES)
    assert f"file alpha /{SITE}/alpha/__init__.py" in names_in(found)
    assert {each.package for each in found.findings if each.drift.field == "file"} <= {"alpha", ""}


# Images that are the same


def as_docker_archive(image: Image, path: Path) -> Path:
    """As `docker save` before Docker 25 and skopeo write it: no index, layers in files of their own names."""
    config = json.dumps(image.config, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    files = {f"{digest(config)[7:]}.json": config}
    rows = []
    for number, layer in enumerate(image.layers):
        files[f"{number}/layer.tar"] = layer
        rows.append(f"{number}/layer.tar")
    row = {"Config": next(iter(files)), "RepoTags": None, "Layers": rows}
    files["manifest.json"] = json.dumps([row]).encode()
    members = [(tarfile.TarInfo(name), content) for name, content in files.items()]
    path.write_bytes(tar_with(members))
    return path


def packed_again(image: Image, folder: Path) -> Path:
    """Compressed by another tool, under Docker's own media types."""
    layout = image.write(folder)
    index = json.loads((layout / "index.json").read_bytes())
    blobs = layout / "blobs" / "sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_bytes())
    for row in manifest["layers"]:
        body = gzip.compress((blobs / row["digest"][7:]).read_bytes(), 1)
        row |= {"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip"}
        row |= {"digest": digest(body), "size": len(body)}
        (blobs / digest(body)[7:]).write_bytes(body)
    body = json.dumps(manifest).encode()
    (blobs / digest(body)[7:]).write_bytes(body)
    index["manifests"][0]["digest"] = digest(body)
    (layout / "index.json").write_text(json.dumps(index))
    return layout


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
@pytest.mark.parametrize("bytecode", [(), ("--no-compile-bytecode",)], ids=["pyc", "no-pyc"])
def test_the_same_image_in_every_form(compression: str, bytecode: tuple[str, ...], scene: Scene) -> None:
    """Built by somebody else; 8 places, read with and without layers: 16 of 96."""
    folder = scene.new_folder()
    builder = scene.user_in(folder)
    folder.mkdir(exist_ok=True)
    host = scene.registry.host
    words = ("--layout", "layout", "--output", "image.tar", "--push", f"{host}/team/app:{folder.name}")
    builder.id_of(builder.writes_lock(scene.lock), *words, *bytecode, "--compression", compression)
    shutil.copytree(folder / "layout", folder / "a copy")
    plain = ("--layout", "plain", "--compression", "none")
    builder.id_of(folder / "lock", *plain, *bytecode)
    image = read_image(folder / "plain")
    repository = scene.registry.held.tags["team/app"]
    repository[f"{folder.name}-again"] = repository[folder.name]
    images = [
        *(folder / "layout", folder / "a copy", folder / "image.tar", folder / "plain"),
        *(f"{host}/team/app:{folder.name}", f"{host}/team/app:{folder.name}-again"),
        as_docker_archive(image, folder / "docker.tar"),
        packed_again(image, folder / "packed"),
        folder / "dots.tar",
    ]
    with tarfile.open(folder / "dots.tar", "w") as tar:
        tar.add(folder / "layout", ".")
    for each, depth in itertools.product(images, Depth):
        for who, place in ((scene.user, scene.user.folder / "lock"), (builder, folder / "lock")):
            context = Context.from_environment(who.environ)
            found = verify(str(each), str(place), X86, context, depth)
            assert found.is_same and "image ID" in found.compared, (each, found)
            assert ("files" in found.compared) is (depth is Depth.FILES)


def test_each_platform_of_an_index(scene: Scene) -> None:
    folder = scene.new_folder()
    builder = scene.user_in(folder)
    folder.mkdir(exist_ok=True)
    base = hold_base(scene.registry.held, make_base(X86, ARM), tag="both")
    pins = {platform: [pin(each) for each in WHEELS] for platform in (X86, ARM)}
    place = builder.writes_lock(image_lock(pins, base.named()))
    platforms = ("--platform", "linux-64", "--platform", "linux-aarch64")
    name = f"{scene.registry.host}/team/both:1"
    built = builder.image("build", place, *platforms, "--push", name, "--layout", "layout", "--output", "image.tar")
    assert built.status == 0, built.stderr
    context = Context.from_environment(builder.environ)
    for image, platform, depth in itertools.product((name, folder / "layout", folder / "image.tar"), (X86, ARM), Depth):
        found = verify(str(image), str(place), platform, context, depth)
        assert found.is_same and found.platform == platform.value, found
    layout = folder / "layout"
    [row] = json.loads((layout / "index.json").read_bytes())["manifests"]
    blobs = layout / "blobs" / "sha256"
    index = json.loads((blobs / row["digest"][7:]).read_bytes())
    first, second = index["manifests"]
    first["platform"], second["platform"] = second["platform"], first["platform"]
    body = json.dumps(index).encode()
    (blobs / digest(body)[7:]).write_bytes(body)
    (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": digest(body)}]}))
    for named in (X86, ARM, None):
        found = verify(str(layout), str(place), named, context)
        assert [each.drift.value for each in found.findings] == ["platform"], found


# What can't be compared


def test_nothing_is_fetched_but_documents(scene: Scene) -> None:
    folder = scene.new_folder()
    reader = scene.user_in(folder)
    folder.mkdir(exist_ok=True)
    place = reader.writes_lock(scene.lock)
    reader.environ["ENVSPEC_DEFAULT_INDEX"] = "http://127.0.0.1:9/"
    scene.user.id_of(scene.user.folder / "lock", "--push", f"{scene.registry.host}/team/read:1")
    scene.registry.forget()
    ran = reader.image("verify", f"{scene.registry.host}/team/read:1", place, "--format", "json")
    assert ran.status == 0, ran.stderr
    message = json.loads(ran.stdout)
    assert message["compared"] == ["labels", "config", "base"]
    assert [each["what"] for each in message["not_compared"]] == ["image ID"]
    layers = set(map(digest, scene.image.layers))
    assert not [each for each in scene.registry.held.asked if any(name in each.path for name in layers)]
    text = reader.image("verify", f"{scene.registry.host}/team/read:1", place).stdout
    assert "has the labels of the image" in text and "can be forged" in text


def test_a_recorded_id_needs_no_wheel_even_for_the_files(scene: Scene) -> None:
    folder = scene.new_folder()
    reader = scene.user_in(folder, ENVSPEC_DEFAULT_INDEX="http://127.0.0.1:9/", ENVSPEC_REGISTRY_MIRRORS="")
    folder.mkdir(exist_ok=True)
    built = scene.user.id_of(scene.user.folder / "lock")
    place = reader.writes_lock(replace(scene.lock, images=(ImageId(X86, built, pyc=True),)))
    ran = reader.image("verify", scene.layout, place, "--deep", "--offline", "--format", "json")
    assert ran.status == 0, ran.stderr
    assert json.loads(ran.stdout)["compared"] == ["labels", "config", "base", "layers", "image ID", "files"]


def test_a_recorded_id_of_other_packages_does_not_count(scene: Scene) -> None:
    """As a merge of two locks may leave it."""
    built = scene.user.id_of(scene.user.folder / "lock")
    lock = replace(scene.lock_of(OTHERS[0], *WHEELS[1:]), images=(ImageId(X86, built, pyc=True),))
    place = scene.user.writes_lock(lock, "merged")
    for depth in Depth:
        named = names_in(scene.verify(scene.layout, place, depth))
        assert "package alpha  1.0 is in the image, the lock has 1.1" in named


def test_files_that_can_not_be_compared_are_no_success(scene: Scene) -> None:
    folder = scene.new_folder()
    reader = scene.user_in(folder)
    folder.mkdir(exist_ok=True)
    place = reader.writes_lock(scene.lock)
    assert "not in the cache" in refused(reader.image("verify", scene.layout, place, "--deep", "--offline"), 5)
    assert reader.image("verify", scene.layout, place, "--deep").status == 0


def test_a_damaged_blob_and_a_missing_one(scene: Scene) -> None:
    for content in (b"x", None):
        layout = scene.image.write(scene.new_folder())
        blob = layout / "blobs" / "sha256" / digest(scene.image.layers[-2])[7:]
        blob.unlink()
        if content is not None:
            blob.write_bytes(content)
        found = scene.verify(layout, scene.user.folder / "lock", Depth.FILES)
        assert "layer-bytes" in [each.drift.value for each in found.findings]


def test_what_is_no_image(scene: Scene) -> None:
    for name in ("nothing", "lock", "python"):
        assert name in refused(scene.user.image("verify", name, "lock"), 2)
    assert "there is no lock nothing" in refused(scene.user.image("verify", "layout", "nothing"), 2)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gz", "bz2", "xz"])
def test_a_packed_tar_that_ends_early(pack: Callable[[bytes], bytes], scene: Scene) -> None:
    path = scene.new_folder()
    packed = pack(tar_with([(tarfile.TarInfo("noise"), random.Random(7).randbytes(2_000_000))] * 2))
    path.write_bytes(packed[: len(packed) // 2])
    assert "can be read" in refused(scene.user.image("verify", path, "lock"), 2)


JUNK: Final[tuple[Any, ...]] = (None, 7, "", "x", [], [7], {}, {"x": 7}, [{"x": 7}], [None], "\0", -1, 10**400)


def test_documents_with_junk_are_refused_or_differ(scene: Scene) -> None:
    layout = scene.image.write(scene.new_folder())
    blobs = layout / "blobs" / "sha256"
    [row] = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = json.loads((blobs / row["digest"][7:]).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"][7:]).read_bytes())

    def keep(document: object) -> dict[str, Any]:
        body = json.dumps(document).encode()
        (blobs / digest(body)[7:]).write_bytes(body)
        return {"mediaType": "x", "digest": digest(body), "size": len(body)}

    def places(value: Any) -> Iterator[tuple[Any, Any]]:
        """(container, key) of everything in a document."""
        for key in list(value) if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0):
            yield value, key
            yield from places(value[key])

    generator = random.Random(20261127)
    for number in range(150):
        documents = copy.deepcopy((config, manifest))
        container, key = generator.choice(list(places(documents[number % 2])))
        container[key] = generator.choice(JUNK)
        if number % 2 == 0:
            documents[1]["config"] = keep(documents[0])
        (layout / "index.json").write_text(json.dumps({"manifests": [keep(documents[1])]}))
        for depth in Depth:
            try:
                found = scene.verify(layout, scene.user.folder / "lock", depth)
            except (NoImage, BadManifest):
                continue
            assert not found.is_same or documents[0] == config, (documents[number % 2], found)


def test_what_an_image_says_acts_on_no_terminal(scene: Scene) -> None:
    config = copy.deepcopy(scene.image.config)
    config["config"]["Labels"]["envspec.name"] = f"name{CODES}"
    config["config"]["Env"].append(f"X{CODES}={CODES}")
    config["history"][-1]["created_by"] = f"envspec: {CODES}"
    files = [(tarfile.TarInfo(f"opt/{CODES.partition('/')[0]}"), b"")]
    layers = [*scene.image.layers[:-1], tar_with([*members_of(scene.image.layers[-1]), *files])]
    layout = Image(config, layers).write(scene.new_folder())
    for words in ((), ("--deep",), ("--format", "json")):
        ran = scene.user.image("verify", layout, "lock", *words)
        assert ran.status == 8 and "overwritten" in ran.stdout, ran
        assert words[:1] == ("--format",) or is_clean(ran), ran


def test_a_tar_or_layout_of_several_images_is_refused(scene: Scene) -> None:
    """Engines read another one of its documents, or all."""
    folder = scene.new_folder()
    folder.mkdir()
    other = with_layer(scene.image, tar_with([]), "more")
    layout = other.write(folder / "other")
    as_docker_archive(other, folder / "other.tar")
    with tarfile.open(folder / "both.tar", "w") as tar, tarfile.open(folder / "other.tar") as second:
        for name in ("index.json", "oci-layout", "blobs"):
            tar.add(scene.layout / name, name)
        for member in second:
            tar.addfile(member, second.extractfile(member))
    shutil.copytree(scene.layout, folder / "two")
    shutil.copytree(layout / "blobs", folder / "two" / "blobs", dirs_exist_ok=True)
    rows = [json.loads((each / "index.json").read_bytes())["manifests"][0] for each in (scene.layout, layout)]
    (folder / "two" / "index.json").write_text(json.dumps({"manifests": rows}))
    for name, text in (("both.tar", "name different images"), ("two", "it has 2 images")):
        assert text in refused(scene.user.image("verify", folder / name, "lock"), 2)
    (folder / "two" / "index.json").write_text(json.dumps({"manifests": [rows[0], rows[0]]}))
    assert scene.verify(folder / "two", scene.user.folder / "lock", Depth.DOCUMENTS).is_same


def test_a_docker_archive_with_a_layer_twice(scene: Scene) -> None:
    empty = tar_with([])
    image = with_layer(with_layer(scene.image, empty, "WORKDIR"), empty, "WORKDIR")
    image.config["rootfs"]["diff_ids"] = list(map(digest, image.layers))
    folder = scene.new_folder()
    folder.mkdir()
    found = scene.verify(as_docker_archive(image, folder / "x.tar"), scene.user.folder / "lock", Depth.FILES)
    assert [each.drift.value for each in found.findings] == ["layer-extra", "layer-extra"]


def test_an_image_on_an_image_of_envspec_s_own(scene: Scene) -> None:
    name = f"{scene.registry.host}/team/base"
    scene.user.id_of(scene.user.folder / "lock", "--push", f"{name}:1")
    _, manifest = scene.registry.held.tags["team/base"]["1"]
    [pinned] = scene.base.named().digests
    base = replace(scene.base.named(), repository=name, tag="1", digests=(replace(pinned, digest=digest(manifest)),))
    builder, reader = scene.user_in(scene.new_folder()), scene.user_in(scene.new_folder())
    for user in (builder, reader):
        user.folder.mkdir(exist_ok=True)
        user.writes_lock(image_lock({X86: [pin(OTHERS[0])]}, base))
    builder.id_of("lock", "--layout", "layout")
    for words in ((), ("--deep",)):
        ran = reader.image("verify", builder.folder / "layout", "lock", *words)
        assert ran.status == 0, ran.stdout


# The project's code


def with_code(scene: Scene) -> tuple[ImageUser, Path]:
    """Somebody with a lock whose image contains the project's code, and the lock's folder."""
    folder = scene.new_folder()
    builder = scene.user_in(folder)
    (folder / "specs").mkdir(parents=True)
    (folder / "specs/small.toml").write_text('[env]\nname = "small"\npython = "3.11"\n')
    (folder / "code").mkdir()
    (folder / "code/run.py").write_text("one = 1\n")
    settings = replace(scene.lock.image, copy=("../code",))
    place = builder.writes_lock(replace(scene.lock, image=settings, spec="../../specs/small.toml"), "locks/small")
    return builder, place


def test_the_project_s_code_is_not_compared(scene: Scene) -> None:
    builder, place = with_code(scene)
    folder = builder.folder
    builder.id_of(place, "--layout", "layout")
    why = "the project's code is not of the lock"
    reader = scene.user_in(scene.new_folder())
    reader.folder.mkdir(exist_ok=True)
    copied = reader.folder / "copy of the lock"
    shutil.copytree(place, copied)
    for text, expected in (("one = 1\n", []), ("two = 2\n", [why])):
        (folder / "code/run.py").write_text(text)
        for words in ((), ("--deep",)):
            ran = builder.image("verify", "layout", place, *words, "--format", "json")
            assert ran.status == 0, ran.stderr + ran.stdout
            message = json.loads(ran.stdout)
            assert [each["why"] for each in message["not_compared"]] == expected
            assert "image ID" in message["compared"]
    # Without the project beside the lock.
    ran = reader.image("verify", folder / "layout", copied, "--deep", "--format", "json")
    assert ran.status == 0, ran.stderr
    assert [each["why"] for each in json.loads(ran.stdout)["not_compared"]] == [why]


def with_layer(image: Image, content: bytes, title: str) -> Image:
    config = copy.deepcopy(image.config)
    config["history"].append({"created_by": title})
    return Image(config, [*image.layers, content])


def without_layer(image: Image) -> Image:
    config = copy.deepcopy(image.config)
    config["history"].pop()
    return Image(config, image.layers[:-1])


def test_layers_of_the_project_s_code_have_a_number_and_change_nothing_of_the_lock(scene: Scene) -> None:
    builder, place = with_code(scene)
    folder = builder.folder
    builder.id_of(place, "--layout", "layout", "--compression", "none")
    image = read_image(folder / "layout")
    same = next(each for layer in image.layers for each in members_of(layer) if each[0].name == f"{SITE}/alpha/m1.py")
    link = tarfile.TarInfo(f"{SITE}/beta_kit")
    link.type, link.linkname = tarfile.SYMTYPE, "/workspace"
    changes = [
        *((tarfile.TarInfo(f"{SITE}/alpha/m0.py"), b"other"), same, (tarfile.TarInfo(f"{SITE}/mine.py"), b"mine")),
        (tarfile.TarInfo(f"{SITE}/alpha/__pycache__/m2.cpython-311.pyc"), b"other"),
        *((tarfile.TarInfo(f"{SITE}/gamma/.wh.m0.py"), b""), (tarfile.TarInfo("etc/ld.so.preload"), b"x"), (link, b"")),
    ]
    found = without_layer(image)
    layers = tar_with([*members_of(image.layers[-1]), *changes])
    cases: tuple[tuple[Image, list[str]], ...] = (
        (with_layer(found, layers, image.config["history"][-1]["created_by"]), []),
        (with_layer(image, tar_with([]), "RUN pip install more"), ["RUN pip install more"]),
        (found, ["the project's code"]),
    )
    for number, (changed, paths) in enumerate(cases):
        layout = changed.write(scene.new_folder())
        for depth in Depth:
            context = Context.from_environment(builder.environ)
            result = verify(str(layout), str(place), X86, context, depth)
            found_paths = [each.path for each in result.findings]
            if number or depth is Depth.DOCUMENTS:
                assert found_paths == paths
            else:
                named = ("alpha/m0.py", "alpha/__pycache__/m2.cpython-311.pyc", "beta_kit", "gamma/m0.py")
                assert sorted(found_paths) == sorted(["/etc/ld.so.preload", *(f"/{SITE}/{each}" for each in named)])


# System packages


def test_a_layer_of_system_packages_is_compared_with_its_record(scene: Scene) -> None:
    folder = scene.new_folder()
    builder = scene.user_in(folder)
    folder.mkdir(exist_ok=True)
    lock = lay_system_layer(builder, scene.lock, ("git",), "libgit.so")
    builder.id_of(builder.writes_lock(lock), "--layout", "layout", "--compression", "none")
    diff_id = digest(read_image(folder / "layout").layers[2])
    [pinned] = scene.base.named().digests
    record = SystemLayer(X86, pinned.digest or "", ("git",), ("git=1",), diff_id, diff_id, 1)
    other = replace(record, diff_id="sha256:" + "0" * 64)
    # No container: this user's cache has no such layer, and there is no engine.
    reader = scene.user_in(scene.new_folder(), DOCKER_HOST="unix:///nowhere")
    reader.folder.mkdir(exist_ok=True)
    for number, (rows, status, compared) in enumerate((((), 0, False), ((record,), 0, True), ((other,), 8, True))):
        place = reader.writes_lock(replace(lock, system=rows), f"lock-{number}")
        for words in ((), ("--deep",)):
            ran = reader.image("verify", folder / "layout", place, *words, "--format", "json")
            assert ran.status == status, ran.stderr + ran.stdout
            message = json.loads(ran.stdout)
            named = [each for each in message["not_compared"] if each["what"] == "layer `apt: git`"]
            assert bool(named) is not compared
            assert ("image ID" in message["compared"]) is (compared and bool(words or number))
            assert [each["path"] for each in message["findings"]] == (["apt: git"] if status else [])
    without = reader.writes_lock(scene.lock, "without")
    found = json.loads(reader.image("verify", folder / "layout", without, "--deep", "--format", "json").stdout)
    assert "apt: git" in [each["path"] for each in found["findings"] if each["code"] == "layer-extra"]
    found = json.loads(reader.image("verify", scene.layout, place, "--deep", "--format", "json").stdout)
    assert "apt: git" in [each["path"] for each in found["findings"] if each["code"] == "layer-missing"]


# Bytecode


def test_bytecode_is_compared_by_the_locked_python_alone(scene: Scene) -> None:
    folder = scene.new_folder()
    builder = scene.user_in(folder)
    folder.mkdir(exist_ok=True)
    place = builder.writes_lock(scene.lock_of(*WHEELS, python=replace(PYTHON, version=f"{SERIES}.99")))
    builder.id_of(place, "--layout", "layout")
    builder.id_of(place, "--layout", "without", "--no-compile-bytecode")
    shutil.rmtree(builder.cache / "image-known")
    shutil.rmtree(builder.cache / "image-layers")
    ran = builder.image("verify", "layout", place)
    assert ran.status == 0 and f"no Python {SERIES}.99" in ran.stdout, ran.stdout
    assert "--python" in refused(builder.image("verify", "layout", place, "--deep"), 6)
    ran = builder.image("verify", "without", place, "--deep")
    assert ran.status == 0 and "image ID, files" in ran.stdout, ran.stdout + ran.stderr


# conda's packages, and files that several wheels have


def test_packages_of_conda(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = scene.new_folder()
    builder = scene.user_in(folder)
    folder.mkdir(exist_ok=True)
    channel = write(tmp_path_factory.mktemp("channel") / "forge", conda_packages.forge())
    named = (("filelock", "3.16.1", "noarch"), ("python", RUNNING, "linux-64"), ("tzdata", "2024a", "noarch"))
    found = [channel.find(name, version, subdir=subdir) for name, version, subdir in named]
    rows = [conda_row(each, channel.url) for each in found]
    [part] = scene.lock.resolutions
    target = replace(part.target, python=Python(RUNNING, "conda"))
    lock = replace(scene.lock, resolutions=(replace(part, target=target, conda=tuple(rows)),))
    place = builder.writes_lock(lock)
    # The channel's Python is none that could compile.
    builder.id_of(place, "--layout", "layout", "--compression", "none", "--no-compile-bytecode")
    image = read_image(folder / "layout")
    other = replace(rows[-1], version="9")
    changed = replace(lock, resolutions=(replace(part, target=target, conda=(*rows[:-1], other)),))
    shutil.rmtree(builder.cache / "image-known")
    for depth in Depth:
        context = Context.from_environment(builder.environ)
        assert verify(str(folder / "layout"), str(place), X86, context, depth).is_same
    found_here = verify(str(folder / "layout"), str(builder.writes_lock(changed, "changed")), X86, context)
    assert f"package {other.name}  {rows[-1].version} is in the image, the lock has 9" in names_in(found_here)
    number, path = next(
        (number, info.name)
        for number, layer in enumerate(image.layers)
        for info, _ in members_of(layer)
        if info.name.endswith("filelock/__init__.py")
    )
    members = [other for each in members_of(image.layers[number]) for other in ([each] if each[0].name != path else [])]
    image.diff_ids = list(map(digest, image.layers))
    image.layers[number] = tar_with(members)
    layout = image.write(scene.new_folder())
    found_here = verify(str(layout), str(place), X86, context, Depth.FILES)
    assert f"file filelock /{path} /{path} is missing" in names_in(found_here)
