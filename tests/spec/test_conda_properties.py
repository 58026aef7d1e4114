"""Texts of [conda]: nothing that a user can write is anything but read or refused, and secrets stay out of sight."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rattler import MatchSpec
from rattler.exceptions import InvalidMatchSpecError

from envspec.credentials import channel_without_credentials
from envspec.origins import channel_url
from envspec.spec import SpecError, parse_spec
from envspec.spec.conda import channel_of, name_of, read_channel, read_match_spec
from envspec.spec.errors import BadValue
from envspec.spec.identity import input_sha256
from tests.support.tries import tries

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)

# --- match specs ---------------------------------------------------------------------------------------------------

SPEC_TEXTS = st.text(max_size=40) | st.text(
    st.sampled_from("numpy 12.*>=<!~|,()[]'\"_-+:/#;^$\x1b\tversionbuild"), max_size=30
)
VERSIONS = st.from_regex(
    r"([0-9]{1,2}!)?[0-9]{1,4}([._-][0-9]{0,3}[a-z]{0,3}){0,3}(\+[a-z0-9.]{1,4})?(\.?\*)?", fullmatch=True
)
TERMS = st.tuples(st.sampled_from(["", "=", "==", "!=", ">=", "<=", "<", ">", "~=", " >= "]), VERSIONS).map("".join)
CONDITIONS = st.lists(TERMS, min_size=1, max_size=3).flatmap(
    lambda terms: st.sampled_from([",", "|", " , ", "| "]).map(lambda between: between.join(terms))
)
BUILDS = st.text(st.sampled_from("cudapy0123_.*+-"), min_size=1, max_size=8)


@st.composite
def likely_specs(draw: Callable[[Any], Any]) -> str:
    """What a user would write, right or nearly so."""
    name = draw(st.sampled_from(["numpy", "Py_Torch", "ruamel.yaml", "_openmp_mutex", "conda-forge::gcc_linux-64"]))
    condition = draw(CONDITIONS | st.sampled_from(["", "*", "(>=1,<2)|==3", ">=1,(<2|>3)", "( 1.* )"]))
    build = draw(st.just("") | BUILDS)
    forms = [
        f"{name} {condition} {build}",
        f"{name}{condition}",
        f"{name}={condition}={build}",
        f"{name}[version='{condition}', build=\"{build}\"]",
        f"{name} {condition}[build={build}]",
        f"{name}[build_number='>={draw(st.integers(0, 99))}']",
    ]
    return str(draw(st.sampled_from(forms)))


@settings(max_examples=tries(400), deadline=None)
@given(SPEC_TEXTS | likely_specs())
@example("numpy[version='" + "(" * 400)
@example("a " + "1." * 240)
def test_what_is_read_the_solver_reads_as_well(text: str) -> None:
    try:
        read = read_match_spec(text)
    except BadValue as bad:
        assert bad.found and bad.hint and (bad.found + bad.hint).isprintable()
        return
    assert read_match_spec(read) == read
    meant = MatchSpec(read)
    # Strictly, a build has no dots, as those of the channel `pytorch` have.
    with suppress(InvalidMatchSpecError):
        strictly = MatchSpec(read, strict=True)
        assert (meant.version, meant.build) == (strictly.version, strictly.build)
    assert meant.name is not None and meant.name.normalized == name_of(read)
    assert (meant.channel is None) == (channel_of(read) is None)
    assert meant.build is None or not any(c in str(meant.build) for c in "<>=!~ ")


@settings(max_examples=tries(150), deadline=None)
@given(
    st.sampled_from(["numpy", "Py_Torch"]),
    st.integers(1, 30),
    st.integers(0, 30),
    st.text(st.sampled_from("cudapy0123_*"), min_size=1, max_size=8).filter(lambda build: "**" not in build),
)
def test_plain_requests_are_read(name: str, major: int, minor: int, build: str) -> None:
    for condition in (f">={major}.{minor}", f"=={major}.{minor}", f"{major}.{minor}.*", f">={major},<{major + 1}", "*"):
        assert read_match_spec(f" {name} {condition} ") == f"{name.lower()} {condition}"
        assert read_match_spec(f"{name} {condition} {build}") == f"{name.lower()} {condition} {build}"


# --- channels ------------------------------------------------------------------------------------------------------

SECRET = "s3cr3t"
CHANNEL_TEXTS = st.text(max_size=40) | st.text(st.sampled_from("htps:/@.$c{}T-t?#[]%\\~ 1é\x1b"), max_size=30)


@st.composite
def secret_channels(draw: Callable[[Any], Any]) -> str:
    """Addresses with a secret where credentials stand, whole or somewhat damaged."""
    scheme = draw(st.sampled_from(["https", "http", "HTTPS", "file", "s3", "ftp", ""]))
    before = draw(
        st.sampled_from([f"user:{SECRET}@", f"{SECRET}@", f"u:{SECRET}@x@", f"u/{SECRET}@", f"u#{SECRET}@", ""])
    )
    host = draw(st.sampled_from(["conda.example.com", "127.0.0.1:8080", "h:port", "", "[::1]", "["]))
    # Only addresses of the web have tokens: in a `file://` one, `/t/` is a folder.
    web = scheme.lower().startswith("http")
    token = f"/t/{SECRET}" if web and draw(st.booleans()) else ""
    prefix = draw(st.sampled_from(["", "/get", "/t"]))
    after = draw(st.sampled_from(["/channel", "/a/b/", "", "/", "/linux-64", "/c?q=1", "/c#f", "/${A}", "/c d", "/${"]))
    return f"{scheme}://{before}{host}{prefix}{token}{after}"


@settings(max_examples=tries(300), deadline=None)
@given(CHANNEL_TEXTS)
@example("t/0")
@example(f"t/{SECRET}/channel")
@example(f"user/t/{SECRET}")
def test_any_channel(text: str) -> None:
    try:
        read = read_channel(text)
    except BadValue as bad:
        assert bad.found and bad.hint and (bad.found + bad.hint).isprintable()
        assert SECRET not in bad.found + bad.hint
        return
    assert read_channel(read) == read
    public = channel_without_credentials(read)
    assert read_channel(public) == public == channel_without_credentials(public)
    assert channel_url(read) == channel_url(public) == channel_url(channel_url(read))
    assert read_channel(channel_url(read)) == channel_url(read)


@settings(max_examples=tries(300), deadline=None)
@given(secret_channels())
def test_no_secret_is_shown(text: str) -> None:
    try:
        read = read_channel(text)
    except BadValue as bad:
        assert SECRET not in bad.found + bad.hint
        return
    assert SECRET not in channel_without_credentials(read) + channel_url(read)


@settings(max_examples=tries(150), deadline=None)
@given(secret_channels(), st.sampled_from(["[{}]", "{}", "[[{}]]", "[{}, {}, 7]"]))
def test_no_secret_is_shown_of_a_whole_spec(text: str, form: str) -> None:
    channels = form.replace("{}", json.dumps(text))
    requirements = f"[{json.dumps(f'{text}::numpy')}, {json.dumps(f'numpy @ {text}')}, {json.dumps(text)}]"
    spec = f'[env]\nname = "x"\npython = "3.13"\n[conda]\nchannels = {channels}\ndependencies = {requirements}\n'
    with pytest.raises(SpecError) as caught:
        parse_spec(spec, "spec.toml", NOW)
    assert len(caught.value.problems) >= 3
    assert SECRET not in str(caught.value)


@settings(max_examples=tries(100), deadline=None)
@given(
    st.sampled_from(["", "user:pass@", "user@", "${USER}:${PASS}@"]),
    st.sampled_from(["", "/t/abc-123", "/t/${TOKEN}"]),
    st.sampled_from(["/channel", "/a/b"]),
)
def test_credentials_are_no_part_of_a_specs_identity(user: str, token: str, path: str) -> None:
    def digest(channel: str) -> str:
        return input_sha256({"conda": {"channels": [channel, 1]}, "pip": {"t": channel.replace(user, "")}})

    plain = input_sha256(
        {
            "conda": {"channels": [f"https://h.example.com{path}", 1]},
            "pip": {"t": f"https://h.example.com{token}{path}"},
        }
    )
    assert digest(f"https://{user}h.example.com{token}{path}") == plain
    assert digest(f"https://{user}other.example.com{token}{path}") != plain
