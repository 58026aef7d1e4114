"""`envspec install` of a lock with a conda half: from `file://` and over http, with wheels on top."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

from envspec.diagnostics.machine import this_platform
from envspec.models import CondaPackage
from tests.conftest import Serve
from tests.support.builders import conda_packages
from tests.support.builders.conda_archive import CondaArchive, Program, archive, impostor
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.environments import (
    SERIES,
    conda_row,
    installs,
    left_beside,
    make_lock,
    names_of_site,
    pin,
    pip_check,
    run_in,
    tree,
    write_lock,
    wrong_rows,
)
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Body, Drop, Fault, Stall, Status, Truncate
from tests.support.servers.index import IndexServer
from tests.support.user import SHORT_TIMEOUTS, User, refused, succeeded

pytestmark = pytest.mark.skipif(not this_platform().is_linux, reason="the test channel's programs are Linux's")

NAMES: Final = ("tzdata", "python_abi", "python", "greet", "pathwise", "libpathwise")


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge())


@pytest.fixture
def index(serve: Serve) -> IndexServer:
    return serve([File(TOOL)])


TOOL: Final = wheel(
    "tool",
    "1.0",
    requires=["numpy>=2"],
    files={
        "tool/__init__.py": b"import numpy\ndef main():\n    print('tool with numpy', numpy.__version__)\n",
        "tool-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntool = tool:main\n",
    },
)


def found(channel: CondaChannel, *names: str) -> list[CondaArchive]:
    """The archives of these names for this machine; a version may stand after `=`."""
    here = this_platform().value
    archives = []
    for each in names:
        name, _, version = each.partition("=")
        held = [one for one in channel.archives if one.name == name and version in ("", one.version)]
        archives.append(next(one for one in held if one.subdir in (here, "noarch")))
    return archives


def rows(channel: CondaChannel, address: str, *names: str) -> list[CondaPackage]:
    return [conda_row(one, address) for one in found(channel, *names)]


def locks(user: User, conda: list[CondaPackage], **others: object) -> Path:
    return write_lock(user.folder / "lock", make_lock(conda=conda, **others))  # type: ignore[arg-type]


@pytest.fixture
def lock(user: User, channel: CondaChannel, server: CondaServer) -> Path:
    """A lock of the channel over http."""
    return locks(user, rows(channel, server.channel_url("forge"), *NAMES))


def nothing_is_left(user: User) -> bool:
    return not (user.folder / "env").exists() and left_beside(user.folder / "env") == []


@pytest.mark.parametrize("way", ["file", "http"])
def test_it_runs_and_names_its_own_folder(user: User, channel: CondaChannel, server: CondaServer, way: str) -> None:
    address = channel.url if way == "file" else server.channel_url("forge")
    ran = installs(user, locks(user, rows(channel, address, *NAMES)))
    prefix = user.folder / "env"
    assert (ran.status, ran.stdout) == (0, f"{prefix}\n"), ran.stderr
    assert run_in(prefix, "greet") == "greet 1.0"
    assert (prefix / "bin/greet").read_text().startswith(f"#!{prefix}/bin/python{SERIES}\n")
    assert run_in(prefix, "pathwise") == str(prefix)
    assert (prefix / "etc/pathwise.conf").read_text() == f"root = {prefix}\nshare = {prefix}/share\n"
    assert f"{prefix}/share/pathwise\0".encode() in (prefix / "lib/libpathwise.so").read_bytes()
    assert names_of_site(prefix) == [] and left_beside(prefix) == []
    meta = json.loads((prefix / "conda-meta/greet-1.0-pyhd8ed1ab_0.json").read_text())
    assert meta["url"] == f"{address}/noarch/greet-1.0-pyhd8ed1ab_0.conda" and meta["channel"] == address
    # Each is fetched once, by envspec: rattler would fetch what it is not given, and check nothing of it on `file://`.
    paths = sorted(server.path(held) for held in found(channel, *NAMES))
    assert sorted(request.path for request in server.requests) == (paths if way == "http" else [])


def test_wheels_on_top_leave_condas_files_alone(user: User, channel: CondaChannel, index: IndexServer) -> None:
    conda = rows(channel, channel.url, *NAMES, "numpy=2.2.6")
    assert installs(user, locks(user, conda), prefix="alone").status == 0
    lock = write_lock(user.folder / "both", make_lock(conda=conda, wheels=[pin(TOOL)]))
    succeeded(installs(user, lock))
    prefix = user.folder / "env"
    assert run_in(prefix, "tool") == "tool with numpy 2.2.6"
    done = pip_check(prefix, user.environ)
    assert done.returncode == 0, done.stderr
    before, after = tree(user.folder / "alone"), tree(prefix)
    # What names the folder differs between the two; nothing of numpy's does.
    numpy = {name: digest for name, digest in before.items() if "/numpy" in name}
    assert len(numpy) >= 5 and {name: after[name] for name in numpy} == numpy
    assert names_of_site(prefix) == [] and wrong_rows(prefix) == []
    assert owners_of_files(prefix) == []


def owners_of_files(prefix: Path) -> list[str]:
    """Files that conda-meta and a wheel both claim, or two wheels do."""
    conda = {
        name
        for path in (prefix / "conda-meta").glob("*.json")
        for name in json.loads(path.read_text(encoding="utf-8"))["files"]
    }
    wheels: list[str] = []
    for record in prefix.rglob("*.dist-info/RECORD"):
        if (record.parent / "INSTALLER").read_text().strip() == "uv":
            for line in record.read_text().splitlines():
                path = (record.parent.parent / line.split(",")[0]).resolve()
                wheels.append(str(path.relative_to(prefix)))
    return sorted({name for name in wheels if name in conda or wheels.count(name) > 1})


def test_a_wheel_with_a_file_of_condas(user: User, channel: CondaChannel, serve: Serve) -> None:
    greedy = wheel("greedy", "1.0", files={"numpy/__init__.py": b"raise ImportError\n"})
    index = serve([File(greedy)])
    lock = locks(user, rows(channel, channel.url, *NAMES, "numpy=2.2.6"), wheels=[pin(greedy)])
    message = refused(installs(user, lock, ENVSPEC_DEFAULT_INDEX=index.url), 4)
    assert f"lib/python{SERIES}/site-packages/numpy/__init__.py belongs to conda's numpy 2.2.6" in message
    assert "the wheel greedy 1.0" in message and nothing_is_left(user)


# What is wrong with archives


@pytest.mark.parametrize("way", ["file", "http"])
def test_a_swapped_archive_is_refused(
    user: User, channel: CondaChannel, server: CondaServer, tmp_path: Path, way: str
) -> None:
    [greet] = found(channel, "greet")
    swapped = impostor(greet)
    assert (swapped.filename, len(swapped.data)) == (greet.filename, len(greet.data))
    if way == "http":
        server.fail(server.path(greet), Body(swapped.data))
        address = server.channel_url("forge")
    else:
        copy = write(tmp_path / "copy", channel.archives)
        copy.path(greet).write_bytes(swapped.data)
        address = copy.url
    message = refused(installs(user, locks(user, rows(channel, address, *NAMES))), 5)
    assert greet.sha256 in message and swapped.sha256 in message and "greet 1.0" in message
    assert nothing_is_left(user)


@pytest.mark.parametrize("fault", [Truncate(700), Drop(700), Status(500), Status(503)], ids=str)
def test_what_passes_is_fetched_again(
    user: User, lock: Path, channel: CondaChannel, server: CondaServer, fault: Fault
) -> None:
    [greet] = found(channel, "greet")
    server.fail(server.path(greet), fault, times=1)
    ran = succeeded(installs(user, lock))
    assert len(ran.warnings) == 1 and "trying again" in ran.warnings[0]
    assert run_in(user.folder / "env", "greet") == "greet 1.0"


@pytest.mark.parametrize(
    ("fault", "words", "asked"),
    [
        (Truncate(700), "has 700 of", 2),
        (Drop(700), "the response ended early", 2),
        (Status(500), "HTTP 500 (the server failed)", 2),
        (Status(404), "HTTP 404 (not found)", 1),
        (Status(401), "HTTP 401 (a login is needed", 1),
        (Stall(), "the server stalled: no byte for 1.5 s", 2),
    ],
    ids=str,
)
def test_what_stays_ends_in_one_message(
    user: User, lock: Path, channel: CondaChannel, server: CondaServer, fault: Fault, words: str, asked: int
) -> None:
    [greet] = found(channel, "greet")
    server.fail(server.path(greet), fault)
    ran = installs(user, lock, **SHORT_TIMEOUTS, ENVSPEC_HTTP_ATTEMPTS="2")
    message = refused(ran, 5)
    assert words in message and greet.filename in message
    assert len(server.requests_for(server.path(greet))) == asked
    assert nothing_is_left(user)


def test_a_server_that_is_down_is_told_once_an_attempt(user: User, channel: CondaChannel) -> None:
    lock = locks(user, rows(channel, "http://127.0.0.1:9/forge", *NAMES))
    ran = installs(user, lock, ENVSPEC_HTTP_ATTEMPTS="3", ENVSPEC_HTTP_BACKOFF_S="0.05")
    assert "http://127.0.0.1:9/forge/" in refused(ran, 5)
    assert len(ran.warnings) == 2 and all("no connection; trying again in" in warning for warning in ran.warnings)


def test_what_was_fetched_stays_for_the_next_run(
    user: User, lock: Path, channel: CondaChannel, server: CondaServer
) -> None:
    [greet] = found(channel, "greet")
    server.fail(server.path(greet), Status(404), times=1)
    refused(installs(user, lock, "--jobs", "1"), 5)
    assert installs(user, lock).status == 0
    assert {*server.fetched_twice()} <= {server.path(greet)}


def test_a_damaged_cache_is_not_installed(user: User, lock: Path, channel: CondaChannel) -> None:
    """An archive that was changed where it is kept, and a file that was changed in an environment that shares it."""
    assert installs(user, lock).status == 0
    [greet] = found(channel, "greet")
    module = f"lib/python{SERIES}/site-packages/greet/__init__.py"
    whole = (user.folder / "env" / module).read_text()
    kept = user.cache / "archives" / greet.sha256 / greet.filename
    kept.write_bytes(impostor(greet).data)
    with (user.folder / "env" / module).open("r+") as file:
        file.write("#" + whole[1:])
    ran = succeeded(installs(user, lock, prefix="second"))
    assert ran.warnings == [f"{kept} is damaged: it is fetched again"]
    assert (user.folder / "second" / module).read_text() == whole


def test_the_same_name_with_other_content_in_another_lock(user: User, channel: CondaChannel, tmp_path: Path) -> None:
    """Two channels may have archives of one name; an environment has its own lock's."""
    base = found(channel, *NAMES[:3])
    one, two = (archive("same", "1.0", {"share/same.txt": text}) for text in (b"one\n", b"two\n"))
    for number, (held, text) in enumerate(((one, "one\n"), (two, "two\n"), (one, "one\n"))):
        made = write(tmp_path / f"channel{number}", [*base, held])
        lock = write_lock(
            tmp_path / f"lock{number}", make_lock(conda=[conda_row(each, made.url) for each in made.archives])
        )
        assert installs(user, lock, prefix=f"env{number}").status == 0
        assert (user.folder / f"env{number}" / "share/same.txt").read_text() == text


