"""What users read where an engine is missing, refuses or does not answer."""

from __future__ import annotations

import errno
import ssl

import pytest
from requests.exceptions import ReadTimeout

from envspec.engine.client import engine_info
from envspec.engine.errors import (
    AddressSource,
    CannotStart,
    EngineAddress,
    EngineError,
    LimitsRefused,
    NoGpuRuntime,
    NoSuchProgram,
    PortTaken,
    connection_lost,
    engine_error,
    root_of,
    unreachable,
)
from envspec.errors import EnvspecError, UsageError
from envspec.models import Platform

HERE = EngineAddress("unix:///var/run/docker.sock", AddressSource.DEFAULT)
BOX = EngineAddress("tcp://box:2376", AddressSource.HOST)
GONE = FileNotFoundError(errno.ENOENT, "No such file or directory")


def wrapped(inner: BaseException) -> Exception:
    """As requests and urllib3 wrap it: in arguments, in reasons, in causes."""
    middle = Exception("Connection aborted.", inner)
    outer = Exception("Error while fetching server API version")
    outer.__cause__ = middle
    return outer


@pytest.mark.parametrize(
    ("url", "remote"),
    [
        ("unix:///var/run/docker.sock", False),
        ("npipe:////./pipe/docker_engine", False),
        ("tcp://127.0.0.1:2375", False),
        ("tcp://localhost:2375", False),
        ("tcp://[::1]:2375", False),
        ("tcp://10.0.0.7:2376", True),
        ("ssh://jane@gpu-box", True),
        ("tcp://[2001:db8::1]:2376", True),
    ],
)
def test_which_engines_are_other_machines(url: str, *, remote: bool) -> None:
    assert EngineAddress(url, AddressSource.HOST).is_remote is remote


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
FORBIDDEN = PermissionError(errno.EACCES, "Permission denied")
TIMED_OUT = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
OWN = EngineAddress("unix:///run/user/7/docker.sock", AddressSource.HOST)
GPUS = EngineAddress("tcp://gpus:2376", AddressSource.CONTEXT, "gpus")
HANGS = ReadTimeout("UnixHTTPConnectionPool(host='localhost', port=None): Read timed out.")


@pytest.mark.parametrize(
    ("address", "error", "system", "programs", "code", "text"),
    [
        (HERE, GONE, "linux", "", 6, "no container engine is installed"),
        (HERE, GONE, "linux", "dockerd", 6, "Docker is installed but not running: no such file or directory"),
        (HERE, GONE, "linux", "podman", 6, "Podman's API is not running"),
        (HERE, GONE, "darwin", "docker", 6, "Docker Desktop is not running"),
        (HERE, FORBIDDEN, "linux", "docker", 6, "this user may not use the engine at unix:///var/run"),
        (HERE, HANGS, "linux", "dockerd", 6, "it accepts connections but does not respond"),
        (OWN, REFUSED, "linux", "", 6, f"no engine responds at {OWN.url} (DOCKER_HOST): connection refused"),
        (GPUS, TIMED_OUT, "linux", "", 5, f"at {GPUS.url} (context gpus) does not respond: connection timed out"),
        (BOX, ssl.SSLError(1, "not verified"), "linux", "", 5, f"no TLS connection to the engine at {BOX}: not ver"),
    ],
)
def test_why_no_engine_responds(
    address: EngineAddress, error: OSError, system: str, programs: str, code: int, text: str
) -> None:
    found = unreachable(address, error if error is HANGS else wrapped(error), system, programs.split())
    assert text in found.message
    assert found.exit_code == code
    assert found.hint


def test_the_systems_own_error_is_found_below_what_wraps_it() -> None:
    assert root_of(wrapped(GONE)) is GONE
    circle = Exception("no error of the system's")
    circle.__cause__ = circle
    assert root_of(circle) is circle


@pytest.mark.parametrize(
    ("message", "kind", "code", "text"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', NoGpuRuntime, 6, "no NVIDIA container tool"),
        ('could not select device driver "nvidia" with capabilities', NoGpuRuntime, 6, "no NVIDIA container toolkit"),
        (
            "failed to create task: nvidia-container-cli: requirement error: unsatisfied condition: driver>=570.26, "
            "please update your driver to a newer version, or use an earlier cuda container: unknown",
            NoGpuRuntime,
            6,
            "too old for this image: driver>=570.26 is not satisfied",
        ),
        ("nvidia-container-cli: device error: 7: unknown device: unknown", NoGpuRuntime, 6, "machine has no GPU 7"),
        (
            "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared "
            "object file: no such file or directory: unknown",
            NoGpuRuntime,
            6,
            "finds no driver on the engine's machine: initialization error: load library failed",
        ),
        ("x (1f): Bind for 127.0.0.1:8888 failed: port is already allocated", PortTaken, 6, "port 8888 of this machin"),
        ("proxy: listen tcp4 127.0.0.1:6006: bind: address already in use", PortTaken, 6, "port 6006 of this machine"),
        ('type "bind": bind source path does not exist: /data/x', UsageError, 2, "/data/x, which was to be mounted,"),
        ('exec: "pyton": executable file not found in $PATH: unknown', NoSuchProgram, 127, "has no program 'pyton'"),
        ('exec: "/bin/x": stat /bin/x: no such file or directory', NoSuchProgram, 127, "has no program '/bin/x'"),
        ('exec: "/etc": permission denied: unknown', CannotStart, 126, "'/etc' in the image can't be run"),
        ("write /x: no space left on device", EngineError, 6, "the engine's disk is full"),
        ("error setting rlimit type 8: operation not permitted", LimitsRefused, 6, "may not raise the limits"),
        ("something\n new", EngineError, 6, "starting: the engine reports: something new"),
    ],
)
def test_messages_of_engines(message: str, kind: type[EnvspecError], code: int, text: str) -> None:
    error = engine_error("starting", message)
    assert type(error) is kind
    assert error.exit_code == code
    assert text in error.message


def test_an_engine_that_is_lost() -> None:
    reset = wrapped(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
    assert connection_lost("building", HERE, reset).exit_code == 6
    shown = connection_lost("building", BOX, reset)
    assert shown.exit_code == 5
    assert shown.message == "building: the engine at tcp://box:2376 (DOCKER_HOST) stopped responding: " + (
        "connection reset by peer"
    )


def test_facts_of_engines() -> None:
    plain = engine_info(
        {
            "Version": "20.10.24",
            "ApiVersion": "1.41",
            "Os": "linux",
            "Arch": "amd64",
            "Components": [{"Name": "Engine"}],
        },
        {"MemTotal": 7, "DriverStatus": [["Backing Filesystem", "extfs"]], "SecurityOptions": ["name=seccomp"]},
    )
    assert (plain.name, plain.platform, plain.memory_bytes) == ("docker", Platform.LINUX_64, 7)
    assert (plain.containerd_store, plain.rootless, plain.selinux, plain.is_podman) == (False, False, False, False)
    other = engine_info(
        {"Version": "29.0.1", "ApiVersion": "1.52", "Os": "linux", "Arch": "arm64"},
        {
            "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
            "SecurityOptions": ["name=rootless", "name=selinux"],
        },
    )
    assert other.platform is Platform.LINUX_AARCH64
    assert (other.containerd_store, other.rootless, other.selinux) == (True, True, True)
    podman = engine_info({"ApiVersion": "1.41", "Arch": "amd64", "Components": [{"Name": "Podman Engine"}]}, {})
    assert podman.is_podman
    assert engine_info({"ApiVersion": "1.41", "Os": "windows", "Arch": "amd64"}, {}).platform is None
