"""Reading a spec's file, finding it by name, and changing its date."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec import documents
from envspec.errors import UsageError
from envspec.spec import SpecError, find_spec, load_spec, parse_spec, set_as_of
from tests.support.user import ROOT

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
SMALL = '[env]\nname = "small"\npython = "3.11"\n'


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.toml", r"(?s)^spec\.toml: there is no such file\n  hint: check the path$"),
        ("", "is a folder, not a spec"),
        ("a.toml/b.toml", "can't be read: Not a directory"),
        ("a\0b.toml", "can't be read: "),
    ],
)
def test_paths_that_cannot_be_read(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "a.toml").write_text(SMALL)
    with pytest.raises(SpecError, match=message):
        load_spec(tmp_path / path, NOW, "spec.toml")


MARKER = "(" * 900 + "os_name == 'posix'" + ")" * 900


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a = {'[' * 5000}{']' * 5000}", "nested too deeply"),
        (f"a = {'1' * 5000}", "far too long"),
        (
            f'{SMALL}[pip]\ndependencies = ["torch; {MARKER}"]\n',
            r"spec\.toml:5: pip\.dependencies\[0\]: .* nests its marker too deeply",
        ),
        (f'{SMALL}[pip]\ndependencies = ["torch=={"1" * 5000}"]\n', "is 5007 characters long"),
    ],
    ids=["nesting", "number", "marker", "requirement"],
)
def test_texts_beyond_the_bounds(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(text, "spec.toml", NOW)


def test_credentials_are_in_no_message() -> None:
    text = SMALL + (
        '[pip]\ndependencies = ["https://user:hunter2@host/x.whl", "a @ https://user:hunter2@host/x"]\n'
        'constraints = ["a @ https://user:hunter2@host/a-1-py3-none-any.whl"]\nbuild.packages = "https://u:hunter2@host"\n'
        '[[pip.index]]\nname = "corp"\nurl = "https://user:hunter2@host/simple?x"\npackages = ["a"]\n'
        '[image]\nbase = "https://user:hunter2@host/image"\n'
        '[registry.mirrors]\n"docker.io" = "https://user:hunter2@host"\n'
    )
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "spec.toml", NOW)
    assert len(caught.value.problems) == 7
    assert "hunter2" not in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    for name in ("pytorch-2.8", "pytorch-2.9", "llm"):
        (tmp_path / "specs" / f"{name}.toml").write_text(SMALL)
    (tmp_path / "mine.toml").write_text(SMALL)
    (tmp_path / "notes.txt").write_text(SMALL)
    return tmp_path


@pytest.mark.parametrize(
    ("argument", "path"),
    [
        ("llm", "specs/llm.toml"),
        ("mine.toml", "mine.toml"),
        ("./specs/llm.toml", "specs/llm.toml"),
        ("{folder}/mine.toml", "mine.toml"),
    ],
)
def test_find(folder: Path, argument: str, path: str) -> None:
    assert find_spec(argument.format(folder=folder), folder) == folder / path


@pytest.mark.parametrize(
    ("argument", "found", "hint"),
    [
        ("pytorch2.9", 'there is no spec "pytorch2.9" under specs/', "did you mean `pytorch-2.9`?"),
        ("zzz", 'there is no spec "zzz" under specs/', "there are: llm, pytorch-2.8, pytorch-2.9"),
        ("specs/lmm.toml", 'there is no file "specs/lmm.toml"', "did you mean specs/llm.toml?"),
        ("nowhere/x.toml", 'there is no file "nowhere/x.toml"', "check the path"),
        ("./specs", '"./specs" is a folder, not a spec', "name a file, such as specs/llm.toml"),
        ("a\0b", 'there is no spec "a\\u0000b" under specs/', "there are: "),
        ("\x1b[31m.toml", 'there is no file "\\u001b[31m.toml"', "check the path"),
        ("", 'there is no spec "" under specs/', "there are: "),
    ],
)
def test_find_says_what_there_is(folder: Path, argument: str, found: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_spec(argument, folder)
    assert caught.value.message == found
    assert caught.value.hint is not None and caught.value.hint.startswith(hint)
    assert caught.value.exit_code == 2


def test_find_without_specs(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text(SMALL)
    with pytest.raises(UsageError, match='rename "notes"'):
        find_spec("notes", tmp_path)
    with pytest.raises(UsageError, match="or put one under specs/"):
        find_spec("other", tmp_path)


TIME = datetime(2026, 11, 15, 1, 30, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (SMALL, SMALL + "as_of = 2026-11-15T00:30:00Z\n"),
        (SMALL.rstrip(), SMALL + "as_of = 2026-11-15T00:30:00Z"),
        (
            '[env]\r\nname = "x" # a\r\nas_of = 2020-01-01 00:00:00+02:00   # b\r\n[pip]\r\n',
            '[env]\r\nname = "x" # a\r\nas_of = 2026-11-15T00:30:00Z   # b\r\n[pip]\r\n',
        ),
        (
            '[env]\r\nname = "x"\r\n\r\n[pip]\r\n',
            '[env]\r\nname = "x"\r\nas_of = 2026-11-15T00:30:00Z\r\n\r\n[pip]\r\n',
        ),
        (
            '[env]\nname = "x" # c\n\n\n# about pip\n[pip]\n',
            '[env]\nname = "x" # c\nas_of = 2026-11-15T00:30:00Z\n\n\n# about pip\n[pip]\n',
        ),
        (
            '[env]\n  name = "x"\n  platforms = [\n    "linux-64", # ]\n  ]\n',
            '[env]\n  name = "x"\n  platforms = [\n    "linux-64", # ]\n  ]\n  as_of = 2026-11-15T00:30:00Z\n',
        ),
        ('env = { name = "x" }\n', 'env = { name = "x", as_of = 2026-11-15T00:30:00Z }\n'),
        ('env.name = "x"\n[pip]\n', 'env.name = "x"\nenv.as_of = 2026-11-15T00:30:00Z\n[pip]\n'),
        ('[env]\n"as_of" = 2020-01-01T00:00:00Z\n', '[env]\n"as_of" = 2026-11-15T00:30:00Z\n'),
        (
            '[pip]\n[env]\nname = """\n[pip]\n"""\n[cuda]\n',
            '[pip]\n[env]\nname = """\n[pip]\n"""\nas_of = 2026-11-15T00:30:00Z\n[cuda]\n',
        ),
    ],
)
def test_set_as_of(text: str, changed: str) -> None:
    assert set_as_of(text, TIME) == changed


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("[tool.envspec]\npip = {}", "[tool.envspec]\npip = {}\n\n[tool.envspec.env]\nas_of = 2026-11-15T00:30:00Z"),
        (
            "[tool]\r\nenvspec.pip = {}\r\n",
            "[tool]\r\nenvspec.pip = {}\r\n\r\n[tool.envspec.env]\r\nas_of = 2026-11-15T00:30:00Z\r\n",
        ),
        (
            '[tool.envspec.env]\npython = "3.11"\n[x]\n',
            '[tool.envspec.env]\npython = "3.11"\nas_of = 2026-11-15T00:30:00Z\n[x]\n',
        ),
        (
            '[tool.envspec]\nenv.python = "3.11"\n[x]\n',
            '[tool.envspec]\nenv.python = "3.11"\nenv.as_of = 2026-11-15T00:30:00Z\n[x]\n',
        ),
        (
            '[tool]\nenvspec = { env = { python = "3.11" } }\n',
            '[tool]\nenvspec = { env = { python = "3.11", as_of = 2026-11-15T00:30:00Z } }\n',
        ),
    ],
)
def test_set_as_of_in_a_table(text: str, changed: str) -> None:
    assert set_as_of(text, TIME, ("tool", "envspec")).rstrip("\n") == changed.rstrip("\n")
    documents.parse_toml(changed)


def test_set_as_of_needs_a_spec() -> None:
    with pytest.raises(ValueError, match="line 1"):
        set_as_of("[env\n", TIME)


def test_plugins_of_pydantic_have_no_part(tmp_path: Path) -> None:
    """Those that are installed beside envspec."""
    (tmp_path / "plugin.py").write_text("raise SystemExit('imported')\n")
    folder = tmp_path / "plugin-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[pydantic]\nplugin = plugin:plugin\n")
    (tmp_path / "spec.toml").write_text(SMALL)
    code = (
        "import os; from datetime import datetime, timezone; from pathlib import Path; "
        "from envspec.spec import load_spec; spec = load_spec(Path('spec.toml'), datetime.now(timezone.utc)); "
        "print(spec.env.name, 'PYDANTIC_DISABLE_PLUGINS' in os.environ)"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "small False\n"
