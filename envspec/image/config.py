"""Config, manifest and index of an image.

Sources: OCI image specification 1.1, `config.md`, `annotations.md`, `manifest.md`, `image-index.md`, `media-types.md`;
Docker's image specification 1.2 for `Healthcheck`; NVIDIA container toolkit, "Specialized configurations" for the
NVIDIA_* variables. Read 2026-11.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from msgspec import Struct

from envspec.errors import NetworkError
from envspec.escaping import excerpt
from envspec.image.layers.types import PREFIX, Image, Layer
from envspec.models import Lock, Platform, Resolution
from envspec.registry.types import OCI_INDEX, OCI_MANIFEST, OCI_PLATFORMS, Descriptor, digest_of
from envspec.spec.dates import utc_text

#: Labels and annotations: the lock's name, and its identity.
LABEL_NAME: Final = "envspec.name"
LABEL_LOCK: Final = "envspec.lock"
#: Labels: what is installed (`packages_sha256`), for which platform, and the exact Python.
LABEL_PACKAGES: Final = "envspec.packages"
LABEL_PLATFORM: Final = "envspec.platform"
LABEL_PYTHON: Final = "envspec.python"
OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_OCI: Final = "org.opencontainers.image."
LABEL_BASE_NAME: Final = f"{_OCI}base.name"
LABEL_BASE_DIGEST: Final = f"{_OCI}base.digest"
#: Of containers of a base without a PATH, as Docker sets it.
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Docker's media types of layers with the same bytes: an OCI manifest uses OCI's.
_OCI_TYPES: Final[Mapping[str, str]] = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}


class BadBase(NetworkError, code="bad-base-image"):
    """The base image's config is invalid, or for another platform."""


@dataclass(frozen=True, slots=True)
class Base:
    """The base image on one platform.

    name: registry, repository and tag as in the lock. digest: pinned by the lock. manifest: digest of the platform's
    own manifest. config: the registry's, parsed. layers: lowest first.
    """

    name: str
    digest: str
    manifest: str
    config: Mapping[str, Any] = field(repr=False)
    layers: tuple[Layer, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """The variables of its containers."""
        run = self.config.get("config") or {}
        return dict(variable.partition("=")[::2] for variable in run.get("Env") or ())


class RunConfig(Struct, frozen=True):
    """How a container starts, where it differs from the base.

    entrypoint, command, user: None for the base's. ports: `8888/tcp`. healthcheck: Docker's object, times in ns. env:
    variables with lower priority than the lock's.
    """

    entrypoint: tuple[str, ...] | None = None
    user: str | None = None
    ports: tuple[str, ...] = ()
    healthcheck: Mapping[str, Any] | None = None
    env: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] | None = None


def image_config(
    lock: Lock, identity: str, platform: Platform, base: Base, layers: Sequence[Layer], run: RunConfig
) -> bytes:
    """The config of one platform's image: canonical JSON.

    identity: of the lock, see `lock.document.identity`. layers: those above the base's.

    Raises:
        BadBase: the base is for another platform.
    """
    _check_base(base, platform)
    base_run = base.config.get("config") or {}
    created = utc_text(lock.as_of)
    os, architecture = OCI_PLATFORMS[platform]
    # Without the base's description of itself.
    labels = {key: value for key, value in (base_run.get("Labels") or {}).items() if not key.startswith(_OCI)}
    document: dict[str, Any] = {
        "architecture": architecture,
        "os": os,
        "created": created,
        "config": _run(lock, base, run) | {"Labels": labels | own_labels(lock, identity, platform)},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in (*base.layers, *layers)]},
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
    """Annotations of manifest and index."""
    found = {f"{_OCI}created": utc_text(lock.as_of)} | _labels(lock, identity)
    if base is not None:
        found |= {LABEL_BASE_NAME: base.name, LABEL_BASE_DIGEST: base.digest}
    return found


def own_labels(lock: Lock, identity: str, platform: Platform) -> dict[str, str]:
    """The labels of one platform's image, without those of the base: they follow from the lock alone.

    identity: of the lock, see `lock.document.identity`.
    """
    resolution = next(each for each in lock.resolutions if each.target.platform is platform)
    labels = _labels(lock, identity) | {
        LABEL_PACKAGES: packages_sha256(resolution),
        LABEL_PLATFORM: platform.value,
        LABEL_PYTHON: resolution.target.python.version,
    }
    base = lock.on(platform).base_image
    if base is not None:
        labels[LABEL_BASE_NAME] = base.name
        for row in base.digests:
            if row.platform is platform and row.digest:
                labels[LABEL_BASE_DIGEST] = row.digest
    return labels


