"""What a container of a lock is given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envspec.engine.client import Engine, EngineInfo, packed_tar
from envspec.engine.container import (
    LABEL,
    ContainerOptions,
    ContainerSettings,
    Gpus,
    HostFolders,
    Mount,
    MountAccess,
    Port,
    StartMode,
    Terminal,
    User,
    container_settings,
    create_body,
    moved_services,
    rdma_devices,
)
from envspec.engine.errors import AddressSource, EngineAddress
from envspec.engine.run import account_files, image_accounts
from envspec.errors import UsageError
from envspec.image.diff import common_prefix
from envspec.image.engine import is_same
from envspec.image.layers.types import InMemory
from envspec.image.services import ServicesSource
from envspec.io.cache import JsonCache
from envspec.models import ImageSettings, Lock, Platform, Service
from envspec.structs import replace
from tests.support.builders.locks import conda, conda_resolution, package, resolution
from tests.support.machines.run_container import lock_of

GIB = 1 << 30
ENGINE = EngineInfo("docker", "28.0", Platform.LINUX_64, 64 * GIB)
JANE = User("jane", 1001, 1002, (27, 44))
RUN = ContainerOptions(command=("python", "train.py"))
FOLDERS = HostFolders(work="/home/jane/work", compiled="/cache/c", hub=(("", "/hf"), ("hub", "/big/hub")))


def settings_of(
    lock: Lock, options: ContainerOptions = RUN, engine: EngineInfo = ENGINE, folders: HostFolders = FOLDERS
) -> ContainerSettings:
    return container_settings(lock, JANE, engine, folders, options)


def host_of(
    lock: Lock, options: ContainerOptions = RUN, engine: EngineInfo = ENGINE, folders: HostFolders = FOLDERS
) -> dict[str, Any]:
    """The settings of a container for its host, as the engine gets them."""
    host: dict[str, Any] = create_body(settings_of(lock, options, engine, folders))["HostConfig"]
    return host


def with_packages(lock: Lock, *names: str) -> Lock:
    return replace(lock, resolutions=(resolution(Platform.LINUX_64, *(package(name, "1") for name in names)),))


def test_a_cuda_lock_gets_gpus_shared_memory_and_limits() -> None:
    body = create_body(settings_of(lock_of(cuda=True)))
    host = body["HostConfig"]
    assert host["DeviceRequests"] == [{"Driver": "", "Capabilities": [["gpu"]], "Count": -1}]
    assert host["ShmSize"] == 32 * GIB
    assert {row["Name"]: row["Hard"] for row in host["Ulimits"]} == {"memlock": -1, "stack": 64 << 20}
    assert host["AutoRemove"] is True
    assert (body["Entrypoint"], body["Cmd"], host["Init"]) == (["python", "train.py"], [], True)
    assert body["User"] == "1001:1002"
    assert host["GroupAdd"] == ["27", "44"]
    assert body["Labels"] == {LABEL: "tiny-1.0"}
    assert body["Hostname"] == "tiny-1-0"


def request_of(**more: object) -> dict[str, object]:
    return {"Driver": "", "Capabilities": [["gpu"]], **more}


@pytest.mark.parametrize(
    ("gpus", "engine", "expected"),
    [
        (Gpus.NONE, "docker", None),
        (("0", "2"), "docker", request_of(DeviceIDs=["0", "2"])),
        (Gpus.ALL, "docker", request_of(Count=-1)),
        (Gpus.AS_LOCKED, "podman", {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}),
    ],
)
def test_requested_gpus(gpus: Gpus | tuple[str, ...], engine: str, expected: dict[str, object] | None) -> None:
    host = host_of(lock_of(cuda=True), replace(RUN, gpus=gpus), replace(ENGINE, name=engine))
    assert host.get("DeviceRequests") == ([expected] if expected else None)
    assert ("Ulimits" in host) is bool(expected)


@pytest.mark.parametrize(("gpus", "warned"), [(Gpus.AS_LOCKED, 0), (Gpus.NONE, 0), (Gpus.ALL, 1), (("0",), 1)])
def test_a_lock_without_cuda_gets_no_gpu(gpus: Gpus | tuple[str, ...], warned: int) -> None:
    settings = settings_of(lock_of(), replace(RUN, gpus=gpus))
    assert "DeviceRequests" not in create_body(settings)["HostConfig"]
    assert len(settings.warnings) == warned


def test_devices_are_those_of_the_machine() -> None:
    host = host_of(lock_of(cuda=True), replace(RUN, devices=("/dev/infiniband/rdma_cm",)))
    device = "/dev/infiniband/rdma_cm"
    assert host["Devices"] == [{"PathOnHost": device, "PathInContainer": device, "CgroupPermissions": "rwm"}]
    assert {"Name": "memlock", "Soft": -1, "Hard": -1} in host["Ulimits"]
    assert "Devices" not in host_of(lock_of(cuda=True))


def test_devices_for_rdma_are_device_files(tmp_path: Path) -> None:
    """As in /dev/infiniband, which also has folders of links."""
    for name in ("uverbs0", "umad0", "rdma_cm"):
        (tmp_path / name).symlink_to("/dev/null")
    (tmp_path / "by-path").mkdir()
    (tmp_path / "notes").write_text("")
    assert rdma_devices(tmp_path) == tuple(f"{tmp_path}/{name}" for name in ("rdma_cm", "umad0", "uverbs0"))
    assert rdma_devices(tmp_path / "none") == ()


def test_caches_of_what_is_in_the_lock() -> None:
    bare = settings_of(lock_of())
    assert [mount.target for mount in bare.mounts] == ["/workspace"]
    assert dict(bare.env) == {"HOME": "/home/jane", "USER": "jane", "LOGNAME": "jane"}
    full = settings_of(with_packages(lock_of(), "torch", "huggingface-hub"))
    assert dict(full.env) == {
        "HOME": "/home/jane",
        "USER": "jane",
        "LOGNAME": "jane",
        "TORCHINDUCTOR_CACHE_DIR": "/home/jane/.cache/compiled/inductor",
        "TRITON_CACHE_DIR": "/home/jane/.cache/compiled/triton",
        "CUDA_CACHE_PATH": "/home/jane/.cache/compiled/cuda",
        "HF_HOME": "/home/jane/.cache/huggingface",
    }
    assert full.mounts == (
        Mount("/home/jane/work", "/workspace"),
        Mount("/cache/c", "/home/jane/.cache/compiled"),
        Mount("/hf", "/home/jane/.cache/huggingface"),
        Mount("/big/hub", "/home/jane/.cache/huggingface/hub"),
    )
    assert full.made == ("/home/jane", "/home/jane/.cache")


def test_condas_names_count_as_well() -> None:
    rows = (conda("pytorch", "2.8.0"), conda("huggingface_hub", "1.0"))
    lock = replace(lock_of(), resolutions=(conda_resolution(Platform.LINUX_64, rows),))
    env = dict(settings_of(lock).env)
    assert {"TRITON_CACHE_DIR", "HF_HOME"} <= env.keys()


def test_without_folders_of_this_machine() -> None:
    settings = settings_of(with_packages(lock_of(), "torch"), folders=HostFolders())
    assert settings.mounts == ()
    assert "/workspace" in settings.made
    assert "/home/jane/.cache/compiled" in settings.made


@pytest.mark.parametrize(
    ("user", "name", "ids", "home"),
    [
        (User("root", 0, 0), "root", (0, 0), "/root"),
        (User("CORP\\jane.doe", 1001, 1002), "user", (1001, 1002), "/home/user"),
        (User("root", 1001, 1002), "user", (1001, 1002), "/home/user"),
        (JANE, "jane", (1001, 1002), "/home/jane"),
    ],
)
def test_who_it_runs_as(user: User, name: str, ids: tuple[int, int], home: str) -> None:
    settings = container_settings(lock_of(), user, ENGINE, FOLDERS, RUN)
    assert (settings.user.name, (settings.user.uid, settings.user.gid), settings.home) == (name, ids, home)


def test_a_rootless_engines_root_is_its_user() -> None:
    settings = settings_of(lock_of(cuda=True), engine=replace(ENGINE, rootless=True))
    assert (settings.user.uid, settings.home) == (0, "/root")
    assert "Ulimits" not in create_body(settings)["HostConfig"]


def test_selinux_allows_the_users_folders() -> None:
    confined = replace(ENGINE, selinux=True)
    assert host_of(lock_of(), engine=confined)["SecurityOpt"] == ["label=disable"]
    assert "SecurityOpt" not in host_of(lock_of(), engine=confined, folders=HostFolders())


SERVED = lock_of(Service("jupyter", 8888), Service("ssh", 22))
BESIDE = replace(RUN, start=StartMode.SERVICES)


def test_a_command_runs_alone_in_an_image_with_services() -> None:
    settings = settings_of(SERVED, replace(RUN, ports=(Port(80, 8080),)))
    body = create_body(settings)
    assert settings.start is StartMode.COMMAND
    assert (body["Entrypoint"], body["Cmd"], body["HostConfig"]["Init"]) == (["python", "train.py"], [], True)
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert list(body["HostConfig"]["PortBindings"]) == ["80/tcp"]


def test_services_start_where_they_are_asked_for_and_without_a_command() -> None:
    body = create_body(settings_of(SERVED, BESIDE))
    assert "Entrypoint" not in body
    assert "Healthcheck" not in body
    assert (body["Cmd"], body["HostConfig"]["Init"]) == (["python", "train.py"], False)
    assert body["HostConfig"]["PortBindings"] == {
        "8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8888"}],
        "2222/tcp": [{"HostIp": "127.0.0.1", "HostPort": "2222"}],
    }
    assert list(body["ExposedPorts"]) == ["8888/tcp", "2222/tcp"]
    alone = create_body(settings_of(SERVED, ContainerOptions()))
    assert "Cmd" not in alone
    assert alone["HostConfig"]["PortBindings"] == body["HostConfig"]["PortBindings"]
    with pytest.raises(UsageError, match="no command to run in tiny"):
        settings_of(lock_of(), ContainerOptions())
    with pytest.raises(UsageError, match="has no services to start"):
        settings_of(lock_of(), BESIDE)


def test_a_command_is_the_arguments_of_the_locks_entrypoint_as_in_docker() -> None:
    image = ImageSettings(entrypoint=("python", "-m", "server"), command=("--port", "80"))
    lock = replace(lock_of(), image=image)
    alone = create_body(settings_of(lock, ContainerOptions()))
    assert (alone["Entrypoint"], alone["Cmd"]) == (["python", "-m", "server", "--port", "80"], [])
    with_arguments = create_body(settings_of(lock, ContainerOptions(command=("--help",))))
    assert with_arguments["Entrypoint"] == ["python", "-m", "server", "--help"]
    without = create_body(settings_of(lock, replace(RUN, entrypoint=())))
    assert without["Entrypoint"] == ["python", "train.py"]
    another = create_body(settings_of(lock, ContainerOptions(entrypoint=("sh",))))
    assert another["Entrypoint"] == ["sh"]
    with pytest.raises(UsageError, match="no command to run in tiny"):
        settings_of(lock, ContainerOptions(entrypoint=()))


def test_a_command_of_the_lock_runs_next_to_its_services() -> None:
    lock = replace(SERVED, image=replace(SERVED.image, command=("python", "train.py")))
    body = create_body(settings_of(lock, ContainerOptions()))
    # The engine takes both from the image.
    assert "Entrypoint" not in body
    assert "Cmd" not in body
    with pytest.raises(UsageError, match="does not start the services"):
        settings_of(lock, ContainerOptions(entrypoint=("sh",)))


def test_ports_of_the_users() -> None:
    lock = lock_of(Service("jupyter", 8888), Service("tensorboard", 6006), Service("ssh", 2222))
    asked = replace(BESIDE, ports=(Port(8888, 9999), Port(80, 8080, "0.0.0.0"), Port(81, 0)))
    settings = settings_of(lock, asked)
    assert {port.container: (port.address, port.host) for port in settings.ports} == {
        6006: ("127.0.0.1", 6006),
        2222: ("127.0.0.1", 2222),
        8888: ("127.0.0.1", 9999),
        80: ("0.0.0.0", 8080),
        81: ("127.0.0.1", 0),
    }
    assert settings.listening == {6006: 6006, 2222: 2222, 8888: 9999}
    other = settings.without_port(6006, lambda: 50000)
    assert other.listening == {6006: 50000, 2222: 2222, 8888: 9999}
    bindings = create_body(other)["HostConfig"]["PortBindings"]
    assert {inside: row["HostPort"] for inside, (row,) in bindings.items()} == {
        "50000/tcp": "50000",
        "2222/tcp": "2222",
        "9999/tcp": "9999",
        "80/tcp": "8080",
        "81/tcp": "",
    }
    assert settings.without_port(9999, lambda: 50000) == settings
    assert settings.without_port(None, lambda: 50000).listening == {6006: 50000, 2222: 50000, 8888: 9999}


def test_services_are_told_their_ports() -> None:
    """As the image's own file is, but for the ports."""
    settings = ImageSettings(services=(Service("jupyter", 8888), Service("tensorboard", 6006, "runs")))
    moved = replace(settings, services=(Service("jupyter", 9999), Service("tensorboard", 6006, "runs")))

    def document(settings: ImageSettings) -> bytes:
        (entry,) = (each for each in ServicesSource(settings).entries() if each.path == "opt/envspec/services.json")
        assert isinstance(entry.data, InMemory)
        return entry.data.content

    assert moved_services(document(settings), {8888: 9999, 6006: 6006}) == document(moved)
    assert moved_services(document(settings), {}) == document(settings)


