"""What is solved from conda channels on disk and over HTTP; more cases in tests/operations/golden/lock_conda_*."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec.context import Context
from envspec.errors import EnvspecError, NetworkError, UsageError
from envspec.io.http_types import Timeouts
from envspec.models import ChannelPart, CudaVersion, Dependent
from envspec.reasons import words
from envspec.resolve.conda.channel_client import channel_client
from envspec.resolve.conda.channel_relay import run_relay
from envspec.resolve.conda.channels import Channels
from envspec.resolve.conda.solve import CondaSolution, solve_all
from envspec.resolve.conda.solver import Rattler
from envspec.resolve.types import Channel, CondaRequest
from tests.support.builders.conda_channel import BUILT, Row, files_of, request, row, write_channel
from tests.support.servers.loopback import RESET, Answer, Asked, RawServer, reply

ROWS = [
    row("python", "3.13.1", depends=["libc"]),
    row("python", "3.14.0", depends=["libc"]),
    row("python", "3.13.1", subdir="linux-aarch64"),
    row("libc", "2"),
    row("tool", "1.0", "pyh_0", subdir="noarch", depends=["python >=3.10"]),
    row("tool", "2.0", "pyh_0", subdir="noarch", depends=["python >=3.14"]),
]
QUICK = {"ENVSPEC_HTTP_ATTEMPTS": "1", "ENVSPEC_HTTP_TOTAL_S": "2"}


def on_disk(folder: Path, rows: Sequence[Row] = ROWS, name: str = "forge") -> Channel:
    url = write_channel(folder / name, rows).as_uri()
    return Channel(name, url, url)


def solve(asked: CondaRequest, cache: Path) -> CondaSolution:
    return asyncio.run(solved(asked, cache))


async def solved(asked: CondaRequest, cache: Path) -> CondaSolution:
    return (await solve_all([asked], Rattler(), Context(QUICK, cache, cache)))[0]


def pins(answer: CondaSolution) -> list[str]:
    return [f"{package.name} {package.version}" for package in answer.packages]


def test_packages_are_complete_and_sorted(tmp_path: Path) -> None:
    channel = on_disk(tmp_path)
    libc, python, tool = solve(request("python 3.13.*", "tool", channels=[channel]), tmp_path / "cache").packages
    assert (libc.url, libc.required_by) == (f"{channel.url}/linux-64/libc-2-0.conda", (Dependent("python", "libc"),))
    assert python.required_by == (Dependent("spec", "python 3.13.*"), Dependent("tool", "python >=3.10"))
    assert python.rejected is not None
    assert (python.rejected.version, words(python.rejected.why)) == ("3.14.0", "the spec requires python 3.13.*")
    assert (tool.noarch, tool.subdir, tool.required_by) == ("python", "noarch", (Dependent("spec", "tool"),))
    assert tool.rejected is not None
    assert (tool.rejected.version, words(tool.rejected.why)) == ("2.0", "it needs python >=3.14, and python is 3.13.1")


# --- moments


LATER = BUILT + timedelta(days=30)
MOVING = [
    row("a", "1", depends=["b"]),
    row("a", "2", depends=["b"], built=LATER),
    row("b", "1"),
    row("b", "2", built=LATER),
]


@pytest.mark.parametrize(
    ("as_of", "cutoffs", "expected"),
    [(BUILT, {"a": LATER}, ["a 2", "b 1"]), (LATER, {"a": BUILT}, ["a 1", "b 2"])],
    ids=["later", "earlier"],
)
def test_a_name_with_a_cutoff_of_its_own(
    as_of: datetime, cutoffs: Mapping[str, datetime], expected: list[str], tmp_path: Path
) -> None:
    channel = on_disk(tmp_path, MOVING)
    answer = solve(request("a", channels=[channel], as_of=as_of, cutoffs=cutoffs), tmp_path / "cache")
    assert pins(answer) == expected
    package = answer.packages[0]
    as_it_is = next(each for each in MOVING if each.filename == package.filename)
    assert package.url == f"{channel.url}/linux-64/{package.filename}"
    assert package.timestamp_ms == as_it_is.fields()["timestamp"]
    assert package.channel == "forge"


def test_locked_records_stay_unless_the_channel_lost_them(tmp_path: Path) -> None:
    channel, cache = on_disk(tmp_path, MOVING), tmp_path / "cache"
    old = solve(request("a", channels=[channel], as_of=BUILT), cache).packages
    assert pins(solve(request("a", channels=[channel], locked=old), cache)) == ["a 1", "b 1"]
    assert pins(solve(request("a", channels=[channel], locked=old[1:]), cache)) == ["a 2", "b 1"]
    other = on_disk(tmp_path, MOVING[1:2] + MOVING[3:], "shrunk")
    assert pins(solve(request("a", channels=[other], locked=old), cache)) == ["a 2", "b 2"]


# --- a folder of repodata in place of a channel

FORGE = "https://conda.example.org/forge"


def test_a_folder_of_repodata(tmp_path: Path) -> None:
    folder = write_channel(tmp_path / "part", ROWS)
    channel = Channel("forge", FORGE, "https://user:secret@conda.example.org/forge", folder)
    answer = solve(request("python 3.13.*", channels=[channel]), tmp_path / "cache")
    urls = [f"{FORGE}/linux-64/libc-2-0.conda", f"{FORGE}/linux-64/python-3.13.1-0.conda"]
    assert [(package.channel, package.url) for package in answer.packages] == [("forge", url) for url in urls]
    command = "LC_ALL=C; sha256sum */repodata.json | sha256sum"
    sha256 = subprocess.run(command, shell=True, cwd=folder, capture_output=True, check=True).stdout.split()[0].decode()
    assert answer.channels[0].part == ChannelPart(6, sha256)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "has no <subdir>/repodata.json"), (b"{oops", "not a repodata.json")],
    ids=["empty", "broken"],
)
def test_a_folder_without_repodata(content: bytes | None, reason: str, tmp_path: Path) -> None:
    subdir = tmp_path / "part" / "linux-64"
    subdir.mkdir(parents=True)
    if content is not None:
        (subdir / "repodata.json").write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        solve(request("python 3.13.*", channels=[Channel("forge", FORGE, FORGE, subdir.parent)]), tmp_path / "cache")


def test_cuda_builds_after_as_of_do_not_count(tmp_path: Path) -> None:
    rows = [row("torch", "2.8.0", "cuda129_0", built=LATER), row("torch", "2.8.0", "cpu_0")]
    asked = request("torch", channels=[on_disk(tmp_path, rows)], cuda=CudaVersion(12, 9), as_of=BUILT)
    assert [package.build for package in solve(asked, tmp_path / "cache").packages] == ["cpu_0"]


# --- over HTTP


LOGIN = "user:s3cret@"
TOKEN_PATH = "/t/tok-en/forge"
SECRETS = ("tok-en", "s3cret", "czNjcmV0")


def http(answer: Callable[[Asked], Answer], cache: Path) -> tuple[CondaSolution, str]:
    """The solution from a channel behind a login and a token, and the server's address."""

    async def run() -> tuple[CondaSolution, str]:
        async with RawServer(answer) as server:
            try:
                return await solved(at(server.host, login=LOGIN, path=TOKEN_PATH), cache), server.url
            except EnvspecError as error:
                error.args = (server.url,)
                raise

    return asyncio.run(run())


