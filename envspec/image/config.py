"""Config, manifest and index of an image.

Sources: OCI image specification 1.1, `config.md`, `annotations.md`; Docker's image specification 1.2 for `Healthcheck`;
NVIDIA container toolkit, "Specialized configurations" for the NVIDIA_* variables. Read 2026-11.

Source: OCI image specification 1.1, `manifest.md`, `image-index.md`, `media-types.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from envspec.errors import NetworkError
from envspec.image.layers.types import PREFIX, Image, Layer
from envspec.models import Lock, Platform
from envspec.registry.errors import shortened
from envspec.registry.types import OCI_INDEX, OCI_MANIFEST, OCI_PLATFORMS, Descriptor, digest_of

#: Labels and annotations of ours: the lock's name, and its identity.
LABEL_NAME: Final = "envspec.name"
LABEL_LOCK: Final = "envspec.lock"
_OCI: Final = "org.opencontainers.image."
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BadBase(NetworkError):
    """The base image's config is not one that an image can be put on."""


@dataclass(frozen=True, slots=True)
class Base:
    """The image below, on one platform.

    name: registry, repository and tag as the lock has them. digest: the one that the lock pins. manifest: digest of the
    platform's own manifest. config: as the registry has it, parsed. layers: the first one lowest.
    """

    name: str
    digest: str
    manifest: str
    config: Mapping[str, Any] = field(repr=False)
    layers: tuple[Layer, ...] = ()


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a container of the image starts, where it is not as the base's.

    entrypoint, command, user: None: as the base has it. ports: `8888/tcp`. healthcheck: Docker's object, times in ns.
    env: variables that go before the lock's own.
    """

    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    user: str | None = None
    ports: tuple[str, ...] = ()
    healthcheck: Mapping[str, Any] | None = None
    env: tuple[tuple[str, str], ...] = ()


def image_config(
    lock: Lock, identity: str, platform: Platform, base: Base, layers: Sequence[Layer], conduct: Conduct
) -> bytes:
    """The config of one platform's image: canonical JSON, the same bytes for the same values.

    identity: of the lock, see `lock.document.identity`. layers: those above the base's.

    Raises:
        BadBase: the base is for another platform, or its layers and its config do not agree.
    """
    below = _checked(base, platform)
    created = moment(lock.as_of)
    os, architecture = OCI_PLATFORMS[platform]
    document: dict[str, Any] = {
        "architecture": architecture,
        "os": os,
        "created": created,
        "config": _run(lock, below, conduct) | {"Labels": _labels(lock, identity, base, below)},
        "rootfs": {
            "type": "layers",
            "diff_ids": [layer.diff_id for layer in (*base.layers, *layers)],
        },
        "history": [
            *(base.config.get("history") or ()),
            *({"created": created, "created_by": f"envspec: {layer.created_by}"} for layer in layers),
        ],
    }
    for key in ("variant", "os.version", "os.features"):
        if base.config.get(key):
            document[key] = base.config[key]
    return canonical(document)


def annotations_of(lock: Lock, identity: str, base: Base | None) -> dict[str, str]:
    """What manifest and index say of the image."""
    told = {
        f"{_OCI}created": moment(lock.as_of),
        f"{_OCI}title": lock.name,
        LABEL_NAME: lock.name,
        LABEL_LOCK: identity,
    }
    return told | (_base_words(base) if base else {})


def canonical(document: object) -> bytes:
    """JSON in one form only."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def moment(at: datetime) -> str:
    """RFC 3339, in UTC and whole seconds."""
    return f"{at.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def environment(lock: Lock, below: Iterable[str], conduct: Conduct) -> list[str]:
    """`NAME=value` of every variable: the base's, the packages', the services', the spec's; the last one wins."""
    env = dict(_pair(text) for text in below)
    env["PATH"] = f"/{PREFIX}/bin:{env.get('PATH', _PATH)}"
    if lock.driver is not None:
        env["NVIDIA_VISIBLE_DEVICES"] = env.get("NVIDIA_VISIBLE_DEVICES") or "all"
        env["NVIDIA_DRIVER_CAPABILITIES"] = env.get("NVIDIA_DRIVER_CAPABILITIES") or "compute,utility"
        # The base's own names the driver of its toolkit; what the lock holds runs on older ones.
        env["NVIDIA_REQUIRE_CUDA"] = f"driver>={lock.driver.minimum}"
    env.update(conduct.env)
    env.update(lock.image.env)
    return [f"{name}={value}" for name, value in env.items()]


