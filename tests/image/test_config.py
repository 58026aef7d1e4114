"""The config and the manifest of an image: what containers get, and that the bytes follow from the values."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from envspec.image.config import (
    BadBase,
    Base,
    RunConfig,
    annotations_of,
    environment,
    image_config,
    image_of,
    index_of,
    packages_sha256,
)
from envspec.models import BuiltWheel, ImageSettings, Lock, Platform
from envspec.registry.types import Descriptor
from envspec.structs import replace
from tests.support.builders import images
from tests.support.builders.locks import conda, example, sha256
from tests.support.servers.registry import digest

ROOT = images.plain_layer(images.tar_of({"etc/os-release": b"ID=debian"}), "the base")
TORCH = images.plain_layer(images.tar_of({"opt/env/torch.py": b"1"}), "torch 2.9.1")
X86 = Platform.LINUX_64


def made(lock: Lock | None = None, base: Base | None = None, conduct: RunConfig | None = None) -> dict[str, Any]:
    below = base or images.base(ROOT)
    config = image_config(lock or example(), "i" * 64, X86, below, [TORCH], conduct or RunConfig())
    return dict(images.read(config))


def test_layers_and_history_stand_on_the_base() -> None:
    config = made()
    assert config["rootfs"] == {"type": "layers", "diff_ids": [ROOT.diff_id, TORCH.diff_id]}
    assert [row["created_by"] for row in config["history"]] == ["ADD root", "envspec: torch 2.9.1"]
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert config["created"] == config["history"][-1]["created"] == f"{example().as_of:%Y-%m-%dT%H:%M:%SZ}"


def test_created_is_as_of_in_utc_whatever_zone_it_is_written_in() -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    lock = replace(example(), as_of=datetime(2026, 11, 15, 5, 30, tzinfo=east))
    assert made(lock)["created"] == "2026-11-15T00:00:00Z"


def test_environment_has_the_prefix_first_and_nvidias_variables_by_the_locks_driver() -> None:
    lock = example()
    assert lock.driver
    base = images.base(
        ROOT,
        run={"Env": ["PATH=/usr/local/nvidia/bin:/usr/bin", "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla", "KEPT=a=b"]},
    )
    env = dict(text.split("=", 1) for text in made(base=base)["config"]["Env"])
    assert env["PATH"] == "/opt/env/bin:/usr/local/nvidia/bin:/usr/bin"
    assert env["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert env["NVIDIA_REQUIRE_CUDA"] == f"driver>={lock.driver.minimum}"
    assert env["KEPT"] == "a=b"


def test_an_environment_for_the_cpu_asks_for_no_gpu() -> None:
    message = environment(replace(example(), driver=None, gpus=()), {"PATH": "/bin"}, RunConfig())
    assert message == {"PATH": "/opt/env/bin:/bin"}


def test_the_specs_variables_go_before_the_services_and_the_bases() -> None:
    lock = replace(example(), image=ImageSettings(env=(("A", "spec"), ("B", "spec"))))
    env = environment(lock, {"A": "base", "C": "base"}, RunConfig(env=(("B", "service"), ("C", "service"))))
    assert (env["A"], env["B"], env["C"]) == ("spec", "spec", "service")


def test_an_entrypoint_of_ours_drops_the_bases_command() -> None:
    base = images.base(ROOT, run={"Cmd": ["/bin/bash"], "Entrypoint": ["/nvidia.sh"], "ExposedPorts": {"1/tcp": {}}})
    kept = made(base=base)["config"]
    assert (kept["Cmd"], kept["Entrypoint"]) == (["/bin/bash"], ["/nvidia.sh"])
    conduct = RunConfig(("/init",), "1000:1000", ("8888/tcp",), {"Test": ["CMD", "/check"], "Interval": 10**10})
    run = made(base=base, conduct=conduct)["config"]
    assert "Cmd" not in run
    assert run["Entrypoint"] == ["/init"]
    assert run["User"] == "1000:1000"
    assert run["ExposedPorts"] == {"1/tcp": {}, "8888/tcp": {}}
    assert run["Healthcheck"] == {"Test": ["CMD", "/check"], "Interval": 10**10}
    assert run["WorkingDir"] == "/workspace"


def test_a_command_alone_keeps_the_bases_entrypoint() -> None:
    base = images.base(ROOT, run={"Cmd": ["/bin/bash"], "Entrypoint": ["/nvidia.sh"]})
    run = made(base=base, conduct=RunConfig(command=("python", "serve.py")))["config"]
    assert (run["Entrypoint"], run["Cmd"]) == (["/nvidia.sh"], ["python", "serve.py"])
    both = made(base=base, conduct=RunConfig(("python",), command=("serve.py",)))["config"]
    assert (both["Entrypoint"], both["Cmd"]) == (["python"], ["serve.py"])


def test_labels_are_the_bases_own_less_its_description_and_ours() -> None:
    labels = {"maintainer": "NVIDIA", "org.opencontainers.image.version": "24.04"}
    message = made(base=images.base(ROOT, run={"Labels": labels}))["config"]["Labels"]
    assert message == {
        "maintainer": "NVIDIA",
        "envspec.name": example().name,
        "envspec.lock": "i" * 64,
        "org.opencontainers.image.title": example().name,
        "org.opencontainers.image.base.name": "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04",
        "org.opencontainers.image.base.digest": f"sha256:{sha256('12.8.1-base-ubuntu24.04')}",
        "envspec.packages": packages_sha256(example().resolutions[0]),
        "envspec.platform": "linux-64",
        "envspec.python": "3.11.14",
    }


def test_the_hash_of_packages_is_of_their_rows_in_any_order() -> None:
    resolution = example().resolutions[0]
    rows = [f"{each.name} {each.version} {each.file.filename} {each.file.sha256}\n" for each in resolution.packages]
    expected = sha256("".join(sorted(rows)))
    assert packages_sha256(resolution) == expected
    assert packages_sha256(replace(resolution, packages=resolution.packages[::-1], warnings=())) == expected
    first, *rest = resolution.packages
    moved = replace(first, file=replace(first.file, sha256="0" * 64))
    assert packages_sha256(replace(resolution, packages=(moved, *rest))) != expected
    # A wheel that is built of a source is not always in the lock.
    built = replace(first, built=BuiltWheel("x-1-py3-none-any.whl", "1" * 64, 5))
    assert packages_sha256(replace(resolution, packages=(built, *rest))) == expected


def test_the_hash_of_packages_is_of_conda_packages_too() -> None:
    resolution = example().resolutions[0]
    record = conda("zlib", "1.3.1")
    both = replace(resolution, conda=(record,))
    other = replace(resolution, conda=(replace(record, sha256="0" * 64),))
    assert len({packages_sha256(each) for each in (resolution, both, other)}) == 3


def test_a_base_that_does_not_fit_is_refused() -> None:
    base = images.base(ROOT)
    base = replace(base, config={**base.config, "architecture": "arm64"})
    with pytest.raises(BadBase, match="is for linux/arm64, not for linux/amd64"):
        made(base=base)


def test_the_id_is_of_the_config_and_not_of_how_layers_are_packed() -> None:
    lock, base = example(), images.base(ROOT)
    blob = Descriptor("application/vnd.oci.image.layer.v1.tar+gzip", "sha256:" + "9" * 64, 5)
    packed = replace(TORCH, blob=blob)
    first, second = (
        image_of(X86, image_config(lock, "i", X86, base, [layer], RunConfig()), [*base.layers, layer], {})
        for layer in (TORCH, packed)
    )
    assert first.id == second.id == digest(first.config)
    assert first.digest != second.digest


def test_manifest_and_index_name_what_they_hold() -> None:
    lock, base = example(), images.base(replace(ROOT, blob=replace(ROOT.blob, media_type=DOCKER_GZIP)))
    message = annotations_of(lock, "i" * 64, base)
    config = image_config(lock, "i" * 64, X86, base, [TORCH], RunConfig())
    image = image_of(X86, config, [*base.layers, TORCH], message)
    manifest = images.read(image.manifest)
    assert manifest["config"] == {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        "digest": image.id,
        "size": len(config),
    }
    assert [row["mediaType"] for row in manifest["layers"]] == [
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.oci.image.layer.v1.tar",
    ]
    assert manifest["annotations"]["envspec.lock"] == "i" * 64
    assert manifest["annotations"]["org.opencontainers.image.base.name"] == base.name
    index = images.read(index_of([image], annotations_of(lock, "i" * 64, None)))
    assert index["manifests"][0]["digest"] == image.digest
    assert index["manifests"][0]["platform"] == {"os": "linux", "architecture": "amd64"}


DOCKER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
