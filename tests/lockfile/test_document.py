"""The document of record: its header and what is never written. Whole documents are in tests/lockfile/golden."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec import documents
from envspec.credentials import channels_without_credentials
from envspec.lockfile.document import dump, load
from envspec.lockfile.export import files_of, is_exported
from envspec.lockfile.header import LOCK_FILE, verify_checksum
from envspec.models import ChannelPart, CondaChannel, Dependent, ExportedFiles, Platform
from envspec.structs import replace
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


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*/envspec.lock")), ids=lambda path: path.parent.name)
def test_a_committed_lock_is_written_again_as_it_is(path: Path) -> None:
    data = path.read_bytes()
    header, _ = verify_checksum(data, "x")
    assert dump(load(data.decode(), "x"), header.files).encode() == data


def test_the_header_is_read_without_the_rest() -> None:
    header, body = verify_checksum(dump(example(), FILES).encode(), "x")
    assert (header.name, header.gpus, dict(header.files)) == ("pytorch-2.9", ("T4", "A100", "H100"), FILES)
    alone = documents.parse_toml(body[: body.index(b"# end of header")].decode())
    keys = {"format", "requires_envspec", "name", "input_sha256", "as_of", "facts", "gpus", "files"}
    assert alone.keys() == keys
    assert not header.partial_channels
    [channel] = verify_checksum(dump(on_conda(), FILES).encode(), "x")[0].partial_channels
    part = on_conda().channels[0].part
    assert part is not None and channel == ("conda-forge", part.records, part.sha256)


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


def test_credentials_are_in_no_file() -> None:
    channel = "https://user:hunter2@conda.example.org/t/s3cret/mine"
    row = conda("aa", "1", ("spec", f"{channel}::aa"), channel=channel, url=f"{channel}/linux-64/aa-1-0.conda")
    url = "https://user:hunter2@wheels.example.org/simple/private-1.0-py3-none-any.whl"
    one = package("private", "1.0", ("spec", f"private @ {url}"))
    one = replace(one, file=replace(one.file, index="corp", url=url))
    made = lock(
        conda_resolution(X86, [row], one), channels=(CondaChannel(channel, channel, ChannelPart(1, "ab" * 32)),)
    )
    files = files_of(made)
    assert len(files) == 4
    for name, content in files.items():
        assert not re.search(rb"hunter2|s3cret|user:", content), name
    assert b'url = "https://wheels.example.org/simple/private-1.0-py3-none-any.whl"' in files[LOCK_FILE]


def test_names_of_a_locks_files_are_recognised() -> None:
    """A damaged lock finds its files by these patterns."""
    on_top = lock(conda_resolution(X86, [conda("python", "3.12.11")], package("aa", "1")), channels=(CONDA_FORGE,))
    for made in (on_top, replace(example(), export=ExportedFiles(dockerfile=True))):
        assert all(map(is_exported, files_of(made).keys() - {LOCK_FILE}))
    assert not any(map(is_exported, ("README.md", "requirements.txt", "Dockerfile.dev", LOCK_FILE)))


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
    text = dump(lock(resolution(Platform.WIN_64), resolution(ARM), resolution(X86)), {})
    assert re.findall('\nplatform = "(.+)"', text) == ["linux-64", "linux-aarch64", "win-64"]


def test_a_time_is_written_in_utc_and_never_without_a_zone() -> None:
    as_of = datetime(2026, 11, 15, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    text = dump(lock(as_of=as_of), {})
    assert "\nas_of = 2026-11-15T00:00:00Z\n" in text
    assert load(text, "x").as_of == as_of
    with pytest.raises(ValueError, match="no time zone"):
        dump(lock(as_of=datetime(2026, 11, 15)), {})  # noqa: DTZ001 (that is the case)


def test_another_format_is_not_written() -> None:
    with pytest.raises(ValueError, match="writes format 3, not 4"):
        dump(replace(lock(), format=4), {})


def test_one_value_one_line() -> None:
    """A package that moves changes few lines, and git's conflict markers can never be a part of a text in a lock."""
    before = dump(lock(resolution(X86, package("aa", "1.0"), package("bb", "1.0"), package("cc", "1.0"))), {})
    after = dump(lock(resolution(X86, package("aa", "1.0"), package("bb", "2.0"), package("cc", "1.0"))), {})
    changed = [line for line in after.splitlines() if line not in before.splitlines()]
    assert [line.split(" ")[0] for line in changed] == ["#", "version", "file"]
    odd = package("aa", "1.0")
    odd = replace(odd, required_by=(Dependent("spec", "<<<<<<< HEAD\n=======\n>>>>>>> b"),))
    text = dump(lock(resolution(X86, odd)), {})
    assert "\n<<<<<<< " not in text
    assert load(text, "x").resolutions[0].packages == (odd,)
