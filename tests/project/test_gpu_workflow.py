"""gpu-conformance.yml: its scripts as they stand. The registry, its image and the build are real; no GPU is here, nor
an engine that has one: `docker` is a program that keeps books, and `envspec conformance` one that writes a receipt, but
in the test of the real one, which ends where it asks for an engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.builders.environments import RUNNING
from tests.support.builders.images import CUDA, TAG, ImageServers, image_servers, small_wheel
from tests.support.servers.forge import Forge
from tests.support.workflow_runner import Hosted, Runner
from tests.support.workflows import Repository, job

FILE = "workflows/gpu-conformance.yml"
SUITE = job(FILE, "suite")
SPEC = """\
[env]
name = "small"
python = "{series}"
platforms = ["linux-64"]
as_of = 2026-06-01T00:00:00Z

[pip]
dependencies = ["one"]

[image]
base = "{base}"
glibc = "2.36"
python = "{python}"
"""
#: Stands for an engine. Files below the folder: one an image, by the hash of its name, and one a container.
DOCKER = """\
set -e
cd "{folder}"
echo "$*" >> calls
at() {{ printf '%s' "$1" | sha256sum | cut -d ' ' -f 1; }}
case "$*" in
  login*) cat > password; mkdir -p "$DOCKER_CONFIG"; echo '{{}}' > "$DOCKER_CONFIG/config.json" ;;
  "image inspect "*) test -e "images/$(at "$3")" ;;
  "pull --quiet "*) test ! -e offline; touch "images/$(at "$3")" ;;
  "ps --all --quiet "*) ls containers ;;
  "rm --force "*) rm "containers/$3" ;;
  "image rm "*) test ! -e in-use; rm "images/$(at "$3")" ;;
  *) exit 64 ;;
esac
"""
CONFORMANCE = """\
if [ "$1" = conformance ]; then
  # The image's code runs now: there is no login any more.
  [ ! -e "$DOCKER_CONFIG" ] || exit 70
  echo "$*" >> "{folder}/calls"
  touch "{folder}/containers/left"
  while [ "$1" != --report ]; do shift; done
  mkdir -p "$2"
  echo "# It trains" > "$2/receipt.md"
  echo "{{}}" > "$2/receipt.json"
  exit {status}
fi
"""
IMAGE = "127.0.0.1:5000/acme/stacks@sha256:" + "a" * 64


@pytest.fixture(scope="module")
def servers() -> Iterator[ImageServers]:
    with image_servers(small_wheel("one")) as running:
        yield running


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository", [".github"])


def spec_on(servers: ImageServers) -> str:
    base = f"{CUDA}:{TAG}@{servers.base.digest}"
    return SPEC.format(series=RUNNING.rpartition(".")[0], python=RUNNING, base=base)


class Engine:
    """Calls and images of the `docker` on a runner's PATH."""

    def __init__(self, runner: Runner, folder: Path) -> None:
        self.folder = folder
        for name in ("images", "containers"):
            (folder / name).mkdir(parents=True)
        runner.program("docker", DOCKER.format(folder=folder))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def holds(self, image: str) -> Path:
        """Where an image of that name would be."""
        return self.folder / "images" / hashlib.sha256(image.encode()).hexdigest()

    @property
    def containers(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "containers").iterdir())


@contextmanager
def hosted_on(tmp_path: Path, repository: Repository, servers: ImageServers, specs: str) -> Iterator[Hosted]:
    """A forge with the repository and `small` in it, and its machines, which push to the registry without TLS."""
    if shutil.which("skopeo") is None:
        pytest.skip("not run: skopeo is not installed")
    values = {
        "vars.GPU_REGISTRY": servers.registry.host,
        "vars.GPU_SPECS": "",
        "inputs.specs": specs,
        "github.actor": "somebody",
        "github.event_name": "push",
    }
    environ = {
        "GITHUB_REPOSITORY": "Acme/Stacks",
        "ENVSPEC_DEFAULT_INDEX": servers.index.url,
        "ENVSPEC_REGISTRY_MIRRORS": f"docker.io={servers.registry.host}",
        "NO_PROXY": "127.0.0.1",
    }

    def prepare(name: str, machine: Runner) -> None:
        containers = machine.home / ".config" / "containers"
        containers.mkdir(parents=True)
        (containers / "registries.conf").write_text(
            f'[[registry]]\nlocation = "{servers.registry.host}"\ninsecure = true\n'
        )
        if name.startswith("suite"):
            proving(machine, Engine(machine, machine.folder / "engine"), 0)

    author = Runner(tmp_path / "author", repository.folder, {}, **environ)
    repository.writes("specs/small.toml", spec_on(servers))
    author.locks("small")
    repository.commits("locked")
    with Forge(tmp_path / "forge", repository) as forge:
        yield Hosted(tmp_path / "run", forge, values, prepare, **environ)


def test_images_are_pushed_and_run_by_digest(tmp_path: Path, repository: Repository, servers: ImageServers) -> None:
    with hosted_on(tmp_path, repository, servers, "small") as hosted:
        ran = hosted.runs(FILE)
    assert {name: (job.failed, job.unrun) for name, job in ran.items()} == {
        name: ([], []) for name in ("names", "build small", "push", "suite small")
    }, ran["push"].said
    (row,) = json.loads(ran["push"].outputs["matrix"])["include"]
    name, _, digest = row["image"].partition("@")
    assert (row["spec"], name) == ("small", f"{servers.registry.host}/acme/stacks")
    assert digest in servers.registry.held.tags["acme/stacks"]
    calls = (hosted.machines["suite small"].folder / "engine" / "calls").read_text()
    assert f"pull --quiet {row['image']}" in calls and f"conformance small --image {row['image']}" in calls
    assert not (hosted.machines["push"].temp / "login.json").exists()
    # The layout is all that goes from one to the other, and is of no use for longer.
    (kept,) = [step for step in job(FILE, "build").steps if "upload-artifact" in (step.uses or "")]
    assert (kept.with_["retention-days"], kept.with_["compression-level"]) == ("1", "0")