def test_on_the_machines_own_network_no_port_is_mapped() -> None:
    lock = lock_of(Service("jupyter", 8888))
    body = create_body(settings_of(lock, replace(RUN, network="host")))
    assert body["HostConfig"]["NetworkMode"] == "host"
    assert body["HostConfig"]["PortBindings"] == {}
    assert "Hostname" not in body


def test_mounts_of_the_users_take_the_place_of_ours() -> None:
    own = Mount("/elsewhere", "/workspace", MountAccess.READ_ONLY)
    settings = settings_of(lock_of(), replace(RUN, mounts=(own,)))
    assert settings.mounts == (own,)
    assert create_body(settings)["HostConfig"]["Mounts"] == [
        {"Type": "bind", "Source": "/elsewhere", "Target": "/workspace", "ReadOnly": True}
    ]
    with pytest.raises(UsageError, match="two mounts have the target /workspace"):
        settings_of(lock_of(), replace(RUN, mounts=(own, own)))


def test_what_the_user_says_of_the_environment_and_the_memory_counts() -> None:
    asked = replace(RUN, env=(("HOME", "/else"), ("X", "1")), shm_bytes=GIB, terminal=Terminal.TTY, stdin=True)
    body = create_body(settings_of(lock_of(), asked))
    assert {"HOME=/else", "X=1", "USER=jane"} <= set(body["Env"])
    assert body["HostConfig"]["ShmSize"] == GIB
    assert (body["Tty"], body["OpenStdin"], body["StdinOnce"]) == (True, True, True)
    assert host_of(lock_of(), engine=replace(ENGINE, memory_bytes=0))["ShmSize"] == 64 << 20


