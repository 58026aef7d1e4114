"""One way to configure a machine: variables, and the user's file; the same for every command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import ecosystem
from tests.support.builders.images import RegistryInThread, hold_base, make_base, small_wheel
from tests.support.builders.projects import File
from tests.support.servers.index import IndexServer
from tests.support.servers.registry import PushRegistry
from tests.support.user import User, refused

TAG = "12.8.1-base-ubuntu24.04"
IMAGE = f'[image]\nbase = "docker.io/nvidia/cuda:{TAG}"\nglibc = "2.36"\npython = "3.11.7"\n'


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.diamond(), ecosystem.release("lib", "1.0.0"), File(small_wheel("one"))]) as running:
        yield running


@pytest.fixture
def registry() -> Iterator[RegistryInThread]:
    with RegistryInThread(PushRegistry()) as running:
        hold_base(running.held, make_base())
        yield running


def configure(user: User, text: str) -> Path:
    """The user's file."""
    path = user.folder / "home" / ".config" / "envspec" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("where", ["option", "variable", "file"])
def test_a_mirror_is_named_once(tmp_path: Path, index: IndexServer, registry: RegistryInThread, where: str) -> None:
    """For `lock`, which looks up a base by its tag, and for the image of that lock."""
    user = User(tmp_path, index.url, NO_PROXY="127.0.0.1")
    user.wants("one", as_of="2026-06-01T00:00:00Z", rest=IMAGE)
    mirror = f"docker.io={registry.host}"
    words = ["--mirror", mirror] if where == "option" else []
    if where == "variable":
        user.environ["ENVSPEC_REGISTRY_MIRRORS"] = mirror
    if where == "file":
        configure(user, f'[registry.mirrors]\n"docker.io" = "{registry.host}"\n')
    ran = user.locks(*words)
    assert ran.status == 0 and "without its digest" not in ran.stderr, ran
    [pinned] = user.document()["base_image"]["digests"]
    assert (pinned["digest"], pinned["source"]) == (make_base().digest, "registry")
    assert user.runs("image", "id", user.lock, *words).status == 0


def test_an_option_goes_before_a_variable_and_this_before_the_file(tmp_path: Path, index: IndexServer) -> None:
    user = User(tmp_path, index.url)
    configure(user, 'offline = true\ndefault_index = "http://127.0.0.1:9/"\n')
    user.wants("lib", as_of="2026-06-01T00:00:00Z")
    assert "not in the cache" in refused(user.locks(), 5)
    assert user.locks(ENVSPEC_OFFLINE="0").status == 0, "the variables name another index, too"


def test_verify_sends_nothing_if_the_settings_forbid_the_network(tmp_path: Path, index: IndexServer) -> None:
    user = User(tmp_path, index.url)
    user.wants("lib", as_of="2026-06-01T00:00:00Z")
    user.locked()
    index.forget()
    assert "ENVSPEC_OFFLINE" in refused(user.locks("--verify", ENVSPEC_OFFLINE="1"), 2)
    assert index.requests == []


def test_a_base_that_no_registry_gives_is_named_with_the_reason(tmp_path: Path, index: IndexServer) -> None:
    user = User(tmp_path, index.url)
    user.wants("lib", as_of="2026-06-01T00:00:00Z", rest=IMAGE.replace("docker.io/", ""))
    [warning] = user.locks().warnings
    assert "the proxy can't be reached" in warning and "Lock again where docker.io can be reached" in warning


def test_config_prints_what_applies_and_where_it_comes_from(tmp_path: Path) -> None:
    user = User(tmp_path, "https://jane:s3cret@index.example/simple/", ENVSPEC_JOBS="3")
    path = configure(
        user,
        'offline = true\njobs = 8\n[registry.mirrors]\n"docker.io" = "registry.corp:5000"\n[http]\nstall_s = 7.5\n',
    )
    ran = user.runs("config", "--format", "json")
    assert ran.status == 0, ran
    document = json.loads(ran.stdout)
    found = {row["key"]: (row["value"], row["source"]) for row in document["settings"]}
    assert document["file"] == str(path) and document["exists"] is True
    assert found["jobs"] == ("3", "ENVSPEC_JOBS")
    assert found["offline"] == ("true", f"{path}:1")
    assert found["registry.mirrors"] == ("docker.io=registry.corp:5000", f"{path}:3")
    assert found["http.stall_s"] == ("7.5", f"{path}:6")
    assert found["http.connect_s"] == ("15", "default")
    assert found["cache_dir"] == (str(user.cache), "ENVSPEC_CACHE_DIR")
    text = user.runs("config").stdout
    assert "s3cret" not in ran.stdout + text
    assert "jobs" in text and str(path) in text


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("jobs = 8\njobz = 3\n", ":2: unknown key jobz", "write jobs"),
        ("[http]\nstall = 3\n", ":2: unknown key http.stall", "write http.stall_s"),
        ("jobs = 0\n", ":1: jobs is not a positive integer", "correct the value"),
        ('# ours\noffline = "yes"\n', ":2: offline is not true or false", "correct the value"),
        ('cache_dir = "cache"\n', ":1: cache_dir is not an absolute path", "correct the value"),
        ('[registry.mirrors]\n"docker.io" = "jane:s3cret@corp"\n', ":1: registry.mirrors: ", "docker login"),
        ("jobs = \n", ":1: not a TOML document", "correct the file"),
    ],
)
def test_a_wrong_file_is_one_error_with_its_line(tmp_path: Path, text: str, message: str, hint: str) -> None:
    user = User(tmp_path, "http://127.0.0.1:9/")
    path = configure(user, text)
    user.wants("lib", as_of="2026-06-01T00:00:00Z")
    for ran in (user.runs("config"), user.locks()):
        error = refused(ran, 2)
        assert f"{path}{message}" in error and hint in error and "s3cret" not in error
