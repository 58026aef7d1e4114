"""Conda channels on disk and over HTTP: what is solved from them, and what is said of channels that fail."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec.context import Connectivity, Context
from envspec.errors import EnvspecError, NetworkError, NoSolution, UsageError
from envspec.models import ChannelPart, CondaPackage, CudaVersion, Dependent, Platform
from envspec.resolve.conda.channels import repodata_sha256
from envspec.resolve.conda.solve import CondaSolution, solve_all
from envspec.resolve.conda.solver import Rattler
from envspec.resolve.types import Channel, CondaRequest
from tests.support.builders.conda_channel import AS_OF, BUILT, Row, files_of, request, row, write_channel
from tests.support.servers.loopback import RESET, Answer, Asked, RawServer, reply

ROWS = [
    row("python", "3.13.1", depends=["libc"]),
    row("python", "3.14.0", depends=["libc"]),
    row("python", "3.13.1", subdir="linux-aarch64"),
    row("libc", "2", build_number=3, constrains=["other <1"], more={"license": "MIT", "license_family": "OTHER"}),
    row("tool", "1.0", "pyh_0", subdir="noarch", depends=["python >=3.10"]),
    row("tool", "2.0", "pyh_0", subdir="noarch", depends=["python >=3.14"]),
]
QUICK = {"ENVSPEC_HTTP_ATTEMPTS": "1", "ENVSPEC_HTTP_TOTAL_S": "2"}


def on_disk(folder: Path, rows: Sequence[Row] = ROWS, name: str = "forge") -> Channel:
    url = write_channel(folder / name, rows).as_uri()
    return Channel(name, url, url)


def solve(*asked: CondaRequest, cache: Path, offline: bool = False) -> tuple[CondaSolution, ...]:
    return asyncio.run(solved(*asked, cache=cache, offline=offline))


async def solved(*asked: CondaRequest, cache: Path, offline: bool = False) -> tuple[CondaSolution, ...]:
    connectivity = Connectivity.OFFLINE if offline else Connectivity.ONLINE
    return await solve_all(asked, Rattler(), Context(QUICK, cache, cache, connectivity))


def one(asked: CondaRequest, cache: Path) -> dict[str, CondaPackage]:
    return {package.name: package for package in solve(asked, cache=cache)[0].packages}


def pins(answer: CondaSolution) -> list[str]:
    return [f"{package.name} {package.version}" for package in answer.packages]


def test_rows_come_whole_and_sorted_with_who_asked_and_what_was_refused(tmp_path: Path) -> None:
    channel = on_disk(tmp_path)
    asked = request("python 3.13.*", "tool", channels=[channel])
    (answer,) = solve(asked, cache=tmp_path / "cache")
    libc, python, tool = answer.packages
    assert libc == CondaPackage(
        name="libc",
        version="2",
        build="0",
        build_number=3,
        channel="forge",
        subdir="linux-64",
        filename="libc-2-0.conda",
        url=f"{channel.url}/linux-64/libc-2-0.conda",
        sha256=str(ROWS[3].fields()["sha256"]),
        md5=str(ROWS[3].fields()["md5"]),
        size_bytes=1014,
        timestamp_ms=int(BUILT.timestamp() * 1000),
        constrains=("other <1",),
        license="MIT",
        license_family="OTHER",
        required_by=(Dependent("python", "libc"),),
    )
    assert python.required_by == (Dependent("spec", "python 3.13.*"), Dependent("tool", "python >=3.10"))
    assert python.rejected is not None
    assert (python.rejected.version, python.rejected.why) == ("3.14.0", "the spec requires python 3.13.*")
    assert (tool.noarch, tool.subdir, tool.required_by) == ("python", "noarch", (Dependent("spec", "tool"),))
    assert tool.rejected is not None
    assert (tool.rejected.version, tool.rejected.why) == ("2.0", "it needs python >=3.14, and python is 3.13.1")


def test_platforms_are_solved_together_and_each_for_itself(tmp_path: Path) -> None:
    asked = request("python 3.13.*", channels=[on_disk(tmp_path)])
    x86, arm = solve(asked, replace(asked, platform=Platform.LINUX_AARCH64), cache=tmp_path / "cache")
    assert pins(x86) == ["libc 2", "python 3.13.1"]
    assert pins(arm) == ["python 3.13.1"]


def test_a_subdir_may_be_absent_where_noarch_is_there(tmp_path: Path) -> None:
    channel = on_disk(tmp_path, [row("tool", "1.0", subdir="noarch")])
    asked = request("tool", channels=[channel], platform=Platform.OSX_ARM64)
    assert list(one(asked, tmp_path / "cache")) == ["tool"]


def test_the_first_channel_that_has_a_name_is_the_only_one_for_it(tmp_path: Path) -> None:
    first = on_disk(tmp_path, [row("a", "1", depends=["b"])], "first")
    second = on_disk(tmp_path, [row("a", "2"), row("b", "1")], "second")
    found = one(request("a", channels=[first, second]), tmp_path / "cache")
    assert [(p.name, p.version, p.channel, p.rejected) for p in found.values()] == [
        ("a", "1", "first", None),
        ("b", "1", "second", None),
    ]


def test_a_channel_that_a_requirement_names_goes_before(tmp_path: Path) -> None:
    first = on_disk(tmp_path, [row("a", "1"), row("b", "1")], "first")
    second = on_disk(tmp_path, [row("a", "2"), row("a", "3"), row("b", "2")], "second")
    asked = request(f"{second.url}::a <3", "b", channels=[first, second])
    found = one(asked, tmp_path / "cache")
    assert [(p.version, p.channel, p.rejected.version if p.rejected else None) for p in found.values()] == [
        ("2", "second", "3"),
        ("1", "first", None),
    ]
    again = one(replace(asked, locked=tuple(found.values())), tmp_path / "cache")
    assert again == found


def test_a_requirement_that_only_a_later_channel_meets(tmp_path: Path) -> None:
    """The first channel has the name, so the second one's rows of it don't count, whoever asks."""
    first = on_disk(tmp_path, [row("a", "1"), row("c", "1", depends=["b >=2"]), row("b", "1")], "first")
    second = on_disk(tmp_path, [row("a", "2"), row("b", "2")], "second")
    with pytest.raises(NoSolution) as raised:
        solve(request("a >=2", channels=[first, second]), cache=tmp_path / "cache")
    assert raised.value.message == (
        "no solution for conda's packages on linux-64: a >=2 (conda.dependencies) fits a 2 (0) of second, "
        "but a name belongs to the first channel that has it: first, whose newest a is 1"
    )
    with pytest.raises(NoSolution):
        solve(request("c", channels=[first, second]), cache=tmp_path / "cache")


def test_the_same_on_every_hash_seed(tmp_path: Path) -> None:
    on_disk(tmp_path, [*ROWS, row("x", "1", depends=["y", "z"]), row("y", "1"), row("y", "1", "1"), row("z", "1")])
    code = (
        "import sys, pathlib; from tests.resolve.conda.test_solve import *;"
        "at = pathlib.Path(sys.argv[1]); url = (at / 'forge').as_uri();"
        "print(solve(request('python 3.13.*', 'tool', 'x', channels=[Channel('f', url, url)]), cache=at / 'c'))"
    )
    found_text = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found_text[0] == found_text[1]
    assert "CondaPackage" in found_text[0]


# --- moments


LATER = BUILT + timedelta(days=30)
MOVING = [
    row("a", "1", depends=["b"]),
    row("a", "2", depends=["b"], built=LATER),
    row("b", "1"),
    row("b", "2", built=LATER),
]


def test_nothing_later_than_as_of_is_considered(tmp_path: Path) -> None:
    asked = request("a", channels=[on_disk(tmp_path, MOVING)], as_of=BUILT)
    found = one(asked, tmp_path / "cache")
    assert [(p.version, p.rejected) for p in found.values()] == [("1", None), ("1", None)]


@pytest.mark.parametrize(
    ("as_of", "cutoffs", "expected"),
    [(BUILT, {"a": LATER}, ["a 2", "b 1"]), (LATER, {"a": BUILT}, ["a 1", "b 2"])],
    ids=["later", "earlier"],
)
def test_a_name_may_have_a_moment_of_its_own(
    as_of: datetime, cutoffs: Mapping[str, datetime], expected: list[str], tmp_path: Path
) -> None:
    channel = on_disk(tmp_path, MOVING)
    (answer,) = solve(request("a", channels=[channel], as_of=as_of, cutoffs=cutoffs), cache=tmp_path / "cache")
    assert pins(answer) == expected
    package = answer.packages[0]
    as_it_is = next(each for each in MOVING if each.filename == package.filename)
    assert package.url == f"{channel.url}/linux-64/{package.filename}"
    assert package.timestamp_ms == as_it_is.fields()["timestamp"]
    assert package.channel == "forge"


def test_rows_without_a_date_are_taken_where_the_spec_says_so(tmp_path: Path) -> None:
    asked = request("a", channels=[on_disk(tmp_path, [row("a", "1", built=None)])])
    with pytest.raises(NoSolution, match="has no build time"):
        solve(asked, cache=tmp_path / "cache")
    assert one(replace(asked, undated=True), tmp_path / "cache")["a"].timestamp_ms is None


def test_locked_rows_stay_and_what_the_channel_lost_goes(tmp_path: Path) -> None:
    channel = on_disk(tmp_path, MOVING)
    old = solve(request("a", channels=[channel], as_of=BUILT), cache=tmp_path / "cache")[0].packages
    (kept,) = solve(request("a", channels=[channel], locked=old), cache=tmp_path / "cache")
    assert pins(kept) == ["a 1", "b 1"]
    (moved,) = solve(request("a", channels=[channel], locked=old[1:]), cache=tmp_path / "cache")
    assert pins(moved) == ["a 2", "b 1"]
    other = on_disk(tmp_path, MOVING[1:2] + MOVING[3:], "shrunk")
    (lost,) = solve(request("a", channels=[other], locked=old), cache=tmp_path / "cache")
    assert pins(lost) == ["a 2", "b 2"]


# --- a folder of rows in a channel's stead


def test_a_folder_of_rows_stands_for_a_channel(tmp_path: Path) -> None:
    folder = write_channel(tmp_path / "part", ROWS)
    url = "https://conda.example.org/forge"
    channel = Channel("forge", url, "https://user:secret@conda.example.org/forge", folder)
    (answer,) = solve(request("python 3.13.*", channels=[channel]), cache=tmp_path / "cache")
    assert [package.url for package in answer.packages] == [
        f"{url}/linux-64/libc-2-0.conda",
        f"{url}/linux-64/python-3.13.1-0.conda",
    ]
    assert {package.channel for package in answer.packages} == {"forge"}
    assert answer.channels[0].part == ChannelPart(6, repodata_sha256(folder))
    lines = subprocess.run(
        "sha256sum */repodata.json | sha256sum",
        shell=True,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        check=True,
    )
    assert lines.stdout.split()[0].decode() == repodata_sha256(folder)


@pytest.mark.parametrize(
    ("files", "said"),
    [({}, "has no <subdir>/repodata.json"), ({"linux-64/repodata.json": b"{oops"}, "not a repodata.json")],
    ids=["empty", "broken"],
)
def test_a_folder_that_holds_no_rows_is_the_users_mistake(files: dict[str, bytes], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    folder.mkdir()
    for path, data in files.items():
        (folder / path).parent.mkdir()
        (folder / path).write_bytes(data)
    channel = Channel("forge", "https://conda.example.org/forge", "https://conda.example.org/forge", folder)
    with pytest.raises(UsageError, match=said):
        solve(request("python 3.13.*", channels=[channel]), cache=tmp_path / "cache")


# --- CUDA

TORCH = [
    row("torch", "2.8.0", "cuda129_0", depends=["__cuda", "cuda-version >=12.9,<13", "libtorch 2.8.0 cuda129_0"]),
    row("torch", "2.8.0", "cpu_0", depends=["libtorch 2.8.0 cpu_0"], build_number=1),
    row("libtorch", "2.8.0", "cuda129_0", depends=["cuda-version >=12.9,<13"]),
    row("libtorch", "2.8.0", "cpu_0", build_number=1),
    row("torch", "2.8.0", "cpu_0", subdir="linux-aarch64"),
    row("cuda-version", "12.9", subdir="noarch", constrains=["__cuda >=12"]),
    row("cuda-version", "13.0", subdir="noarch", constrains=["__cuda >=13"]),
    row("models", "1", subdir="noarch", depends=["torch >=2"]),
]


def test_a_dependency_comes_as_a_cuda_build_too(tmp_path: Path) -> None:
    channel = on_disk(tmp_path, TORCH)
    found = one(request("models", channels=[channel], cuda=CudaVersion(12, 9)), tmp_path / "cache")
    assert (found["torch"].build, found["libtorch"].build) == ("cuda129_0", "cuda129_0")
    without = one(request("models", channels=[channel]), tmp_path / "cache")
    assert (without["torch"].build, without["libtorch"].build) == ("cpu_0", "cpu_0")


def test_a_build_for_the_cpu_that_the_spec_names_is_meant(tmp_path: Path) -> None:
    asked = request("torch * cpu*", channels=[on_disk(tmp_path, TORCH)], cuda=CudaVersion(12, 9))
    assert one(asked, tmp_path / "cache")["libtorch"].build == "cpu_0"


def test_cuda_builds_after_as_of_do_not_count(tmp_path: Path) -> None:
    rows = [replace(each, built=LATER) if "cuda129" in each.build else each for each in TORCH]
    asked = request("models", channels=[on_disk(tmp_path, rows)], cuda=CudaVersion(12, 9), as_of=BUILT)
    assert one(asked, tmp_path / "cache")["torch"].build == "cpu_0"


def test_a_package_that_gave_up_its_cuda_builds_stays_new(tmp_path: Path) -> None:
    rows = [row("ucx", "1.8", "cuda112_0"), row("ucx", "1.8", "cpu_0"), row("ucx", "1.17", "h1_0")]
    asked = request("ucx", channels=[on_disk(tmp_path, rows)], cuda=CudaVersion(12, 9))
    assert one(asked, tmp_path / "cache")["ucx"].version == "1.17"


# --- over HTTP


def http(
    answer: Callable[[Asked], Answer], asked: Callable[[str], CondaRequest], cache: Path, times: int = 1
) -> tuple[list[tuple[CondaSolution, ...]], list[Asked], str]:
    """What came of solving over a server, what it was asked, and its address."""

    async def run() -> tuple[list[tuple[CondaSolution, ...]], list[Asked], str]:
        async with RawServer(answer) as server:
            try:
                found = [await solved(asked(server.host), cache=cache) for _ in range(times)]
            except EnvspecError as error:
                error.args = (server.url,)
                raise
            return found, server.asked, server.url

    return asyncio.run(run())


def honest(asked: Asked) -> Answer:
    files = files_of(ROWS)
    found = next((data for path, data in files.items() if asked.path.endswith(path)), None)
    return reply(404) if found is None else reply(200, found)


def at(host: str, *, login: str = "", path: str = "/forge") -> CondaRequest:
    channel = Channel("corp", f"http://{host}/forge", f"http://{login}{host}{path}")
    return request("python 3.13.*", channels=[channel])


def test_http_gives_the_same_rows_as_the_disk(tmp_path: Path) -> None:
    (found,), _, url = http(honest, at, tmp_path / "cache")
    channel = on_disk(tmp_path)
    disk = solve(request("python 3.13.*", channels=[channel]), cache=tmp_path / "cache")
    moved = [replace(p, channel="corp", url=p.url.replace(channel.url, f"{url}/forge")) for p in disk[0].packages]
    assert list(found[0].packages) == moved


def test_offline_solves_from_the_cache(tmp_path: Path) -> None:
    (found,), _, url = http(honest, at, tmp_path / "cache")
    again = solve(at(url.removeprefix("http://")), cache=tmp_path / "cache", offline=True)
    assert again == found


def test_offline_without_a_cache_says_so(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"^http://127.0.0.1:9/forge: not in the cache, and nothing is fetched"):
        solve(at("127.0.0.1:9"), cache=tmp_path / "cache", offline=True)


SECRETS = ("tok-en", "s3cret", "czNjcmV0")


def test_credentials_reach_the_server_and_nothing_else(tmp_path: Path) -> None:
    def guarded(asked: Asked) -> Answer:
        allowed = asked.headers.get("authorization") == "Basic dXNlcjpzM2NyZXQ="  # user:s3cret
        return honest(asked) if allowed and asked.path.startswith("/t/tok-en/forge/") else reply(401)

    (found,), _, url = http(
        guarded, lambda host: at(host, login="user:s3cret@", path="/t/tok-en/forge"), tmp_path / "cache"
    )
    assert [package.url for package in found[0].packages] == [
        f"{url}/forge/linux-64/libc-2-0.conda",
        f"{url}/forge/linux-64/python-3.13.1-0.conda",
    ]
    found_text = repr((found[0].packages, found[0].channels))
    assert not [secret for secret in SECRETS if secret in found_text]
    kept = b"".join(file.read_bytes() for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert not [secret for secret in SECRETS[1:] if secret.encode() in kept]
    assert (tmp_path / "cache" / "conda" / "rows").stat().st_mode & 0o077 == 0  # the token is in there


def only(suffix: str, answer: Answer) -> Callable[[Asked], Answer]:
    return lambda asked: answer if asked.path.endswith(suffix) else honest(asked)


HEAD = reply(200, b" " * 1000)[0]
WHOLE = files_of(ROWS)["linux-64/repodata.json"]
FAULTS: dict[str, tuple[Callable[[Asked], Answer], str]] = {
    "missing": (lambda _: reply(404), r"/forge: HTTP 404 \(not found\): there is no such channel"),
    "broken": (lambda _: reply(500), r"/forge/\S+: HTTP 500 \(the server failed\)"),
    "broken_file": (only("repodata.json", reply(500)), r"/forge/\S+/repodata.json: HTTP 500"),
    "forbidden": (lambda _: reply(403), r"/forge: HTTP 403 \(forbidden\)"),
    "locked": (lambda _: reply(401), r"/forge: HTTP 401 \(credentials missing or wrong\)"),
    "reset": (lambda _: [RESET], r"/forge/\S+: the connection broke"),
    "stalled": (only("repodata.json", [60.0]), r"/forge\S*: no complete answer within 2 s"),
    "stalled_inside": (only("64/repodata.json", [HEAD, b"{", 60.0]), r"/forge\S*: no complete answer within 2 s"),
    "truncated": (only("64/repodata.json", reply(200, WHOLE[:-40])), r"/forge: the answer is not a channel's repodata"),
    "html": (only("repodata.json", reply(200, b"<html>")), r"/forge\S*: the answer is not a channel's repodata"),
    "html_everywhere": (
        lambda _: reply(200, b"<html>"),
        r"/forge\S*: (?:the answer is not a channel's repodata|the answer is not HTTP)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_channel_that_fails_is_named_with_what_to_do(fault: str, tmp_path: Path) -> None:
    answer, said = FAULTS[fault]
    with pytest.raises(NetworkError) as raised:
        http(answer, lambda host: at(host, login="user:s3cret@", path="/t/tok-en/forge"), tmp_path / "cache")
    error = raised.value
    assert error.exit_code == 5
    (url,) = error.args
    message = str(error)
    assert error.message.startswith(f"{url}/forge")
    assert re.search(said, message)
    assert error.hint
    assert "***" not in message
    assert not [secret for secret in SECRETS if secret in message]


def test_what_was_garbled_once_is_fetched_again(tmp_path: Path) -> None:
    broken = [True]

    def once(asked: Asked) -> Answer:
        if asked.path.endswith("64/repodata.json"):
            if asked.headers.get("if-none-match"):
                return reply(304)
            return reply(200, WHOLE[:-40] if broken.pop() else WHOLE, {"ETag": '"1"'})
        return honest(asked)

    async def run() -> tuple[CondaSolution, ...]:
        async with RawServer(once) as server:
            with pytest.raises(NetworkError, match="the answer is not a channel's repodata"):
                await solved(at(server.host), cache=tmp_path / "cache")
            broken.append(False)
            return await solved(at(server.host), cache=tmp_path / "cache")

    assert pins(asyncio.run(run())[0]) == ["libc 2", "python 3.13.1"]


def test_a_connection_that_drops_once_is_tried_again(tmp_path: Path) -> None:
    left = [1]

    def dropping(asked: Asked) -> Answer:
        if asked.path.endswith("64/repodata.json") and left:
            left.pop()
            return [HEAD, b"{", RESET]
        return honest(asked)

    async def run() -> tuple[CondaSolution, ...]:
        async with RawServer(dropping) as server:
            world = Context({"ENVSPEC_HTTP_TOTAL_S": "30"}, tmp_path, tmp_path / "cache")
            return await solve_all([at(server.host)], Rattler(), world)

    assert pins(asyncio.run(run())[0]) == ["libc 2", "python 3.13.1"]
    assert not left


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9/forge", r"^http://127.0.0.1:9/forge/\S+: no connection \(Connection refused\)"),
        ("http://channels.invalid/forge", r"^http://channels.invalid/forge/\S+: the host name can't be resolved"),
        ("file:///nowhere/forge", r"^/nowhere/forge/\S+/repodata.json: no such file, so no channel"),
    ],
    ids=["closed", "unknown", "folder"],
)
def test_a_channel_that_is_not_there_is_named(url: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=said):
        solve(request("python 3.13.*", channels=[Channel("x", url, url)]), cache=tmp_path / "cache")


def test_a_row_without_its_hash_is_refused(tmp_path: Path) -> None:
    channel = on_disk(tmp_path, [row("a", "1", more={"sha256": None})])
    with pytest.raises(NetworkError, match=r"/linux-64/a-1-0.conda: its channel gives no SHA-256 for it"):
        solve(request("a", channels=[channel]), cache=tmp_path / "cache")


def test_the_moment_is_in_utc_whatever_the_zone(tmp_path: Path) -> None:
    zone = timezone(timedelta(hours=9))
    channel = on_disk(tmp_path, MOVING)
    assert pins(solve(request("a", channels=[channel], as_of=LATER.astimezone(zone)), cache=tmp_path / "c")[0]) == pins(
        solve(request("a", channels=[channel], as_of=LATER), cache=tmp_path / "c")[0]
    )
    assert AS_OF > LATER
