"""The doctor on machines that are described: golden cases under tests/diagnostics/golden/doctor.

`case.toml` describes a machine; what it leaves out is as on a laptop where nothing is wrong. `expected.txt` is what its
report says otherwise than that of such a laptop, whose own is in `laptop`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envspec.diagnostics.doctor import examine
from envspec.diagnostics.doctor.types import (
    DiskSpace,
    DoctorContext,
    DoctorFinding,
    FindingState,
    ProbeResult,
    RunningPython,
    this_machine,
)
from envspec.diagnostics.machine import MachineGpu, NvmlReading
from envspec.facts.gpu import ComputeCapability
from envspec.io.process import Finished
from envspec.report.machine import doctor_as_text
from tests.support.golden import GoldenCase, read_cases

CASES = read_cases(Path(__file__).parent / "golden" / "doctor")
PODMAN = '{"host":{"security":{"rootless":true}},"version":{"Version":"4.3.1"}}'
ROOMY = {"total_bytes": 500 * 10**9, "free_bytes": 200 * 10**9}


def described(case: dict[str, Any], root: Path) -> DoctorContext:
    """The machine that a case describes, its files laid below `root`."""
    (root / "home").mkdir()
    (root / "dev").mkdir()
    spaces = {"shm": {"total_bytes": 16 * 2**30, "free_bytes": 16 * 2**30}, "cache": ROOMY} | case.get("space", {})
    if spaces["shm"] != "none":
        (root / "dev" / "shm").mkdir()
    for name, text in case.get("files", {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    programs: dict[str, dict[str, Any]] = {"uv": {"stdout": "uv 0.13.8"}} | case.get("programs", {})
    nvml = {"problem": "NVML does not answer: NVML Shared Library Not Found"} | case.get("nvml", {})
    probes = {"index": {"status": 200}, "registry": {"status": 401}} | case.get("probes", {})

    async def ask(command: Sequence[str]) -> Finished | None:
        program = programs[command[0]]
        if program.get("hangs"):
            return None
        return Finished(program.get("status", 0), program.get("stdout", ""), program.get("stderr", ""))

    async def probe(method: str, url: str) -> ProbeResult:
        answer = probes["index" if "index.example" in url else "registry"]
        return ProbeResult(answer.get("status"), answer.get("problem", ""), answer.get("todo", ""))

    def space(path: Path) -> DiskSpace | None:
        known = spaces["shm" if path.name == "shm" else "cache"]
        return None if known == "none" else DiskSpace(**known)

    driver = nvml.get("driver")
    return DoctorContext(
        root=root,
        home=root / "home",
        cache=Path("/home/user/.cache/envspec"),
        system=case.get("system", "linux"),
        environ=case.get("environ", {}),
        prefix=root / "venv",
        python=RunningPython(
            **{"version": "3.12.3", "executable": "/venv/bin/python", "virtual": True, "managed": False}
            | case.get("python", {})
        ),
        open_cache=lambda: None,
        path_of=lambda name: name if name in programs else None,
        run=ask,
        space=space,
        nvml=lambda: NvmlReading(
            driver,
            tuple(
                MachineGpu(gpu["name"], ComputeCapability(*map(int, gpu["capability"].split("."))), gpu["memory_mib"])
                for gpu in nvml.get("gpus", ())
            ),
            "" if driver else nvml["problem"],
        ),
        probe=probe,
        uv=lambda: None if case.get("uv", {}).get("missing") else "uv",
    )


def report(case: dict[str, Any], root: Path) -> tuple[DoctorFinding, ...]:
    return asyncio.run(
        examine(described(case, root), index_url="https://index.example/simple/", mirrors=case.get("mirrors"))
    )


def message(golden: GoldenCase, root: Path) -> tuple[tuple[DoctorFinding, ...], str]:
    """All findings of a case, and the text of those that a laptop's report doesn't have."""
    case = golden.table("case.toml")
    for name in ("laptop", "machine"):
        (root / name).mkdir()
    laptop = report({"programs": {"podman": {"stdout": PODMAN}}}, root / "laptop")
    findings = report({"programs": {"podman": {"stdout": PODMAN}}} | case, root / "machine")
    different = [finding for finding in findings if finding not in laptop or golden.name == "laptop"]
    return findings, doctor_as_text(different, 10_000).replace(str(root / "machine"), "ROOT")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: GoldenCase, tmp_path: Path) -> None:
    findings, text = message(case, tmp_path)
    case.check(text)
    assert "hunter2" not in text
    for finding in findings:
        assert finding.todo or finding.state in {FindingState.OK, FindingState.NOT_APPLICABLE}


def test_this_machine_is_examined(tmp_path: Path) -> None:
    """The real effects, with a network that refuses: every question gets an answer."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HTTPS_PROXY": "http://127.0.0.1:9"}
    place = this_machine(environ, tmp_path / "cache")
    findings = asyncio.run(examine(place, index_url="https://index.invalid/simple/"))
    by_name = {finding.what: finding for finding in findings}
    assert by_name["Python"].state is FindingState.OK
    assert by_name["uv"].state is FindingState.OK
    assert "the proxy can't be reached" in by_name["package index"].found
    assert "the proxy can't be reached" in by_name["registry docker.io"].found
    assert {"NVIDIA driver", "disk", "shared memory", "settings of pip and uv"} <= by_name.keys()
