"""System layers by real builders: a loopback archive's packages in containers of a Debian."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import pytest
from docker import DockerClient

from envspec.context import Context, ReporterOf
from envspec.engine.errors import NoEngine
from envspec.image.layers.store import LayerStore
from envspec.image.layers.types import Compression, EntryKind
from envspec.image.sources.system import (
    SystemDiffers,
    SystemLayerRequest,
    SystemSource,
    build_system_layer,
    find_system_layer,
    read_entries,
)
from envspec.image.sources.system_container import ArchiveUnreachable, InstallFailed
from envspec.image.sources.system_script import MIRROR
from envspec.models import Platform, SystemLayer
from envspec.structs import replace
from tests.support.machines import standin
from tests.support.machines.engine import removed
from tests.support.servers.apt import AptArchive, Deb

pytestmark = pytest.mark.engine

#: What maintainers' scripts do: secrets and ids of one machine, logs, moments, bytecode, other packages' files.
_MESS = """#!/bin/sh
set -e
head -c 32 /dev/urandom >/etc/ssh/ssh_host_ed25519_key
head -c 16 /dev/urandom >/etc/machine-id
date >/var/log/mess.log
date >/var/cache/mess
date >/tmp/mess
date >"$HOME/.mess"
mkdir -p /var/log/mess
adduser --system --no-create-home mess >/dev/null 2>&1 || useradd --system mess
ln /usr/share/mess/one /usr/share/mess/0ne
rm /usr/share/keyrings/debian-archive-removed-keys.gpg
rm -r /usr/share/base-files
env -u SOURCE_DATE_EPOCH python3.11 -m py_compile /usr/lib/python3/dist-packages/mess.py
"""
MESS = Deb(
    "mess",
    "1.0",
    {
        "usr/share/mess/one": "once\n",
        "usr/share/man/man1/mess.1": "not read\n",
        "usr/share/doc/mess/copyright": "mine\n",
        "usr/lib/python3/dist-packages/mess.py": "NAMES = {'a', 'b', 'c'} and frozenset({'x', 'y', 'z'})\n",
        "etc/ssh/mess": "",
        "usr/bin/mess": "#!/bin/sh\n",
    },
    {"postinst": _MESS},
    "below (>= 1)",
)
BELOW = Deb("below", "1.0", {"usr/share/below": "1.0\n"})
NEWER = Deb("below", "1.1", {"usr/share/below": "1.1\n"})


@dataclass(slots=True)
class Site:
    """A Debian with the archive as its only source, in a registry; and caches."""

    archive: AptArchive
    base: str
    digest: str
    folder: Path
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def order(self, *apt: str) -> SystemLayerRequest:
        return SystemLayerRequest(Platform.LINUX_64, self.base, self.digest, apt or ("mess",))

    async def making(
        self, order: SystemLayerRequest, cache: str = "cache", **environ: str
    ) -> tuple[SystemLayer, SystemSource]:
        folder = self.folder / cache
        reporter = ReporterOf(warning=self.warnings.append)
        context = Context({**os.environ, **environ}, self.folder, folder, reporter=reporter)
        store = LayerStore(folder)
        return await build_system_layer(
            order, context, lambda source: store.write(source, Compression.GZIP), self.lines.append
        )

    def make(self, order: SystemLayerRequest, cache: str = "cache", **environ: str) -> tuple[SystemLayer, SystemSource]:
        return asyncio.run(self.making(order, cache, **environ))


@pytest.fixture(scope="module")
def archive() -> Iterator[AptArchive]:
    with AptArchive() as served:
        yield served


@pytest.fixture(scope="module")
def corp() -> Iterator[AptArchive]:
    with AptArchive() as served:
        yield served


@pytest.fixture(scope="module")
def base(engine: DockerClient, standin_base: standin.Pushed, archive: AptArchive) -> Iterator[str]:
    """The stand-in with another sources.list: `registry/repository@sha256:...`."""
    with _based(engine, standin_base, "base", f"deb [trusted=yes] {archive.url} bookworm main") as digest:
        yield digest


@pytest.fixture(scope="module")
def dated_base(
    engine: DockerClient, standin_base: standin.Pushed, archive: AptArchive, corp: AptArchive
) -> Iterator[str]:
    """The same with the comment of Debian's images, and with a company's source."""
    lines = (
        f"# deb {archive.snapshots}/debian/20250520T000000Z bookworm main",
        f"deb [trusted=yes] {archive.url} bookworm main",
        f"deb [trusted=yes] {corp.url} bookworm main",
    )
    with _based(engine, standin_base, "dated", *lines) as digest:
        yield digest


@contextmanager
def _based(engine: DockerClient, standin_base: standin.Pushed, repository: str, *sources: str) -> Iterator[str]:
    name = f"{standin_base.registry}/system/{repository}"
    below = f"{standin_base.name.rpartition(':')[0]}@{standin_base.digest}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in (
            ("Dockerfile", f"FROM {below}\nCOPY sources.list /etc/apt/sources.list\n"),
            ("sources.list", "".join(f"{line}\n" for line in sources)),
        ):
            member = tarfile.TarInfo(path)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    packed.seek(0)
    image, _ = engine.images.build(fileobj=packed, custom_context=True, tag=f"{name}:1")
    engine.images.push(name, tag="1")
    image.reload()
    (digest,) = (row for row in image.attrs["RepoDigests"] if row.startswith(f"{name}@"))
    with removed(engine, f"{name}:1", digest, below):
        yield digest


@pytest.fixture
def site(archive: AptArchive, base: str, tmp_path: Path) -> Site:
    archive.asked.clear()
    archive.publish(MESS, BELOW)
    return Site(archive, base, base.rpartition("@")[2], tmp_path)


def test_two_builds_give_the_same_layer(site: Site) -> None:
    made = [site.make(site.order(), cache)[0] for cache in ("a", "b")]
    assert len({layer.diff_id for layer in made}) == 1
    assert made[0].packages == ("below=1.0", "mess=1.0")
    assert made[0].base == site.digest


def test_what_is_one_machines_or_one_moments_stays_out(site: Site) -> None:
    _, source = site.make(site.order())
    changes = {change.path: change for change in read_entries(source.folder)}
    for path in (
        "etc/ssh/ssh_host_ed25519_key",
        "etc/machine-id",
        "etc/passwd-",
        "etc/resolv.conf",
        "etc/apt/apt.conf",
        "root/.mess",
        "tmp",
        "tmp/mess",
        "usr/sbin/policy-rc.d",
        "usr/share/man/man1/mess.1",
        "var/cache/mess",
        "var/log/mess.log",
        ".envspec-build",
    ):
        assert path not in changes, path
    assert {"etc/ssh/mess", "usr/share/doc/mess/copyright", "usr/share/below", "var/log/mess"} <= changes.keys()
    assert not [path for path in changes if path.startswith("var/lib/apt/lists")]
    assert changes["usr/share/keyrings/.wh.debian-archive-removed-keys.gpg"].size_bytes == 0
    assert changes["usr/share/.wh.base-files"].kind is EntryKind.FILE
    assert not [path for path in changes if path.startswith("usr/share/base-files")]
    one, other = changes["usr/share/mess/0ne"], changes["usr/share/mess/one"]
    assert (one.kind, other.kind, other.target) == (EntryKind.FILE, EntryKind.HARDLINK, "usr/share/mess/0ne")


def test_bytecode_and_the_user_in_the_layer(site: Site) -> None:
    _, source = site.make(site.order())
    (path,) = (each.path for each in read_entries(source.folder) if each.path.endswith("mess.cpython-311.pyc"))
    store = LayerStore(site.folder / "cache")
    with tarfile.open(fileobj=io.BytesIO(b"".join(store.tar(store.write(source, Compression.GZIP))))) as tar:
        names = (path, "etc/passwd", "etc/shadow")
        bytecode, passwd, shadow = (tar.extractfile(name).read() for name in names)  # type: ignore[union-attr]
    assert int.from_bytes(bytecode[4:8], "little") == 0b01  # PEP 552: by hash, not checked
    assert b"envspec:x:1000:1000::/home/envspec:/bin/bash\n" in passwd
    (row,) = (line for line in shadow.decode().splitlines() if line.startswith("envspec:"))
    assert row.split(":")[1:3] == ["*", "3652"]  # no password fits; 1980-01-01 in days


def test_proxies_and_certificates_reach_apt_and_not_the_layer(site: Site, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\nQUJDREVGRw==\n-----END CERTIFICATE-----\n")
    proxy = site.archive.url.removesuffix("/debian").replace("http://", "http://user:s3cret@")
    layer, source = site.make(
        site.order(), "with", http_proxy=proxy, no_proxy="registry.example", SSL_CERT_FILE=str(bundle)
    )
    # To a proxy the whole address is sent.
    assert [path for path in site.archive.asked if path.startswith(site.archive.url)]
    assert site.make(site.order(), "without")[0].diff_id == layer.diff_id
    store = LayerStore(site.folder / "with")
    whole = b"".join(store.tar(store.write(source, Compression.GZIP)))
    for word in (b"s3cret", b"QUJDREVGRw", b"registry.example", b"ca.pem"):
        assert word not in whole
    assert not [line for line in site.lines if "s3cret" in line]


def test_a_second_build_needs_no_engine(site: Site) -> None:
    first, _ = site.make(site.order())
    nothing = {"DOCKER_HOST": f"unix://{site.folder}/none.sock", "PATH": "/nowhere"}
    again, source = site.make(replace(site.order(), locked=first), **nothing)
    assert again == first
    assert source.title == "apt: mess"
    with pytest.raises(NoEngine, match="system packages need a container"):
        site.make(site.order("below"), **nothing)


def test_the_locks_versions_are_taken_while_the_archive_has_them(site: Site) -> None:
    first, _ = site.make(site.order())
    site.archive.publish(MESS, BELOW, NEWER)
    assert site.make(site.order(), "fresh")[0].packages == ("below=1.1", "mess=1.0")
    assert site.make(replace(site.order(), locked=first), "other")[0].diff_id == first.diff_id


def test_an_archive_that_has_moved_on_is_refused_with_the_packages(site: Site) -> None:
    first, _ = site.make(site.order())
    site.archive.publish(MESS, NEWER)
    with pytest.raises(SystemDiffers, match=r"below: locked 1\.0, installed 1\.1") as message:
        site.make(replace(site.order(), locked=first), "other")
    assert message.value.exit_code == 8
    # What was made is kept, for whoever locks it; it is never taken for the one that the lock means.
    assert find_system_layer(replace(site.order(), locked=first), site.folder / "other") is None


def test_the_same_packages_with_other_files_are_refused(site: Site) -> None:
    first, _ = site.make(site.order())
    site.archive.publish(replace(MESS, files={**MESS.files, "usr/share/mess/one": "twice\n"}), BELOW)
    with pytest.raises(SystemDiffers) as message:
        site.make(replace(site.order(), locked=first), "other")
    assert message.value.hint and "the same packages gave other files" in message.value.hint


def test_a_snapshot_comes_from_the_mirror_that_is_named(site: Site) -> None:
    site.archive.keep("20261031T000000Z")
    site.archive.publish(MESS, NEWER)
    order = replace(site.order(), snapshot=datetime(2026, 11, 1, tzinfo=timezone.utc))
    layer, source = site.make(order, **{MIRROR: f"{site.archive.snapshots}/{{archive}}/{{time}}/"})
    assert layer.packages == ("below=1.0", "mess=1.0")
    assert "/archive/debian/20261101T000000Z/dists/bookworm/Release" in site.archive.asked
    assert not [path for path in site.archive.asked if path.endswith(".deb") and path.startswith("/debian/")]
    assert "etc/apt/sources.list" not in {change.path for change in read_entries(source.folder)}


def test_an_old_apt_has_the_snapshots_of_its_source_and_a_companys_newest(
    site: Site, dated_base: str, corp: AptArchive
) -> None:
    site.archive.keep("20261031T000000Z")
    site.archive.publish(MESS, NEWER)
    made = []
    for cache, version in (("a", "1.0"), ("b", "1.1")):
        corp.publish(Deb("tool", version, {"usr/share/tool": version}), release="Origin: Corp\n")
        order = replace(site.order("mess", "tool"), snapshot=datetime(2026, 11, 1, tzinfo=timezone.utc))
        order = replace(order, base=dated_base, base_digest=dated_base.rpartition("@")[2])
        layer, source = site.make(order, cache)
        assert layer.packages == ("below=1.0", "mess=1.0", f"tool={version}")
        assert layer.undated == (corp.url,)
        assert not [change.path for change in read_entries(source.folder) if change.path.startswith("etc/apt")]
        made.append(layer)
    # Only the company's source has changed.
    assert made[0].diff_id != made[1].diff_id


def test_a_snapshot_without_a_source_that_has_them_says_what_to_do(site: Site) -> None:
    order = replace(site.order(), snapshot=datetime(2026, 11, 1, tzinfo=timezone.utc))
    with pytest.raises(InstallFailed, match=r"no source of apt in .* has known snapshots") as message:
        site.make(order)
    assert MIRROR in str(message.value) and "set [system] snapshot to false" in str(message.value)


def test_what_apt_cannot_install_is_told_in_its_words(site: Site) -> None:
    with pytest.raises(InstallFailed, match="Unable to locate package no-such-package"):
        site.make(site.order("no-such-package"))
    site.archive.files.clear()
    with pytest.raises(ArchiveUnreachable, match="404") as message:
        site.make(site.order())
    assert message.value.exit_code == 5


def test_a_run_that_is_stopped_leaves_no_container_and_no_layer(site: Site, engine: DockerClient) -> None:
    slow = Deb("slow", "1", {"usr/share/slow": ""}, {"postinst": "#!/bin/sh\necho sleeping; sleep 60\n"})
    site.archive.publish(slow)

    async def stopped() -> None:
        running = asyncio.ensure_future(site.making(site.order("slow")))
        while not any("sleeping" in line for line in site.lines):
            await asyncio.sleep(0.05)
            assert not running.done(), running.exception()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(stopped())
    name = f"envspec-system-{site.order('slow').key[:16]}"
    assert not engine.containers.list(all=True, filters={"name": name})
    assert not list((site.folder / "cache").glob(f"system-layers/*/*/{'layer.json'}"))
    site.archive.publish(replace(slow, scripts={}))
    assert site.make(site.order("slow"))[0].packages == ("slow=1",)
