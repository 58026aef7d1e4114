"""Docker or Podman by API: inspect, pull.

Importing the SDK takes 0.1 s of CPU: functions import it, and a run in a usual engine of this machine does without it.

Source: Docker Engine API 1.41, "ImageCreate": a stream of JSON, a line for each step of each layer. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from envspec.engine import errors
from envspec.engine.errors import AddressSource, EngineAddress, EngineError, NoEngine
from envspec.engine.local import LocalClient
from envspec.escaping import excerpt
from envspec.models import Platform
from envspec.structs import replace

if TYPE_CHECKING:
    import docker

    from envspec.registry.reference import Reference


_PLATFORMS: Final = {"amd64": Platform.LINUX_64, "x86_64": Platform.LINUX_64, "arm64": Platform.LINUX_AARCH64}
#: Of one response, seconds. Longer requests (a load, a build, a wait) set their own.
_TIMEOUT_S: Final = 60
#: Of a connection to another machine.
_CONNECT_S: Final = 10
_UNIX: Final = "unix:///var/run/docker.sock"
_NPIPE: Final = "npipe:////./pipe/docker_engine"
_PODMAN: Final = "podman/podman.sock"
#: Settings that only the SDK reads.
_OF_THE_SDK: Final = frozenset({"DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"})
#: There is no socket, no process behind it, or it is of other users: another engine may be this user's.
_NOBODY_LISTENS: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.EACCES, errno.EPERM})


class EngineInfo(Struct, frozen=True):
    """platform: of its containers by default, None if not supported. memory_bytes: of its machine.

    containerd_store: images are stored by containerd, whose IDs are digests of manifests. rootless: its root is an
    unprivileged user of its machine. selinux: confines containers.
    """

    name: str
    version: str
    platform: Platform | None
    memory_bytes: int
    containerd_store: bool = False
    rootless: bool = False
    selinux: bool = False

    @property
    def is_podman(self) -> bool:
        return self.name == "podman"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Engine(Struct, frozen=True):
    """A responding engine.

    containers: a client for what a run requires, which may be the SDK's. sdk: opens the SDK's low-level client once.
    """

    containers: LocalClient
    sdk: Callable[[], docker.APIClient]
    address: EngineAddress
    facts: EngineInfo

    @property
    def client(self) -> docker.APIClient:
        return self.sdk()

    @contextlib.contextmanager
    def errors_while(self, doing: str) -> Iterator[None]:
        """Turn the clients' errors into envspec's. doing: `loading the image`, for the message."""
        try:
            yield
        except BrokenPipeError:
            # The reader of our output has ended: clients raise other errors for connections to the engine.
            raise
        except sdk_errors() as error:
            from docker.errors import APIError

            if isinstance(error, APIError):
                raise errors.engine_error(doing, str(error.explanation or error)) from error
            raise errors.connection_lost(doing, self.address, error) from error


def sdk_errors() -> tuple[type[Exception], ...]:
    """What a client raises if the engine refuses a request or does not respond.

    Call it only once something was raised: it imports the SDK.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    return (DockerException, RequestException, HTTPError, ConnectionError)


@contextlib.contextmanager
def ignored_errors() -> Iterator[None]:
    """Continue if the engine refuses a request or does not respond."""
    try:
        yield
    except sdk_errors():
        return


@contextlib.contextmanager
def open_engine(environ: Mapping[str, str], warn: Callable[[str], None] = lambda _: None) -> Iterator[Engine]:
    """Connect like docker: DOCKER_HOST, else DOCKER_CONTEXT or the current context, else the default socket.

    If none of them is set and nothing listens at the default socket, Podman's sockets are tried. warn: is called if
    Podman's is used.

    Raises:
        NoEngine: none is installed or running, this user may not use it, or its address is invalid.
        EngineUnreachable: one on another machine does not respond.
    """
    address, settings = _settings(environ)
    others: list[EngineAddress] = []
    if address.named is AddressSource.DEFAULT and sys.platform != "win32":
        others = podman_addresses(environ)
    with contextlib.ExitStack() as opened:
        yield first_engine(opened, address, settings, others, environ, warn)


