"""Challenges of registries, and the words of their errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.registry.auth import Challenge, challenges
from envspec.registry.errors import access_refused, error_text, login_command
from envspec.registry.reference import endpoint_of, parse


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], ()),
        ([""], ()),
        (["Basic"], (Challenge("basic", {}),)),
        (['Basic realm="a registry"'], (Challenge("basic", {"realm": "a registry"}),)),
        (["BASIC REALM=x"], (Challenge("basic", {"realm": "x"}),)),
        (
            ['Bearer realm="https://auth/token",service="r",scope="repository:a/b:pull,push"'],
            (
                Challenge(
                    "bearer", {"realm": "https://auth/token", "service": "r", "scope": "repository:a/b:pull,push"}
                ),
            ),
        ),
        (
            ['Bearer realm="https://auth/token" , service=r , error="invalid_token"'],
            (Challenge("bearer", {"realm": "https://auth/token", "service": "r", "error": "invalid_token"}),),
        ),
        (
            ['Basic realm="x", Bearer realm="y"'],
            (Challenge("basic", {"realm": "x"}), Challenge("bearer", {"realm": "y"})),
        ),
        (
            ['Basic realm="x"', 'Bearer realm="y"'],
            (Challenge("basic", {"realm": "x"}), Challenge("bearer", {"realm": "y"})),
        ),
        ([r'Basic realm="a \"quoted\" \\ word"'], (Challenge("basic", {"realm": r'a "quoted" \ word'}),)),
        (['realm="no scheme"'], ()),
    ],
)
def test_challenges_are_read(headers: list[str], expected: tuple[Challenge, ...]) -> None:
    assert challenges(headers) == expected


@given(st.lists(st.text(max_size=200)))
def test_any_header_is_read(headers: list[str]) -> None:
    for challenge in challenges(headers):
        assert challenge.scheme == challenge.scheme.lower()


def test_a_long_header_is_read_in_time() -> None:
    assert challenges(['Bearer realm="' + "\\" * 100_000]) is not None
    assert challenges(["a " * 50_000]) is not None


_ODD: tuple[object, ...] = ([], {}, None, 7, [7], [None], ["x"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"errors": [{"code": "DENIED", "message": "no"}]}, "DENIED: no"),
        ({"errors": [{"code": "DENIED"}]}, "DENIED"),
        ({"errors": [{"message": "no"}]}, "no"),
        ({"errors": [{"message": "two\nlines\x1b[31m"}]}, "two lines [31m"),
        ({"errors": [{"message": "x" * 300}]}, "x" * 200 + "…"),
        *(({"errors": value}, "") for value in _ODD),
        ([], ""),
        (7, ""),
    ],
)
def test_a_registry_s_words_are_one_printable_line(body: object, words: str) -> None:
    assert error_text(json.dumps(body).encode()) == words


def test_a_body_that_is_not_json_has_no_words() -> None:
    assert error_text(b"<html>") == error_text(b"\xff") == error_text(b"[" * 100_000) == ""


def test_docker_hub_hides_what_is_not_there() -> None:
    text = str(access_refused("docker.io/nvidia/cudaa:v1", endpoint_of(parse("nvidia/cudaa:v1")), None))
    assert "Docker Hub sends the same response" in text
    assert login_command("docker.io") == "docker login"
    assert login_command("r.corp") == "docker login r.corp"