def test_the_user_is_in_the_account_files() -> None:
    passwd, group = (
        b"root:x:0:0:root:/root:/bin/sh\nubuntu:x:1001:1000::/home/ubuntu:/bin/sh\n",
        b"root:x:0:\nu:x:1000:\n",
    )
    files = account_files(passwd, group, JANE, "/home/jane")
    assert files["etc/passwd"] == b"jane:x:1001:1002:jane:/home/jane:/bin/sh\n" + passwd
    assert files["etc/group"] == group + b"jane:x:1002:\n"
    assert "etc/group" not in account_files(passwd, group, User("jane", 1001, 1000), "/home/jane")


def test_an_images_accounts_are_read_once(tmp_path: Path) -> None:
    read: list[str] = []

    def get_archive(container: str, path: str) -> tuple[list[bytes], None]:
        read.append(path)
        return [packed_tar((), {"file": f"{path} \xff".encode("latin-1")})], None

    def reads(image: str, *mounts: Mount, info: EngineInfo = ENGINE) -> int:
        read.clear()
        client = cast("Any", SimpleNamespace(get_archive=get_archive))
        engine = Engine(client, lambda: client, EngineAddress("unix:///x", AddressSource.DEFAULT), info)
        settings = settings_of(lock_of(), replace(RUN, mounts=mounts))
        found = image_accounts(engine, "it", image, settings, JsonCache(tmp_path))
        assert found == (b"/etc/passwd \xff", b"/etc/group \xff")
        return len(read)

    image = f"sha256:{'1' * 64}"
    assert [reads(image), reads(image)] == [2, 0]
    # Of another image or platform, hidden by a mount, or by a name that another image may get.
    assert reads(f"sha256:{'2' * 64}") == 2
    assert reads(image, info=replace(ENGINE, platform=Platform.LINUX_AARCH64)) == 2
    for target in ("/etc", "/etc/passwd", "/etc/../etc/group"):
        assert reads(image, Mount("/here", target)) == 2
    assert [reads("tiny:latest"), reads("tiny:latest")] == [2, 2]
    for path in tmp_path.iterdir():
        path.write_text('{"passwd": 1}')
    assert reads(image) == 2


def test_how_many_layers_two_images_share() -> None:
    assert [common_prefix(one, ["a", "b"]) for one in (["a", "b", "c"], ["a", "x"], ["x", "b"], [], ["a", "b"])] == [
        2,
        1,
        0,
        0,
        2,
    ]


def test_the_same_image_under_another_name() -> None:
    config = {"rootfs": {"diff_ids": ["a", "b"]}, "config": {"Env": ["X=1"], "Labels": {"l": "1"}}}
    conduct: dict[str, object] = {"Env": ["X=1"], "Labels": {"l": "1"}, "Cmd": None}
    found = {"RootFS": {"Layers": ["a", "b"]}, "Config": conduct}
    assert is_same(found, config)
    assert not is_same({**found, "RootFS": {"Layers": ["a"]}}, config)
    assert not is_same({**found, "Config": {**conduct, "Cmd": ["sh"]}}, config)
    assert not is_same({}, config)
