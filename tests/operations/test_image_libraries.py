"""What `envspec image build` reports of the system libraries that the modules of wheels need."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import to_builtins

from envspec.image.layers.types import EntryKind
from envspec.image.sources.system import FILES, ChangedPath, SystemLayerRequest, title_of, write_entries
from envspec.models import Lock, SystemLayer
from envspec.structs import replace
from tests.support.builders.elf_library import elf
from tests.support.builders.environments import pin
from tests.support.builders.images import X86, ImageServers, ImageUser, image_lock, image_servers
from tests.support.builders.wheels import wheel
from tests.support.user import succeeded

_NEEDS = ["libGL.so.1", "libgthread-2.0.so.0", "libz.so.1", "libc.so.6", "libcuda.so.1", "libown.so.1"]
OPENCV = wheel("opencv-python", "4.10.0.84", files={"cv2/__init__.py": b"", "cv2/cv2.abi3.so": elf(_NEEDS)})
#: Brings what another one needs.
OWN = wheel("own", "1.0", files={"own/__init__.py": b"", "own/libown.so.1": elf(["libc.so.6"])})


@pytest.fixture(scope="module")
def servers() -> Iterator[ImageServers]:
    with image_servers(OPENCV, OWN) as found:
        yield found


def lay_system_layer(user: ImageUser, lock: Lock, packages: tuple[str, ...], *names: str) -> Lock:
    """The lock with a system layer that is in the cache, as if a container had made it: these empty libraries."""
    base = next(each.digest for each in lock.base_image.digests if each.digest) if lock.base_image else ""
    request = SystemLayerRequest(X86, f"docker.io/nvidia/cuda@{base}", base, packages)
    folder = request.folder(user.cache) / "one"
    folder.mkdir(parents=True)
    paths = ["usr", "usr/lib"]
    entries = [ChangedPath(path, EntryKind.FOLDER, 0o755, 0, 0) for path in paths]
    empty = hashlib.sha256(b"").hexdigest()
    entries += [ChangedPath(f"usr/lib/{name}", EntryKind.FILE, 0o644, 0, 0, "", empty, 0) for name in sorted(names)]
    key = write_entries(folder, tuple(entries), title_of(packages))
    with zipfile.ZipFile(folder / FILES, "w"):
        pass
    folder = folder.rename(folder.parent / key)
    made = SystemLayer(X86, base, packages, tuple(f"{each}=1" for each in packages), "", "", 0)
    (folder / "layer.json").write_text(json.dumps(to_builtins(made)))
    return replace(lock, image=replace(lock.image, apt=packages))


def warnings(user: ImageUser, lock: Lock, *words: str) -> list[str]:
    return succeeded(user.image("build", user.writes_lock(lock), "--no-compile-bytecode", *words)).warnings


def test_what_nothing_in_the_image_has_is_a_warning_with_its_packages(servers: ImageServers, tmp_path: Path) -> None:
    user, lock = servers.user_in(tmp_path), servers.lock_of(OPENCV, OWN)
    (text,) = warnings(user, lock)
    assert text == (
        "linux-64: opencv-python 4.10.0.84: cv2.abi3.so needs libGL.so.1, libgthread-2.0.so.0, "
        "which nothing in the image has: add 'libgl1', 'libglib2.0-0t64' to [system] apt"
    )
    # From the cached layers, without a wheel being read again.
    assert warnings(user, lock, "--output", "image.tar") == [text]


def test_of_another_wheels_library_that_is_missing_no_package_is_known(servers: ImageServers, tmp_path: Path) -> None:
    (text,) = warnings(servers.user_in(tmp_path), servers.lock_of(OPENCV))
    assert "needs libGL.so.1, libgthread-2.0.so.0, libown.so.1, which nothing in the image has: add 'libgl1', " in text


def test_what_the_system_layer_has_is_not_missing(servers: ImageServers, tmp_path: Path) -> None:
    """Whichever package brings it: rows name few."""
    user, lock = servers.user_in(tmp_path), servers.lock_of(OPENCV)
    lock = lay_system_layer(user, lock, ("a-package",), "libGL.so.1", "libown.so.1")
    (text,) = warnings(user, lock)
    assert "cv2.abi3.so needs libgthread-2.0.so.0, which nothing in the image has: add 'libglib2.0-0t64'" in text
    lock = lay_system_layer(user, servers.lock_of(OPENCV), ("b-package",), *_NEEDS[:2], "libown.so.1")
    assert warnings(user, lock) == []


def test_nothing_is_known_of_a_base_of_the_users_own_and_of_conda(servers: ImageServers, tmp_path: Path) -> None:
    base = replace(servers.base.named(), cuda_release=None, flavor=None)
    assert warnings(servers.user_in(tmp_path / "a"), image_lock({X86: [pin(OPENCV), pin(OWN)]}, base)) == []
