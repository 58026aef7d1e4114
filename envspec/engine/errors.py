"""What an engine's refusals mean, in words of the user's: pure, from the texts and errors that engines give.

Texts are those of Docker 20.10 to 29, Podman 4 and 5, and nvidia-container-toolkit 1.14 to 1.18 (read 2026-11).
"""

from __future__ import annotations

import errno
import re
import ssl
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final

from envspec.errors import EnvspecError, NetworkError, UnfitMachine, UsageError

_TOOLKIT_HINT: Final = (
    "install nvidia-container-toolkit on the engine's machine, run `nvidia-ctk runtime configure --runtime=docker` and "
    "restart the engine; `--gpus none` runs without GPUs"
)


class NoEngine(UnfitMachine):
    """No container engine can be used from here."""


class EngineUnreachable(NetworkError):
    """The engine on another machine does not answer."""


class EngineError(UnfitMachine):
    """The engine could not do what it was asked for."""


class NoGpuRuntime(UnfitMachine):
    """The engine can't give a container its GPUs."""


class CannotStart(EnvspecError):
    """The container's program can't be run; the exit code is what a shell tells of that."""

    exit_code: ClassVar[int] = 126


class NoSuchProgram(CannotStart):
    """The image has no such program."""

    exit_code: ClassVar[int] = 127


class LimitsRefused(EngineError):
    """The engine has no right to raise the limits of a container, as engines in containers have none."""


class PortTaken(EngineError):
    """A port of this machine is somebody else's. port: its number, None where the engine doesn't say."""

    def __init__(self, port: int | None) -> None:
        super().__init__(
            f"port {port} of this machine is taken" if port else "a port of this machine is taken",
            hint="take another one by `--port HOST:CONTAINER`",
        )
        self.port = port


class AddressSource(Enum):
    """Where an engine's address comes from."""

    DEFAULT = "the engine's own place"
    HOST = "DOCKER_HOST"
    CONTEXT = "the docker context"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine is. url: `unix:///var/run/docker.sock`, `tcp://host:2376`. context: its name, if one names it."""

    url: str
    named: AddressSource
    context: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over a network that may be down; loopback is not."""
        scheme, _, rest = self.url.partition("://")
        if scheme in {"unix", "http+unix", "npipe"}:
            return False
        host = rest.rpartition("@")[2].partition("/")[0]
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return host not in {"localhost", "::1"} and not host.startswith("127.")

    def __str__(self) -> str:
        who = f"context {self.context}" if self.named is AddressSource.CONTEXT else self.named.value
        return self.url if self.named is AddressSource.DEFAULT else f"{self.url} ({who})"


def unreachable(address: EngineAddress, error: BaseException, system: str, *, program: str | None) -> EnvspecError:
    """Why no engine answers at an address.

    system: as `sys.platform`. program: path of an engine's program on this machine, None without one.
    """
    reason = root_of(error)
    if isinstance(reason, ssl.SSLError):
        advice = "DOCKER_CERT_PATH must hold ca.pem, cert.pem and key.pem that the engine's side knows"
        return EngineUnreachable(
            f"the engine at {address} and this machine do not agree on TLS: {_said(reason)}", hint=advice
        )
    if isinstance(reason, OSError) and reason.errno in {errno.EACCES, errno.EPERM}:
        return NoEngine(
            f"this user may not talk to the engine at {address}: permission denied",
            hint="add the user to the group docker and log in again, or use rootless Docker or Podman (DOCKER_HOST)",
        )
    if address.is_remote:
        advice = f"check the address and the network, or unset {_variable(address)} to use this machine's engine"
        return EngineUnreachable(f"the engine at {address} does not answer: {_said(reason)}", hint=advice)
    if address.named is not AddressSource.DEFAULT:
        advice = f"start that engine, or correct or unset {_variable(address)}"
        return NoEngine(f"no engine answers at {address}: {_said(reason)}", hint=advice)
    return _none_here(_said(reason), address, system, program)


def _none_here(said: str, address: EngineAddress, system: str, program: str | None) -> NoEngine:
    if system in {"darwin", "win32"}:
        return NoEngine("Docker Desktop is not running here", hint="start it, or install Docker Desktop or Podman")
    if program is None:
        return NoEngine(
            f"no container engine is installed here: there is no docker or podman, and nothing answers at {address}",
            hint="install Docker or Podman, or name an engine by DOCKER_HOST; in a container, mount its host's socket",
        )
    if program.endswith("podman"):
        return NoEngine(
            f"Podman's API is not running: {said} ({address})",
            hint="`systemctl --user start podman.socket`, then "
            "`export DOCKER_HOST=unix://$XDG_RUNTIME_DIR/podman/podman.sock`",
        )
    return NoEngine(
        f"Docker is installed and not running: {said} ({address})",
        hint="start it (`systemctl start docker`); in a container, mount its host's socket",
    )


