"""`check`: fresh, or stale with every reason."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from envspec import documents
from envspec.errors import EnvspecError
from envspec.lockfile.check import CheckResult, StaleCause, check
from envspec.lockfile.document import dump
from envspec.lockfile.export import files_of
from envspec.lockfile.export.requirements import requirements_text
from envspec.lockfile.folder import write_folder
from envspec.lockfile.header import LOCK_FILE
from envspec.models import ChannelPart, CondaChannel
from envspec.spec.identity import input_sha256
from tests.support.builders.locks import CONDA_FORGE, X86, conda, conda_resolution, lock, package, resolution, sealed

SPEC = '[env]\nname = "small"\npython = "3.11"\n[pip]\ndependencies = ["filelock"]\n'
FROM_LOCK = "../../spec.toml"
ONE = lock(
    resolution(X86, package("filelock", "3.20.0")),
    input_sha256=input_sha256(documents.parse_toml(SPEC)),
    spec=FROM_LOCK,
)
REQUIREMENTS = requirements_text(ONE.name, ONE.resolutions[0]).encode()


@dataclass(frozen=True)
class Place:
    spec: Path
    folder: Path

    def check(self) -> CheckResult:
        return check(self.spec, self.folder)

    def write(self, files: Mapping[str, bytes], names: Mapping[str, bytes] | None = None) -> None:
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in (names or files).items()}
        write_folder(self.folder, {**files, LOCK_FILE: dump(ONE, hashes).encode()})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path / "spec.toml", tmp_path / "locks" / "small")
    made.spec.write_text(SPEC, encoding="utf-8")
    made.write({"requirements.linux-64.txt": REQUIREMENTS, "Dockerfile": b"FROM scratch\n"})
    return made


def reasons(result: CheckResult) -> list[StaleCause]:
    return [reason.why for reason in result.reasons]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_fresh(place: Place) -> None:
    assert place.check() == CheckResult(())
    edit(place.spec, "[env]", "# why\n[env]")
    assert place.check().is_fresh


def test_a_part_of_a_channel_only_warns(place: Place) -> None:
    part = ChannelPart(4775, "ab" * 32)
    spec = '[env]\nname = "small"\npython = "3.12"\n[conda]\nchannels = ["conda-forge", "https://example.org/nvidia"]\n'
    place.spec.write_text(spec, encoding="utf-8")
    one = lock(
        conda_resolution(X86, [conda("python", "3.12.11")]),
        input_sha256=input_sha256(documents.parse_toml(spec)),
        spec=FROM_LOCK,
        channels=(
            CondaChannel("conda-forge", CONDA_FORGE.url, part),
            CondaChannel("https://example.org/nvidia", "https://example.org/nvidia"),
        ),
    )
    write_folder(place.folder, files_of(one))
    said = (
        "locked from a part of conda-forge (4,775 records, sha256 abababababab): "
        "the whole channel may solve to something else"
    )
    assert place.check() == CheckResult((), (said,))
    (place.folder / "conda-linux-64.lock").write_text("@EXPLICIT\n", encoding="utf-8")
    assert reasons(place.check()) == [StaleCause.FILE]


def test_every_reason_is_reported_at_once(place: Place) -> None:
    edit(place.spec, "3.11", "3.12")
    (place.folder / "Dockerfile").unlink()
    (place.folder / "requirements.linux-64.txt").write_bytes(REQUIREMENTS + b"more\n")
    result = place.check()
    assert reasons(result) == [StaleCause.SPEC, StaleCause.FILE, StaleCause.FILE]
    assert [reason.text.rpartition("/")[2] for reason in result.reasons] == [
        "spec.toml has changed since it was locked",
        "Dockerfile is missing",
        "requirements.linux-64.txt was changed after envspec wrote it",
    ]
    (place.folder / "Dockerfile").mkdir()
    assert "Dockerfile can't be read" in place.check().reasons[1].text


def test_a_lock_of_a_spec_elsewhere(place: Place) -> None:
    other = place.spec.with_name("other.toml")
    place.spec.rename(other)
    result = check(other, place.folder)
    assert reasons(result) == [StaleCause.PLACE]
    assert "names ../../spec.toml as its spec" in result.reasons[0].text


def test_no_lock_at_all(tmp_path: Path, place: Place) -> None:
    for folder in (tmp_path / "locks" / "none", place.spec):
        assert reasons(check(place.spec, folder)) == [StaleCause.NO_LOCK]


@pytest.mark.parametrize(
    ("old", "new", "why", "text"),
    [
        ("3.20.0", "3.21.0", StaleCause.DAMAGED, "changed after envspec wrote it"),
        ("format = 3", "format = 9", StaleCause.FORMAT, "has format 9"),
        ("Dockerfile = ", '"../../spec.toml" = ', StaleCause.DAMAGED, "names a file outside of its folder"),
    ],
)
def test_a_document_that_was_changed(place: Place, old: str, new: str, why: StaleCause, text: str) -> None:
    document = place.folder / LOCK_FILE
    edit(document, old, new)
    if "spec.toml" in new:
        document.write_text(sealed(document.read_text(encoding="utf-8").split("\n", 1)[1]), encoding="utf-8")
    result = place.check()
    assert reasons(result) == [why]
    assert text in result.reasons[0].text


@pytest.mark.parametrize(("text", "words"), [("[env", r"spec.toml:1: column 5"), (None, "can't be read")])
def test_a_spec_that_cannot_be_read(place: Place, text: str | None, words: str) -> None:
    if text is None:
        place.spec.unlink()
    else:
        place.spec.write_text(text, encoding="utf-8")
    with pytest.raises(EnvspecError, match=words) as raised:
        place.check()
    assert raised.value.exit_code == 2


def test_it_imports_next_to_nothing() -> None:
    """The way of `--check` is walked on every change: what it imports, everyone waits for."""
    heavy = {"asyncio", "dataclasses", "pydantic", "packaging", "subprocess", "email", "http", "rich", "tomlkit", "uv"}
    heavy |= {"click", "difflib", "envspec.models", "inspect"}
    code = "import sys, envspec.lockfile.check; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"envspec.lockfile.header", "envspec.spec.identity"} <= loaded
    assert loaded & heavy == set()
