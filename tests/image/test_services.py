"""What an image says and holds beside its packages: from the lock alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from envspec.errors import UsageError
from envspec.image.config import RunConfig
from envspec.image.layers.types import Entry, EntryKind, InMemory
from envspec.image.services import ServicesSource, services_config, workdir_path
from envspec.models import ImageSettings, Service
from tests.support.builders.entries import rows_of

SERVED = ImageSettings(
    services=(Service("jupyter", 8888), Service("tensorboard", 6006, "runs"), Service("ssh", 2222)),
)


def _by_path(settings: ImageSettings) -> dict[str, Entry]:
    entries = list(ServicesSource(settings).entries())
    assert rows_of(entries), "each path once, after its folder"
    return {entry.path: entry for entry in entries}


def test_services_are_started_by_init_as_their_user_and_checked() -> None:
    assert services_config(ImageSettings()) == RunConfig()
    conduct = services_config(SERVED)
    user = {"HOME": "/home/envspec", "LOGNAME": "envspec", "SHELL": "/bin/bash", "USER": "envspec"}
    assert (conduct.user, dict(conduct.env)) == ("1000:1000", user)
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
    assert sorted(entries) == ["etc", "etc/profile.d", "etc/profile.d/envspec.sh", "workspace"]
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}


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
