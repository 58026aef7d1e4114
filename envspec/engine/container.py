"""Settings of a container.

Sources: PyTorch, "torch.compile" on TORCHINDUCTOR_CACHE_DIR; CUDA C++ Programming Guide, on CUDA_CACHE_PATH; Hugging
Face Hub, "Environment variables"; Docker Engine API 1.41, "ContainerCreate"; Podman 5, its Docker API's
`DeviceRequests` for CDI; NVIDIA, "Frameworks User Guide", on shared memory and limits. Read 2026-11.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from envspec.engine.client import EngineInfo
from envspec.errors import UsageError
from envspec.models import Lock
from envspec.names import is_of_the_system
from envspec.structs import replace

_LOOPBACK: Final = "127.0.0.1"
#: Docker's default size of /dev/shm.
_MIN_SHM_BYTES: Final = 64 * 1024 * 1024
#: Ports below 1024 are reserved on the user's machine: 22 becomes 2222.
_RESERVED_PORTS, _PORT_OFFSET = 1024, 2200
_HUB_NAMES: Final = frozenset({"huggingface-hub"})
_COMPILERS: Final = frozenset({"torch", "pytorch", "triton"})


class MountAccess(Enum):
    READ_WRITE = "rw"
    READ_ONLY = "ro"


class Terminal(Enum):
    TTY = "a terminal of its own"
    PIPES = "pipes"


class StartMode(Enum):
    COMMAND = "the command alone"
    SERVICES = "the image's own init, with its services and the command"


class Gpus(Enum):
    """The requested GPUs, if none is named."""

    AS_LOCKED = "all, if the lock has CUDA"
    ALL = "all"
    NONE = "none"


class User(Struct, frozen=True):
    """The user of a container. groups: ids of supplementary groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


ROOT: Final = User("root", 0, 0)


class Mount(Struct, frozen=True):
    """A folder or file of the engine's machine. target: an absolute path in the container."""

    source: str
    target: str
    access: MountAccess = MountAccess.READ_WRITE


class Port(Struct, frozen=True):
    """A published port. host: on the engine's machine, 0 for any free one. service: empty for a port of the user's."""

    container: int
    host: int
    address: str = _LOOPBACK
    service: str = ""


class HostFolders(Struct, frozen=True):
    """Folders of this machine to mount. compiled: caches of compilers. hub: (path below HF_HOME, host path)."""

    work: str | None = None
    compiled: str | None = None
    hub: tuple[tuple[str, str], ...] = ()


