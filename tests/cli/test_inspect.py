"""explain, diff, fit and schema: what goes to stdout, what to stderr, and the exit code; mistakes, and completion."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envspec.cli.main import COMMANDS, run
from envspec.documents import parse_toml
from envspec.lockfile.document import dump
from envspec.lockfile.folder import write_folder
from envspec.lockfile.header import LOCK_FILE
from envspec.models import GpuCode, Lock
from envspec.spec.identity import input_sha256
from envspec.structs import replace
from tests.support.builders.locks import X86, example, package
from tests.support.user import ROOT, Ran, environment

#: `envspec WORDS...` in the project's folder.
Envspec = Callable[..., Ran]


def put(cwd: Path, lock: Lock) -> None:
    write_folder(cwd / "locks" / lock.name, {LOCK_FILE: dump(lock, {}).encode()})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with one lock, `pytorch-2.9`."""
    put(tmp_path, example())
    return tmp_path


@pytest.fixture
def envspec(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Envspec:
    """The command line in this process, 100 columns wide."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("COLUMNS", "100")

    def ran(*words: str) -> Ran:
        status = run(words)
        message = capsys.readouterr()
        return Ran(status, message.out, message.err)

    return ran


@pytest.mark.parametrize("word", ["pytorch-2.9", "locks/pytorch-2.9", "locks/pytorch-2.9/envspec.lock"])
def test_explain_a_lock(envspec: Envspec, word: str) -> None:
    ran = envspec("explain", word)
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout.startswith("pytorch-2.9: nothing newer than 2026-11-15T00:00:00Z")
    assert "nvidia-cuda-runtime-cu12 12.8.90 is CUDA 12.8.1 [data/cuda_images.toml]" in ran.stdout


def test_explain_a_package(project: Path, envspec: Envspec) -> None:
    ran = envspec("explain", "pytorch-2.9", "NumPy")
    assert (ran.status, ran.stderr) == (0, "")
    assert "newest version up to 2026-11-15T00:00:00Z, rejected\n  2.4.6\n      the spec wants numpy<2.3" in ran.stdout
    message = json.loads(envspec("explain", "pytorch-2.9", "numpy", "--format=json").stdout)
    [reason] = message["variants"][0]["rejected"]["why"]
    assert (message["variants"][0]["rejected"]["version"], reason["text"]) == ("2.4.6", "the spec wants numpy<2.3")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_text_takes_the_width_it_is_given(envspec: Envspec, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = envspec("explain", "pytorch-2.9")
    prose = [line for line in ran.stdout.splitlines() if line.startswith("      ") and "sha256:" not in line]
    assert prose
    assert max(map(len, prose)) <= columns
    assert max(map(len, prose)) > columns - 25


def test_diff_ends_with_0_or_10(project: Path, envspec: Envspec) -> None:
    old = example()
    first = replace(
        old.resolutions[0],
        packages=tuple(
            package("filelock", "3.21.0", ("torch", "filelock")) if item.name == "filelock" else item
            for item in old.resolutions[0].packages
        ),
    )
    put(project, replace(old, name="newer", resolutions=(first, *old.resolutions[1:])))
    same = envspec("diff", "pytorch-2.9", "locks/pytorch-2.9")
    assert (same.status, same.stdout, same.stderr) == (0, "pytorch-2.9: no differences\n", "")
    text = envspec("diff", "pytorch-2.9", "newer")
    assert (text.status, text.stderr) == (10, "")
    assert "filelock  up  3.20.0 -> 3.21.0  linux-64" in text.stdout
    found = envspec("diff", "pytorch-2.9", "newer", "--format", "json")
    assert found.status == 10
    assert [row["name"] for row in json.loads(found.stdout)["packages"]] == ["filelock"]
    message = envspec("diff", "pytorch-2.9", "newer", "--format", "markdown")
    assert (message.status, message.stderr) == (10, "")
    assert "| filelock | up | `3.20.0` | `3.21.0` | linux-64 |" in message.stdout


def test_diff_with_a_revision(project: Path, envspec: Envspec) -> None:
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    environ = {**environment(project), "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        subprocess.run(["git", *who, *words], cwd=project, env=environ, check=True)
    put(project, replace(example(), gpus=("T4",)))
    ran = envspec("diff", "HEAD:locks/pytorch-2.9", "pytorch-2.9")
    assert (ran.status, ran.stderr) == (10, "")
    assert "gpus  T4, A100, H100 -> T4" in ran.stdout
    missing = envspec("diff", "HEAD~7:locks/pytorch-2.9", "pytorch-2.9")
    assert (missing.status, missing.stdout) == (2, "")
    assert "invalid object name 'HEAD~7'" in missing.stderr


@pytest.mark.parametrize(
    ("words", "status", "lines"),
    [
        ("pytorch-2.9 --driver 570.124.06 --gpu H100 --gpu T4", 0, "the described machine can run pytorch-2.9\n"),
        ("pytorch-2.9 --driver 470.57.02 --gpu A100", 6, "update the NVIDIA driver to 525.60.13 or newer"),
        ("pytorch-2.9 --platform linux-aarch64 --driver 570.26", 0, "linux-aarch64, driver 570.26"),
        ("pytorch-2.9 --platform osx-arm64", 6, 'add "osx-arm64" to [env] platforms and lock again'),
        ("without-code --gpu H100 --driver 570.124.06", 6, "it is unknown whether the described machine can run"),
    ],
)
def test_fit_of_a_described_machine(project: Path, envspec: Envspec, words: str, status: int, lines: str) -> None:
    put(project, replace(example(), name="without-code", gpu_code=()))
    ran = envspec("fit", *words.split())
    assert (ran.status, ran.stderr) == (status, "")
    assert lines in ran.stdout
    verdict = json.loads(envspec("fit", *words.split(), "--format", "json").stdout)["verdict"]
    assert (verdict == "fits") is (status == 0)


def test_fit_of_this_machine_says_what_it_saw(project: Path, envspec: Envspec) -> None:
    """Whatever machine runs the tests: the verdict, the exit code and the machine agree."""
    ran = envspec("fit", "pytorch-2.9", "--format", "json")
    message = json.loads(ran.stdout)
    assert message["machine"]["source"] == "read"
    assert (message["verdict"] == "fits") is (ran.status == 0)
    assert ran.status in (0, 6)


def test_fit_knows_the_gpus_that_the_spec_adds(project: Path, envspec: Envspec) -> None:
    """[[facts.gpu]] of the lock's own spec counts; that of a spec which was changed since does not."""
    spec = """
[env]
name = "future"
python = "3.11"
platforms = ["linux-64"]

[[facts.gpu]]
name = "Z900"
compute_capability = "9.0"
memory_mib = [81559]
source = "the vendor's page"
"""
    codes = (GpuCode(X86, "torch", "2.9.1", "cu128", ("sm_90",), (), "the wheel"),)
    lock = replace(example(), name="future", spec="../../specs/future.toml", gpu_code=codes)
    put(project, replace(lock, input_sha256=input_sha256(parse_toml(spec))))
    (project / "specs").mkdir()
    path = project / "specs" / "future.toml"
    path.write_text(spec, encoding="utf-8")
    known = envspec("fit", "future", "--gpu", "Z900", "--driver", "570.124.06")
    assert (known.status, known.stderr) == (0, "")
    assert "Z900 (sm_90): torch 2.9.1 cu128 has code for it" in known.stdout
    path.write_text(spec.replace('"3.11"', '"3.12"'), encoding="utf-8")
    assert envspec("fit", "future", "--gpu", "Z900").status == 2


def test_schema_is_the_committed_one(envspec: Envspec) -> None:
    ran = envspec("schema")
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout == (ROOT / "envspec.schema.json").read_text(encoding="utf-8"), (
        "envspec schema > envspec.schema.json"
    )
    assert json.loads(ran.stdout)["$schema"] == "http://json-schema.org/draft-07/schema#"


def test_every_committed_spec_names_a_schema_that_is_there() -> None:
    for path in sorted((ROOT / "specs").glob("*.toml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        if first.startswith("#:schema "):
            assert (path.parent / first.removeprefix("#:schema ")).resolve().is_file(), path


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(envspec: Envspec, name: str) -> None:
    ran = envspec(name, "--help")
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"Usage: envspec {name} ")
    assert max(map(len, ran.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("frobnicate",), "no such command 'frobnicate'"),
        (("explain", "--formta", "json", "x"), "Did you mean '--format'"),
        (("diff", "one"), "missing argument 'NEW'"),
        (("diff", "one", "two", "three"), "three"),
        (("explain", "--format", "xml", "x"), "'xml' is not one of 'text', 'json'"),
        (("fit", "pytorch-2.9", "--gpu", "H100", "RTX 4090"), "--gpu H100 --gpu 'RTX 4090'"),
        (("fit", "pytorch-2.9", "570.26"), "name a GPU by --gpu, a driver by --driver"),
        (("fit", "pytorch-2.9", "--driver", "newest"), "such as 570.124.06"),
        (("fit", "pytorch-2.9", "--gpu", "H1000"), "did you mean H100"),
        (("explain", "pytorhc-2.9"), "did you mean pytorch-2.9?"),
        (("explain", "pytorch-2.9", "nunpy"), "did you mean numpy?"),
        (("diff", "pytorch-2.9", "nowhere:"), "is not a revision and a lock"),
    ],
)
def test_a_mistake_is_told_once_and_ends_with_2(envspec: Envspec, words: tuple[str, ...], said: str) -> None:
    ran = envspec(*words)
    assert (ran.status, ran.stdout) == (2, "")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_damaged_lock_ends_with_3(project: Path, envspec: Envspec) -> None:
    document = project / "locks" / "pytorch-2.9" / LOCK_FILE
    document.write_text(document.read_text(encoding="utf-8").replace("3.11.14", "3.11.15"), encoding="utf-8")
    ran = envspec("explain", "pytorch-2.9")
    assert (ran.status, ran.stdout) == (3, "")
    assert ran.stderr.startswith("error: ")
    assert "was changed after envspec wrote it" in ran.stderr


@pytest.mark.parametrize(
    "words", [("--debug", "explain", "no"), ("explain", "--debug", "no"), ("explain", "no", "--debug")]
)
def test_debug_shows_a_traceback_wherever_it_stands(envspec: Envspec, words: tuple[str, ...]) -> None:
    ran = envspec(*words)
    assert (ran.status, ran.stdout) == (2, "")
    assert "Traceback (most recent call last)" in ran.stderr
    assert "\nerror: there is no lock no\n" in ran.stderr


def test_completion_knows_commands_options_and_locks(envspec: Envspec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ENVSPEC_COMPLETE", "bash_complete")

    def completed(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("envspec", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        ran = envspec()
        assert (ran.status, ran.stderr) == (0, "")
        return [line.partition(",")[2] for line in ran.stdout.splitlines() if line]

    assert completed("d") == ["diff", "doctor"]
    assert completed("explain", "py") == ["pytorch-2.9"]
    assert completed("diff", "pytorch-2.9", "--f") == ["--format"]
