"""Runs the conformance suite of the checkout in some Python, and reads its results."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import envspec.conformance.run
from envspec.conformance.request import SuiteRequest

RUN: Final = Path(envspec.conformance.run.__file__)
#: A suite that takes longer has hung: its own limits have failed. All checks at a GPU's sizes take 6 minutes on two
#: idle cores, and three times as long beside other tests.
LIMIT_S: Final = 1800
#: For what is sure to come; a busy machine may take long. Shorter than what hangs in the tests.
PATIENCE_S: Final = 300
#: Every process of a run has the run's folder in this variable.
MARK: Final = "TESTS_SUITE_RUN"
#: What ignores SIGTERM is waited for in vain: an honest end takes less even on a busy machine.
_GRACE: Final = {"ENVSPEC_SUITE_GRACE_S": "0.3"}
#: Bodies for `fake_torch`: a torch for the CPU that does nothing.
GOOD: Final = """
    class version:
        cuda = None
    __version__ = "2.9.1"
"""
#: The first check that imports it is done, the second hangs.
SECOND_HANGS: Final = """
    import pathlib, time
    begun = pathlib.Path(__file__).with_name("begun")
    if begun.exists():
        begun.with_name("hangs").touch()
        time.sleep(600)
    begun.touch()
"""


@dataclass(frozen=True)
class SuiteOutput:
    """The results of a run. results: check -> its object of results.json."""

    status: int
    stderr: str
    document: dict[str, Any]
    results: dict[str, dict[str, Any]]

    def findings(self, check: str) -> dict[str, dict[str, Any]]:
        """name -> finding of a check."""
        return {each["name"]: each for each in self.results[check]["findings"]}

    def wrong(self, check: str) -> set[str]:
        """The names of findings that failed."""
        return {name for name, finding in self.findings(check).items() if finding["ok"] is False}


def make_request(*checks: str, device: str = "cpu", **more: Any) -> dict[str, Any]:
    """A request as envspec writes it. more: further fields. Without preimports, whatever the number of cores."""
    return {**asdict(SuiteRequest(device, checks, preimports=0)), **more}


def run(
    python: Path,
    requested: Mapping[str, Any],
    folder: Path,
    *,
    environ: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> SuiteOutput:
    """Run it to its end. folder: empty. environ: more variables. before: words before the command."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "request.json").write_text(json.dumps(requested), encoding="utf-8")
    results = folder / "results.json"
    command = [*before, str(python), str(RUN), str(folder / "request.json"), str(results)]
    done = subprocess.run(
        command,
        env={**os.environ, **_GRACE, **(environ or {}), MARK: str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode or left(folder) == []
    document = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    rows = {each["check"]: each for each in document.get("results", [])}
    return SuiteOutput(done.returncode, done.stderr, document, rows)


@contextlib.contextmanager
def started(
    python: Path, requested: Mapping[str, Any], folder: Path, environ: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A run that goes on; what it makes is in `folder`, which is not there yet."""
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps(requested), encoding="utf-8")
    command = [str(python), str(RUN), str(folder / "request.json"), str(folder / "results.json")]
    (folder / "tmp").mkdir()
    variables = {**os.environ, **_GRACE, **environ, MARK: str(folder), "TMPDIR": str(folder / "tmp")}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def fake_torch(folder: Path, *bodies: str) -> dict[str, str]:
    """The variables under which `import torch` does what the bodies say."""
    package = folder / "torch"
    package.mkdir(parents=True)
    text = "\n".join(textwrap.dedent(body) for body in bodies)
    (package / "__init__.py").write_text(text, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def worker_of(suite: subprocess.Popen[str]) -> int:
    """PID of the process that runs the checks."""
    (worker,) = Path(f"/proc/{suite.pid}/task/{suite.pid}/children").read_text(encoding="utf-8").split()
    return int(worker)


def processes(folder: Path) -> set[int]:
    """The processes of a run in `folder`, those that it left too."""
    mark = f"{MARK}={folder}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def left(folder: Path) -> list[str]:
    """The command lines of the processes that a run in `folder` has left; zombies have none and do not count."""
    found = []
    for process in processes(folder):
        with contextlib.suppress(OSError):
            words = Path("/proc", str(process), "cmdline").read_bytes()
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def assert_nothing_left(folder: Path) -> None:
    """No process of a run in `folder` is there any more."""
    assert left(folder) == []


def assert_nothing_stays(folder: Path) -> None:
    """No process of a run that was `started` in `folder` is there after a while, and no file of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while left(folder):
        assert time.monotonic() < deadline, left(folder)
        time.sleep(0.05)
    assert list((folder / "tmp").iterdir()) == []
