"""Files that packages have with different content: the lock names their owners, whose files all installations have."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pip
import pytest

from envspec.lockfile.document import load
from envspec.lockfile.export import dockerfile
from envspec.lockfile.export.types import ExportRequest
from envspec.lockfile.folder import read_lock
from envspec.structs import replace
from tests.conftest import Serve
from tests.support import preloaded
from tests.support.builders.environments import BASE, RUNNING, SERIES, installs, write_lock
from tests.support.builders.images import ImageServers, image_servers
from tests.support.builders.locks import forge, replacing
from tests.support.builders.projects import File
from tests.support.builders.wheels import sdist, wheel
from tests.support.machines.confinement import confined
from tests.support.user import User, refused, succeeded

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

_EXTENDS: Final = b"__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
ALPHA: Final = wheel(
    "alpha",
    "1.0",
    files={
        "build_backend.py": b"A = 1\n",
        "space/__init__.py": b"",
        "space/a.py": b"",
        "dsl/ir.py": b"OWNER = 'alpha'\n",
        "dsl/lib.py": b"OWNER = 'alpha'\n",
        "alpha-1.0.data/data/share/dsl.txt": b"alpha",
    },
)
BETA: Final = wheel(
    "beta",
    "1.0",
    files={
        "build_backend.py": b"B = 22\n",
        "space/__init__.py": _EXTENDS,
        "space/b.py": b"",
        "dsl/ir.py": b"OWNER = 'beta'\n",
        "dsl/lib.py": b"OWNER = 'beta'\n",
        "beta-1.0.data/data/share/dsl.txt": b"beta",
    },
)
#: Each package owns files of the other: no order of two installations gives this.
OWNERS: Final = 'file_owner = { "dsl" = "alpha", "dsl/ir.py" = "beta", "share/dsl.txt" = "beta" }'
EXPECTED: Final = {
    "build_backend.py": b"A = 1\n",
    "space/__init__.py": _EXTENDS,
    "dsl/ir.py": b"OWNER = 'beta'\n",
    "dsl/lib.py": b"OWNER = 'alpha'\n",
}


def files_of(prefix: Path) -> dict[str, bytes]:
    site = prefix / "lib" / f"python{SERIES}" / "site-packages"
    assert (prefix / "share/dsl.txt").read_bytes() == b"beta"
    return {path: (site / path).read_bytes() for path in EXPECTED}


@pytest.fixture
def user(tmp_path: Path, serve: Serve) -> User:
    user = User(tmp_path, serve([File(ALPHA), File(BETA)]).url)
    user.wants("alpha", "beta", python=RUNNING, as_of="2026-06-01T00:00:00Z", pip=OWNERS)
    assert succeeded(user.locks()).warnings == []
    return user


def test_an_environment_has_the_files_of_their_owners(user: User) -> None:
    succeeded(installs(user, user.lock, "--python", BASE))
    prefix = user.folder / "env"
    assert files_of(prefix) == EXPECTED
    succeeded(user.runs("verify", user.lock, "--prefix", "env"))
    # What the other package has at the path is a change.
    changed = prefix / "lib" / f"python{SERIES}" / "site-packages" / "dsl/ir.py"
    changed.write_bytes(b"OWNER = 'alpha'\n")
    message = user.runs("verify", user.lock, "--prefix", "env")
    assert message.status == 8 and "dsl/ir.py was changed" in message.stdout, message


def test_a_check_decides_the_owners_again(user: User) -> None:
    elsewhere = {"ENVSPEC_CACHE_DIR": str(user.folder / "elsewhere")}
    succeeded(user.locks("--check", **elsewhere))
    whole = user.files()
    for old, new in (
        ('owner = "alpha"', 'owner = "beta"'),
        ('"incidental"', '"namespace"'),
        ('"dsl/ir.py"', '"ir.py"'),
    ):
        forge(user.lock, replacing((old, new)))
        ran = user.locks("--check", **elsewhere)
        assert ran.status == 3 and "shared_file" in ran.stderr, (old, ran)
        for name, content in whole.items():
            (user.lock / name).write_bytes(content)
    succeeded(user.locks("--check", **elsewhere))


def test_what_nothing_decides_is_refused_before_anything_is_fetched(user: User) -> None:
    user.wants("alpha", "beta", python=RUNNING, as_of="2026-06-01T00:00:00Z")
    (warning,) = succeeded(user.locks()).warnings
    assert "alpha 1.0 and beta 1.0 install dsl/ir.py and 2 more files with different content" in warning
    message = refused(installs(user, user.lock, "--python", BASE, ENVSPEC_DEFAULT_INDEX="http://127.0.0.1:9/"), 4)
    assert "dsl/ir.py belongs to alpha 1.0 and to beta 1.0" in message and "file_owner" in message


def test_a_lock_of_before_names_no_owners(user: User) -> None:
    """It is read, and refused once the files are there."""
    lock = read_lock(user.lock)
    lock = replace(lock, resolutions=tuple(replace(part, shared=()) for part in lock.resolutions))
    before = write_lock(user.folder / "before", lock)
    message = refused(installs(user, before, "--python", BASE), 4)
    assert "with different content" in message and "hint: lock again" in message


def test_a_dockerfile_has_the_files_of_their_owners(user: User, tmp_path: Path) -> None:
    """Its commands after Python is there, in folders of this machine."""
    lock = load((user.lock / "envspec.lock").read_text(encoding="utf-8"), "lock")
    (part,) = lock.resolutions
    python = replace(part.target.python, source="standalone", url="https://example.com/p.tar.gz", sha256="0" * 64)
    target = replace(part.target, python=python)
    with image_servers() as servers:
        lock = replace(lock, resolutions=(replace(part, target=target),), base_image=servers.base.named())
    text = dockerfile.text(ExportRequest(lock, lock.resolutions)).text.replace("\\\n", "")
    (command,) = [line.removeprefix("RUN ") for line in text.splitlines() if "-m pip install" in line]
    prefix, files = tmp_path / "opt", tmp_path / "files"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    (prefix / "lib" / f"python{SERIES}" / "site-packages" / "pip").symlink_to(Path(pip.__file__).parent)
    files.mkdir()
    (files / "requirements.txt").write_bytes(user.files()["requirements.linux-64.txt"])
    command = command.replace("/opt/env", str(prefix)).replace("/tmp/envspec", str(files))
    environ = {
        "PATH": os.defpath,
        "PIP_INDEX_URL": user.environ["ENVSPEC_DEFAULT_INDEX"],
        "PIP_CONFIG_FILE": os.devnull,
    }
    subprocess.run(["sh", "-ec", command], check=True, env=environ, capture_output=True)
    assert files_of(prefix) == EXPECTED


@pytest.fixture(scope="module")
def servers() -> Iterator[ImageServers]:
    with image_servers(ALPHA, BETA) as made:
        yield made


def test_an_image_has_the_files_of_their_owners(user: User, servers: ImageServers, tmp_path: Path) -> None:
    (part,) = read_lock(user.lock).resolutions
    plain = servers.lock_of(ALPHA, BETA)
    (of_image,) = plain.resolutions
    owned = replace(plain, resolutions=(replace(of_image, shared=part.shared),))
    builder = servers.user_in(tmp_path / "builder")
    builder.id_of(builder.writes_lock(owned), "--no-compile-bytecode", "--output", "image.tar")
    found: dict[str, list[bytes]] = {}
    with tarfile.open(builder.folder / "image.tar") as image:
        for blob in image.getmembers():
            layer = image.extractfile(blob)
            if layer is None or not blob.name.startswith("blobs/"):
                continue
            try:
                with tarfile.open(fileobj=layer) as inner:
                    for each in inner.getmembers():
                        name = each.name.rpartition("site-packages/")[2]
                        if name in EXPECTED or name.endswith("share/dsl.txt"):
                            content = inner.extractfile(each)
                            assert content is not None
                            found.setdefault(name, []).append(content.read())
            except tarfile.TarError:
                continue
    assert found == {**{path: [content] for path, content in EXPECTED.items()}, "opt/env/share/dsl.txt": [b"beta"]}
    # The same wheels without owners are another image, which is refused, whatever was built before.
    message = refused(builder.image("build", builder.writes_lock(plain, "plain"), "--no-compile-bytecode"), 4)
    assert "with different content" in message


@confined
def test_a_wheel_that_is_built_of_an_sdist_shares_files_too(tmp_path: Path, serve: Serve) -> None:
    """Whoever locks again without building it names the same owners."""
    makes = "Path('tests').mkdir(exist_ok=True)\nPath('tests/__init__.py').write_text('1')\nMODULE = 'tests'"
    own = sdist("own", "1.0", on_build=f"from pathlib import Path\n{makes}")
    other = wheel("other", "1.0", files={"tests/__init__.py": b"2", "other.py": b""})
    user = User(tmp_path / "one", serve([File(own), File(other)]).url)
    user.wants("own", "other", python=RUNNING)
    assert succeeded(user.locks()).warnings == []
    (part,) = user.document()["resolution"]
    expected = {"owner": "other", "others": ["own"], "why": "incidental", "paths": ["tests/__init__.py"]}
    assert part["shared_file"] == [expected]
    whole = user.files()
    succeeded(user.locks(ENVSPEC_CACHE_DIR=str(tmp_path / "elsewhere"), PATH=str(tmp_path)))
    assert user.files() == whole
    succeeded(installs(user, user.lock, "--python", BASE))
    site = user.folder / "env" / "lib" / f"python{SERIES}" / "site-packages"
    assert (site / "tests" / "__init__.py").read_text() == "2"
