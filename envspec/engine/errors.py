"""Errors of engines.

Texts are of Docker 20.10 to 29, Podman 4 and 5, and nvidia-container-toolkit 1.14 to 1.18 (read 2026-11).
"""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Collection
from enum import Enum
from typing import Final

from msgspec import Struct

from envspec.errors import EnvspecError, NetworkError, UnfitMachine, UsageError


class NoEngine(UnfitMachine, code="no-engine"):
    """No usable container engine."""


class EngineUnreachable(NetworkError, code="engine-unreachable"):
    """The engine on another machine does not answer."""


class EngineError(UnfitMachine, code="engine"):
    """The engine refused a request."""


class NoGpuRuntime(UnfitMachine, code="no-gpu-runtime"):
    """The engine can't give a container its GPUs."""


class CannotStart(EnvspecError, exit_code=126, code="cannot-start"):
    """The container's program can't be run; the exit code is a shell's."""


class NoSuchProgram(CannotStart, exit_code=127, code="no-such-program"):
    """The image has no such program."""


class LimitsRefused(EngineError):
    """The engine may not raise the limits of a container, as in containers."""


class PortTaken(EngineError, code="port-in-use"):
    """A port of this machine is in use. port: None if the engine does not name it."""

    def __init__(self, port: int | None) -> None:
        super().__init__(
            f"port {port} of this machine is in use" if port else "a port of this machine is in use",
            hint="choose another one by `--port HOST:CONTAINER`",
        )
        self.port = port


class AddressSource(Enum):
    DEFAULT = "the default"
    HOST = "DOCKER_HOST"
    CONTEXT = "the docker context"
    PODMAN = "Podman's socket"


class EngineAddress(Struct, frozen=True):
    """url: `unix:///var/run/docker.sock`, `tcp://host:2376`. context: the docker context's name."""

    url: str
    named: AddressSource
    context: str = ""

    @property
    def is_remote(self) -> bool:
        scheme, _, rest = self.url.partition("://")
        if scheme in {"unix", "http+unix", "npipe"}:
            return False
        host = rest.rpartition("@")[2].partition("/")[0]
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return host not in {"localhost", "::1"} and not host.startswith("127.")

    def __str__(self) -> str:
        if self.named in (AddressSource.DEFAULT, AddressSource.PODMAN):
            return self.url
        if self.named is AddressSource.CONTEXT:
            return f"{self.url} (context {self.context})"
        return f"{self.url} ({self.named.value})"


def unreachable(
    address: EngineAddress, error: BaseException, system: str, programs: Collection[str] = ()
) -> EnvspecError:
    """Why no engine responds. system: `sys.platform`. programs: those of `dockerd`, `docker` and `podman` on PATH."""
    reason = root_of(error)
    if isinstance(reason, ssl.SSLError):
        advice = "put ca.pem, cert.pem and key.pem that the engine accepts into DOCKER_CERT_PATH"
        return EngineUnreachable(f"no TLS connection to the engine at {address}: {_reason(reason)}", hint=advice)
    if isinstance(reason, OSError) and reason.errno in {errno.EACCES, errno.EPERM}:
        return NoEngine(
            f"this user may not use the engine at {address}: permission denied",
            hint="add the user to the group docker and log in again, or use rootless Docker (DOCKER_HOST) or Podman "
            f"({_START_PODMAN})",
        )
    if address.is_remote:
        advice = f"check the address and the network, or unset {_variable(address)} to use this machine's engine"
        return EngineUnreachable(f"the engine at {address} does not respond: {_reason(reason)}", hint=advice)
    if address.named is not AddressSource.DEFAULT:
        advice = f"start that engine, or correct or unset {_variable(address)}"
        return NoEngine(f"no engine responds at {address}: {_reason(reason)}", hint=advice)
    return _none_local(_reason(reason), address, system, programs)


_START_PODMAN: Final = "`systemctl --user start podman.socket`"


def _none_local(reason: str, address: EngineAddress, system: str, programs: Collection[str]) -> NoEngine:
    if system in {"darwin", "win32"}:
        return NoEngine("Docker Desktop is not running", hint="start it, or install Docker Desktop or Podman")
    if not programs:
        return NoEngine(
            f"no container engine is installed: there is no docker or podman, and nothing responds at {address}",
            hint="install Docker or Podman, or set DOCKER_HOST to an engine; in a container, mount its host's socket",
        )
    if not {"docker", "dockerd"} & set(programs):
        return NoEngine(f"Podman's API is not running: {reason} ({address})", hint=f"start it: {_START_PODMAN}")
    start = "start Docker (`systemctl start docker`)"
    if "podman" in programs:
        start += f", or Podman's API ({_START_PODMAN})"
    return NoEngine(
        f"Docker is installed but not running: {reason} ({address})",
        hint=f"{start}; in a container, mount its host's socket",
    )


