"""A lock whose spec has changed since: every command that uses it warns, and fails with `--locked`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from envspec.cli.main import cli
from envspec.cli.options import compare_with_spec
from tests.support.builders import ecosystem
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, succeeded

SPEC: Final = """[env]
name = "small"
python = "3.11.7"
[pip]
dependencies = ["weekly"]
[variants.other.pip]
dependencies = ["modern"]
"""
CHANGED: Final = "small is stale: spec.toml has changed since it was locked"


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.dated(), *ecosystem.requires_python()]) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    user = User(tmp_path, index.url)
    user.writes(SPEC)
    succeeded(user.runs("lock", "spec.toml"))
    return user


def edit(user: User, old: str, new: str) -> None:
    user.spec.write_text(user.spec.read_text().replace(old, new))


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        elif command is not None:
            yield " ".join((*path, name)), command


def test_every_command_that_uses_a_lock_compares_it() -> None:
    compared = {
        name
        for name, command in commands(cli)
        if any(getattr(each.callback, "func", each.callback) is compare_with_spec for each in command.params)
        and any("--locked" in each.opts for each in command.params)
    }
    named = {name for name, command in commands(cli) if any(each.name == "lock" for each in command.params)}
    assert compared == named | {"image diff"}
    assert {"install", "verify", "run", "shell", "image build", "image id", "conformance", "explain", "fit"} < compared


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "small"),
        ("fit", "small"),
        ("export", "small", "--format", "pylock"),
        ("install", "small", "--prefix", "env", "--dry-run"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_warns_and_locked_refuses(words: tuple[str, ...], user: User) -> None:
    assert "stale" not in user.runs(*words, "--locked").stderr
    edit(user, '"weekly"', '"weekly<1.5"')
    ran = user.runs(*words)
    assert f"warning: locks/{CHANGED}: run `envspec lock spec.toml`" in ran.stderr
    assert f"locks/{CHANGED}\n  hint: run `envspec lock spec.toml`" in refused(user.runs(*words, "--locked"), 3)
    succeeded(user.runs("lock", "spec.toml"))
    assert "stale" not in user.runs(*words, "--locked").stderr


def test_json_has_a_field(user: User) -> None:
    assert "stale_locks" not in json.loads(user.runs("fit", "small", "--format", "json").stdout)
    edit(user, '"weekly"', '"weekly<1.5"')
    found = json.loads(user.runs("fit", "locks/small", "-qq", "--format", "json").stdout)
    assert found["stale_locks"] == ["locks/small"] and found["warnings"][0].startswith(f"locks/{CHANGED}")
    failed = user.runs("fit", "small", "--locked", "--format", "json")
    assert (failed.status, json.loads(failed.stdout)["error"]["code"]) == (3, "stale-lock")


def test_comments_and_layout_are_no_change(user: User) -> None:
    user.spec.write_text(f"# A comment.\n{SPEC.replace(' = ', '=')}")
    ran = succeeded(user.runs("explain", "small", "--locked"))
    assert ran.warnings == []


def test_each_variant_has_its_own_hash(user: User) -> None:
    edit(user, '"modern"', '"modern<2"')
    assert succeeded(user.runs("explain", "small", "--locked")).warnings == []
    assert "locks/small-other is stale" in refused(user.runs("explain", "small-other", "--locked"), 3)
    edit(user, "[variants.other.pip]", "[variants.third.pip]")
    assert "spec.toml has no environment small-other any more" in user.runs("explain", "small-other").stderr


def test_a_spec_that_is_none_any_more_has_changed(user: User) -> None:
    user.spec.write_text("[env\n")
    assert CHANGED in succeeded(user.runs("explain", "small")).stderr


def test_without_its_spec_a_lock_is_used_and_locked_refuses(user: User) -> None:
    user.spec.unlink()
    assert succeeded(user.runs("explain", "small")).warnings == []
    error = refused(user.runs("explain", "small", "--locked"), 3)
    assert "can't be compared with its spec: its spec, ../../spec.toml, is not there" in error


def test_a_path_that_leads_out_is_not_read(user: User, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    user.folder.joinpath("locks").rename(tmp_path / "inner" / "locks")
    # `../../spec.toml` of `inner/locks/small` is in `inner`; one more leads out of the folder that contains `locks`.
    lock = tmp_path / "inner" / "locks" / "deeper" / "small"
    lock.parent.mkdir()
    (tmp_path / "inner" / "locks" / "small").rename(lock)
    (tmp_path / "inner" / "locks").rename(tmp_path / "inner" / "other")
    moved = tmp_path / "inner" / "other" / "deeper" / "small"
    assert succeeded(user.runs("explain", moved)).warnings == []
    assert "leads out of" in refused(user.runs("explain", moved, "--locked"), 3)


def test_what_a_spec_reads_of_pyproject_counts(user: User) -> None:
    project = user.folder / "pyproject.toml"
    project.write_text('[project]\nname = "app"\nversion = "1"\ndependencies = ["weekly"]\n')
    user.writes('dependencies_from = ["project"]\n[env]\nname = "small"\npython = "3.11.7"\n')
    succeeded(user.runs("lock", "spec.toml", "--output", "locks/team/small"))
    assert succeeded(user.runs("explain", "locks/team/small", "--locked")).warnings == []
    project.write_text(project.read_text().replace('"weekly"', '"weekly<1.5"'))
    [warning] = succeeded(user.runs("explain", "locks/team/small")).warnings
    assert "spec.toml, or a pyproject.toml that it reads, has changed" in warning
    assert warning.endswith("run `envspec lock spec.toml --output locks/team/small`")