def test_offline(user: User, lock: Path, server: CondaServer) -> None:
    assert "offline, and " in refused(installs(user, lock, "--offline"), 5)
    assert server.requests == []
    assert installs(user, lock).status == 0
    asked = len(server.requests)
    assert installs(user, lock, "--offline", prefix="second").status == 0
    assert len(server.requests) == asked


def test_a_file_channel_that_is_gone(user: User, channel: CondaChannel, tmp_path: Path) -> None:
    lock = locks(user, rows(channel, (tmp_path / "gone").as_uri(), *NAMES))
    assert "No such file or directory" in refused(installs(user, lock), 5)


def test_credentials_are_rattlers_own(user: User, channel: CondaChannel, tmp_path: Path) -> None:
    with CondaServer({"forge": channel}, credentials=("me", "secret")) as server:
        lock = locks(user, rows(channel, server.channel_url("forge"), *NAMES))
        assert "HTTP 401" in refused(installs(user, lock), 5)
        store = tmp_path / "credentials.json"
        host = server.root.removeprefix("http://").partition(":")[0]
        store.write_text(json.dumps({host: {"BasicHTTP": {"username": "me", "password": "secret"}}}))
        succeeded(installs(user, lock, RATTLER_AUTH_FILE=str(store)))
    record = (user.folder / "env/conda-meta/greet-1.0-pyhd8ed1ab_0.json").read_text()
    assert "secret" not in record


