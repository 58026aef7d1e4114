"""Challenges of registries, and the words of their errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.registry.auth import challenges
from envspec.registry.errors import access_refused, error_text, login_command
from envspec.registry.reference import endpoint_of, parse

TOKEN = "https://auth/token"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], {}),
        ([""], {}),
        (["Basic"], {"basic": {}}),
        (['Basic realm="a registry"'], {"basic": {"realm": "a registry"}}),
        (["BASIC REALM=x"], {"basic": {"realm": "x"}}),
        (
            [f'Bearer realm="{TOKEN}",service="r",scope="repository:a/b:pull,push"'],
            {"bearer": {"realm": TOKEN, "service": "r", "scope": "repository:a/b:pull,push"}},
        ),
        (
            [f'Bearer realm="{TOKEN}" , service=r , error="invalid_token"'],
            {"bearer": {"realm": TOKEN, "service": "r", "error": "invalid_token"}},
        ),
        (['Basic realm="x", Bearer realm="y"'], {"basic": {"realm": "x"}, "bearer": {"realm": "y"}}),
        (['Basic realm="x"', 'Bearer realm="y"'], {"basic": {"realm": "x"}, "bearer": {"realm": "y"}}),
        (['Bearer realm="first"', 'Bearer realm="second", service=r'], {"bearer": {"realm": "first"}}),
        ([r'Basic realm="a \"quoted\" \\ word"'], {"basic": {"realm": r'a "quoted" \ word'}}),
        (['realm="no scheme"'], {}),
    ],
)
def test_challenges(headers: list[str], expected: dict[str, dict[str, str]]) -> None:
    assert challenges(headers) == expected


@given(st.lists(st.text(max_size=200)))
def test_any_header_is_read(headers: list[str]) -> None:
    assert all(scheme == scheme.lower() for scheme in challenges(headers))


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
        ({"errors": [{"message": "x" * 300}]}, "x" * 199 + "…"),
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
