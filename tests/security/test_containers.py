"""What containers and engines leave to be read, and what a container of a lock's image is given, without an engine."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.engine.container import ContainerOptions, HostFolders, Mount, container_settings, moved_services
from envspec.engine.errors import EngineError
from envspec.engine.run import only_file
from envspec.errors import UsageError
from envspec.image.services import ServicesSource, workdir_path
from envspec.image.sources.system import BadChange, read_changes
from envspec.io.files import read_untrusted
from envspec.models import ImageSettings, Platform, Service
from envspec.operations.conformance import CheckEvent, _OutputLines, read_event
from envspec.operations.image_source import NoImage, read_path
from envspec.receipts.build import BadResults, receipt
from envspec.structs import replace
from tests.engine.test_container import BESIDE, ENGINE, FOLDERS, JANE, RUN, with_packages
from tests.security.hostile import Member, tar_of
from tests.support.builders.environments import make_lock, write_lock
from tests.support.builders.receipts import known, results
from tests.support.machines.run_container import lock_of
from tests.support.machines.services import lay
from tests.support.user import User, refused
from tests.support.waits import free_port, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux's")

X86: Final = Platform.LINUX_64

# ------------------------------------------------------------------------------------------------- files that were left


def a_link(path: Path) -> None:
    secret = path.with_name("secret")
    secret.write_text('{"format": 1}')
    path.symlink_to(secret)


def a_large_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


LEFT: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "a link": (a_link, "symbolic links"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "symbolic links"),
    "a link in a circle": (lambda path: path.symlink_to(path), "symbolic links"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "a folder": (Path.mkdir, "Is a directory"),
    "10 GiB": (a_large_file, "more than 1000 bytes"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_others_left_is_read_where_it_is_a_file(tmp_path: Path, name: str) -> None:
    make, words = LEFT[name]
    make(tmp_path / "left")
    with pytest.raises(OSError, match=words):
        read_untrusted(tmp_path / "left", 1000)
    (tmp_path / "file").write_bytes(b"x" * 1000)
    assert read_untrusted(tmp_path / "file", 1000) == b"x" * 1000


#: A program in the Python's place, as an image may have it there: its last word is where results go.
HOSTILE: Final = "#!/bin/sh\nfor last; do :; done\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('ln -s "$HOME/secret" "$last"', "symbolic links"),
        ('ln -s /dev/zero "$last"', "symbolic links"),
        ('mkfifo "$last"', "not a regular file"),
        ('mkdir "$last"', "Is a directory"),
        ('truncate -s 10G "$last"', "it has more than"),
        ('echo "[1, 2]" > "$last"', "without results"),
        ('head -c 200000 /dev/zero | tr "\\0" "[" > "$last"', "without results"),
        ('printf "\\377\\376" > "$last"', "without results"),
        ("printf 'bad \\033[2J\\033]0;x\\007\\n' >&2", "without results: bad \\x1b[2J"),
        ('yes \'{"begin": ["x"]}\' | head -n 50; yes "[" | head -c 100000 | tr -d "\\n"', "without results"),
    ],
)
def test_results_that_are_no_file_are_refused(tmp_path: Path, script: str, words: str) -> None:
    """As root a pipe would be waited for and a device read for ever; a link would have any file of the user's read."""
    user = User(tmp_path / "user", "http://127.0.0.1:9")
    (user.home / "secret").write_text("hunter2")
    write_lock(user.folder / "lock", make_lock())
    program = user.folder / "python"
    program.write_text(f"{HOSTILE}{script}\n")
    program.chmod(0o755)
    ran = user.runs("conformance", "lock", "--local", "--python", str(program), "--device", "cpu")
    message = refused(ran, 6)
    assert words in message and "hunter2" not in message
    assert "\x1b" not in ran.stdout + ran.stderr


OTHER_TYPES: Final[list[dict[str, Any]]] = [
    *({"results": [1]}, {"results": None}, {"results": [{"phases": [["a"]], "preimports": 7}]}),
    *({"machine": []}, {"seconds": "long"}, {"seed": {}}),
]


@pytest.mark.parametrize("change", OTHER_TYPES)
def test_results_of_other_types_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadResults):
        receipt({**results(), **change}, known())


