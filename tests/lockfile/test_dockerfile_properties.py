"""What a Dockerfile writes by a shell is what was to be written."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envspec.errors import UsageError
from envspec.lockfile.export.dockerfile import quoted, text, written
from envspec.lockfile.export.types import ExportRequest, File
from envspec.models import ExportedFiles, ImageSettings, NamedIndex, Service
from envspec.structs import replace
from tests.support.builders.locks import example as example_lock

#: No NUL, which no argument holds, and no carriage return, which the builders take from the end of a line.
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=40)


def carried_out(instruction: str) -> None:
    """A RUN as builders read it: lines that end with a backslash go on, and those that begin with `#` are left out."""
    lines = [line for line in instruction.split("\n") if not re.match(r"\s*#", line)]
    command = re.sub(r"\\\n", "", "\n".join(lines)).removeprefix("RUN ")
    subprocess.run(["/bin/sh", "-c", command], check=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"})


@settings(max_examples=40, deadline=None)
@given(st.lists(LINE, min_size=1, max_size=6))
@example(["# not a comment", "  # nor this", "it's 'quoted'", "%s %n \\n", "ends with \\", "", "-n", '$HOME `id` "x"'])
def test_files_are_written_as_they_are(lines: list[str]) -> None:
    content = "\n".join(lines) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in" / "file.txt"
        carried_out(f"RUN {written(File(str(path), 0o640, content))}")
        assert path.read_bytes().decode() == content
        assert path.stat().st_mode & 0o777 == 0o640


@given(st.text(max_size=30))
def test_a_word_is_on_one_line_and_each_sign_of_its_own_is_escaped(value: str) -> None:
    if set(value) & {"\n", "\r"}:
        with pytest.raises(ValueError, match="line feed"):
            quoted(value)
        return
    word = quoted(value)
    assert (word[0], word[-1]) == ('"', '"')
    assert re.fullmatch(r'(?:[^"\\$]|\\["\\$])*', word[1:-1])
    assert re.sub(r'\\(["\\$])', r"\1", word[1:-1]) == value


def test_pip_reads_a_netrc_file_for_the_indexes_of_the_spec() -> None:
    plain = replace(example_lock(), indexes=())
    before = text(ExportRequest(plain, plain.resolutions)).text
    assert "secret" not in before and "NETRC" not in before
    corp = NamedIndex("corp", "https://packages.example.com/simple", ("corp-*",))
    private = replace(plain, indexes=(corp, replace(corp, name="unused", url="https://no.example")))
    made = text(ExportRequest(private, private.resolutions)).text
    assert "If packages.example.com needs a login" in made and "#   --secret id=netrc,src=$HOME/.netrc\n" in made
    runs = [part for part in made.split("\nRUN ") if "--require-hashes" in part]
    assert len(runs) == 2
    for run in runs:
        assert run.startswith("--mount=type=secret,id=netrc export NETRC=/run/secrets/netrc \\\n && ")


@pytest.mark.parametrize("export", [None, ExportedFiles(dockerfile=True)])
def test_code_and_services_are_refused_by_name(export: ExportedFiles | None) -> None:
    image = ImageSettings(copy=("src",), project="wheel", services=(Service("ssh", 2222),))
    lock = replace(example_lock(), image=image, export=export)
    with pytest.raises(UsageError, match=r"\[image\] copy and \[image\] project and \[services\]") as caught:
        text(ExportRequest(lock, lock.resolutions))
    hint = str(caught.value.hint)
    assert "`envspec image build`" in hint
    assert ("remove `dockerfile` from [export]" in hint) == (export is not None)


def test_a_variable_with_a_line_feed_is_named_as_missing() -> None:
    lock = replace(example_lock(), image=ImageSettings(env=(("KEY", "a\nb"), ("OTHER", "c"))))
    made = text(ExportRequest(lock, lock.resolutions))
    [missing] = made.missing
    assert missing.startswith("the variable KEY")
    assert f"#   {missing}\n" in made.text
    assert 'ENV OTHER="c"\n' in made.text and "ENV KEY" not in made.text
