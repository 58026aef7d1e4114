"""Images with packages of an archive that moves on, by a real engine: the date in the lock decides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envspec.lockfile.folder import read_lock
from tests.support import e2e
from tests.support.builders.cuda_library import CUBIN, Code, container, library
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.machines import standin
from tests.support.servers.apt import AptArchive, Deb
from tests.support.servers.index import IndexServer
from tests.support.user import NAME, User

pytestmark = pytest.mark.engine

OLD = Deb("tool", "1.0", {"usr/share/tool": "1.0\n"})
NEW = Deb("tool", "1.1", {"usr/share/tool": "1.1\n"})
#: GPU code as torch's wheel has it.
KERNELS = library([(".nv_fatbin", container([Code(CUBIN, sm) for sm in (70, 75, 80, 86, 90, 100, 120)]))])
TORCH = wheel("torch", "2.9.1", files={"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": KERNELS})


@dataclass(slots=True)
class Site:
    """A Debian with an archive that has snapshots, an index, and a folder for users."""

    archive: AptArchive
    index: IndexServer
    registry: str
    folder: Path

    def has_base(self, layout: standin.Layout, *more: str) -> None:
        """more: lines of its sources, besides the archive."""
        lines = (
            f"# deb {self.archive.snapshots}/debian/20250301T000000Z bookworm main",
            f"deb [trusted=yes] {self.archive.url} bookworm main",
            *more,
        )
        folder = self.folder / f"base-{len(more)}"
        standin.push(standin.with_sources(layout, lines, folder), self.registry, "dated")

    def new_user(self, name: str, **system: str) -> User:
        """A user with nothing but a spec: that of pytorch-2.9 on the stand-in, with a small torch as only package."""
        text = e2e.spec_text(self.registry).replace(standin.TAG, "dated").replace('"pytorch-2.9-standin"', f'"{NAME}"')
        text = re.sub(r"(?s)(\[pip\]\ndependencies = )\[.*?\n\]", r'\1["torch==2.9.*"]', text)
        snapshot = "".join(f"{key} = {value}\n" for key, value in system.items())
        text = re.sub(r"(?s)\[system\]\n.*?\n\n", f'[system]\napt = ["tool"]\n{snapshot}\n', text)
        text = text.replace("[image]\n", '[image]\ncompiler = "none"\n')
        user = User(self.folder / name, self.index.url, ENVSPEC_REGISTRY_MIRRORS=f"docker.io={self.registry}")
        user.writes(text)
        return user

    def id_of(self, user: User, *words: str) -> str:
        ran = user.runs("image", "build", user.lock, "--no-compile-bytecode", "-q", *words)
        assert ran.status == 0, ran.stderr
        return ran.stdout.strip()


@pytest.fixture
def site(registry: str, standin_layout: standin.Layout, tmp_path: Path) -> Iterator[Site]:
    with AptArchive() as archive, IndexServer([File(TORCH)]) as index:
        archive.publish(OLD)
        archive.keep("20250301T060000Z")
        site = Site(archive, index, registry, tmp_path)
        site.has_base(standin_layout)
        yield site


def test_a_newer_package_in_the_archive_leaves_the_id(site: Site) -> None:
    first = site.new_user("first")
    first.locked()
    image = read_lock(first.lock).image
    assert image.snapshot is not None and f"{image.snapshot:%Y-%m-%d %H:%M}" == "2026-11-14 00:00"
    before = site.id_of(first)
    site.archive.publish(NEW)
    second = site.new_user("second")
    second.locked()
    assert second.files() == first.files()
    site.archive.asked.clear()
    assert site.id_of(second) == before
    assert "/archive/debian/20261114T000000Z/pool/tool_1.0_amd64.deb" in site.archive.asked


def test_todays_archive_gives_another_id(site: Site) -> None:
    ids = []
    for name, deb in (("first", OLD), ("second", NEW)):
        site.archive.publish(deb)
        user = site.new_user(name, snapshot="false")
        user.locked()
        assert read_lock(user.lock).image.snapshot is None
        ids.append(site.id_of(user))
    assert ids[0] != ids[1]


def test_a_base_that_is_newer_than_as_of(site: Site) -> None:
    site.archive.publish(NEW)
    site.archive.keep("20250312T000000Z")
    user = site.new_user("user")
    user.writes(user.spec.read_text().replace("as_of = 2026-11-15T00:00:00Z", "as_of = 2025-02-01T00:00:00Z"))
    user.locked()
    lock = read_lock(user.lock)
    assert lock.base_image and lock.image.snapshot
    (pinned,) = lock.base_image.digests
    assert f"{pinned.created:%Y-%m-%d}" == "2025-03-10"
    assert f"{lock.image.snapshot:%Y-%m-%d}" == "2025-03-11"
    ran = user.runs("lock", "--image", user.spec)
    assert ran.status == 0, ran.stderr
    assert [layer.packages for layer in read_lock(user.lock).system] == [("tool=1.0",)]


def test_the_output_and_the_lock_name_what_varies(site: Site, standin_layout: standin.Layout) -> None:
    with AptArchive() as corp:
        corp.publish(Deb("other", "1.0"), release="Origin: Corp\n")
        site.has_base(standin_layout, f"deb [trusted=yes] {corp.url} bookworm main")
        user = site.new_user("user", snapshot="2025-03-02")
        user.locked()
        ran = user.runs("lock", "--image", user.spec)
    assert ran.status == 0, ran.stderr
    created, varies = (text.partition(": ")[2] for text in ran.warnings)
    assert created.endswith(
        "was created at 2025-03-10T00:00:00Z, and apt installs as of 2025-03-02T00:00:00Z: if packages do not fit the "
        "base, set a later [system] snapshot"
    )
    assert varies == f"{corp.url} has no snapshots: its packages are today's, not of the lock's date"
    (layer,) = read_lock(user.lock).system
    assert (layer.packages, layer.undated) == (("tool=1.0",), (corp.url,))