class ContainerOptions(Struct, frozen=True):
    """The user's options. command: empty: start the image's services, or its command. gpus: or the GPUs' numbers or
    UUIDs.

    entrypoint: instead of the lock's, before the command; empty: none. None for the lock's.
    devices: further device files of the engine's machine.
    shm_bytes: None for half of the memory. network: None for the engine's default.
    """

    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    start: StartMode = StartMode.COMMAND
    gpus: Gpus | tuple[str, ...] = Gpus.AS_LOCKED
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    ports: tuple[Port, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    shm_bytes: int | None = None
    network: str | None = None
    terminal: Terminal = Terminal.PIPES
    stdin: bool = False


class ContainerSettings(ContainerOptions, frozen=True, kw_only=True):
    """A container to start. home: the user's home in it. made: folders created for the user, outside of mounts."""

    name: str
    user: User
    home: str
    workdir: str
    serving: tuple[int, ...]
    made: tuple[str, ...]
    limits: bool
    unconfined: bool
    cdi: bool
    warnings: tuple[str, ...]

    @property
    def address(self) -> str | None:
        """The address on which services listen; None for all, which only the container's own network reaches."""
        if self.serving and self.network == "host":
            return _LOOPBACK
        return None

    def is_mounted(self, path: str) -> bool:
        return _is_mounted(path, self.mounts)

    @property
    def listening(self) -> dict[int, int]:
        """A service's port in the image -> in this container: the machine's port, so that services' URLs work."""
        served = [port for port in self.ports if port.container in self.serving]
        return {port.container: port.host for port in served if port.host}

    def without_port(self, taken: int | None, another: Callable[[], int]) -> ContainerSettings:
        """A copy with other machine ports for services. taken: the port in use, None for any."""
        ports = list(self.ports)
        for place, port in enumerate(ports):
            if port.service and taken in {None, port.host}:
                ports[place] = replace(port, host=another())
        return replace(self, ports=tuple(ports))


def container_settings(
    lock: Lock, user: User, engine: EngineInfo, folders: HostFolders, options: ContainerOptions
) -> ContainerSettings:
    """The settings of the container.

    Raises:
        UsageError: the image starts nothing by itself and no command is given, or two mounts have one target.
    """
    start, command = _started(lock, options)
    if start is StartMode.COMMAND and not command:
        raise UsageError(
            f"no command to run in {lock.name}", hint="use `envspec run LOCK -- COMMAND`, or `envspec shell LOCK`"
        )
    if options.entrypoint and start is StartMode.SERVICES:
        raise UsageError(
            "an entrypoint of your own does not start the services of the image", hint="leave out one of the two"
        )
    if start is StartMode.SERVICES and not lock.image.services:
        raise UsageError(f"{lock.name} has no services to start", hint="add them to [services] in its spec")
    # The root of a rootless engine is its user, who then owns new files in the work folder.
    user = ROOT if engine.rootless else _named(user)
    home = "/root" if user.uid == 0 else f"/home/{user.name}"
    gpus, warnings = _gpus(lock, options.gpus)
    env, mounts, made = _caches(lock, home, folders)
    if folders.work:
        mounts = (Mount(folders.work, lock.image.workdir), *mounts)
    else:
        made = (lock.image.workdir, *made)
    mounts = _distinct(mounts, options.mounts)
    ports = options.ports
    serving: tuple[int, ...] = ()
    if start is StartMode.SERVICES:
        ports = _ports(lock, options.ports)
        serving = tuple(each.port for each in lock.image.services)
    if options.network == "host":
        ports = ()
    names = {"HOME": home, "USER": user.name, "LOGNAME": user.name}
    return ContainerSettings(
        name=lock.name,
        command=command,
        start=start,
        user=user,
        home=home,
        workdir=lock.image.workdir,
        env=tuple((names | env | dict(options.env)).items()),
        mounts=mounts,
        ports=ports,
        serving=serving,
        made=tuple(path for path in made if not (is_of_the_system(path) or _is_mounted(path, mounts))),
        shm_bytes=options.shm_bytes or max(_MIN_SHM_BYTES, engine.memory_bytes // 2),
        gpus=gpus,
        devices=options.devices,
        terminal=options.terminal,
        stdin=options.stdin,
        network=options.network,
        # Pinned memory counts as locked, and so does memory that is registered for RDMA: without a limit the capability
        # IPC_LOCK is not needed. A rootless engine may not raise limits, nor does that capability count there, or for a
        # user other than root (the kernel's `drivers/infiniband/core/umem.c`; nvidia-container-toolkit#2037).
        limits=gpus is not Gpus.NONE and not engine.rootless,
        unconfined=engine.selinux and bool(mounts),
        cdi=engine.is_podman,
        warnings=warnings,
    )


def _started(lock: Lock, options: ContainerOptions) -> tuple[StartMode, tuple[str, ...]]:
    """Whether the services start, and what else does. As in Docker, arguments replace the command only.

    Source: Dockerfile reference, "Understand how CMD and ENTRYPOINT interact".
    """
    image = lock.image
    if image.services and (options.start is StartMode.SERVICES or not options.command):
        return StartMode.SERVICES, options.command
    if options.entrypoint is not None:
        # As in Docker, it drops the image's command too.
        return options.start, options.entrypoint + options.command
    return options.start, image.entrypoint + (options.command or image.command)


def moved_services(document: bytes, listening: Mapping[int, int], address: str | None = None) -> bytes:
    """services.json with other ports. listening: old -> new. address: None for that in the file."""
    services = json.loads(document)
    if address is not None:
        services["address"] = address
    for service in services["services"]:
        service["port"] = listening.get(service["port"], service["port"])
    return json.dumps(services, indent=1, sort_keys=True).encode() + b"\n"


def rdma_devices(folder: Path = Path("/dev/infiniband")) -> tuple[str, ...]:
    """The device files by which this machine's programs use RDMA: uverbs0, rdma_cm, umad0 and more."""
    return tuple(str(each) for each in sorted(folder.glob("*")) if each.is_char_device())


def _gpus(lock: Lock, requested: Gpus | tuple[str, ...]) -> tuple[Gpus | tuple[str, ...], tuple[str, ...]]:
    if not lock.is_for_gpus:
        if requested in (Gpus.AS_LOCKED, Gpus.NONE):
            return Gpus.NONE, ()
        return Gpus.NONE, (f"{lock.name} has no CUDA: the container gets no GPU",)
    if requested is Gpus.AS_LOCKED:
        return Gpus.ALL, ()
    return requested, ()


def _is_mounted(path: str, mounts: Sequence[Mount]) -> bool:
    """Whether a path is below a mount, where an engine would change the owner of a folder of its machine."""
    inner = f"{_plain(path)}/"
    return any(inner.startswith(f"{_plain(mount.target).rstrip('/')}/") for mount in mounts)


def _plain(path: str) -> str:
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _named(user: User) -> User:
    """The user with a name that is valid in /etc/passwd, as `CORP\\jane.doe` is not."""
    if user.uid == 0:
        return ROOT
    fits = re.fullmatch(r"[a-z_][a-z0-9_.-]{0,31}", user.name) and user.name != "root"
    return user if fits else replace(user, name="user")


def _caches(lock: Lock, home: str, folders: HostFolders) -> tuple[dict[str, str], tuple[Mount, ...], tuple[str, ...]]:
    """The caches of libraries: variables, mounts, and folders to create."""
    names: set[str] = set()
    for part in lock.resolutions:
        names |= {package.name for package in part.packages}
        names |= {package.name.replace("_", "-").lower() for package in part.conda}
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    made = [home, f"{home}/.cache"]
    if names & _COMPILERS:
        path = f"{home}/.cache/compiled"
        made.append(path)
        env |= {
            "TORCHINDUCTOR_CACHE_DIR": f"{path}/inductor",
            "TRITON_CACHE_DIR": f"{path}/triton",
            "CUDA_CACHE_PATH": f"{path}/cuda",
        }
        if folders.compiled:
            mounts.append(Mount(folders.compiled, path))
    if names & _HUB_NAMES:
        path = f"{home}/.cache/huggingface"
        made.append(path)
        env["HF_HOME"] = path
        mounts += [Mount(source, _plain(f"{path}/{below}")) for below, source in folders.hub]
    return env, tuple(mounts), tuple(made)


def _ports(lock: Lock, requested: Sequence[Port]) -> tuple[Port, ...]:
    """The services' ports on loopback, unless the user publishes them."""
    published = {port.container for port in requested}
    own = []
    for each in lock.image.services:
        if each.port in published:
            continue
        host = each.port
        if host < _RESERVED_PORTS:
            host += _PORT_OFFSET
        own.append(Port(each.port, host, service=each.name))
    return (*own, *requested)


def _distinct(own: Sequence[Mount], requested: Sequence[Mount]) -> tuple[Mount, ...]:
    """The user's mounts replace envspec's at the same path."""
    targets = [mount.target for mount in requested]
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise UsageError(f"two mounts have the target {twice[0]}", hint="use another target for one of them")
    return (*(mount for mount in own if mount.target not in targets), *requested)


#: On every container that `run` and `shell` start: the lock's name.
LABEL: Final = "envspec.run"
_STACK: Final = 64 * 1024 * 1024


def create_body(settings: ContainerSettings) -> dict[str, Any]:
    """The body of `POST /containers/create`, without the image."""
    user = settings.user
    body: dict[str, Any] = {
        "User": f"{user.uid}:{user.gid}",
        "Env": [f"{name}={value}" for name, value in settings.env],
        "WorkingDir": settings.workdir,
        "Labels": {LABEL: settings.name},
        "Tty": settings.terminal is Terminal.TTY,
        "OpenStdin": settings.stdin,
        "StdinOnce": settings.stdin,
        "AttachStdin": settings.stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "ExposedPorts": {port: {} for port in _bindings(settings)},
        "HostConfig": _host(settings),
    }
    if settings.start is StartMode.COMMAND:
        # A base's entrypoint may print a banner: stdout is only for the command.
        body |= {"Entrypoint": list(settings.command), "Cmd": [], "Healthcheck": {"Test": ["NONE"]}}
    elif settings.command:
        body["Cmd"] = list(settings.command)
    if settings.network != "host":
        body["Hostname"] = re.sub(r"[^A-Za-z0-9-]+", "-", settings.name).strip("-")[:63]
    return body


def _host(settings: ContainerSettings) -> dict[str, Any]:
    host: dict[str, Any] = {
        "AutoRemove": True,
        # The first process of a container ignores unhandled signals, and must reap orphans.
        "Init": settings.start is StartMode.COMMAND,
        "ShmSize": settings.shm_bytes,
        "GroupAdd": [str(group) for group in settings.user.groups],
        "Mounts": [
            {"Type": "bind", "Source": each.source, "Target": each.target}
            | {"ReadOnly": each.access is MountAccess.READ_ONLY}
            for each in settings.mounts
        ],
        "PortBindings": _bindings(settings),
    }
    if settings.network:
        host["NetworkMode"] = settings.network
    if settings.limits:
        host["Ulimits"] = [
            {"Name": "memlock", "Soft": -1, "Hard": -1},
            {"Name": "stack", "Soft": _STACK, "Hard": _STACK},
        ]
    if settings.unconfined:
        # Relabelling a user's folders for one container would take them from the others.
        host["SecurityOpt"] = ["label=disable"]
    if settings.devices:
        host["Devices"] = [
            {"PathOnHost": each, "PathInContainer": each, "CgroupPermissions": "rwm"} for each in settings.devices
        ]
    if settings.gpus is not Gpus.NONE:
        host["DeviceRequests"] = [_device_request(settings)]
    return host


def _device_request(settings: ContainerSettings) -> dict[str, Any]:
    named = settings.gpus if isinstance(settings.gpus, tuple) else ()
    if settings.cdi:
        return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={each}" for each in named or ("all",)]}
    request: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu"]]}
    if named:
        return {**request, "DeviceIDs": list(named)}
    return {**request, "Count": -1}


def _bindings(settings: ContainerSettings) -> dict[str, list[dict[str, str]]]:
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in settings.ports:
        binding = {"HostIp": port.address, "HostPort": str(port.host or "")}
        inside = settings.listening.get(port.container, port.container)
        bindings.setdefault(f"{inside}/tcp", []).append(binding)
    return bindings