def engine_error(doing: str, said: str) -> EnvspecError:
    """What an engine's own message means. doing: what it was asked for: `starting the container`."""
    text = " ".join(said.split())
    for pattern, made in _MEANINGS:
        if found := re.search(pattern, text, re.IGNORECASE):
            return made(found)
    return EngineError(f"{doing}: the engine says: {text or 'nothing'}")


def connection_lost(doing: str, address: EngineAddress, error: BaseException) -> EnvspecError:
    """The engine stopped answering in the middle."""
    kind = EngineUnreachable if address.is_remote else EngineError
    return kind(
        f"{doing}: the engine at {address} stopped answering: {_said(root_of(error))}",
        hint="its own log says why (`journalctl -u docker`)",
    )


def root_of(error: BaseException) -> BaseException:
    """The system's own error below those that libraries wrapped around it; the error itself where there is none."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, ssl.SSLError) or (isinstance(each, OSError) and each.errno is not None):
            return each
        inner = (*each.args, getattr(each, "reason", None), each.__cause__, each.__context__)
        waiting += [one for one in inner if isinstance(one, BaseException)]
    return error


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower() if error.strerror[:2].istitle() else error.strerror
    if type(error).__name__.endswith("Timeout"):
        return "it takes connections and gives no answer"
    status = getattr(error, "status_code", None)
    if status:
        return f"HTTP {status}, which is no container engine's answer"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _variable(address: EngineAddress) -> str:
    return "DOCKER_CONTEXT (`docker context use default`)" if address.named is AddressSource.CONTEXT else "DOCKER_HOST"


def _no_toolkit(_: re.Match[str]) -> EnvspecError:
    found = "the engine can't give containers a GPU: it has no NVIDIA container toolkit"
    return NoGpuRuntime(found, hint=_TOOLKIT_HINT)


def _old_driver(found: re.Match[str]) -> EnvspecError:
    return NoGpuRuntime(
        f"the NVIDIA driver of the engine's machine is too old for this image: {found[1].strip()} does not hold",
        hint="`envspec fit LOCK` says which driver it needs; `--gpus none` runs without GPUs",
    )


def _no_device(found: re.Match[str]) -> EnvspecError:
    return NoGpuRuntime(f"the engine's machine has no GPU {found[1]}", hint="`nvidia-smi -L` there lists them")


def _no_driver(found: re.Match[str]) -> EnvspecError:
    return NoGpuRuntime(
        f"the NVIDIA container toolkit finds no driver on the engine's machine: {found[1].strip()}",
        hint="`nvidia-smi` there must work first; `envspec doctor` looks it over; `--gpus none` runs without GPUs",
    )


def _port(found: re.Match[str]) -> EnvspecError:
    numbers = re.findall(r"(?:\d+\.\d+\.\d+\.\d+|\]|localhost):(\d+)", found.string)
    return PortTaken(int(numbers[0]) if numbers else None)


def _no_limits(_: re.Match[str]) -> EnvspecError:
    return LimitsRefused("the engine may not raise the limits of locked memory and of the stack")


def _no_folder(found: re.Match[str]) -> EnvspecError:
    return UsageError(
        f"the engine finds no {found[1]} on its machine, which was to be mounted",
        hint="an engine sees its own machine's folders: where this runs in a container, or the engine is a virtual "
        "machine, share the folder with it; `--no-work --no-cache` mounts none",
    )


def _no_program(found: re.Match[str]) -> EnvspecError:
    return NoSuchProgram(f"the image has no program {found[1]!r}", hint="`envspec shell LOCK` looks around in it")


def _no_right(found: re.Match[str]) -> EnvspecError:
    return CannotStart(f"{found[1]!r} in the image can't be run: permission denied", hint="is it an executable file?")


def _full(found: re.Match[str]) -> EnvspecError:
    return EngineError(
        f"the engine's disk is full: {found.string}", hint="make room (`docker system df` shows for what)"
    )


_MEANINGS: Final = (
    (r"could not select device driver|failed to discover GPU vendor from CDI", _no_toolkit),
    (r"unresolvable CDI devices|unknown or invalid runtime name: nvidia", _no_toolkit),
    (r"requirement error: unsatisfied condition: ([^,\"]+)", _old_driver),
    (r"device error: ([^:,]+): unknown device", _no_device),
    (r"nvidia-container-cli: ((?:initialization|ldcache|detection|driver) error: .*?)(?:: unknown|$)", _no_driver),
    (r"(?:port is already allocated|address already in use|ports are not available)", _port),
    (r"setting rlimits?", _no_limits),
    (r"bind source path does not exist: (\S+)", _no_folder),
    (r"exec:? \"?([^\s\":]+)\"?: (?:executable file not found|stat [^:]+: no such file)", _no_program),
    (r"exec:? \"?([^\s\":]+)\"?: permission denied", _no_right),
    (r"no space left on device", _full),
)
