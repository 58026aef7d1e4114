"""Settings in the words of the Docker Engine's API.

Sources: Docker Engine API 1.41, "ContainerCreate"; Podman 5, its Docker API's `DeviceRequests` for CDI; NVIDIA,
"Frameworks User Guide", on shared memory and limits. Read 2026-11.
"""

from __future__ import annotations

import re
from typing import Any, Final

from envspec.engine.container import Access, ContainerSettings, Gpus, Start, Terminal

#: On every container that `run` and `shell` start: the lock's name.
LABEL: Final = "envspec.run"
_STACK: Final = 64 * 1024 * 1024


def request(settings: ContainerSettings) -> dict[str, Any]:
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
    if settings.start is Start.COMMAND:
        # A base's own entrypoint may print a banner: stdout is to be the command's alone.
        body |= {"Entrypoint": list(settings.command), "Cmd": [], "Healthcheck": {"Test": ["NONE"]}}
    elif settings.command:
        body["Cmd"] = list(settings.command)
    if settings.network != "host":
        body["Hostname"] = re.sub(r"[^A-Za-z0-9-]+", "-", settings.name).strip("-")[:63]
    return body


def _host(settings: ContainerSettings) -> dict[str, Any]:
    host: dict[str, Any] = {
        "AutoRemove": True,
        # The first process of a container ignores signals that it does not handle, and must reap what others leave.
        "Init": settings.start is Start.COMMAND,
        "ShmSize": settings.shm_bytes,
        "GroupAdd": [str(group) for group in settings.user.groups],
        "Mounts": [
            {
                "Type": "bind",
                "Source": mount.source,
                "Target": mount.target,
                "ReadOnly": mount.access is Access.READ_ONLY,
            }
            for mount in settings.mounts
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
    if settings.gpus is not Gpus.NONE:
        host["DeviceRequests"] = [_device_request(settings)]
    return host


def _device_request(settings: ContainerSettings) -> dict[str, Any]:
    named = settings.gpus if isinstance(settings.gpus, tuple) else ()
    if settings.cdi:
        return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={each}" for each in named or ("all",)]}
    chosen: dict[str, Any] = {"DeviceIDs": list(named)} if named else {"Count": -1}
    return {"Driver": "", "Capabilities": [["gpu"]], **chosen}


def _bindings(settings: ContainerSettings) -> dict[str, list[dict[str, str]]]:
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in settings.ports:
        row = {"HostIp": port.address, "HostPort": str(port.host) if port.host else ""}
        inside = settings.listening.get(port.container, port.container)
        bindings.setdefault(f"{inside}/tcp", []).append(row)
    return bindings
