"""The document of record: its head, its seal, and what reading refuses. Whole documents are in tests/golden/lock."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec import toml
from envspec.credentials import channels_without_credentials
from envspec.lock.canonical import canonical
from envspec.lock.document import dump, load
from envspec.lock.files import files_of
from envspec.lock.head import LOCK_FILE, DamagedLock, NewerFormat, Part, unseal
from envspec.models import Asker, ChannelPart, CondaChannel, Decision, Platform
from tests.support.builders.locks import (
    ARM,
    CONDA_FORGE,
    X86,
    conda,
    conda_resolution,
    example,
    lock,
    on_conda,
    package,
    resolution,
)

LOCKS = Path(__file__).parents[2] / "locks"
FILES = {"requirements.linux-64.txt": "b" * 64, "Dockerfile": "a" * 64}


def test_the_example_comes_back_in_its_canonical_order() -> None:
    assert load(dump(example(), FILES), "x") == canonical(example())


def test_conda_rows_come_back_whole() -> None:
    made = on_conda()
    assert load(dump(made, FILES), "x") == canonical(made)


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*/envspec.lock")), ids=lambda path: path.parent.name)
def test_every_committed_lock_is_written_again_as_it_is(path: Path) -> None:
    data = path.read_bytes()
    head, _ = unseal(data, "x")
    assert dump(load(data.decode(), "x"), head.files).encode() == data


def test_parts_stand_in_the_head_where_there_are_any() -> None:
    assert "\nparts = " not in dump(example(), FILES)
    head, _ = unseal(dump(on_conda(), FILES).encode(), "x")
    part = on_conda().channels[0].part
    assert part is not None
    assert head.parts == (Part("conda-forge", part.rows, part.sha256),)


@pytest.mark.parametrize("channel", ["a: b", "file:///rows", "https://conda.example.org/mine", "two\nlines"])
def test_any_channel_can_be_known_in_part(channel: str) -> None:
    part = Part(channel, 1234, "ab" * 32)
    assert Part.parse(str(part)) == part


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("https://user:word@host/c", "https://host/c"),
        ("https://host/t/tk-12-ab/c/linux-64/a.conda", "https://host/c/linux-64/a.conda"),
        ("https://host/t/${TOKEN}/c", "https://host/c"),
        ("https://host/t/tk-12-ab", "https://host"),
        ("https://host/get/t/tk/c", "https://host/get/c"),
        ("https://u@host/t/one/t/two/c::numpy >=1", "https://host/c::numpy >=1"),
        ("https://host/at/tk/c", "https://host/at/tk/c"),
        ("file:///home/t/rows/c", "file:///home/t/rows/c"),
        ("conda-forge/t/x", "conda-forge/t/x"),
    ],
)
def test_secrets_of_a_channel(text: str, bare: str) -> None:
    assert channels_without_credentials(text) == bare


def test_no_secret_of_a_channel_is_written() -> None:
    secret = "https://user:hunter2@conda.example.org/t/s3cret/mine"
    row = conda("aa", "1", ("spec", f"{secret}::aa"), channel=secret, url=f"{secret}/linux-64/aa-1-0.conda")
    made = lock(conda_resolution(X86, [row]), channels=(CondaChannel(secret, secret, ChannelPart(1, "ab" * 32)),))
    for name, content in files_of(made).items():
        assert b"hunter2" not in content and b"s3cret" not in content, name


def test_requirements_are_left_out_where_conda_brings_everything() -> None:
    rows = [conda("python", "3.12.11")]
    alone = lock(conda_resolution(X86, rows), conda_resolution(ARM, rows), channels=(CONDA_FORGE,))
    assert set(files_of(alone)) == {"conda-linux-64.lock", "conda-linux-aarch64.lock", "conda-lock.yml", LOCK_FILE}
    one = lock(conda_resolution(X86, rows, package("aa", "1")), conda_resolution(ARM, rows), channels=(CONDA_FORGE,))
    assert set(files_of(one)) - set(files_of(alone)) == {"requirements.linux-64.txt", "requirements.linux-aarch64.txt"}
    assert "aa==1" not in files_of(one)["requirements.linux-aarch64.txt"].decode()
    assert set(files_of(lock(resolution(X86)))) == {"requirements.linux-64.txt", LOCK_FILE}


def test_the_head_lists_every_other_file() -> None:
    files = files_of(on_conda())
    head, _ = unseal(files.pop(LOCK_FILE), "x")
    assert dict(head.files) == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def test_the_order_in_which_stages_finish_does_not_show() -> None:
    one = example()
    other = replace(
        one,
        resolutions=tuple(replace(item, packages=item.packages[::-1]) for item in one.resolutions[::-1]),
        decisions=one.decisions[::-1],
        gpu_code=one.gpu_code[::-1],
    )
    assert other != one
    assert dump(other, FILES) == dump(one, dict(reversed(FILES.items())))


def test_a_moment_is_written_in_utc_whatever_zone_it_came_in() -> None:
    elsewhere = timezone(timedelta(hours=5, minutes=30))
    moment = datetime(2026, 11, 15, 5, 30, tzinfo=elsewhere)
    text = dump(lock(as_of=moment), {})
    assert "\nas_of = 2026-11-15T00:00:00Z\n" in text
    assert load(text, "x").as_of == moment


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        dump(lock(as_of=datetime(2026, 11, 15)), {})  # noqa: DTZ001 (that is the case)


def test_another_format_is_not_written() -> None:
    with pytest.raises(ValueError, match="writes format 1, not 2"):
        dump(replace(lock(), format=2), {})


def test_the_head_is_read_without_the_rest() -> None:
    head, body = unseal(dump(example(), FILES).encode(), "x")
    assert head.name == "pytorch-2.9"
    assert head.gpus == ("T4", "A100", "H100")
    assert dict(head.files) == FILES
    alone = body[: body.index(b"# end of the head")].decode()
    assert set(toml.loads(alone)) == {"format", "needs", "name", "input_sha256", "as_of", "facts", "gpus", "files"}


def test_any_changed_byte_is_found() -> None:
    data = dump(lock(resolution(X86, package("filelock", "3.20.0"))), {}).encode()
    load(data.decode(), "x")
    for place in range(data.index(b"sha256:"), len(data), 7):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises((DamagedLock, NewerFormat), match=r"^locks/a"):
            unseal(changed, "locks/a")


def test_one_package_that_moves_changes_few_lines() -> None:
    before = dump(lock(resolution(X86, package("aa", "1.0"), package("bb", "1.0"), package("cc", "1.0"))), {})
    after = dump(lock(resolution(X86, package("aa", "1.0"), package("bb", "2.0"), package("cc", "1.0"))), {})
    changed = [line for line in after.splitlines() if line not in before.splitlines()]
    assert [line.split(" ")[0] for line in changed] == ["#", "version", "file"]


def test_no_line_is_longer_than_its_value() -> None:
    """One value, one line: git's conflict markers can never be a part of a text in a lock."""
    odd = replace(lock(), decisions=(Decision("x", "<<<<<<< HEAD\n=======\n>>>>>>> b", "why"),))
    text = dump(odd, {})
    assert "\n<<<<<<< " not in text
    assert load(text, "x") == odd


def test_credentials_are_never_written() -> None:
    one = package("secret", "1.0")
    url = "https://user:hunter2@wheels.example.org/simple/secret-1.0-py3-none-any.whl"
    held = replace(one, file=replace(one.file, index="corp", url=url), askers=(Asker("spec", f"secret @ {url}"),))
    text = dump(lock(resolution(X86, held)), {})
    assert "hunter2" not in text
    assert "user" not in text
    assert 'url = "https://wheels.example.org/simple/secret-1.0-py3-none-any.whl"' in text


def test_platforms_are_sorted_by_name() -> None:
    text = dump(lock(resolution(Platform.WIN_64), resolution(ARM), resolution(X86)), {})
    assert [item.target.platform.value for item in load(text, "x").resolutions] == [
        "linux-64",
        "linux-aarch64",
        "win-64",
    ]