# What `envspec lock` writes


def test_a_spec_with_both_halves_is_locked_and_installed(user: User, channel: CondaChannel) -> None:
    user.writes(
        f'[env]\nname = "small"\npython = "{SERIES}"\nplatforms = ["{this_platform().value}"]\n'
        f"as_of = 2026-06-01T00:00:00Z\n[conda]\nchannels = ['{channel.url}']\n"
        'dependencies = ["greet", "numpy"]\n[pip]\ndependencies = ["tool"]\n'
    )
    locked = user.locks()
    assert locked.status == 0, locked.stderr
    succeeded(installs(user, user.lock))
    prefix = user.folder / "env"
    assert (run_in(prefix, "greet"), run_in(prefix, "tool")) == ("greet 1.0", "tool with numpy 2.3.4")
    assert pip_check(prefix, user.environ).returncode == 0
    assert owners_of_files(prefix) == []


# This machine


def test_a_row_for_a_newer_glibc_is_told_before_anything_is_fetched(
    user: User, channel: CondaChannel, server: CondaServer
) -> None:
    [late] = found(channel, "modernlib")
    row = conda_row(late, server.channel_url("forge"), depends=("__glibc >=2.99", "__cuda >=12"))
    lock = locks(user, [*rows(channel, server.channel_url("forge"), *NAMES), row])
    message = refused(installs(user, lock), 6)
    assert f"{late.name} {late.version} needs __glibc >=2.99, it has 2." in message and "__cuda" not in message
    assert server.requests == [] and nothing_is_left(user)


def test_what_can_not_be_is_told_before_anything_is_fetched(user: User, lock: Path, server: CondaServer) -> None:
    assert "the Python of small is conda's" in refused(installs(user, lock, "--python", sys.executable), 2)
    message = refused(installs(user, lock, prefix="/".join(["x" * 100] * 3)), 2)
    assert "conda packages have room for 254" in message and server.requests == []


def test_link_scripts_are_not_run(user: User, channel: CondaChannel, tmp_path: Path) -> None:
    script = Program(b'#!/bin/sh\ntouch "$PREFIX/ran"\n')
    held = archive("scripted", "1.0", {"bin/.scripted-post-link.sh": script, "share/scripted.txt": b"1"})
    made = write(tmp_path / "made", [*found(channel, *NAMES[:3]), held])
    lock = locks(user, [conda_row(each, made.url) for each in made.archives])
    assert installs(user, lock).status == 0
    assert (user.folder / "env/share/scripted.txt").exists() and not (user.folder / "env/ran").exists()
