"""Docker or Podman by API: inspect, pull.

The SDK takes 0.2 s of CPU to import: what needs it imports it inside.

Source: Docker Engine API 1.41, "ImageCreate": a stream of JSON, a line for each step of each layer. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from envspec.engine import errors
from envspec.engine.errors import AddressSource, EngineAddress, EngineError, NoEngine
from envspec.models import Platform
from envspec.registry.errors import shortened
from envspec.registry.reference import Reference, parse

if TYPE_CHECKING:
    import docker


_PLATFORMS: Final = {"amd64": Platform.LINUX_64, "x86_64": Platform.LINUX_64, "arm64": Platform.LINUX_AARCH64}
#: Of one answer, seconds. What takes longer (a load, a build, a wait) sets its own.
_TIMEOUT_S: Final = 60
#: Of a connection to another machine.
_CONNECT_S: Final = 10
_UNIX: Final = "unix:///var/run/docker.sock"
_NPIPE: Final = "npipe:////./pipe/docker_engine"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is.

    platform: of its containers by default, None if envspec has no name for it. memory_bytes: of its machine.
    containerd_store: images are kept by containerd, whose IDs are digests of manifests. rootless: its root is an
    ordinary user of its machine. selinux: containers are confined by it.
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


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that answers. client: the SDK's, of the low level."""

    client: docker.APIClient
    address: EngineAddress
    facts: EngineInfo

    @contextlib.contextmanager
    def asked(self, doing: str) -> Iterator[None]:
        """Turn the SDK's errors inside into envspec's. doing: `loading the image`, for the message."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except APIError as error:
            raise errors.engine_error(doing, str(error.explanation or error)) from error
        except (DockerException, RequestException, HTTPError, ConnectionError) as error:
            raise errors.connection_lost(doing, self.address, error) from error


@contextlib.contextmanager
def open_engine(environ: Mapping[str, str]) -> Iterator[Engine]:
    """Connect as the docker program does: DOCKER_HOST, else DOCKER_CONTEXT or the current context, else its own place.

    Raises:
        NoEngine: none is installed, it is not running, this user may not talk to it, or its address can't be read.
        EngineSilent: one on another machine does not answer.
    """
    from docker.constants import MINIMUM_DOCKER_API_VERSION
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    address, settings = _settings(environ)
    # The SDK hands both numbers to requests; its adapters for sockets take one alone.
    over_tcp = address.url.startswith(("tcp://", "http://", "https://"))
    settings["timeout"] = (_CONNECT_S, _TIMEOUT_S) if over_tcp else _TIMEOUT_S
    unusable = (DockerException, RequestException, OSError, ValueError, KeyError)
    with contextlib.ExitStack() as opened:
        try:
            asker = opened.enter_context(_client(settings, MINIMUM_DOCKER_API_VERSION))
            version = asker.version(api_version=False)
            client = opened.enter_context(_client(settings, version["ApiVersion"]))
            facts = engine_info(version, client.info())
        except unusable as error:
            raise _no_answer(address, error, environ) from error
        yield Engine(client, address, facts)


def engine_info(version: Mapping[str, Any], info: Mapping[str, Any]) -> EngineInfo:
    """Facts from the answers to `GET /version` and `GET /info`: pure."""
    components = [str(row.get("Name", "")) for row in version.get("Components") or ()]
    security = [str(option) for option in info.get("SecurityOptions") or ()]
    status = [str(value) for row in info.get("DriverStatus") or () for value in row]
    linux = str(version.get("Os") or info.get("OSType") or "linux") == "linux"
    return EngineInfo(
        name="podman" if any("podman" in name.lower() for name in components) else "docker",
        version=str(version.get("Version") or info.get("ServerVersion") or "of an unknown version"),
        platform=_PLATFORMS.get(str(version.get("Arch", "")).replace("aarch64", "arm64")) if linux else None,
        memory_bytes=int(info.get("MemTotal") or 0),
        containerd_store="io.containerd.snapshotter.v1" in status,
        rootless=any("rootless" in option for option in security),
        selinux=any("selinux" in option for option in security),
    )


def _client(settings: Mapping[str, Any], version: str) -> docker.APIClient:
    """A client that asks nothing yet: where the SDK finds the version out by itself, it does so through proxies."""
    import docker

    client = docker.APIClient(use_ssh_client=True, version=version, **settings)
    # A proxy is for registries; the way to an engine is the address that was named.
    client.trust_env = False
    return client


def _settings(environ: Mapping[str, str]) -> tuple[EngineAddress, dict[str, Any]]:
    """The address, and what the SDK is to be told."""
    from docker.context import ContextAPI
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env, parse_host

    default = EngineAddress(_NPIPE if sys.platform == "win32" else _UNIX, AddressSource.DEFAULT)
    host = environ.get("DOCKER_HOST", "")
    address = EngineAddress(host, AddressSource.HOST) if host else default
    try:
        # An empty mapping would have the SDK read this process's own.
        settings = dict(kwargs_from_env({"DOCKER_HOST": host, **environ}))
        if host:
            parse_host(host, sys.platform == "win32", tls="tls" in settings)
            return address, settings
        name = environ.get("DOCKER_CONTEXT") or None
        context = ContextAPI.get_context(name)
        if context is None:
            raise NoEngine(
                f"there is no docker context {name or 'of the current name'}",
                hint="`docker context ls` lists them; DOCKER_CONTEXT or `docker context use` names another one",
            )
        url = context.Host
        if context.Name == "default" or not url:
            return default, settings | {"base_url": default.url}
        address = EngineAddress(url, AddressSource.CONTEXT, context.Name)
        return address, {"base_url": url} | ({"tls": context.TLSConfig} if context.TLSConfig else {})
    except (DockerException, ValueError) as error:
        raise _bad_address(address, error) from error


def _bad_address(address: EngineAddress, error: Exception) -> NoEngine:
    if "TLS" in type(error).__name__ or "cert" in str(error).lower():
        said = " ".join(str(error).split()).partition(". TLS configurations")[0]
        todo = "DOCKER_CERT_PATH must hold ca.pem, cert.pem and key.pem; unset DOCKER_TLS_VERIFY for an engine without"
        return NoEngine(f"the TLS settings for {address} can't be used: {said}", hint=todo)
    return NoEngine(
        f"{address} is no engine's address",
        hint="addresses look like unix:///var/run/docker.sock, tcp://HOST:2376 or ssh://USER@HOST",
    )


def _no_answer(address: EngineAddress, error: Exception, environ: Mapping[str, str]) -> Exception:
    if address.url.startswith("ssh://") and "paramiko" in str(error):
        return NoEngine(
            f"engines over ssh need the Python package paramiko: {address}",
            hint="install it beside envspec, or forward the socket: "
            "`ssh -L /tmp/docker.sock:/var/run/docker.sock HOST` and DOCKER_HOST=unix:///tmp/docker.sock",
        )
    found = (shutil.which(name, path=environ.get("PATH")) for name in ("dockerd", "docker", "podman"))
    program = next((each for each in found if each), None)
    return errors.unreachable(address, error, sys.platform, program=program)


_LOOKING: Final = "looking for the image"


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image in an engine. id: as the engine names it.

    pulled_bytes: packed, of the layers that were fetched just now; None where the image was there. pull_s: seconds.
    """

    reference: str
    id: str
    pulled_bytes: int | None = None
    pull_s: float | None = None