def packages_sha256(resolution: Resolution) -> str:
    """SHA-256 (hexadecimal) of the sorted lines `<name> <version> <file> <SHA-256>` of what is installed.

    Of a source, its own file: the lock may not record a wheel that is built from it.
    """
    lines = []
    for package in resolution.packages:
        lines.append(f"{package.name} {package.version} {package.file.filename} {package.file.sha256}\n")
    for record in resolution.conda:
        lines.append(f"{record.name} {record.version} {record.filename} {record.sha256}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _labels(lock: Lock, identity: str) -> dict[str, str]:
    return {f"{_OCI}title": lock.name, LABEL_NAME: lock.name, LABEL_LOCK: identity}


def canonical(document: object) -> bytes:
    """Canonical JSON."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def created_of(config: Mapping[str, Any]) -> datetime | None:
    """When an image was created, in whole seconds; None if its config states no time."""
    # Python 3.10 reads neither nanoseconds nor Z.
    found = re.fullmatch(r"(\d{4}(?:-\d\d){2}T\d\d(?::\d\d){2})(?:\.\d+)?(Z|[+-]\d\d:\d\d)", str(config.get("created")))
    if found is None:
        return None
    try:
        time = datetime.fromisoformat(found[1] + found[2].replace("Z", "+00:00"))
        return time.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def environment(lock: Lock, base_env: Mapping[str, str], run: RunConfig) -> dict[str, str]:
    """The variables of the base, the packages, the services and the spec, in increasing priority."""
    env = dict(base_env)
    env["PATH"] = f"/{PREFIX}/bin:{env.get('PATH', DEFAULT_PATH)}"
    if lock.is_for_gpus:
        env["NVIDIA_VISIBLE_DEVICES"] = env.get("NVIDIA_VISIBLE_DEVICES") or "all"
        env["NVIDIA_DRIVER_CAPABILITIES"] = env.get("NVIDIA_DRIVER_CAPABILITIES") or "compute,utility"
    if lock.driver is not None:
        # The base requires its toolkit's driver; the locked packages run on older ones.
        env["NVIDIA_REQUIRE_CUDA"] = f"driver>={lock.driver.minimum}"
    env.update(run.env)
    env.update(lock.image.env)
    return env


def read_config(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Check the types of a base's config. Raises BadBase: names the invalid key."""
    for table, types in ((config, _TYPES), (config.get("config") or {}, _RUN_TYPES)):
        for key, is_valid in types.items():
            if table.get(key) is not None and not is_valid(table[key]):
                raise BadBase(
                    f"{where}: `{key}` in its config does not match the image specification",
                    hint="select another image: this one is damaged",
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


def _run(lock: Lock, base: Base, own: RunConfig) -> dict[str, Any]:
    base_run = base.config.get("config") or {}
    inherited = ("Entrypoint", "Cmd", "User", "ExposedPorts", "Volumes", "StopSignal", "Healthcheck", "Shell")
    run = {key: base_run[key] for key in inherited if base_run.get(key)}
    run["Env"] = [f"{name}={value}" for name, value in environment(lock, base.env, own).items()]
    run["WorkingDir"] = lock.image.workdir
    if own.entrypoint is not None:
        # Like Docker: an entrypoint drops the base's command.
        run["Entrypoint"] = list(own.entrypoint)
        run.pop("Cmd", None)
    if own.command is not None:
        run["Cmd"] = list(own.command)
    if own.user is not None:
        run["User"] = own.user
    if own.ports:
        run["ExposedPorts"] = {**run.get("ExposedPorts", {}), **{port: {} for port in own.ports}}
    if own.healthcheck is not None:
        run["Healthcheck"] = dict(own.healthcheck)
    return run


def _check_base(base: Base, platform: Platform) -> None:
    own = (base.config.get("os"), base.config.get("architecture"))
    if own != OCI_PLATFORMS[platform]:
        raise BadBase(
            f"{base.name}@{base.digest} is for {excerpt('/'.join(map(str, own)))}, "
            f"not for {'/'.join(OCI_PLATFORMS[platform])}",
            hint="pin a base of that platform, or an index that includes it",
        )


def image_of(platform: Platform, config: bytes, layers: Sequence[Layer], annotations: Mapping[str, str]) -> Image:
    """An image with its manifest. layers: all of them, the base's first."""
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor(Descriptor(OCI_CONFIG, digest_of(config), len(config))),
            "layers": [descriptor(layer.blob) for layer in layers],
            "annotations": dict(annotations),
        }
    )
    return Image(platform, digest_of(config), config, digest_of(manifest), manifest, tuple(layers))


def index_of(images: Sequence[Image], annotations: Mapping[str, str]) -> bytes:
    """The OCI index of several platforms' images."""
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": list(map(entry, images)),
            "annotations": dict(annotations),
        }
    )


def entry(image: Image) -> dict[str, Any]:
    """An image's descriptor in an index."""
    os, architecture = OCI_PLATFORMS[image.platform]
    return descriptor(Descriptor(OCI_MANIFEST, image.digest, len(image.manifest))) | {
        "platform": {"os": os, "architecture": architecture}
    }


def descriptor(blob: Descriptor) -> dict[str, Any]:
    """A descriptor as JSON, with OCI's media type."""
    return {
        "mediaType": _OCI_TYPES.get(blob.media_type, blob.media_type),
        "digest": blob.digest,
        "size": blob.size_bytes,
    }
