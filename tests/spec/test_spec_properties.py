"""What holds for every document: places, faults, identity, and the one edit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomlkit
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envspec import documents
from envspec.spec import Spec, SpecError, parse_spec, set_as_of
from envspec.spec.consistency import overlap
from envspec.spec.errors import KeyPath
from envspec.spec.identity import input_sha256
from envspec.spec.positions import positions_of
from envspec.spec.requirements import read_requirement
from envspec.spec.values import read_pattern
from tests.support.golden import read_cases
from tests.support.tries import tries

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
READ = [case for case in read_cases(Path(__file__).parent / "golden" / "spec") if "expected.json" in case.parts]
VALID = [case.text("spec.toml") for case in READ if "spec.toml" in case.parts]

NASTY = st.text(st.sampled_from("ab .,=#[]{}\"'\\\n\r\té\x00☃"), max_size=12)

# --- what reading a spec does with anything ------------------------------------------------------------------------


def read(text: str) -> Spec | SpecError:
    """What the parser says; anything but a Spec and a SpecError is raised on."""
    try:
        return parse_spec(text, "spec.toml", NOW)
    except SpecError as error:
        assert error.problems and error.exit_code == 2
        count = text.count("\n") + 1
        for problem in error.problems:
            assert problem.found and problem.hint
            assert problem.line is None or 1 <= problem.line <= count
            assert str(problem) in str(error)
        assert all(c.isprintable() or c == "\n" for c in str(error))
        return error


@st.composite
def mutated_specs(draw: Callable[[Any], Any]) -> str:
    text: str = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 12))
        new = draw(
            st.sampled_from(["", "[", "]", "{", "}", '"', "'", '"""', "=", ".", ",", "#", "\n", "\\", "1", "é", "\x1b"])
            | NASTY
        )
        text = text[:at] + new + text[at + length :]
    return text


@settings(max_examples=tries(100), deadline=None)
@given(mutated_specs())
@example('[env]\nname = "a"\npython = "3.11"\n[pip]\ndependencies = ["my-proj #\t\\u001b@ ."]\n')
def test_mutations_of_specs(text: str) -> None:
    read(text)


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none().map(lambda _: True),
        st.integers(-5, 70000),
        st.floats(allow_nan=False),
        st.sampled_from(
            ["", "torch", "torch==2.9", "a @ https://u:p@h/x", "*", "3.11", "linux-64", "..", "-e .", "\x1b[0m"]
        ),
        st.text(max_size=8),
        st.datetimes().map(lambda time: time.replace(microsecond=0)),
        st.datetimes(timezones=st.just(timezone(timedelta(hours=14)))),
        st.dates(),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc-._ ", min_size=1, max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The values of a document that are no tables."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
        return
    yield path, value
    for at, inner in enumerate(value if isinstance(value, list) else ()):
        yield from leaves(inner, (*path, at))


@settings(max_examples=tries(150), deadline=None)
@given(
    st.dictionaries(st.text("ab. ='\"]#é", min_size=1, max_size=4), JUNK, max_size=4).map(tomlkit.dumps)
    | st.sampled_from(VALID)
)
def test_every_value_is_found_where_it_is_written(text: str) -> None:
    places = positions_of(text)
    for path, value in leaves(documents.parse_toml(text)):
        written = places.written(path)
        assert written is not None
        # A header has the lines of its table below.
        if not written.startswith("[["):
            assert documents.parse_toml(f"k = {written}")["k"] == value


@st.composite
def specs_with_junk(draw: Callable[[Any], Any]) -> dict[str, Any]:
    """A complete spec with some of its values, anywhere in it, exchanged for anything."""
    data = documents.parse_toml(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 4))):
        inner: Any = data
        while True:
            if not inner:
                break
            key = (
                draw(st.sampled_from(sorted(inner)))
                if isinstance(inner, dict)
                else draw(st.integers(0, len(inner) - 1))
            )
            if isinstance(inner[key], (dict, list)) and draw(st.integers(0, 3)):
                inner = inner[key]
                continue
            inner[key] = draw(JUNK)
            break
    return data


@settings(max_examples=tries(150), deadline=None)
@given(specs_with_junk())
def test_specs_with_junk_in_them(data: dict[str, Any]) -> None:
    found = read(tomlkit.dumps(data))
    if isinstance(found, SpecError):
        assert all(problem.line is not None for problem in found.problems if problem.key not in ("", "env"))


@settings(max_examples=tries(150), deadline=None)
@given(st.text(max_size=60) | st.text(st.sampled_from("torch[]@=<>;,.*'\"() 019+-#:/\\git\x1b\ud7fc"), max_size=40))
def test_any_requirement(text: str) -> None:
    try:
        found = read_requirement(text)
    except ValueError as bad:
        texts: list[str] = [bad.found, bad.hint]  # type: ignore[attr-defined]
        assert all(each and each.isprintable() for each in texts)
    else:
        assert read_requirement(found.text) == found


