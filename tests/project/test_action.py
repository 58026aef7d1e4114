"""The composite action: its scripts as they stand, on a copy of what it is installed from."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.utils import canonicalize_name

from envspec.cli.main import COMMANDS
from envspec.operations.audit_project import USUAL
from tests.support.user import ROOT
from tests.support.workflow_runner import Runner
from tests.support.workflows import ACTION, Repository, job

STEPS = job(ACTION, "runs")
INSTALL, COMMAND = STEPS.runs
SOURCE = ("pyproject.toml", "README.md", "LICENSE", "envspec", "locks", "specs", ".github")
#: What of this machine says how an index is reached.
REACHED = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "PIP_CACHE_DIR")


def runner_on(tmp_path: Path, command: str, folder: str = ".", **environ: str) -> Runner:
    """The action's repository is checked out beside the workspace, as GitHub does it for `uses: OWNER/envspec/...`."""
    action = Repository(tmp_path / "action", SOURCE)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    inputs = {"inputs.command": command, "inputs.working-directory": folder, "inputs.python-version": "3.11"}
    path = action.folder / ".github" / "actions" / "envspec"
    return Runner(tmp_path / "runner", workspace, inputs, GITHUB_ACTION_PATH=str(path), **environ)


def network() -> dict[str, str]:
    none = {"HTTP_PROXY": "", "HTTPS_PROXY": "", "PIP_CONFIG_FILE": os.devnull}
    return {**none, **{name: os.environ[name] for name in REACHED if name in os.environ}}


@pytest.mark.network
def test_it_installs_what_is_locked_and_runs_the_command(tmp_path: Path) -> None:
    runner = runner_on(tmp_path, "lock --check specs/*.toml", "../action", **network())
    # Where the action's environment comes on PATH, this one is no longer meant.
    (runner.programs / "envspec").unlink()
    ran = runner.runs(STEPS)
    assert ran.failed == [] and ran.unrun == [], ran.said
    installed = runner.temp / "envspec" / "bin"
    message = subprocess.run([installed / "pip", "freeze", "--all"], capture_output=True, text=True, check=True).stdout
    frozen = {
        canonicalize_name(name) + version for name, version in re.findall(r"^([\w.-]+)(==\S+)$", message, re.MULTILINE)
    }
    series = f"{sys.version_info.major}.{sys.version_info.minor}"
    lock = (tmp_path / f"action/locks/dev-{series}/requirements.linux-64.txt").read_text()
    # pip is of the environment's making where the lock has none.
    locked = set(re.findall(r"^[\w.-]+==[^\s\\]+", lock, re.MULTILINE))
    assert {row for row in frozen if not row.startswith(("pip==", "setuptools=="))} <= locked <= frozen
    assert (installed / "nox").exists() and (installed / "envspec").exists()


@pytest.mark.network
def test_another_file_than_the_locked_one_is_not_installed(tmp_path: Path) -> None:
    runner = runner_on(tmp_path, "", **network())
    series = f"{sys.version_info.major}.{sys.version_info.minor}"
    lock = tmp_path / f"action/locks/dev-{series}/requirements.linux-64.txt"
    head, _, rest = lock.read_text().partition("--hash=sha256:")
    lock.write_text(f"{head}--hash=sha256:{'0' * 64}{rest[64:]}")
    ran = runner.runs(STEPS)
    assert ran.failed == [INSTALL] and "DO NOT MATCH THE HASHES" in ran.said[INSTALL]


def test_a_python_without_a_lock_is_refused(tmp_path: Path) -> None:
    """The Python that answers here says that it is 3.9."""
    runner = runner_on(tmp_path, "--version")
    runner.program("python3.9", "echo 3.9")
    runner.values["steps.python.outputs.python-path"] = ""
    old = runner.programs / "python3.9"
    done = subprocess.run(
        ["bash", Path(runner.environ["GITHUB_ACTION_PATH"]) / "install.sh", old, runner.temp / "envspec"],
        env=runner.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "no lock of its own for Python 3.9 on linux-64" in done.stdout
    assert not (runner.temp / "envspec").exists()


def installed(tmp_path: Path, command: str, folder: str = ".") -> Runner:
    """A runner whose Python makes an environment in which nothing is to be done."""
    runner = runner_on(tmp_path, command, folder)
    script = Path(runner.environ["GITHUB_ACTION_PATH"]) / "install.sh"
    script.write_text(f'[ "$#" = 2 ] && [ -x "$1" ]\necho "{runner.programs}" >> "$GITHUB_PATH"\n')
    return runner


def test_the_command_is_words_and_globs_and_no_shell(tmp_path: Path) -> None:
    runner = installed(tmp_path, 'lock --check *.toml $(touch hacked) ; "a b"', "sub")
    (runner.workspace / "sub").mkdir()
    for name in ("one.toml", "two.toml"):
        (runner.workspace / "sub" / name).touch()
    runner.program("envspec", 'printf "%s\\n" "$@"; exit 3')
    ran = runner.runs(STEPS)
    words = ["lock", "--check", "one.toml", "two.toml", "$(touch", "hacked)", ";", '"a', 'b"']
    assert ran.said[COMMAND].splitlines() == words
    assert ran.status[COMMAND] == 3 and not (runner.workspace / "sub" / "hacked").exists()


def test_without_a_command_it_only_installs(tmp_path: Path) -> None:
    ran = installed(tmp_path, "").runs(STEPS)
    assert ran.failed == [] and ran.unrun == [COMMAND]


def test_an_audit_prints_annotations(tmp_path: Path) -> None:
    """Workflow commands on stdout are annotations; the step fails with the command's code."""
    runner = installed(tmp_path, "audit-project --offline --gpu V100 --format github")
    (runner.workspace / "requirements.txt").write_text("torch==2.11.0\n")
    runner.program("envspec", f'PYTHONPATH="{ROOT}" "{sys.executable}" -m envspec "$@"')
    ran = runner.runs(STEPS)
    assert ran.status[COMMAND] == 10, ran.said
    first, *others = ran.said[COMMAND].splitlines()
    assert first.startswith("::error file=requirements.txt,line=1,title=ENV201::torch 2.11.0 for CUDA 13.0 has no code")
    assert all(line.startswith("::notice") for line in others)


def test_the_hook_runs_for_the_files_that_are_read() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["entry"].split()[1] in COMMANDS
    assert all(re.search(hook["files"], name) for name in USUAL)
    assert not re.search(hook["files"], "src/pyproject.toml.j2")