def engine_error(doing: str, message: str) -> EnvspecError:
    """An engine's error message as envspec's own. doing: the request: `starting the container`."""
    text = " ".join(message.split())
    if re.search(r"port is already allocated|address already in use|ports are not available", text, re.IGNORECASE):
        port = re.search(r"(?:\d+\.\d+\.\d+\.\d+|\]|localhost):(\d+)", text)
        return PortTaken(int(port[1]) if port else None)
    for pattern, kind, what, hint in _ERRORS:
        if found := re.search(pattern, text, re.IGNORECASE):
            return kind(what.format(text, *(group.strip() for group in found.groups())), hint=hint)
    return EngineError(f"{doing}: the engine reports: {text or 'nothing'}")


def connection_lost(doing: str, address: EngineAddress, error: BaseException) -> EnvspecError:
    """The engine stopped responding during a request."""
    kind = EngineUnreachable if address.is_remote else EngineError
    return kind(
        f"{doing}: the engine at {address} stopped responding: {_reason(root_of(error))}",
        hint="look into its log (`journalctl -u docker`)",
    )


def root_of(error: BaseException) -> BaseException:
    """The system's error that libraries wrapped; the error itself if there is none."""
    visited: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) in visited:
            continue
        visited.add(id(each))
        if isinstance(each, ssl.SSLError) or (isinstance(each, OSError) and each.errno is not None):
            return each
        inner = (*each.args, getattr(each, "reason", None), each.__cause__, each.__context__)
        waiting += [one for one in inner if isinstance(one, BaseException)]
    return error


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        if error.strerror[:2].istitle():
            return error.strerror.lower()
        return error.strerror
    if type(error).__name__.endswith("Timeout"):
        return "it accepts connections but does not respond"
    status = getattr(error, "status_code", None)
    if status:
        return f"HTTP {status}, which is not from a container engine"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _variable(address: EngineAddress) -> str:
    if address.named is AddressSource.CONTEXT:
        return "DOCKER_CONTEXT (`docker context use default`)"
    return "DOCKER_HOST"


#: (pattern in an engine's message, error, message, hint); {1} is the pattern's group, {0} the whole message.
_ERRORS: Final[tuple[tuple[str, type[EnvspecError], str, str | None], ...]] = (
    (
        r"could not select device driver|failed to discover GPU vendor from CDI|unresolvable CDI devices"
        r"|unknown or invalid runtime name: nvidia",
        NoGpuRuntime,
        "the engine can't give containers a GPU: it has no NVIDIA container toolkit",
        "install nvidia-container-toolkit on the engine's machine, run `nvidia-ctk runtime configure --runtime=docker` "
        "and restart the engine; `--gpus none` runs without GPUs",
    ),
    (
        r"requirement error: unsatisfied condition: ([^,\"]+)",
        NoGpuRuntime,
        "the NVIDIA driver of the engine's machine is too old for this image: {1} is not satisfied",
        "run `envspec fit LOCK` for the required driver; `--gpus none` runs without GPUs",
    ),
    (
        r"device error: ([^:,]+): unknown device",
        NoGpuRuntime,
        "the engine's machine has no GPU {1}",
        "list them there with `nvidia-smi -L`",
    ),
    (
        r"nvidia-container-cli: ((?:initialization|ldcache|detection|driver) error: .*?)(?:: unknown|$)",
        NoGpuRuntime,
        "the NVIDIA container toolkit finds no driver on the engine's machine: {1}",
        "make `nvidia-smi` work there first; `envspec doctor` checks it; `--gpus none` runs without GPUs",
    ),
    (
        r"setting rlimits?",
        LimitsRefused,
        "the engine may not raise the limits of locked memory and of the stack",
        None,
    ),
    (
        r"bind source path does not exist: (\S+)",
        UsageError,
        "{1}, which was to be mounted, is not on the engine's machine",
        "share the folder with the engine if that is a virtual machine, or if this runs in a container: engines mount "
        "their own machine's folders; `--no-work --no-cache` mounts none",
    ),
    (
        r"exec:? \"?([^\s\":]+)\"?: (?:executable file not found|stat [^:]+: no such file)",
        NoSuchProgram,
        "the image has no program '{1}'",
        "run `envspec shell LOCK` to inspect it",
    ),
    (
        r"exec:? \"?([^\s\":]+)\"?: permission denied",
        CannotStart,
        "'{1}' in the image can't be run: permission denied",
        "check that it is an executable file",
    ),
    (
        r"no space left on device",
        EngineError,
        "the engine's disk is full: {0}",
        "free space (`docker system df` shows what uses it)",
    ),
)