def honest(asked: Asked) -> Answer:
    files = files_of(ROWS)
    found = next((data for path, data in files.items() if asked.path.endswith(path)), None)
    return reply(404) if found is None else reply(200, found)


def at(host: str, *, login: str = "", path: str = "/forge") -> CondaRequest:
    channel = Channel("corp", f"http://{host}/forge", f"http://{login}{host}{path}")
    return request("python 3.13.*", channels=[channel])


def test_credentials_reach_the_server_and_nothing_else(tmp_path: Path) -> None:
    def guarded(asked: Asked) -> Answer:
        allowed = asked.headers.get("authorization") == "Basic dXNlcjpzM2NyZXQ="  # user:s3cret
        return honest(asked) if allowed and asked.path.startswith(f"{TOKEN_PATH}/") else reply(401)

    found, url = http(guarded, tmp_path / "cache")
    assert [package.url for package in found.packages] == [
        f"{url}/forge/linux-64/libc-2-0.conda",
        f"{url}/forge/linux-64/python-3.13.1-0.conda",
    ]
    found_text = repr((found.packages, found.channels))
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
    "stalled": (only("64/repodata.json", [HEAD, b"{", 60.0]), r"/forge\S*: no complete answer within 2 s"),
    "truncated": (only("64/repodata.json", reply(200, WHOLE[:-40])), r"/forge: the answer is not a channel's repodata"),
    "html": (only("repodata.json", reply(200, b"<html>")), r"/forge\S*: the answer is not a channel's repodata"),
    "html_everywhere": (
        lambda _: reply(200, b"<html>"),
        r"/forge\S*: (?:the answer is not a channel's repodata|the response is not HTTP)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_error_of_a_channel_has_no_secret(fault: str, tmp_path: Path) -> None:
    answer, expected = FAULTS[fault]
    with pytest.raises(NetworkError) as raised:
        http(answer, tmp_path / "cache")
    error, message = raised.value, str(raised.value)
    assert error.exit_code == 5 and error.hint
    assert error.message.startswith(f"{error.args[0]}/forge")
    assert re.search(expected, message)
    assert not [secret for secret in (*SECRETS, "***") if secret in message]


def test_an_answer_that_was_garbled_once_is_fetched_again(tmp_path: Path) -> None:
    broken = [True]

    def once(asked: Asked) -> Answer:
        if asked.path.endswith("64/repodata.json"):
            if asked.headers.get("if-none-match"):
                return reply(304)
            return reply(200, WHOLE[:-40] if broken.pop() else WHOLE, {"ETag": '"1"'})
        return honest(asked)

    async def run() -> CondaSolution:
        async with RawServer(once) as server:
            with pytest.raises(NetworkError, match="the answer is not a channel's repodata"):
                await solved(at(server.host), tmp_path / "cache")
            broken.append(False)
            return await solved(at(server.host), tmp_path / "cache")

    assert pins(asyncio.run(run())) == ["libc 2", "python 3.13.1"]


def test_a_connection_that_breaks_once_is_tried_again(tmp_path: Path) -> None:
    left = [1]

    def dropping(asked: Asked) -> Answer:
        if asked.path.endswith("64/repodata.json") and left:
            left.pop()
            return [HEAD, b"{", RESET]
        return honest(asked)

    async def run() -> CondaSolution:
        async with RawServer(dropping) as server:
            context = Context({"ENVSPEC_HTTP_TOTAL_S": "30"}, tmp_path, tmp_path / "cache")
            return (await solve_all([at(server.host)], Rattler(), context))[0]

    assert pins(asyncio.run(run())) == ["libc 2", "python 3.13.1"]
    assert not left


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:9/forge", r"^http://127.0.0.1:9/forge/\S+: no connection \(Connection refused\)"),
        ("http://channels.invalid/forge", r"^http://channels.invalid/forge/\S+: cannot resolve host"),
        ("file:///nowhere/forge", r"^/nowhere/forge/\S+/repodata.json: no such file, so no channel"),
    ],
    ids=["closed", "unknown", "folder"],
)
def test_a_channel_that_does_not_exist(url: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=expected):
        solve(request("python 3.13.*", channels=[Channel("x", url, url)]), tmp_path / "cache")


