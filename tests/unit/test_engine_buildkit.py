"""BuildKit's trace and the older builder's stream as lines."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.engine.build import Build, Builder, builder_for, parameters
from envspec.engine.buildkit import Told, read_status
from envspec.engine.certificates import with_certificates
from envspec.engine.client import EngineFacts
from envspec.engine.protobuf import BadMessage, fields
from envspec.image.docker_builder import DockerOrder, arguments, base_name, network_for, proxies_of
from envspec.models import BaseImage, PinnedDigest, Platform
from tests.support.run_container import lock_of


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def written(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def vertex(
    digest: str, name: str, *, started: bool = True, completed: bool = False, cached: bool = False, error: str = ""
) -> bytes:
    moment = written(1, 1763600000)
    return written(
        1,
        written(1, digest.encode())
        + written(2, b"sha256:its-input")
        + written(3, name.encode())
        + (written(4, 1) if cached else b"")
        + (written(5, moment) if started else b"")
        + (written(6, moment) if completed else b"")
        + (written(7, error.encode()) if error else b""),
    )


def log(digest: str, text: bytes) -> bytes:
    return written(3, written(1, digest.encode()) + written(2, written(1, 5)) + written(3, 1) + written(4, text))


def trace(*parts: bytes) -> dict[str, object]:
    return {"id": "moby.buildkit.trace", "aux": base64.b64encode(b"".join(parts)).decode()}


def lines(messages: Sequence[dict[str, object]]) -> list[str]:
    told = Told()
    return [*(line for message in messages for line in told.lines(message)), *told.rest()]


def test_steps_logs_and_ends_in_order() -> None:
    messages: list[dict[str, object]] = [
        trace(vertex("a", "[1/2] FROM base", started=False), vertex("b", "[2/2] RUN make", started=False)),
        trace(vertex("a", "[1/2] FROM base", cached=True, completed=True)),
        trace(vertex("b", "[2/2] RUN make")),
        trace(log("b", b"one\ntw"), log("b", b"o\n\x1b[31mred\x1b[0m\n")),
        trace(log("b", b"bar 1%\rbar 50%\rbar 100%\r\n"), log("b", "gr\u00fc".encode()[:3])),
        trace(log("b", "gr\u00fc".encode()[3:])),
        trace(vertex("b", "[2/2] RUN make", completed=True)),
        trace(vertex("b", "[2/2] RUN make", completed=True)),
    ]
    assert lines(messages) == [
        "#1 [1/2] FROM base",
        "#1 cached",
        "#2 [2/2] RUN make",
        "#2 one",
        "#2 two",
        "#2 red",
        "#2 bar 100%",
        "#2 gr\u00fc",
        "#2 done",
    ]


def test_a_step_that_fails_and_those_that_it_stops() -> None:
    messages: list[dict[str, object]] = [
        trace(vertex("a", "RUN false"), vertex("b", "RUN sleep")),
        trace(vertex("a", "RUN false", completed=True, error="exit code: 1")),
        trace(vertex("b", "RUN sleep", completed=True, error="context canceled: context canceled")),
        {"errorDetail": {"message": "exit code: 1"}, "error": "exit code: 1"},
    ]
    assert lines(messages) == ["#1 RUN false", "#2 RUN sleep", "#1 failed: exit code: 1", "#2 canceled"]
    told = Told()
    for message in messages:
        told.lines(message)
    assert told.error == "exit code: 1"


def test_warnings_are_told() -> None:
    warning = written(4, written(1, b"a") + written(2, 1) + written(3, b"JSON arguments recommended for CMD"))
    assert lines([trace(warning)]) == ["warning: JSON arguments recommended for CMD"]


def test_the_older_builders_stream() -> None:
    told = Told()
    messages: list[dict[str, object]] = [
        {"stream": "Step 1/1 : FROM base"},
        {"stream": "\n"},
        {"stream": " ---> 1234\n"},
        {"aux": {"ID": "sha256:77"}},
        {"stream": "Successfully built 77"},
    ]
    seen = [line for message in messages for line in told.lines(message)]
    assert seen == ["Step 1/1 : FROM base", " ---> 1234"]
    assert told.rest() == ["Successfully built 77"]
    assert told.image == "sha256:77"


def test_the_image_of_buildkit() -> None:
    told = Told()
    assert told.lines({"id": "moby.image.id", "aux": {"ID": "sha256:88"}}) == []
    assert told.image == "sha256:88"


@pytest.mark.parametrize(
    "aux", ["no base64 !", base64.b64encode(b"\x0a\xff").decode(), base64.b64encode(b"\x0b").decode()]
)
def test_a_trace_that_is_none(aux: str) -> None:
    with pytest.raises(BadMessage):
        Told().lines({"id": "moby.buildkit.trace", "aux": aux})


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300)))))
def test_fields_are_read_as_they_were_written(rows: list[tuple[int, int | bytes]]) -> None:
    assert list(fields(b"".join(written(number, value) for number, value in rows))) == rows


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(message: bytes) -> None:
    try:
        read_status(message)
    except BadMessage:
        return


def test_fixed_numbers_are_stepped_over() -> None:
    message = varint(1 << 3 | 1) + bytes(8) + varint(2 << 3 | 5) + bytes(4) + written(3, b"x")
    assert list(fields(message)) == [(1, bytes(8)), (2, bytes(4)), (3, b"x")]


@pytest.mark.parametrize(
    ("name", "api", "environ", "builder"),
    [
        ("docker", (1, 41), {}, Builder.BUILDKIT),
        ("docker", (1, 41), {"DOCKER_BUILDKIT": "1"}, Builder.BUILDKIT),
        ("docker", (1, 41), {"DOCKER_BUILDKIT": "0"}, Builder.LEGACY),
        ("docker", (1, 38), {}, Builder.LEGACY),
        ("podman", (1, 41), {}, Builder.LEGACY),
    ],
)
def test_who_builds(name: str, api: tuple[int, int], environ: dict[str, str], builder: Builder) -> None:
    assert builder_for(EngineFacts(name, "1", api, None, 0), environ) is builder


def test_what_the_engine_is_asked() -> None:
    assert parameters(Build(Path("x")), Builder.LEGACY) == {
        "version": "1",
        "dockerfile": "Dockerfile",
        "rm": "1",
        "forcerm": "1",
    }
    asked = parameters(Build(Path("x"), "a:b", {"Z": "1", "A": "2"}, "linux/arm64", "host"), Builder.BUILDKIT)
    assert asked["buildargs"] == '{"A": "2", "Z": "1"}'
    assert (asked["version"], asked["t"], asked["platform"], asked["networkmode"]) == (
        "2",
        "a:b",
        "linux/arm64",
        "host",
    )


def test_arguments_are_those_that_the_dockerfile_asks_for() -> None:
    pinned = PinnedDigest(Platform.LINUX_AARCH64, "sha256:77", "registry", "index")
    lock = replace(lock_of(), base_image=BaseImage("docker.io/nvidia/cuda", "12.8.1", None, None, "", (pinned,)))
    order = DockerOrder(lock, Path("x"), Platform.LINUX_AARCH64, "a:b", {"docker.io": "box:5000"}, "https://index/")
    text = (
        "ARG REGISTRY=docker.io\nARG ARCHITECTURE=${TARGETARCH:-amd64}\nFROM x\nARG PIP_INDEX_URL\n# ARG TARGETARCH\n"
    )
    proxies = {"http_proxy": "http://proxy:3128"}
    assert arguments(order, text, proxies) == {
        "REGISTRY": "box:5000",
        "ARCHITECTURE": "arm64",
        "PIP_INDEX_URL": "https://index/",
        "http_proxy": "http://proxy:3128",
    }
    assert arguments(replace(order, mirrors={}, index_url=None), text, {}) == {"ARCHITECTURE": "arm64"}
    assert base_name(order) == ("box:5000/nvidia/cuda", "sha256:77")
    assert base_name(replace(order, mirrors={})) == ("docker.io/nvidia/cuda", "sha256:77")


def test_proxies_are_the_machines_and_before_them_those_of_dockers_configuration() -> None:
    environ = {"HTTPS_PROXY": "http://of.machine:1", "no_proxy": "127.0.0.1", "PATH": "/bin"}
    assert proxies_of(environ, {}) == {
        "https_proxy": "http://of.machine:1",
        "HTTPS_PROXY": "http://of.machine:1",
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
    }
    assert proxies_of(environ, {"https_proxy": "http://of.docker:1"})["HTTPS_PROXY"] == "http://of.docker:1"
    assert proxies_of({}, {}) == {}


@pytest.mark.parametrize(
    ("environ", "network"),
    [
        ({}, ""),
        ({"http_proxy": "http://proxy.corp:3128", "no_proxy": "127.0.0.1"}, ""),
        ({"http_proxy": "127.0.0.1:3128"}, "host"),
        ({"https_proxy": "http://[::1]:3128/"}, "host"),
        ({"https_proxy": "http://[broken"}, ""),
    ],
)
def test_a_proxy_on_loopback_takes_the_machines_network(environ: dict[str, str], network: str) -> None:
    assert network_for(proxies_of(environ, {})) == network


def test_steps_see_certificates_by_mounts_and_arguments() -> None:
    text = "ARG A\nFROM x AS y\nRUN one \\\n # RUN in between\n && RUN two\nCOPY a b\nrun --flag three\nFROM y\n"
    told = with_certificates(text).splitlines()
    mount = "RUN --mount=type=bind,source=.envspec-certificates,target=/dev/shm/envspec"
    assert [line for line in told if "ARG " not in line] == [
        "FROM x AS y",
        f"{mount} one \\",
        " # RUN in between",
        " && RUN two",
        "COPY a b",
        f"{mount} --flag three",
        "FROM y",
    ]
    arguments_of_a_stage = told[2 : told.index(f"{mount} one \\")]
    assert "ARG SSL_CERT_FILE=/dev/shm/envspec/ca.pem" in arguments_of_a_stage
    assert told[told.index("FROM y") + 1 :] == arguments_of_a_stage
