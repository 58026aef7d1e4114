"""`envspec export` before the installers that read pylock.toml, with indexes on loopback; and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.lockfile.folder import write_folder
from envspec.models import ImageSettings, Lock, Platform
from envspec.operations.export import destination
from envspec.operations.lock.complete import lock_files
from envspec.structs import replace
from tests.conftest import Serve
from tests.support.builders.environments import SERIES
from tests.support.builders.locks import ARM, X86, conda, conda_resolution, example, lock, package, resolution
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, routed, succeeded

PLAIN = wheel("plain-lib", "1.4", requires=["leaf>=1"])
LEAF = wheel("leaf", "2.0")
CORP = wheel("corp-tools", "0.3", requires=["leaf"])
DIRECT = wheel("tiny-model", "7.0")
INSTALLERS = pytest.mark.parametrize("way", ["pip install -r", "uv pip install -r", "uv pip sync"])


@pytest.fixture
def index(serve: Serve) -> IndexServer:
    return serve([File(PLAIN), File(LEAF)])


@pytest.fixture
def user(index: IndexServer, serve: Serve, tmp_path: Path) -> User:
    """With a lock of the default index, a private one whose URL has a login, and a wheel at a URL."""
    private, files = serve([File(CORP)]), serve([File(DIRECT)])
    user = User(tmp_path, index.url)
    user.wants(
        "plain-lib",
        "corp-tools",
        f"tiny-model @ {files.file_url(DIRECT.filename)}",
        python=SERIES,
        rest=routed("corp", private.url.replace("http://", "http://me:hunter2@"), "corp-tools"),
    )
    user.locked()
    return user


def holds(folder: Path, locked: Lock) -> User:
    """A user with this lock and no index."""
    user = User(folder, "http://127.0.0.1:9/simple/")
    write_folder(user.lock, lock_files(locked))
    return user


def test_pylock_names_files_and_no_login(user: User, index: IndexServer) -> None:
    text = succeeded(user.runs("export", "small")).stdout
    assert "hunter2" not in text
    assert f'index = "{index.url}' in text
    assert all(each.filename in text and each.sha256 in text for each in (PLAIN, LEAF, CORP, DIRECT))
    # Everything is in the cache by now.
    before = len(index.requests)
    assert succeeded(user.runs("export", "small", "--offline")).stdout == text
    assert len(index.requests) == before


def installed(way: str, user: User, file: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Of an installer that knows no index: what it printed, and what it installed."""
    target = user.folder / "out"
    environ = {
        "HOME": str(user.home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
    }
    options = ("--no-cache", "--python", sys.executable) if way.startswith("uv") else ("--no-cache-dir",)
    words = way.split() if way.startswith("uv") else [sys.executable, "-m", *way.split()]
    command = [*words[:-1], *options, "--target", str(target), words[-1], str(file)]
    if words[-1] == "sync":
        command = [*words, *options, "--target", str(target), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=user.folder, check=False)
    return done, {path.name.removesuffix(".dist-info") for path in target.glob("*.dist-info")}


@INSTALLERS
def test_installers_install_the_locked_files_by_pylock(user: User, way: str) -> None:
    ran = succeeded(user.runs("export", "small", "--output", "."))
    assert (ran.stdout, "wrote pylock.small.toml" in ran.stderr) == ("", True)
    done, found = installed(way, user, user.folder / "pylock.small.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found == {"plain_lib-1.4", "leaf-2.0", "corp_tools-0.3", "tiny_model-7.0"}


@INSTALLERS
def test_installers_refuse_another_file_by_pylock(user: User, way: str) -> None:
    text = succeeded(user.runs("export", "small")).stdout.replace(LEAF.sha256, "0" * 64)
    file = user.folder / "pylock.toml"
    file.write_text(text, encoding="utf-8")
    done, found = installed(way, user, file)
    assert done.returncode != 0
    assert "hash" in (done.stdout + done.stderr).lower()
    assert found == set()


def test_a_file_that_the_index_no_longer_lists_is_an_error(user: User, index: IndexServer) -> None:
    elsewhere = User(user.folder / "other", index.url)
    write_folder(elsewhere.lock, {path.name: path.read_bytes() for path in user.lock.iterdir()})
    index.remove("leaf")
    index.add(File(wheel("leaf", "2.1")))
    message = refused(elsewhere.runs("export", "small"), 5)
    assert "leaf-2.0-py3-none-any.whl is not on the page of leaf" in message


def test_conda_packages_are_not_left_out_silently(tmp_path: Path) -> None:
    rows = [conda("python", "3.12.11"), conda("numpy", "2.2.6")]
    user = holds(tmp_path, lock(conda_resolution(X86, rows)))
    assert "has no packages of PyPI" in refused(user.runs("export", "small"), 2)
    on_top = holds(tmp_path / "on-top", lock(conda_resolution(X86, rows, package("einops", "0.8"))))
    message = refused(on_top.runs("export", "small"), 2)
    assert "pylock has no place for them" in message and "conda-linux-64.lock" in message
    assert "--without-conda is for pylock" in refused(
        on_top.runs("export", "small", "--format", "pixi", "--without-conda"), 2
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "devcontainer", "--platform", "linux-64"), "the engine selects its own"),
        (("--format", "pixi", "--image", "a/b:1"), "pixi names no image"),
        (("--format", "pixi", "--platform", "win-64"), "not locked for win-64; its platforms: linux-64, linux-aarch64"),
        (("--output", "lock.toml"), "only if its name is pylock.toml or pylock.NAME.toml"),
        (("--format", "devcontainer", "--image", "a b"), "a b"),
    ],
)
def test_what_does_not_fit_the_format_is_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    user = holds(tmp_path, example())
    assert message in refused(user.runs("export", user.lock, *words), 2)