def test_a_line_without_an_end_is_not_kept() -> None:
    """The suite's lines are short; a program in its place may write one for ever."""
    lines = list[str]()
    stream = _OutputLines(lines.append)
    for _ in range(200):
        stream.write(b"x" * 100_000)
    assert len(stream._rest) <= 1 << 20
    stream.write(b'\n{"begin": "a\\u001b[2Jb"}\n')
    assert len(lines[0]) <= 1 << 20
    assert read_event(lines[1]) == CheckEvent("a [2Jb")
    assert read_event("[" * 100_000) is None
    assert read_event('{"end": 1, "status": [], "seconds": 1, "reason": ""}') is None


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_an_image_s_account_file_may_be_anything(kind: bytes) -> None:
    assert only_file([tar_of([Member("passwd", kind=kind, target="/etc/shadow")])], "/etc/passwd") == b""


@pytest.mark.parametrize("size", [0, 100, 600])
def test_an_engine_may_end_an_account_file_early(size: int) -> None:
    """If it can't read a file, its answer has begun already."""
    whole = tar_of([Member("passwd", data=b"x" * 1000)])
    with pytest.raises(EngineError, match="/etc/passwd can't be read from the container"):
        only_file([whole[:size]], "/etc/passwd")


def test_an_image_s_account_file_may_be_of_any_size() -> None:
    read = 0

    def chunks() -> Iterator[bytes]:
        nonlocal read
        for _ in range(10_000):
            read += 1 << 20
            yield bytes(1 << 20)

    with pytest.raises(EngineError, match="/etc/passwd in the image is larger than 8 MiB"):
        only_file(chunks(), "/etc/passwd")
    assert read < 20 << 20


def test_a_list_of_a_container_s_has_an_end(tmp_path: Path) -> None:
    for name, words in (("unknown", "the container returned no"), ("gone", "more than 67108864 bytes for gone")):
        with (tmp_path / name).open("w+b") as file:
            file.truncate(1 << 30)
            with pytest.raises(BadChange, match=words):
                read_changes(iter([(name, file)]), tmp_path, lambda _: None)


@pytest.mark.parametrize("digest", ["sha256:../../../secret", "sha256:/../secret", "../secret", "", 7, ["a"]])
def test_a_layout_s_digest_is_no_path(tmp_path: Path, digest: object) -> None:
    layout = tmp_path / "a" / "b" / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    (layout / "oci-layout").write_text("{}")
    (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": digest}]}))
    secret = json.dumps({"config": {"digest": "hunter2"}, "layers": []})
    for folder in (tmp_path / "a", tmp_path / "a" / "b", layout):
        (folder / "secret").write_text(secret)
    with pytest.raises(NoImage) as caught:
        read_path(str(layout), X86)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["a pipe", "a link to a device", "10 GiB"])
def test_a_layout_s_files_are_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "oci-layout").write_text("{}")
    LEFT[name][0](tmp_path / "index.json")
    with pytest.raises(NoImage):
        read_path(str(tmp_path), X86)


# -------------------------------------------------------------------------------------------- the machine's own network

SERVED: Final = lock_of(Service("jupyter", 8888), Service("tensorboard", 6006))


def test_services_on_the_machine_s_own_network_are_for_this_machine() -> None:
    settings = container_settings(SERVED, JANE, ENGINE, FOLDERS, replace(BESIDE, network="host"))
    document = json.dumps({"services": [{"name": "jupyter", "port": 8888}]}).encode()
    assert json.loads(moved_services(document, settings.listening, settings.address))["address"] == "127.0.0.1"
    own = container_settings(SERVED, JANE, ENGINE, FOLDERS, BESIDE)
    assert "address" not in json.loads(moved_services(document, own.listening, own.address))
    alone = container_settings(SERVED, JANE, ENGINE, FOLDERS, replace(RUN, network="host"))
    assert alone.address is None