def podman_addresses(environ: Mapping[str, str]) -> list[EngineAddress]:
    """The sockets of Podman's API that exist: this user's, then the system's.

    Source: podman-system-service(1), the default of its address. Read 2026-11.
    """
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    sockets = [Path(runtime, _PODMAN), Path("/run", _PODMAN)]
    return [EngineAddress(f"unix://{each}", AddressSource.PODMAN) for each in sockets if _exists(each)]


def _exists(path: Path) -> bool:
    """Also for another user's folder, which can't be searched: `Path.exists` raises then."""
    return os.path.exists(path)  # noqa: PTH110


def first_engine(
    opened: contextlib.ExitStack,
    address: EngineAddress,
    settings: Mapping[str, Any] | None,
    others: Sequence[EngineAddress],
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> Engine:
    """The engine at an address, or the first that responds at the other ones if nothing listens there.

    opened: closes it. settings: the SDK's, for `address`; None if `LocalClient` can be used.

    Raises:
        NoEngine, EngineUnreachable: as `open_engine`.
    """
    try:
        return _connected(opened, address, settings)
    except _unusable() as error:
        reason = errors.root_of(error)
        if not (isinstance(reason, OSError) and reason.errno in _NOBODY_LISTENS):
            others = ()
        for other in others:
            with contextlib.suppress(*_unusable()):
                engine = _connected(opened, other, None)
                warn(f"no engine responds at {address}: {engine.facts} at {other} is used (DOCKER_HOST names another)")
                return engine
        raise _no_answer(address, error, environ) from error


def _unusable() -> tuple[type[Exception], ...]:
    return (*sdk_errors(), OSError, ValueError, KeyError)


def _connected(opened: contextlib.ExitStack, address: EngineAddress, settings: Mapping[str, Any] | None) -> Engine:
    if settings is None:
        return _connected_locally(opened, address)
    from docker.constants import MINIMUM_DOCKER_API_VERSION

    # requests accepts both timeouts; the SDK's adapters for sockets accept one only.
    settings = {**settings, "timeout": _TIMEOUT_S}
    if address.url.startswith(("tcp://", "http://", "https://")):
        settings["timeout"] = (_CONNECT_S, _TIMEOUT_S)
    probe = opened.enter_context(_client(settings, MINIMUM_DOCKER_API_VERSION))
    version = probe.version(api_version=False)
    client = opened.enter_context(_client(settings, version["ApiVersion"]))
    # It has the same methods.
    return Engine(cast("LocalClient", client), lambda: client, address, engine_info(version, client.info()))


def _connected_locally(opened: contextlib.ExitStack, address: EngineAddress) -> Engine:
    path = address.url.removeprefix("unix://")
    version = LocalClient(path, _TIMEOUT_S).version()
    client = LocalClient(path, _TIMEOUT_S, version["ApiVersion"])

    @functools.cache
    def sdk() -> docker.APIClient:
        settings = {"base_url": address.url, "timeout": _TIMEOUT_S}
        return opened.enter_context(_client(settings, version["ApiVersion"]))

    return Engine(client, sdk, address, engine_info(version, client.info()))


def engine_info(version: Mapping[str, Any], info: Mapping[str, Any]) -> EngineInfo:
    """Parse the responses to `GET /version`, some fields of which may be missing, and `GET /info`."""
    components = " ".join(str(row.get("Name", "")) for row in version.get("Components") or ())
    security = " ".join(map(str, info.get("SecurityOptions") or ()))
    system = str(version.get("Os") or info.get("OSType") or "linux")
    platform = None
    if system == "linux":
        architecture = str(version.get("Arch") or info.get("Architecture")).replace("aarch64", "arm64")
        platform = _PLATFORMS.get(architecture)
    return EngineInfo(
        name="podman" if "podman" in components.lower() else "docker",
        version=str(version.get("Version") or info.get("ServerVersion") or "of an unknown version"),
        platform=platform,
        memory_bytes=int(info.get("MemTotal") or 0),
        containerd_store="io.containerd.snapshotter.v1" in chain.from_iterable(info.get("DriverStatus") or ()),
        rootless="rootless" in security,
        selinux="selinux" in security,
    )


def _client(settings: Mapping[str, Any], version: str) -> docker.APIClient:
    """A client without a request: the SDK's own query of the version would use proxies."""
    import docker

    client = docker.APIClient(use_ssh_client=True, version=version, **settings)
    # Proxies are for registries, not for engines.
    client.trust_env = False
    return client


def _settings(environ: Mapping[str, str]) -> tuple[EngineAddress, dict[str, Any] | None]:
    """The address, and the SDK's settings; None if only the SDK's defaults apply to a socket of this machine."""
    if _is_plain_socket(environ):
        if host := environ.get("DOCKER_HOST", ""):
            return EngineAddress(host, AddressSource.HOST), None
        return EngineAddress(_UNIX, AddressSource.DEFAULT), None
    from docker.context import ContextAPI
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env, parse_host

    default = EngineAddress(_NPIPE if sys.platform == "win32" else _UNIX, AddressSource.DEFAULT)
    address = default
    if host := environ.get("DOCKER_HOST", ""):
        address = EngineAddress(host, AddressSource.HOST)
    try:
        # For an empty mapping the SDK would read this process's environment.
        settings = dict(kwargs_from_env({"DOCKER_HOST": host, **environ}))
        if host:
            parse_host(host, sys.platform == "win32", tls="tls" in settings)
            return address, settings
        name = environ.get("DOCKER_CONTEXT") or None
        context = ContextAPI.get_context(name)
        if context is None:
            raise NoEngine(
                f"there is no docker context {name or 'of the current name'}",
                hint="list them with `docker context ls`, and select one with DOCKER_CONTEXT or `docker context use`",
            )
        url = context.Host
        if context.Name == "default" or not url:
            return default, settings | {"base_url": default.url}
        address = EngineAddress(url, AddressSource.CONTEXT, context.Name)
        settings = {"base_url": url}
        if context.TLSConfig:
            settings["tls"] = context.TLSConfig
        return address, settings
    except (DockerException, ValueError) as error:
        raise _bad_address(address, error) from error


def _is_plain_socket(environ: Mapping[str, str]) -> bool:
    """Whether the engine has a socket of this machine, and neither a context nor TLS nor headers are configured."""
    if sys.platform == "win32" or not environ.keys().isdisjoint(_OF_THE_SDK):
        return False
    host = environ.get("DOCKER_HOST", "")
    if host and not re.fullmatch(r"unix://(?:/[\w.-]+)+", host, re.ASCII):
        return False
    # As the SDK finds it, in this process's environment.
    named = os.environ.get("DOCKER_CONFIG")
    files = [Path(named, "config.json")] if named else []
    home = os.path.expanduser("~")  # noqa: PTH111 (a user may have no home)
    for path in (*files, Path(home, ".docker/config.json"), Path(home, ".dockercfg")):
        if _exists(path):
            return _is_plain_config(path)
    return True


def _is_plain_config(path: Path) -> bool:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    if not isinstance(config, dict) or config.get("HttpHeaders"):
        return False
    return bool(config.get("currentContext", "default") == "default")


def _bad_address(address: EngineAddress, error: Exception) -> NoEngine:
    if "TLS" in type(error).__name__ or "cert" in str(error).lower():
        reason = " ".join(str(error).split()).partition(". TLS configurations")[0]
        hint = "put ca.pem, cert.pem and key.pem into DOCKER_CERT_PATH, or unset DOCKER_TLS_VERIFY"
        return NoEngine(f"the TLS settings for {address} can't be used: {reason}", hint=hint)
    return NoEngine(
        f"{address} is not an engine's address",
        hint="use a form like unix:///var/run/docker.sock, tcp://HOST:2376 or ssh://USER@HOST",
    )


def _no_answer(address: EngineAddress, error: Exception, environ: Mapping[str, str]) -> Exception:
    if address.url.startswith("ssh://") and "paramiko" in str(error):
        return NoEngine(
            f"engines over ssh require the Python package paramiko: {address}",
            hint="install it beside envspec, or forward the socket: "
            "`ssh -L /tmp/docker.sock:/var/run/docker.sock HOST` and DOCKER_HOST=unix:///tmp/docker.sock",
        )
    programs = [name for name in ("dockerd", "docker", "podman") if shutil.which(name, path=environ.get("PATH"))]
    return errors.unreachable(address, error, sys.platform, programs)


class EngineImage(Struct, frozen=True):
    """An image in an engine. pulled_bytes: compressed, of the fetched layers; None without a pull. pull_s: seconds."""

    reference: str
    id: str
    pulled_bytes: int | None = None
    pull_s: float | None = None


def ensure_image(engine: Engine, reference: str, on_progress: Callable[[int, int], None]) -> EngineImage:
    """The image, pulled if the engine does not have it.

    reference: a name, which may start with `http://`, or an ID. on_progress: bytes done, bytes in all.

    Raises:
        BadReference: it is neither. EngineError: there is no such image, or it may not be pulled.
        EngineUnreachable: the engine does not respond any more.
    """
    from envspec.registry.reference import parse

    named = parse(reference)
    # Tags without a registry and IDs are the engine's own, not short forms.
    name = str(replace(named, scheme="")) if named.scheme else reference
    image = find_image(engine, name)
    if image is not None:
        return replace(image, reference=reference)
    began = time.monotonic()
    pulled = pull(engine, named, on_progress)
    image = find_image(engine, name)
    if image is None:
        raise EngineError(
            f"{reference} was removed from the engine ({engine.facts}) meanwhile", hint="run the same command again"
        )
    return EngineImage(reference, image.id, pulled, time.monotonic() - began)


def find_image(engine: Engine, reference: str) -> EngineImage | None:
    """The image in the engine; None if it does not have it."""
    with engine.errors_while("looking for the image"):
        found = inspect_image(engine, reference)
    if found is None:
        return None
    return EngineImage(reference, str(found["Id"]))


def inspect_image(engine: Engine, reference: str) -> Mapping[str, Any] | None:
    """The engine's description of an image; None if it does not have it. Raises the SDK's errors."""
    try:
        return engine.containers.inspect_image(reference)
    except sdk_errors() as error:
        if getattr(error, "status_code", None) != 404:
            raise
        return None


def pull(
    engine: Engine, reference: Reference, on_progress: Callable[[int, int], None], platform: str | None = None
) -> int:
    """Pull an image, and return the size of the layers that were fetched. platform: default is the engine's."""
    from docker.errors import NotFound

    sizes: dict[str, int] = {}
    done: dict[str, int] = {}
    with engine.errors_while(f"pulling {reference}"):
        try:
            # Without a tag or digest, every tag of the repository would be pulled.
            tag = reference.tag_or_digest
            for step in engine.client.pull(reference.name, tag=tag, platform=platform, stream=True, decode=True):
                if "error" in step:
                    raise _not_pulled(reference, str(step["error"]))
                progress = step.get("progressDetail") or {}
                if step.get("status") == "Downloading" and progress.get("total"):
                    sizes[step["id"]] = int(progress["total"])
                    done[step["id"]] = int(progress.get("current") or 0)
                    on_progress(sum(done.values()), sum(sizes.values()))
        except NotFound as error:
            # Missing or private: registries do not distinguish.
            raise _not_pulled(reference, str(error.explanation or error)) from error
    return sum(sizes.values())


def _not_pulled(reference: Reference, message: str) -> EngineError:
    return EngineError(
        f"{reference} can't be pulled: {excerpt(' '.join(message.split()), 500)}",
        hint="check the name, and log in to its registry if it requires that",
    )


def remove_container(engine: Engine, container: str, gone: Container[int]) -> None:
    """gone: the statuses for which nothing is left to do. 404: it has removed itself; 409: it is being removed."""
    try:
        engine.containers.remove_container(container, force=True, v=True)
    except sdk_errors() as error:
        if getattr(error, "status_code", None) not in gone:
            raise


def packed_tar(
    folders: Iterable[str], files: Mapping[str, bytes], owner: tuple[int, int] = (0, 0), mode: int = 0o644
) -> bytes:
    """A tar to put into a container's root. owner: user and group of the folders. mode: of the files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in folders:
            folder = tarfile.TarInfo(path.lstrip("/"))
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            folder.uid, folder.gid = owner
            tar.addfile(folder)
        for path, content in files.items():
            file = tarfile.TarInfo(path.lstrip("/"))
            file.mode, file.size = mode, len(content)
            tar.addfile(file, io.BytesIO(content))
    return packed.getvalue()