def test_a_record_without_a_hash_is_refused(tmp_path: Path) -> None:
    channel = on_disk(tmp_path, [row("a", "1", more={"sha256": None})])
    with pytest.raises(NetworkError, match=r"/linux-64/a-1-0.conda: its channel gives no SHA-256 for it"):
        solve(request("a", channels=[channel]), tmp_path / "cache")


def test_as_of_in_another_time_zone(tmp_path: Path) -> None:
    as_of = LATER.astimezone(timezone(timedelta(hours=9)))
    assert pins(solve(request("a", channels=[on_disk(tmp_path, MOVING)], as_of=as_of), tmp_path / "c")) == [
        "a 2",
        "b 2",
    ]


def test_a_channel_that_is_not_relayed_is_read_beside_one_of_its_server_that_is(tmp_path: Path) -> None:
    # As the last one on the public server of channels, usually conda-forge.
    async def run() -> list[str]:
        from rattler import Gateway

        async with RawServer(honest) as server:
            first, last = (Channel(name, f"{server.url}/{name}", f"{server.url}/{name}") for name in ("one", "other"))
            async with run_relay([first], {}) as relay:
                client = channel_client(Timeouts(), server.url, [], relay.mirrors)
                channels = Channels(Gateway(cache_dir=tmp_path, client=client), Timeouts(), relay)
                return await channels.names(request("python", channels=[first, last]))

    assert "python" in asyncio.run(run())