def read_config(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A base's config, its values of the types that they are used as.

    Raises:
        BadBase: one is of another; says which.
    """
    for inner, types in (None, _TYPES), ("config", _RUN_TYPES):
        table = (config.get(inner) or {}) if inner else config
        for key, is_right in types.items():
            if table.get(key) is not None and not is_right(table[key]):
                raise BadBase(
                    f"{where}: `{key}` in its config is not what the image specification says",
                    hint="the image is damaged; take another one",
                )
    return config


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and "\0" not in "".join(value)


#: Of the config, and of `config` in it; each may be null. Source: OCI image specification 1.1, `config.md`.
_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("architecture", "os", "variant", "os.version"), _is_text),
    "os.features": _is_texts,
    "config": _is_table,
    "rootfs": _is_table,
    "history": lambda value: isinstance(value, list) and all(map(_is_table, value)),
}
_RUN_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("User", "WorkingDir", "StopSignal"), _is_text),
    **dict.fromkeys(("Env", "Entrypoint", "Cmd", "Shell"), _is_texts),
    **dict.fromkeys(("ExposedPorts", "Volumes", "Healthcheck"), _is_table),
    "Labels": lambda value: _is_table(value) and _is_texts(list(dict(value).values())),  # type: ignore[call-overload]
}


def _run(lock: Lock, below: Mapping[str, Any], conduct: Conduct) -> dict[str, Any]:
    kept = ("Entrypoint", "Cmd", "User", "ExposedPorts", "Volumes", "StopSignal", "Healthcheck", "Shell")
    run = {key: below[key] for key in kept if below.get(key)}
    run["Env"] = environment(lock, below.get("Env") or (), conduct)
    run["WorkingDir"] = lock.image.workdir
    if conduct.entrypoint is not None:
        # Docker drops the base's command where an image sets an entrypoint; so do we.
        run["Entrypoint"] = list(conduct.entrypoint)
        run.pop("Cmd", None)
    if conduct.command is not None:
        run["Cmd"] = list(conduct.command)
    if conduct.user is not None:
        run["User"] = conduct.user
    if conduct.ports:
        run["ExposedPorts"] = {**run.get("ExposedPorts", {}), **{port: {} for port in conduct.ports}}
    if conduct.healthcheck is not None:
        run["Healthcheck"] = dict(conduct.healthcheck)
    return run


def _labels(lock: Lock, identity: str, base: Base, below: Mapping[str, Any]) -> dict[str, str]:
    """The base's labels, less those by which it describes itself, and ours."""
    labels = {key: value for key, value in (below.get("Labels") or {}).items() if not key.startswith(_OCI)}
    return {
        **labels,
        f"{_OCI}title": lock.name,
        LABEL_NAME: lock.name,
        LABEL_LOCK: identity,
        **_base_words(base),
    }


def _base_words(base: Base) -> dict[str, str]:
    return {f"{_OCI}base.name": base.name, f"{_OCI}base.digest": base.digest}


def _checked(base: Base, platform: Platform) -> Mapping[str, Any]:
    config = base.config
    own = (config.get("os"), config.get("architecture"))
    if own != OCI_PLATFORMS[platform]:
        raise BadBase(
            f"{base.name}@{base.digest} is for {shortened('/'.join(map(str, own)))}, "
            f"not for {'/'.join(OCI_PLATFORMS[platform])}",
            hint="pin a base of that platform, or an index that has it",
        )
    diff_ids = [layer.diff_id for layer in base.layers]
    rootfs = config.get("rootfs")
    if not isinstance(rootfs, Mapping) or rootfs.get("diff_ids") != diff_ids:
        raise BadBase(
            f"{base.name}@{base.digest}: its manifest has {len(diff_ids)} layers, and its config tells of others",
            hint="the image is damaged; take another one",
        )
    below = config.get("config") or {}
    if not isinstance(below, Mapping):
        raise BadBase(f"{base.name}@{base.digest}: its config can't be read", hint="take another image")
    return below


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
#: Docker's names of layers, which hold the same bytes: an OCI manifest names them in OCI's words.
_OCI_NAMES: Final[Mapping[str, str]] = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}


def image_of(platform: Platform, config: bytes, layers: Sequence[Layer], told: Mapping[str, str]) -> Image:
    """An image from its config and all of its layers, the base's first. told: annotations of the manifest."""
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor(Descriptor(OCI_CONFIG, digest_of(config), len(config))),
            "layers": [descriptor(layer.blob) for layer in layers],
            "annotations": dict(told),
        }
    )
    return Image(platform, digest_of(config), config, digest_of(manifest), manifest, tuple(layers))


def index_of(images: Sequence[Image], told: Mapping[str, str]) -> bytes:
    """The OCI index of several platforms' images."""
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [entry(image) for image in images],
            "annotations": dict(told),
        }
    )


def entry(image: Image) -> dict[str, Any]:
    """An image as an index names it."""
    os, architecture = OCI_PLATFORMS[image.platform]
    return descriptor(Descriptor(OCI_MANIFEST, image.digest, len(image.manifest))) | {
        "platform": {"os": os, "architecture": architecture}
    }


def descriptor(blob: Descriptor) -> dict[str, Any]:
    """A descriptor as JSON has it, in OCI's words."""
    return {
        "mediaType": _OCI_NAMES.get(blob.media_type, blob.media_type),
        "digest": blob.digest,
        "size": blob.size_bytes,
    }