@pytest.mark.parametrize("name", ["../small", "no-such-spec", 'small", "x', "-h"])
def test_a_name_that_is_no_specs_gets_no_further(tmp_path: Path, repository: Repository, name: str) -> None:
    repository.writes("specs/small.toml", "")
    values = {"vars.GPU_SPECS": "", "inputs.specs": name, "github.event_name": "push"}
    ran = Runner(tmp_path / "runner", repository.folder, values).runs(job(FILE, "names"))
    assert ran.failed == ["Specs of these names"] and "no spec is called" in ran.said["Specs of these names"]
    assert ran.outputs["names"] == "" and ran.unrun == []


def suite_runner(tmp_path: Path, repository: Repository, status: int) -> tuple[Runner, Engine]:
    values = {
        "matrix.spec": "small",
        "matrix.image": IMAGE,
        "github.actor": "somebody",
        "github.token": "a token",
        "github.event_name": "push",
    }
    runner = Runner(tmp_path / "runner", repository.folder, values)
    engine = Engine(runner, tmp_path / "engine")
    proving(runner, engine, status)
    return runner, engine


def proving(runner: Runner, engine: Engine, status: int) -> None:
    """`envspec conformance` writes a receipt there and ends so."""
    real = (runner.programs / "envspec").read_text().partition("\n")[2]
    runner.program("envspec", CONFORMANCE.format(folder=engine.folder, status=status) + real)


@pytest.mark.parametrize("status", [0, 7], ids=["passed", "failed"])
def test_the_receipt_is_kept_whether_the_suite_passes_or_not(
    tmp_path: Path, repository: Repository, status: int
) -> None:
    runner, engine = suite_runner(tmp_path, repository, status)
    ran = runner.runs(SUITE)
    assert ran.failed == ([] if status == 0 else ["Run the suite"]) and ran.unrun == [], ran.said
    assert f"conformance small --image {IMAGE} --device cuda --report receipts/small" in engine.calls
    assert ran.summary == "# It trains\n"
    kept = runner.artifacts / "receipt-small"
    assert sorted(path.name for path in kept.iterdir()) == ["receipt.json", "receipt.md"]
    # What the job made is gone, and nothing else: container, image, login, receipt.
    (asked,) = [call for call in engine.calls if call.startswith("ps ")]
    assert asked == f"ps --all --quiet --filter label=envspec.run --filter ancestor={IMAGE}"
    assert not any("prune" in call for call in engine.calls)
    assert engine.containers == [] and not engine.holds(IMAGE).exists()
    assert not (runner.temp / "docker").exists() and not (repository.folder / "receipts/small").exists()


@pytest.mark.parametrize("is_used", [False, True], ids=["was there before", "is used by others"])
def test_an_image_that_stays(tmp_path: Path, repository: Repository, *, is_used: bool) -> None:
    runner, engine = suite_runner(tmp_path, repository, 0)
    (engine.folder / "in-use" if is_used else engine.holds(IMAGE)).touch()
    ran = runner.runs(SUITE)
    assert ran.failed == [] and engine.holds(IMAGE).exists() and engine.containers == []
    assert any(f"::warning::the image {IMAGE} stays" in said for said in ran.said.values()) is is_used


def test_an_image_that_can_not_be_pulled_is_no_receipt(tmp_path: Path, repository: Repository) -> None:
    runner, engine = suite_runner(tmp_path, repository, 0)
    (engine.folder / "offline").touch()
    ran = runner.runs(SUITE)
    assert ran.failed == ["Pull the image by its digest"] and ran.unrun == ["Run the suite"]
    assert "no receipt was written" in ran.summary and list(runner.artifacts.iterdir()) == []


def test_the_real_command_takes_these_words(tmp_path: Path) -> None:
    """Up to the engine, of which there is none here: 6, and what to do. Words that it doesn't know would be 2."""
    repository = Repository(tmp_path / "repository", [".github", "specs/pytorch-2.9.toml", "locks/pytorch-2.9"])
    runner, engine = suite_runner(tmp_path, repository, 0)
    runner.values["matrix.spec"] = "pytorch-2.9"
    runner.environ["DOCKER_HOST"] = f"unix://{tmp_path}/no.sock"
    runner.program("envspec", (runner.programs / "envspec").read_text().rpartition("fi\n")[2])
    ran = runner.runs(SUITE)
    assert ran.failed == ["Run the suite"] and ran.status["Run the suite"] == 6, ran.said
    assert "no engine responds at" in ran.said["Run the suite"] and ran.unrun == []
    assert "no receipt was written" in ran.summary and not engine.holds(IMAGE).exists()


def test_a_cancelled_job_reaches_the_suite_itself(tmp_path: Path) -> None:
    """The runner signals the step's shell, and nobody else, before it ends them all."""
    (script,) = (step.run for step in SUITE.steps if step.name == "Run the suite")
    assert script is not None
    (tmp_path / "step.sh").write_text(script)
    program = tmp_path / "envspec"
    program.write_text("#!/bin/bash\ntrap 'exit 130' INT\ntouch begun\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SPEC": "small", "IMAGE": IMAGE}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"]
    with subprocess.Popen(shell, cwd=tmp_path, env=environ, start_new_session=True) as child:
        try:
            deadline = time.monotonic() + 20
            while not (tmp_path / "begun").exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)
            assert child.wait(10) == 130
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
