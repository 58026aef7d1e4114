"""The image of a lock by its own Dockerfile, in an engine: `docker build`, with the base at hand and the log told.

Its ID is not the one of direct assembly, for times in it are the build's; what is installed is the same.

Source: Dockerfile reference, "Automatic platform ARGs" and "Predefined ARGs". Read 2026-11.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from envspec.engine import build as building
from envspec.engine.build import DOCKERFILE, Build, builder_for
from envspec.engine.client import Engine
from envspec.errors import UsageError
from envspec.image.base import pinned_base
from envspec.image.sources.system import certificates_of
from envspec.io.http_settings import is_loopback
from envspec.models import Lock, Platform
from envspec.registry.reference import parse
from envspec.registry.types import OCI_PLATFORMS

_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
_PULLING: Final = "pulling the base image"


@dataclass(frozen=True, slots=True)
class DockerOrder:
    """What is to be built by an engine.

    folder: the lock's. mirrors: registry -> what stands in for it. index_url: of pip's index, None for its own.
    network: of the build's steps, empty for the engine's own.
    """

    lock: Lock
    folder: Path
    platform: Platform
    tag: str
    mirrors: Mapping[str, str] = field(default_factory=dict)
    index_url: str | None = None
    network: str = ""


def build(engine: Engine, order: DockerOrder, environ: Mapping[str, str], log: Callable[[str], None]) -> str:
    """Build it and give it its tag; the image's ID. log: told of each line of the build as it comes.

    Raises:
        UsageError: the lock has no Dockerfile, or no base by digest. BuildFailed: a step failed.
        EngineRefused, EngineSilent: the engine fails.
    """
    path = order.folder / DOCKERFILE
    if not path.is_file():
        raise UsageError(
            f"the lock {order.lock.name} has no {DOCKERFILE}",
            hint="`envspec lock` says why it writes none; `--builder oci` needs none",
        )
    _have_base(engine, order, log)
    reach = proxies_of(environ, _configured())
    asked = Build(
        folder=order.folder,
        tag=order.tag,
        args=arguments(order, path.read_text(encoding="utf-8"), reach),
        platform="" if engine.facts.platform is order.platform else "/".join(OCI_PLATFORMS[order.platform]),
        network=order.network or network_for(reach),
        certificates=certificates_of(environ),
    )
    return building.build(engine, asked, builder_for(engine.facts, environ), log)


def arguments(order: DockerOrder, dockerfile: str, proxies: Mapping[str, str]) -> dict[str, str]:
    """Build arguments: those that the Dockerfile asks for and something is known of, and proxies, which are no layer's.

    The older builder warns of those that nobody asks for, and does not know the architecture by itself.
    """
    registry = _registry(order)
    architecture = OCI_PLATFORMS[order.platform][1]
    known = {
        "ARCHITECTURE": architecture,
        "TARGETARCH": architecture,
        "REGISTRY": order.mirrors.get(registry),
        "PIP_INDEX_URL": order.index_url,
    }
    asked = set(re.findall(r"^ARG\s+([A-Za-z_][A-Za-z0-9_]*)", dockerfile, re.MULTILINE))
    return {name: value for name, value in known.items() if value and name in asked} | dict(proxies)


def base_name(order: DockerOrder) -> tuple[str, str]:
    """(repository with its registry or the mirror's, digest) of the base, as the Dockerfile's FROM names it.

    Raises:
        UsageError: the lock has none by digest.
    """
    image, pinned = pinned_base(order.lock, order.platform)
    reference = parse(image.repository)
    registry = order.mirrors.get(reference.registry, reference.registry)
    return f"{registry}/{reference.repository}", str(pinned.digest)


def _registry(order: DockerOrder) -> str:
    image, _ = pinned_base(order.lock, order.platform)
    return parse(image.repository).registry


def _have_base(engine: Engine, order: DockerOrder, log: Callable[[str], None]) -> None:
    """The base in the engine before the build: a pull has the user's login, for which BuildKit would ask the client."""
    from docker.errors import NotFound

    repository, digest = base_name(order)
    # The SDK's types say nothing of it.
    inspect = cast("Callable[[str], Mapping[str, Any]]", engine.client.inspect_image)
    with engine.asked(_PULLING):
        try:
            inspect(f"{repository}@{digest}")
        except NotFound:
            log(f"{_PULLING} {repository}@{digest}")
        else:
            return
        client = engine.client
        platform = "/".join(OCI_PLATFORMS[order.platform])
        for row in client.pull(repository, tag=digest, platform=platform, stream=True, decode=True):
            if "error" in row:
                raise building.BuildFailed(
                    f"the engine can't pull {repository}@{digest}: {row['error']}",
                    hint="`docker login` if it asks for one; --mirror names a registry that has it",
                )


def proxies_of(environ: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """The predefined build arguments, which no image keeps, in both spellings.

    environ: this machine's. configured: those that docker's own configuration has for containers, which go before it.
    """
    found: dict[str, str] = {}
    for name in _PROXIES:
        value = configured.get(name) or environ.get(name) or environ.get(name.upper())
        if value:
            found |= {name: value, name.upper(): value}
    return found


def network_for(proxies: Mapping[str, str]) -> str:
    """The network of the build's steps: a proxy on this machine's loopback is reached from its own alone."""
    return "host" if any(_is_on_loopback(url) for name, url in proxies.items() if name.lower() != "no_proxy") else ""


def _is_on_loopback(proxy: str) -> bool:
    with contextlib.suppress(ValueError):
        return is_loopback(urlsplit(proxy if "://" in proxy else f"http://{proxy}").hostname or "")
    return False


def _configured() -> dict[str, str]:
    from docker.utils.config import load_general_config
    from docker.utils.proxy import ProxyConfig

    told = load_general_config().get("proxies", {}).get("default", {})
    environment = ProxyConfig.from_dict(told).get_environment()
    return {name: str(value) for name, value in environment.items()}
