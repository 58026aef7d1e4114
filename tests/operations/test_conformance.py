"""`envspec conformance --local`, on small environments without torch: what runs, what it says, and how it ends."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import envspec
from envspec.cli.conformance import _error
from envspec.conformance.checks import CHECKS
from envspec.conformance.request import Nodes
from envspec.errors import UsageError
from envspec.models import Conformance, Lock, Platform
from envspec.report import RECEIPT_FILES
from envspec.structs import replace
from tests.conftest import Serve
from tests.support.builders.environments import BASE, installs, make_lock, pin, write_lock
from tests.support.builders.projects import File
from tests.support.builders.receipts import check, made, results
from tests.support.builders.wheels import wheel
from tests.support.machines.suite import PATIENCE_S
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User, refused
from tests.support.waits import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the suite runs on Linux only")

TOOL: Final = wheel("tool", "1.0", files={"tool/__init__.py": b"__version__ = '1.0'\n"})


@pytest.fixture
def user(tmp_path: Path, serve: Serve) -> User:
    (tmp_path / "temporary").mkdir()
    return User(tmp_path, serve([File(TOOL)]).url)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> User:
    """A lock with its environment, for tests that change neither."""
    user = User(tmp_path_factory.mktemp("unchanged"), "http://127.0.0.1:9/")
    with IndexServer([File(TOOL)]) as index:
        user.environ["ENVSPEC_DEFAULT_INDEX"] = index.url
        lock_of(user)
    (user.folder / "temporary").mkdir()
    return user


def lock_of(user: User, **more: Any) -> Lock:
    """The lock, written, and its environment installed."""
    lock = replace(make_lock(wheels=[pin(TOOL)]), **more)
    write_lock(user.folder / "lock", lock)
    ran = installs(user, user.folder / "lock", "--python", BASE)
    assert ran.status == 0, ran.stderr
    return lock


def _words(user: User, python: str = "env/bin/python") -> list[str]:
    return ["conformance", "lock", "--local", "--python", str(user.folder / python), "--device", "cpu"]


def proves(user: User, *words: str, **environ: str) -> Ran:
    return user.runs(*_words(user), *words, environ={"TMPDIR": str(user.folder / "temporary"), **environ})


@pytest.fixture
def temporary(user: User) -> Path:
    return user.folder / "temporary"


def receipt(user: User) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((user.folder / "receipts" / "receipt.json").read_text())
    return found


def test_a_lock_without_torch_has_nothing_to_test(user: User, temporary: Path) -> None:
    lock_of(user)
    ran = proves(user, "--report", "receipts")
    assert ran.status == 6, ran.stderr
    assert ran.error.startswith("small: the suite tests torch, which is not in this stack: only lock was tested\n")
    assert "more: envspec explain-error no-torch" in ran.stderr
    document = receipt(user)
    assert (document["verdict"], document["summary"]["question"]) == ("not known", [])
    statuses = {each["check"]: each["status"] for each in document["checks"]}
    assert list(statuses) == list(CHECKS)
    assert {name for name, status in statuses.items() if status == "passed"} == {"lock"}
    assert {status for name, status in statuses.items() if name != "lock"} == {"not run"}
    assert document["summary"]["checks"]["passed"] == 1
    reasons = {each["check"]: each["reason"] for each in document["checks"]}
    assert reasons["matmul"] == "torch is not in the lock"
    assert document["local"]["is_locked"] is True
    assert {path.name for path in (user.folder / "receipts").iterdir()} == {*RECEIPT_FILES}
    assert list(temporary.iterdir()) == []


def test_the_hint_is_of_a_check_that_failed() -> None:
    other_box = check("ddp", status="not run", reason="one GPU", hint="use a machine with two GPUs")
    failed = check("matmul", status="failed", cause="found", reason="off", hint="take the GPU out")
    assert str(_error(made(other_box, failed), None).hint).startswith("take the GPU out; ")
    assert _error(made(other_box, {**failed, "hint": ""}), None).hint == "`--report DIR` writes all of it"


NOWHERE: Final = {"DOCKER_HOST": "unix:///nowhere"}


def test_without_an_engine_the_test_of_a_local_python_is_named(user: User) -> None:
    write_lock(user.folder / "lock", make_lock(where=Platform.LINUX_64))
    message = refused(user.runs("conformance", "lock", "--device", "cpu", environ=NOWHERE), 6)
    assert "no engine responds at unix:///nowhere (DOCKER_HOST)" in message
    assert "--local --python" in message


@pytest.mark.parametrize("words", [("conformance", "lock", "--device", "cpu"), ("run", "lock", "true")])
def test_the_platform_of_the_lock_is_checked_before_the_engine(user: User, words: tuple[str, ...]) -> None:
    write_lock(user.folder / "lock", make_lock(where=Platform.OSX_ARM64))
    message = refused(user.runs(*words, environ=NOWHERE), 6)
    assert "small is locked for osx-arm64, and a container needs a linux platform" in message


def test_a_named_check_that_did_not_run_is_not_known(unchanged: User) -> None:
    ran = proves(unchanged, "--check", "device", "--check", "lock")
    assert ran.status == 7, ran.stderr
    assert ran.error.startswith("small: whether it works is not known: device did not run\n")
    assert "more: envspec explain-error not-tested" in ran.stderr
    assert proves(unchanged, "--check", "lock").status == 0


def test_every_limit_is_multiplied(unchanged: User) -> None:
    words = ("--check", "lock", "--check", "device", "--limit", "device=50", "--format", "json")
    limits, grown = (
        [each["limit_s"] for each in json.loads(proves(unchanged, *words, *more).stdout)["checks"]]
        for more in ((), ("--limit-factor", "2.5"))
    )
    assert limits[0] == 50 and grown == [2.5 * each for each in limits]
    for wrong in ("0", "-1", "nan", "x"):
        assert f"--limit-factor {wrong}: not a number" in refused(proves(unchanged, "--limit-factor", wrong), 2)


def test_a_required_check_that_did_not_run_fails(user: User) -> None:
    lock_of(user, conformance=Conformance(checks=("lock", "ddp")))
    ran = proves(user)
    assert ran.status == 7, ran
    assert "ddp" in ran.error
    document = json.loads(proves(user, "--format", "json").stdout)
    assert document["summary"]["required_not_run"] == ["ddp"]
    assert [each["check"] for each in document["checks"]] == ["ddp", "lock"]


@pytest.mark.parametrize(
    ("words", "checks"),
    [
        ((), ["device", "sustained", "health"]),
        (("--check", "lock"), ["lock", "sustained"]),
        (("--check", "sustained"), ["sustained"]),
    ],
)
def test_a_burn_runs_the_named_checks_and_sustained(unchanged: User, words: tuple[str, ...], checks: list[str]) -> None:
    document = json.loads(proves(unchanged, "--burn", "10", *words, "--format", "json").stdout)
    assert [each["check"] for each in document["checks"]] == checks
    limits = {each["check"]: each["limit_s"] for each in document["checks"]}
    assert limits["sustained"] == 180 + 1.2 * 600


def test_a_changed_file_fails_and_is_named(user: User) -> None:
    lock_of(user)
    (module,) = (user.folder / "env").glob("lib/python3*/site-packages/tool/__init__.py")
    module.write_bytes(module.read_bytes().replace(b"1.0", b"1.1"))
    ran = proves(user, "--check", "lock", "--report", "receipts")
    assert ran.status == 7
    assert "tool/__init__.py was changed" in " ".join(ran.stdout.split())
    assert ran.error.startswith("small: conformance failed: "), ran.error
    assert receipt(user)["local"]["is_locked"] is False


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--check", "matmull"], "there is no check matmull"),
        (["--image", "some:image"], "--local and --image exclude each other"),
        (["--gpus", "0"], "--gpus is for containers, and --local uses none"),
        (["--no-compile-bytecode"], "--no-compile-bytecode is for containers"),
        (["--env", "NCCL_DEBUG=INFO"], "--env is for containers, and --local uses none"),
        (["--mount", "/data:/data"], "--mount is for containers"),
        (["--offline"], "--offline is for containers"),
        (["--mirror", "docker.io=127.0.0.1:5000"], "--mirror is for containers"),
        (["--limit", "matmull=3"], "there is no check matmull"),
        (["--limit", "lock"], "--limit lock: the form is NAME=SECONDS"),
        (["--limit", "lock=inf"], "--limit lock=inf: the form is NAME=SECONDS"),
        (["--world-size", "none"], "--world-size none"),
        (["--world-size", "0"], "--world-size 0"),
        (["--burn", "0"], "--burn 0: not a number of minutes"),
        (["--nodes", "2", "--node-rank", "2"], "--node-rank 2: the ranks of 2 nodes are 0 to 1"),
        (["--node-rank", "1"], "--node-rank 1: there is one node, and its rank is 0"),
        (["--nodes", "2"], "2 nodes need a rendezvous"),
        *(
            (["--nodes", "2", "--rendezvous", text], f"--rendezvous {text}: the form is HOST:PORT")
            for text in ("10.0.0.1", ":29500", "node-0:http", "node-0:70000")
        ),
        (["--report", "lock/envspec.lock/receipts"], "lock/envspec.lock/receipts can't be written: Not a directory"),
        (["--report", "/proc/receipts"], "/proc/receipts can't be written"),
        (["--device", "cuda"], "has no CUDA to test"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(unchanged: User, words: list[str], shown: str) -> None:
    ran = proves(unchanged, *words)
    assert shown in refused(ran, 2)
    assert ran.stderr.startswith("error: "), "no check has run"
    assert list((unchanged.folder / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"python": BASE}, "--python needs --local"),
        ({"local": True, "image": "some:image"}, "--local and --image exclude each other"),
        ({"local": True, "python": BASE, "device": "gpu"}, "there is no device gpu"),
        ({"local": True, "python": BASE, "nodes": Nodes(2)}, "2 nodes need a rendezvous"),
    ],
)
def test_the_python_api_refuses_it_too(unchanged: User, options: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError, match=shown):
        envspec.test(unchanged.folder / "lock", **options)


def test_lines_are_as_wide_as_asked_for(user: User) -> None:
    lock_of(user)
    ran = proves(user, "--check", "lock", COLUMNS="48")
    assert ran.status == 0, ran.stderr
    # A path is not broken.
    assert all(len(line) <= 48 for line in ran.stdout.splitlines() if str(user.folder)[:20] not in line), ran.stdout


@pytest.mark.parametrize(
    ("python", "status", "message"),
    [
        ("nowhere/python", 2, "nowhere/python: no program"),
        ("/bin/true", 6, "the suite exited with status 0 without results: no output"),
    ],
)
def test_a_program_that_is_no_python(unchanged: User, python: str, status: int, message: str) -> None:
    assert message in refused(unchanged.runs(*_words(unchanged, python)), status)


def test_a_suite_that_fails_after_its_results_has_not_passed(unchanged: User, tmp_path: Path) -> None:
    document = tmp_path / "results.json"
    document.write_text(json.dumps(results(check("lock"))))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncp {document} "$4"\necho "the suite cannot continue: no room" >&2\nexit 3\n')
    python.chmod(0o755)
    ran = unchanged.runs(*_words(unchanged, str(python)), "--check", "lock", "--format", "json")
    assert ran.status == 7, ran.stderr
    found = json.loads(ran.stdout)
    reason = "the suite exited with status 3: the suite cannot continue: no room"
    assert (found["verdict"], found["reasons"]) == ("not known", [reason])


def test_all_processes_instead_of_the_spec_s(user: User) -> None:
    lock_of(user, conformance=Conformance(checks=("lock",), world_size=3))
    for words, size in (((), 3), (("--world-size", "2"), 2), (("--world-size", "all"), None)):
        assert json.loads(proves(user, *words, "--format", "json").stdout)["world_size"] == size


def test_an_active_environment_with_a_relative_path(unchanged: User) -> None:
    words = ["conformance", "lock", "--local", "--device", "cpu", "--check", "lock"]
    ran = unchanged.runs(*words, environ={"VIRTUAL_ENV": "env"})
    assert ran.status == 0, ran.stderr


def test_a_suite_that_cannot_be_copied_leaves_no_folder(unchanged: User) -> None:
    words = [sys.executable, "-m", "envspec", *_words(unchanged), "--check", "lock"]
    temporary = unchanged.folder / "temporary"
    ran = subprocess.run(
        ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *words],
        cwd=unchanged.folder,
        env={**unchanged.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 6 and f"the suite can't be laid out in {temporary}" in ran.stderr
    assert list(temporary.iterdir()) == []


@contextlib.contextmanager
def _hanging(user: User, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A run whose check hangs in an import of torch. before: what torch does first."""
    lock_of(user)
    (site,) = (user.folder / "env").glob("lib/python3*/site-packages")
    (site / "torch").mkdir()
    text = f"import pathlib, time\n{before}\npathlib.Path({str(user.folder / 'begun')!r}).touch()\ntime.sleep(600)\n"
    (site / "torch" / "__init__.py").write_text(text)
    with subprocess.Popen(
        [sys.executable, "-m", "envspec", *_words(user), "--report", "receipts"],
        cwd=user.folder,
        env={**user.environ, "TMPDIR": str(user.folder / "temporary")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        wait_for((user.folder / "begun").exists)
        assert _processes_of(user)
        yield child


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_however_it_is_ended_nothing_is_left(user: User, temporary: Path, number: int, status: int) -> None:
    with _hanging(user) as child:
        child.send_signal(number)
        assert child.wait(PATIENCE_S) == status
    wait_for(lambda: not _processes_of(user))
    assert not (user.folder / "receipts").exists()
    # After SIGKILL nobody can remove the folder.
    assert number == signal.SIGKILL or list(temporary.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_what_was_found_until_then_is_in_the_receipt(user: User, temporary: Path, number: int, status: int) -> None:
    """coldstart has ended with the first import's error, and the next check hangs in the second import."""
    first = f"pathlib.Path({str(user.folder / 'first')!r})"
    with _hanging(user, f"if not {first}.exists():\n    {first}.touch()\n    raise ImportError('once')") as child:
        child.send_signal(number)
        _, stderr = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == status
    assert "wrote receipts/receipt.json" in stderr
    document = receipt(user)
    assert document["verdict"] == "failed"
    reasons = {each["check"]: each["reason"] for each in document["checks"]}
    assert "once" in reasons.pop("coldstart")
    assert set(reasons.values()) == {"the suite ended before it"}
    assert list(temporary.iterdir()) == []


def _processes_of(user: User) -> list[str]:
    """Command lines of running processes of the environment's Python."""
    python, found = str(user.folder / "env" / "bin" / "python"), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().split(b"\0")
            if line[0] == python.encode() and b"--local" not in line:
                found.append(" ".join(part.decode() for part in line))
    return found


def test_a_run_is_held_against_a_recorded_one(user: User) -> None:
    lock_of(user)
    assert proves(user, "--check", "lock", "--report", "receipts").status == 0
    again = proves(user, "--check", "lock", "--baseline", "receipts", "--format", "json")
    assert again.status == 0, again.stderr
    assert json.loads(again.stdout)["baseline"] is not None
    (user.folder / "receipts" / "receipt.json").write_text('{"format": 99}')
    assert "receipt.json" in refused(proves(user, "--baseline", "receipts"), 2)


_TORCH: Final = "class version:\n    cuda = None\n__version__ = '2.9.1'\n"


def test_without_a_lock_the_python_s_own_stack_is_tested(unchanged: User, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(_TORCH)
    words = ["conformance", "--local", "--python", str(unchanged.folder / "env/bin/python"), "--device", "cpu"]
    environ = {"PYTHONPATH": str(tmp_path), "TMPDIR": str(unchanged.folder / "temporary")}
    report = str(tmp_path / "report")
    ran = unchanged.runs(*words, "--check", "device", "--check", "lock", "--report", report, environ=environ)
    assert ran.status == 7 and "torch 2.9.1, no lock: whether it works is not known: device, lock did not run" in (
        " ".join(ran.stderr.split())
    )
    found = json.loads((tmp_path / "report" / "receipt.json").read_text())
    assert (found["lock"], found["as_if"]) == (None, None)
    assert {each["check"]: each["reason"] for each in found["checks"]}["lock"] == "no lock is given"

    ran = unchanged.runs(
        *words, "--compare-with", "lock", "--check", "device", "--check", "lock", "--report", report, environ=environ
    )
    assert ran.status == 7, ran.stderr
    found = json.loads((tmp_path / "report" / "receipt.json").read_text())
    assert found["as_if"]["name"] == make_lock().name
    assert found["lock"] is None and found["local"]["is_locked"] is None
    assert {each["check"]: each["status"] for each in found["checks"]}["lock"] == "passed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "LOCK is missing: only --local tests a stack without one"),
        (("lock", "--local", "--compare-with", "lock"), "--compare-with is for a stack without a lock"),
        (("--image", "x:1"), "LOCK is missing"),
    ],
)
def test_what_needs_a_lock_says_so(unchanged: User, words: tuple[str, ...], message: str) -> None:
    assert message in refused(unchanged.runs("conformance", *words), 2)


def test_a_stack_without_a_lock_is_for_gpus_unless_the_cpu_is_requested(unchanged: User) -> None:
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    python = str(unchanged.folder / "env/bin/python")
    message = refused(unchanged.runs("conformance", "--local", "--python", python, "--check", "device"), 6)
    assert "NVIDIA's driver is not installed" in message and "--device cpu" in message