def test_a_file_for_one_platform_is_of_this_one_or_of_the_one_that_is_named(tmp_path: Path) -> None:
    user = holds(tmp_path, lock(resolution(X86, package("a", "1")), resolution(ARM, package("a", "2"))))
    text = succeeded(user.runs("export", "small", "--format", "environment-yml", "--platform", "linux-aarch64")).stdout
    assert '"a==2 --hash=' in text
    both = succeeded(user.runs("export", "small", "--format", "pixi")).stdout
    assert '[target.linux-64.pypi-dependencies]\na = "==1"' in both


def test_only_its_own_files_are_replaced(tmp_path: Path) -> None:
    user = holds(tmp_path, example())
    words = ("export", user.lock, "--format", "pixi", "--output", "pixi.toml")
    own = tmp_path / "pixi.toml"
    own.write_text("[workspace]\n", encoding="utf-8")
    assert "pixi.toml exists" in refused(user.runs(*words), 2)
    assert own.read_text(encoding="utf-8") == "[workspace]\n"
    succeeded(user.runs(*words, "--force"))
    first = own.read_bytes()
    succeeded(user.runs(*words))
    assert own.read_bytes() == first


@pytest.mark.parametrize(("platform", "hint"), [(X86, "`[image] base`"), (Platform.WIN_64, "linux-64")])
def test_a_lock_without_an_image_has_no_dev_container(tmp_path: Path, platform: Platform, hint: str) -> None:
    user = holds(tmp_path, lock(resolution(platform, package("a", "1"))))
    message = refused(user.runs("export", "small", "--format", "devcontainer"), 2)
    assert message.startswith("small has no image\n") and hint in message


def test_a_folder_gets_the_usual_name(tmp_path: Path) -> None:
    user = holds(tmp_path, example())
    succeeded(user.runs("export", user.lock, "--format", "devcontainer", "--output", ".devcontainer/"))
    assert (
        (tmp_path / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8").startswith("// pytorch-2.9 for")
    )


def test_a_dockerfile_is_written_beside_the_lock_and_names_its_image(tmp_path: Path) -> None:
    user = holds(tmp_path, example())
    for path in ("Dockerfile", "docker/"):
        succeeded(user.runs("export", user.lock, "--format", "dockerfile", "--output", path))
    text = (tmp_path / "Dockerfile").read_text(encoding="utf-8")
    assert (tmp_path / "docker" / "Dockerfile").read_text(encoding="utf-8") == text
    assert text.count("\nFROM --platform=linux/") == 2
    alone = succeeded(user.runs("export", user.lock, "--format", "dockerfile", "--platform", "linux-aarch64")).stdout
    assert alone.count("\nFROM --platform=linux/arm64") == 1 and "linux/amd64" not in alone


def test_a_dockerfile_starts_what_the_image_starts(tmp_path: Path) -> None:
    image = ImageSettings(entrypoint=("python", "-c", 'print("$HOME\\n")\n'), command=("a b", ""))
    user = holds(tmp_path, replace(example(), image=image))
    text = succeeded(user.runs("export", user.lock, "--format", "dockerfile", "--platform", "linux-64")).stdout
    assert text.endswith('ENTRYPOINT ["python", "-c", "print(\\"$HOME\\\\n\\")\\n"]\nCMD ["a b", ""]\n')
    assert "no place for" not in text
    ran = succeeded(user.runs("export", user.lock, "--format", "environment-yml", "--platform", "linux-64"))
    assert "what a container starts: python -c" in ran.warnings[0]


def test_what_a_format_has_no_place_for_is_a_warning_and_a_comment(tmp_path: Path) -> None:
    user = holds(tmp_path, example())
    ran = succeeded(user.runs("export", user.lock, "--format", "environment-yml", "--platform", "linux-64"))
    (warning,) = ran.warnings
    missing = warning.partition(" has no place for: ")[2].split("; ")
    assert missing[:2] == [
        "the base image docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04",
        "the NVIDIA driver, 525.60.13 or newer",
    ]
    assert all(f"#   {each}\n" in ran.stdout for each in missing)


def test_a_format_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="no format 'poetry'"):
        destination(Path(), "poetry", "small")