@pytest.mark.parametrize("address", [None, "127.0.0.1"])
def test_services_listen_where_they_are_told_to(tmp_path: Path, address: str | None) -> None:
    place = lay(tmp_path / "image", Service("jupyter", free_port()), Service("tensorboard", free_port(), "runs"))
    message = place.root / "opt/envspec/services.json"
    message.write_bytes(moved_services(message.read_bytes(), {}, address))
    paths = [place.notes / name for name in ("jupyter-lab", "tensorboard")]
    with place.running():
        wait_for(lambda: all(path.is_file() and path.read_text().endswith("}") for path in paths))
    jupyter, tensorboard = (json.loads(path.read_text())["argv"] for path in paths)
    assert f"--ServerApp.ip={address or '0.0.0.0'}" in jupyter
    assert f"--host={address or '0.0.0.0'}" in tensorboard


# ---------------------------------------------------------------------------------------------- whose folders are whose


@pytest.mark.parametrize(
    "workdir",
    [
        *("/usr/bin", "/usr/bin/tools", "/usr/lib/python3", "/usr/local/bin", "/usr/share/x", "/etc/ssl", "/proc/self"),
        *("/opt/env/bin", "/opt/envspec", "/var/lib/dpkg/info", "/var/lib/envspec", "/var/log", "//usr/bin"),
        *("/usr//bin", "/usr/./bin", "/run/x", "/dev/shm", "/boot/x", "/sys/x"),
    ],
)
def test_a_working_folder_takes_no_folder_from_the_system(workdir: str) -> None:
    with pytest.raises(UsageError, match="a folder of the system"):
        workdir_path(workdir)
    settings = container_settings(
        replace(lock_of(), image=ImageSettings(workdir=workdir)), JANE, ENGINE, HostFolders(), RUN
    )
    assert settings.made == ("/home/jane", "/home/jane/.cache")


@pytest.mark.parametrize("workdir", ["/", "/tmp", "/usr", "/etc", "/opt", "/home", "/usr/src", "/root", "//tmp"])
def test_a_folder_of_the_system_stays_the_system_s(workdir: str) -> None:
    assert workdir_path(workdir) is None
    lock = replace(lock_of(), image=ImageSettings(workdir=workdir))
    assert workdir not in container_settings(lock, JANE, ENGINE, HostFolders(), RUN).made


@pytest.mark.parametrize(
    "workdir", ["/workspace", "/usr/src/app", "/home/jane/x", "/opt/app", "/srv/x", "//data", "/usr/binary"]
)
def test_a_folder_of_the_user_s_own_is_made(workdir: str) -> None:
    folder = workdir_path(workdir)
    assert folder == workdir.lstrip("/")
    settings = ImageSettings(workdir=workdir, services=(Service("jupyter", 8888),))
    made = {entry.path: entry.uid for entry in ServicesSource(settings).entries()}
    assert made[folder] == 1000


@pytest.mark.parametrize(
    "target", ["/workspace", "/home/jane", "/home", "/home/jane/.cache", "//home/jane", "/home/x/../jane", "/"]
)
def test_what_is_mounted_keeps_its_owner(target: str) -> None:
    """An engine unpacks what it is given through mounts: as root, with the owner that it is given."""
    options = ContainerOptions(command=("true",), mounts=(Mount("/usr/bin", target),))
    settings = container_settings(lock_of(), JANE, ENGINE, HostFolders(), options)
    inner = os.path.normpath("/" + target.lstrip("/")).rstrip("/")
    assert not [path for path in settings.made if f"{path}/".startswith(f"{inner}/")]
    assert settings.is_mounted(f"{inner}/x")


def test_the_user_s_own_folders_keep_their_modes() -> None:
    lock = with_packages(lock_of(), "torch", "huggingface-hub")
    settings = container_settings(lock, JANE, ENGINE, FOLDERS, RUN)
    assert not {mount.target for mount in settings.mounts} & set(settings.made)


@pytest.mark.parametrize(
    ("target", "is_mounted"), [("/etc", True), ("/etc/passwd", True), ("/data", False), ("/etc/passwd2", False)]
)
def test_the_machine_s_account_files_are_not_written(target: str, is_mounted: bool) -> None:
    options = ContainerOptions(command=("true",), mounts=(Mount("/etc", target),))
    settings = container_settings(lock_of(), JANE, ENGINE, HostFolders(), options)
    assert settings.is_mounted("etc/passwd") is is_mounted