def ensure_image(engine: Engine, reference: str, moved: Callable[[int, int], None]) -> EngineImage:
    """The image, pulled where the engine has it not. moved: told of bytes done and in all, as far as they are known.

    reference: a name, which may say `http://`, or an ID of an image that is there.

    Raises:
        BadReference: it is neither. EngineError: there is no such image, or it may not be pulled.
        EngineSilent: the engine is lost.
    """
    named = parse(reference)
    # As it is otherwise: tags without a registry and IDs are the engine's own, and no short forms of other names.
    known = str(replace(named, scheme="")) if named.scheme else reference
    there = find_image(engine, known)
    if there is not None:
        return replace(there, reference=reference)
    began = time.monotonic()
    pulled = _pull(engine, named, moved)
    there = find_image(engine, known)
    if there is None:
        raise EngineError(f"the engine ({engine.facts}) has let go of {reference}", hint="run the same command again")
    seconds = time.monotonic() - began
    return EngineImage(reference, there.id, pulled, seconds)


def find_image(engine: Engine, reference: str) -> EngineImage | None:
    """The image as the engine has it; None where it has not."""
    from docker.errors import ImageNotFound, NotFound

    # The SDK's types say nothing of it.
    inspect = cast("Callable[[str], dict[str, Any]]", engine.client.inspect_image)
    with engine.asked(_LOOKING):
        try:
            told = inspect(reference)
        except (ImageNotFound, NotFound):
            return None
    return EngineImage(reference, str(told["Id"]))


def _pull(engine: Engine, reference: Reference, moved: Callable[[int, int], None]) -> int:
    """Bytes of the layers that came."""
    from docker.errors import NotFound

    sizes: dict[str, int] = {}
    done: dict[str, int] = {}
    with engine.asked(f"pulling {reference}"):
        try:
            # A name without a tag or digest would bring every tag of the repository.
            for step in engine.client.pull(reference.name, tag=reference.tag_or_digest, stream=True, decode=True):
                if "error" in step:
                    raise _not_pulled(reference, str(step["error"]))
                progress = step.get("progressDetail") or {}
                if step.get("status") == "Downloading" and progress.get("total"):
                    sizes[step["id"]] = int(progress["total"])
                    done[step["id"]] = int(progress.get("current") or 0)
                    moved(sum(done.values()), sum(sizes.values()))
        except NotFound as error:
            # There is none, or it is not for everybody: registries say the same of both.
            raise _not_pulled(reference, str(error.explanation or error)) from error
    return sum(sizes.values())


def _not_pulled(reference: Reference, said: str) -> EngineError:
    return EngineError(
        f"{reference} can't be pulled: {shortened(' '.join(said.split()), 500)}",
        hint="look at the name, and log in to its registry where it needs that",
    )
