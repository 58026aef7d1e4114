"""What an image says and holds beside its packages: from the lock alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.image.config import RunConfig
from envspec.image.layers.types import Entry, EntryKind, InMemory
from envspec.image.services import ServicesSource, has_pip, services_config, workdir_path
from envspec.models import ImageSettings, Python, Service
from envspec.structs import replace
from tests.support.builders import locks
from tests.support.builders.entries import rows_of
from tests.support.builders.environments import pin
from tests.support.builders.wheels import wheel

SERVED = ImageSettings(
    services=(Service("jupyter", 8888), Service("tensorboard", 6006, "runs"), Service("ssh", 2222)),
)


NAMED = {"LOGNAME": "envspec", "PYTHONNOUSERSITE": "1", "USER": "envspec"}


def _by_path(settings: ImageSettings, path: str = "", *, pip: bool = True) -> dict[str, Entry]:
    entries = list(ServicesSource(settings, path, pip).entries())
    assert rows_of(entries), "each path once, after its folder"
    return {entry.path: entry for entry in entries}


def test_services_are_started_by_init_as_their_user_and_checked() -> None:
    assert services_config(ImageSettings()) == RunConfig(env=tuple(NAMED.items()))
    started = services_config(ImageSettings(entrypoint=("python",), command=("serve.py",)))
    assert (started.entrypoint, started.command) == (("python",), ("serve.py",))
    assert services_config(replace(SERVED, command=("train",))).command == ("train",)
    conduct = services_config(SERVED)
    user = {"HOME": "/home/envspec", "SHELL": "/bin/bash"}
    assert (conduct.user, dict(conduct.env)) == ("1000:1000", user | NAMED)
    assert conduct.entrypoint == ("/opt/env/bin/python", "-I", "-S", "/opt/envspec/init.py")
    assert conduct.ports == ("2222/tcp", "6006/tcp", "8888/tcp")
    assert conduct.healthcheck is not None
    assert conduct.healthcheck["Test"] == ["CMD", "/opt/env/bin/python", "-I", "-S", "/opt/envspec/health.py"]
    # Times are nanoseconds in images; less than a millisecond is refused by engines.
    assert all(conduct.healthcheck[key] > 1_000_000 for key in ("Interval", "Timeout", "StartPeriod"))


@pytest.mark.parametrize("name", ["JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE"])
def test_a_token_in_the_image_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} would be the same in every container"):
        services_config(replace(SERVED, env=((name, "0123456789abcdef" * 4),)))


def test_what_the_user_writes_to_is_the_users_and_the_rest_is_roots() -> None:
    entries = _by_path(SERVED)
    own = {path for path, entry in entries.items() if (entry.uid, entry.gid) == (1000, 1000)}
    assert own == {"home/envspec", "workspace", "var/lib/envspec"}
    assert entries["var/lib/envspec"].mode == 0o700
    assert {entry.mode for entry in entries.values() if entry.kind is EntryKind.FILE} == {0o644}


def test_init_is_told_of_the_services_and_no_secret_is_in_the_image() -> None:
    data = _by_path(SERVED)["opt/envspec/services.json"].data
    assert isinstance(data, InMemory)
    document = json.loads(data.content)
    assert document["services"] == [
        {"name": "jupyter", "port": 8888},
        {"name": "tensorboard", "port": 6006, "logdir": "runs"},
        {"name": "ssh", "port": 2222},
    ]
    assert (document["uid"], document["workdir"]) == (1000, "/workspace")
    assert not [path for path in _by_path(SERVED) if "host" in path or "token" in path]


def test_without_services_there_is_no_init_and_no_user() -> None:
    entries = _by_path(ImageSettings())
    folders = [".cache", ".config", ".local", ".triton", "home/envspec"]
    assert sorted(entries) == [
        *folders[:4],
        "etc",
        "etc/profile.d",
        "etc/profile.d/envspec.sh",
        "home",
        *folders[4:],
        "workspace",
    ]
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert [path for path, entry in entries.items() if entry.mode == 0o1777] == folders


def test_an_environment_without_pip_gets_a_program_of_that_name() -> None:
    programs = {path: entry.mode for path, entry in _by_path(ImageSettings(), pip=False).items() if "bin/" in path}
    assert programs == {"opt/env/bin/pip": 0o755, "opt/env/bin/pip3": 0o755}
    lock = locks.example()
    part = lock.resolutions[0]
    assert has_pip(part)
    of_base = replace(part, target=replace(part.target, python=Python("3.11.2", "base")))
    assert not has_pip(of_base)
    assert has_pip(replace(of_base, packages=(*of_base.packages, pin(wheel("pip", "25.0")))))


@pytest.mark.parametrize(
    ("path", "after"),
    [
        ("/usr/bin:/bin", "/opt/env/bin:/usr/local/cuda/bin:/usr/bin:/bin:/usr/bin:/bin"),
        (
            "/mine:/opt/env/bin:/usr/local/cuda/bin:/usr/bin:/bin",
            "/mine:/opt/env/bin:/usr/local/cuda/bin:/usr/bin:/bin",
        ),
    ],
)
def test_a_login_shell_has_the_images_path(path: str, after: str, tmp_path: Path) -> None:
    entries = _by_path(ImageSettings(), "/opt/env/bin:/usr/local/cuda/bin:/usr/bin:/bin")
    names, contents = ("opt/envspec/path", "etc/profile.d/envspec.sh"), []
    for name in names:
        data = entries[name].data
        assert isinstance(data, InMemory)
        contents.append(data.content.decode())
    (tmp_path / "path").write_text(contents[0])
    script = contents[1].replace("/opt/envspec/path", str(tmp_path / "path"))
    shell = ["/bin/sh", "-c", f'PATH="{path}"\n{script}\necho "$PATH"']
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == f"{after}\n"


def test_the_key_follows_from_what_is_in_the_layer() -> None:
    same = ServicesSource(ImageSettings(services=SERVED.services))
    other = ServicesSource(replace(SERVED, services=(Service("jupyter", 8889),)))
    assert ServicesSource(SERVED).key == same.key
    assert other.key != same.key
    assert len(same.key) == 64


@pytest.mark.parametrize(
    ("workdir", "folder"),
    [
        ("/workspace", "workspace"),
        ("/data/project", "data/project"),
        ("/", None),
        ("/tmp", None),
        ("/usr/local", None),
        ("/opt/env", None),
    ],
)
def test_a_folder_of_the_system_is_left_as_it_is(workdir: str, folder: str | None) -> None:
    assert workdir_path(workdir) == folder


def test_a_folder_below_the_systems_keeps_their_modes() -> None:
    entries = _by_path(replace(SERVED, workdir="/tmp/work"))
    assert entries["tmp"].mode == 0o1777
    assert entries["tmp/work"].uid == 1000


@pytest.mark.parametrize(
    ("workdir", "why"),
    [
        ("/lib/work", "a link in the base image"),
        ("/bin", "a link in the base image"),
        ("/var/run/x", "a link in the base image"),
        ("work", "not an absolute path"),
        ("/work/../etc", "not an absolute path"),
    ],
)
def test_a_working_folder_that_is_refused(workdir: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        services_config(ImageSettings(workdir=workdir))
