"""Output for machines: one JSON object on stdout for results and errors alike, `--quiet`, and `--dry-run`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from envspec.cli.main import COMMANDS, run
from envspec.errors import EnvspecError
from envspec.lockfile.document import dump
from envspec.lockfile.folder import write_folder
from envspec.lockfile.header import LOCK_FILE
from tests.conftest import Serve
from tests.support.builders.ecosystem import releases
from tests.support.builders.locks import example
from tests.support.user import Ran, User

Envspec = Callable[..., Ran]
FILES = releases("base 1.0.0\ntool 1.0.0")

SPEC = """[env]
name = "small"
python = "3.11"
platforms = ["linux-64"]

[pip]
dependencies = ["numpy =="]
"""


@pytest.fixture
def envspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Envspec:
    """The command line in this process, in a folder with a lock, `pytorch-2.9`, and a spec with a mistake, `small`."""
    write_folder(tmp_path / "locks" / "pytorch-2.9", {LOCK_FILE: dump(example(), {}).encode()})
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "small.toml").write_text(SPEC, encoding="utf-8")
    valid = SPEC.replace("small", "valid").replace("numpy ==", "numpy")
    (tmp_path / "specs" / "valid.toml").write_text(valid, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVSPEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def ran(*words: str) -> Ran:
        status = run(words)
        message = capsys.readouterr()
        return Ran(status, message.out, message.err)

    return ran


def test_every_command_offers_json_and_quiet(envspec: Envspec) -> None:
    # The formats of `export` are those of its files.
    groups = ("image", "cache", "fleet")
    commands: list[tuple[str, ...]] = [(name,) for name in COMMANDS if name not in (*groups, "export")]
    commands += [("image", name) for name in ("build", "id", "diff", "verify", "mirror")]
    commands += [("fleet", name) for name in ("job", "report")]
    commands += [("cache", name) for name in ("size", "prune", "clear")]
    for words in commands:
        text = envspec(*words, "--help").stdout
        assert "json" in text.partition("--format")[2].partition("]")[0], words
        assert "--quiet" in text, words


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ("explain nothing", 2, {"code": "usage", "message": "there is no lock nothing", "where": None}),
        ("explain", 2, {"code": "usage", "message": "missing argument 'LOCK'"}),
        ("explain --colour x", 2, {"code": "usage", "message": "no such option '--colour'"}),
        ("schema --no-pyc", 2, {"code": "usage", "hint": "write `--no-compile-bytecode`"}),
        ("explian x", 2, {"code": "usage", "message": "no such command 'explian'; did you mean 'explain'?"}),
        ("image build nothing", 2, {"code": "usage", "message": "there is no lock nothing"}),
        ("run nothing true", 2, {"code": "usage", "message": "there is no lock nothing"}),
        ("conformance nothing --local", 2, {"code": "usage", "message": "there is no lock nothing"}),
        ("verify pytorch-2.9 --prefix nowhere", 2, {"code": "usage"}),
        ("receipts a.json", 2, {"code": "usage", "hint": "name two receipts or more"}),
        (
            "lock small",
            2,
            {"code": "spec", "where": {"file": "specs/small.toml", "line": 7, "key": "pip.dependencies[0]"}},
        ),
        ("lock small --check", 2, {"code": "spec"}),
        ("lock valid --check", 3, None),
    ],
)
def test_an_error_is_json_on_stdout_and_text_on_stderr(
    envspec: Envspec, words: str, status: int, error: Mapping[str, Any] | None
) -> None:
    name, *rest = words.split()
    ran = envspec(name, *rest[:1], "--format=json", *rest[1:])
    assert ran.status == status
    document = json.loads(ran.stdout)
    assert ran.stderr
    if error is None:
        assert document["locks"][0]["reasons"][0]["why"] == "no-lock"
        return
    assert {key: value for key, value in document["error"].items() if key in error} == error
    assert document["error"]["exit_code"] == status
    text = envspec(*words.split())
    assert (text.status, text.stdout) == (status, "")
    if document["error"]["hint"]:
        assert document["error"]["hint"] in text.stderr


def test_all_problems_of_a_spec_are_listed(envspec: Envspec, tmp_path: Path) -> None:
    path = tmp_path / "specs" / "small.toml"
    path.write_text(SPEC.replace('name = "small"', 'name = "small"\ncolour = 1'), encoding="utf-8")
    error = json.loads(envspec("lock", "small", "--format", "json").stdout)["error"]
    assert [each["where"]["line"] for each in error["problems"]] == [3, 8]
    assert all(each["message"] and each["hint"] for each in error["problems"])


def test_of_several_specs_each_has_its_result(envspec: Envspec, tmp_path: Path) -> None:
    other = tmp_path / "specs" / "other.toml"
    other.write_text(SPEC.replace("small", "other").replace("numpy ==", "numpy"), encoding="utf-8")
    ran = envspec("lock", "small", "other", "--check", "--format", "json")
    assert ran.status == 2
    assert [each["spec"] for each in json.loads(ran.stdout)["locks"]] == ["specs/small.toml", "specs/other.toml"]
    other.unlink()
    other.mkdir()
    ran = envspec("lock", "small", "specs/small.toml", "--format", "json")
    assert (ran.status, [each["error"]["code"] for each in json.loads(ran.stdout)["locks"]]) == (2, ["spec", "spec"])
    assert ran.stderr.count("\n  more: envspec explain-error spec\n") == 2


def test_a_spec_that_is_no_toml_does_not_hide_the_others(envspec: Envspec, tmp_path: Path) -> None:
    (tmp_path / "specs" / "small.toml").write_text("x = [", encoding="utf-8")
    ran = envspec("lock", "small", "valid", "--check", "--format", "json")
    broken, valid = json.loads(ran.stdout)["locks"]
    assert (ran.status, broken["spec"], broken["error"]["code"]) == (2, "specs/small.toml", "spec")
    assert valid["spec"] == "specs/valid.toml" and valid["reasons"][0]["why"] == "no-lock"
    assert envspec("lock", "small", "--check", "--format", "json").stdout.startswith('{\n  "error"')


@pytest.mark.parametrize("words", ["", "-q", "-qq", "--debug", "--format json"])
def test_an_error_names_the_command_that_explains_it(envspec: Envspec, words: str) -> None:
    ran = envspec("lock", "small", *words.split())
    assert ran.stderr.endswith("\n  more: envspec explain-error spec\n") and ran.stderr.count("  more: ") == 1
    assert "explain-error" not in ran.stdout


def test_a_result_and_an_error_are_one_object(envspec: Envspec, tmp_path: Path) -> None:
    (tmp_path / "env" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    ran = envspec("verify", "pytorch-2.9", "--prefix", "env", "--platform", "linux-64", "--format", "json")
    document = json.loads(ran.stdout)
    assert (ran.status, document["same"], document["error"]["code"]) == (8, False, "environment-differs")


def test_words_of_a_command_in_a_container_are_its_own(envspec: Envspec) -> None:
    """`--debug` and `--format` after the command belong to it."""
    ran = envspec("run", "nothing", "python", "train.py", "--debug", "--format", "json", "-q")
    assert (ran.status, ran.stdout) == (2, "")
    assert "Traceback" not in ran.stderr


def test_a_dry_run_of_an_image(envspec: Envspec, tmp_path: Path) -> None:
    ran = envspec("image", "build", "pytorch-2.9", "--platform=linux-64", "--push=r.example/a:b", "--dry-run")
    assert ran.status == 0, ran.stderr
    assert "would build pytorch-2.9 for linux-64" in ran.stdout
    assert "would push r.example/a:b" in ran.stdout


def lock_texts(user: User) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in user.lock.iterdir()} if user.lock.exists() else {}


def test_a_dry_run_locks_nothing(tmp_path: Path, serve: Serve) -> None:
    user = User(tmp_path, serve(FILES).url)
    user.wants("base")
    first = user.locks("--dry-run")
    assert (first.status, first.stdout) == (0, "locks/mine: would lock 1 package\n".replace("mine", user.lock.name))
    assert not user.lock.exists()
    user.locked()
    before = lock_texts(user)
    assert user.locks("--dry-run").stdout == f"locks/{user.lock.name}: nothing would change\n"
    user.wants("base", "tool")
    found = json.loads(user.locks("--dry-run", "--format", "json").stdout)
    assert found["dry_run"] is True
    assert [row["name"] for row in found["locks"][0]["diff"]["packages"]] == ["tool"]
    assert f"locks/{user.lock.name}/envspec.lock" in found["locks"][0]["changed"]
    assert lock_texts(user) == before
    written = json.loads(user.locks("--format", "json").stdout)["locks"][0]
    assert written["changed"] == found["locks"][0]["changed"]


def test_quiet_hides_information_and_twice_warnings(tmp_path: Path, serve: Serve) -> None:
    user = User(tmp_path, serve(FILES).url)
    user.wants("base", as_of="2025-06-01T00:00:00Z")
    user.locked()
    words = ("--upgrade",)
    assert user.locks(*words).stderr.startswith("warning: ")
    quiet = user.locks(*words, "-q").stderr
    assert quiet.startswith("warning: ")
    assert "resolving" not in quiet
    assert user.locks(*words, "-qq").stderr == ""
    warnings = json.loads(user.locks(*words, "-qq", "--format", "json").stdout)["warnings"]
    assert "excludes every newer release" in warnings[0]
    # The newest date that a date can be.
    user.wants("base", as_of=f"{datetime.now(timezone.utc):%Y-%m-%d}")
    assert user.locked("--upgrade").warnings == []


def test_long_details_come_after_the_hint_and_are_shortened() -> None:
    sentences = (
        f"Because a=={number} depends on b<{number}, we can conclude that a is unusable." for number in range(99)
    )
    proof = " ".join(sentences)
    error = EnvspecError("no solution", hint="loosen one", details=proof)
    head, hint, details = str(error).split("\n")
    assert (head, hint) == ("no solution", "  hint: loosen one")
    assert len(details) < 1000
    assert "--debug shows all" in details
    assert details.endswith("b<98, we can conclude that a is unusable.")
    assert error.as_document()["details"] == proof


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("lock locks/pytorch-2.9/envspec.lock", "is a lock, not a spec"),
        ("lock locks/pytorch-2.9", "`envspec install locks/pytorch-2.9 --prefix DIR`"),
        ("lock requirements.txt", "is a requirements file, not a spec"),
        ("lock requirements.txt", "write a spec from it: `envspec init requirements.txt --name NAME`"),
        ("lock ./environment.yml", "is a YAML file, not a spec"),
        ("lock pyproject.toml", "is a pyproject.toml without [tool.envspec], not a spec"),
        ("lock uv.lock", "uv.lock is a lock of another tool, not a spec"),
        ("lock ./uv.lock", "commands take it as it is: `envspec image build uv.lock`"),
        ("lock pylock.toml", "pylock.toml is a lock of another tool, not a spec"),
        ("explain . --extra cuda", "no lock of another tool, so there is nothing to select with --extra"),
        ("explain specs/right.toml --no-group dev", "nothing to select with --no-group"),
        ("explain specs/right.toml", "lock it: `envspec lock specs/right.toml`"),
        ("explain specs/locked.toml", "name its lock: pytorch-2.9"),
        ("install pytorch-2.9", "missing option '--prefix'\n  hint: write `envspec install [OPTIONS] LOCK`"),
    ],
)
def test_a_file_of_another_kind(envspec: Envspec, tmp_path: Path, words: str, said: str) -> None:
    right = SPEC.replace("numpy ==", "numpy")
    (tmp_path / "specs" / "right.toml").write_text(right, encoding="utf-8")
    (tmp_path / "specs" / "locked.toml").write_text(right.replace("small", "pytorch-2.9"), encoding="utf-8")
    for name in ("requirements.txt", "environment.yml", "pyproject.toml", "uv.lock", "pylock.toml"):
        (tmp_path / name).write_text("[project]\n", encoding="utf-8")
    ran = envspec(*words.split())
    assert ran.status == 2
    assert said in ran.stderr


@pytest.mark.parametrize(
    ("package", "variable"), [("numpy", "ENVSPEC_DEFAULT_INDEX"), ("torch==2.6.0", "ENVSPEC_PYTORCH_INDEX")]
)
def test_an_index_that_cannot_be_reached_names_its_variable(tmp_path: Path, package: str, variable: str) -> None:
    user = User(tmp_path, "http://127.0.0.1:9/simple/", ENVSPEC_PYTORCH_INDEX="http://127.0.0.1:9/{variant}")
    user.wants(package)
    assert f"check {variable}, which names this address" in user.locks().stderr
    refused = user.locks(**{variable: "", "HTTPS_PROXY": "http://127.0.0.1:9"})
    assert f"set {variable}, such as https://mirror.example/" in refused.stderr