# --- specs that are right ------------------------------------------------------------------------------------------

WORDS = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,4})?", fullmatch=True)
VERSIONS = st.from_regex(r"[1-9]\.[0-9]{1,2}(\.[0-9])?", fullmatch=True)
PATTERNS = st.text(st.sampled_from("ab-*"), min_size=1, max_size=8)
TIMES = st.integers(0, 200_000_000).map(lambda seconds: NOW - timedelta(seconds=seconds))


@st.composite
def right_specs(draw: Callable[[Any], Any]) -> dict[str, Any]:
    env = {"name": draw(WORDS), "python": draw(st.sampled_from(["3.9", "3.10", "3.11", "3.12.4", "3.14"]))}
    platforms = st.lists(st.sampled_from(["linux-64", "linux-aarch64", "osx-arm64", "win-64"]), min_size=1, unique=True)
    data: dict[str, Any] = {"env": env}
    for key, values in (("platforms", platforms), ("as_of", TIMES)):
        if draw(st.booleans()):
            env[key] = draw(values)
    names = draw(st.lists(WORDS, max_size=4, unique=True))
    data["pip"] = {"dependencies": [f"{name}{draw(st.sampled_from(['', '>=', '==', '~=']))}" for name in names]}
    data["pip"]["dependencies"] = [
        text + draw(VERSIONS.filter(lambda version: "." in version)) if text.endswith("=") else text
        for text in data["pip"]["dependencies"]
    ]
    if draw(st.booleans()) and set(env.get("platforms", ["linux-64"])) & {"linux-64", "linux-aarch64"}:
        data["cuda"] = {
            "version": draw(st.sampled_from(["11.8", "12.8", "13.0"])),
            "gpus": draw(st.sampled_from([[], ["T4", "A100"]])),
        }
    if draw(st.booleans()):
        data["services"] = {"jupyter": {"port": draw(st.integers(1000, 6000))}, "tensorboard": {}}
    return data


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same values, with the keys of every table in another order."""
    if isinstance(value, dict):
        keys = sorted(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return value


@settings(max_examples=tries(100), deadline=None)
@given(right_specs(), st.randoms(use_true_random=False), TIMES)
def test_identity(data: dict[str, Any], chance: random.Random, time: datetime) -> None:
    text = tomlkit.dumps(data)
    digest = input_sha256(documents.parse_toml(text))
    commented = "".join(
        f"{line}   # why\n" if line and chance.random() < 0.5 else f"\n{line}\n" for line in text.split("\n")
    )
    assert input_sha256(documents.parse_toml(commented)) == digest
    assert input_sha256(documents.parse_toml(tomlkit.dumps(shuffled(data, chance)))) == digest
    beside = {**data, "registry": {"mirrors": {"a": "b"}}}
    assert input_sha256(beside) == digest
    for section, table in data.items():
        for key in table:
            assert input_sha256({**data, section: {**table, key: "changed"}}) != digest
    dated = documents.parse_toml(set_as_of(text, time))
    assert (input_sha256(dated) == digest) == (data["env"].get("as_of") == time)


@settings(max_examples=tries(100), deadline=None)
@given(
    right_specs() | st.sampled_from([documents.parse_toml(text) for text in VALID]),
    TIMES,
    st.sampled_from(["\n", "\r\n"]),
)
def test_as_of_is_the_only_thing_that_set_as_of_touches(data: dict[str, Any], time: datetime, newline: str) -> None:
    text = tomlkit.dumps(data).replace("\n", newline)
    changed = set_as_of(text, time)
    assert documents.parse_toml(changed) == {**data, "env": {**data["env"], "as_of": time}}
    others, others_changed = (
        [line for line in each.splitlines(keepends=True) if not line.startswith("as_of = ")] for each in (text, changed)
    )
    assert others_changed == others
    assert set_as_of(changed, time) == changed


@settings(max_examples=tries(150), deadline=None)
@given(PATTERNS, PATTERNS, st.text(st.sampled_from("ab-"), max_size=8))
def test_patterns_that_overlap(one: str, other: str, text: str) -> None:
    assert overlap(one, other) == overlap(other, one)
    if fnmatchcase(text, one) and fnmatchcase(text, other):
        assert overlap(one, other)
    if "*" not in one:
        assert overlap(one, other) == fnmatchcase(one, other)
    if one.strip("-") == one:
        assert read_pattern(read_pattern(one)) == read_pattern(one)
